//! Reference rows by their effective dates.

use std::collections::{BTreeMap, BTreeSet};

use arrow_array::RecordBatch;

use super::rows::{Cell, Column, Columns};
use super::slice::AsOfSlice;
use super::value::Value;
use crate::error::{Error, Result};

/// Tells the rows of an [`AsOfSlice`] from others, in two passes over all rows of the table: first every batch is
/// [observed](Self::observe), then the [rows](Self::rows) of each can be asked for.
#[derive(Clone, Debug)]
pub struct EffectiveRows {
    slice: AsOfSlice,
    /// Where the table has no column for the end: the last date of each entity that has begun.
    latest: BTreeMap<Vec<u8>, Value>,
}

impl EffectiveRows {
    /// Has seen nothing yet.
    pub fn new(slice: &AsOfSlice) -> Self {
        Self { slice: slice.clone(), latest: BTreeMap::new() }
    }

    /// Whether batches have to be observed before they are asked for.
    pub fn needs_observation(&self) -> bool {
        self.slice.to.is_none()
    }

    /// The first pass. Refuses columns that are not there or hold no dates.
    pub fn observe(&mut self, batch: &RecordBatch) -> Result<()> {
        let rows = Effective::new(&self.slice, batch)?;
        if self.needs_observation() {
            for row in (0..batch.num_rows()).filter(|row| rows.holds(*row)) {
                let from = self.latest.entry(rows.entity(row)).or_insert(Value::Null);
                *from = rows.from(row).max(from.clone());
            }
        }
        Ok(())
    }

    /// The places of the rows that are effective.
    pub fn rows(&self, batch: &RecordBatch) -> Result<Vec<usize>> {
        let rows = Effective::new(&self.slice, batch)?;
        let is_latest = |row: &usize| self.latest.get(&rows.entity(*row)) == Some(&rows.from(*row));
        let wanted = (0..batch.num_rows()).filter(|row| rows.holds(*row));
        Ok(wanted.filter(|row| !self.needs_observation() || is_latest(row)).collect())
    }
}

/// The rows of a batch with their effective dates.
struct Effective<'a> {
    slice: &'a AsOfSlice,
    columns: Columns,
    from: Column,
    to: Option<Column>,
}

impl<'a> Effective<'a> {
    fn new(slice: &'a AsOfSlice, batch: &RecordBatch) -> Result<Self> {
        let columns = Columns::new(batch)?;
        let missing: BTreeSet<_> = slice.entity.iter().filter(|name| columns.get(name).is_none()).collect();
        if let Some(name) = missing.first() {
            return Err(Error::invalid(format!("the table has no column `{name}`")));
        }
        let (from, to) = (dated(&columns, &slice.from)?, slice.to.as_deref());
        let to = to.map(|name| dated(&columns, name)).transpose()?;
        Ok(Self { slice, columns, from, to })
    }

    /// Whether the row has begun and has not ended.
    fn holds(&self, row: usize) -> bool {
        let begun = match self.from.cell(row).value() {
            Some(value) if !value.is_null() => value <= self.day(&value),
            _ => false,
        };
        let ended = self
            .to
            .as_ref()
            .and_then(|to| to.cell(row).value())
            .is_some_and(|value| !value.is_null() && value <= self.day(&value));
        begun && !ended
    }

    /// The day of the slice, as a value of the same kind.
    fn day(&self, like: &Value) -> Value {
        match like {
            Value::Timestamp(_) => Value::Timestamp(self.slice.instant),
            _ => Value::Date(self.slice.date),
        }
    }

    fn from(&self, row: usize) -> Value {
        self.from.cell(row).value().unwrap_or(Value::Null)
    }

    fn entity(&self, row: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for column in self.slice.entity.iter().filter_map(|name| self.columns.get(name)) {
            column.cell(row).encode(&mut bytes);
        }
        bytes
    }
}

/// A column of dates or instants.
fn dated(columns: &Columns, name: &str) -> Result<Column> {
    let Some(column) = columns.get(name) else {
        return Err(Error::invalid(format!("the table has no column `{name}`")));
    };
    let wrong = (0..columns.rows()).map(|row| column.cell(row)).find(|cell| {
        !matches!(cell, Cell::Null | Cell::Date(_) | Cell::Timestamp(_)) || cell.value().is_none()
    });
    match wrong {
        Some(cell) => Err(Error::invalid(format!("`{cell}` in column `{name}` is no date and no timestamp"))),
        None => Ok(column.clone()),
    }
}
