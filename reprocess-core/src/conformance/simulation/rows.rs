//! Rows of every table of the history as one plain type.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Int64Type};
use arrow_array::{Array, ArrayRef, Date32Array, Int64Array, RecordBatch, StringArray};
use chrono::{Days, NaiveDate};

use crate::domain::partition::PartitionKey;
use crate::domain::slice::Slice;
use crate::domain::value::Value;
use crate::error::{Error, Result};

/// A row; columns that a table does not have are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    pub(super) day: NaiveDate,
    pub(super) country: String,
    pub(super) id: i64,
    pub(super) cents: i64,
}

/// A date of October 2026.
pub(super) fn date(day: u32) -> NaiveDate {
    NaiveDate::from_ymd_opt(2026, 10, day).unwrap_or_default()
}

pub(super) fn key(day: u32) -> PartitionKey {
    PartitionKey::of("day", date(day))
}

/// The rows of batches, sorted.
pub(super) fn of(batches: &[RecordBatch]) -> Vec<Row> {
    let mut rows = Vec::new();
    for batch in batches {
        let day = batch.column_by_name("day").map(|c| c.as_primitive::<Date32Type>());
        let country = batch.column_by_name("country").map(|c| c.as_string::<i32>());
        let number = |name| batch.column_by_name(name).map(|c: &ArrayRef| c.as_primitive::<Int64Type>());
        let (id, cents) = (number("id"), number("cents"));
        for row in 0..batch.num_rows() {
            rows.push(Row {
                day: day.map(|d| from_number(d.value(row))).unwrap_or_default(),
                country: country.map(|c| c.value(row).to_owned()).unwrap_or_default(),
                id: id.map(|i| i.value(row)).unwrap_or_default(),
                cents: cents.filter(|c| !c.is_null(row)).map(|c| c.value(row)).unwrap_or_default(),
            });
        }
    }
    rows.sort();
    rows
}

/// Rows as a batch with these columns.
pub(super) fn batch(columns: &[&str], rows: &[Row]) -> Result<RecordBatch> {
    let array = |name: &str| -> ArrayRef {
        match name {
            "day" => Arc::new(rows.iter().map(|r| Some(number(r.day))).collect::<Date32Array>()),
            "country" => Arc::new(rows.iter().map(|r| Some(r.country.as_str())).collect::<StringArray>()),
            "id" => Arc::new(rows.iter().map(|r| Some(r.id)).collect::<Int64Array>()),
            _ => Arc::new(rows.iter().map(|r| Some(r.cents)).collect::<Int64Array>()),
        }
    };
    let columns: Vec<_> = columns.iter().map(|name| (*name, array(name), true)).collect();
    RecordBatch::try_from_iter_with_nullable(columns)
        .map_err(|e| Error::internal("rows do not become a batch").with_source(e))
}

fn number(day: NaiveDate) -> i32 {
    i32::try_from((day - NaiveDate::default()).num_days()).unwrap_or(i32::MAX)
}

fn from_number(days: i32) -> NaiveDate {
    let days = Days::new(u64::try_from(days).unwrap_or(0));
    NaiveDate::default().checked_add_days(days).unwrap_or_default()
}

impl Row {
    /// Whether the row lies under a key.
    pub(super) fn under(&self, key: &PartitionKey) -> bool {
        key.bound().all(|(column, value)| match (column, value) {
            ("day", Value::Date(day)) => self.day == *day,
            ("country", Value::Text(country)) => self.country == *country,
            _ => false,
        })
    }

    /// Whether the row lies in a slice.
    pub(super) fn within(&self, slice: &Slice) -> bool {
        match slice {
            Slice::Time(time) => {
                let day = Value::Date(self.day);
                time.first <= day && day <= time.last
            }
            Slice::Partitions(keys) => keys.iter().any(|key| self.under(key)),
            Slice::AsOf(_) | Slice::All => true,
        }
    }
}

/// The rows under a key.
pub(super) fn under(rows: &[Row], key: &PartitionKey) -> Vec<Row> {
    rows.iter().filter(|row| row.under(key)).cloned().collect()
}
