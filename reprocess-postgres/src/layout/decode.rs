//! The binary format of COPY on its way into Arrow.

use std::sync::Arc;

use arrow_array::builder::{
    BinaryBuilder, BooleanBuilder, Date32Builder, Decimal128Builder, Decimal256Builder,
    FixedSizeBinaryBuilder, Float32Builder, Float64Builder, Int64Builder, StringBuilder, UInt64Builder,
};
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, Field, SchemaRef, TimeUnit};
use reprocess_core::{Error, ErrorKind, Result};

use super::number::{self, Number};
use super::{FIRST_DAY, Kind, Layout, Store};

/// A batch ends early where its values together are this long.
const BATCH_BYTES: usize = 16 << 20;

/// Signature, flags, and the length of a further header.
const HEADER_BYTES: usize = 19;
const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0";

/// Microseconds from 1970 to 2000.
const FIRST_MICROS: i64 = 946_684_800_000_000;

/// Takes the bytes of a COPY as they come, and gives batches.
pub(super) struct Decoder {
    schema: SchemaRef,
    stores: Vec<Store>,
    sinks: Vec<Sink>,
    /// What a value that does not fit its column means.
    misfit: ErrorKind,
    batch_rows: usize,
    rows: usize,
    bytes: usize,
    begun: bool,
    ended: bool,
    /// The beginning of a row whose rest has not come yet.
    rest: Vec<u8>,
}

/// What became of the bytes of a row.
enum Step {
    Row(usize),
    End,
    Incomplete,
}

impl Decoder {
    pub(super) fn new(layout: &Layout, misfit: ErrorKind, batch_rows: usize) -> Self {
        let schema = Arc::clone(layout.schema());
        let stores = layout.stores().to_vec();
        let sinks = sinks(&schema);
        let batch_rows = batch_rows.max(1);
        Self {
            schema,
            stores,
            sinks,
            misfit,
            batch_rows,
            rows: 0,
            bytes: 0,
            begun: false,
            ended: false,
            rest: Vec::new(),
        }
    }

    /// Takes bytes and answers the batches that are full with them.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Vec<RecordBatch>> {
        let mut full = Vec::new();
        if self.rest.is_empty() {
            let used = self.take(bytes, &mut full)?;
            self.rest.extend(bytes.get(used..).unwrap_or_default());
        } else {
            let mut all = std::mem::take(&mut self.rest);
            all.extend(bytes);
            let used = self.take(&all, &mut full)?;
            all.drain(..used);
            self.rest = all;
        }
        Ok(full)
    }

    /// The rows that are left; refuses a stream that was cut off.
    pub(super) fn finish(&mut self) -> Result<Option<RecordBatch>> {
        if !self.ended {
            return Err(Error::new(ErrorKind::Unavailable, "a read was cut off"));
        }
        if self.rows == 0 { Ok(None) } else { self.batch().map(Some) }
    }

    /// Reads whole rows, and answers how many bytes they were.
    fn take(&mut self, bytes: &[u8], full: &mut Vec<RecordBatch>) -> Result<usize> {
        let mut used = 0;
        if !self.begun {
            let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(0) };
            if !header.starts_with(SIGNATURE) || header.get(SIGNATURE.len()..) != Some(&[0; 8]) {
                return Err(Error::new(ErrorKind::Corrupt, "the server sends rows in another format"));
            }
            self.begun = true;
            used = HEADER_BYTES;
        }
        while !self.ended {
            match self.row(bytes.get(used..).unwrap_or_default())? {
                Step::Row(length) => used += length,
                Step::End => {
                    self.ended = true;
                    used = bytes.len();
                }
                Step::Incomplete => break,
            }
            if self.rows >= self.batch_rows || self.bytes >= BATCH_BYTES {
                full.push(self.batch()?);
            }
        }
        Ok(used)
    }

    fn row(&mut self, bytes: &[u8]) -> Result<Step> {
        let Some(width) = bytes.first_chunk::<2>() else { return Ok(Step::Incomplete) };
        let width = i16::from_be_bytes(*width);
        if width < 0 {
            return Ok(Step::End);
        }
        if usize::try_from(width) != Ok(self.sinks.len()) {
            return Err(damaged("a row has another number of columns than the table"));
        }
        let mut values = Vec::with_capacity(self.sinks.len());
        let mut at = 2;
        for _ in 0..self.sinks.len() {
            let Some(length) = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()) else {
                return Ok(Step::Incomplete);
            };
            at += 4;
            let length = i32::from_be_bytes(*length);
            let Ok(length) = usize::try_from(length) else {
                values.push(None);
                continue;
            };
            let Some(value) = bytes.get(at..).and_then(|rest| rest.get(..length)) else {
                return Ok(Step::Incomplete);
            };
            at += length;
            values.push(Some(value));
        }
        self.bytes = self.bytes.saturating_add(at);
        self.rows += 1;
        let columns = self.schema.fields().iter().zip(&self.stores).zip(&mut self.sinks);
        for (((field, store), sink), value) in columns.zip(values) {
            sink.push(field, store.kind, value).map_err(|what| what.error(field, store, self.misfit))?;
        }
        Ok(Step::Row(at))
    }

    fn batch(&mut self) -> Result<RecordBatch> {
        let mut arrays = Vec::with_capacity(self.sinks.len());
        for (sink, field) in
            std::mem::replace(&mut self.sinks, sinks(&self.schema)).into_iter().zip(self.schema.fields())
        {
            let array = sink.finish(field.data_type()).map_err(|e| {
                Error::new(
                    self.misfit,
                    format!("a value in column `{}` is no {}", field.name(), field.data_type()),
                )
                .with_source(e)
            })?;
            if array.null_count() > 0 && !field.is_nullable() {
                return Err(Error::new(self.misfit, format!("column `{}` holds NULL", field.name())));
            }
            arrays.push(array);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        (self.rows, self.bytes) = (0, 0);
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)
            .map_err(|e| Error::internal("a batch could not be made of rows").with_source(e))
    }
}

fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

/// Why a value is not taken.
enum Misfit {
    /// The bytes are no value of the type of the server.
    Damaged,
    /// The value has no place in the column in Arrow.
    Value(String),
}

impl Misfit {
    fn error(self, field: &Field, store: &Store, kind: ErrorKind) -> Error {
        match self {
            Self::Damaged => damaged("the server sends a value in another form than its type has")
                .with_context("column", field.name())
                .with_context("type", &store.definition),
            Self::Value(value) => Error::new(
                kind,
                format!("`{value}` in column `{}` cannot be read as {}", field.name(), field.data_type()),
            )
            .with_advice("change the value, or leave the column out of the table"),
        }
    }
}

fn sinks(schema: &SchemaRef) -> Vec<Sink> {
    schema.fields().iter().map(|field| Sink::of(field.data_type())).collect()
}

/// Where the values of one column go.
enum Sink {
    Boolean(BooleanBuilder),
    /// Of any width, and instants in the unit of the column.
    Integer(Int64Builder),
    Unsigned(UInt64Builder),
    Float4(Float32Builder),
    Float8(Float64Builder),
    Decimal128(Decimal128Builder),
    Decimal256(Decimal256Builder),
    Text(StringBuilder),
    Binary(BinaryBuilder),
    Fixed(FixedSizeBinaryBuilder, i32),
    Date(Date32Builder),
}

