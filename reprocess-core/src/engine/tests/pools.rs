//! Pools on a simulated clock: the schedule beside a backfill that would take every slot.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, Date32Array, RecordBatch};
use async_trait::async_trait;
use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use futures::future::join_all;
use tokio::time::Instant;

use super::shop::{date, day, days};
use crate::domain::interval::Grain;
use crate::domain::job::{JobSpec, TableSpec};
use crate::domain::partition::Partitioning;
use crate::domain::pool::Pool;
use crate::domain::request::{Mode, Request};
use crate::engine::{Engine, Host, Job, RunOutcome, RunRequest, Settings};
use crate::error::ErrorKind;
use crate::memory::{MemoryLedger, MemoryTable};
use crate::ports::clock::Clock;
use crate::ports::ledger::{BackfillState, LedgerReader, RunRecord, TaskState};
use crate::ports::transform::{HostError, TaskContext};
use crate::ports::writer::Rows;

/// The time of tokio, which goes on at once to what is waited for.
#[derive(Debug)]
pub(super) struct Simulated(pub(super) Instant);

#[async_trait]
impl Clock for Simulated {
    fn now(&self) -> DateTime<Utc> {
        let start: DateTime<Utc> = "2026-11-01T00:00:00Z".parse().unwrap();
        start + TimeDelta::from_std(self.0.elapsed()).unwrap()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// How long a task of a job takes on a day: the backfill's one to two minutes, the schedule's half a minute.
fn takes(job: &str, of: NaiveDate) -> Duration {
    use chrono::Datelike;
    match job {
        "big" => Duration::from_secs(60 + u64::from(of.day() * 37 % 60)),
        _ => Duration::from_secs(30),
    }
}

const LONGEST: i64 = 120;

pub(super) async fn run(name: &'static str, task: TaskContext) -> Result<Rows, HostError> {
    let of = task.date().ok_or("a day")?;
    tokio::time::sleep(takes(name, of)).await;
    let epoch = NaiveDate::from_ymd_opt(1970, 1, 1).ok_or("epoch")?;
    let column: ArrayRef = Arc::new(Date32Array::from(vec![i32::try_from((of - epoch).num_days())?]));
    Ok(RecordBatch::try_from_iter_with_nullable([("day", column, true)])?.into())
}

pub(super) fn by_day() -> Partitioning {
    Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC)
}

fn engine(pool: Pool, ledger: &Arc<MemoryLedger>) -> Engine {
    let mut host = Host::new("test");
    host.add_pool(pool).unwrap();
    for name in ["big", "daily"] {
        let spec = TableSpec::new(name, by_day());
        host.add_table(spec.clone(), Arc::new(MemoryTable::new(spec))).unwrap();
        let job = JobSpec::new(name, "ops", name).with_pool("db");
        host.add_job(Job::new(job).transform_with("v1", name, run)).unwrap();
    }
    let settings = Settings { poll_ms: 100, ..Settings::default() };
    Engine::new(host, ledger.clone()).with_clock(Arc::new(Simulated(Instant::now()))).with_settings(settings)
}

fn pool(for_backfills: u32) -> Pool {
    Pool::new("db", 4.try_into().unwrap()).with_slots_for_backfills(for_backfills)
}

pub(super) async fn start_backfill(engine: &Engine, job: &str, last: u32) {
    let request = Request::new("fix", days(1, last), "a wrong rate", "ann")
        .with_job(job, "v1")
        .with_mode(Mode::Direct)
        .with_concurrency(20);
    let plan = engine.plan(&request).await.unwrap();
    let _ = engine.submit(&plan, &"ann".into()).await.unwrap();
    engine.approve(&request.id, &plan.digest(), &"bob".into(), "").await.unwrap();
}

pub(super) async fn records(ledger: &MemoryLedger, table: &str) -> Vec<RunRecord> {
    let keys = ledger.partitions(&table.into()).await.unwrap();
    let rows = ledger.current(&table.into(), &keys).await.unwrap();
    rows.into_iter().map(|row| row.unwrap().record).collect()
}

/// Most tasks that ran at a time, from their start to their end.
pub(super) fn at_a_time(records: &[RunRecord]) -> i32 {
    let mut changes: Vec<_> = records.iter().flat_map(|r| [(r.started_at, 1), (r.finished_at, -1)]).collect();
    changes.sort();
    let mut now = 0;
    changes
        .into_iter()
        .map(|(_, change)| {
            now += change;
            now
        })
        .max()
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_scheduled_run_waits_no_longer_than_the_longest_task_that_runs() {
    let ledger = Arc::new(MemoryLedger::new());
    let engine = engine(pool(1), &ledger);
    start_backfill(&engine, "big", 31).await;
    let (id, worker) = ("fix".into(), "w1".into());
    let backfill = engine.execute(&id, &worker, |_| {});
    let schedule = async {
        for n in 1..=10 {
            tokio::time::sleep(Duration::from_secs(45)).await;
            let run = RunRequest::scheduled(format!("daily-{n}"), "daily", day(n));
            assert_eq!(engine.run(&run, &"schedule".into()).await.unwrap(), RunOutcome::Committed);
        }
    };
    let (done, ()) = futures::join!(backfill, schedule);
    assert_eq!(done.unwrap().state, BackfillState::Published);
    let daily = records(&ledger, "daily").await;
    let waits: Vec<_> = daily.iter().map(|r| (r.started_at - r.queued_at).num_milliseconds()).collect();
    assert!(waits.iter().all(|wait| *wait <= LONGEST * 1_000 + 100), "{waits:?}");
    assert!(waits.iter().any(|wait| *wait > 1_000), "the backfill takes every slot: {waits:?}");
    let all: Vec<_> = daily.into_iter().chain(records(&ledger, "big").await).collect();
    assert_eq!(at_a_time(&all), 4);
}

#[tokio::test(start_paused = true)]
async fn a_backfill_goes_on_with_its_own_slots_whatever_the_schedule_does() {
    let ledger = Arc::new(MemoryLedger::new());
    let engine = engine(pool(1), &ledger);
    start_backfill(&engine, "big", 10).await;
    // Eight at a time want the four slots, all the time.
    let schedule = |lane: u32| {
        let engine = &engine;
        async move {
            for n in 0..15 {
                let unit = day(1 + (lane * 15 + n) % 31);
                let run = RunRequest::scheduled(format!("{lane}-{n}"), "daily", unit).with_force();
                let _ = engine.run(&run, &format!("lane-{lane}").as_str().into()).await;
            }
        }
    };
    let started = engine.clock.now();
    let (id, worker) = ("fix".into(), "w1".into());
    let backfill = async {
        let done = engine.execute(&id, &worker, |_| {}).await.unwrap();
        (done.state, engine.clock.now())
    };
    let ((state, ended), _) = futures::join!(backfill, join_all((0..8).map(schedule)));
    assert_eq!(state, BackfillState::Published);
    let one_by_one: Duration = (1..=10).map(|d| takes("big", date(d))).sum();
    let took = (ended - started).to_std().unwrap();
    // A slot is looked for again every tenth of a second.
    assert!(took <= one_by_one + Duration::from_secs(5), "{took:?}, and one by one {one_by_one:?}");
}

#[tokio::test]
async fn a_pool_has_to_be_declared_and_to_leave_slots_for_the_schedule() {
    let mut host = Host::new("test");
    let error = host.add_pool(pool(4)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let spec = TableSpec::new("daily", by_day());
    host.add_table(spec.clone(), Arc::new(MemoryTable::new(spec))).unwrap();
    let job = JobSpec::new("daily", "ops", "daily").with_pool("db");
    let error = host.add_job(Job::new(job.clone()).transform_with("v1", "daily", run)).unwrap_err();
    assert!(error.to_string().contains("the pool `db` is not declared"), "{error}");
    host.add_pool(pool(0)).unwrap();
    host.add_pool(pool(0)).unwrap();
    assert!(host.add_pool(pool(1)).is_err(), "it is another");
    host.add_job(Job::new(job).transform_with("v1", "daily", run)).unwrap();
}

#[tokio::test(start_paused = true)]
async fn runs_of_several_jobs_and_days_under_one_id_count_each() {
    let ledger = Arc::new(MemoryLedger::new());
    let engine = engine(Pool::new("db", 1.try_into().unwrap()), &ledger);
    let run = async |job: &str, d: u32| {
        let run = RunRequest::scheduled("2026-11-01", job, day(d));
        assert_eq!(engine.run(&run, &"w".into()).await.unwrap(), RunOutcome::Committed);
    };
    futures::join!(run("big", 1), run("daily", 1), run("daily", 2));
    let all: Vec<_> =
        records(&ledger, "daily").await.into_iter().chain(records(&ledger, "big").await).collect();
    assert_eq!((all.len(), at_a_time(&all)), (3, 1));
}

/// Four tasks of a backfill run, and others that are claimed wait for slots.
async fn check_nothing_begins(stop: impl AsyncFn(&Engine)) {
    let ledger = Arc::new(MemoryLedger::new());
    let engine = engine(pool(1), &ledger);
    start_backfill(&engine, "big", 31).await;
    let (id, worker) = ("fix".into(), "w1".into());
    let stopping = async {
        tokio::time::sleep(Duration::from_secs(50)).await;
        stop(&engine).await;
    };
    let (done, ()) = futures::join!(engine.execute(&id, &worker, |_| {}), stopping);
    assert_eq!(done.unwrap().state, BackfillState::Running);
    let begun = records(&ledger, "big").await;
    assert_eq!(begun.len(), 4, "those that ran have come to their end, and none after them was begun");
    let tasks = ledger.tasks(&id).await.unwrap();
    assert!(tasks.iter().all(|task| task.state != TaskState::Claimed), "none is kept from others");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_is_to_stop_begins_none_that_waits_for_a_slot() {
    check_nothing_begins(async |engine| engine.stop().finish()).await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_backfill_begins_none_that_waits_for_a_slot() {
    check_nothing_begins(async |engine| engine.pause(&"fix".into(), &"ann".into()).await.unwrap()).await;
}
