//! How one column is stored.

use arrow_schema::{DataType, Field, TimeUnit};
use reprocess_core::{Error, Result};
use serde::{Deserialize, Serialize};

/// What values a column of PostgreSQL takes, and in which form they travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Boolean,
    Int2,
    Int4,
    Int8,
    Float4,
    Float8,
    /// With precision and scale, so that each number has one form.
    Numeric {
        precision: u8,
        scale: u8,
    },
    /// `text`, and `varchar` with the most characters that it takes.
    Text {
        most: Option<u32>,
    },
    /// `char(n)`: what is behind the last character that is no space is no part of the value.
    Padded {
        most: u32,
    },
    Bytea,
    Uuid,
    Date,
    /// With or without a zone, and with fewer digits of the second where it says so.
    Timestamp {
        zone: bool,
        digits: u8,
    },
    Json,
    Jsonb,
    Enum,
    /// Everything else, as the text that PostgreSQL writes and reads for it.
    Other,
}

/// How one column is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Store {
    pub(crate) kind: Kind,
    /// The type, as `CREATE TABLE` takes it.
    pub(crate) definition: String,
    /// The number of the type, and what qualifies it; 0 and -1 for a column that is not made yet.
    pub(crate) oid: i64,
    pub(crate) modifier: i32,
    /// Whether the server counts the values unless it is told not to: they can be given, and not changed.
    pub(crate) always_counted: bool,
    /// Whether equal values may differ in their bytes, as in a collation that ignores case.
    pub(crate) blurred: bool,
}

impl Store {
    /// As this backend makes a column. Refuses, by name, what it cannot store.
    pub(crate) fn own(field: &Field) -> Result<Self> {
        let (kind, definition) = match field.data_type() {
            DataType::Boolean => (Kind::Boolean, "boolean".to_owned()),
            DataType::Int8 | DataType::Int16 | DataType::UInt8 => (Kind::Int2, "smallint".to_owned()),
            DataType::Int32 | DataType::UInt16 => (Kind::Int4, "integer".to_owned()),
            DataType::Int64 | DataType::UInt32 => (Kind::Int8, "bigint".to_owned()),
            DataType::UInt64 => (Kind::Numeric { precision: 20, scale: 0 }, "numeric(20,0)".to_owned()),
            DataType::Float32 => (Kind::Float4, "real".to_owned()),
            DataType::Float64 => (Kind::Float8, "double precision".to_owned()),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
                (Kind::Text { most: None }, "text".to_owned())
            }
            DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
            | DataType::FixedSizeBinary(_) => (Kind::Bytea, "bytea".to_owned()),
            DataType::Date32 => (Kind::Date, "date".to_owned()),
            DataType::Timestamp(_, zone) => {
                let name =
                    if zone.is_some() { "timestamp with time zone" } else { "timestamp without time zone" };
                (Kind::Timestamp { zone: zone.is_some(), digits: 6 }, name.to_owned())
            }
            DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale) => {
                let scale = u8::try_from(*scale).ok().filter(|scale| scale <= precision);
                let scale = scale.ok_or_else(|| refused(field))?;
                (Kind::Numeric { precision: *precision, scale }, format!("numeric({precision},{scale})"))
            }
            _ => return Err(refused(field)),
        };
        Ok(Self { kind, definition, oid: 0, modifier: -1, always_counted: false, blurred: false })
    }

    /// Whether values are equal in SQL exactly where they are the same.
    pub(crate) fn is_comparable(&self) -> bool {
        let no = matches!(self.kind, Kind::Json | Kind::Jsonb | Kind::Other | Kind::Enum);
        !no && !self.blurred
    }

    /// Condition under which two columns of this kind hold different values, NULL and the bits of floats included.
    pub(crate) fn differ(&self, a: &str, b: &str) -> String {
        match self.kind {
            // The server takes the two zeros for equal, and every NaN.
            Kind::Float4 => format!("float4send({a}) IS DISTINCT FROM float4send({b})"),
            Kind::Float8 => format!("float8send({a}) IS DISTINCT FROM float8send({b})"),
            // Where there is an equality at all, it takes `1.0` for `1` or one month for thirty days.
            Kind::Json | Kind::Jsonb | Kind::Other => format!("{a}::text IS DISTINCT FROM {b}::text"),
            _ if self.blurred => {
                format!("({a}::text COLLATE \"C\") IS DISTINCT FROM ({b}::text COLLATE \"C\")")
            }
            _ => format!("{a} IS DISTINCT FROM {b}"),
        }
    }

    /// Whether values of an Arrow type can be kept in a column of this kind.
    pub(crate) fn fits(&self, data_type: &DataType) -> bool {
        use DataType as T;
        match (self.kind, data_type) {
            (Kind::Boolean, T::Boolean)
            | (Kind::Int2, T::Int8 | T::Int16 | T::UInt8)
            | (Kind::Int4, T::Int32 | T::UInt16)
            | (Kind::Int8, T::Int64 | T::UInt32)
            | (Kind::Numeric { precision: 20, scale: 0 }, T::UInt64)
            | (Kind::Float4, T::Float32)
            | (Kind::Float8, T::Float64)
            | (Kind::Date, T::Date32)
            | (Kind::Uuid, T::FixedSizeBinary(16)) => true,
            (
                Kind::Text { .. } | Kind::Padded { .. } | Kind::Json | Kind::Jsonb | Kind::Enum | Kind::Other,
                T::Utf8 | T::LargeUtf8 | T::Utf8View,
            ) => true,
            (Kind::Bytea, T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_)) => true,
            (Kind::Timestamp { zone, .. }, T::Timestamp(_, tz)) => zone == tz.is_some(),
            (Kind::Numeric { precision, scale }, T::Decimal128(p, s) | T::Decimal256(p, s)) => {
                precision == *p && i8::try_from(scale) == Ok(*s)
            }
            _ => false,
        }
    }

    /// The Arrow type of a column of others.
    pub(crate) fn data_type(&self) -> DataType {
        let micros = |zone: bool| DataType::Timestamp(TimeUnit::Microsecond, zone.then(|| "UTC".into()));
        match self.kind {
            Kind::Boolean => DataType::Boolean,
            Kind::Int2 => DataType::Int16,
            Kind::Int4 => DataType::Int32,
            Kind::Int8 => DataType::Int64,
            Kind::Float4 => DataType::Float32,
            Kind::Float8 => DataType::Float64,
            Kind::Numeric { precision, scale } => {
                let scale = i8::try_from(scale).unwrap_or(i8::MAX);
                match precision {
                    ..=38 => DataType::Decimal128(precision, scale),
                    _ => DataType::Decimal256(precision, scale),
                }
            }
            Kind::Bytea => DataType::Binary,
            Kind::Uuid => DataType::FixedSizeBinary(16),
            Kind::Date => DataType::Date32,
            Kind::Timestamp { zone, .. } => micros(zone),
            Kind::Text { .. } | Kind::Padded { .. } => DataType::Utf8,
            Kind::Json | Kind::Jsonb | Kind::Enum | Kind::Other => DataType::Utf8,
        }
    }
}