impl Sink {
    fn of(data_type: &DataType) -> Self {
        match data_type {
            DataType::Boolean => Self::Boolean(BooleanBuilder::new()),
            DataType::UInt64 => Self::Unsigned(UInt64Builder::new()),
            DataType::Float32 => Self::Float4(Float32Builder::new()),
            DataType::Float64 => Self::Float8(Float64Builder::new()),
            DataType::Decimal128(..) => {
                Self::Decimal128(Decimal128Builder::new().with_data_type(data_type.clone()))
            }
            DataType::Decimal256(..) => {
                Self::Decimal256(Decimal256Builder::new().with_data_type(data_type.clone()))
            }
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
                Self::Binary(BinaryBuilder::new())
            }
            DataType::FixedSizeBinary(length) => {
                Self::Fixed(FixedSizeBinaryBuilder::new((*length).max(0)), (*length).max(0))
            }
            DataType::Date32 => Self::Date(Date32Builder::new()),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::Text(StringBuilder::new()),
            _ => Self::Integer(Int64Builder::new()),
        }
    }

    fn push(&mut self, field: &Field, kind: Kind, bytes: Option<&[u8]>) -> Result<(), Misfit> {
        let Some(bytes) = bytes else {
            self.push_null();
            return Ok(());
        };
        match self {
            Self::Boolean(sink) => sink.append_value(*fixed::<1>(bytes)? != [0]),
            Self::Integer(sink) => sink.append_value(match field.data_type() {
                DataType::Timestamp(unit, _) => instant(i64::from_be_bytes(*fixed(bytes)?), *unit)?,
                _ => integer(kind, bytes)?,
            }),
            Self::Unsigned(sink) => {
                let number = decimal(kind, bytes)?;
                let number = number.to_i128().and_then(|n| u64::try_from(n).ok());
                sink.append_value(number.ok_or_else(|| Misfit::Value("a negative number".to_owned()))?);
            }
            Self::Float4(sink) => sink.append_value(f32::from_be_bytes(*fixed(bytes)?)),
            Self::Float8(sink) => sink.append_value(f64::from_be_bytes(*fixed(bytes)?)),
            Self::Decimal128(sink) => {
                let number = decimal(kind, bytes)?.to_i128();
                sink.append_value(number.ok_or_else(|| Misfit::Value("a longer number".to_owned()))?);
            }
            Self::Decimal256(sink) => sink.append_value(decimal(kind, bytes)?),
            Self::Text(sink) => sink.append_value(std::str::from_utf8(bytes).map_err(|_| Misfit::Damaged)?),
            Self::Binary(sink) => sink.append_value(bytes),
            Self::Fixed(sink, length) => sink
                .append_value(bytes)
                .map_err(|_| Misfit::Value(format!("{} bytes in place of {length}", bytes.len())))?,
            Self::Date(sink) => sink.append_value(day(i32::from_be_bytes(*fixed(bytes)?))?),
        }
        Ok(())
    }

    fn push_null(&mut self) {
        match self {
            Self::Boolean(sink) => sink.append_null(),
            Self::Integer(sink) => sink.append_null(),
            Self::Unsigned(sink) => sink.append_null(),
            Self::Float4(sink) => sink.append_null(),
            Self::Float8(sink) => sink.append_null(),
            Self::Decimal128(sink) => sink.append_null(),
            Self::Decimal256(sink) => sink.append_null(),
            Self::Text(sink) => sink.append_null(),
            Self::Binary(sink) => sink.append_null(),
            Self::Fixed(sink, _) => sink.append_null(),
            Self::Date(sink) => sink.append_null(),
        }
    }

    fn finish(self, data_type: &DataType) -> Result<ArrayRef, arrow_schema::ArrowError> {
        let array: ArrayRef = match self {
            Self::Boolean(mut sink) => Arc::new(sink.finish()),
            Self::Integer(mut sink) => Arc::new(sink.finish()),
            Self::Unsigned(mut sink) => Arc::new(sink.finish()),
            Self::Float4(mut sink) => Arc::new(sink.finish()),
            Self::Float8(mut sink) => Arc::new(sink.finish()),
            Self::Decimal128(mut sink) => Arc::new(sink.finish()),
            Self::Decimal256(mut sink) => Arc::new(sink.finish()),
            Self::Text(mut sink) => Arc::new(sink.finish()),
            Self::Binary(mut sink) => Arc::new(sink.finish()),
            Self::Fixed(mut sink, _) => Arc::new(sink.finish()),
            Self::Date(mut sink) => Arc::new(sink.finish()),
        };
        if array.data_type() == data_type {
            return Ok(array);
        }
        // A narrower integer of Arrow refuses what does not fit instead of making NULL of it.
        cast_with_options(&array, data_type, &CastOptions { safe: false, ..CastOptions::default() })
    }
}

fn fixed<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], Misfit> {
    bytes.try_into().map_err(|_| Misfit::Damaged)
}

fn integer(kind: Kind, bytes: &[u8]) -> Result<i64, Misfit> {
    Ok(match kind {
        Kind::Int2 => i64::from(i16::from_be_bytes(*fixed(bytes)?)),
        Kind::Int4 => i64::from(i32::from_be_bytes(*fixed(bytes)?)),
        _ => i64::from_be_bytes(*fixed(bytes)?),
    })
}

