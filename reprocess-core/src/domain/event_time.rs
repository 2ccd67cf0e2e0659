//! Events of a stream in time, the same for a consumer that is live and for a replay.
//!
//! An event belongs to the interval in which it happened. Whether it counts is told by the event alone: the log must have
//! taken it no later than the lateness after it happened, and no earlier than the lead before. So it does not matter who
//! reads it, when, and after which others; a watermark, which depends on the order in which events are read, decides
//! nothing. What happened in an interval lies in the log between two times that follow from these bounds, and the interval
//! is complete once the log is past the second.

use std::collections::BTreeMap;

use arrow_array::{BooleanArray, RecordBatch};
use arrow_select::filter::filter_record_batch;
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use super::interval::{Calendar, Interval};
use super::rows::{Cell, CellKind, Column};
use super::value::Value;
use crate::error::{Error, Result};

/// When events happened, when the log took them, and how far the two may be apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EventTime {
    /// Column with the instant at which an event happened; never counted where it is NULL.
    pub happened: String,
    /// Column with the instant at which the log took it.
    pub logged: String,
    /// How long after it happened an event counts, in milliseconds.
    pub lateness_ms: u32,
    /// How far ahead of the log's clock that of an event may be, in milliseconds.
    pub lead_ms: u32,
}

/// Events that do not count, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LeftOut {
    /// The log took them too long after they happened.
    pub late: u64,
    /// They happened too long after the log took them.
    pub ahead: u64,
    /// One of the two instants is NULL.
    pub without_time: u64,
}

impl EventTime {
    /// Events that count for an hour after they happened, by clocks that differ by no more than a minute.
    pub fn new(happened: impl Into<String>, logged: impl Into<String>) -> Self {
        Self { happened: happened.into(), logged: logged.into(), lateness_ms: 3_600_000, lead_ms: 60_000 }
    }

    /// Sets how long after it happened an event counts.
    #[must_use]
    pub fn with_lateness_ms(mut self, ms: u32) -> Self {
        self.lateness_ms = ms;
        self
    }

    /// Sets how far ahead of the log's clock that of an event may be.
    #[must_use]
    pub fn with_lead_ms(mut self, ms: u32) -> Self {
        self.lead_ms = ms;
        self
    }

    /// When the log took the events that happened in an interval and count: not before its start, and before its end.
    pub fn logged_in(&self, interval: &Interval) -> Interval {
        let start = interval.start().checked_sub_signed(self.lead());
        let start = start.unwrap_or(DateTime::<Utc>::MIN_UTC);
        Interval::new(start, self.complete_at(interval)).unwrap_or(*interval)
    }

    /// What the log's time must have reached for the interval to be complete.
    pub fn complete_at(&self, interval: &Interval) -> DateTime<Utc> {
        interval.end().checked_add_signed(self.lateness()).unwrap_or(DateTime::<Utc>::MAX_UTC)
    }

    /// The rows of a batch that happened in the interval and count. Those that happened in it and do not count are added to
    /// `left_out`, and so are those without a time.
    pub fn select(
        &self,
        batch: &RecordBatch,
        interval: &Interval,
        left_out: &mut LeftOut,
    ) -> Result<RecordBatch> {
        let times = Times::of(self, batch)?;
        let bounds = (nanoseconds(interval.start()), nanoseconds(interval.end()));
        let wanted = |row| match times.counted(row) {
            Counted::Yes(happened) => bounds.0 <= happened && happened < bounds.1,
            Counted::No(happened, why) => {
                if happened.is_none_or(|happened| bounds.0 <= happened && happened < bounds.1) {
                    left_out.add(why);
                }
                false
            }
        };
        keep(batch, (0..batch.num_rows()).map(wanted).collect())
    }

    fn lateness(&self) -> TimeDelta {
        TimeDelta::milliseconds(self.lateness_ms.into())
    }

    fn lead(&self) -> TimeDelta {
        TimeDelta::milliseconds(self.lead_ms.into())
    }
}

#[derive(Clone, Copy, Debug)]
enum Why {
    Late,
    Ahead,
    WithoutTime,
}

