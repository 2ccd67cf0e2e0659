//! Record batches by partition.

use std::collections::BTreeMap;

use arrow_array::RecordBatch;
use arrow_select::interleave::interleave_record_batch;

use crate::domain::partition::{PartitionKey, Partitioning};
use crate::domain::rows::{Columns, partition_of_rows};
use crate::error::{Error, Result};

/// The rows of each partition that has some.
pub(super) type Parts = BTreeMap<PartitionKey, Vec<RecordBatch>>;

/// The batch by partition.
pub(super) fn split(partitioning: &Partitioning, batch: &RecordBatch) -> Result<Parts> {
    let mut picks = BTreeMap::<_, Vec<_>>::new();
    for (row, key) in partition_of_rows(partitioning, batch)?.into_iter().enumerate() {
        picks.entry(key).or_default().push((0, row));
    }
    picks.into_iter().map(|(key, rows)| Ok((key, pick(&[batch], &rows)?))).collect()
}

/// Rows by their batch and place, as no batch or one; the batches have the same columns.
pub(super) fn pick(batches: &[&RecordBatch], rows: &[(usize, usize)]) -> Result<Vec<RecordBatch>> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![
        interleave_record_batch(batches, rows)
            .map_err(|e| Error::invalid("the rows do not fit together").with_source(e))?,
    ])
}

/// The rows as canonical bytes and how often each occurs: equal for equal rows in any order.
pub(super) fn multiset(batches: &[RecordBatch]) -> Result<BTreeMap<Vec<u8>, u64>> {
    let mut counts = BTreeMap::new();
    for batch in batches {
        let columns = Columns::new(batch)?;
        for row in 0..batch.num_rows() {
            let mut bytes = Vec::new();
            columns.encode(row, &mut bytes);
            *counts.entry(bytes).or_insert(0) += 1;
        }
    }
    Ok(counts)
}

pub(super) fn flatten(parts: Parts) -> Vec<RecordBatch> {
    parts.into_values().flatten().collect()
}
