//! How long scheduled tasks wait while a backfill takes every slot that it may, by the clock on the wall: `cargo bench --bench queue`.
//!
//! A pool of four slots, one of them for backfills, over a ledger in SQLite. The backfill's tasks take 200 ms each and always wait for slots;
//! a scheduled task of 50 ms comes every 100 to 300 ms. The aim for the 95th percentile of the waits is one task of the backfill plus
//! 100 ms.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "measures, and a bench that cannot go on has failed"
)]

use std::sync::Arc;
use std::time::Duration;

use chrono::{Days, NaiveDate};
use reprocess::arrow::schema::{DataType, Field, Schema, SchemaRef};
use reprocess::domain::interval::Grain;
use reprocess::domain::job::{JobSpec, TableSpec};
use reprocess::domain::partition::{PartitionKey, Partitioning};
use reprocess::domain::pool::Pool;
use reprocess::domain::request::{Mode, Request, Selection};
use reprocess::engine::{Engine, Host, Job, RunRequest, Settings};
use reprocess::ports::ledger::LedgerRow;
use reprocess::ports::writer::{PartitionWriter, Rows};
use reprocess::sqlite::{SqliteDatabase, SqliteLedger, SqliteTable};
use tokio::runtime::Runtime;

const TASK: Duration = Duration::from_millis(200);
const SCHEDULED: u32 = 200;

fn main() {
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut waits = Runtime::new().unwrap().block_on(waits(&folder.path().join("queue.db")));
    waits.sort_unstable();
    let at = |percent: usize| waits[(waits.len() * percent).div_ceil(100) - 1];
    let aim = TASK + Duration::from_millis(100);
    println!(
        "waits of {SCHEDULED} scheduled tasks: median {} ms, 95th percentile {} ms, longest {} ms; aim {} ms",
        at(50),
        at(95),
        at(100),
        aim.as_millis()
    );
}

fn columns() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("day", DataType::Date32, true)]))
}

fn date(n: u32) -> NaiveDate {
    NaiveDate::from_ymd_opt(2020, 1, 1).unwrap() + Days::new(n.into())
}

async fn engine(path: &std::path::Path) -> Engine {
    let db = SqliteDatabase::open(path).await.unwrap();
    let mut host = Host::new("bench");
    host.add_pool(Pool::new("db", 4.try_into().unwrap()).with_slots_for_backfills(1)).unwrap();
    for (name, takes) in [("history", TASK), ("daily", Duration::from_millis(50))] {
        let by_day = Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
        let spec = TableSpec::new(name, by_day);
        let table = SqliteTable::new(db.clone(), spec.clone());
        table.create(&columns()).await.unwrap();
        host.add_table(spec, Arc::new(table)).unwrap();
        let job = JobSpec::new(name, "nobody", name).with_pool("db");
        let sleep = |takes, _| async move {
            tokio::time::sleep(takes).await;
            Ok(Rows::batches(columns(), Vec::new()))
        };
        host.add_job(Job::new(job).transform_with("v1", takes, sleep)).unwrap();
    }
    let mut settings = Settings::default();
    settings.poll_ms = 25;
    Engine::new(host, Arc::new(SqliteLedger::open(db).await.unwrap())).with_settings(settings)
}

/// How long each scheduled task waited, in milliseconds.
async fn waits(path: &std::path::Path) -> Vec<i64> {
    let engine = engine(path).await;
    let range = Selection::Range { first: date(0).into(), last: date(3_000).into() };
    let request = Request::new("all", range, "a bench", "nobody")
        .with_job("history", "v1")
        .with_mode(Mode::Direct)
        .with_concurrency(12)
        .without_kept_rows();
    let plan = engine.plan(&request).await.unwrap();
    let _ = engine.submit(&plan, &"nobody".into()).await.unwrap();
    engine.approve(&request.id, &plan.digest(), &"nobody".into(), "").await.unwrap();
    let (worker, schedule) = ("backfill".into(), "schedule".into());
    let scheduled = async {
        for n in 0..SCHEDULED {
            // Spread over the time between two of them, the same in each run.
            tokio::time::sleep(Duration::from_millis(100 + u64::from(n * 97 % 200))).await;
            let unit = PartitionKey::of("day", date(n));
            let run = RunRequest::scheduled(format!("daily-{n}"), "daily", unit);
            let _ = engine.run(&run, &schedule).await.unwrap();
        }
    };
    tokio::select! {
        done = engine.execute(&request.id, &worker, |_| {}) => panic!("the backfill ended first: {done:?}"),
        () = scheduled => {}
    }
    let keys = engine.ledger().partitions(&"daily".into()).await.unwrap();
    let rows = engine.ledger().current(&"daily".into(), &keys).await.unwrap();
    let wait = |r: LedgerRow| (r.record.started_at - r.record.queued_at).num_milliseconds();
    rows.into_iter().flatten().map(wait).collect()
}
