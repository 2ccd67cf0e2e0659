//! Which rows a partition of a partitioned table takes, as the server writes it.

use chrono::{DateTime, NaiveDate, NaiveDateTime, Utc};
use reprocess_core::domain::interval::{Calendar, Interval};
use reprocess_core::domain::partition::{Dimension, PartitionKey, Partitioning};
use reprocess_core::domain::value::{Value, ValueKind};

/// A child of more keys is taken for one that may hold any.
const MOST_KEYS: usize = 2_000;

/// Bounds by one column.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Bounds {
    /// From the first value to before the second.
    Range(String, String),
    /// `None` is NULL.
    List(Vec<Option<String>>),
}

impl Bounds {
    /// `None` for a default partition, for hashes, and for ranges without an end or by several columns.
    fn parse(text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix("FOR VALUES IN (") {
            return literals(rest.strip_suffix(')')?).map(Self::List);
        }
        let rest = text.strip_prefix("FOR VALUES FROM (")?;
        let (from, to) = split(rest)?;
        match (literals(from)?.as_slice(), literals(to)?.as_slice()) {
            ([Some(from)], [Some(to)]) => Some(Self::Range(from.clone(), to.clone())),
            _ => None,
        }
    }
}

/// What stands before and behind `) TO (` outside of quotes.
fn split(text: &str) -> Option<(&str, &str)> {
    let mut quoted = false;
    for (place, byte) in text.bytes().enumerate() {
        match byte {
            b'\'' => quoted = !quoted,
            b')' if !quoted => {
                return Some((
                    text.get(..place)?,
                    text.get(place..)?.strip_prefix(") TO (")?.strip_suffix(')')?,
                ));
            }
            _ => {}
        }
    }
    None
}

/// Literals between commas. `None` for what is no value, as MINVALUE is.
fn literals(text: &str) -> Option<Vec<Option<String>>> {
    let (mut all, mut rest) = (Vec::new(), text);
    loop {
        let (value, behind) = if let Some(quoted) = rest.strip_prefix('\'') {
            let (value, behind) = unquoted(quoted)?;
            (Some(value), behind)
        } else {
            let (word, behind) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
            match word {
                "NULL" => (None, behind),
                "" | "MINVALUE" | "MAXVALUE" => return None,
                _ => (Some(word.to_owned()), behind),
            }
        };
        all.push(value);
        match behind.strip_prefix(", ") {
            Some(next) => rest = next,
            None => return behind.is_empty().then_some(all),
        }
    }
}

/// The value up to its closing quote, and what follows it.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut rest) = (String::new(), text);
    loop {
        let (part, behind) = rest.split_at(rest.find('\'')?);
        value.push_str(part);
        match behind.strip_prefix("''") {
            Some(next) => {
                value.push('\'');
                rest = next;
            }
            None => return Some((value, behind.strip_prefix('\'')?)),
        }
    }
}

/// The keys whose rows a child with these bounds by a column may hold; `None` where they may be any.
pub(crate) fn keys(
    partitioning: &Partitioning,
    column: Option<&str>,
    bounds: &str,
) -> Option<Vec<PartitionKey>> {
    let dimension = partitioning.dimensions().iter().find(|d| Some(d.column()) == column)?;
    let values = match (Bounds::parse(bounds)?, dimension) {
        (Bounds::Range(from, to), Dimension::Time { calendar, .. }) => periods(calendar, &from, &to)?,
        (Bounds::Range(..), Dimension::Key { .. }) => return None,
        (Bounds::List(values), _) => {
            values.iter().map(|value| value_of(dimension, value.as_deref())).collect::<Option<_>>()?
        }
    };
    let keys = values.into_iter().map(|value| PartitionKey::of(dimension.column(), value));
    Some(keys.collect())
}

/// Whether a child with these bounds by a column holds the rows of the key, all of them and no others.
pub(crate) fn is_exactly(
    partitioning: &Partitioning,
    key: &PartitionKey,
    column: &str,
    bounds: &str,
) -> bool {
    let mut bound = key.bound();
    let (Some((bound_column, value)), None) = (bound.next(), bound.next()) else { return false };
    let dimension = partitioning.dimensions().iter().find(|d| d.column() == column && column == bound_column);
    let (Some(dimension), Some(bounds)) = (dimension, Bounds::parse(bounds)) else { return false };
    match (bounds, dimension) {
        (Bounds::Range(from, to), Dimension::Time { calendar, .. }) => spans(calendar, value, &from, &to),
        (Bounds::Range(..), Dimension::Key { .. }) => false,
        (Bounds::List(values), _) => match values.as_slice() {
            [None] => value.is_null(),
            // One date is a period of its own only where days are.
            [Some(text)] => match dimension {
                Dimension::Time { calendar, .. } => day(text)
                    .and_then(|day| Some((day, day.succ_opt()?)))
                    .is_some_and(|(day, next)| spans(calendar, value, &day.to_string(), &next.to_string())),
                Dimension::Key { .. } => value_of(dimension, Some(text)).as_ref() == Some(value),
            },
            _ => false,
        },
    }
}

/// Whether the period of a time key is exactly that range of dates or instants.
fn spans(calendar: &Calendar, value: &Value, from: &str, to: &str) -> bool {
    if let (Some(from), Some(to)) = (day(from), day(to)) {
        return *value == Value::Date(from) && calendar.step(value, 1) == Some(Value::Date(to));
    }
    match (calendar.interval(value), instant(from), instant(to)) {
        (Some(interval), Some(from), Some(to)) => (interval.start(), interval.end()) == (from, to),
        _ => false,
    }
}

/// The periods that share something with a range.
fn periods(calendar: &Calendar, from: &str, to: &str) -> Option<Vec<Value>> {
    let periods: Vec<_> = if let (Some(from), Some(to)) = (day(from), day(to)) {
        let first = calendar.key_of_date(from)?;
        let last = calendar.key_of_date(to.pred_opt()?)?;
        std::iter::successors(Some(first), |key| calendar.step(key, 1))
            .take_while(|key| *key <= last)
            .take(MOST_KEYS + 1)
            .collect()
    } else {
        calendar.keys_in(&Interval::new(instant(from)?, instant(to)?)?).take(MOST_KEYS + 1).collect()
    };
    (periods.len() <= MOST_KEYS).then_some(periods)
}

fn value_of(dimension: &Dimension, text: Option<&str>) -> Option<Value> {
    let Some(text) = text else { return Some(Value::Null) };
    match dimension {
        Dimension::Time { calendar, .. } => match day(text) {
            Some(day) => calendar.key_of_date(day),
            None => calendar.key_at(instant(text)?),
        },
        Dimension::Key { kind, .. } => Some(match kind {
            ValueKind::Text => Value::Text(text.to_owned()),
            ValueKind::Integer => Value::Integer(text.parse().ok()?),
            ValueKind::Boolean => Value::Boolean(text.parse().ok()?),
            ValueKind::Date => Value::Date(day(text)?),
            ValueKind::Timestamp => Value::Timestamp(instant(text)?),
        }),
    }
}

/// As our transactions have the server write it.
fn day(text: &str) -> Option<NaiveDate> {
    NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()
}

fn instant(text: &str) -> Option<DateTime<Utc>> {
    let text = text.strip_suffix("+00").unwrap_or(text);
    NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S%.f").ok().map(|at| at.and_utc())
}

#[cfg(test)]
mod tests;
