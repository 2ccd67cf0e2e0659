//! Partition columns: what Delta writes of their values, and which partition of ours a file belongs to.

use std::collections::BTreeMap;

use arrow_schema::{DataType, Schema, TimeUnit};
use buoyant_kernel::expressions::Scalar;
use buoyant_kernel::schema::{DataType as DeltaType, PrimitiveType};
use chrono::{DateTime, NaiveDate, NaiveDateTime};
use indexmap::IndexMap;
use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::partition::{Dimension, PartitionKey, Partitioning};
use reprocess_core::domain::value::{Value, ValueKind};
use reprocess_core::{Error, ErrorKind, Result};

/// The partition columns of a table, in its order, and the dimensions that are told from them.
#[derive(Clone, Debug)]
pub(crate) struct Partitions {
    columns: Vec<(String, Kind)>,
    dimensions: Partitioning,
}

/// Type of a partition column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Boolean,
    Byte,
    Short,
    Integer,
    Long,
    Text,
    Date,
    Timestamp,
    TimestampNtz,
}

impl Kind {
    fn of(data_type: &DataType) -> Option<Self> {
        Some(match data_type {
            DataType::Boolean => Self::Boolean,
            DataType::Int8 => Self::Byte,
            DataType::Int16 => Self::Short,
            DataType::Int32 => Self::Integer,
            DataType::Int64 => Self::Long,
            DataType::Utf8 => Self::Text,
            DataType::Date32 => Self::Date,
            DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => Self::Timestamp,
            DataType::Timestamp(TimeUnit::Microsecond, None) => Self::TimestampNtz,
            _ => return None,
        })
    }

    fn value(self) -> ValueKind {
        match self {
            Self::Boolean => ValueKind::Boolean,
            Self::Byte | Self::Short | Self::Integer | Self::Long => ValueKind::Integer,
            Self::Text => ValueKind::Text,
            Self::Date => ValueKind::Date,
            Self::Timestamp | Self::TimestampNtz => ValueKind::Timestamp,
        }
    }

    fn delta(self) -> DeltaType {
        DeltaType::Primitive(match self {
            Self::Boolean => PrimitiveType::Boolean,
            Self::Byte => PrimitiveType::Byte,
            Self::Short => PrimitiveType::Short,
            Self::Integer => PrimitiveType::Integer,
            Self::Long => PrimitiveType::Long,
            Self::Text => PrimitiveType::String,
            Self::Date => PrimitiveType::Date,
            Self::Timestamp => PrimitiveType::Timestamp,
            Self::TimestampNtz => PrimitiveType::TimestampNtz,
        })
    }

    /// Reads what the log has, see "Partition Value Serialization" in the protocol of Delta.
    fn parse(self, text: &str) -> Option<Value> {
        match self {
            Self::Timestamp | Self::TimestampNtz => instant(text),
            Self::Date => text.parse::<NaiveDate>().ok().map(Value::Date),
            other => Value::parse(other.value(), text),
        }
    }

    fn scalar(self, value: &Value) -> Option<Scalar> {
        Some(match (self, value) {
            (kind, Value::Null) => Scalar::Null(kind.delta()),
            (Self::Boolean, Value::Boolean(b)) => Scalar::Boolean(*b),
            (Self::Byte, Value::Integer(i)) => Scalar::Byte((*i).try_into().ok()?),
            (Self::Short, Value::Integer(i)) => Scalar::Short((*i).try_into().ok()?),
            (Self::Integer, Value::Integer(i)) => Scalar::Integer((*i).try_into().ok()?),
            (Self::Long, Value::Integer(i)) => Scalar::Long(*i),
            (Self::Text, Value::Text(t)) => Scalar::String(t.clone()),
            (Self::Date, Value::Date(d)) => {
                let days = d.signed_duration_since(NaiveDate::default()).num_days();
                Scalar::Date(days.try_into().ok()?)
            }
            (Self::Timestamp, Value::Timestamp(t)) => Scalar::Timestamp(t.timestamp_micros()),
            (Self::TimestampNtz, Value::Timestamp(t)) => Scalar::TimestampNtz(t.timestamp_micros()),
            _ => return None,
        })
    }
}

/// Either of the two forms that the protocol allows.
fn instant(text: &str) -> Option<Value> {
    let plain = NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S%.f").map(|t| t.and_utc());
    let zoned = || DateTime::parse_from_rfc3339(text).map(|t| t.to_utc());
    plain.or_else(|_| zoned()).ok().map(Value::Timestamp)
}

impl Partitions {
    /// Refuses a table whose files can hold rows of several partitions, and partition columns of types that have no
    /// values of ours.
    pub(crate) fn new(dimensions: &Partitioning, columns: &[String], schema: &Schema) -> Result<Self> {
        let kind = |name: &String| {
            let field = schema.field_with_name(name).map_err(|e| {
                Error::new(ErrorKind::Corrupt, format!("there is no partition column `{name}`"))
                    .with_source(e)
            })?;
            let kind = Kind::of(field.data_type()).ok_or_else(|| {
                let message = format!("the partition column `{name}` is {}", field.data_type());
                Error::new(ErrorKind::Unsupported, message)
                    .with_advice("partition by booleans, integers, texts, dates or timestamps")
            })?;
            Ok((name.clone(), kind))
        };
        let found = Self {
            columns: columns.iter().map(kind).collect::<Result<_>>()?,
            dimensions: dimensions.clone(),
        };
        dimensions.dimensions().iter().try_for_each(|dimension| found.check(dimension))?;
        Ok(found)
    }

