//! What is known of the values that rows may have.

use chrono::{Duration, NaiveDate};
use reprocess_core::domain::interval::Calendar;
use reprocess_core::domain::partition::{Dimension, PartitionKey, Partitioning};
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Slice;
use reprocess_core::domain::value::Value;

/// How many keys are written out to find whether a scope holds all of them.
const KEYS: usize = 10_000;

/// Values that rows may have, and no others.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Span {
    /// The least and the greatest; `None` where there are none but NULL.
    pub(super) values: Option<(Value, Value)>,
    /// Whether NULL may be among them.
    pub(super) null: bool,
}

impl Span {
    /// Of rows that all have the value.
    pub(super) fn one(value: Value) -> Self {
        if value.is_null() {
            return Self { values: None, null: true };
        }
        Self { values: Some((value.clone(), value)), null: false }
    }

    /// The value, where there is only one.
    pub(super) fn single(&self) -> Option<&Value> {
        match &self.values {
            None => self.null.then_some(&Value::Null),
            Some((least, most)) => (least == most && !self.null).then_some(least),
        }
    }

    /// What bounds leave of a period that all rows lie in. Where they contradict it both count: there are writers that
    /// put instants before 1970 into the period after theirs.
    pub(super) fn narrowed(self, bounds: Option<Self>) -> Self {
        let values = match (self.values, bounds.and_then(|bounds| bounds.values)) {
            (Some((first, last)), Some((least, most))) if first <= least && most <= last => {
                Some((least, most))
            }
            (Some((first, last)), Some((least, most))) => Some((first.min(least), last.max(most))),
            (values, _) => values,
        };
        Self { values, ..self }
    }

    fn may_be(&self, value: &Value) -> bool {
        match &self.values {
            _ if value.is_null() => self.null,
            None => false,
            Some((least, most)) => least <= value && value <= most,
        }
    }

    /// All values, where they can be counted up.
    fn all(&self, dimension: &Dimension) -> Option<Vec<Value>> {
        let mut all = match (&self.values, dimension) {
            (None, _) => Vec::new(),
            (Some((least, most)), _) if least == most => vec![least.clone()],
            (Some((least, most)), Dimension::Time { calendar, .. }) => periods(calendar, least, most)?,
            (Some(_), Dimension::Key { .. }) => return None,
        };
        all.extend(self.null.then_some(Value::Null));
        Some(all)
    }
}

/// The keys of periods from one to another. Also of local dates that a zone left out, since a column of dates may hold
/// them.
fn periods(calendar: &Calendar, least: &Value, most: &Value) -> Option<Vec<Value>> {
    let mut all = Vec::new();
    match (least, most) {
        (Value::Date(first), Value::Date(last)) => {
            let dates = first.iter_days().take_while(|date: &NaiveDate| date <= last);
            for key in dates.filter_map(|date| calendar.key_of_date(date)) {
                if all.last() != Some(&key) {
                    all.push(key);
                }
                if all.len() > KEYS {
                    return None;
                }
            }
        }
        (Value::Timestamp(first), Value::Timestamp(last)) => {
            let mut at = *first;
            while at <= *last {
                all.push(Value::Timestamp(at));
                at = at.checked_add_signed(Duration::hours(1)).filter(|_| all.len() <= KEYS)?;
            }
        }
        _ => return None,
    }
    Some(all)
}

/// The partitions that a file may hold rows of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reach {
    /// Of each dimension what is known; `None` is nothing.
    spans: Vec<(String, Option<Span>)>,
}

impl Reach {
    pub(super) fn new(dimensions: &Partitioning, spans: Vec<Option<Span>>) -> Self {
        let names = dimensions.dimensions().iter().map(|dimension| dimension.column().to_owned());
        Self { spans: names.zip(spans).collect() }
    }

    /// Whether a row of the partition, or of one below it where the key binds fewer dimensions, may be in the file.
    pub(crate) fn may_hold(&self, key: &PartitionKey) -> bool {
        self.spans.iter().all(|(column, span)| match (span, key.get(column)) {
            (Some(span), Some(value)) => span.may_be(value),
            _ => true,
        })
    }

    /// Whether a row of the slice may be in the file.
    pub(crate) fn may_be_in(&self, slice: &Slice) -> bool {
        match slice {
            Slice::Time(slice) => {
                let time = self.spans.iter().find(|(column, _)| *column == slice.column);
                let in_time = match time {
                    Some((_, Some(span))) => span
                        .values
                        .as_ref()
                        .is_some_and(|(least, most)| *least <= slice.last && slice.first <= *most),
                    _ => true,
                };
                in_time && self.may_hold(&slice.only)
            }
            Slice::Partitions(keys) => keys.iter().any(|key| self.may_hold(key)),
            Slice::AsOf(_) | Slice::All => true,
        }
    }

    /// Whether all partitions that the file may hold rows of belong to the scope. Errs on `false`.
    pub(crate) fn is_within(&self, scope: &Scope, dimensions: &Partitioning) -> bool {
        if scope.is_whole_table() {
            return true;
        }
        let mut keys = vec![PartitionKey::whole()];
        for (dimension, (column, span)) in dimensions.dimensions().iter().zip(&self.spans) {
            // A dimension that is left open is covered by keys of the scope that leave it open as well.
            let Some(values) = span.as_ref().and_then(|span| span.all(dimension)) else { continue };
            if keys.len().saturating_mul(values.len()) > KEYS {
                return false;
            }
            let further = |key: &PartitionKey| {
                let key = key.clone();
                values
                    .iter()
                    .map(move |value| key.clone().and(column.as_str(), value.clone()))
                    .collect::<Vec<_>>()
            };
            keys = keys.iter().flat_map(further).collect();
        }
        keys.iter().all(|key| scope.covers(key))
    }
}
