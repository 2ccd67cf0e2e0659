//! Questions to a ledger of a million rows in SQLite, and in PostgreSQL: `cargo bench --features postgres --bench ledger`.
//!
//! `LEDGER_TURNS` makes it smaller; each turn is one run of 730 days of 50 jobs. That in SQLite is filled once; for the
//! other a server is started and filled, unless `BENCH_POSTGRES` is the address of one.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "measures, and a bench that cannot go on has failed"
)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use criterion::{Criterion, criterion_group, criterion_main};
use reprocess::domain::ids::{LogicVersion, TableId};
use reprocess::domain::partition::PartitionKey;
use reprocess::domain::scope::Scope;
use reprocess::domain::slice::Base;
use reprocess::ports::ledger::{BackfillState, RunLedger, RunRecord, StateChange, TaskFinish, Transition};
use reprocess::ports::writer::{Change, Commit, CommitEntry};
use reprocess::postgres::{PostgresDatabase, PostgresLedger};
use reprocess::sqlite::{Durability, SqliteConfig, SqliteLedger};
use serde_json::json;
use support::cached;
use support::catalog::{CHAIN, World, job_name};
use support::rows::date;
use support::server::{Server, run};
use tokio::runtime::Runtime;

const JOBS: usize = 50;
const DAYS: u32 = 730;

async fn in_sqlite(turns: u32) -> Arc<dyn RunLedger> {
    let path = cached(&format!("ledger_{turns}.db"));
    let db = SqliteConfig::new().with_durability(Durability::Normal).open(&path).await.unwrap();
    Arc::new(SqliteLedger::open(db).await.unwrap())
}

async fn in_postgres(server: &Server) -> Arc<dyn RunLedger> {
    let db = PostgresDatabase::connect(server.address()).await.unwrap();
    Arc::new(PostgresLedger::open(db).await.unwrap())
}

/// Fills the ledger with so many runs of every day of every job; the last on logic `2`, those before on `1`.
async fn fill(ledger: &dyn RunLedger, turns: std::ops::Range<u32>, last: u32) {
    let per_turn = u64::from(DAYS) * JOBS as u64;
    let filled = u32::try_from(ledger.position().await.unwrap() / per_turn).unwrap();
    for turn in turns.start.max(filled)..turns.end {
        for job in 0..JOBS {
            let logic = if turn == last { "2" } else { "1" };
            let entries: Vec<_> = (0..DAYS).map(|day| entry(turn, job, day, logic)).collect();
            let keys = (0..DAYS).map(|day| (key(day), turn.to_string().as_str().into())).collect();
            let commit = Commit {
                version: turn.to_string().as_str().into(),
                partitions: Base::new("1".into(), keys),
                attempts: Vec::new(),
                kept: None,
                recorded: false,
                order: u64::from(turn),
            };
            ledger.finish(&commit, &entries).await.unwrap();
        }
    }
}

/// The first and the last run by the library, those between as copies of the first.
async fn filled_in_postgres(server: &Server, turns: u32) -> Arc<dyn RunLedger> {
    let ledger = in_postgres(server).await;
    fill(&*ledger, 0..1, turns - 1).await;
    let per_turn = u64::from(DAYS) * JOBS as u64;
    if ledger.position().await.unwrap() == per_turn {
        let columns = "shape, partition, key, table_id, job, backfill, triggered_by, status, changes, logic, fingerprint,
                       queued_at, started_at, finished_at";
        let copy = format!(
            "INSERT INTO reprocess.run (position, stamp, run, is_current, commit_order, record, {columns})
             SELECT position + turn * {per_turn}, replace(stamp, 'run-0', 'run-' || turn), 'run-' || turn, false, turn,
                    replace(record::text, 'run-0', 'run-' || turn)::json, {columns}
             FROM reprocess.run, generate_series(1, {turns} - 2) AS turn WHERE run = 'run-0';
             UPDATE reprocess.ledger SET position = {per_turn} * ({turns} - 1);
             VACUUM ANALYZE"
        );
        run(&server.pool().await, copy).await;
    }
    fill(&*ledger, turns - 1..turns, turns - 1).await;
    ledger
}

