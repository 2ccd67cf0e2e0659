//! Half-open intervals of instants, grains, and the calendar that joins them in a zone.
//!
//! Hour partitions are the hours of UTC, so the repeated hour of autumn is two partitions and the missing hour
//! of spring is none. Day and coarser partitions are local dates: a day may last 23, 24 or 25 hours, or not
//! exist at all where a zone crossed the date line.

use std::fmt;

use chrono::{DateTime, Datelike, Days, Duration, Months, NaiveDate, NaiveDateTime, TimeZone, Utc};
use chrono_tz::Tz;
use serde::{Deserialize, Serialize};

use super::value::Value;

/// A non-empty half-open interval `[start, end)` of instants in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Bounds", into = "Bounds")]
pub struct Interval {
    start: DateTime<Utc>,
    end: DateTime<Utc>,
}

impl Interval {
    /// `None` where `start` is not before `end`: intervals of no length do not exist.
    pub fn new(start: DateTime<Utc>, end: DateTime<Utc>) -> Option<Self> {
        (start < end).then_some(Self { start, end })
    }

    /// First instant inside.
    pub fn start(&self) -> DateTime<Utc> {
        self.start
    }

    /// First instant after the interval.
    pub fn end(&self) -> DateTime<Utc> {
        self.end
    }

    /// Whether the instant lies inside.
    pub fn contains(&self, instant: DateTime<Utc>) -> bool {
        self.start <= instant && instant < self.end
    }

    /// Whether the two share an instant.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The shortest interval that holds both.
    pub fn hull(&self, other: &Self) -> Self {
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", Value::Timestamp(self.start), Value::Timestamp(self.end))
    }
}

#[derive(Serialize, Deserialize)]
struct Bounds {
    start: DateTime<Utc>,
    end: DateTime<Utc>,
}

impl From<Interval> for Bounds {
    fn from(i: Interval) -> Self {
        Self { start: i.start, end: i.end }
    }
}

impl TryFrom<Bounds> for Interval {
    type Error = &'static str;

    fn try_from(b: Bounds) -> Result<Self, Self::Error> {
        Self::new(b.start, b.end).ok_or("an interval must start before it ends")
    }
}

/// The length of a time partition. Weeks begin on Monday (ISO 8601).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grain {
    /// An hour of UTC.
    Hour,
    /// A local day.
    Day,
    /// A local week, from Monday.
    Week,
    /// A local month.
    Month,
    /// A local quarter.
    Quarter,
    /// A local year.
    Year,
}

impl fmt::Display for Grain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Quarter => "quarter",
            Self::Year => "year",
        })
    }
}

/// A grain in a zone: what turns instants into time keys and time keys into intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Calendar {
    /// Length of one period.
    pub grain: Grain,
    /// Zone of the local dates; hours do not depend on it.
    pub zone: Tz,
}

impl Calendar {
    /// A grain in a zone.
    pub fn new(grain: Grain, zone: Tz) -> Self {
        Self { grain, zone }
    }

    /// The key of the period that holds the instant: an instant for hours, else the local date on which the
    /// period begins. `None` only outside the years that can be represented.
    pub fn key_at(&self, instant: DateTime<Utc>) -> Option<Value> {
        if self.grain == Grain::Hour {
            return start_of_hour(instant).map(Value::Timestamp);
        }
        let local = instant.with_timezone(&self.zone).date_naive();
        // The local date can run ahead of the period's interval for the minutes that a clock change repeats
        // across midnight, and lag behind it nowhere; the interval decides.
        let first = floor(self.grain, local)?;
        [Some(first), next(self.grain, first), previous(self.grain, first)]
            .into_iter()
            .flatten()
            .find(|d| self.interval_from(*d).is_some_and(|i| i.contains(instant)))
            .map(Value::Date)
    }

    /// The key of the period that a local date belongs to; `None` for hours, which a date does not determine.
    pub fn key_of_date(&self, date: NaiveDate) -> Option<Value> {
        if self.grain == Grain::Hour {
            return None;
        }
        floor(self.grain, date).map(Value::Date)
    }

    /// The interval of a time key. `None` for NULL, for a value that does not begin a period, and for a period
    /// that does not exist in the zone.
    pub fn interval(&self, key: &Value) -> Option<Interval> {
        match (self.grain, key) {
            (Grain::Hour, Value::Timestamp(t)) if start_of_hour(*t) == Some(*t) => {
                Interval::new(*t, t.checked_add_signed(Duration::hours(1))?)
            }
            (Grain::Hour, _) => None,
            (grain, Value::Date(d)) if floor(grain, *d) == Some(*d) => self.interval_from(*d),
            _ => None,
        }
    }

    /// The keys of all periods that share an instant with the interval, oldest first.
    pub fn keys_in(&self, interval: &Interval) -> Keys {
        Keys { calendar: *self, next: self.key_at(interval.start), end: interval.end }
    }

