//! Rows of SQLite on their way into Arrow.

use std::sync::Arc;

use arrow_array::builder::{
    BinaryBuilder, BooleanBuilder, Date32Builder, Decimal256Builder, Float64Builder, Int64Builder,
    StringBuilder,
};
use arrow_array::types::Date32Type;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, Field, SchemaRef, TimeUnit};
use chrono::{DateTime, NaiveDate, NaiveDateTime, Utc};
use futures::StreamExt;
use futures::stream::BoxStream;
use reprocess_core::domain::decimal::Decimal;
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::sqlite::{SqliteRow, SqliteValueRef};
use sqlx::{Decode, Row, Sqlite, TypeInfo, ValueRef};

use super::{Instants, Layout};
use crate::error::map;

/// A batch ends early where its texts and bytes together are this long.
const BATCH_BYTES: usize = 16 << 20;

/// A value as SQLite holds it.
enum Stored<'a> {
    Null,
    Integer(i64),
    Real(f64),
    Text(&'a str),
    Blob(&'a [u8]),
}

impl<'a> Stored<'a> {
    fn read(value: SqliteValueRef<'a>) -> Result<Self> {
        if value.is_null() {
            return Ok(Self::Null);
        }
        let kind = value.type_info().name().to_owned();
        let read = match kind.as_str() {
            "INTEGER" => <i64 as Decode<'_, Sqlite>>::decode(value).map(Self::Integer),
            "REAL" => <f64 as Decode<'_, Sqlite>>::decode(value).map(Self::Real),
            "TEXT" => <&str as Decode<'_, Sqlite>>::decode(value).map(Self::Text),
            _ => <&[u8] as Decode<'_, Sqlite>>::decode(value).map(Self::Blob),
        };
        read.map_err(|e| {
            Error::new(ErrorKind::Corrupt, format!("a value of type {kind} is damaged")).with_source(e)
        })
    }

    fn describe(&self) -> String {
        match self {
            Self::Null => "NULL".to_owned(),
            Self::Integer(i) => format!("the integer {i}"),
            Self::Real(x) => format!("the float {x:?}"),
            Self::Text(t) => format!("the text `{t}`"),
            Self::Blob(b) => format!("{} bytes", b.len()),
        }
    }
}

/// Cuts the rows of a statement into batches. The columns of the statement are those of the layout, in order.
pub(crate) struct Batches<'c> {
    rows: BoxStream<'c, Result<SqliteRow, sqlx::Error>>,
    layout: Layout,
    /// What a value that does not fit its column means.
    misfit: ErrorKind,
    batch_rows: usize,
}

impl<'c> Batches<'c> {
    pub(crate) fn new(
        rows: BoxStream<'c, Result<SqliteRow, sqlx::Error>>,
        layout: Layout,
        misfit: ErrorKind,
        batch_rows: usize,
    ) -> Self {
        Self { rows, layout, misfit, batch_rows }
    }

    /// The next batch; `None` after the last row. Never an empty one.
    pub(crate) async fn next(&mut self) -> Result<Option<RecordBatch>> {
        let mut batch = Batch::new(&self.layout);
        while batch.rows < self.batch_rows && batch.bytes < BATCH_BYTES {
            match self.rows.next().await {
                Some(Ok(row)) => batch.push(&row, self.misfit)?,
                Some(Err(e)) => return Err(map(e, "read rows")),
                None => break,
            }
        }
        if batch.rows == 0 { Ok(None) } else { batch.finish().map(Some) }
    }
}

struct Batch {
    schema: SchemaRef,
    instants: Instants,
    sinks: Vec<Sink>,
    rows: usize,
    bytes: usize,
}

impl Batch {
    fn new(layout: &Layout) -> Self {
        let sinks = layout.schema().fields().iter().map(|f| Sink::of(f.data_type())).collect();
        Self { schema: Arc::clone(layout.schema()), instants: layout.instants(), sinks, rows: 0, bytes: 0 }
    }

    fn push(&mut self, row: &SqliteRow, misfit: ErrorKind) -> Result<()> {
        for (index, (sink, field)) in self.sinks.iter_mut().zip(self.schema.fields()).enumerate() {
            let value = row.try_get_raw(index).map_err(|e| map(e, "read a column"))?;
            let stored = Stored::read(value).map_err(|e| e.with_context("column", field.name()))?;
            self.bytes += match &stored {
                Stored::Text(t) => t.len(),
                Stored::Blob(b) => b.len(),
                _ => 8,
            };
            if sink.push(field, self.instants, &stored).is_none() {
                return Err(Error::new(
                    misfit,
                    format!(
                        "column `{}` holds {}, which is no {}",
                        field.name(),
                        stored.describe(),
                        field.data_type()
                    ),
                )
                .with_advice("mend the value, or cast it in the query"));
            }
        }
        self.rows += 1;
        Ok(())
    }

