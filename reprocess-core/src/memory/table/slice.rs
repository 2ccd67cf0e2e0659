//! The part of a table that a pin names.

use std::collections::{BTreeMap, BTreeSet};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use super::rows::{self, Parts};
use super::state::State;
use crate::domain::partition::PartitionKey;
use crate::domain::rows::{Cell, Column, Columns};
use crate::domain::slice::{AsOfSlice, Pin, Slice, TimeSlice};
use crate::domain::value::Value;
use crate::error::{Error, ErrorKind, Result};

impl State {
    /// The rows of a slice at a version, by partition.
    pub(super) fn slice_at(&self, version: u64, schema: &SchemaRef, slice: &Slice) -> Result<Parts> {
        self.check_slice(slice)?;
        let parts = self.rows_at(version, schema, |key| in_slice(slice, key))?;
        narrow(parts, slice)
    }

    /// The version that last changed the rows of a slice, up to a version.
    pub(super) fn slice_version(&self, version: u64, slice: &Slice) -> Result<u64> {
        self.check_slice(slice)?;
        let wanted = |key: &PartitionKey| in_slice(slice, key);
        if whole_partitions(slice) {
            return Ok(self.last_change(version, wanted));
        }
        let mut last = self.last_change(version, wanted);
        while last > 0 && self.slice_content(last, slice)? == self.slice_content(last - 1, slice)? {
            last = self.last_change(last - 1, wanted);
        }
        Ok(last)
    }

    /// Refuses columns that are no dimensions: without them a slice would silently be another.
    fn check_slice(&self, slice: &Slice) -> Result<()> {
        let check = |key: &PartitionKey| self.spec.partitioning.check_key(key).map(drop);
        let checked = match slice {
            Slice::Time(slice) => check(&slice.only.clone().and(&slice.column, slice.first.clone())),
            Slice::Partitions(keys) => keys.iter().try_for_each(check),
            Slice::AsOf(_) | Slice::All => Ok(()),
        };
        checked.map_err(|e| e.with_context("table", &self.spec.id))
    }

    fn slice_content(&self, version: u64, slice: &Slice) -> Result<BTreeMap<Vec<u8>, u64>> {
        let parts = self.slice_at(version, &self.schema_at(version), slice)?;
        rows::multiset(&rows::flatten(parts))
    }

    /// The number of the version of a pin that can be read and whose content is what the pin says.
    pub(super) fn check_pin(&self, pin: &Pin) -> Result<u64> {
        let version = self.check_readable(pin)?;
        if self.slice_version(version, &pin.slice)?.to_string() != pin.content.as_str() {
            return Err(broken(pin, "the pin names another content than its version has"));
        }
        Ok(version)
    }

    pub(super) fn check_readable(&self, pin: &Pin) -> Result<u64> {
        if pin.table != self.spec.id {
            return Err(Error::invalid(format!("the pin is of table `{}`", pin.table))
                .with_context("table", &self.spec.id));
        }
        let version = self.number(&pin.version)?;
        if version < self.expired_before && !self.held.contains(pin) {
            return Err(broken(pin, "the version of the pin has expired"));
        }
        Ok(version)
    }
}

pub(super) fn broken(pin: &Pin, message: &str) -> Error {
    Error::new(ErrorKind::PinBroken, message)
        .with_context("table", &pin.table)
        .with_context("version", &pin.version)
        .with_context("slice", &pin.slice)
        .with_advice("plan again with current inputs")
}

/// Whether the slice may have rows of a partition; the key binds every dimension.
fn in_slice(slice: &Slice, key: &PartitionKey) -> bool {
    match slice {
        Slice::Time(slice) => in_time(slice, key) && slice.only.overlaps(key),
        Slice::Partitions(keys) => keys.iter().any(|wanted| wanted.covers(key)),
        Slice::AsOf(_) | Slice::All => true,
    }
}

/// Time keys are compared rather than rows: a row lies in the interval exactly where its period does, and a local date
/// that the zone left out belongs to no other period.
fn in_time(slice: &TimeSlice, key: &PartitionKey) -> bool {
    key.get(&slice.column).is_some_and(|time| slice.first <= *time && *time <= slice.last)
}

/// Whether the slice takes whole partitions.
fn whole_partitions(slice: &Slice) -> bool {
    !matches!(slice, Slice::AsOf(_))
}

/// Takes the rows of a slice out of those of its partitions.
pub(super) fn narrow(parts: Parts, slice: &Slice) -> Result<Parts> {
    let Slice::AsOf(slice) = slice else {
        return Ok(parts.into_iter().filter(|(key, _)| in_slice(slice, key)).collect());
    };
    let mut latest = BTreeMap::<Vec<u8>, Value>::new();
    for batch in parts.values().flatten() {
        let rows = Effective::new(slice, batch)?;
        for row in (0..batch.num_rows()).filter(|row| rows.holds(*row)) {
            let from = latest.entry(rows.entity(row)).or_insert(Value::Null);
            *from = rows.from(row).max(from.clone());
        }
    }
    let mut found = Parts::new();
    for (key, batches) in parts {
        for batch in &batches {
            let rows = Effective::new(slice, batch)?;
            let is_latest = |row: usize| latest.get(&rows.entity(row)) == Some(&rows.from(row));
            let wanted = (0..batch.num_rows()).filter(|row| rows.holds(*row));
            let picks: Vec<_> =
                wanted.filter(|row| slice.to.is_some() || is_latest(*row)).map(|row| (0, row)).collect();
            found.entry(key.clone()).or_default().extend(rows::pick(&[batch], &picks)?);
        }
    }
    Ok(found)
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