fn entry(turn: u32, job: usize, day: u32, logic: &str) -> CommitEntry {
    let scope = Scope::key(key(day)).unwrap();
    let (run, job) = (format!("run-{turn}"), job_name(0, job));
    let stamp =
        json!({"run": run, "job": job, "op": "replace", "scope_digest": scope.digest(), "generation": 1});
    let record: RunRecord = serde_json::from_value(json!({
        "run": run, "job": job, "table": job.as_str(), "partition": key(day), "scope": scope, "stamp": stamp,
        "attempt": 1, "status": "committed", "trigger": "scheduled", "reason": "the daily run ".repeat(20),
        "requester": "ann", "build": "b", "logic": logic, "parameters": {}, "inputs": {}, "worker": "w",
        "queued_at": DateTime::UNIX_EPOCH, "started_at": DateTime::UNIX_EPOCH, "finished_at": DateTime::UNIX_EPOCH,
    }))
    .unwrap();
    let stamp = record.stamp.clone();
    let finish = TaskFinish { records: vec![record], deliver: true, ..TaskFinish::default() };
    CommitEntry { scope, change: Change::Adopt, stamp, attempt: 1, finish }
}

fn key(day: u32) -> PartitionKey {
    PartitionKey::of("day", date(day))
}

/// A running backfill of 10,000 tasks, as `fix`.
async fn running(ledger: &dyn RunLedger) {
    let id = "fix".into();
    if ledger.backfill(&id).await.unwrap().is_some() {
        return;
    }
    let world = World::new(1, 500);
    let request = world.request(1, CHAIN);
    let plan = world.plan(&request, &world.facts(&request));
    assert_eq!(plan.tasks.len(), 10_000);
    let (ann, now) = ("ann".into(), DateTime::UNIX_EPOCH);
    let _ = ledger.submit(&plan, &ann, now).await.unwrap();
    let path = [BackfillState::Planned, BackfillState::Approved, BackfillState::Running];
    for step in path.windows(2) {
        let change = StateChange { from: step[0], to: step[1], by: ann.clone(), approval: None, note: None };
        assert_eq!(ledger.transition(&id, &change, now).await.unwrap(), Transition::Done);
    }
    let can_run: Vec<_> = (0..CHAIN).map(|link| (job_name(0, link), LogicVersion::from("v2"))).collect();
    let claimed = ledger.claim(&id, &"w".into(), &can_run, 20, Duration::from_secs(600), now).await.unwrap();
    assert_eq!(claimed.len(), 20);
}

fn ledger(c: &mut Criterion) {
    let turns = std::env::var("LEDGER_TURNS").map_or(28, |turns| turns.parse().unwrap());
    let runtime = Runtime::new().unwrap();
    let sqlite = runtime.block_on(in_sqlite(turns));
    runtime.block_on(fill(&*sqlite, 0..turns, turns - 1));
    asked(c, "SQLite", &runtime, &*sqlite, turns);
    let server = Server::start();
    let postgres = runtime.block_on(filled_in_postgres(&server, turns));
    asked(c, "PostgreSQL", &runtime, &*postgres, turns);
}

fn asked(c: &mut Criterion, system: &str, runtime: &Runtime, ledger: &dyn RunLedger, turns: u32) {
    runtime.block_on(running(ledger));
    let rows = runtime.block_on(ledger.position()).unwrap();
    assert_eq!(rows, u64::from(DAYS) * JOBS as u64 * u64::from(turns));
    let table = TableId::from(job_name(0, 7).as_str());
    let days: Vec<_> = (0..DAYS).map(key).collect();
    let versions = |v: &str| (0..JOBS).map(|job| (job_name(0, job), LogicVersion::from(v))).collect();
    let (old, new) = (versions("1"), versions("2"));
    let one = [(job_name(0, 7), LogicVersion::from("1"))].into();
    let mut group = c.benchmark_group(format!("{system}, ledger of {rows} rows"));
    group.sample_size(20);
    macro_rules! asks {
        ($($name:literal, $answers:expr => $call:expr;)+) => {$(
            assert_eq!(runtime.block_on(async { $call.await.unwrap().len() }), $answers, $name);
            group.bench_function($name, |b| b.iter(|| runtime.block_on(async { $call.await.unwrap() })));
        )+};
    }
    asks! {
        "what produced a partition", 1 => ledger.current(&table, &days[3..4]);
        "its history", turns as usize => ledger.history(&table, &days[3], 100);
        "skip decision for 730 partitions", 730 => ledger.current(&table, &days);
        "outdated, none of 50 jobs", 0 => ledger.outdated(&new);
        "outdated, 730 of one job", 730 => ledger.outdated(&one);
        "outdated, all 36,500", 36_500 => ledger.outdated(&old);
        "progress of 10,000 tasks", 2 => async { ledger.progress(&"fix".into()).await.map(|p| p.tasks) };
        "recent 30 runs of a job", 30 => ledger.recent(&job_name(0, 7), 30);
    }
    group.finish();
}

criterion_group!(benches, ledger);
criterion_main!(benches);
