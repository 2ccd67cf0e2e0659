//! Three weeks corrected, and carried to the weeks, the month and the trailing weeks that read them: the same over every
//! backend. Numbers are those of the file, summed without the library.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use chrono::{Datelike, Days, NaiveDate};
use reprocess::arrow::array::cast::AsArray;
use reprocess::arrow::array::types::{Date32Type, Int64Type};
use reprocess::arrow::array::{ArrayRef, BooleanArray, Date32Array, Int64Array, RecordBatch, StringArray};
use reprocess::arrow::schema::{DataType, Field, Schema, SchemaRef};
use reprocess::domain::ids::{BackfillId, WorkerId};
use reprocess::domain::interval::Grain;
use reprocess::domain::job::{Exposure, JobSpec, TableSpec, Window};
use reprocess::domain::partition::{PartitionKey, Partitioning};
use reprocess::domain::profile::ProfileSpec;
use reprocess::domain::request::{Mode, Request, Selection};
use reprocess::engine::{Engine, Host, Job, RunOutcome, RunRequest};
use reprocess::memory::MemoryTable;
use reprocess::ports::delivery::{Answer, Delivery, DeliverySink, DeliveryState};
use reprocess::ports::ledger::{BackfillState, DeliveryFilter, RunStatus, TaskState};
use reprocess::ports::notify::NOTICES;
use reprocess::ports::transform::{HostError, TaskContext};
use reprocess::ports::writer::Rows;

use super::backends::Backend;
use super::stories::flights::data::{Flight, flights};

const FIRST: u32 = 4;
const LAST: u32 = 24;

fn march(day: u32) -> NaiveDate {
    NaiveDate::from_ymd_opt(2013, 3, day).unwrap()
}

fn number(date: NaiveDate) -> i32 {
    Date32Type::from_naive_date(date)
}

fn by(column: &str, grain: Grain) -> Partitioning {
    Partitioning::unpartitioned().with_time(column, grain, chrono_tz::America::New_York)
}

fn key(column: &str, date: NaiveDate) -> PartitionKey {
    PartitionKey::of(column, date)
}

/// Columns of a table of departures by carrier.
fn columns(time: &str) -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new(time, DataType::Date32, true),
        Field::new("carrier", DataType::Utf8, true),
        Field::new("departures", DataType::Int64, true),
    ]))
}

/// Keeps what it is sent.
#[derive(Debug)]
struct Received {
    channel: &'static str,
    all: Mutex<Vec<Delivery>>,
}

impl Received {
    fn of(channel: &'static str) -> Arc<Self> {
        Arc::new(Self { channel, all: Mutex::default() })
    }
}

#[async_trait]
impl DeliverySink for Received {
    fn channel(&self) -> &str {
        self.channel
    }

    async fn send(&self, delivery: &Delivery) -> reprocess::Result<Answer> {
        self.all.lock().unwrap().push(delivery.clone());
        Ok(Answer::Accepted { note: None })
    }
}

