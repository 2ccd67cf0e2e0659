//! Small plans, records and commits for the tests beside.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::types::Date32Type;
use arrow_array::{ArrayRef, Date32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use chrono::{DateTime, Utc};

use crate::domain::estimate::{EstimateInput, History, estimate};
use crate::domain::ids::{Actor, JobName, PartitionVersion, TableId, TableVersion};
use crate::domain::partition::PartitionKey;
use crate::domain::plan::{Action, PLAN_FORMAT, Plan, Task, TaskId};
use crate::domain::request::{Request, Selection};
use crate::domain::rows::Column;
use crate::domain::scope::Scope;
use crate::domain::slice::Base;
use crate::domain::value::Value;
use crate::ports::ledger::{BackfillState, RunRecord, RunStatus, StateChange, TaskFinish, Trigger};
use crate::ports::writer::{Commit, Op, StampId};

pub(super) const JOB: &str = "daily";
pub(super) const TABLE: &str = "sales";

/// So many seconds after the epoch.
pub(super) fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(seconds, 0).unwrap()
}

pub(super) fn day(text: &str) -> PartitionKey {
    PartitionKey::of("day", Value::Date(text.parse().unwrap()))
}

pub(super) fn scope(key: &PartitionKey) -> Scope {
    Scope::key(key.clone()).unwrap()
}

pub(super) fn me() -> Actor {
    Actor::from("ada")
}

/// A plan in its first generation with one task per key; `after` lists for each task those before it.
pub(super) fn plan(id: &str, keys: &[PartitionKey], after: &[&[u32]]) -> Plan {
    let task = |(number, key): (usize, &PartitionKey)| Task {
        id: TaskId(u32::try_from(number).unwrap()),
        job: JobName::from(JOB),
        logic: "v2".into(),
        table: TableId::from(TABLE),
        units: vec![key.clone()],
        interval: None,
        scope: scope(key),
        action: Action::Compute { inputs: BTreeMap::new(), fingerprint: None },
        base: Base::new(TableVersion::from("0"), BTreeMap::from([(key.clone(), "0".into())])),
        parameters: BTreeMap::new(),
        after: after.get(number).copied().unwrap_or_default().iter().copied().map(TaskId).collect(),
    };
    let selection = Selection::Keys(keys.iter().cloned().collect());
    Plan {
        format: PLAN_FORMAT,
        request: Request::new(id, selection, "late rows", me()).with_job(JOB, "v2").with_concurrency(2),
        generation: 1,
        as_of: at(0),
        position: 0,
        tasks: keys.iter().enumerate().map(task).collect(),
        skipped: Vec::new(),
        refused: Vec::new(),
        downstream: Vec::new(),
        exposures: Vec::new(),
        owners: Vec::new(),
        widened: Vec::new(),
        warnings: Vec::new(),
        estimate: estimate(&EstimateInput::new(Vec::new(), 1), &History::new()),
        rolls_back: None,
    }
}

pub(super) fn change(from: BackfillState, to: BackfillState) -> StateChange {
    StateChange { from, to, by: me(), approval: None, note: None }
}

pub(super) fn stamp(run: &str, key: &PartitionKey) -> StampId {
    StampId {
        run: run.into(),
        job: JobName::from(JOB),
        op: Op::Replace,
        scope_digest: scope(key).digest(),
        generation: 1,
    }
}

/// A row of a run that waited 10 seconds from `at(0)` and took 5.
pub(super) fn record(run: &str, key: &PartitionKey) -> RunRecord {
    RunRecord {
        run: run.into(),
        job: JobName::from(JOB),
        table: TableId::from(TABLE),
        partition: key.clone(),
        scope: scope(key),
        stamp: stamp(run, key),
        attempt: 1,
        status: RunStatus::Committed,
        error: None,
        trigger: Trigger::Scheduled,
        backfill: None,
        reason: String::new(),
        requester: me(),
        approval: None,
        logic: Some("v1".into()),
        build: "abc".into(),
        parameters: BTreeMap::new(),
        fingerprint: None,
        inputs: BTreeMap::new(),
        replays: None,
        base: None,
        output: None,
        output_partition: None,
        before: None,
        after: None,
        read_bytes: None,
        order: 0,
        verdict: None,
        kept: None,
        queued_at: at(0),
        started_at: at(10),
        finished_at: at(15),
        worker: "w1".into(),
    }
}

pub(super) fn finish(records: Vec<RunRecord>) -> TaskFinish {
    TaskFinish { records, ..TaskFinish::default() }
}

pub(super) fn commit(version: &str, stamp: &StampId, attempt: u32, key: &PartitionKey) -> Commit {
    let partitions = BTreeMap::from([(key.clone(), PartitionVersion::from(version))]);
    Commit {
        version: version.into(),
        partitions: Base::new(version.into(), partitions),
        attempts: vec![(stamp.clone(), attempt)],
        kept: None,
        recorded: false,
        order: 0,
    }
}

/// One row of the table of the tests: day, country, id, amount.
pub(super) type Row = (&'static str, Option<&'static str>, i64, i64);

pub(super) fn columns() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("day", DataType::Date32, true),
        Field::new("country", DataType::Utf8, true),
        Field::new("id", DataType::Int64, true),
        Field::new("amount", DataType::Int64, true),
    ]))
}

pub(super) fn batch(rows: &[Row]) -> RecordBatch {
    let days = rows.iter().map(|row| row.0.parse().ok().map(Date32Type::from_naive_date));
    let columns_of: Vec<ArrayRef> = vec![
        Arc::new(days.collect::<Date32Array>()),
        Arc::new(rows.iter().map(|row| row.1).collect::<StringArray>()),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.3))),
    ];
    RecordBatch::try_new(columns(), columns_of).unwrap()
}

/// The rows as sorted text, `day/country/id/amount` and then any further columns, so that tests can write them down.
pub(super) fn texts(batches: &[RecordBatch]) -> Vec<String> {
    let mut texts = Vec::new();
    for batch in batches {
        let schema = batch.schema();
        let columns: Vec<_> = schema
            .fields()
            .iter()
            .zip(batch.columns())
            .map(|(field, array)| Column::new(field.name(), array).unwrap())
            .collect();
        for row in 0..batch.num_rows() {
            texts.push(columns.iter().map(|c| c.cell(row).to_string()).collect::<Vec<_>>().join("/"));
        }
    }
    texts.sort();
    texts
}