fn decimal(kind: Kind, bytes: &[u8]) -> Result<arrow_buffer::i256, Misfit> {
    let Kind::Numeric { precision, scale } = kind else { return Err(Misfit::Damaged) };
    let said = |text: &str| Err(Misfit::Value(text.to_owned()));
    match number::read(bytes, precision, scale).ok_or(Misfit::Damaged)? {
        Number::Unscaled(unscaled) => Ok(unscaled),
        Number::TooLong => said("a longer number"),
        Number::Nan => said("NaN"),
        Number::Infinity => said("Infinity"),
        Number::MinusInfinity => said("-Infinity"),
    }
}

fn day(days: i32) -> Result<i32, Misfit> {
    match days {
        i32::MAX => Err(Misfit::Value("infinity".to_owned())),
        i32::MIN => Err(Misfit::Value("-infinity".to_owned())),
        days => days
            .checked_add(FIRST_DAY)
            .ok_or_else(|| Misfit::Value(format!("the date {days} days after 2000-01-01"))),
    }
}

fn instant(micros: i64, unit: TimeUnit) -> Result<i64, Misfit> {
    match micros {
        i64::MAX => return Err(Misfit::Value("infinity".to_owned())),
        i64::MIN => return Err(Misfit::Value("-infinity".to_owned())),
        _ => {}
    }
    let whole = |micros: i64, by: i64| (micros.rem_euclid(by) == 0).then(|| micros.div_euclid(by));
    let since_1970 = micros.checked_add(FIRST_MICROS);
    let ticks = since_1970.and_then(|micros| match unit {
        TimeUnit::Second => whole(micros, 1_000_000),
        TimeUnit::Millisecond => whole(micros, 1_000),
        TimeUnit::Microsecond => Some(micros),
        TimeUnit::Nanosecond => micros.checked_mul(1_000),
    });
    ticks.ok_or_else(|| Misfit::Value(format!("the instant {micros} µs after 2000-01-01")))
}

#[cfg(test)]
mod tests {
    use arrow_schema::Schema;

    use super::*;
    use crate::layout::Encoder;

    fn layout() -> Layout {
        let fields = vec![Field::new("a", DataType::Int64, true), Field::new("b", DataType::Utf8, true)];
        Layout::own(Arc::new(Schema::new(fields))).unwrap()
    }

    fn rows(count: usize) -> RecordBatch {
        let texts: Vec<_> = (0_usize..).map(|n| (n % 3 > 0).then(|| "é".repeat(n % 7))).take(count).collect();
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(arrow_array::Int64Array::from_iter_values((0..).take(count))),
            Arc::new(arrow_array::StringArray::from(texts)),
        ];
        RecordBatch::try_new(Arc::clone(layout().schema()), arrays).unwrap()
    }

    fn body(batch: &RecordBatch) -> Vec<u8> {
        let mut encoder = Encoder::new();
        encoder.push(&layout(), batch).unwrap();
        encoder.finish().0
    }

    #[test]
    fn rows_come_back_however_their_bytes_are_cut() {
        let given = rows(20);
        let body = body(&given);
        for cut in 1..body.len() {
            let mut decoder = Decoder::new(&layout(), ErrorKind::Corrupt, 7);
            let mut batches = Vec::new();
            for piece in body.chunks(cut) {
                batches.extend(decoder.push(piece).unwrap());
            }
            batches.extend(decoder.finish().unwrap());
            assert_eq!(batches.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [7, 7, 6], "{cut}");
            let places = [(0, 0), (1, 7), (2, 14)];
            for (batch, from) in places {
                assert_eq!(batches[batch], given.slice(from, batches[batch].num_rows()));
            }
        }
    }

    #[test]
    fn a_stream_that_ends_early_or_is_damaged_is_no_end() {
        let body = body(&rows(3));
        for cut in 0..body.len() - 2 {
            let mut decoder = Decoder::new(&layout(), ErrorKind::Corrupt, 7);
            decoder.push(&body[..cut]).unwrap();
            assert_eq!(decoder.finish().unwrap_err().kind(), ErrorKind::Unavailable, "{cut}");
        }
        for (place, byte) in [(0, 0), (15, 1), (20, 9)] {
            let mut damaged = body.clone();
            damaged[place] = byte;
            let mut decoder = Decoder::new(&layout(), ErrorKind::Corrupt, 7);
            assert_eq!(decoder.push(&damaged).unwrap_err().kind(), ErrorKind::Corrupt, "{place}");
        }
    }
}