    /// Of files that hold all columns.
    pub(crate) fn none() -> Self {
        Self { columns: Vec::new(), dimensions: Partitioning::unpartitioned() }
    }

    fn check(&self, dimension: &Dimension) -> Result<()> {
        let column = dimension.column();
        let Some((_, kind)) = self.columns.iter().find(|(name, _)| name == column) else {
            return Err(Error::invalid(format!("the table is not partitioned by the dimension `{column}`"))
                .with_advice("a file of the table could hold rows of several partitions; make the dimension a partition column"));
        };
        match dimension {
            Dimension::Time { calendar, .. } if *kind == Kind::Date && calendar.grain != Grain::Hour => Ok(()),
            Dimension::Time { calendar, .. } if calendar.grain == Grain::Hour && kind.value() == ValueKind::Timestamp => {
                Ok(())
            }
            Dimension::Time { calendar, .. } => Err(Error::invalid(format!(
                "a {} cannot be told from the partition column `{column}`, a {}",
                calendar.grain,
                kind.value()
            ))
            .with_advice(format!(
                "partition by a column of local dates in {}, or of the first instants of hours for the grain of an hour",
                calendar.zone
            ))),
            Dimension::Key { kind: wanted, .. } if *wanted == kind.value() => Ok(()),
            Dimension::Key { kind: wanted, .. } => Err(Error::invalid(format!(
                "the dimension `{column}` is a {wanted}, and the partition column a {}",
                kind.value()
            ))),
        }
    }

    /// Names of the columns.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|(name, _)| name.as_str())
    }

    /// By which rows are divided into files: every column by its value.
    pub(crate) fn of_files(&self) -> Partitioning {
        let columns = self.columns.iter();
        columns.fold(Partitioning::unpartitioned(), |all, (name, kind)| all.with_key(name, kind.value()))
    }

    /// The values of a file, by what the log says of it.
    pub(crate) fn values<'a>(
        &self,
        raw: impl IntoIterator<Item = (&'a String, &'a Option<String>)>,
    ) -> Result<PartitionKey> {
        let raw: BTreeMap<_, _> = raw.into_iter().collect();
        let mut values = PartitionKey::whole();
        for (name, kind) in &self.columns {
            let value = match raw.get(name).and_then(|text| text.as_deref()) {
                None => Value::Null,
                Some(text) => kind.parse(text).ok_or_else(|| {
                    Error::new(ErrorKind::Corrupt, format!("`{text}` is no {} for `{name}`", kind.value()))
                })?,
            };
            values = values.and(name, value);
        }
        Ok(values)
    }

    /// The values as the writer of files takes them.
    pub(crate) fn scalars(&self, values: &PartitionKey) -> Result<IndexMap<String, Scalar>> {
        let scalar = |(name, kind): &(String, Kind)| {
            let value = values.get(name).unwrap_or(&Value::Null);
            let scalar = kind.scalar(value).ok_or_else(|| {
                Error::invalid(format!("`{value}` does not fit the partition column `{name}`"))
            })?;
            Ok((name.clone(), scalar))
        };
        self.columns.iter().map(scalar).collect()
    }

    /// The partition that holds a file with these values.
    pub(crate) fn key(&self, values: &PartitionKey) -> Result<PartitionKey> {
        let mut key = PartitionKey::whole();
        for dimension in self.dimensions.dimensions() {
            let value = values.get(dimension.column()).unwrap_or(&Value::Null);
            let value = match (dimension, value) {
                (Dimension::Time { calendar, .. }, Value::Date(date)) => calendar.key_of_date(*date),
                (Dimension::Time { calendar, .. }, Value::Timestamp(instant)) => calendar.key_at(*instant),
                (_, value) => Some(value.clone()),
            };
            let value = value.ok_or_else(|| {
                Error::invalid("a file belongs to no period of the table's calendar")
                    .with_context("values", values)
            })?;
            key = key.and(dimension.column(), value);
        }
        Ok(key)
    }

    /// A condition that holds for the rows of keys and is shown in the history of the table: comparisons of columns with
    /// literals, which every reader of the log understands.
    pub(crate) fn condition(&self, keys: &[PartitionKey]) -> Option<String> {
        let one = |key: &PartitionKey| {
            key.bound().map(|(column, value)| self.term(column, value)).collect::<Vec<_>>().join(" AND ")
        };
        match keys {
            [] => None,
            keys if keys.iter().any(PartitionKey::is_whole) => Some("true".to_owned()),
            [key] => Some(one(key)),
            keys => Some(keys.iter().map(|key| format!("({})", one(key))).collect::<Vec<_>>().join(" OR ")),
        }
    }
}

