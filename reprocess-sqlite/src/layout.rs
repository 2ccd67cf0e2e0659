//! How Arrow columns are stored in SQLite; the table of types stands at [`SqliteTable`](crate::SqliteTable).

mod decode;
mod encode;
mod source;

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use chrono::{DateTime, Utc};
use reprocess_core::domain::decimal::Decimal;
use reprocess_core::domain::partition::{Dimension, Partitioning};
use reprocess_core::domain::value::{Value, ValueKind};
use reprocess_core::{Error, Result};

pub(crate) use decode::{Batches, infer};
pub(crate) use encode::{Encoder, aligned};
pub(crate) use source::declared_schema;

use crate::sql::{Arg, ident};

/// How the instants of a table are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instants {
    /// As this backend writes them.
    Own,
    /// As others do: text where it is text, else a count of the unit of the column.
    Foreign,
    /// As a query of the user gives them: as this backend writes them, or text.
    Queried,
}

/// The columns of a table and how they are stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    schema: SchemaRef,
    instants: Instants,
}

impl Layout {
    /// Columns that this backend writes. Refuses, by name, what it cannot store.
    pub(crate) fn own(schema: SchemaRef) -> Result<Self> {
        let mut names = BTreeSet::new();
        for field in schema.fields() {
            check_name("column", field.name())?;
            declared_type(field)?;
            if !names.insert(field.name().to_ascii_lowercase()) {
                return Err(Error::invalid(format!("column `{}` stands twice", field.name()))
                    .with_advice("SQLite does not tell capitals from small letters in names"));
            }
        }
        Ok(Self { schema, instants: Instants::Own })
    }

    /// Columns that others write.
    pub(crate) fn foreign(schema: SchemaRef) -> Result<Self> {
        Ok(Self { instants: Instants::Foreign, ..Self::own(schema)? })
    }

    /// Columns of a query.
    pub(crate) fn queried(schema: SchemaRef) -> Result<Self> {
        Ok(Self { instants: Instants::Queried, ..Self::own(schema)? })
    }

    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub(crate) fn instants(&self) -> Instants {
        self.instants
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.schema.fields().iter().map(|f| f.name().as_str())
    }