fn source(flights: &[Flight]) -> RecordBatch {
    let columns: [(&str, ArrayRef); 4] = [
        ("day", Arc::new(flights.iter().map(|f| Some(number(f.day))).collect::<Date32Array>())),
        ("carrier", Arc::new(StringArray::from_iter_values(flights.iter().map(|f| &f.carrier)))),
        ("dest", Arc::new(StringArray::from_iter_values(flights.iter().map(|f| &f.dest)))),
        ("left", Arc::new(flights.iter().map(|f| Some(f.dep_time.is_some())).collect::<BooleanArray>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef, HostError> {
    batch.column_by_name(name).ok_or_else(|| format!("no column {name}").into())
}

fn departures(time: &str, date: NaiveDate, sums: &BTreeMap<String, i64>) -> Result<Rows, HostError> {
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(Date32Array::from(vec![number(date); sums.len()])),
        Arc::new(StringArray::from_iter_values(sums.keys())),
        Arc::new(Int64Array::from_iter_values(sums.values().copied())),
    ];
    Ok(RecordBatch::try_new(columns(time), arrays)?.into())
}

/// Departures of a day. The first logic counts cancelled flights; the later ones do not, and tell each destination.
async fn daily(counts_cancelled: bool, task: TaskContext) -> Result<Rows, HostError> {
    let date = task.date().ok_or("a day")?;
    let batch = task.collect("flights").await?;
    let (carriers, dests) =
        (column(&batch, "carrier")?.as_string::<i32>(), column(&batch, "dest")?.as_string::<i32>());
    let left = column(&batch, "left")?.as_boolean();
    let mut sums = BTreeMap::new();
    for row in 0..batch.num_rows() {
        *sums.entry(carriers.value(row).to_owned()).or_default() +=
            i64::from(counts_cancelled || left.value(row));
    }
    if !counts_cancelled {
        for dest in dests.iter().flatten().collect::<BTreeSet<_>>() {
            let (key, payload) = (format!("{date}/{dest}"), serde_json::json!({ "airport": dest }));
            task.deliver(Delivery { key, channel: "airports".to_owned(), payload });
        }
    }
    departures("day", date, &sums)
}

/// The sum of the days that are read.
async fn summed(time: &'static str, task: TaskContext) -> Result<Rows, HostError> {
    let batch = task.collect("daily").await?;
    let carriers = column(&batch, "carrier")?.as_string::<i32>();
    let counts = column(&batch, "departures")?.as_primitive::<Int64Type>();
    let mut sums = BTreeMap::new();
    for (carrier, count) in carriers.iter().zip(counts) {
        *sums.entry(carrier.ok_or("a carrier")?.to_owned()).or_default() += count.unwrap_or(0);
    }
    departures(time, task.date().ok_or("a date")?, &sums)
}

struct World {
    engine: Engine,
    airports: Arc<Received>,
    notices: Arc<Received>,
    /// By day: scheduled flights, and those that left.
    truth: BTreeMap<NaiveDate, (i64, i64)>,
    /// By day: how many airports were flown to.
    destinations: BTreeMap<NaiveDate, usize>,
}

impl World {
    /// The schedule has run all of March with the first logic.
    async fn open(backend: &Backend) -> Self {
        let flights = flights().unwrap();
        let (airports, notices) = (Received::of("airports"), Received::of(NOTICES));
        let mut host = Host::new("test");
        host.add_sink(airports.clone()).unwrap();
        host.add_sink(notices.clone()).unwrap();
        let table = MemoryTable::new(TableSpec::new("flights", by("day", Grain::Day)));
        table.append_unmanaged(&source(&flights)).unwrap();
        host.add_source(TableSpec::new("flights", by("day", Grain::Day)), Arc::new(table)).unwrap();
        for (name, time, grain) in TABLES {
            backend.table(&mut host, TableSpec::new(name, by(time, grain)), &columns(time)).await;
        }
        let job = |name: &str, owner: &str, input: &str, window| {
            let profile = ProfileSpec::new().with_keys(["carrier"]).with_totals(["departures"]);
            JobSpec::new(name, owner, name).with_input(input, input, window).with_profile(profile)
        };
        let spec = job("daily", "operations", "flights", Window::Same);
        // What the schedule runs is registered last.
        let first = Job::new(spec).transform_with("v3", false, daily).transform_with("v2", false, daily);
        host.add_job(first.transform_with("v1", true, daily)).unwrap();
        for (name, owner, window) in [
            ("weekly", "planning", Window::Covering),
            ("monthly", "finance", Window::Covering),
            ("trailing", "research", Window::Trailing(7)),
        ] {
            let time = TABLES.iter().find(|(table, ..)| *table == name).unwrap().1;
            let spec = job(name, owner, "daily", window);
            host.add_job(Job::new(spec).transform_with("v1", time, summed)).unwrap();
        }
        for (name, owner, table) in [("board", "directors", "weekly"), ("export", "authority", "monthly")] {
            let (name, owner) = (name.to_owned(), owner.to_owned());
            host.add_exposure(Exposure { name, owner, tables: vec![table.into()] });
        }
        let engine = Engine::new(host, backend.ledger().await);
        let (mut truth, mut destinations) =
            (BTreeMap::<_, (i64, i64)>::new(), BTreeMap::<_, BTreeSet<_>>::new());
        for flight in &flights {
            let of_day = truth.entry(flight.day).or_default();
            *of_day = (of_day.0 + 1, of_day.1 + i64::from(flight.dep_time.is_some()));
            destinations.entry(flight.day).or_default().insert(flight.dest.clone());
        }
        let destinations = destinations.into_iter().map(|(day, all)| (day, all.len())).collect();
        let world = Self { engine, airports, notices, truth, destinations };
        for day in 1..=31 {
            world.run("daily", "day", march(day), "v1").await;
        }
        for day in 1..=31 {
            world.run("trailing", "day", march(day), "v1").await;
        }
        for monday in [4, 11, 18, 25] {
            world.run("weekly", "week", march(monday), "v1").await;
        }
        world.run("monthly", "month", march(1), "v1").await;
        world
    }

    async fn run(&self, job: &str, time: &str, date: NaiveDate, logic: &str) {
        let run =
            RunRequest::scheduled(format!("{job} {date} {logic}"), job, key(time, date)).with_logic(logic);
        let outcome = self.engine.run(&run, &WorkerId::from("schedule")).await.unwrap();
        assert_eq!(outcome, RunOutcome::Committed, "{job} {date}");
    }

    /// Corrects three weeks, and answers the states of the downstream tasks.
    async fn correct(&self, id: &str, logic: &str) -> BTreeMap<TaskState, usize> {
        let range = Selection::Range { first: march(FIRST).into(), last: march(LAST).into() };
        let request = Request::new(id, range, "cancelled flights were counted", "analyst")
            .with_job("daily", logic)
            .with_mode(Mode::Direct)
            .with_concurrency(4);
        let engine = &self.engine;
        let plan = engine.plan(&request).await.unwrap();
        let _ = engine.submit(&plan, &"analyst".into()).await.unwrap();
        engine.approve(&request.id, &plan.digest(), &"reviewer".into(), "").await.unwrap();
        let done = engine.execute(&request.id, &"w1".into(), |_| {}).await.unwrap();
        assert_eq!(done.state, BackfillState::Done, "{done:?}");
        let mut states = BTreeMap::new();
        for task in done.tasks.iter().filter(|known| plan.tasks[known.id.0 as usize].is_downstream()) {
            *states.entry(task.state).or_default() += 1;
        }
        states
    }

    /// Departures in a table by date, as the ledger has the partitions that are there.
    async fn sums(&self, table: &str) -> BTreeMap<String, String> {
        let ledger = self.engine.ledger();
        let keys = ledger.partitions(&table.into()).await.unwrap();
        let rows = ledger.current(&table.into(), &keys).await.unwrap();
        let sum = |row: Option<reprocess::ports::ledger::LedgerRow>| {
            row.unwrap().record.after.unwrap().totals["departures"].to_string()
        };
        keys.iter().map(ToString::to_string).zip(rows.into_iter().map(sum)).collect()
    }

    /// What the file says of the days of a partition, of which those of the range are corrected.
    fn expected(&self, days: impl Iterator<Item = NaiveDate>) -> String {
        let corrected = march(FIRST)..=march(LAST);
        let of_day = |day: NaiveDate| {
            let (scheduled, left) = self.truth.get(&day).copied().unwrap_or_default();
            if corrected.contains(&day) { left } else { scheduled }
        };
        days.map(of_day).sum::<i64>().to_string()
    }

    async fn keys(&self, backfill: Option<&str>, state: DeliveryState) -> usize {
        let backfill = backfill.map(BackfillId::from);
        let filter = DeliveryFilter { backfill, run: None, state: Some(state) };
        let found = self.engine.ledger().deliveries(&filter).await.unwrap();
        found.iter().filter(|record| record.delivery.channel == "airports").count()
    }
}

const TABLES: [(&str, &str, Grain); 4] = [
    ("daily", "day", Grain::Day),
    ("weekly", "week", Grain::Week),
    ("monthly", "month", Grain::Month),
    ("trailing", "day", Grain::Day),
];

fn days(first: NaiveDate, count: u64) -> impl Iterator<Item = NaiveDate> {
    (0..count).map(move |n| first + Days::new(n))
}

async fn the_story(backend: &Backend) {
    let world = World::open(backend).await;
    let downstream = world.correct("fix", "v2").await;
    // The weeks of the 4th, 11th and 18th, the month, and the trailing weeks that end on the 4th to the 30th.
    assert_eq!(downstream, [(TaskState::Committed, 3 + 1 + 27)].into());
    for monday in [4, 11, 18, 25] {
        let sum = &world.sums("weekly").await[&key("week", march(monday)).to_string()];
        assert_eq!(*sum, world.expected(days(march(monday), 7)), "week of {monday}");
    }
    assert_eq!(world.sums("monthly").await["month=2013-03-01"], world.expected(days(march(1), 31)));
    let trailing = world.sums("trailing").await;
    for day in days(march(1), 31) {
        let week = days(day - Days::new(6), 7).filter(|day| day.month() == 3);
        assert_eq!(trailing[&key("day", day).to_string()], world.expected(week), "the week up to {day}");
    }
    in_order_and_once(&world).await;
    told_once(&world);

    // Another version that computes the same ends at the days.
    let position = world.engine.ledger().position().await.unwrap();
    let downstream = world.correct("tidy", "v3").await;
    assert_eq!(downstream, [(TaskState::Skipped, 3 + 1 + 27)].into());
    let after = world.engine.ledger().position().await.unwrap();
    assert_eq!(after - position, 21, "the days alone");

    // Nothing was sent, and what would have been waits.
    let held_back: usize = days(march(FIRST), 21).map(|day| world.destinations[&day]).sum();
    assert!(held_back > 1_000, "{held_back}");
    assert_eq!(world.keys(Some("fix"), DeliveryState::Suppressed).await, held_back);
    let _ = world.engine.dispatch(&"sender".into()).await.unwrap();
    assert_eq!(world.airports.all.lock().unwrap().len(), 0);
    // The next live run over a corrected day sends nothing either, and the one of a new day all of its own.
    let again =
        RunRequest::scheduled("again", "daily", key("day", march(LAST))).with_logic("v2").with_force();
    assert_eq!(world.engine.run(&again, &"schedule".into()).await.unwrap(), RunOutcome::Committed);
    world.run("daily", "day", march(LAST + 1), "v2").await;
    let _ = world.engine.dispatch(&"sender".into()).await.unwrap();
    let sent: BTreeSet<_> = world.airports.all.lock().unwrap().iter().map(|d| d.key.clone()).collect();
    assert_eq!(sent.len(), world.destinations[&march(LAST + 1)]);
    assert!(sent.iter().all(|key| key.starts_with("2013-03-25/")), "{sent:?}");
}

/// Each downstream partition has one row, after those of all that it reads, and the first do not wait for the last day.
async fn in_order_and_once(world: &World) {
    let rows = world.engine.ledger().run(&"fix.1".into()).await.unwrap();
    let mut positions = BTreeMap::new();
    for row in rows.iter().filter(|row| row.record.status == RunStatus::Committed) {
        let place = (row.record.table.to_string(), row.record.partition.to_string());
        assert!(positions.insert(place, row.position).is_none(), "twice: {}", row.record.partition);
    }
    let of = |table: &str, key: PartitionKey| positions[&(table.to_owned(), key.to_string())];
    let daily = |date: NaiveDate| of("daily", key("day", date));
    let corrected = |date: &NaiveDate| (march(FIRST)..=march(LAST)).contains(date);
    for monday in [4, 11, 18] {
        let week = of("weekly", key("week", march(monday)));
        assert!(days(march(monday), 7).all(|day| daily(day) < week), "{monday}");
    }
    for day in days(march(FIRST), 27) {
        let trailing = of("trailing", key("day", day));
        assert!(days(day - Days::new(6), 7).filter(corrected).all(|read| daily(read) < trailing), "{day}");
    }
    let last = daily(march(LAST));
    assert!(
        of("trailing", key("day", march(FIRST))) < last && of("weekly", key("week", march(FIRST))) < last
    );
}

/// Owners of jobs, of what is downstream and of what consumes it, each once, with the totals of the file.
fn told_once(world: &World) {
    let notices = world.notices.all.lock().unwrap();
    let done: Vec<_> = notices.iter().filter(|notice| notice.payload["state"] == "done").collect();
    let owners: Vec<_> = done.iter().map(|notice| notice.payload["owner"].as_str().unwrap()).collect();
    assert_eq!(owners, ["authority", "directors", "finance", "operations", "planning", "research"]);
    let changes = done[0].payload["changes"].as_array().unwrap();
    let all: Vec<_> = changes.iter().map(|change| change["table"].as_str().unwrap()).collect();
    assert_eq!(all, ["daily", "monthly", "trailing", "weekly"]);
    let total = |table: usize, when: &str| {
        changes[table]["all"][when]["totals"]["departures"]["exact"].as_str().unwrap().to_owned()
    };
    let sum = |first, count, of: fn(&(i64, i64)) -> i64| {
        days(march(first), count).map(|day| of(&world.truth[&day])).sum::<i64>()
    };
    let (scheduled, left) = (sum(FIRST, 21, |day| day.0), sum(FIRST, 21, |day| day.1));
    assert_eq!((total(0, "before"), total(0, "after")), (scheduled.to_string(), left.to_string()));
    let month = sum(1, 31, |day| day.0);
    assert_eq!(
        (total(1, "before"), total(1, "after")),
        (month.to_string(), (month - scheduled + left).to_string())
    );
    assert_eq!((total(3, "before"), total(3, "after")), (scheduled.to_string(), left.to_string()));
}

#[tokio::test]
async fn three_weeks_are_corrected_and_carried_on_in_sqlite() {
    the_story(&Backend::sqlite().await).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn three_weeks_are_corrected_and_carried_on_in_postgres() {
    let Some(backend) = Backend::postgres().await else { return };
    the_story(&backend).await;
}

#[cfg(feature = "delta")]
#[tokio::test]
async fn three_weeks_are_corrected_and_carried_on_in_delta() {
    the_story(&Backend::delta().await).await;
}

#[cfg(feature = "iceberg")]
#[tokio::test]
async fn three_weeks_are_corrected_and_carried_on_in_iceberg() {
    the_story(&Backend::iceberg().await).await;
}
