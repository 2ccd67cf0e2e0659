//! How Arrow columns are stored in PostgreSQL; the table of types stands at [`PostgresTable`](crate::PostgresTable).

mod copy;
mod declared;
mod decode;
mod encode;
mod kind;
mod number;

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};
use chrono::{DateTime, NaiveDate, Utc};
use reprocess_core::domain::partition::{Dimension, Partitioning};
use reprocess_core::domain::value::{Value, ValueKind};
use reprocess_core::{Error, Result};
use serde::{Deserialize, Serialize};

pub(crate) use copy::read;
pub(crate) use declared::{declared, readable, stored};
pub(crate) use encode::{Encoder, aligned};
pub(crate) use kind::{Kind, Store};

use crate::sql::{Sql, ident};

/// Day 0 of PostgreSQL, in days since 1970.
const FIRST_DAY: i32 = 10_957;

/// The columns of a table and how they are stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Layout {
    schema: SchemaRef,
    stores: Vec<Store>,
}

impl Layout {
    /// Columns as this backend makes them. Refuses, by name, what it cannot store.
    pub(crate) fn own(schema: SchemaRef) -> Result<Self> {
        let stores = schema.fields().iter().map(|field| Store::own(field)).collect::<Result<_>>()?;
        Self::new(schema, stores)
    }

    /// Columns that are stored as it is said.
    pub(crate) fn new(schema: SchemaRef, stores: Vec<Store>) -> Result<Self> {
        let mut names = BTreeSet::new();
        for field in schema.fields() {
            check_name("column", field.name())?;
            if !names.insert(field.name()) {
                return Err(Error::invalid(format!("column `{}` stands twice", field.name())));
            }
        }
        if stores.len() != schema.fields().len() {
            return Err(Error::internal("a layout does not say how each column is stored"));
        }
        Ok(Self { schema, stores })
    }

    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub(crate) fn stores(&self) -> &[Store] {
        &self.stores
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.schema.fields().iter().map(|f| f.name().as_str())
    }

    /// Each column with how it is stored.
    pub(crate) fn columns(&self) -> impl Iterator<Item = (&Field, &Store)> {
        self.schema.fields().iter().map(AsRef::as_ref).zip(&self.stores)
    }

    /// The quoted names in order, each with a prefix such as `s.`.
    pub(crate) fn list(&self, prefix: &str) -> String {
        self.names().map(|name| format!("{prefix}{}", quoted(name))).collect::<Vec<_>>().join(", ")
    }

    /// The columns in order as they are read: what has no binary form of its own as text.
    pub(crate) fn readable(&self, prefix: &str) -> String {
        let column = |(field, store): (&Field, &Store)| {
            let name = quoted(field.name());
            let cast = if store.kind.is_read_as_text() { "::text" } else { "" };
            format!("{prefix}{name}{cast} AS {name}")
        };
        self.columns().map(column).collect::<Vec<_>>().join(", ")
    }

    /// The columns of rows that are [readable](Self::readable), each as a type of the server itself.
    pub(crate) fn plain(&self, prefix: &str) -> String {
        let column = |(field, store): (&Field, &Store)| {
            format!("{prefix}{}::{}", quoted(field.name()), store.kind.plain())
        };
        self.columns().map(column).collect::<Vec<_>>().join(", ")
    }

    /// Definitions of columns that hold copies of such rows.
    pub(crate) fn plain_definitions(&self) -> Vec<String> {
        self.columns()
            .map(|(field, store)| format!("{} {}", quoted(field.name()), store.kind.plain()))
            .collect()
    }

    pub(crate) fn field(&self, column: &str) -> Result<&Field> {
        self.column(column).map(|(field, _)| field)
    }

    pub(crate) fn column(&self, column: &str) -> Result<(&Field, &Store)> {
        self.columns().find(|(field, _)| field.name() == column).ok_or_else(|| {
            let known: Vec<_> = self.names().collect();
            Error::invalid(format!("the table has no column `{column}`"))
                .with_advice(format!("its columns are: {}", known.join(", ")))
        })
    }

    /// Definitions of the columns, for `CREATE TABLE`.
    pub(crate) fn definitions(&self) -> Vec<String> {
        let not_null = |field: &Field| if field.is_nullable() { "" } else { " NOT NULL" };
        self.columns()
            .map(|(field, store)| format!("{} {}{}", quoted(field.name()), store.definition, not_null(field)))
            .collect()
    }

    /// Definitions of columns that hold copies of rows: everything may be missing.
    pub(crate) fn copied_definitions(&self) -> Vec<String> {
        self.columns()
            .map(|(field, store)| format!("{} {}", quoted(field.name()), store.definition))
            .collect()
    }

