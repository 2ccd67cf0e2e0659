//! Pins that are held: a note for each beside the table, by version.

use std::collections::BTreeSet;

use object_store::path::Path;
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

/// Notes pins.
pub async fn hold(folder: &Folder, pins: &[Pin]) -> Result<()> {
    for pin in pins {
        folder.write(&path_of(pin)?, pin).await?;
    }
    Ok(())
}

/// Removes the notes of pins; those that are gone already are no error.
pub async fn release(folder: &Folder, pins: &[Pin]) -> Result<()> {
    folder.remove(pins.iter().map(path_of).collect::<Result<Vec<_>>>()?).await
}

/// The versions that pins are held of, by their text.
pub async fn versions(folder: &Folder) -> Result<BTreeSet<String>> {
    folder.folders(&place([HELD])).await
}

#[cfg(test)]
mod tests {
    use reprocess_core::domain::slice::Slice;

    use super::*;
    use crate::testing::{MON, day, folder};

    #[tokio::test]
    async fn a_version_is_held_as_long_as_one_of_its_pins() {
        let folder = folder();
        let pin = |version: &str, slice| Pin {
            table: "sales".into(),
            version: version.into(),
            slice,
            content: "c".into(),
        };
        let all = pin("12.1", Slice::All);
        let monday = pin("12.1", Slice::Partitions([day(MON)].into()));
        let later = pin("13", Slice::All);
        let held = async || versions(&folder).await.unwrap().into_iter().collect::<Vec<_>>();
        assert!(held().await.is_empty());

        hold(&folder, &[all.clone(), monday.clone(), later.clone()]).await.unwrap();
        hold(&folder, std::slice::from_ref(&all)).await.unwrap();
        assert_eq!(held().await, ["12.1", "13"]);
        release(&folder, &[all.clone(), later]).await.unwrap();
        assert_eq!(held().await, ["12.1"]);
        release(&folder, &[monday, all]).await.unwrap();
        assert!(held().await.is_empty());
    }
}
