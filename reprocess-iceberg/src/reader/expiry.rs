//! Until when a snapshot stays: what an expiry of snapshots does by the settings of the table, as Iceberg's own
//! `RemoveSnapshots` decides.

use std::collections::BTreeMap;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use iceberg::spec::{MAIN_BRANCH, Snapshot, SnapshotReference, SnapshotRetention, TableMetadata};
use reprocess_core::{Error, Result};
use serde::Deserialize;

use crate::commits::ancestors;

const FIVE_DAYS_MS: i64 = 5 * 24 * 60 * 60 * 1000;

/// Until when an expiry leaves a snapshot, as branches and tags are now; `None` where none takes it.
pub(super) fn until(metadata: &TableMetadata, snapshot: &Snapshot) -> Result<Option<DateTime<Utc>>> {
    let settings = Settings::of(metadata);
    if !settings.expires {
        return Ok(None);
    }
    let refs = refs(metadata)?;
    let ends = refs.iter().filter_map(|(name, at)| settings.end(metadata, name, at, snapshot));
    // Where no branch and no tag leads to it, age alone decides.
    let end = ends.max().unwrap_or_else(|| End::after(snapshot, settings.max_age_ms));
    Ok(match end {
        End::Never => None,
        End::At(ms) => DateTime::from_timestamp_millis(ms),
    })
}

/// When something ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    At(i64),
    Never,
}

impl End {
    fn after(snapshot: &Snapshot, age_ms: i64) -> Self {
        snapshot.timestamp_ms().checked_add(age_ms).map_or(Self::Never, Self::At)
    }
}

/// What the table says of how long snapshots stay.
struct Settings {
    expires: bool,
    max_age_ms: i64,
    min_to_keep: i32,
    max_ref_age_ms: i64,
}

impl Settings {
    fn of(metadata: &TableMetadata) -> Self {
        Self {
            expires: property(metadata, "gc.enabled").unwrap_or(true),
            max_age_ms: property(metadata, "history.expire.max-snapshot-age-ms").unwrap_or(FIVE_DAYS_MS),
            min_to_keep: property(metadata, "history.expire.min-snapshots-to-keep").unwrap_or(1),
            max_ref_age_ms: property(metadata, "history.expire.max-ref-age-ms").unwrap_or(i64::MAX),
        }
    }

    /// Until when a branch or tag keeps a snapshot; `None` where it does not lead to it.
    fn end(
        &self,
        metadata: &TableMetadata,
        name: &str,
        at: &SnapshotReference,
        snapshot: &Snapshot,
    ) -> Option<End> {
        let head = metadata.snapshot_by_id(at.snapshot_id)?;
        let gone = |age_ms: &Option<i64>| End::after(head, age_ms.unwrap_or(self.max_ref_age_ms));
        match &at.retention {
            SnapshotRetention::Tag { max_ref_age_ms } => {
                (at.snapshot_id == snapshot.snapshot_id()).then(|| gone(max_ref_age_ms))
            }
            SnapshotRetention::Branch { min_snapshots_to_keep, max_snapshot_age_ms, max_ref_age_ms } => {
                let mut line = ancestors(metadata, Some(at.snapshot_id));
                let newer = line.position(|ancestor| ancestor.snapshot_id() == snapshot.snapshot_id())?;
                let branch = if name == MAIN_BRANCH { End::Never } else { gone(max_ref_age_ms) };
                let to_keep = usize::try_from(min_snapshots_to_keep.unwrap_or(self.min_to_keep)).unwrap_or(1);
                let aged = End::after(snapshot, max_snapshot_age_ms.unwrap_or(self.max_age_ms));
                Some(if newer < to_keep.max(1) { branch } else { branch.min(aged) })
            }
        }
    }
}

fn property<T: FromStr>(metadata: &TableMetadata, name: &str) -> Option<T> {
    metadata.properties().get(name)?.parse().ok()
}

/// The branches and tags, which the library shows only as it writes them.
fn refs(metadata: &TableMetadata) -> Result<BTreeMap<String, SnapshotReference>> {
    #[derive(Deserialize)]
    struct Refs {
        #[serde(default)]
        refs: BTreeMap<String, SnapshotReference>,
    }
    let unread = |e| Error::internal("the metadata of the table does not serialise").with_source(e);
    let written = serde_json::to_value(metadata).map_err(unread)?;
    let Refs { mut refs } = serde_json::from_value(written).map_err(unread)?;
    // The oldest format has none but the current snapshot.
    if let (false, Some(id)) = (refs.contains_key(MAIN_BRANCH), metadata.current_snapshot_id()) {
        let retention = SnapshotRetention::branch(None, None, None);
        refs.insert(MAIN_BRANCH.to_owned(), SnapshotReference::new(id, retention));
    }
    Ok(refs)
}

#[cfg(test)]
pub(super) mod tests;
