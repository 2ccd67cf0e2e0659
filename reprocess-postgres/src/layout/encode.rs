//! Arrow values on their way into PostgreSQL: the binary format of COPY.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Decimal256Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Float32Array, Float64Array, Int64Array,
    RecordBatch, StringArray,
};
use arrow_buffer::i256;
use arrow_cast::cast;
use arrow_schema::{DataType, TimeUnit};
use reprocess_core::domain::rows::Column;
use reprocess_core::{Error, Result};

use super::{FIRST_DAY, Kind, Layout, number, same_values};

/// Begins a COPY: the signature, no flags, no further header.
const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// Ends a COPY.
const TRAILER: &[u8] = &[0xff, 0xff];

/// Days since 2000 that the server takes for dates, the last not included.
const DAYS: std::ops::Range<i64> = -2_451_545..2_145_031_949;

/// Microseconds since 2000 that the server takes for instants, the last not included.
const MICROS: std::ops::Range<i64> = -211_813_488_000_000_000..9_223_371_331_200_000_000;

/// Microseconds from 1970 to 2000.
const FIRST_MICROS: i64 = 946_684_800_000_000;

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
        columns.push(array);
    }
    RecordBatch::try_new(Arc::clone(table), columns)
        .map_err(|e| Error::invalid("the rows do not fit the table").with_source(e))
}

/// Writes aligned batches as the body of a COPY.
#[derive(Debug)]
pub(crate) struct Encoder {
    bytes: Vec<u8>,
    rows: u64,
}

