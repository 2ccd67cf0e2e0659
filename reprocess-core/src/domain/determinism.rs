//! Aids for transforms that must give the same rows each time: seeded randomness, and the removal of duplicates that
//! leaves nothing to chance.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use arrow_array::{BooleanArray, RecordBatch};
use arrow_select::filter::filter_record_batch;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::{Deserialize, Serialize};

use super::ids::{JobName, LogicVersion};
use super::partition::PartitionKey;
use super::rows::{Cell, Columns};
use crate::error::{Error, Result};

/// Separates these seeds from every other use of the hash; part of what a re-run depends on.
const SEED_CONTEXT: &str = "reprocess 2026-01 rng of a task";

/// How many keys an error names.
const NAMED_KEYS: usize = 5;

/// The random generator of a task: the same job, partitions (in any order) and logic version give the same numbers
/// on every machine.
pub fn rng<'a>(
    job: &JobName,
    partitions: impl IntoIterator<Item = &'a PartitionKey>,
    logic: &LogicVersion,
) -> ChaCha8Rng {
    let partitions: BTreeSet<_> = partitions.into_iter().map(PartitionKey::to_string).collect();
    let mut hasher = blake3::Hasher::new_derive_key(SEED_CONTEXT);
    for part in [job.as_str(), logic.as_str()].into_iter().chain(partitions.iter().map(String::as_str)) {
        hasher.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    ChaCha8Rng::from_seed(*hasher.finalize().as_bytes())
}

/// Which end of an order comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The smallest value; NULL before all.
    Ascending,
    /// The largest value; NULL after all.
    Descending,
}

/// Keeps, of the rows that share a key, the first by the given order; the rows kept stay where they were. NULL is a
/// key like any other.
///
/// Refuses, naming the keys, where the order does not decide: two rows of a key come first and differ. Rows that are
/// equal in every column are no such case, as it does not matter which is kept.
pub fn deduplicate(
    batches: &[RecordBatch],
    keys: &[String],
    order: &[(String, Direction)],
) -> Result<Vec<RecordBatch>> {
    if keys.is_empty() {
        return Err(Error::invalid("duplicates are told by a key, and none was given"));
    }
    let columns = batches.iter().map(Columns::new).collect::<Result<Vec<_>>>()?;
    for name in keys.iter().chain(order.iter().map(|(name, _)| name)) {
        if columns.iter().any(|batch| batch.get(name).is_none()) {
            return Err(Error::invalid(format!("the rows have no column `{name}` to find duplicates by")));
        }
    }
    let mut rows: Vec<Row<'_>> = columns
        .iter()
        .enumerate()
        .flat_map(|(batch, columns)| (0..columns.rows()).map(move |row| Row { columns, batch, row }))
        .collect();
    // Stable, so that equal rows stay in their order.
    rows.sort_by(|a, b| a.cmp_keys(b, keys).then_with(|| a.cmp_order(b, order)));
    let groups = || rows.chunk_by(|a, b| a.cmp_keys(b, keys).is_eq());
    refuse_ties(groups(), keys, order)?;
    let mut keep: Vec<Vec<bool>> = columns.iter().map(|batch| vec![false; batch.rows()]).collect();
    for first in groups().filter_map(|group| group.first()) {
        keep[first.batch][first.row] = true;
    }
    let filter = |(batch, keep): (&RecordBatch, Vec<bool>)| {
        filter_record_batch(batch, &BooleanArray::from(keep))
            .map_err(|e| Error::internal("duplicates cannot be removed").with_source(e))
    };
    batches.iter().zip(keep).map(filter).collect()
}

#[derive(Clone, Copy)]
struct Row<'a> {
    columns: &'a Columns,
    batch: usize,
    row: usize,
}

impl<'a> Row<'a> {
    fn cell(&self, name: &str) -> Cell<'a> {
        self.columns.get(name).map_or(Cell::Null, |column| column.cell(self.row))
    }

    fn cmp_keys(&self, other: &Self, keys: &[String]) -> Ordering {
        keys.iter()
            .map(|key| self.cell(key).cmp(&other.cell(key)))
            .find(|o| o.is_ne())
            .unwrap_or(Ordering::Equal)
    }

    fn cmp_order(&self, other: &Self, order: &[(String, Direction)]) -> Ordering {
        let compare = |(name, direction): &(String, Direction)| {
            let ascending = self.cell(name).cmp(&other.cell(name));
            match direction {
                Direction::Ascending => ascending,
                Direction::Descending => ascending.reverse(),
            }
        };
        order.iter().map(compare).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
    }

    fn encoded(&self) -> Vec<u8> {
        let mut buffer = Vec::new();
        self.columns.encode(self.row, &mut buffer);
        buffer
    }
}

fn refuse_ties<'r, 'a: 'r>(
    groups: impl Iterator<Item = &'r [Row<'a>]>,
    keys: &[String],
    order: &[(String, Direction)],
) -> Result<()> {
    let is_tied = |group: &&'r [Row<'a>]| match group {
        [first, rest @ ..] => rest
            .iter()
            .take_while(|row| row.cmp_order(first, order).is_eq())
            .any(|row| row.encoded() != first.encoded()),
        [] => false,
    };
    let tied: Vec<_> = groups.filter(is_tied).filter_map(|group| group.first()).collect();
    if tied.is_empty() {
        return Ok(());
    }
    let name = |row: &&Row<'_>| {
        let values: Vec<_> = keys.iter().map(|key| format!("{key}={}", row.cell(key))).collect();
        values.join(", ")
    };
    let mut named: Vec<_> = tied.iter().take(NAMED_KEYS).map(name).collect();
    if tied.len() > NAMED_KEYS {
        named.push(format!("and {} more", tied.len() - NAMED_KEYS));
    }
    Err(Error::invalid(format!(
        "the order leaves open which row to keep of {} {}: {}",
        tied.len(),
        if tied.len() == 1 { "key" } else { "keys" },
        named.join("; ")
    ))
    .with_advice("add columns to the order until it decides, for example a sequence number"))
}

#[cfg(test)]
#[path = "determinism_tests.rs"]
mod tests;
