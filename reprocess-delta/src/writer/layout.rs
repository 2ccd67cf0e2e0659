//! Versions in which only files were written again.

use deltalake::kernel::Action;
use reprocess_core::Result;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::slice::Base;

use crate::commits;
use crate::table::DeltaTable;
use crate::view::{View, number};

/// Whether everything that happened to a partition since a base left its rows as they were, as a compaction does. What the
/// log no longer has counts as a change.
pub(super) async fn only_files_moved(
    table: &DeltaTable,
    view: &View,
    key: &PartitionKey,
    base: &Base,
) -> Result<bool> {
    let (Some(since), Some(newest)) = (number(&base.table)?, view.number()) else { return Ok(false) };
    let partitions = view.partitions()?;
    let known = table.spec().partitioning.check_key(key)?;
    for version in since.saturating_add(1)..=newest {
        let Some(actions) = commits::actions(table.log().as_ref(), version).await? else { return Ok(false) };
        for action in &actions {
            let (changes, values) = match action {
                Action::Add(add) => (add.data_change, Some(&add.partition_values)),
                Action::Remove(remove) => (remove.data_change, remove.partition_values.as_ref()),
                _ => continue,
            };
            let touches = match values {
                Some(values) => known.covers(&partitions.key(&partitions.values(values)?)?),
                None => true,
            };
            if changes && touches {
                return Ok(false);
            }
        }
    }
    Ok(true)
}
