//! Pins that are held: a note for each beside the table, and a tag on each of their snapshots.

use std::collections::BTreeSet;
use std::time::Duration;

use iceberg::spec::{SnapshotReference, SnapshotRetention, TableMetadata};
use iceberg::{TableRequirement, TableUpdate};
use reprocess_core::domain::slice::Pin;
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_lake::held;

use crate::catalog::{Answer, Proposal};
use crate::features;
use crate::table::IcebergTable;
use crate::view::{There, snapshot_of};

/// How often a tag is tried where others change the table at the same time.
const ATTEMPTS: u32 = 12;

fn tag_of(snapshot: i64) -> String {
    format!("reprocess-held-{snapshot}")
}

pub(super) async fn hold(table: &IcebergTable, pins: &[Pin]) -> Result<()> {
    let pins = with_snapshots(pins)?;
    if pins.is_empty() {
        return Ok(());
    }
    let view = table.latest().await?;
    // The notes come first: whoever takes a tag away looks at them again afterwards.
    let noted: Vec<_> = pins.iter().map(|(pin, _)| pin.clone()).collect();
    held::hold(view.there()?.files.folder(), &noted).await?;
    // Tables of the oldest format have no tags: their snapshots stay as long as their settings say.
    if features::check_refs(&view).is_err() {
        return Ok(());
    }
    let snapshots: BTreeSet<_> = pins.iter().map(|(_, snapshot)| *snapshot).collect();
    tag(table, &snapshots, &BTreeSet::new()).await
}

pub(super) async fn release(table: &IcebergTable, pins: &[Pin]) -> Result<()> {
    let pins = with_snapshots(pins)?;
    let view = table.latest().await?;
    let Some(there) = view.known().filter(|_| !pins.is_empty()) else { return Ok(()) };
    let noted: Vec<_> = pins.iter().map(|(pin, _)| pin.clone()).collect();
    held::release(there.files.folder(), &noted).await?;
    let released: BTreeSet<_> = pins.iter().map(|(_, snapshot)| *snapshot).collect();
    let left = &released - &still_held(there).await?;
    tag(table, &BTreeSet::new(), &left).await?;
    // Another may have noted a pin in between, and found the tag still there.
    let again = &left & &still_held(there).await?;
    tag(table, &again, &BTreeSet::new()).await
}

/// Pins with their snapshots; what was empty needs no hold.
fn with_snapshots(pins: &[Pin]) -> Result<Vec<(Pin, i64)>> {
    let snapshots = pins.iter().map(|pin| Ok(snapshot_of(&pin.version)?.map(|id| (pin.clone(), id))));
    snapshots.filter_map(Result::transpose).collect()
}

async fn still_held(there: &There) -> Result<BTreeSet<i64>> {
    let versions = held::versions(there.files.folder()).await?;
    let snapshot = |version: String| snapshot_of(&version.as_str().into()).transpose();
    versions.into_iter().filter_map(snapshot).collect()
}

/// Tags snapshots, and takes the tags of others away.
async fn tag(table: &IcebergTable, on: &BTreeSet<i64>, off: &BTreeSet<i64>) -> Result<()> {
    let _turn = table.turn().await;
    for attempt in 0..ATTEMPTS {
        let view = table.latest().await?;
        let loaded = &view.there()?.loaded;
        let Some((requirements, updates)) = changes(&loaded.metadata, on, off)? else { return Ok(()) };
        let proposal = Proposal { base: loaded, requirements, updates, told: None };
        match table.change(&view, proposal).await? {
            Answer::Done(_) => return Ok(()),
            Answer::CameFirst | Answer::Fenced => {
                tokio::time::sleep(Duration::from_millis(5 << attempt.min(8))).await;
            }
        }
    }
    Err(Error::new(ErrorKind::Unavailable, "the table changes all the time, so that no pin could be held")
        .with_advice("try again"))
}

/// What is asked of the catalog; `None` where all is so already.
fn changes(
    metadata: &TableMetadata,
    on: &BTreeSet<i64>,
    off: &BTreeSet<i64>,
) -> Result<Option<(Vec<TableRequirement>, Vec<TableUpdate>)>> {
    let mut requirements = vec![TableRequirement::UuidMatch { uuid: metadata.uuid() }];
    let mut updates = Vec::new();
    let there = |name: &str| metadata.snapshot_for_ref(name).map(|snapshot| snapshot.snapshot_id());
    for snapshot in on {
        let ref_name = tag_of(*snapshot);
        if there(&ref_name) == Some(*snapshot) {
            continue;
        }
        if metadata.snapshot_by_id(*snapshot).is_none() {
            return Err(Error::new(ErrorKind::PinBroken, "the snapshot of a pin expired before it was held")
                .with_context("snapshot", snapshot)
                .with_advice("plan again with the current inputs"));
        }
        // Whatever the table says of the age of tags: this one stays until it is released.
        let retention = SnapshotRetention::Tag { max_ref_age_ms: Some(i64::MAX) };
        let reference = SnapshotReference::new(*snapshot, retention);
        updates.push(TableUpdate::SetSnapshotRef { ref_name, reference });
    }
    for name in off.iter().map(|snapshot| tag_of(*snapshot)) {
        if let Some(snapshot) = there(&name) {
            let known =
                TableRequirement::RefSnapshotIdMatch { r#ref: name.clone(), snapshot_id: Some(snapshot) };
            requirements.push(known);
            updates.push(TableUpdate::RemoveSnapshotRef { ref_name: name });
        }
    }
    Ok((!updates.is_empty()).then_some((requirements, updates)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::reader::expiry::tests::table;

    #[test]
    fn snapshots_are_tagged_once_and_for_as_long_as_it_takes() {
        let tagged = json!({"reprocess-held-2": {"snapshot-id": 2, "type": "tag"}});
        let metadata = table(2, &json!({}), &tagged);
        let (on, none) = (BTreeSet::from([1, 2]), BTreeSet::new());
        let (requirements, updates) = changes(&metadata, &on, &none).unwrap().unwrap();
        let retention = SnapshotRetention::Tag { max_ref_age_ms: Some(i64::MAX) };
        let tag = TableUpdate::SetSnapshotRef {
            ref_name: "reprocess-held-1".to_owned(),
            reference: SnapshotReference::new(1, retention),
        };
        assert_eq!((updates, requirements.len()), (vec![tag], 1));
        assert!(changes(&metadata, &BTreeSet::from([2]), &none).unwrap().is_none());
    }

    #[test]
    fn a_tag_is_taken_away_as_it_was_found() {
        let tagged = json!({"reprocess-held-2": {"snapshot-id": 2, "type": "tag"}});
        let metadata = table(2, &json!({}), &tagged);
        let (off, none) = (BTreeSet::from([1, 2]), BTreeSet::new());
        let (requirements, updates) = changes(&metadata, &none, &off).unwrap().unwrap();
        let name = "reprocess-held-2".to_owned();
        let as_found = TableRequirement::RefSnapshotIdMatch { r#ref: name.clone(), snapshot_id: Some(2) };
        assert!(requirements.contains(&as_found));
        assert_eq!(updates, [TableUpdate::RemoveSnapshotRef { ref_name: name }]);
    }

    #[test]
    fn a_snapshot_that_is_gone_cannot_be_held() {
        let metadata = table(2, &json!({}), &json!({}));
        let error = changes(&metadata, &BTreeSet::from([77]), &BTreeSet::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PinBroken);
    }
}
