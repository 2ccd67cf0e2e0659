//! Arrow values on their way into SQLite.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_cast::cast;
use arrow_schema::{DataType, TimeUnit};
use chrono::{Days, NaiveDate};
use reprocess_core::domain::decimal::Decimal;
use reprocess_core::domain::rows::{Cell, Column, Columns};
use reprocess_core::{Error, Result};

use super::{Layout, same_values};
use crate::sql::Arg;

/// The batch with the columns of the layout: their order, types and names. Refuses other columns, and NULL where the
/// column takes none.
pub(crate) fn aligned(layout: &Layout, batch: &RecordBatch) -> Result<RecordBatch> {
    let (rows, table) = (batch.schema(), layout.schema());
    let known = |name: &str| layout.field(name).is_ok();
    if let Some(extra) = rows.fields().iter().find(|f| !known(f.name())) {
        return Err(Error::invalid(format!(
            "the rows have a column `{}` that the table has not",
            extra.name()
        )));
    }
    let mut columns: Vec<ArrayRef> = Vec::with_capacity(table.fields().len());
    for field in table.fields() {
        let array = batch.column_by_name(field.name()).ok_or_else(|| {
            Error::invalid(format!("the rows lack the column `{}` of the table", field.name()))
        })?;
        if !same_values(array.data_type(), field.data_type()) {
            return Err(Error::invalid(format!(
                "column `{}` is a {} in the rows and a {} in the table",
                field.name(),
                array.data_type(),
                field.data_type()
            )));
        }
        let array = if array.data_type() == field.data_type() {
            Arc::clone(array)
        } else {
            cast(array, field.data_type()).map_err(|e| {
                Error::invalid(format!("column `{}` cannot be read", field.name())).with_source(e)
            })?
        };
        let nulls = array.logical_null_count();
        if nulls > 0 && !field.is_nullable() {
            return Err(Error::invalid(format!("column `{}` takes no NULL", field.name()))
                .with_context("rows", nulls));
        }
        columns.push(without_negative_zero(array));
    }
    RecordBatch::try_new(Arc::clone(table), columns)
        .map_err(|e| Error::invalid("the rows do not fit the table").with_source(e))
}

/// SQLite stores whole floats as integers, which have no negative zero; what is profiled is what will be read.
fn without_negative_zero(array: ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Float64 => {
            Arc::new(array.as_primitive::<Float64Type>().unary::<_, Float64Type>(|x| x + 0.0))
        }
        DataType::Float32 => {
            Arc::new(array.as_primitive::<Float32Type>().unary::<_, Float32Type>(|x| x + 0.0))
        }
        _ => array,
    }
}

/// The cells of one aligned batch, by row and column.
#[derive(Debug)]
pub(crate) struct Encoder<'a> {
    layout: &'a Layout,
    cells: Columns,
}

impl<'a> Encoder<'a> {
    pub(crate) fn new(layout: &'a Layout, batch: &RecordBatch) -> Result<Self> {
        Ok(Self { layout, cells: Columns::new(batch)? })
    }

    /// The values of a range of rows, row by row, in the order of the layout.
    pub(crate) fn values(&self, rows: std::ops::Range<usize>) -> Result<Vec<Arg>> {
        let fields = self.layout.schema().fields();
        let columns: Vec<(&DataType, &Column)> = fields
            .iter()
            .map(|f| self.cells.get(f.name()).map(|c| (f.data_type(), c)))
            .collect::<Option<_>>()
            .ok_or_else(|| Error::internal("a batch is not aligned"))?;
        let mut values = Vec::with_capacity(rows.len().saturating_mul(columns.len()));
        for row in rows {
            for (data_type, column) in &columns {
                let cell = column.cell(row);
                values.push(stored(data_type, &cell).ok_or_else(|| {
                    Error::invalid(format!(
                        "`{cell}` in column `{}` cannot be stored in SQLite",
                        column.name()
                    ))
                    .with_advice("integers go up to 2^63 - 1, dates from the year 0 to 9999")
                })?);
            }
        }
        Ok(values)
    }
}

/// `None` where SQLite has no such value.
fn stored(data_type: &DataType, cell: &Cell<'_>) -> Option<Arg> {
    Some(match cell {
        Cell::Null => Arg::Null,
        Cell::Bool(b) => Arg::Integer(i64::from(*b)),
        Cell::Decimal(d) => match data_type {
            DataType::Decimal128(_, scale) | DataType::Decimal256(_, scale) => {
                Arg::Text(digits(d, u8::try_from(*scale).ok()?)?)
            }
            _ => Arg::Integer(i64::try_from(d.unscaled().to_i128()?).ok()?),
        },
        Cell::Float(x) if x.is_nan() => Arg::from("NaN"),
        Cell::Float(x) => Arg::Real(*x),
        Cell::Text(t) => Arg::from(*t),
        Cell::Binary(b) => Arg::Blob(b.to_vec()),
        Cell::Date(days) => Arg::Text(date(*days)?.to_string()),
        Cell::Timestamp(nanos) => match data_type {
            DataType::Timestamp(TimeUnit::Nanosecond, _) => Arg::Integer(i64::try_from(*nanos).ok()?),
            _ => Arg::Integer(i64::try_from(nanos.div_euclid(1_000)).ok()?),
        },
        _ => return None,
    })
}

/// Always as many digits behind the point as the column has, so that equal numbers are equal texts.
fn digits(decimal: &Decimal, scale: u8) -> Option<String> {
    let decimal = decimal.normalized().rescale(scale)?;
    Some(decimal.to_string())
}

/// Texts of dates sort by date only where the year has four digits.
fn date(days: i64) -> Option<NaiveDate> {
    let distance = Days::new(days.unsigned_abs());
    let date = match days {
        0.. => NaiveDate::default().checked_add_days(distance),
        _ => NaiveDate::default().checked_sub_days(distance),
    }?;
    let years = NaiveDate::from_ymd_opt(0, 1, 1)?..=NaiveDate::from_ymd_opt(9999, 12, 31)?;
    years.contains(&date).then_some(date)
}
