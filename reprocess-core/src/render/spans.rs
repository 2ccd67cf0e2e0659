//! Many partitions in few words: neighbours in time are told as one range.

use chrono::{Datelike, Duration, Months, NaiveDate};

use super::text::count;
use crate::domain::interval::Interval;
use crate::domain::partition::PartitionKey;
use crate::domain::value::Value;

/// Partitions that follow each other in time.
#[derive(Clone, Debug)]
pub(super) struct Span {
    first: PartitionKey,
    last: PartitionKey,
    count: usize,
    interval: Option<Interval>,
    step: Option<Step>,
}

impl Span {
    /// One partition of which only the key is known.
    pub(super) fn of(key: &PartitionKey) -> Self {
        Self { first: key.clone(), last: key.clone(), count: 1, interval: None, step: None }
    }

    /// The units of a task, oldest first, with the time they take up.
    pub(super) fn of_units(units: &[PartitionKey], interval: Option<Interval>) -> Option<Self> {
        let (first, last) = (units.first()?.clone(), units.last()?.clone());
        Some(Self { first, last, count: units.len(), interval, step: None })
    }

    /// For example `21 days, day=2013-03-04 … day=2013-03-24`.
    pub(super) fn text(&self) -> String {
        if self.count == 1 {
            return key(&self.first);
        }
        format!("{}, {} … {}", self.counted(), self.first, self.last)
    }

    fn counted(&self) -> String {
        match (self.interval, self.step) {
            (Some(interval), _) => count(self.count, noun(&interval, self.count)),
            (None, Some(Step::Hour)) => count(self.count, "hour"),
            (None, Some(Step::Day)) => count(self.count, "day"),
            // Days may be named that lie a week apart, so the length of the partitions is not known here.
            (None, Some(step)) => format!("{} {} apart", count(self.count, "partition"), step.name()),
            (None, None) => count(self.count, "partition"),
        }
    }

    fn joins(&self, next: &Self, finest: Option<Step>) -> bool {
        if other_columns(&self.last) != other_columns(&next.first) {
            return false;
        }
        match (self.interval, next.interval) {
            (Some(a), Some(b)) => a.end() == b.start() && noun(&a, self.count) == noun(&b, next.count),
            (None, None) => finest.is_some() && Step::between(time(&self.last), time(&next.first)) == finest,
            _ => false,
        }
    }

    fn join(&mut self, next: Self, finest: Option<Step>) {
        self.last = next.last;
        self.count += next.count;
        self.interval = self.interval.zip(next.interval).map(|(a, b)| a.hull(&b));
        self.step = finest;
    }
}

/// The text of a key; the one that binds nothing is the whole table.
pub(super) fn key(key: &PartitionKey) -> String {
    match key.is_whole() {
        true => "the whole table".to_owned(),
        false => key.to_string(),
    }
}

/// Puts neighbours together, in order.
pub(super) fn join(mut parts: Vec<Span>) -> Vec<Span> {
    parts.sort_by(|a, b| {
        let others = other_columns(&a.first).cmp(&other_columns(&b.first));
        others.then_with(|| (a.interval, time(&a.first)).cmp(&(b.interval, time(&b.first))))
    });
    let steps = parts.windows(2).filter(|w| other_columns(&w[0].last) == other_columns(&w[1].first));
    let finest = steps.filter_map(|w| Step::between(time(&w[0].last), time(&w[1].first))).min();
    let mut joined: Vec<Span> = Vec::new();
    for part in parts {
        match joined.last_mut() {
            Some(last) if last.joins(&part, finest) => last.join(part, finest),
            _ => joined.push(part),
        }
    }
    joined
}

/// The ranges of keys.
pub(super) fn of_keys<'a>(keys: impl IntoIterator<Item = &'a PartitionKey>) -> Vec<Span> {
    join(keys.into_iter().map(Span::of).collect())
}

/// The ranges of keys in one line: at the most `shown` of them.
pub(super) fn line<'a>(keys: impl IntoIterator<Item = &'a PartitionKey>, shown: usize) -> String {
    let spans = of_keys(keys);
    let mut text: Vec<_> = spans.iter().take(shown).map(Span::text).collect();
    match spans.len().saturating_sub(shown) {
        0 => {}
        more => text.push(format!("… and {more} more")),
    }
    text.join("; ")
}