    fn finish(self) -> Result<RecordBatch> {
        let arrays = self
            .sinks
            .into_iter()
            .zip(self.schema.fields())
            .map(|(sink, field)| sink.finish(field))
            .collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        RecordBatch::try_new_with_options(self.schema, arrays, &options)
            .map_err(|e| Error::new(ErrorKind::Corrupt, "the rows do not fit their columns").with_source(e))
    }
}

/// Values in one layout per kind; narrower types are cast from it at the end.
enum Sink {
    Bool(BooleanBuilder),
    Integer(Int64Builder),
    Float(Float64Builder),
    Text(StringBuilder),
    Binary(BinaryBuilder),
    Date(Date32Builder),
    Decimal(Decimal256Builder, u8),
}

impl Sink {
    fn of(data_type: &DataType) -> Self {
        match data_type {
            DataType::Boolean => Self::Bool(BooleanBuilder::new()),
            DataType::Float32 | DataType::Float64 => Self::Float(Float64Builder::new()),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::Text(StringBuilder::new()),
            DataType::Date32 => Self::Date(Date32Builder::new()),
            DataType::Decimal128(_, scale) | DataType::Decimal256(_, scale) => {
                let builder = Decimal256Builder::new().with_data_type(DataType::Decimal256(76, *scale));
                Self::Decimal(builder, u8::try_from(*scale).unwrap_or(0))
            }
            t if t.is_integer() || matches!(t, DataType::Timestamp(..)) => Self::Integer(Int64Builder::new()),
            _ => Self::Binary(BinaryBuilder::new()),
        }
    }

    /// `None` where the value is none of the column.
    fn push(&mut self, field: &Field, instants: Instants, value: &Stored<'_>) -> Option<()> {
        if let Stored::Null = value {
            return field.is_nullable().then(|| self.push_null());
        }
        match self {
            Self::Bool(b) => b.append_value(match value {
                Stored::Integer(0) => false,
                Stored::Integer(1) => true,
                _ => return None,
            }),
            Self::Integer(b) => b.append_value(match field.data_type() {
                DataType::Timestamp(unit, _) => ticks(*unit, instants, value)?,
                _ => integer(value)?,
            }),
            Self::Float(b) => b.append_value(float(value)?),
            Self::Text(b) => match value {
                Stored::Text(t) => b.append_value(t),
                _ => return None,
            },
            Self::Binary(b) => match value {
                Stored::Blob(bytes) => b.append_value(bytes),
                _ => return None,
            },
            Self::Date(b) => match value {
                Stored::Text(t) => b.append_value(Date32Type::from_naive_date(date(t)?)),
                _ => return None,
            },
            Self::Decimal(b, scale) => {
                b.append_value(decimal(value)?.normalized().rescale(*scale)?.unscaled());
            }
        }
        Some(())
    }

    fn push_null(&mut self) {
        match self {
            Self::Bool(b) => b.append_null(),
            Self::Integer(b) => b.append_null(),
            Self::Float(b) => b.append_null(),
            Self::Text(b) => b.append_null(),
            Self::Binary(b) => b.append_null(),
            Self::Date(b) => b.append_null(),
            Self::Decimal(b, _) => b.append_null(),
        }
    }

    fn finish(self, field: &Field) -> Result<ArrayRef> {
        let array: ArrayRef = match self {
            Self::Bool(mut b) => Arc::new(b.finish()),
            Self::Integer(mut b) => Arc::new(b.finish()),
            Self::Float(mut b) => Arc::new(b.finish()),
            Self::Text(mut b) => Arc::new(b.finish()),
            Self::Binary(mut b) => Arc::new(b.finish()),
            Self::Date(mut b) => Arc::new(b.finish()),
            Self::Decimal(mut b, _) => Arc::new(b.finish()),
        };
        if array.data_type() == field.data_type() {
            return Ok(array);
        }
        cast_with_options(&array, field.data_type(), &CastOptions { safe: false, ..CastOptions::default() })
            .map_err(|e| {
                Error::new(
                    ErrorKind::Corrupt,
                    format!("column `{}` holds a value out of range", field.name()),
                )
                .with_source(e)
            })
    }
}