    /// The quoted names in order, each with a prefix such as `s.`.
    pub(crate) fn list(&self, prefix: &str) -> String {
        self.names().map(|name| format!("{prefix}{}", ident(name))).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn field(&self, column: &str) -> Result<&Field> {
        self.schema.fields().iter().find(|f| f.name() == column).map(AsRef::as_ref).ok_or_else(|| {
            let known: Vec<_> = self.names().collect();
            Error::invalid(format!("the table has no column `{column}`"))
                .with_advice(format!("its columns are: {}", known.join(", ")))
        })
    }

    /// Definitions of the columns, for `CREATE TABLE`.
    pub(crate) fn definitions(&self) -> Result<Vec<String>> {
        self.schema.fields().iter().map(|field| definition(field)).collect()
    }

    /// A value as it is stored in a column.
    pub(crate) fn value(&self, column: &str, value: &Value) -> Result<Arg> {
        let field = self.field(column)?;
        let scale = |scale: i8| u8::try_from(scale).unwrap_or(0);
        Ok(match (value, field.data_type()) {
            (Value::Null, _) => Arg::Null,
            (Value::Boolean(b), DataType::Boolean) => Arg::Integer(i64::from(*b)),
            (Value::Integer(i), t) if t.is_integer() => Arg::Integer(*i),
            (Value::Integer(i), DataType::Decimal128(_, s) | DataType::Decimal256(_, s)) => {
                let decimal = Decimal::from(*i).rescale(scale(*s));
                Arg::Text(decimal.map_or_else(|| i.to_string(), |d| d.to_string()))
            }
            (Value::Text(t), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) => {
                Arg::Text(t.clone())
            }
            (Value::Date(d), DataType::Date32) => Arg::Text(d.to_string()),
            (Value::Timestamp(t), DataType::Timestamp(unit, _)) => self.instant(*unit, *t)?,
            (value, data_type) => {
                return Err(Error::invalid(format!(
                    "column `{column}` is a {data_type}, and `{value}` is none"
                )));
            }
        })
    }

    /// An instant as it is stored in a column of that unit.
    pub(crate) fn instant(&self, unit: TimeUnit, instant: DateTime<Utc>) -> Result<Arg> {
        let ticks = match (self.instants, unit) {
            (_, TimeUnit::Nanosecond) => instant.timestamp_nanos_opt(),
            (Instants::Own | Instants::Queried, _) | (_, TimeUnit::Microsecond) => {
                Some(instant.timestamp_micros())
            }
            (Instants::Foreign, TimeUnit::Millisecond) => Some(instant.timestamp_millis()),
            (Instants::Foreign, TimeUnit::Second) => Some(instant.timestamp()),
        };
        ticks.map(Arg::Integer).ok_or_else(|| {
            Error::invalid(format!("{instant} is beyond what a column of nanoseconds can hold"))
        })
    }

    /// Refuses a partitioning whose dimensions are no columns of a fitting type.
    pub(crate) fn check_partitioning(&self, partitioning: &Partitioning) -> Result<()> {
        partitioning.validate()?;
        for dimension in partitioning.dimensions() {
            let field = self.field(dimension.column())?;
            let fits = match (dimension, field.data_type()) {
                (Dimension::Time { .. }, DataType::Timestamp(..)) => true,
                (Dimension::Time { .. }, DataType::Date32) => dimension.kind() == ValueKind::Date,
                (Dimension::Time { .. }, _) => false,
                (Dimension::Key { kind, .. }, data_type) => kind_of(data_type) == Some(*kind),
            };
            if !fits {
                return Err(Error::invalid(format!(
                    "column `{}` is a {}, which is no {} to partition by",
                    field.name(),
                    field.data_type(),
                    dimension.kind()
                ))
                .with_advice(
                    "the time column holds timestamps, or local dates where the grain is a day or more",
                ));
            }
        }
        Ok(())
    }

    /// Whether the table has exactly these columns, in any order.
    pub(crate) fn has_columns_of(&self, schema: &Schema) -> bool {
        let same = |field: &Field| {
            self.field(field.name()).is_ok_and(|ours| {
                ours.data_type() == field.data_type() && ours.is_nullable() == field.is_nullable()
            })
        };
        schema.fields().len() == self.schema.fields().len() && schema.fields().iter().all(|field| same(field))
    }

    /// Whether rows of the other columns can be put into these.
    pub(crate) fn has_all_of(&self, other: &Self) -> bool {
        let fields = other.schema.fields();
        let same = |f: &Field| self.field(f.name()).is_ok_and(|ours| ours.data_type() == f.data_type());
        let added = self.schema.fields().iter().filter(|f| other.field(f.name()).is_err());
        fields.iter().all(|field| same(field)) && added.into_iter().all(|f| f.is_nullable())
    }

    /// The same columns and those of `other` that are new, nullable.
    pub(crate) fn extended(&self, other: &Self) -> Result<Self> {
        let mut fields: Vec<_> = self.schema.fields().iter().cloned().collect();
        for field in other.schema.fields() {
            if self.field(field.name()).is_err() {
                fields.push(Arc::new(field.as_ref().clone().with_nullable(true)));
            }
        }
        let schema = Schema::new_with_metadata(fields, self.schema.metadata().clone());
        Ok(Self { instants: self.instants, ..Self::own(Arc::new(schema))? })
    }
}

/// Definition of one column.
pub(crate) fn definition(field: &Field) -> Result<String> {
    let null = if field.is_nullable() { "" } else { " NOT NULL" };
    Ok(format!("{} {}{null}", ident(field.name()), declared_type(field)?))
}

/// Refuses names that SQLite cannot hold or that this library uses itself.
pub(crate) fn check_name(what: &str, name: &str) -> Result<()> {
    let lower = name.to_ascii_lowercase();
    let reason = if name.contains('\0') || name.is_empty() {
        "is no name in SQLite"
    } else if lower.starts_with("reprocess_") || lower.starts_with("sqlite_") || lower == "_rowid_" {
        "is a name that the library or SQLite uses itself"
    } else {
        return Ok(());
    };
    Err(Error::invalid(format!("`{}` {reason}", name.escape_default()))
        .with_advice(format!("rename the {what}")))
}

fn declared_type(field: &Field) -> Result<&'static str> {
    Ok(match field.data_type() {
        DataType::Boolean => "BOOLEAN",
        t if t.is_integer() => "INTEGER",
        DataType::Float32 | DataType::Float64 => "REAL",
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "TEXT",
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            "BLOB"
        }
        DataType::Date32 => "DATE",
        DataType::Timestamp(..) => "TIMESTAMP",
        DataType::Decimal128(_, scale) | DataType::Decimal256(_, scale) if *scale >= 0 => "TEXT",
        other => {
            return Err(Error::invalid(format!(
                "column `{}` has the type {other}, which is not stored in SQLite",
                field.name()
            ))
            .with_advice(
                "cast it to a boolean, integer, float, text, binary, date32, timestamp or decimal",
            ));
        }
    })
}

fn kind_of(data_type: &DataType) -> Option<ValueKind> {
    Some(match data_type {
        DataType::Boolean => ValueKind::Boolean,
        t if t.is_integer() => ValueKind::Integer,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => ValueKind::Text,
        DataType::Date32 => ValueKind::Date,
        DataType::Timestamp(..) => ValueKind::Timestamp,
        _ => return None,
    })
}

/// Whether rows of one type can be stored in a column of the other as they are: only the memory layout differs.
pub(crate) fn same_values(rows: &DataType, column: &DataType) -> bool {
    fn text(t: &DataType) -> bool {
        matches!(t, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
    }
    fn binary(t: &DataType) -> bool {
        matches!(t, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
    }
    match rows {
        DataType::Dictionary(_, values) => same_values(values, column),
        _ => rows == column || (text(rows) && text(column)) || (binary(rows) && binary(column)),
    }
}
