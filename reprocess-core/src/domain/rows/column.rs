//! Typed access to the values of Arrow arrays.

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Date64Type, Decimal128Type, Decimal256Type, Float64Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Decimal128Array, Decimal256Array, Float64Array, Int64Array,
    LargeBinaryArray, LargeStringArray, RecordBatch,
};
use arrow_buffer::i256;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{ArrowError, DataType, TimeUnit};

use super::cell::{Cell, CellKind};
use crate::domain::decimal::Decimal;
use crate::error::{Error, Result};

const MILLISECONDS_PER_DAY: i64 = 86_400_000;

/// One column, ready to be read as [`Cell`]s.
#[derive(Clone, Debug)]
pub struct Column {
    name: String,
    kind: CellKind,
    data: Data,
}

/// Values in the widest layout of their kind, so that reading a cell cannot fail.
#[derive(Clone, Debug)]
enum Data {
    /// So many rows.
    Null(usize),
    Bool(BooleanArray),
    Integer(Int64Array),
    Decimal(Decimal128Array, u8),
    WideDecimal(Decimal256Array, u8),
    Float(Float64Array),
    Text(LargeStringArray),
    Binary(LargeBinaryArray),
    Date(Int64Array),
    Timestamp(Int64Array, i128),
}

impl Column {
    /// Reads an array. Refuses, by name, a type without a canonical form.
    pub fn new(name: impl Into<String>, array: &ArrayRef) -> Result<Self> {
        let name = name.into();
        let Some(kind) = CellKind::of(array.data_type()) else {
            return Err(unsupported(&name, array.data_type()));
        };
        let data = read(array).map_err(|e| {
            Error::invalid(format!("values of column `{name}` cannot be read"))
                .with_context("type", array.data_type())
                .with_source(e)
        })?;
        let data = data.ok_or_else(|| unsupported(&name, array.data_type()))?;
        Ok(Self { name, kind, data })
    }

    /// Name of the column.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its values are.
    pub fn kind(&self) -> CellKind {
        self.kind
    }

    /// How many values are NULL.
    pub(crate) fn nulls(&self) -> usize {
        match &self.data {
            Data::Null(rows) => *rows,
            Data::Bool(a) => a.null_count(),
            Data::Integer(a) | Data::Date(a) | Data::Timestamp(a, _) => a.null_count(),
            Data::Decimal(a, _) => a.null_count(),
            Data::WideDecimal(a, _) => a.null_count(),
            Data::Float(a) => a.null_count(),
            Data::Text(a) => a.null_count(),
            Data::Binary(a) => a.null_count(),
        }
    }

    /// The sum of all values, of a column of up to 128 bits, in which no sum of one batch overflows 256.
    pub(crate) fn narrow_sum(&self) -> Option<Decimal> {
        match &self.data {
            Data::Integer(a) => {
                let sum: i128 = a.iter().flatten().map(i128::from).sum();
                Some(Decimal::new(i256::from_i128(sum), 0))
            }
            Data::Decimal(a, scale) => {
                let add = |sum: i256, value| sum.wrapping_add(i256::from_i128(value));
                Some(Decimal::new(a.iter().flatten().fold(i256::ZERO, add), *scale))
            }
            _ => None,
        }
    }

    /// The value in a row of the batch.
    pub fn cell(&self, row: usize) -> Cell<'_> {
        fn get<'a, A: Array>(array: &'a A, row: usize, value: impl FnOnce(&'a A) -> Cell<'a>) -> Cell<'a> {
            if array.is_null(row) { Cell::Null } else { value(array) }
        }
        match &self.data {
            Data::Null(_) => Cell::Null,
            Data::Bool(a) => get(a, row, |a| Cell::Bool(a.value(row))),
            Data::Integer(a) => get(a, row, |a| Cell::Decimal(Decimal::from(a.value(row)))),
            Data::Decimal(a, scale) => {
                get(a, row, |a| Cell::Decimal(Decimal::new(i256::from_i128(a.value(row)), *scale)))
            }
            Data::WideDecimal(a, scale) => get(a, row, |a| Cell::Decimal(Decimal::new(a.value(row), *scale))),
            Data::Float(a) => get(a, row, |a| Cell::Float(a.value(row))),
            Data::Text(a) => get(a, row, |a| Cell::Text(a.value(row))),
            Data::Binary(a) => get(a, row, |a| Cell::Binary(a.value(row))),
            Data::Date(a) => get(a, row, |a| Cell::Date(a.value(row))),
            Data::Timestamp(a, nanos) => {
                get(a, row, |a| Cell::Timestamp(i128::from(a.value(row)).saturating_mul(*nanos)))
            }
        }
    }
}

/// The columns of a batch in the order of their names.
#[derive(Clone, Debug)]
pub struct Columns {
    rows: usize,
    columns: Vec<Column>,
}