impl Partitions {
    fn term(&self, column: &str, value: &Value) -> String {
        let name = quoted(column, '`');
        let literal = |value: &Value| quoted(&value.to_string(), '\'');
        let next =
            self.dimensions.time().filter(|(time, calendar)| *time == column && calendar.grain != Grain::Day);
        match (value, next.and_then(|(_, calendar)| calendar.step(value, 1))) {
            (Value::Null, _) => format!("{name} IS NULL"),
            (value, None) => format!("{name} = {}", literal(value)),
            (value, Some(next)) => format!("{name} >= {} AND {name} < {}", literal(value), literal(&next)),
        }
    }
}

fn quoted(text: &str, mark: char) -> String {
    format!("{mark}{}{mark}", text.replace(mark, &format!("{mark}{mark}")))
}

#[cfg(test)]
mod tests {
    use arrow_schema::Field;
    use chrono_tz::Tz;

    use super::*;

    fn partitions(dimensions: &Partitioning, columns: &[(&str, DataType)]) -> Result<Partitions> {
        let fields: Vec<_> =
            columns.iter().map(|(name, kind)| Field::new(*name, kind.clone(), true)).collect();
        let names: Vec<_> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        Partitions::new(dimensions, &names, &Schema::new(fields))
    }

    fn by_day(grain: Grain, zone: Tz) -> Partitioning {
        Partitioning::unpartitioned().with_time("day", grain, zone)
    }

    #[test]
    fn values_of_the_log_are_typed_and_null_is_not_the_empty_text() {
        let by_day = by_day(Grain::Day, chrono_tz::UTC).with_key("country", ValueKind::Text);
        let found = partitions(&by_day, &[("country", DataType::Utf8), ("day", DataType::Date32)]).unwrap();
        let key = |country: Option<&str>| {
            let raw = [
                ("day".to_owned(), Some("2026-10-05".to_owned())),
                ("country".to_owned(), country.map(str::to_owned)),
            ];
            found.key(&found.values(&BTreeMap::from(raw)).unwrap()).unwrap().to_string()
        };
        assert_eq!(key(Some("a/b")), "day=2026-10-05/country=a%2Fb");
        assert_eq!(key(Some("")), "day=2026-10-05/country=");
        assert_eq!(key(None), "day=2026-10-05/country=__HIVE_DEFAULT_PARTITION__");
    }

    #[test]
    fn the_two_forms_of_an_instant_are_one_value() {
        let hours = Partitioning::unpartitioned().with_time("at", Grain::Hour, chrono_tz::UTC);
        let at = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let found = partitions(&hours, &[("at", at)]).unwrap();
        let key = |text: &str| {
            let raw = BTreeMap::from([("at".to_owned(), Some(text.to_owned()))]);
            found.key(&found.values(&raw).unwrap()).unwrap().to_string()
        };
        assert_eq!(key("2026-10-05 07:00:00.000000"), key("2026-10-05T07:00:00.000000Z"));
        assert_eq!(key("2026-10-05 07:59:59.999999"), key("2026-10-05 07:00:00"));
    }

    #[test]
    fn months_are_told_from_dates() {
        let found = partitions(&by_day(Grain::Month, chrono_tz::UTC), &[("day", DataType::Date32)]).unwrap();
        let raw = BTreeMap::from([("day".to_owned(), Some("2026-10-31".to_owned()))]);
        assert_eq!(found.key(&found.values(&raw).unwrap()).unwrap().to_string(), "day=2026-10-01");
    }

    #[test]
    fn tables_that_cannot_serve_the_dimensions_are_refused() {
        let instants = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let paris = by_day(Grain::Day, chrono_tz::Europe::Paris);
        for (dimensions, columns, word) in [
            (&paris, vec![("day", instants)], "local dates in Europe/Paris"),
            (&paris, vec![("country", DataType::Utf8)], "`day`"),
            (&paris, vec![("day", DataType::Utf8)], "text"),
            (&Partitioning::unpartitioned(), vec![("x", DataType::Float64)], "Float64"),
        ] {
            let error = partitions(dimensions, &columns).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn conditions_are_of_columns_and_literals() {
        let found = partitions(&by_day(Grain::Day, chrono_tz::UTC), &[("day", DataType::Date32)]).unwrap();
        let day = |text: &str| PartitionKey::of("day", Value::Date(text.parse().unwrap()));
        assert_eq!(found.condition(&[day("2026-10-05")]).unwrap(), "`day` = '2026-10-05'");
        let odd = PartitionKey::of("a`b", "it's").and("c", Value::Null);
        assert_eq!(found.condition(&[odd]).unwrap(), "`a``b` = 'it''s' AND `c` IS NULL");
        assert_eq!(found.condition(&[PartitionKey::whole()]).unwrap(), "true");
        let months = partitions(&by_day(Grain::Month, chrono_tz::UTC), &[("day", DataType::Date32)]).unwrap();
        let month = months.condition(&[day("2026-10-01")]).unwrap();
        assert_eq!(month, "`day` >= '2026-10-01' AND `day` < '2026-11-01'");
    }
}
