//! A host with a source of flights, daily and weekly departures; three flights a day and carrier, one of them cancelled.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{Array, BooleanArray, Date32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::cli::{Console, Exit, run_with};
use crate::domain::interval::Grain;
use crate::domain::job::{Exposure, JobSpec, TableSpec, Window};
use crate::domain::partition::Partitioning;
use crate::domain::profile::ProfileSpec;
use crate::engine::{Engine, Host, Job, RunRequest};
use crate::memory::{ManualClock, MemoryLedger, MemoryTable};
use crate::ports::delivery::Delivery;
use crate::ports::transform::{HostError, TaskContext};
use crate::ports::writer::{PartitionWriter, Rows};

/// 4 March 2013, a Monday, as days since the epoch.
const FIRST: i32 = 15_768;
const DAYS: i32 = 7;
const CARRIERS: [&str; 2] = ["AA", "UA"];

pub(super) struct TestHost {
    pub(super) engine: Engine,
    pub(super) clock: Arc<ManualClock>,
    pub(super) flights: MemoryTable,
    pub(super) daily: MemoryTable,
}

/// What a command left.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) exit: Exit,
    pub(super) out: String,
    pub(super) err: String,
}

impl Ran {
    /// The one document on stdout.
    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// The one document on stderr.
    pub(super) fn error(&self) -> serde_json::Value {
        assert_eq!(self.out, "", "an error leaves stdout empty: {self:?}");
        serde_json::from_str(&self.err).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    #[track_caller]
    pub(super) fn ends(self, exit: Exit) -> Self {
        assert_eq!(self.exit, exit, "\n{}\n{}", self.out, self.err);
        self
    }
}

fn by_day(column: &str, grain: Grain) -> Partitioning {
    Partitioning::unpartitioned().with_time(column, grain, chrono_tz::America::New_York)
}

fn flights_columns() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("day", DataType::Date32, false),
        Field::new("carrier", DataType::Utf8, false),
        Field::new("cancelled", DataType::Boolean, false),
    ]))
}

fn departures_columns(time: &str) -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new(time, DataType::Date32, false),
        Field::new("carrier", DataType::Utf8, false),
        Field::new("departures", DataType::Int64, false),
    ]))
}

fn flights() -> RecordBatch {
    flights_of(FIRST..FIRST + DAYS)
}

/// Flights of days since the epoch.
pub(super) fn flights_of(all: std::ops::Range<i32>) -> RecordBatch {
    let (mut days, mut carriers, mut cancelled) = (Vec::new(), Vec::new(), Vec::new());
    for day in all {
        for carrier in CARRIERS {
            for flight in 0..3 {
                days.push(day);
                carriers.push(carrier);
                cancelled.push(flight == 2 && carrier == "AA");
            }
        }
    }
    let columns: Vec<Arc<dyn Array>> = vec![
        Arc::new(Date32Array::from(days)),
        Arc::new(StringArray::from(carriers)),
        Arc::new(BooleanArray::from(cancelled)),
    ];
    RecordBatch::try_new(flights_columns(), columns).unwrap()
}

/// Rows of departures at one date.
pub(super) fn departures(time: &str, date: i32, counts: &[(&str, i64)]) -> RecordBatch {
    let columns: Vec<Arc<dyn Array>> = vec![
        Arc::new(Date32Array::from(vec![date; counts.len()])),
        Arc::new(StringArray::from_iter_values(counts.iter().map(|(carrier, _)| *carrier))),
        Arc::new(Int64Array::from_iter_values(counts.iter().map(|(_, n)| *n))),
    ];
    RecordBatch::try_new(departures_columns(time), columns).unwrap()
}

fn date_of(task: &TaskContext) -> i32 {
    let epoch = chrono::NaiveDate::from_ymd_opt(1970, 1, 1).unwrap();
    i32::try_from((task.date().unwrap() - epoch).num_days()).unwrap()
}

async fn daily(count_cancelled: bool, task: TaskContext) -> Result<Rows, HostError> {
    if task.parameter("fail_on").and_then(|v| v.as_str()) == Some(task.date().unwrap().to_string().as_str()) {
        return Err("the host's code failed".into());
    }
    let rows = task.collect("flights").await?;
    let carriers = rows.column(1).as_any().downcast_ref::<StringArray>().ok_or("carriers are text")?;
    let cancelled = rows.column(2).as_any().downcast_ref::<BooleanArray>().ok_or("cancelled is boolean")?;
    let counted = |carrier: &str| {
        let flights = carriers.iter().zip(cancelled).filter(|(c, _)| *c == Some(carrier));
        i64::try_from(flights.filter(|(_, gone)| count_cancelled || *gone == Some(false)).count()).unwrap()
    };
    let counts = CARRIERS.map(|carrier| (carrier, counted(carrier)));
    task.deliver(Delivery {
        key: format!("report/{}", task.date().unwrap()),
        channel: "mail".to_owned(),
        payload: serde_json::json!({"to": "planning@example.org"}),
    });
    Ok(departures("day", date_of(&task), &counts).into())
}