impl Kind {
    /// The type in which every value of this kind is read: one that comes with the server, and so outlives those that
    /// users made.
    pub(crate) fn plain(self) -> String {
        match self {
            Self::Boolean => "boolean",
            Self::Int2 => "smallint",
            Self::Int4 => "integer",
            Self::Int8 => "bigint",
            Self::Float4 => "real",
            Self::Float8 => "double precision",
            Self::Numeric { precision, scale } => return format!("numeric({precision},{scale})"),
            Self::Bytea => "bytea",
            Self::Uuid => "uuid",
            Self::Date => "date",
            Self::Timestamp { zone: true, .. } => "timestamp with time zone",
            Self::Timestamp { zone: false, .. } => "timestamp without time zone",
            Self::Text { .. } | Self::Padded { .. } | Self::Json | Self::Jsonb | Self::Enum | Self::Other => {
                "text"
            }
        }
        .to_owned()
    }

    /// Whether the value is read as the text of PostgreSQL for it; `char(n)` loses its padding by that.
    pub(crate) fn is_read_as_text(self) -> bool {
        matches!(self, Self::Padded { .. } | Self::Other | Self::Jsonb | Self::Json | Self::Enum)
    }

    /// Whether PostgreSQL may store another text than it is given.
    pub(crate) fn normalises(self) -> bool {
        matches!(self, Self::Jsonb | Self::Other)
    }
}

fn refused(field: &Field) -> Error {
    Error::invalid(format!(
        "column `{}` has the type {}, which is not stored in PostgreSQL",
        field.name(),
        field.data_type()
    ))
    .with_advice("cast it to a boolean, integer, float, text, binary, date32, timestamp or decimal")
}
