//! Pins that are held: a note for each beside the table, by version.

use std::collections::BTreeSet;

use deltalake::Path;
use reprocess_core::domain::slice::Pin;
use reprocess_core::{Error, Result};

use crate::folder::{Folder, place};

const HELD: &str = "held";

fn path_of(pin: &Pin) -> Result<Path> {
    let text =
        serde_json::to_vec(pin).map_err(|e| Error::internal("a pin does not serialise").with_source(e))?;
    let name = format!("{}.json", &blake3::hash(&text).to_hex()[..32]);
    Ok(place([HELD, pin.version.as_str(), &name]))
}

pub(super) async fn hold(folder: &Folder, pins: &[Pin]) -> Result<()> {
    for pin in pins {
        folder.write(&path_of(pin)?, pin).await?;
    }
    Ok(())
}

pub(super) async fn release(folder: &Folder, pins: &[Pin]) -> Result<()> {
    folder.remove(pins.iter().map(path_of).collect::<Result<Vec<_>>>()?).await
}

/// The versions that pins are held of.
pub(crate) async fn held_versions(folder: &Folder) -> Result<BTreeSet<u64>> {
    let under = place([HELD]);
    let found = folder.list(&under).await?;
    let version = |path: &Path| path.prefix_match(&under)?.next()?.as_ref().parse().ok();
    Ok(found.iter().filter_map(version).collect())
}
