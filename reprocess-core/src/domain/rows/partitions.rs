//! Which partitions the rows of a batch belong to.

use std::collections::BTreeMap;
use std::ops::Range;

use arrow_array::RecordBatch;
use chrono::{DateTime, Utc};

use super::cell::{self, Cell};
use super::column::Column;
use crate::domain::interval::Calendar;
use crate::domain::partition::{Dimension, PartitionKey, Partitioning};
use crate::domain::scope::Scope;
use crate::domain::value::Value;
use crate::error::{Error, Result};

/// How many offending keys an error names.
const NAMED_KEYS: usize = 5;

/// The values of a column, one per row. Refuses a column that holds what no partition can have, such as floats.
pub fn column_values(batch: &RecordBatch, column: &str) -> Result<Vec<Value>> {
    let column = find(batch, column)?;
    (0..batch.num_rows())
        .map(|row| {
            let cell = column.cell(row);
            cell.value().ok_or_else(|| {
                Error::invalid(format!("`{cell}` in column `{}` is no value of a partition", column.name()))
                    .with_advice("partition by booleans, 64-bit integers, texts, dates or timestamps")
            })
        })
        .collect()
}

/// The full key of every row.
pub fn partition_of_rows(partitioning: &Partitioning, batch: &RecordBatch) -> Result<Vec<PartitionKey>> {
    let mut keys = Vec::with_capacity(batch.num_rows());
    for (key, rows) in partition_runs(partitioning, batch)? {
        keys.extend(std::iter::repeat_n(key, rows.len()));
    }
    Ok(keys)
}

/// The full keys of a batch, each with the run of consecutive rows that share it; a key comes again where its rows
/// do not stand together.
///
/// The time column may hold local dates, or instants that the calendar assigns to periods; NULL is a key of its own.
pub fn partition_runs(
    partitioning: &Partitioning,
    batch: &RecordBatch,
) -> Result<Vec<(PartitionKey, Range<usize>)>> {
    let mut readers = partitioning
        .dimensions()
        .iter()
        .map(|d| Ok(Reader { dimension: d, column: find(batch, d.column())?, periods: BTreeMap::new() }))
        .collect::<Result<Vec<_>>>()?;
    let mut runs: Vec<(PartitionKey, Range<usize>)> = Vec::new();
    for row in 0..batch.num_rows() {
        if let Some((_, run)) = runs.last_mut()
            && readers.iter().all(|r| r.column.cell(row) == r.column.cell(row - 1))
        {
            run.end = row + 1;
            continue;
        }
        let mut key = PartitionKey::whole();
        for reader in &mut readers {
            key = key.and(reader.dimension.column(), reader.value(row)?);
        }
        match runs.last_mut() {
            Some((last, run)) if *last == key => run.end = row + 1,
            _ => runs.push((key, row..row + 1)),
        }
    }
    Ok(runs)
}

/// Refuses rows outside the scope, naming up to five of their partitions and how many rows each has.
pub fn check_rows(partitioning: &Partitioning, scope: &Scope, batch: &RecordBatch) -> Result<()> {
    if scope.is_whole_table() {
        return Ok(());
    }
    let mut outside = BTreeMap::new();
    for (key, rows) in partition_runs(partitioning, batch)? {
        if !scope.covers(&key) {
            *outside.entry(key).or_insert(0) += rows.len();
        }
    }
    refuse_outside(scope, &outside)
}

/// The error of [`check_rows`], where there is something to refuse.
pub(crate) fn refuse_outside(scope: &Scope, outside: &BTreeMap<PartitionKey, usize>) -> Result<()> {
    if outside.is_empty() {
        return Ok(());
    }
    let rows: usize = outside.values().sum();
    let mut named: Vec<_> =
        outside.iter().take(NAMED_KEYS).map(|(key, rows)| format!("{key} ({rows})")).collect();
    if let Some(more) = outside.len().checked_sub(NAMED_KEYS).filter(|more| *more > 0) {
        named.push(format!("and {more} more"));
    }
    Err(Error::invalid(format!(
        "{rows} {} outside the scope, in partition {}",
        if rows == 1 { "row lies" } else { "rows lie" },
        named.join(", ")
    ))
    .with_context("scope", abridged(scope))
    .with_advice("restrict the output to the partitions of the task"))
}

/// The scope by its first keys: a scope of a thousand days would hide the message.
fn abridged(scope: &Scope) -> String {
    let keys = scope.partitions();
    match keys.as_slice() {
        [first, .., last] if keys.len() > NAMED_KEYS => format!("of {} keys, {first} to {last}", keys.len()),
        _ => scope.to_string(),
    }
}

/// One dimension over the rows of a batch.
struct Reader<'a> {
    dimension: &'a Dimension,
    column: Column,
    /// The periods met so far by their start, each with its end and key: finding a period costs far more than this.
    periods: BTreeMap<DateTime<Utc>, (DateTime<Utc>, Value)>,
}

impl Reader<'_> {
    fn value(&mut self, row: usize) -> Result<Value> {
        let cell = self.column.cell(row);
        let value = match self.dimension {
            _ if cell.is_null() => Some(Value::Null),
            Dimension::Key { kind, .. } => cell.value().filter(|v| v.kind() == Some(*kind)),
            Dimension::Time { calendar, .. } => match cell {
                Cell::Date(days) => cell::date(days).and_then(|d| calendar.key_of_date(d)),
                Cell::Timestamp(nanos) => {
                    cell::instant(nanos).and_then(|t| period(&mut self.periods, calendar, t))
                }
                _ => None,
            },
        };
        value.ok_or_else(|| self.refuse(&cell))
    }

    fn refuse(&self, cell: &Cell<'_>) -> Error {
        let (column, kind) = (self.dimension.column(), cell.kind());
        match self.dimension {
            Dimension::Time { calendar, .. } => Error::invalid(format!(
                "no {calendar} can be told from the {kind} `{cell}` in column `{column}`"
            ))
            .with_advice("the time column holds timestamps, or local dates where the grain is a day or more"),
            Dimension::Key { kind: expected, .. } => Error::invalid(format!(
                "column `{column}` is a dimension of type {expected}, not of the {kind} `{cell}`"
            )),
        }
    }
}

fn period(
    periods: &mut BTreeMap<DateTime<Utc>, (DateTime<Utc>, Value)>,
    calendar: &Calendar,
    instant: DateTime<Utc>,
) -> Option<Value> {
    if let Some((_, (end, key))) = periods.range(..=instant).next_back()
        && instant < *end
    {
        return Some(key.clone());
    }
    let key = calendar.key_at(instant)?;
    let interval = calendar.interval(&key)?;
    periods.insert(interval.start(), (interval.end(), key.clone()));
    Some(key)
}

fn find(batch: &RecordBatch, column: &str) -> Result<Column> {
    let Some(array) = batch.column_by_name(column) else {
        let schema = batch.schema();
        let known: Vec<_> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        return Err(Error::invalid(format!("the rows have no column `{column}`"))
            .with_advice(format!("their columns are: {}", known.join(", "))));
    };
    Column::new(column, array)
}