    /// A value as it is compared with a column; `None` for NULL.
    pub(crate) fn value(&self, column: &str, value: &Value) -> Result<Option<Sql>> {
        let (field, store) = self.column(column)?;
        Ok(Some(match (value, field.data_type(), store.kind) {
            (Value::Null, ..) => return Ok(None),
            (Value::Boolean(b), DataType::Boolean, _) => Sql::default().bind(*b),
            (Value::Integer(i), t, _) if t.is_integer() => Sql::default().bind(*i),
            (Value::Integer(i), DataType::Decimal128(..) | DataType::Decimal256(..), _) => {
                Sql::default().bind(*i)
            }
            (Value::Text(t), _, Kind::Text { .. }) => Sql::default().bind(t.as_str()),
            (Value::Text(t), _, Kind::Padded { .. }) => Sql::default().bind(t.as_str()).text("::bpchar"),
            (Value::Date(d), DataType::Date32, _) => date(*d),
            (Value::Timestamp(t), DataType::Timestamp(..), kind) => instant(kind, *t),
            (value, data_type, _) => {
                return Err(Error::invalid(format!(
                    "column `{column}` is a {data_type}, and `{value}` is none"
                )));
            }
        }))
    }

    /// Refuses a partitioning whose dimensions are no columns of a fitting type.
    pub(crate) fn check_partitioning(&self, partitioning: &Partitioning) -> Result<()> {
        partitioning.validate()?;
        for dimension in partitioning.dimensions() {
            let (field, store) = self.column(dimension.column())?;
            let fits = match (dimension, field.data_type()) {
                (Dimension::Time { .. }, DataType::Timestamp(..)) => true,
                (Dimension::Time { .. }, DataType::Date32) => dimension.kind() == ValueKind::Date,
                (Dimension::Time { .. }, _) => false,
                (Dimension::Key { kind, .. }, data_type) => kind_of(data_type) == Some(*kind),
            };
            if !fits || !store.is_comparable() {
                return Err(Error::invalid(format!(
                    "column `{}` is a {} ({}), which is no {} to partition by",
                    field.name(),
                    field.data_type(),
                    store.definition,
                    dimension.kind()
                ))
                .with_advice(
                    "the time column holds timestamps, or local dates where the grain is a day or more; texts are \
                     compared byte by byte",
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
        let mut added = self.schema.fields().iter().filter(|f| other.field(f.name()).is_err());
        fields.iter().all(|field| same(field)) && added.all(|f| f.is_nullable())
    }

    /// The same columns and those of `other` that are new, nullable.
    pub(crate) fn extended(&self, other: &Self) -> Result<Self> {
        let mut fields: Vec<_> = self.schema.fields().iter().cloned().collect();
        let mut stores = self.stores.clone();
        for (field, store) in other.columns() {
            if self.field(field.name()).is_err() {
                fields.push(Arc::new(field.clone().with_nullable(true)));
                stores.push(store.clone());
            }
        }
        let schema = Schema::new_with_metadata(fields, self.schema.metadata().clone());
        Self::new(Arc::new(schema), stores)
    }

    /// Whether what is stored may be another text than what was written, as `{"b":1,"a":2}` is in jsonb.
    pub(crate) fn normalises(&self) -> bool {
        self.stores.iter().any(|store| store.kind.normalises())
    }
}

/// The day as an expression of type `date`.
pub(crate) fn date(day: NaiveDate) -> Sql {
    let days = day.signed_duration_since(NaiveDate::default()).num_days() - i64::from(FIRST_DAY);
    Sql::new("('2000-01-01'::date + ").bind(days).text("::integer)")
}

/// The instant as it is compared with a column of that kind.
pub(crate) fn instant(kind: Kind, at: DateTime<Utc>) -> Sql {
    match kind {
        Kind::Timestamp { zone: false, .. } => Sql::new("(").bind(at).text(" AT TIME ZONE 'UTC')"),
        _ => Sql::default().bind(at),
    }
}

/// The name of a column of a layout, which was checked.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Refuses names that PostgreSQL cannot hold or that this library uses itself.
pub(crate) fn check_name(what: &str, name: &str) -> Result<()> {
    ident(name)?;
    let system = ["tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"];
    if name.starts_with("reprocess_") || (what == "column" && system.contains(&name)) {
        return Err(Error::invalid(format!("`{name}` is a name that the library or PostgreSQL uses itself"))
            .with_advice(format!("rename the {what}")));
    }
    Ok(())
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