impl Encoder {
    pub(crate) fn new() -> Self {
        Self { bytes: HEADER.to_vec(), rows: 0 }
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds rows. Refuses, naming it, a value that PostgreSQL does not hold.
    pub(crate) fn push(&mut self, layout: &Layout, batch: &RecordBatch) -> Result<()> {
        let width = i16::try_from(batch.num_columns())
            .map_err(|_| Error::invalid("the table has more columns than PostgreSQL takes"))?;
        let mut columns = Vec::with_capacity(batch.num_columns());
        for ((field, store), array) in layout.columns().zip(batch.columns()) {
            columns.push((field.name(), store.kind, Values::new(array)?, array));
        }
        for row in 0..batch.num_rows() {
            self.bytes.extend(width.to_be_bytes());
            for (name, kind, values, array) in &columns {
                if array.is_null(row) {
                    self.bytes.extend((-1_i32).to_be_bytes());
                } else if values.write(*kind, row, &mut self.bytes).is_none() {
                    return Err(misfit(name, *kind, array, row));
                }
            }
            self.rows += 1;
        }
        Ok(())
    }

    /// The body, and how many rows it has.
    pub(crate) fn finish(mut self) -> (Vec<u8>, u64) {
        self.bytes.extend(TRAILER);
        (self.bytes, self.rows)
    }
}

fn misfit(name: &str, kind: Kind, array: &ArrayRef, row: usize) -> Error {
    let value = match Column::new(name, array) {
        Ok(column) => column.cell(row).to_string(),
        Err(error) => return error,
    };
    let why = match kind {
        Kind::Text { most: Some(most) } => format!("it takes {most} characters, and no NUL"),
        Kind::Padded { most } => format!("it takes {most} characters, no NUL, and no space at the end"),
        Kind::Timestamp { digits, .. } => {
            format!("it holds {digits} digits of the second, and the years from 4713 BC to 294276")
        }
        Kind::Date => "it holds the years from 4713 BC to 5874897".to_owned(),
        Kind::Numeric { precision, scale } => {
            format!("it holds {precision} digits, {scale} behind the point")
        }
        Kind::Text { .. } | Kind::Json | Kind::Jsonb | Kind::Enum | Kind::Other => {
            "it holds no NUL".to_owned()
        }
        _ => "it does not fit".to_owned(),
    };
    Error::invalid(format!(
        "`{}` in column `{name}` cannot be stored in PostgreSQL: {why}",
        value.escape_debug()
    ))
}

/// The values of one column, brought to few types.
enum Values<'a> {
    Boolean(&'a BooleanArray),
    Integer(Int64Array),
    Float4(&'a Float32Array),
    Float8(&'a Float64Array),
    /// With the scale that the column says.
    Decimal(Box<dyn Fn(usize) -> i256 + Send + 'a>),
    Text(StringArray),
    Binary(BinaryArray),
    Date(&'a Date32Array),
    /// Microseconds; `None` for what is no whole number of them.
    Instant(Box<dyn Fn(usize) -> Option<i64> + Send + 'a>),
}

impl<'a> Values<'a> {
    fn new(array: &'a ArrayRef) -> Result<Self> {
        use DataType as T;
        let as_type = |data_type: &DataType| {
            cast(array, data_type).map_err(|e| {
                Error::internal("a column could not be brought to its plain form").with_source(e)
            })
        };
        Ok(match array.data_type() {
            T::Boolean => Self::Boolean(array.as_boolean()),
            T::Int8 => Self::Integer(array.as_primitive::<Int8Type>().unary::<_, Int64Type>(i64::from)),
            T::Int16 => Self::Integer(array.as_primitive::<Int16Type>().unary::<_, Int64Type>(i64::from)),
            T::Int32 => Self::Integer(array.as_primitive::<Int32Type>().unary::<_, Int64Type>(i64::from)),
            T::Int64 => Self::Integer(array.as_primitive::<Int64Type>().clone()),
            T::UInt8 => Self::Integer(array.as_primitive::<UInt8Type>().unary::<_, Int64Type>(i64::from)),
            T::UInt16 => Self::Integer(array.as_primitive::<UInt16Type>().unary::<_, Int64Type>(i64::from)),
            T::UInt32 => Self::Integer(array.as_primitive::<UInt32Type>().unary::<_, Int64Type>(i64::from)),
            T::UInt64 => {
                let values = array.as_primitive::<UInt64Type>();
                Self::Decimal(Box::new(|row| i256::from_i128(i128::from(values.value(row)))))
            }
            T::Decimal128(..) => {
                let values = array.as_primitive::<Decimal128Type>();
                Self::Decimal(Box::new(|row| i256::from_i128(values.value(row))))
            }
            T::Decimal256(..) => {
                let values = array.as_primitive::<Decimal256Type>();
                Self::Decimal(Box::new(|row| values.value(row)))
            }
            T::Float32 => Self::Float4(array.as_primitive::<Float32Type>()),
            T::Float64 => Self::Float8(array.as_primitive::<Float64Type>()),
            T::Utf8 | T::LargeUtf8 | T::Utf8View => Self::Text(as_type(&T::Utf8)?.as_string::<i32>().clone()),
            T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_) => {
                Self::Binary(as_type(&T::Binary)?.as_binary::<i32>().clone())
            }
            T::Date32 => Self::Date(array.as_primitive::<Date32Type>()),
            T::Timestamp(unit, _) => Self::Instant(micros(array, *unit)),
            other => return Err(Error::internal(format!("a column of type {other} is stored nowhere"))),
        })
    }

    /// Writes one value with its length before it. `None` where the column does not hold it.
    fn write(&self, kind: Kind, row: usize, out: &mut Vec<u8>) -> Option<()> {
        match self {
            Self::Boolean(values) => put(out, &[u8::from(values.value(row))]),
            Self::Integer(values) => {
                let value = values.value(row);
                match kind {
                    Kind::Int2 => put(out, &i16::try_from(value).ok()?.to_be_bytes()),
                    Kind::Int4 => put(out, &i32::try_from(value).ok()?.to_be_bytes()),
                    _ => put(out, &value.to_be_bytes()),
                }
            }
            Self::Float4(values) => put(out, &values.value(row).to_be_bytes()),
            Self::Float8(values) => put(out, &values.value(row).to_be_bytes()),
            Self::Decimal(value) => {
                let Kind::Numeric { precision, scale } = kind else { return None };
                number::write(value(row), precision, scale, out)
            }
            Self::Text(values) => text(kind, values.value(row), out),
            Self::Binary(values) => put(out, values.value(row)),
            Self::Date(values) => {
                let days = i64::from(values.value(row)) - i64::from(FIRST_DAY);
                let days = DAYS.contains(&days).then(|| i32::try_from(days).ok())??;
                put(out, &days.to_be_bytes())
            }
            Self::Instant(value) => {
                let Kind::Timestamp { digits, .. } = kind else { return None };
                let micros = value(row)?.checked_sub(FIRST_MICROS)?;
                let step = 10_i64.pow(u32::from(6_u8.saturating_sub(digits)));
                (MICROS.contains(&micros) && micros.rem_euclid(step) == 0)
                    .then(|| put(out, &micros.to_be_bytes()))?
            }
        }
    }
}

fn micros<'a>(array: &'a ArrayRef, unit: TimeUnit) -> Box<dyn Fn(usize) -> Option<i64> + Send + 'a> {
    match unit {
        TimeUnit::Second => {
            let values = array.as_primitive::<TimestampSecondType>();
            Box::new(|row| values.value(row).checked_mul(1_000_000))
        }
        TimeUnit::Millisecond => {
            let values = array.as_primitive::<TimestampMillisecondType>();
            Box::new(|row| values.value(row).checked_mul(1_000))
        }
        TimeUnit::Microsecond => {
            let values = array.as_primitive::<TimestampMicrosecondType>();
            Box::new(|row| Some(values.value(row)))
        }
        TimeUnit::Nanosecond => {
            let values = array.as_primitive::<TimestampNanosecondType>();
            Box::new(|row| {
                let nanos = values.value(row);
                (nanos.rem_euclid(1_000) == 0).then(|| nanos.div_euclid(1_000))
            })
        }
    }
}

fn text(kind: Kind, text: &str, out: &mut Vec<u8>) -> Option<()> {
    if text.contains('\0') {
        return None;
    }
    let within = |most: u32| u32::try_from(text.chars().count()).is_ok_and(|length| length <= most);
    match kind {
        Kind::Text { most: Some(most) } if !within(most) => None,
        // Spaces at the end are padding to the server, and gone when the value is read.
        Kind::Padded { most } if !within(most) || text.ends_with(' ') => None,
        Kind::Jsonb => {
            let length = i32::try_from(text.len()).ok()?.checked_add(1)?;
            out.extend(length.to_be_bytes());
            out.push(1);
            out.extend(text.as_bytes());
            Some(())
        }
        _ => put(out, text.as_bytes()),
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) -> Option<()> {
    out.extend(i32::try_from(bytes.len()).ok()?.to_be_bytes());
    out.extend(bytes);
    Some(())
}
