use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, TimestampMillisecondArray};
use futures::TryStreamExt;
use proptest::prelude::*;

use super::*;
use crate::domain::interval::Grain;
use crate::domain::job::TableSpec;
use crate::domain::partition::Partitioning;
use crate::domain::value::Value;
use crate::memory::MemoryTable;

/// Happened, logged, id; minutes from midnight.
type Event = (i64, i64, i64);

fn at(minute: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::minutes(minute)
}

fn minutes(start: i64, end: i64) -> Interval {
    Interval::new(at(start), at(end)).unwrap()
}

fn hour(n: i64) -> Slice {
    Slice::Time(TimeSlice {
        column: "at".to_owned(),
        first: Value::Timestamp(at(n * 60)),
        last: Value::Timestamp(at(n * 60)),
        interval: minutes(n * 60, n * 60 + 60),
        only: crate::domain::partition::PartitionKey::whole(),
    })
}

fn batch(events: &[Event]) -> RecordBatch {
    let instants = |of: fn(&Event) -> i64| -> ArrayRef {
        Arc::new(events.iter().map(|e| Some(of(e) * 60_000)).collect::<TimestampMillisecondArray>())
    };
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(events.iter().map(|e| e.2)));
    let columns = [("at", instants(|e| e.0)), ("logged", instants(|e| e.1)), ("id", ids)];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
}

/// A table of events that says what it holds, and of a log reads only what it took in time.
#[derive(Debug)]
struct Covered {
    events: MemoryTable,
    coverage: Option<Interval>,
}

impl Covered {
    fn new(events: &[Event], coverage: Option<Interval>) -> Arc<Self> {
        let hourly = Partitioning::unpartitioned().with_time("at", Grain::Hour, chrono_tz::UTC);
        let table = MemoryTable::new(TableSpec::new("events", hourly));
        table.append_unmanaged(&batch(events)).unwrap();
        Arc::new(Self { events: table, coverage })
    }
}

#[async_trait]
impl SnapshotReader for Covered {
    fn table(&self) -> &TableId {
        SnapshotReader::table(&self.events)
    }

    async fn current(&self) -> Result<TableVersion> {
        self.events.current().await
    }

    async fn availability(&self, version: &TableVersion) -> Result<Availability> {
        self.events.availability(version).await
    }

    async fn slice_versions(
        &self,
        version: &TableVersion,
        slices: &[Slice],
    ) -> Result<Vec<PartitionVersion>> {
        self.events.slice_versions(version, slices).await
    }

    async fn hold(&self, pins: &[Pin]) -> Result<()> {
        self.events.hold(pins).await
    }

    async fn release(&self, pins: &[Pin]) -> Result<()> {
        self.events.release(pins).await
    }

    async fn read(&self, pin: &Pin) -> Result<(SchemaRef, RowStream)> {
        self.events.read(pin).await
    }
}

#[async_trait]
impl Coverage for Covered {
    async fn coverage(&self, _version: &TableVersion) -> Result<Option<Interval>> {
        Ok(self.coverage)
    }
}

fn event_time() -> EventTime {
    EventTime::new("at", "logged").with_lateness_ms(30 * 60_000).with_lead_ms(5 * 60_000)
}

fn source(log: &Arc<Covered>, archive: Option<&Arc<Covered>>) -> ArchivedLog {
    let source = ArchivedLog::new("events", batch(&[]).schema(), log.clone(), event_time());
    match archive {
        Some(archive) => source.with_archive(archive.clone()),
        None => source,
    }
}

async fn ids(source: &ArchivedLog, slice: Slice) -> Result<Vec<i64>> {
    let version = source.current().await?;
    let content = source.slice_versions(&version, std::slice::from_ref(&slice)).await?.remove(0);
    let pin = Pin { table: "events".into(), version, slice, content };
    let (_, rows) = source.read(&pin).await?;
    let batches: Vec<_> = rows.try_collect().await?;
    let mut ids: Vec<_> =
        batches.iter().flat_map(|b| b.column(2).as_primitive::<Int64Type>().values().to_vec()).collect();
    ids.sort_unstable();
    Ok(ids)
}

/// Every minute from 0 to 299 an event, taken at once.
fn all() -> Vec<Event> {
    (0..300).map(|minute| (minute, minute, minute)).collect()
}