impl LeftOut {
    fn add(&mut self, why: Why) {
        let count = match why {
            Why::Late => &mut self.late,
            Why::Ahead => &mut self.ahead,
            Why::WithoutTime => &mut self.without_time,
        };
        *count += 1;
    }
}

/// Whether an event counts, and when it happened, in nanoseconds.
#[derive(Clone, Copy, Debug)]
enum Counted {
    Yes(i128),
    No(Option<i128>, Why),
}

/// The two times of each row.
struct Times {
    happened: Column,
    logged: Column,
    lateness_ns: i128,
    lead_ns: i128,
}

impl Times {
    fn of(event_time: &EventTime, batch: &RecordBatch) -> Result<Self> {
        let column = |name: &str| {
            let array = batch.column_by_name(name).ok_or_else(|| {
                Error::invalid(format!("the events have no column `{name}` to find their time by"))
            })?;
            let column = Column::new(name, array)?;
            match column.kind() {
                CellKind::Timestamp => Ok(column),
                _ => Err(Error::invalid(format!("the column `{name}` of the events holds no instants"))),
            }
        };
        Ok(Self {
            happened: column(&event_time.happened)?,
            logged: column(&event_time.logged)?,
            lateness_ns: i128::from(event_time.lateness_ms) * 1_000_000,
            lead_ns: i128::from(event_time.lead_ms) * 1_000_000,
        })
    }

    fn counted(&self, row: usize) -> Counted {
        let (Cell::Timestamp(happened), Cell::Timestamp(logged)) =
            (self.happened.cell(row), self.logged.cell(row))
        else {
            return Counted::No(None, Why::WithoutTime);
        };
        match logged - happened {
            late if late > self.lateness_ns => Counted::No(Some(happened), Why::Late),
            ahead if -ahead > self.lead_ns => Counted::No(Some(happened), Why::Ahead),
            _ => Counted::Yes(happened),
        }
    }
}

fn nanoseconds(instant: DateTime<Utc>) -> i128 {
    i128::from(instant.timestamp()) * 1_000_000_000 + i128::from(instant.timestamp_subsec_nanos())
}

fn keep(batch: &RecordBatch, rows: Vec<bool>) -> Result<RecordBatch> {
    filter_record_batch(batch, &BooleanArray::from(rows))
        .map_err(|e| Error::internal("events cannot be divided").with_source(e))
}

/// What a live consumer has read of intervals that are not complete yet. It gives each interval whole, and just what a
/// replay of the interval reads; duplicates are for [`deduplicate`](super::determinism::deduplicate), in both.
///
/// It holds the events of open intervals in memory: as much as comes in the longest interval and the lateness. A consumer
/// that was stopped reads again from where [`reads_from`](Self::reads_from) said, and is told with
/// [`with_given`](Self::with_given) what it has given before.
///
/// ```
/// # use std::sync::Arc;
/// # use arrow_array::{ArrayRef, RecordBatch, TimestampMillisecondArray};
/// # use reprocess_core::domain::event_time::{EventTime, OpenIntervals};
/// # use reprocess_core::domain::interval::{Calendar, Grain};
/// let time = EventTime::new("at", "logged").with_lateness_ms(60_000);
/// let mut open = OpenIntervals::new(time, Calendar::new(Grain::Hour, chrono_tz::UTC));
/// // Happened at 0:59:50 and at 1:00:10.
/// let at: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![3_590_000, 3_610_000]));
/// let logged: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![3_615_000, 3_615_000]));
/// open.add(&RecordBatch::try_from_iter([("at", at), ("logged", logged)])?)?;
/// let minute = |n| chrono::DateTime::UNIX_EPOCH + chrono::TimeDelta::minutes(n);
/// assert!(open.complete(minute(60)).is_empty());
/// assert_eq!(open.complete(minute(61)).len(), 1); // the first hour
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct OpenIntervals {
    event_time: EventTime,
    calendar: Calendar,
    open: BTreeMap<Value, Vec<RecordBatch>>,
    /// What was complete at this time of the log has been given before.
    given_up_to: Option<DateTime<Utc>>,
    /// Up to where the log's time is known to have come.
    logged_up_to: Option<DateTime<Utc>>,
    left_out: LeftOut,
}