impl Columns {
    /// Reads every column. Refuses a name that stands twice.
    pub fn new(batch: &RecordBatch) -> Result<Self> {
        let schema = batch.schema();
        let mut columns = schema
            .fields()
            .iter()
            .zip(batch.columns())
            .map(|(field, array)| Column::new(field.name(), array))
            .collect::<Result<Vec<_>>>()?;
        columns.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(twice) = columns.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(Error::invalid(format!("column `{}` stands twice in the rows", twice[0].name)));
        }
        Ok(Self { rows: batch.num_rows(), columns })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The columns in the order of their names.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The column of a name.
    pub fn get(&self, name: &str) -> Option<&Column> {
        let at = self.columns.binary_search_by(|c| c.name.as_str().cmp(name)).ok()?;
        self.columns.get(at)
    }

    /// Appends the canonical bytes of a row: name and value of every column that is not NULL, floats after the
    /// others. Answers where the floats begin, so that the bytes before them are the row without floats.
    ///
    /// A NULL leaves no bytes, so a row is the same before and after an empty column was added.
    pub fn encode(&self, row: usize, buffer: &mut Vec<u8>) -> usize {
        let is_float = |column: &&Column| column.kind == CellKind::Float;
        self.columns.iter().filter(|c| !is_float(c)).for_each(|c| encode(c, row, buffer));
        let floats_begin = buffer.len();
        self.columns.iter().filter(is_float).for_each(|c| encode(c, row, buffer));
        floats_begin
    }
}

/// Appends the name and the value of one column, nothing for NULL.
pub(crate) fn encode(column: &Column, row: usize, buffer: &mut Vec<u8>) {
    let cell = column.cell(row);
    if cell.is_null() {
        return;
    }
    buffer.extend(column.name.as_bytes());
    // This byte is in no UTF-8 text, so it ends the name.
    buffer.push(u8::MAX);
    cell.encode(buffer);
}

fn unsupported(name: &str, data_type: &DataType) -> Error {
    Error::invalid(format!("column `{name}` has the type {data_type}, which cannot be compared"))
        .with_advice("cast it to a boolean, number, text, binary, date or timestamp, or leave it out")
}

/// `None` where the type is not supported.
fn read(array: &ArrayRef) -> Result<Option<Data>, ArrowError> {
    use DataType as T;
    Ok(Some(match array.data_type() {
        T::Null => Data::Null(array.len()),
        T::Boolean => Data::Bool(array.as_boolean().clone()),
        T::Int8 | T::Int16 | T::Int32 | T::Int64 | T::UInt8 | T::UInt16 | T::UInt32 => {
            Data::Integer(cast(array, &T::Int64)?.as_primitive::<Int64Type>().clone())
        }
        T::UInt64 => {
            Data::Decimal(cast(array, &T::Decimal128(20, 0))?.as_primitive::<Decimal128Type>().clone(), 0)
        }
        T::Decimal32(_, scale)
        | T::Decimal64(_, scale)
        | T::Decimal128(_, scale)
        | T::Decimal256(_, scale) => read_decimal(array, *scale)?,
        T::Float16 | T::Float32 | T::Float64 => {
            Data::Float(cast(array, &T::Float64)?.as_primitive::<Float64Type>().clone())
        }
        T::Utf8 | T::LargeUtf8 | T::Utf8View => {
            Data::Text(cast(array, &T::LargeUtf8)?.as_string::<i64>().clone())
        }
        T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_) => {
            Data::Binary(cast(array, &T::LargeBinary)?.as_binary::<i64>().clone())
        }
        T::Date32 => Data::Date(array.as_primitive::<Date32Type>().unary(i64::from)),
        T::Date64 => Data::Date(
            array.as_primitive::<Date64Type>().unary(|millis| millis.div_euclid(MILLISECONDS_PER_DAY)),
        ),
        T::Timestamp(unit, _) => {
            Data::Timestamp(cast(array, &T::Int64)?.as_primitive::<Int64Type>().clone(), nanoseconds(*unit))
        }
        T::Dictionary(_, values) => return read(&cast(array, values)?),
        T::RunEndEncoded(_, values) => return read(&cast(array, values.data_type())?),
        _ => return Ok(None),
    }))
}

/// A scale below zero is written out, which 256 bits may not hold.
fn read_decimal(array: &ArrayRef, scale: i8) -> Result<Data, ArrowError> {
    let wide =
        |array: &ArrayRef, scale| Data::WideDecimal(array.as_primitive::<Decimal256Type>().clone(), scale);
    match (u8::try_from(scale), array.data_type()) {
        (Ok(scale), DataType::Decimal256(..)) => Ok(wide(array, scale)),
        (Ok(unsigned), _) => {
            let array = cast(array, &DataType::Decimal128(38, scale))?;
            Ok(Data::Decimal(array.as_primitive::<Decimal128Type>().clone(), unsigned))
        }
        (Err(_), _) => Ok(wide(&cast(array, &DataType::Decimal256(76, 0))?, 0)),
    }
}

fn nanoseconds(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    }
}

/// A cast that fails where a value does not fit, rather than making it NULL.
fn cast(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    cast_with_options(array, to, &CastOptions { safe: false, ..CastOptions::default() })
}