async fn weekly(task: TaskContext) -> Result<Rows, HostError> {
    let rows = task.collect("daily").await?;
    let counts = rows.column(2).as_any().downcast_ref::<Int64Array>().ok_or("departures are integers")?;
    let sum = counts.iter().flatten().sum();
    Ok(departures("week", date_of(&task), &[("all", sum)]).into())
}

impl TestHost {
    /// The host after its schedule has run v1 over a week of days, and then over the week.
    pub(super) async fn new() -> Self {
        let flights_spec = TableSpec::new("flights", by_day("day", Grain::Day));
        let daily_spec = TableSpec::new("daily_departures", by_day("day", Grain::Day));
        let weekly_spec = TableSpec::new("weekly_departures", by_day("week", Grain::Week));
        let source = MemoryTable::new(flights_spec.clone());
        source.append_unmanaged(&flights()).unwrap();
        let daily_table = MemoryTable::new(daily_spec.clone());
        daily_table.create(&departures_columns("day")).await.unwrap();
        let weekly_table = MemoryTable::new(weekly_spec.clone());
        weekly_table.create(&departures_columns("week")).await.unwrap();
        let mut host = Host::new("test");
        host.add_source(flights_spec, Arc::new(source.clone())).unwrap();
        host.add_table(daily_spec, Arc::new(daily_table.clone())).unwrap();
        host.add_table(weekly_spec, Arc::new(weekly_table)).unwrap();
        let keyed = ProfileSpec::new().with_keys(["carrier"]);
        let spec = JobSpec::new("daily_departures", "ops@example.org", "daily_departures")
            .with_input("flights", "flights", Window::Same)
            .with_profile(keyed.clone())
            .with_ready_within(Duration::from_secs(20 * 86_400));
        let job = Job::new(spec).transform_with("v2", false, daily).transform_with("v1", true, daily);
        host.add_job(job).unwrap();
        let spec = JobSpec::new("weekly_departures", "planning@example.org", "weekly_departures")
            .with_input("daily", "daily_departures", Window::Covering)
            .with_profile(keyed)
            .with_matching_total("departures", "daily", "departures");
        host.add_job(Job::new(spec).transform_with("v1", (), |(), task| weekly(task))).unwrap();
        host.add_exposure(Exposure {
            name: "dashboard".to_owned(),
            owner: "board@example.org".to_owned(),
            tables: vec!["weekly_departures".into()],
        });
        let clock = Arc::new(ManualClock::new("2013-04-02T09:00:00Z".parse().unwrap()));
        let engine = Engine::new(host, Arc::new(MemoryLedger::new())).with_clock(clock.clone());
        let this = Self { engine, clock, flights: source, daily: daily_table };
        for day in 4..=10 {
            this.schedule("daily_departures", &format!("day=2013-03-{day:02}")).await;
        }
        this.schedule("weekly_departures", "week=2013-03-04").await;
        this
    }

    /// Runs one partition as the schedule does.
    pub(super) async fn schedule(&self, job: &str, key: &str) {
        let catalog = self.engine.host().catalog();
        let unit = catalog.unit(catalog.job(&job.into()).unwrap()).unwrap().parse_key(key).unwrap();
        let request = RunRequest::scheduled(format!("{job}-{key}"), job, unit);
        let _ = self.engine.run(&request, &"schedule".into()).await.unwrap();
    }

    /// Runs a command of words without spaces in them.
    pub(super) async fn run(&self, words: &str) -> Ran {
        let words: Vec<_> = words.split_whitespace().collect();
        self.run_words(&words, None).await
    }

    /// Runs a command; a person answers every question so.
    pub(super) async fn run_words(&self, words: &[&str], answer: Option<bool>) -> Ran {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut ask = |_: &str| answer == Some(true);
        let mut console = Console::new(&mut out, &mut err);
        if answer.is_some() {
            console = console.with_ask(&mut ask);
        }
        let args = ["host"].into_iter().chain(words.iter().copied());
        let exit = run_with(&self.engine, "test", args, console).await;
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { exit, out: text(out), err: text(err) }
    }
}
