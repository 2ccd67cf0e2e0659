//! Rows of sales.

use std::sync::Arc;

use chrono::{Days, NaiveDate};
use reprocess::arrow::array::types::Date32Type;
use reprocess::arrow::array::{ArrayRef, Date32Array, Float64Array, Int64Array, RecordBatch, StringArray};
use reprocess::arrow::schema::{DataType, Field, Schema, SchemaRef};

const BATCH: u32 = 8_192;

/// Rows of one day, in batches that are made as they are asked for.
pub(crate) fn batches(day: u32, rows: u32, salt: i64) -> impl Iterator<Item = RecordBatch> {
    (0..rows.div_ceil(BATCH)).map(move |n| batch(day, n * BATCH, (rows - n * BATCH).min(BATCH), salt))
}

fn batch(day: u32, from: u32, rows: u32, salt: i64) -> RecordBatch {
    let date = Date32Type::from_naive_date(date(day));
    let ids = || (from..from + rows).map(|i| i64::from(day) * 10_000_000 + i64::from(i));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Date32Array::from_iter_values(ids().map(|_| date))),
        Arc::new(Int64Array::from_iter_values(ids())),
        Arc::new(StringArray::from_iter_values(ids().map(|id| format!("customer {}", id % 7_919)))),
        Arc::new(Int64Array::from_iter_values(ids().map(|id| id % 1_000 + salt))),
        Arc::new(Float64Array::from_iter_values((from..from + rows).map(|i| f64::from(i % 10_007) / 8.0))),
    ];
    RecordBatch::try_new(schema(), columns).unwrap()
}

/// A day, counted from 2026.
pub(crate) fn date(day: u32) -> NaiveDate {
    NaiveDate::from_ymd_opt(2026, 1, 1).unwrap() + Days::new(u64::from(day))
}

/// The columns of the rows.
pub(crate) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("day", DataType::Date32, false),
        Field::new("id", DataType::Int64, false),
        Field::new("customer", DataType::Utf8, true),
        Field::new("cents", DataType::Int64, true),
        Field::new("weight", DataType::Float64, true),
    ]))
}