    /// The key `n` existing periods after (or before, where negative) the given one; `None` where `key` is no
    /// key of this calendar.
    pub fn step(&self, key: &Value, n: i64) -> Option<Value> {
        let own = self.interval(key)?;
        if let (Grain::Hour, Value::Timestamp(t)) = (self.grain, key) {
            return t.checked_add_signed(Duration::try_hours(n)?).map(Value::Timestamp);
        }
        let Value::Date(mut date) = *key else { return None };
        let mut left = n.unsigned_abs();
        // Two dates that begin at the same instant have a day between them that does not exist.
        let mut start = if n > 0 { own.end } else { own.start };
        while left > 0 {
            let edge = match n > 0 {
                true => {
                    date = next(self.grain, date)?;
                    next(self.grain, date)?
                }
                false => {
                    date = previous(self.grain, date)?;
                    date
                }
            };
            let other = start_of_date(self.zone, edge)?;
            left -= u64::from(other != start);
            start = other;
        }
        Some(Value::Date(date))
    }

    fn interval_from(&self, first: NaiveDate) -> Option<Interval> {
        Interval::new(start_of_date(self.zone, first)?, start_of_date(self.zone, next(self.grain, first)?)?)
    }
}

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.grain {
            Grain::Hour => f.write_str("hour"),
            grain => write!(f, "{grain} in {}", self.zone),
        }
    }
}

/// Iterator over time keys, oldest first; see [`Calendar::keys_in`].
#[derive(Clone, Debug)]
pub struct Keys {
    calendar: Calendar,
    next: Option<Value>,
    end: DateTime<Utc>,
}

impl Iterator for Keys {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        let key = self.next.take()?;
        let interval = self.calendar.interval(&key)?;
        if interval.start >= self.end {
            return None;
        }
        // Most ranges are one period long, and the search for the period after it costs as much as for its end.
        if interval.end < self.end {
            self.next = self.calendar.step(&key, 1);
        }
        Some(key)
    }
}

fn start_of_hour(t: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let seconds = t.timestamp();
    DateTime::from_timestamp(seconds - seconds.rem_euclid(3600), 0)
}

fn floor(grain: Grain, date: NaiveDate) -> Option<NaiveDate> {
    match grain {
        Grain::Hour => None,
        Grain::Day => Some(date),
        Grain::Week => date.checked_sub_days(Days::new(u64::from(date.weekday().num_days_from_monday()))),
        Grain::Month => date.with_day(1),
        Grain::Quarter => NaiveDate::from_ymd_opt(date.year(), date.month0() / 3 * 3 + 1, 1),
        Grain::Year => NaiveDate::from_ymd_opt(date.year(), 1, 1),
    }
}

fn next(grain: Grain, first: NaiveDate) -> Option<NaiveDate> {
    match grain {
        Grain::Hour => None,
        Grain::Day => first.succ_opt(),
        Grain::Week => first.checked_add_days(Days::new(7)),
        Grain::Month => first.checked_add_months(Months::new(1)),
        Grain::Quarter => first.checked_add_months(Months::new(3)),
        Grain::Year => first.checked_add_months(Months::new(12)),
    }
}

fn previous(grain: Grain, first: NaiveDate) -> Option<NaiveDate> {
    match grain {
        Grain::Hour => None,
        Grain::Day => first.pred_opt(),
        Grain::Week => first.checked_sub_days(Days::new(7)),
        Grain::Month => first.checked_sub_months(Months::new(1)),
        Grain::Quarter => first.checked_sub_months(Months::new(3)),
        Grain::Year => first.checked_sub_months(Months::new(12)),
    }
}

/// The first instant of a local date, or of the first later date that exists.
fn start_of_date(zone: Tz, date: NaiveDate) -> Option<DateTime<Utc>> {
    let midnight = date.and_hms_opt(0, 0, 0)?;
    match zone.from_local_datetime(&midnight).earliest() {
        Some(t) => Some(t.to_utc()),
        None => end_of_gap(zone, midnight),
    }
}

/// The instant at which clocks jumped over `local`: the first whose local time is not before it.
fn end_of_gap(zone: Tz, local: NaiveDateTime) -> Option<DateTime<Utc>> {
    let guess = local.and_utc();
    let mut before = guess.checked_sub_signed(Duration::hours(26))?.timestamp();
    let mut at = guess.checked_add_signed(Duration::hours(26))?.timestamp();
    while at - before > 1 {
        let middle = before.midpoint(at);
        let reached = zone.from_utc_datetime(&DateTime::from_timestamp(middle, 0)?.naive_utc()).naive_local();
        if reached >= local {
            at = middle;
        } else {
            before = middle;
        }
    }
    DateTime::from_timestamp(at, 0)
}

#[cfg(test)]
#[path = "interval_tests.rs"]
mod tests;
