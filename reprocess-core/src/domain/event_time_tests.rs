use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampMillisecondType};
use arrow_array::{ArrayRef, Int64Array, TimestampMillisecondArray};
use proptest::prelude::*;

use super::*;
use crate::domain::determinism::{Direction, deduplicate};
use crate::domain::interval::Grain;

/// Happened, logged, id, number in the log. Minutes from midnight; `None` for NULL.
type Event = (Option<i64>, i64, i64, i64);

const LATENESS: i64 = 30;
const LEAD: i64 = 5;

fn event_time() -> EventTime {
    EventTime::new("at", "logged").with_lateness_ms(30 * 60_000).with_lead_ms(5 * 60_000)
}

fn hourly() -> Calendar {
    Calendar::new(Grain::Hour, chrono_tz::UTC)
}

fn at(minute: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::minutes(minute)
}

fn minutes(start: i64, end: i64) -> Interval {
    Interval::new(at(start), at(end)).unwrap()
}

fn batch(events: &[Event]) -> RecordBatch {
    let ms = |minute: i64| minute * 60_000;
    let happened = events.iter().map(|e| e.0.map(ms)).collect::<TimestampMillisecondArray>();
    let logged = events.iter().map(|e| Some(ms(e.1))).collect::<TimestampMillisecondArray>();
    let number = |of: fn(&Event) -> i64| events.iter().map(of).collect::<Vec<_>>();
    let columns: [(&str, ArrayRef); 4] = [
        ("at", Arc::new(happened)),
        ("logged", Arc::new(logged)),
        ("id", Arc::new(Int64Array::from(number(|e| e.2)))),
        ("offset", Arc::new(Int64Array::from(number(|e| e.3)))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
}

fn ids(batches: &[RecordBatch]) -> Vec<i64> {
    let ids = batches.iter().flat_map(|b| b.column(2).as_primitive::<Int64Type>().values().to_vec());
    let mut ids: Vec<_> = ids.collect();
    ids.sort_unstable();
    ids
}

#[test]
fn an_event_counts_within_its_lateness_and_its_lead() {
    let events = [
        (Some(10), 10, 1, 0),
        (Some(10), 40, 2, 1),
        (Some(10), 41, 3, 2),
        (Some(10), 5, 4, 3),
        (Some(10), 4, 5, 4),
        (None, 10, 6, 5),
        (Some(60), 60, 7, 6),
        (Some(0), 0, 8, 7),
        // Too late, but of another hour.
        (Some(70), 200, 9, 8),
    ];
    let mut left_out = LeftOut::default();
    let rows = event_time().select(&batch(&events), &minutes(0, 60), &mut left_out).unwrap();
    assert_eq!(ids(&[rows]), [1, 2, 4, 8]);
    assert_eq!(left_out, LeftOut { late: 1, ahead: 1, without_time: 1 });
}

#[test]
fn the_span_of_the_log_follows_from_the_bounds() {
    let interval = minutes(60, 120);
    assert_eq!(event_time().logged_in(&interval), minutes(55, 150));
    assert_eq!(event_time().complete_at(&interval), at(150));
}

#[test]
fn what_has_no_time_is_refused_by_name() {
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let rows = RecordBatch::try_from_iter([("at", column)]).unwrap();
    let error = event_time().select(&rows, &minutes(0, 60), &mut LeftOut::default()).unwrap_err();
    assert_eq!(error.to_string(), "the column `at` of the events holds no instants");
    let other = EventTime::new("when", "logged").select(&rows, &minutes(0, 60), &mut LeftOut::default());
    assert!(other.unwrap_err().to_string().contains("no column `when`"));
}

#[test]
fn an_interval_is_given_once_it_is_complete_and_no_event_may_follow() {
    let mut open = OpenIntervals::new(event_time(), hourly());
    open.add(&batch(&[(Some(50), 52, 1, 0), (Some(65), 66, 2, 1)])).unwrap();
    assert_eq!(open.reads_from(), Some(at(-5)));
    assert!(open.complete(at(89)).is_empty());
    open.add(&batch(&[(Some(59), 89, 3, 2)])).unwrap();
    let complete = open.complete(at(90));
    assert_eq!(complete.len(), 1);
    assert_eq!((complete[0].0, ids(&complete[0].1)), (minutes(0, 60), vec![1, 3]));
    assert_eq!(open.reads_from(), Some(at(55)));
    // Told a time before: what was complete stays so.
    assert!(open.complete(at(10)).is_empty());
    let error = open.add(&batch(&[(Some(58), 60, 4, 3)])).unwrap_err();
    assert!(error.to_string().starts_with("an event of hour 1970-01-01T00:00:00Z was read after"), "{error}");
    open.add(&batch(&[(Some(58), 100, 5, 4)])).unwrap();
    assert_eq!(open.left_out(), LeftOut { late: 1, ..LeftOut::default() });
    assert_eq!(ids(&open.complete(at(1000))[0].1), [2]);
    assert_eq!(open.reads_from(), None);
}

/// Some of these events twice, in one of three parts of a log each, whose times grow.
fn log() -> impl Strategy<Value = Vec<Vec<Event>>> {
    let event = (0..400_i64, -8..60_i64, 0..60_i64, 0..3_usize);
    prop::collection::vec(event, 0..80).prop_map(|events| {
        let mut parts = vec![Vec::new(); 3];
        for (happened, later, id, part) in events {
            parts[part].push((Some(happened), happened + later, id, 0));
        }
        for (n, part) in parts.iter_mut().enumerate() {
            part.sort_by_key(|event: &Event| event.1);
            for (place, event) in part.iter_mut().enumerate() {
                event.3 = i64::try_from(place * 3 + n).unwrap();
            }
        }
        parts
    })
}

/// The first event of each id in an hour, by offset.
fn first_of_each(batches: &[RecordBatch]) -> Vec<(i64, i64)> {
    let kept =
        deduplicate(batches, &["id".to_owned()], &[("offset".to_owned(), Direction::Ascending)]).unwrap();
    let mut rows: Vec<_> = kept
        .iter()
        .flat_map(|b| {
            let (ids, offsets) =
                (b.column(2).as_primitive::<Int64Type>(), b.column(3).as_primitive::<Int64Type>());
            ids.values().iter().copied().zip(offsets.values().iter().copied()).collect::<Vec<_>>()
        })
        .collect();
    rows.sort_unstable();
    rows
}

/// What a consumer gives that reads some of each part by turns, as the numbers say.
fn live(log: &[Vec<Event>], turns: &[(usize, usize)]) -> BTreeMap<DateTime<Utc>, Vec<(i64, i64)>> {
    let mut open = OpenIntervals::new(event_time(), hourly());
    let mut read = vec![0; log.len()];
    let mut given = BTreeMap::new();
    let mut take = |complete: Vec<(Interval, Vec<RecordBatch>)>| {
        for (interval, batches) in complete {
            assert!(given.insert(interval.start(), first_of_each(&batches)).is_none(), "given twice");
        }
    };
    for (part, some) in turns {
        let part = part % log.len();
        let end = (read[part] + some).min(log[part].len());
        open.add(&batch(&log[part][read[part]..end])).unwrap();
        read[part] = end;
        // Each part has been read up to the time of its next event, which may be that of the last one.
        let reached =
            log.iter().zip(&read).filter_map(|(part, read)| part.get(*read)).map(|event| event.1).min();
        take(open.complete(at(reached.unwrap_or(10_000))));
    }
    for (part, read) in log.iter().zip(&read) {
        open.add(&batch(&part[*read..])).unwrap();
    }
    take(open.complete(at(10_000)));
    given
}

/// What a replay gives: for each hour the part of the log that may hold its events.
fn replayed(log: &[Vec<Event>]) -> BTreeMap<DateTime<Utc>, Vec<(i64, i64)>> {
    let mut given = BTreeMap::new();
    for hour in 0..8 {
        let interval = minutes(hour * 60, hour * 60 + 60);
        let span = event_time().logged_in(&interval);
        let mut rows = Vec::new();
        for part in log {
            let bounded: Vec<_> = part.iter().filter(|event| span.contains(at(event.1))).copied().collect();
            rows.push(event_time().select(&batch(&bounded), &interval, &mut LeftOut::default()).unwrap());
        }
        let rows = first_of_each(&rows);
        if !rows.is_empty() {
            given.insert(interval.start(), rows);
        }
    }
    given
}

/// The same by a rule for each event, without any span.
fn expected(log: &[Vec<Event>]) -> BTreeMap<DateTime<Utc>, Vec<(i64, i64)>> {
    let mut hours = BTreeMap::<DateTime<Utc>, BTreeMap<i64, i64>>::new();
    for (happened, logged, id, offset) in log.iter().flatten() {
        let happened = happened.unwrap();
        if logged - happened > LATENESS || happened - logged > LEAD {
            continue;
        }
        let first = hours.entry(at(happened / 60 * 60)).or_default().entry(*id).or_insert(*offset);
        *first = (*first).min(*offset);
    }
    hours.into_iter().map(|(hour, ids)| (hour, ids.into_iter().collect())).collect()
}

proptest! {
    #[test]
    fn a_consumer_that_is_live_and_a_replay_give_the_same(
        log in log(), turns in prop::collection::vec((0..3_usize, 0..20_usize), 0..30),
    ) {
        let expected = expected(&log);
        prop_assert_eq!(&live(&log, &turns), &expected);
        prop_assert_eq!(&replayed(&log), &expected);
    }

    #[test]
    fn a_consumer_that_starts_again_loses_nothing(log in log(), stop in 0..80_usize) {
        // One part, so that where it stopped is one place.
        let part: Vec<_> = log.concat();
        let part: Vec<Event> = {
            let mut sorted = part;
            sorted.sort_by_key(|event| event.1);
            sorted.iter().enumerate().map(|(n, e)| (e.0, e.1, e.2, i64::try_from(n).unwrap())).collect()
        };
        let stop = stop.min(part.len());
        let mut first = OpenIntervals::new(event_time(), hourly());
        first.add(&batch(&part[..stop])).unwrap();
        let reached = part.get(stop).map_or(10_000, |event| event.1);
        let mut given: BTreeMap<_, _> =
            first.complete(at(reached)).iter().map(|(hour, rows)| (hour.start(), first_of_each(rows))).collect();
        // The other one reads again from there, and gives what was not given before.
        let from = first.reads_from().unwrap_or(at(reached));
        let again: Vec<_> = part.iter().enumerate().filter(|(n, e)| *n >= stop || at(e.1) >= from).map(|(_, e)| *e).collect();
        let mut second = OpenIntervals::new(event_time(), hourly()).with_given(at(reached));
        second.add(&batch(&again)).unwrap();
        for (hour, rows) in second.complete(at(10_000)) {
            prop_assert!(given.insert(hour.start(), first_of_each(&rows)).is_none(), "given twice");
        }
        prop_assert_eq!(given, expected(&[part]));
    }
}

#[test]
fn the_times_of_a_batch_may_have_any_unit() {
    let rows = batch(&[(Some(10), 12, 1, 0)]);
    let seconds = |column: usize| -> ArrayRef {
        let ms = rows.column(column).as_primitive::<TimestampMillisecondType>().value(0);
        Arc::new(arrow_array::TimestampSecondArray::from(vec![ms / 1000]).with_timezone("UTC"))
    };
    let columns = [("at", seconds(0)), ("logged", seconds(1)), ("id", Arc::clone(rows.column(2)))];
    let rows = RecordBatch::try_from_iter(columns).unwrap();
    let selected = event_time().select(&rows, &minutes(0, 60), &mut LeftOut::default()).unwrap();
    assert_eq!(selected.num_rows(), 1);
}
