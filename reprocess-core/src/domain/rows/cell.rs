//! One value of a row.

use std::cmp::Ordering;
use std::fmt;

use arrow_buffer::i256;
use arrow_schema::DataType;
use chrono::{DateTime, Days, NaiveDate, SecondsFormat, Utc};

use crate::domain::decimal::Decimal;
use crate::domain::value::Value;

/// The kind of a column: what its values are, without width, unit and encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CellKind {
    /// NULL and nothing else.
    Null,
    /// Booleans.
    Bool,
    /// Integers and decimals.
    Decimal,
    /// Floats.
    Float,
    /// UTF-8 text.
    Text,
    /// Bytes.
    Binary,
    /// Calendar dates.
    Date,
    /// Instants.
    Timestamp,
}

impl CellKind {
    /// The kind of an Arrow type; `None` where the type has no canonical form.
    pub fn of(data_type: &DataType) -> Option<Self> {
        use DataType as T;
        Some(match data_type {
            T::Null => Self::Null,
            T::Boolean => Self::Bool,
            T::Int8 | T::Int16 | T::Int32 | T::Int64 => Self::Decimal,
            T::UInt8 | T::UInt16 | T::UInt32 | T::UInt64 => Self::Decimal,
            T::Decimal32(..) | T::Decimal64(..) | T::Decimal128(..) | T::Decimal256(..) => Self::Decimal,
            T::Float16 | T::Float32 | T::Float64 => Self::Float,
            T::Utf8 | T::LargeUtf8 | T::Utf8View => Self::Text,
            T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_) => Self::Binary,
            T::Date32 | T::Date64 => Self::Date,
            T::Timestamp(..) => Self::Timestamp,
            T::Dictionary(_, values) => Self::of(values)?,
            T::RunEndEncoded(_, values) => Self::of(values.data_type())?,
            _ => return None,
        })
    }

    /// Whether values can be totalled.
    pub fn is_numeric(self) -> bool {
        matches!(self, Self::Decimal | Self::Float)
    }
}

impl fmt::Display for CellKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Null => "NULL",
            Self::Bool => "boolean",
            Self::Decimal => "decimal",
            Self::Float => "float",
            Self::Text => "text",
            Self::Binary => "binary",
            Self::Date => "date",
            Self::Timestamp => "timestamp",
        })
    }
}

/// One value. NULL sorts first; values of different kinds are never equal. Every NaN is one value and sorts last;
/// the two zeros of floats are two values.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Cell<'a> {
    /// No value.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer or a decimal.
    Decimal(Decimal),
    /// A float of any width.
    Float(f64),
    /// Text.
    Text(&'a str),
    /// Bytes.
    Binary(&'a [u8]),
    /// Days since 1970-01-01.
    Date(i64),
    /// Nanoseconds since 1970-01-01T00:00:00Z; wide enough for every unit of Arrow.
    Timestamp(i128),
}

impl Cell<'_> {
    /// The kind of the value.
    pub fn kind(&self) -> CellKind {
        match self {
            Self::Null => CellKind::Null,
            Self::Bool(_) => CellKind::Bool,
            Self::Decimal(_) => CellKind::Decimal,
            Self::Float(_) => CellKind::Float,
            Self::Text(_) => CellKind::Text,
            Self::Binary(_) => CellKind::Binary,
            Self::Date(_) => CellKind::Date,
            Self::Timestamp(_) => CellKind::Timestamp,
        }
    }

    /// Whether the value is NULL.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// The value as text for people and samples; `None` for NULL, so that it differs from the text `NULL`.
    pub fn text(&self) -> Option<String> {
        (!self.is_null()).then(|| self.to_string())
    }

    /// The value of a partition column; `None` where no partition can have it: floats, bytes, fractions, integers
    /// beyond 64 bits, and times beyond the calendar.
    pub fn value(&self) -> Option<Value> {
        match self {
            Self::Null => Some(Value::Null),
            Self::Bool(b) => Some(Value::Boolean(*b)),
            Self::Decimal(d) => {
                let d = d.normalized();
                let integer = d.unscaled().to_i128().and_then(|i| i64::try_from(i).ok())?;
                (d.scale() == 0).then_some(Value::Integer(integer))
            }
            Self::Text(t) => Some(Value::from(*t)),
            Self::Date(days) => date(*days).map(Value::Date),
            Self::Timestamp(nanos) => instant(*nanos).map(Value::Timestamp),
            Self::Float(_) | Self::Binary(_) => None,
        }
    }

    /// Appends the canonical bytes of the value: equal values give equal bytes, and no value is the beginning of
    /// another.
    pub fn encode(&self, buffer: &mut Vec<u8>) {
        buffer.push(self.rank());
        match self {
            Self::Null => {}
            Self::Bool(b) => buffer.push(u8::from(*b)),
            Self::Decimal(d) => encode_decimal(d, buffer),
            Self::Float(f) => buffer.extend(float_bits(*f).to_le_bytes()),
            Self::Text(t) => encode_bytes(t.as_bytes(), buffer),
            Self::Binary(b) => encode_bytes(b, buffer),
            Self::Date(days) => buffer.extend(days.to_le_bytes()),
            Self::Timestamp(nanos) => buffer.extend(nanos.to_le_bytes()),
        }
    }

    /// Part of the canonical bytes, so the numbers never change.
    fn rank(&self) -> u8 {
        match self {
            Self::Null => 0,
            Self::Bool(_) => 1,
            Self::Decimal(_) => 2,
            Self::Float(_) => 3,
            Self::Text(_) => 4,
            Self::Binary(_) => 5,
            Self::Date(_) => 6,
            Self::Timestamp(_) => 7,
        }
    }
}

