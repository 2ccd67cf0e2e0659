//! Small plans, records and commits for a ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::domain::estimate::{EstimateInput, History, estimate};
use crate::domain::ids::{Actor, JobName, LogicVersion, PartitionVersion};
use crate::domain::partition::PartitionKey;
use crate::domain::plan::Plan;
use crate::domain::request::{Request, SchemaPolicy, Selection};
use crate::domain::scope::Scope;
use crate::domain::slice::{Base, Kept};
use crate::domain::value::Value;
use crate::ports::delivery::{Delivery, DeliveryState};
use crate::ports::ledger::{
    BackfillState, Claim, DeliveryFilter, RunLedger, RunRecord, StateChange, Submitted, TaskFinish,
    TaskResult, TaskState, Transition,
};
use crate::ports::writer::{self, Commit, CommitEntry, Intent, Op, Staged, StagedId, StampId, Visibility};
use arrow_schema::Schema;
use chrono::{DateTime, Utc};
use serde_json::json;

pub(in crate::conformance) const JOB: &str = "daily";
pub(in crate::conformance) const TABLE: &str = "sales";
pub(in crate::conformance) const TTL: Duration = Duration::from_secs(60);

/// So many seconds after the epoch.
pub(in crate::conformance) fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(seconds, 0).unwrap()
}

pub(in crate::conformance) fn day(day: u32) -> PartitionKey {
    PartitionKey::of("day", Value::Date(format!("2026-10-{day:02}").parse().unwrap()))
}

pub(in crate::conformance) fn days(count: u32) -> Vec<PartitionKey> {
    (1..=count).map(day).collect()
}

pub(in crate::conformance) fn scope(key: &PartitionKey) -> Scope {
    if key.is_whole() { Scope::whole_table() } else { Scope::key(key.clone()).unwrap() }
}

pub(in crate::conformance) fn me() -> Actor {
    Actor::from("ada")
}

/// A plan in its first generation with one task per key; `after` lists for each task those before it.
pub(in crate::conformance) fn plan(id: &str, keys: &[PartitionKey], after: &[&[u32]]) -> Plan {
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

pub(in crate::conformance) fn change(from: BackfillState, to: BackfillState) -> StateChange {
    StateChange { from, to, by: me(), approval: None, note: None }
}

pub(in crate::conformance) fn stamp(run: &str, key: &PartitionKey) -> StampId {
    let scope_digest = scope(key).digest();
    StampId { run: run.into(), job: JOB.into(), op: Op::Replace, scope_digest, generation: 1 }
}

/// A committed row of a run that waited 10 seconds from `at(0)` and took 5.
pub(in crate::conformance) fn record(run: &str, key: &PartitionKey) -> RunRecord {
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

pub(in crate::conformance) fn finish(records: Vec<RunRecord>) -> TaskFinish {
    TaskFinish { records, ..TaskFinish::default() }
}

pub(in crate::conformance) fn entry(finish: TaskFinish, attempt: u32) -> CommitEntry {
    let record = finish.records[0].clone();
    // The change is not looked at by a ledger.
    let change = writer::Change::Restore(Kept(serde_json::Value::Null));
    CommitEntry { scope: record.scope, change, stamp: record.stamp, attempt, finish }
}

pub(in crate::conformance) fn commit(version: &str, entry: &CommitEntry, attempt: u32) -> Commit {
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
pub(in crate::conformance) async fn finished(ledger: &dyn RunLedger, record: RunRecord) {
    let entry = entry(finish(vec![record]), 1);
    ledger.finish(&commit("1", &entry, 1), &[entry]).await.unwrap();
}

pub(in crate::conformance) fn result() -> TaskResult {
    TaskResult::new(Base::new("0".into(), BTreeMap::new()), 0)
}

pub(in crate::conformance) fn mail(key: &str) -> Delivery {
    Delivery { key: key.into(), channel: "mail".into(), payload: json!({ "to": "ada" }) }
}

pub(in crate::conformance) fn staged(run: &str, attempt: u32) -> StagedId {
    StagedId { stamp: stamp(run, &day(1)), attempt }
}

pub(in crate::conformance) async fn submit(ledger: &dyn RunLedger, plan: &Plan) {
    assert_eq!(ledger.submit(plan, &me(), at(0)).await.unwrap(), Submitted::New);
}

pub(in crate::conformance) async fn move_to(
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
pub(in crate::conformance) async fn run(ledger: &dyn RunLedger, plan: &Plan) {
    submit(ledger, plan).await;
    let id = plan.request.id.as_str();
    move_to(ledger, id, BackfillState::Planned, BackfillState::Approved, 1).await;
    move_to(ledger, id, BackfillState::Approved, BackfillState::Running, 2).await;
}

pub(in crate::conformance) fn can_run() -> Vec<(JobName, LogicVersion)> {
    vec![("other".into(), "v2".into()), (JOB.into(), "v2".into())]
}

pub(in crate::conformance) async fn claim(
    ledger: &dyn RunLedger,
    worker: &str,
    limit: u32,
    now: i64,
) -> Vec<Claim> {
    ledger.claim(&"fix".into(), &worker.into(), &can_run(), limit, TTL, at(now)).await.unwrap()
}

pub(in crate::conformance) fn numbers(claims: &[Claim]) -> Vec<u32> {
    claims.iter().map(|claim| claim.task.0).collect()
}

pub(in crate::conformance) async fn states(ledger: &dyn RunLedger) -> Vec<TaskState> {
    ledger.tasks(&"fix".into()).await.unwrap().iter().map(|task| task.state).collect()
}

pub(in crate::conformance) async fn deliveries(ledger: &dyn RunLedger) -> Vec<DeliveryState> {
    let records = ledger.deliveries(&DeliveryFilter::default()).await.unwrap();
    records.into_iter().map(|record| record.state).collect()
}

/// What the first attempt of run `fix.1` staged for the first day.
pub(in crate::conformance) fn staged_set() -> Staged {
    let key = day(1);
    Staged {
        id: staged("fix.1", 1),
        scope: scope(&key),
        intent: Intent::Replace,
        visibility: Visibility::Direct,
        schema_policy: SchemaPolicy::Refuse,
        schema: Arc::new(Schema::empty()),
        received: BTreeSet::from([key]),
        profiles: Vec::new(),
        digest: "d".into(),
        payload: serde_json::Value::Null,
    }
}
