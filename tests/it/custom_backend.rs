//! The backend of the example, through its ports and under the engine.

use std::path::Path;
use std::sync::Arc;

use futures::TryStreamExt;
use reprocess::ErrorKind;
use reprocess::arrow::array::cast::AsArray;
use reprocess::arrow::array::types::{Date32Type, Int64Type};
use reprocess::arrow::array::{ArrayRef, Date32Array, Int64Array, RecordBatch};
use reprocess::domain::job::{JobSpec, TableSpec, Window};
use reprocess::domain::profile::{ProfileSpec, Total};
use reprocess::domain::request::{Mode, SchemaPolicy};
use reprocess::domain::scope::Scope;
use reprocess::domain::slice::{Base, Pin, Slice};
use reprocess::engine::{Engine, Host, Job, RunOutcome, RunRequest, Submission};
use reprocess::memory::MemoryLedger;
use reprocess::ports::ledger::{BackfillState, TaskFinish};
use reprocess::ports::reader::SnapshotReader;
use reprocess::ports::transform::{HostError, TaskContext};
use reprocess::ports::writer::{
    Change, Commit, CommitEntry, CommitOutcome, CommitRequest, Found, Intent, Moved, MovedBy, Op,
    PartitionWriter, Rows, StageRequest, Staged, StagedId, StampId, Visibility,
};

use super::support::{daily, date, day, execute, request, worker};
use example::DirTable;

#[allow(dead_code, reason = "the example's own entry point is not used here")]
#[path = "../../examples/custom_backend.rs"]
mod example;

fn batch(rows: &[(u32, i64)]) -> RecordBatch {
    let days: ArrayRef =
        Arc::new(Date32Array::from_iter_values(rows.iter().map(|r| Date32Type::from_naive_date(date(r.0)))));
    let visits: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.1)));
    RecordBatch::try_from_iter([("day", days), ("visits", visits)]).unwrap()
}

async fn table(dir: &Path) -> DirTable {
    let table = DirTable::open(dir, TableSpec::new("visits", daily())).unwrap();
    table.create(&batch(&[]).schema()).await.unwrap();
    table
}

/// Every row, as `day: visits`.
async fn rows(table: &DirTable) -> Vec<String> {
    let version = table.current().await.unwrap();
    let content = table.slice_versions(&version, &[Slice::All]).await.unwrap().remove(0);
    let pin = Pin { table: "visits".into(), version, slice: Slice::All, content };
    let batches: Vec<_> = table.read(&pin).await.unwrap().1.try_collect().await.unwrap();
    let texts = |batch: &RecordBatch| {
        let days = batch.column(0).as_primitive::<Date32Type>().clone();
        let visits = batch.column(1).as_primitive::<Int64Type>().clone();
        let text = |row| format!("{}: {}", days.value_as_date(row).unwrap(), visits.value(row));
        (0..batch.num_rows()).map(text).collect::<Vec<_>>()
    };
    batches.iter().flat_map(texts).collect()
}

async fn stage(table: &DirTable, run: &str, days: &[u32], rows: &[(u32, i64)]) -> reprocess::Result<Staged> {
    let scope = Scope::keys(days.iter().map(|d| day(*d))).unwrap();
    let digest = scope.digest();
    let stamp = StampId {
        run: run.into(),
        job: "visits".into(),
        op: Op::Replace,
        scope_digest: digest,
        generation: 1,
    };
    let request = StageRequest {
        id: StagedId { stamp, attempt: 1 },
        base: table.head(&scope).await.unwrap(),
        scope,
        intent: Intent::Replace,
        visibility: Visibility::Direct,
        profile: ProfileSpec::new(),
        schema: SchemaPolicy::Refuse,
    };
    table.stage(&request, batch(rows).into()).await
}

async fn commit(table: &DirTable, staged: &Staged, base: &Base) -> CommitOutcome {
    let finish = TaskFinish {
        records: Vec::new(),
        task: None,
        deliver: false,
        stale: Vec::new(),
        pinned_at: 0,
        reads: Vec::new(),
    };
    let entry = CommitEntry {
        scope: staged.scope.clone(),
        change: Change::Apply(staged.clone()),
        stamp: staged.id.stamp.clone(),
        attempt: 1,
        finish,
    };
    let entries = [entry];
    let request =
        CommitRequest { entries: &entries, base, since: base, fence: None, keep: false, ledger: None };
    table.commit(request).await.unwrap()
}

