//! Typed values of partition columns.

use std::fmt;

use chrono::{DateTime, NaiveDate, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

/// The type of a partition column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueKind {
    /// `true` or `false`.
    Boolean,
    /// A 64-bit signed integer.
    Integer,
    /// UTF-8 text; the empty text is a value of its own and not NULL.
    Text,
    /// A calendar date without a zone.
    Date,
    /// An instant in UTC, with microseconds.
    Timestamp,
}

impl fmt::Display for ValueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Boolean => "boolean",
            Self::Integer => "integer",
            Self::Text => "text",
            Self::Date => "date",
            Self::Timestamp => "timestamp",
        })
    }
}

/// A value of a partition column. NULL sorts first and is a value like any other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "Repr", from = "Repr")]
pub enum Value {
    /// No value.
    Null,
    /// A boolean.
    Boolean(bool),
    /// An integer.
    Integer(i64),
    /// Text.
    Text(String),
    /// A calendar date.
    Date(NaiveDate),
    /// An instant.
    Timestamp(DateTime<Utc>),
}

impl Value {
    /// The type of the value, `None` for NULL, which belongs to every type.
    pub fn kind(&self) -> Option<ValueKind> {
        match self {
            Self::Null => None,
            Self::Boolean(_) => Some(ValueKind::Boolean),
            Self::Integer(_) => Some(ValueKind::Integer),
            Self::Text(_) => Some(ValueKind::Text),
            Self::Date(_) => Some(ValueKind::Date),
            Self::Timestamp(_) => Some(ValueKind::Timestamp),
        }
    }

    /// Whether the value is NULL.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Reads the plain text of a value, the inverse of [`Display`](fmt::Display) for all but NULL.
    /// `None` where the text is no value of that type.
    pub fn parse(kind: ValueKind, text: &str) -> Option<Self> {
        match kind {
            ValueKind::Boolean => text.parse().ok().map(Self::Boolean),
            ValueKind::Integer => text.parse().ok().map(Self::Integer),
            ValueKind::Text => Some(Self::Text(text.to_owned())),
            ValueKind::Date => text.parse().ok().map(Self::Date),
            ValueKind::Timestamp => {
                DateTime::parse_from_rfc3339(text).ok().map(|t| Self::Timestamp(t.to_utc()))
            }
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("NULL"),
            Self::Boolean(b) => write!(f, "{b}"),
            Self::Integer(i) => write!(f, "{i}"),
            Self::Text(t) => f.write_str(t),
            Self::Date(d) => write!(f, "{d}"),
            Self::Timestamp(t) => f.write_str(&t.to_rfc3339_opts(SecondsFormat::AutoSi, true)),
        }
    }
}

impl From<NaiveDate> for Value {
    fn from(date: NaiveDate) -> Self {
        Self::Date(date)
    }
}

impl From<DateTime<Utc>> for Value {
    fn from(instant: DateTime<Utc>) -> Self {
        Self::Timestamp(instant)
    }
}

impl From<i64> for Value {
    fn from(integer: i64) -> Self {
        Self::Integer(integer)
    }
}

impl From<bool> for Value {
    fn from(boolean: bool) -> Self {
        Self::Boolean(boolean)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// JSON form: plain where JSON has the type, tagged where it has not.
#[derive(Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Repr {
    Null,
    Boolean(bool),
    Integer(i64),
    Text(String),
    Date { date: NaiveDate },
    Timestamp { timestamp: DateTime<Utc> },
}

impl From<Value> for Repr {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Boolean(b) => Self::Boolean(b),
            Value::Integer(i) => Self::Integer(i),
            Value::Text(t) => Self::Text(t),
            Value::Date(date) => Self::Date { date },
            Value::Timestamp(timestamp) => Self::Timestamp { timestamp },
        }
    }
}

impl From<Repr> for Value {
    fn from(repr: Repr) -> Self {
        match repr {
            Repr::Null => Self::Null,
            Repr::Boolean(b) => Self::Boolean(b),
            Repr::Integer(i) => Self::Integer(i),
            Repr::Text(t) => Self::Text(t),
            Repr::Date { date } => Self::Date(date),
            Repr::Timestamp { timestamp } => Self::Timestamp(timestamp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_the_type_of_every_value() {
        let values = vec![
            Value::Null,
            Value::Boolean(true),
            Value::Integer(-7),
            Value::from(""),
            Value::from("2026-10-01"),
            Value::Date(NaiveDate::from_ymd_opt(2026, 10, 1).unwrap()),
            Value::Timestamp("2026-10-01T05:00:00.000001Z".parse().unwrap()),
        ];
        let json = serde_json::to_string(&values).unwrap();
        assert_eq!(
            json,
            r#"[null,true,-7,"","2026-10-01",{"date":"2026-10-01"},{"timestamp":"2026-10-01T05:00:00.000001Z"}]"#
        );
        assert_eq!(serde_json::from_str::<Vec<Value>>(&json).unwrap(), values);
    }
}
