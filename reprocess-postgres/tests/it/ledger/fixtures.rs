//! Small plans, records and commits.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use reprocess_core::domain::estimate::{EstimateInput, History, estimate};
use reprocess_core::domain::ids::{Actor, JobName, LogicVersion, PartitionVersion};
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::plan::Plan;
use reprocess_core::domain::request::{Request, Selection};
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::{Base, Kept};
use reprocess_core::domain::value::Value;
use reprocess_core::ports::delivery::Delivery;
use reprocess_core::ports::ledger::{
    BackfillState, Claim, RunLedger, RunRecord, StateChange, Submitted, TaskFinish, TaskResult, TaskState,
    Transition,
};
use reprocess_core::ports::writer::{self, Commit, CommitEntry, Op, StampId};
use reprocess_postgres::PostgresLedger;
use serde_json::json;

use crate::server::TestDatabase;

pub(crate) const JOB: &str = "daily";
pub(crate) const TABLE: &str = "sales";
pub(crate) const TTL: Duration = Duration::from_secs(60);

/// So many seconds after the epoch.
pub(crate) fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(seconds, 0).unwrap()
}

pub(crate) fn day(day: u32) -> PartitionKey {
    PartitionKey::of("day", Value::Date(format!("2026-10-{day:02}").parse().unwrap()))
}

pub(crate) fn days(count: u32) -> Vec<PartitionKey> {
    (1..=count).map(day).collect()
}

pub(crate) fn scope(key: &PartitionKey) -> Scope {
    if key.is_whole() { Scope::whole_table() } else { Scope::key(key.clone()).unwrap() }
}

pub(crate) fn me() -> Actor {
    Actor::from("ada")
}

/// A plan in its first generation with one task per key; `after` lists for each task those before it.
pub(crate) fn plan(id: &str, keys: &[PartitionKey], after: &[&[u32]]) -> Plan {
    let task = |(number, key): (usize, &PartitionKey)| {
        json!({
            "id": number, "job": JOB, "logic": "v2", "table": TABLE, "units": [key], "interval": null,
            "scope": scope(key), "action": {"compute": {"inputs": {}, "fingerprint": null}},
            "base": Base::new("0".into(), BTreeMap::from([(key.clone(), "0".into())])),
            "after": after.get(number).copied().unwrap_or_default(),
        })
    };
    let selection = Selection::Keys(keys.iter().cloned().collect());
    let plan = json!({
        "format": 1,
        "request": Request::new(id, selection, "late rows", me()).with_job(JOB, "v2").with_concurrency(2),
        "generation": 1, "as_of": at(0), "position": 0,
        "tasks": keys.iter().enumerate().map(task).collect::<Vec<_>>(),
        "skipped": [], "refused": [], "downstream": [], "exposures": [], "owners": [], "widened": [], "warnings": [],
        "estimate": estimate(&EstimateInput::new(Vec::new(), 1), &History::new()),
    });
    let mut plan = Plan::from_json(&plan.to_string()).unwrap();
    // A JSON value has put the columns of keys into alphabetical order.
    for (task, key) in plan.tasks.iter_mut().zip(keys) {
        (task.units, task.scope) = (vec![key.clone()], scope(key));
    }
    plan
}

pub(crate) fn change(from: BackfillState, to: BackfillState) -> StateChange {
    StateChange { from, to, by: me(), approval: None, note: None }
}

pub(crate) fn stamp(run: &str, key: &PartitionKey) -> StampId {
    let scope_digest = scope(key).digest();
    StampId { run: run.into(), job: JOB.into(), op: Op::Replace, scope_digest, generation: 1 }
}