fn integer(value: &Stored<'_>) -> Option<i64> {
    match value {
        Stored::Integer(i) => Some(*i),
        _ => None,
    }
}

fn float(value: &Stored<'_>) -> Option<f64> {
    match value {
        Stored::Real(x) => Some(*x),
        // Two exact halves, so that the sum is rounded once.
        Stored::Integer(i) => {
            let high = i32::try_from(i >> 32).ok()?;
            let low = u32::try_from(i & 0xffff_ffff).ok()?;
            Some(f64::from(high) * 4_294_967_296.0 + f64::from(low))
        }
        Stored::Text("NaN") => Some(f64::NAN),
        _ => None,
    }
}

fn decimal(value: &Stored<'_>) -> Option<Decimal> {
    match value {
        Stored::Integer(i) => Some(Decimal::from(*i)),
        // The shortest digits that mean this float.
        Stored::Real(x) => x.to_string().parse().ok(),
        Stored::Text(t) => t.parse().ok(),
        _ => None,
    }
}

fn date(text: &str) -> Option<NaiveDate> {
    (text.len() == 10).then(|| text.parse().ok()).flatten()
}

/// A count of the unit of the column.
fn ticks(unit: TimeUnit, instants: Instants, value: &Stored<'_>) -> Option<i64> {
    match (value, instants, unit) {
        (Stored::Integer(i), Instants::Foreign, _)
        | (Stored::Integer(i), _, TimeUnit::Nanosecond | TimeUnit::Microsecond) => Some(*i),
        (Stored::Integer(i), _, TimeUnit::Millisecond) => exactly(*i, 1_000),
        (Stored::Integer(i), _, TimeUnit::Second) => exactly(*i, 1_000_000),
        (Stored::Text(t), Instants::Foreign | Instants::Queried, _) => {
            let instant = instant(t)?;
            match unit {
                TimeUnit::Nanosecond => instant.timestamp_nanos_opt(),
                TimeUnit::Microsecond => Some(instant.timestamp_micros()),
                TimeUnit::Millisecond => Some(instant.timestamp_millis()),
                TimeUnit::Second => Some(instant.timestamp()),
            }
        }
        _ => None,
    }
}

fn exactly(ticks: i64, by: i64) -> Option<i64> {
    (ticks % by == 0).then_some(ticks / by)
}

/// Text as SQLite's own functions write and read it; without a zone it is UTC.
fn instant(text: &str) -> Option<DateTime<Utc>> {
    if let Ok(zoned) = DateTime::parse_from_rfc3339(text) {
        return Some(zoned.to_utc());
    }
    let plain = text.replacen('T', " ", 1);
    let plain = plain.strip_suffix('Z').unwrap_or(&plain);
    ["%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M"]
        .iter()
        .find_map(|format| NaiveDateTime::parse_from_str(plain, format).ok())
        .or_else(|| date(plain)?.and_hms_opt(0, 0, 0))
        .map(|t| t.and_utc())
}

/// The types of the columns of a query by what some of its rows hold.
pub(crate) fn infer(rows: &[SqliteRow], names: &[String]) -> Result<Vec<DataType>> {
    let mut types: Vec<Option<DataType>> = vec![None; names.len()];
    for row in rows {
        for (index, known) in types.iter_mut().enumerate() {
            let value = Stored::read(row.try_get_raw(index).map_err(|e| map(e, "read a column"))?)?;
            *known = match (known.take(), &value) {
                (Some(DataType::Float64), Stored::Integer(_)) => Some(DataType::Float64),
                (None, Stored::Integer(_)) => Some(DataType::Int64),
                (None | Some(DataType::Int64), Stored::Real(_)) => Some(DataType::Float64),
                (None, Stored::Text(t)) if date(t).is_some() => Some(DataType::Date32),
                (Some(DataType::Date32), Stored::Text(t)) if date(t).is_none() => Some(DataType::Utf8),
                (None, Stored::Text(_)) => Some(DataType::Utf8),
                (None, Stored::Blob(_)) => Some(DataType::Binary),
                (known, _) => known,
            };
        }
    }
    Ok(types.into_iter().map(|data_type| data_type.unwrap_or(DataType::Utf8)).collect())
}