impl OpenIntervals {
    /// Nothing has been read yet.
    pub fn new(event_time: EventTime, calendar: Calendar) -> Self {
        Self {
            event_time,
            calendar,
            open: BTreeMap::new(),
            given_up_to: None,
            logged_up_to: None,
            left_out: LeftOut::default(),
        }
    }

    /// Passes over the events of intervals that were complete at a time of the log, since a consumer before this one has
    /// given them.
    #[must_use]
    pub fn with_given(mut self, logged_up_to: DateTime<Utc>) -> Self {
        self.given_up_to = Some(logged_up_to);
        self
    }

    /// Adds events, in whatever order.
    ///
    /// # Errors
    /// One of an interval that was given as complete: the log had not come as far as was said, or its times do not grow.
    pub fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let times = Times::of(&self.event_time, batch)?;
        let mut rows = BTreeMap::<Value, Vec<bool>>::new();
        for row in 0..batch.num_rows() {
            match times.counted(row) {
                Counted::No(_, why) => self.left_out.add(why),
                Counted::Yes(happened) => {
                    let key = instant(happened).and_then(|at| self.calendar.key_at(at)).ok_or_else(|| {
                        Error::invalid("an event happened at an instant that no calendar has")
                    })?;
                    rows.entry(key).or_insert_with(|| vec![false; batch.num_rows()])[row] = true;
                }
            }
        }
        rows.retain(|key, _| !self.is_complete(key, self.given_up_to));
        if let Some(key) = rows.keys().find(|key| self.is_complete(key, self.logged_up_to)) {
            return Err(Error::invalid(format!(
                "an event of {} {key} was read after the interval was complete",
                self.calendar.grain
            ))
            .with_advice("the times at which the log takes events must not fall; read all its parts up to the time that is told"));
        }
        for (key, rows) in rows {
            self.open.entry(key).or_default().push(keep(batch, rows)?);
        }
        Ok(())
    }

    /// Gives the intervals that are complete now, oldest first, with their events: every part of the log has been read up to
    /// this time of the log. Intervals without events are not among them.
    pub fn complete(&mut self, logged_up_to: DateTime<Utc>) -> Vec<(Interval, Vec<RecordBatch>)> {
        self.logged_up_to = self.logged_up_to.max(Some(logged_up_to));
        let (closed, open) = std::mem::take(&mut self.open)
            .into_iter()
            .partition(|(key, _)| self.is_complete(key, self.logged_up_to));
        self.open = open;
        let closed: BTreeMap<_, _> = closed;
        closed
            .into_iter()
            .filter_map(|(key, batches)| Some((self.calendar.interval(&key)?, batches)))
            .collect()
    }

    /// From which time of the log a consumer reads again that was stopped now: nothing of an open interval lies before. `None`
    /// where no interval is open.
    pub fn reads_from(&self) -> Option<DateTime<Utc>> {
        let oldest = self.open.keys().next()?;
        Some(self.event_time.logged_in(&self.calendar.interval(oldest)?).start())
    }

    /// Events that did not count so far.
    pub fn left_out(&self) -> LeftOut {
        self.left_out
    }

    fn is_complete(&self, key: &Value, logged_up_to: Option<DateTime<Utc>>) -> bool {
        let complete_at = self.calendar.interval(key).map(|interval| self.event_time.complete_at(&interval));
        logged_up_to.zip(complete_at).is_some_and(|(reached, complete_at)| complete_at <= reached)
    }
}

fn instant(nanoseconds: i128) -> Option<DateTime<Utc>> {
    let seconds = i64::try_from(nanoseconds.div_euclid(1_000_000_000)).ok()?;
    DateTime::from_timestamp(seconds, u32::try_from(nanoseconds.rem_euclid(1_000_000_000)).ok()?)
}

#[cfg(test)]
#[path = "event_time_tests.rs"]
mod tests;