/// A committed row of a run that waited 10 seconds from `at(0)` and took 5.
pub(crate) fn record(run: &str, key: &PartitionKey) -> RunRecord {
    let record = json!({
        "run": run, "job": JOB, "table": TABLE, "partition": key, "scope": scope(key), "stamp": stamp(run, key),
        "attempt": 1, "status": "committed", "trigger": "scheduled", "reason": "", "requester": me(), "logic": "v1",
        "build": "abc", "parameters": {}, "inputs": {}, "queued_at": at(0), "started_at": at(10),
        "finished_at": at(15), "worker": "w1",
    });
    let mut record: RunRecord = serde_json::from_value(record).unwrap();
    (record.partition, record.scope) = (key.clone(), scope(key));
    record
}

pub(crate) fn finish(records: Vec<RunRecord>) -> TaskFinish {
    TaskFinish { records, ..TaskFinish::default() }
}

pub(crate) fn entry(finish: TaskFinish, attempt: u32) -> CommitEntry {
    let record = finish.records[0].clone();
    // The change is not looked at by a ledger.
    let change = writer::Change::Restore(Kept(serde_json::Value::Null));
    CommitEntry { scope: record.scope, change, stamp: record.stamp, attempt, finish }
}

pub(crate) fn commit(version: &str, entry: &CommitEntry, attempt: u32) -> Commit {
    let keys = entry.scope.partitions().into_iter().map(|key| (key, PartitionVersion::from(version)));
    Commit {
        version: version.into(),
        partitions: Base::new(version.into(), keys.collect()),
        attempts: vec![(entry.stamp.clone(), attempt)],
        kept: Some(Kept(json!({ "old": version }))),
        recorded: false,
        order: 0,
    }
}

/// Finishes a run of one partition.
pub(crate) async fn finished(ledger: &dyn RunLedger, record: RunRecord) {
    let entry = entry(finish(vec![record]), 1);
    ledger.finish(&commit("1", &entry, 1), &[entry]).await.unwrap();
}

pub(crate) fn result() -> TaskResult {
    TaskResult::new(Base::new("0".into(), BTreeMap::new()), 0)
}

pub(crate) fn mail(key: &str) -> Delivery {
    Delivery { key: key.into(), channel: "mail".into(), payload: json!({ "to": "ada" }) }
}

pub(crate) async fn submit(ledger: &dyn RunLedger, plan: &Plan) {
    assert_eq!(ledger.submit(plan, &me(), at(0)).await.unwrap(), Submitted::New);
}

pub(crate) async fn move_to(
    ledger: &dyn RunLedger,
    id: &str,
    from: BackfillState,
    to: BackfillState,
    now: i64,
) {
    let done = ledger.transition(&id.into(), &change(from, to), at(now)).await.unwrap();
    assert_eq!(done, Transition::Done);
}

/// Lets a plan run since `at(2)`.
pub(crate) async fn run(ledger: &dyn RunLedger, plan: &Plan) {
    submit(ledger, plan).await;
    let id = plan.request.id.as_str();
    move_to(ledger, id, BackfillState::Planned, BackfillState::Approved, 1).await;
    move_to(ledger, id, BackfillState::Approved, BackfillState::Running, 2).await;
}

pub(crate) fn can_run() -> Vec<(JobName, LogicVersion)> {
    vec![("other".into(), "v2".into()), (JOB.into(), "v2".into())]
}

pub(crate) async fn claim(ledger: &dyn RunLedger, worker: &str, limit: u32, now: i64) -> Vec<Claim> {
    ledger.claim(&"fix".into(), &worker.into(), &can_run(), limit, TTL, at(now)).await.unwrap()
}

pub(crate) async fn states(ledger: &dyn RunLedger) -> Vec<TaskState> {
    ledger.tasks(&"fix".into()).await.unwrap().iter().map(|task| task.state).collect()
}

/// A ledger by the time that the test tells; one call more is another handle on the same database.
pub(crate) async fn open(database: &TestDatabase) -> PostgresLedger {
    open_by_server(database).await.with_clock_of_callers()
}

/// A ledger by the clock of the server.
pub(crate) async fn open_by_server(database: &TestDatabase) -> PostgresLedger {
    PostgresLedger::open(database.connect().await).await.unwrap()
}