impl Ord for Cell<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Decimal(a), Self::Decimal(b)) => a.cmp(b),
            (Self::Float(a), Self::Float(b)) => a.is_nan().cmp(&b.is_nan()).then_with(|| match a.is_nan() {
                true => Ordering::Equal,
                false => a.total_cmp(b),
            }),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (Self::Binary(a), Self::Binary(b)) => a.cmp(b),
            (Self::Date(a), Self::Date(b)) => a.cmp(b),
            (Self::Timestamp(a), Self::Timestamp(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for Cell<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Cell<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Cell<'_> {}

impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("NULL"),
            Self::Bool(b) => write!(f, "{b}"),
            Self::Decimal(d) => d.fmt(f),
            Self::Float(x) => write!(f, "{x:?}"),
            Self::Text(t) => f.write_str(t),
            Self::Binary(bytes) => {
                f.write_str("0x")?;
                bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
            Self::Date(days) => match date(*days) {
                Some(date) => write!(f, "{date}"),
                None => write!(f, "{days} days after 1970-01-01"),
            },
            Self::Timestamp(nanos) => match instant(*nanos) {
                Some(t) => f.write_str(&t.to_rfc3339_opts(SecondsFormat::AutoSi, true)),
                None => write!(f, "{nanos} ns after 1970-01-01T00:00:00Z"),
            },
        }
    }
}

/// The date so many days after 1970-01-01; `None` beyond the calendar.
pub(super) fn date(days: i64) -> Option<NaiveDate> {
    let distance = Days::new(days.unsigned_abs());
    match days {
        0.. => NaiveDate::default().checked_add_days(distance),
        _ => NaiveDate::default().checked_sub_days(distance),
    }
}

/// The instant so many nanoseconds after the epoch; `None` beyond the calendar.
pub(super) fn instant(nanos: i128) -> Option<DateTime<Utc>> {
    const SECOND: i128 = 1_000_000_000;
    let seconds = i64::try_from(nanos.div_euclid(SECOND)).ok()?;
    DateTime::from_timestamp(seconds, u32::try_from(nanos.rem_euclid(SECOND)).ok()?)
}

/// Bits of a float. The payload of a NaN is no data, and engines differ in it.
fn float_bits(float: f64) -> u64 {
    if float.is_nan() { 0x7ff8_0000_0000_0000 } else { float.to_bits() }
}

fn encode_bytes(bytes: &[u8], buffer: &mut Vec<u8>) {
    buffer.extend(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_le_bytes());
    buffer.extend(bytes);
}

/// Scale, length, sign, then the bytes that are not mere repetitions of the sign.
fn encode_decimal(decimal: &Decimal, buffer: &mut Vec<u8>) {
    let decimal = decimal.normalized();
    if let Some(narrow) = decimal.unscaled().to_i128() {
        let repeated = (narrow ^ (narrow >> 127)).leading_zeros() / 8;
        let bytes = narrow.to_be_bytes();
        let significant = usize::try_from(repeated).ok().and_then(|repeated| bytes.get(repeated..));
        return encode_parts(decimal.scale(), narrow < 0, significant.unwrap_or_default(), buffer);
    }
    let negative = decimal.unscaled() < i256::ZERO;
    let sign = if negative { u8::MAX } else { 0 };
    let bytes = decimal.unscaled().to_be_bytes();
    let significant = bytes.iter().position(|b| *b != sign).map_or(&[][..], |first| &bytes[first..]);
    encode_parts(decimal.scale(), negative, significant, buffer);
}

fn encode_parts(scale: u8, negative: bool, significant: &[u8], buffer: &mut Vec<u8>) {
    let length = u8::try_from(significant.len()).unwrap_or(u8::MAX);
    buffer.extend([scale, length, if negative { u8::MAX } else { 0 }]);
    buffer.extend(significant);
}
