//! Partitionings, and the keys that name partitions.

use std::fmt;
use std::sync::Arc;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::interval::{Calendar, Grain, Interval};
use super::value::{Value, ValueKind};
use crate::error::{Error, Result};

/// Text of NULL in the Hive form of a key.
const HIVE_NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// What Hive and Spark encode in a path, beside control characters.
const ENCODED: &AsciiSet = &CONTROLS
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'\'')
    .add(b'*')
    .add(b'/')
    .add(b':')
    .add(b'=')
    .add(b'?')
    .add(b'\\')
    .add(b'{')
    .add(b'[')
    .add(b']')
    .add(b'^')
    .add(b';')
    .add(b',');

/// One dimension of a partitioning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dimension {
    /// Periods of time. The column holds local dates, or instants that the calendar assigns to periods.
    Time {
        /// Column of the table.
        column: String,
        /// Grain and zone.
        calendar: Calendar,
    },
    /// Values of a column as they are.
    Key {
        /// Column of the table.
        column: String,
        /// Type of the values.
        kind: ValueKind,
    },
}

impl Dimension {
    /// Name of the column.
    pub fn column(&self) -> &str {
        match self {
            Self::Time { column, .. } | Self::Key { column, .. } => column,
        }
    }

    /// Type of the values in keys: an instant for hours, a date for coarser grains.
    pub fn kind(&self) -> ValueKind {
        match self {
            Self::Time { calendar, .. } if calendar.grain == Grain::Hour => ValueKind::Timestamp,
            Self::Time { .. } => ValueKind::Date,
            Self::Key { kind, .. } => *kind,
        }
    }
}

/// How a table is divided into units of replacement: at most one time dimension and any number of key
/// dimensions. Without a dimension the whole table is the one partition.
///
/// ```
/// use reprocess_core::domain::interval::Grain;
/// use reprocess_core::domain::partition::Partitioning;
/// use reprocess_core::domain::value::ValueKind;
///
/// let by_day_and_country = Partitioning::unpartitioned()
///     .with_time("day", Grain::Day, chrono_tz::Europe::Paris)
///     .with_key("country", ValueKind::Text);
/// let key = by_day_and_country.parse_key("day=2026-10-01/country=a%2Fb")?;
/// assert_eq!(key.to_string(), "day=2026-10-01/country=a%2Fb");
/// # Ok::<(), reprocess_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Partitioning {
    dimensions: Vec<Dimension>,
}

impl Partitioning {
    /// The whole table is one partition.
    pub fn unpartitioned() -> Self {
        Self::default()
    }

    /// Adds the time dimension.
    #[must_use]
    pub fn with_time(mut self, column: impl Into<String>, grain: Grain, zone: chrono_tz::Tz) -> Self {
        let calendar = Calendar::new(grain, zone);
        self.dimensions.push(Dimension::Time { column: column.into(), calendar });
        self
    }

    /// Adds a key dimension.
    #[must_use]
    pub fn with_key(mut self, column: impl Into<String>, kind: ValueKind) -> Self {
        self.dimensions.push(Dimension::Key { column: column.into(), kind });
        self
    }

    /// The dimensions in their declared order, which is the order in keys.
    pub fn dimensions(&self) -> &[Dimension] {
        &self.dimensions
    }

    /// Column and calendar of the time dimension.
    pub fn time(&self) -> Option<(&str, &Calendar)> {
        self.dimensions.iter().find_map(|d| match d {
            Dimension::Time { column, calendar } => Some((column.as_str(), calendar)),
            Dimension::Key { .. } => None,
        })
    }

    /// Refuses a second time dimension and a column used twice.
    pub fn validate(&self) -> Result<()> {
        let times = self.dimensions.iter().filter(|d| matches!(d, Dimension::Time { .. })).count();
        if times > 1 {
            return Err(Error::invalid("a partitioning has at most one time dimension"));
        }
        for (i, d) in self.dimensions.iter().enumerate() {
            if self.dimensions[..i].iter().any(|other| other.column() == d.column()) {
                return Err(Error::invalid(format!("column `{}` is a dimension twice", d.column())));
            }
        }
        Ok(())
    }