fn time(key: &PartitionKey) -> Option<&Value> {
    key.bound().map(|(_, value)| value).find(|v| matches!(v, Value::Date(_) | Value::Timestamp(_)))
}

/// What a key binds beside its time.
fn other_columns(key: &PartitionKey) -> Vec<(&str, &Value)> {
    let of_time = time(key);
    key.bound().filter(|(_, value)| of_time.is_none_or(|time| !std::ptr::eq(time, *value))).collect()
}

/// How far two keys lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Hour,
    Day,
    Week,
    Month,
    Quarter,
    Year,
}

impl Step {
    fn between(a: Option<&Value>, b: Option<&Value>) -> Option<Self> {
        match (a?, b?) {
            (Value::Timestamp(a), Value::Timestamp(b)) if *b - *a == Duration::hours(1) => Some(Self::Hour),
            (Value::Date(a), Value::Date(b)) => Self::between_dates(*a, *b),
            _ => None,
        }
    }

    fn between_dates(a: NaiveDate, b: NaiveDate) -> Option<Self> {
        let months = |n| a.day() == 1 && a.checked_add_months(Months::new(n)) == Some(b);
        match (b - a).num_days() {
            1 => Some(Self::Day),
            7 => Some(Self::Week),
            _ if months(1) => Some(Self::Month),
            _ if months(3) => Some(Self::Quarter),
            _ if months(12) => Some(Self::Year),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Hour => "an hour",
            Self::Day => "a day",
            Self::Week => "a week",
            Self::Month => "a month",
            Self::Quarter => "a quarter",
            Self::Year => "a year",
        }
    }
}

/// What so many partitions are that together last so long. Clock changes make days and weeks an hour longer or shorter.
fn noun(interval: &Interval, partitions: usize) -> &'static str {
    let hours = (interval.end() - interval.start()).num_hours();
    match hours / i64::try_from(partitions).unwrap_or(i64::MAX).max(1) {
        1 => "hour",
        22..=26 => "day",
        166..=170 => "week",
        660..=750 => "month",
        2150..=2220 => "quarter",
        8750..=8790 => "year",
        _ => "partition",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(text: &str) -> PartitionKey {
        PartitionKey::of("day", Value::Date(text.parse().unwrap()))
    }

    fn check(keys: &[PartitionKey], expected: &[&str]) {
        let texts: Vec<_> = of_keys(keys).iter().map(Span::text).collect();
        assert_eq!(texts, expected);
    }

    #[test]
    fn neighbours_are_one_range_and_gaps_stay_visible() {
        check(
            &[day("2013-03-06"), day("2013-03-04"), day("2013-03-05"), day("2013-03-08")],
            &["3 days, day=2013-03-04 … day=2013-03-06", "day=2013-03-08"],
        );
        check(
            &[day("2013-03-01"), day("2013-03-08"), day("2013-03-09")],
            &["day=2013-03-01", "2 days, day=2013-03-08 … day=2013-03-09"],
        );
        check(
            &[day("2013-01-01"), day("2013-02-01"), day("2013-03-01")],
            &["3 partitions a month apart, day=2013-01-01 … day=2013-03-01"],
        );
        check(&[PartitionKey::whole()], &["the whole table"]);
        check(&[], &[]);
    }

    #[test]
    fn partitions_of_other_countries_are_no_neighbours() {
        let of = |d: &str, c: &str| day(d).and("country", c);
        check(
            &[of("2013-03-04", "FR"), of("2013-03-04", "DE"), of("2013-03-05", "DE")],
            &["2 days, day=2013-03-04/country=DE … day=2013-03-05/country=DE", "day=2013-03-04/country=FR"],
        );
    }

    #[test]
    fn a_day_without_its_hour_is_a_day() {
        let zone = chrono_tz::America::New_York;
        let calendar = crate::domain::interval::Calendar::new(crate::domain::interval::Grain::Day, zone);
        let keys: Vec<_> = (8..=11).map(|d| day(&format!("2013-03-{d:02}"))).collect();
        let of = |k: &PartitionKey| {
            let interval = calendar.interval(k.get("day")?);
            Span::of_units(std::slice::from_ref(k), interval)
        };
        let spans = join(keys.iter().filter_map(of).collect());
        assert_eq!(spans.len(), 1);
        assert_eq!(spans[0].text(), "4 days, day=2013-03-08 … day=2013-03-11");
    }
}
