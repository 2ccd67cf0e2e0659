//! Merging by key.

use std::collections::{BTreeMap, BTreeSet};

use arrow_array::RecordBatch;
use arrow_schema::Schema;

use super::rows;
use crate::domain::rows::Columns;
use crate::error::{Error, Result};
use crate::ports::writer::MergeKeys;

/// How many offending keys an error names.
const NAMED_KEYS: usize = 5;

/// Refuses columns that are not there, and NULL or repeated keys, naming them.
pub(super) fn check(by: &MergeKeys, batch: &RecordBatch) -> Result<()> {
    if by.keys.is_empty() {
        return Err(Error::invalid("a merge needs the columns that identify a row"));
    }
    check_columns(by, &batch.schema())?;
    let columns = Columns::new(batch)?;
    for name in &by.keys {
        let is_null = |row: &usize| columns.get(name).is_some_and(|column| column.cell(*row).is_null());
        let nulls: Vec<_> = (0..batch.num_rows()).filter(is_null).collect();
        if let Some(first) = nulls.first() {
            let rows = if nulls.len() == 1 { "row" } else { "rows" };
            return Err(Error::invalid(format!("merge key `{name}` is NULL in {} {rows}", nulls.len()))
                .with_context("first row", first));
        }
    }
    let mut counts = BTreeMap::<_, (usize, u64)>::new();
    for row in 0..batch.num_rows() {
        counts.entry(key(&columns, by, row)).or_insert((row, 0)).1 += 1;
    }
    let mut repeated: Vec<_> = counts.into_values().filter(|(_, count)| *count > 1).collect();
    repeated.sort_unstable();
    if repeated.is_empty() {
        return Ok(());
    }
    let name = |(row, count): &(usize, u64)| format!("{} ({count} rows)", text(&columns, by, *row));
    let named: Vec<_> = repeated.iter().take(NAMED_KEYS).map(name).collect();
    let keys = if repeated.len() == 1 { "key is" } else { "keys are" };
    let message = format!("{} merge {keys} repeated: {}", repeated.len(), named.join(", "));
    Err(Error::invalid(message).with_advice("produce one row per key"))
}

fn check_columns(by: &MergeKeys, schema: &Schema) -> Result<()> {
    let owner = by.delete_vanished.iter().flat_map(BTreeMap::keys);
    for name in by.keys.iter().chain(&by.newer).chain(owner) {
        if schema.field_with_name(name).is_err() {
            return Err(Error::invalid(format!(
                "the merge names the column `{name}`, and the rows have none"
            )));
        }
    }
    Ok(())
}

/// The rows of a scope once the staged ones are merged into them; all batches have the same columns.
pub(super) fn merge(
    current: &[RecordBatch],
    staged: &RecordBatch,
    by: &MergeKeys,
) -> Result<Vec<RecordBatch>> {
    let new = Columns::new(staged)?;
    let by_key: BTreeMap<_, _> = (0..staged.num_rows()).map(|row| (key(&new, by, row), row)).collect();
    let mut picks = Vec::new();
    let mut older = BTreeSet::new();
    for (place, batch) in current.iter().enumerate() {
        let old = Columns::new(batch)?;
        for row in 0..batch.num_rows() {
            let keep = match by_key.get(&key(&old, by, row)) {
                Some(incoming) if is_newer(by, (&new, *incoming), (&old, row)) => false,
                Some(incoming) => {
                    older.insert(*incoming);
                    true
                }
                None => !is_deleted(by, &old, row),
            };
            if keep {
                picks.push((place, row));
            }
        }
    }
    let incoming = (0..staged.num_rows()).filter(|row| !older.contains(row));
    picks.extend(incoming.map(|row| (current.len(), row)));
    let batches: Vec<_> = current.iter().chain([staged]).collect();
    rows::pick(&batches, &picks)
}

/// Whether the staged row overwrites the one that is there. Ties keep what is there; NULL is older than all else.
fn is_newer(by: &MergeKeys, staged: (&Columns, usize), there: (&Columns, usize)) -> bool {
    let Some(newer) = &by.newer else { return true };
    match (staged.0.get(newer), there.0.get(newer)) {
        (Some(a), Some(b)) => a.cell(staged.1) > b.cell(there.1),
        _ => false,
    }
}

/// Whether a row whose key vanished belongs to the owner that deletes it.
fn is_deleted(by: &MergeKeys, columns: &Columns, row: usize) -> bool {
    let has = |(name, value): (&String, _)| {
        columns.get(name).and_then(|column| column.cell(row).value()).as_ref() == Some(value)
    };
    by.delete_vanished.as_ref().is_some_and(|owner| owner.iter().all(has))
}

/// The key of a row as bytes. A row that is there with NULL in its key is met by no staged one, which have none.
fn key(columns: &Columns, by: &MergeKeys, row: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for column in by.keys.iter().filter_map(|name| columns.get(name)) {
        column.cell(row).encode(&mut bytes);
    }
    bytes
}

fn text(columns: &Columns, by: &MergeKeys, row: usize) -> String {
    let cells = by.keys.iter().filter_map(|name| columns.get(name));
    cells.map(|column| format!("{}={}", column.name(), column.cell(row))).collect::<Vec<_>>().join("/")
}