    /// Checks names and types of a key and puts its columns into the declared order.
    pub fn check_key(&self, key: &PartitionKey) -> Result<PartitionKey> {
        let mut bound = Vec::with_capacity(key.bound.len());
        for (column, value) in &key.bound {
            let dimension = self.dimensions.iter().find(|d| d.column() == column.as_ref());
            let Some(dimension) = dimension else {
                let known: Vec<_> = self.dimensions.iter().map(Dimension::column).collect();
                return Err(Error::invalid(format!("`{column}` is no dimension of the table"))
                    .with_context("partition", key)
                    .with_advice(format!("its dimensions are: {}", known.join(", "))));
            };
            self.check_value(dimension, value).map_err(|e| e.with_context("partition", key))?;
            bound.push((column.clone(), value.clone()));
        }
        let place = |column: &str| self.dimensions.iter().position(|d| d.column() == column);
        bound.sort_by_key(|(column, _)| place(column));
        if let Some(twice) = bound.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(
                Error::invalid(format!("`{}` is bound twice", twice[0].0)).with_context("partition", key)
            );
        }
        Ok(PartitionKey { bound })
    }

    fn check_value(&self, dimension: &Dimension, value: &Value) -> Result<()> {
        if value.is_null() {
            return Ok(());
        }
        let (column, kind) = (dimension.column(), dimension.kind());
        if value.kind() != Some(kind) {
            return Err(Error::invalid(format!("`{column}` takes a {kind}, not `{value}`")));
        }
        match dimension {
            Dimension::Time { calendar, .. } if calendar.interval(value).is_none() => {
                Err(Error::invalid(format!("no {calendar} begins at `{value}`")))
            }
            _ => Ok(()),
        }
    }

    /// Reads the Hive form of a key, for example `day=2026-10-01/country=FR`; the inverse of its text. The empty
    /// text is the key that binds nothing. A table with one dimension also takes the bare value. The name of a
    /// month, quarter or year may be any of its dates.
    pub fn parse_key(&self, text: &str) -> Result<PartitionKey> {
        let mut bound = Vec::new();
        for part in text.split('/').filter(|part| !part.is_empty()) {
            let (column, value) = match (part.split_once('='), self.dimensions.as_slice()) {
                (Some((column, value)), _) => (decode(column)?, value),
                (None, [only]) => (only.column().to_owned(), part),
                (None, _) => {
                    return Err(Error::invalid(format!("`{part}` is not of the form column=value"))
                        .with_context("partition", text));
                }
            };
            let dimension = self.dimensions.iter().find(|d| d.column() == column);
            let value = match dimension {
                _ if value == HIVE_NULL => Value::Null,
                Some(d) => {
                    Self::parse_value(d, &decode(value)?).map_err(|e| e.with_context("partition", text))?
                }
                None => Value::Text(decode(value)?),
            };
            bound.push((column.into(), value));
        }
        self.check_key(&PartitionKey { bound })
    }

    fn parse_value(dimension: &Dimension, text: &str) -> Result<Value> {
        let (column, kind) = (dimension.column(), dimension.kind());
        Value::parse(kind, text).ok_or_else(|| {
            Error::invalid(format!("`{text}` is no {kind} for `{column}`")).with_advice(match kind {
                ValueKind::Date => "write a date as 2026-10-01",
                ValueKind::Timestamp => "write an instant as 2026-10-01T05:00:00Z",
                _ => "see the table's partitioning",
            })
        })
    }

    /// The interval of a key: that of its time value. `None` where the key binds no time or NULL.
    pub fn interval(&self, key: &PartitionKey) -> Option<Interval> {
        let (column, calendar) = self.time()?;
        calendar.interval(key.get(column)?)
    }

    /// The key that binds only the time dimension; `None` where the table has none.
    pub fn time_key(&self, value: Value) -> Option<PartitionKey> {
        let (column, _) = self.time()?;
        Some(PartitionKey { bound: vec![(column.into(), value)] })
    }
}

/// Values for some or all dimensions of a table; means every partition that agrees with them. The key that
/// binds nothing means the whole table and is the partition of an unpartitioned one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionKey {
    bound: Vec<(Arc<str>, Value)>,
}

impl PartitionKey {
    /// The key that binds nothing.
    pub fn whole() -> Self {
        Self::default()
    }

    /// A key that binds one column.
    pub fn of(column: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::whole().and(column, value)
    }

    /// Binds a further column.
    #[must_use]
    pub fn and(mut self, column: impl Into<String>, value: impl Into<Value>) -> Self {
        self.bound.push((column.into().into(), value.into()));
        self
    }

    /// The value of a column, `None` where the key leaves it open.
    pub fn get(&self, column: &str) -> Option<&Value> {
        self.bound.iter().find(|(c, _)| c.as_ref() == column).map(|(_, v)| v)
    }

    /// The bound columns and their values.
    pub fn bound(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.bound.iter().map(|(c, v)| (c.as_ref(), v))
    }

    /// Whether nothing is bound.
    pub fn is_whole(&self) -> bool {
        self.bound.is_empty()
    }

    /// Whether a partition can belong to both: the columns that both bind have equal values.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.bound.iter().all(|(c, v)| other.get(c).is_none_or(|w| v == w))
    }

    /// Whether every partition of `other` belongs to this key.
    pub fn covers(&self, other: &Self) -> bool {
        self.bound.iter().all(|(c, v)| other.get(c) == Some(v))
    }

    /// The key with only the named columns.
    #[must_use]
    pub fn only<'a>(&self, columns: impl IntoIterator<Item = &'a str>) -> Self {
        let columns: Vec<_> = columns.into_iter().collect();
        Self { bound: self.bound.iter().filter(|(c, _)| columns.contains(&c.as_ref())).cloned().collect() }
    }
}

impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        for (column, value) in &self.bound {
            if !text.is_empty() {
                text.push('/');
            }
            text.extend(utf8_percent_encode(column, ENCODED));
            text.push('=');
            match value {
                Value::Null => text.push_str(HIVE_NULL),
                // Text that looks like the mark of NULL is told from it by its first letter.
                Value::Text(t) if t == HIVE_NULL => text.push_str("%5F_HIVE_DEFAULT_PARTITION__"),
                value => text.extend(utf8_percent_encode(&value.to_string(), ENCODED)),
            }
        }
        f.pad(&text)
    }
}

impl Serialize for PartitionKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.bound.len()))?;
        for (column, value) in &self.bound {
            map.serialize_entry(column, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for PartitionKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = PartitionKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from partition columns to values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PartitionKey, A::Error> {
                let mut bound = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    bound.push(entry);
                }
                Ok(PartitionKey { bound })
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

fn decode(text: &str) -> Result<String> {
    percent_decode_str(text)
        .decode_utf8()
        .map(|t| t.into_owned())
        .map_err(|e| Error::invalid(format!("`{text}` does not decode to UTF-8")).with_source(e))
}

#[cfg(test)]
#[path = "partition_tests.rs"]
mod tests;