#[tokio::test]
async fn an_interval_across_the_seam_is_read_from_both_and_each_event_once() {
    // The log took everything from minute 100 on: what happened from 105 on is all there. Both have the hour as a whole.
    let log = Covered::new(&all(), Some(minutes(100, 300)));
    let archive = Covered::new(&all(), Some(minutes(0, 200)));
    let source = source(&log, Some(&archive)).with_margin_ms(5 * 60_000);
    let version = source.current().await.unwrap();
    let parts = source.slice_versions(&version, &[hour(1)]).await.unwrap().remove(0);
    let parts: Vec<Part> = serde_json::from_str(parts.as_str()).unwrap();
    let found: Vec<_> = parts.iter().map(|part| (part.segment.source, part.segment.interval)).collect();
    assert_eq!(found, [(Source::Archive, minutes(60, 110)), (Source::Log, minutes(110, 120))]);
    assert_eq!(ids(&source, hour(1)).await.unwrap(), (60..120).collect::<Vec<_>>());
    assert_eq!(ids(&source, hour(0)).await.unwrap(), (0..60).collect::<Vec<_>>());
    assert_eq!(ids(&source, hour(3)).await.unwrap(), (180..240).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_neither_holds_is_refused_with_the_span_named() {
    let log = Covered::new(&all(), Some(minutes(100, 300)));
    let error = ids(&source(&log, None), hour(1)).await.unwrap_err();
    assert!(error.to_string().contains("holds [1970-01-01T01:00:00Z, 1970-01-01T01:45:00Z)"), "{error}");
    let archive = Covered::new(&all(), Some(minutes(0, 90)));
    let error = ids(&source(&log, Some(&archive)), hour(1)).await.unwrap_err();
    assert!(error.to_string().contains("holds [1970-01-01T01:30:00Z, 1970-01-01T01:45:00Z)"), "{error}");
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn an_interval_that_is_not_complete_waits() {
    let log = Covered::new(&all(), Some(minutes(0, 269)));
    let error = ids(&source(&log, None), hour(3)).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(error.to_string().contains("is not complete before 1970-01-01 04:30:00 UTC"), "{error}");
    let log = Covered::new(&all(), Some(minutes(0, 270)));
    assert_eq!(ids(&source(&log, None), hour(3)).await.unwrap().len(), 60);
}

#[tokio::test]
async fn events_that_do_not_count_are_left_out_and_counted() {
    let events = [(10, 10, 1), (10, 41, 2), (10, 40, 3), (20, 14, 4)];
    let log = Covered::new(&events, Some(minutes(-10, 300)));
    let source = source(&log, None);
    assert_eq!(ids(&source, hour(0)).await.unwrap(), [1, 3]);
    let left_out = source.left_out();
    assert_eq!((left_out.late, left_out.ahead, left_out.without_time), (1, 1, 0));
}

#[tokio::test]
async fn events_are_read_by_intervals_only_and_a_strange_pin_is_refused() {
    let log = Covered::new(&all(), Some(minutes(0, 300)));
    let source = source(&log, None);
    assert_eq!(ids(&source, Slice::All).await.unwrap_err().kind(), ErrorKind::Unsupported);
    let pin = Pin { table: "events".into(), version: "7".into(), slice: hour(0), content: "x".into() };
    assert_eq!(source.read(&pin).await.err().unwrap().kind(), ErrorKind::Corrupt);
}

proptest! {
    #[test]
    fn no_event_is_lost_or_read_twice_wherever_the_log_begins(
        begins in 0..240_i64, margin in 0..40_u32, events in prop::collection::vec((0..240_i64, -4..30_i64), 0..120),
    ) {
        let events: Vec<Event> = events.iter().zip(0..).map(|((at, later), id)| (*at, at + later, id)).collect();
        // The log has dropped what it took before; the archive has everything.
        let left: Vec<_> = events.iter().filter(|event| event.1 >= begins).copied().collect();
        let log = Covered::new(&left, Some(minutes(begins, 300)));
        let archive = Covered::new(&events, Some(minutes(0, 300)));
        let source = source(&log, Some(&archive)).with_margin_ms(margin * 60_000);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for n in 0..4 {
            let expected: Vec<_> = events.iter().filter(|e| e.0 / 60 == n).map(|e| e.2).collect();
            let found = runtime.block_on(ids(&source, hour(n))).unwrap();
            prop_assert_eq!(found, expected, "hour {}", n);
        }
    }
}