async fn replace(table: &DirTable, run: &str, days: &[u32], rows: &[(u32, i64)]) -> Commit {
    let staged = stage(table, run, days, rows).await.unwrap();
    let base = table.head(&staged.scope).await.unwrap();
    match commit(table, &staged, &base).await {
        CommitOutcome::Committed(commit) => commit,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_replace_acts_on_its_days_and_an_empty_one_empties_them() {
    let dir = tempfile::tempdir().unwrap();
    let table = table(dir.path()).await;
    replace(&table, "r1", &[1, 2, 3], &[(1, 10), (2, 20), (2, 21), (3, 30)]).await;
    replace(&table, "r2", &[2, 3], &[(3, 31)]).await;
    assert_eq!(rows(&table).await, ["2026-10-01: 10", "2026-10-03: 31"]);
    let (_, profiles) =
        table.profile(&Scope::keys([day(2), day(3)]).unwrap(), &ProfileSpec::new()).await.unwrap();
    assert_eq!((profiles[0].rows, profiles[1].totals["visits"]), (0, Total::Exact(31.into())));
    let error = stage(&table, "r3", &[1], &[(2, 1)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("day=2026-10-02"), "{error}");
}

#[tokio::test]
async fn a_partition_that_moved_is_not_overwritten_also_where_it_was_empty() {
    let dir = tempfile::tempdir().unwrap();
    let table = table(dir.path()).await;
    let staged = stage(&table, "slow", &[1], &[(1, 1)]).await.unwrap();
    let base = table.head(&staged.scope).await.unwrap();
    replace(&table, "quick", &[1], &[(1, 2)]).await;
    let now = table.head(&staged.scope).await.unwrap().partitions[&day(1)].clone();
    let moved = vec![Moved { partition: day(1), by: MovedBy::Content, now }];
    assert_eq!(commit(&table, &staged, &base).await, CommitOutcome::Conflicted { moved });
    assert_eq!(rows(&table).await, ["2026-10-01: 2"]);
    table.discard(&staged.id).await.unwrap();
    table.discard(&staged.id).await.unwrap();
}

#[tokio::test]
async fn the_same_stamp_again_answers_the_first_commit_also_to_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let first = table(dir.path()).await;
    let staged = stage(&first, "r1", &[1], &[(1, 10)]).await.unwrap();
    let base = first.head(&staged.scope).await.unwrap();
    let CommitOutcome::Committed(done) = commit(&first, &staged, &base).await else { panic!("no commit") };
    let version = first.current().await.unwrap();
    let second = table(dir.path()).await;
    assert_eq!(commit(&second, &staged, &base).await, CommitOutcome::AlreadyCommitted(done.clone()));
    let found = second.find_commit(&staged.id.stamp, &staged.scope, &base).await.unwrap();
    assert_eq!(found, Found::Yes(done));
    assert_eq!(second.current().await.unwrap(), version);
    assert_eq!(second.discard(&staged.id).await.unwrap_err().kind(), ErrorKind::State);
}

#[tokio::test]
async fn of_two_writers_of_one_day_one_wins() {
    let dir = tempfile::tempdir().unwrap();
    let table = Arc::new(table(dir.path()).await);
    let base = table.head(&Scope::key(day(1)).unwrap()).await.unwrap();
    let racer = |number: i64| {
        let (table, base) = (Arc::clone(&table), base.clone());
        tokio::spawn(async move {
            let staged = stage(&table, &format!("r{number}"), &[1], &[(1, number)]).await.unwrap();
            commit(&table, &staged, &base).await
        })
    };
    let mut won = 0;
    for racer in (1..=8).map(racer).collect::<Vec<_>>() {
        won += usize::from(matches!(racer.await.unwrap(), CommitOutcome::Committed(_)));
    }
    assert_eq!(won, 1);
    assert_eq!(rows(&table).await.len(), 1);
}

/// Ten visits a day and the number of the day, times the factor of the logic.
fn count(task: &TaskContext, factor: i64) -> Result<Rows, HostError> {
    let day = task.date().ok_or("no day")?;
    let number = (day - date(1)).num_days() + 1;
    Ok(batch(&[(u32::try_from(number)?, factor * (10 + number))]).into())
}

/// A job that fills `visits`, and one that copies each day of it to `copy`.
fn engine(dir: &Path) -> Engine {
    let mut host = Host::new("test");
    for name in ["visits", "copy"] {
        let spec = TableSpec::new(name, daily());
        host.add_table(spec.clone(), Arc::new(DirTable::open(dir.join(name), spec).unwrap())).unwrap();
    }
    let visits = Job::new(JobSpec::new("visits", "web", "visits"))
        .transform_blocking("v1", |task, _| count(task, 1))
        .transform_blocking("v2", |task, _| count(task, 2));
    host.add_job(visits).unwrap();
    let copy = JobSpec::new("copy", "web", "copy").with_input("visits", "visits", Window::Same);
    let copy = Job::new(copy)
        .transform_blocking("v1", |_, mut inputs| Ok(Rows::from(inputs.remove("visits").ok_or("no input")?)));
    host.add_job(copy).unwrap();
    Engine::new(host, Arc::new(MemoryLedger::new()))
}

#[tokio::test]
async fn a_backfill_in_direct_mode_replaces_its_days_and_finds_them_unchanged_the_second_time() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path());
    for d in 1..=3 {
        for job in ["visits", "copy"] {
            let run = RunRequest::scheduled(format!("{job}-{d}"), job, day(d));
            let run = if job == "visits" { run.with_logic("v1") } else { run };
            assert_eq!(engine.run(&run, &worker()).await.unwrap(), RunOutcome::Committed);
        }
    }
    let fix = request("fix", (1, 2)).with_job("visits", "v2").with_job("copy", "v1");
    let refused = engine.plan(&fix).await.unwrap().refused;
    assert!(refused.iter().any(|r| r.reason.contains("has no shadow")), "{refused:?}");
    assert!(refused.iter().any(|r| r.reason.contains("cannot keep replaced rows")), "{refused:?}");

    let fix = fix.with_mode(Mode::Direct).without_kept_rows();
    assert_eq!(execute(&engine, &fix).await.state, BackfillState::Published);
    for name in ["visits", "copy"] {
        let table = DirTable::open(dir.path().join(name), TableSpec::new(name, daily())).unwrap();
        assert_eq!(rows(&table).await, ["2026-10-01: 22", "2026-10-02: 24", "2026-10-03: 13"], "{name}");
    }
    let again = engine.plan(&fix).await.unwrap();
    assert_eq!(again.skipped.len(), 4);
    assert_eq!(engine.submit(&again, &fix.requester).await.unwrap(), Submission::NothingToDo);
    assert_eq!(engine.ledger().changes(&fix.id).await.unwrap().len(), 4);
}
