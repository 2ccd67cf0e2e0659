//! Snapshots in which only files were written again.

use iceberg::spec::{Operation, SnapshotRef};
use reprocess_core::Result;
use reprocess_core::domain::ids::PartitionVersion;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Base;

use crate::commits;
use crate::table::IcebergTable;
use crate::view::{View, Wanted, snapshot_of};

/// Whether everything that happened to a partition since a base left its rows as they were, as a compaction does. What the
/// table no longer has counts as a change, and so does everything where main did not go on from the base.
pub(super) async fn only_files_moved(
    table: &IcebergTable,
    view: &View,
    key: &PartitionKey,
    base: &Base,
) -> Result<bool> {
    let (Some(there), Some(since)) = (view.known(), snapshot_of(&base.table)?) else { return Ok(false) };
    let metadata = &there.loaded.metadata;
    let after = commits::after(metadata, view.snapshot_id(), Some(since));
    let goes_on = after.snapshots.last().is_some_and(|first| first.parent_snapshot_id() == Some(since));
    if !goes_on || !after.snapshots.iter().any(|snapshot| is_layout(snapshot)) {
        return Ok(false);
    }
    for snapshot in after.snapshots.into_iter().filter(|snapshot| !is_layout(snapshot)) {
        let parent = snapshot.parent_snapshot_id().and_then(|id| metadata.snapshot_by_id(id));
        let Some(parent) = parent else { return Ok(false) };
        let before = version(table, view, parent, key).await?;
        if version(table, view, snapshot, key).await? != before {
            return Ok(false);
        }
    }
    Ok(true)
}

/// By its own word, which Iceberg reserves for changes without a change of rows.
fn is_layout(snapshot: &SnapshotRef) -> bool {
    snapshot.summary().operation == Operation::Replace
}

async fn version(
    table: &IcebergTable,
    view: &View,
    snapshot: &SnapshotRef,
    key: &PartitionKey,
) -> Result<Option<PartitionVersion>> {
    let at = table.at_snapshot(view, snapshot).await?;
    let scope = if key.is_whole() { Scope::whole_table() } else { Scope::key(key.clone())? };
    let listing = at.listing(table, &Wanted::of(&scope)).await?;
    Ok(at.head(&listing, &scope)?.partitions.remove(key))
}
