//! The backend of the example keeps the laws of its capabilities, and works under the engine.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use futures::TryStreamExt;
use reprocess::arrow::array::cast::AsArray;
use reprocess::arrow::array::types::{Date32Type, Int64Type};
use reprocess::arrow::array::{Array, ArrayRef, Date32Array, Int64Array, RecordBatch};
use reprocess::arrow::schema::DataType;
use reprocess::conformance::{Fixture, Handle, Hooks, Place};
use reprocess::domain::job::{JobSpec, TableSpec, Window};
use reprocess::domain::request::Mode;
use reprocess::domain::slice::{Pin, Slice};
use reprocess::engine::{Engine, Host, Job, RunOutcome, RunRequest, Submission};
use reprocess::memory::MemoryLedger;
use reprocess::ports::ledger::{BackfillState, RunLedger};
use reprocess::ports::reader::SnapshotReader;
use reprocess::ports::transform::{HostError, TaskContext};
use reprocess::ports::writer::Rows;

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

reprocess::conformance_tests!(Directories);

/// Each place is a directory, with a directory in it for each table.
struct Directories;

#[async_trait]
impl Fixture for Directories {
    fn hooks(&self) -> Hooks {
        Hooks::none()
    }

    async fn fresh(&self) -> Box<dyn Place> {
        Box::new(Directory { dir: tempfile::tempdir().unwrap(), ledger: Arc::new(MemoryLedger::new()) })
    }
}

struct Directory {
    dir: tempfile::TempDir,
    ledger: Arc<MemoryLedger>,
}

#[async_trait]
impl Place for Directory {
    async fn open(&self, spec: &TableSpec) -> Handle {
        Handle::of(DirTable::open(self.dir.path().join(spec.id.as_str()), spec.clone()).unwrap())
    }

    async fn ledger(&self) -> Arc<dyn RunLedger> {
        Arc::clone(&self.ledger) as Arc<dyn RunLedger>
    }

    /// The files that the last manifest lists, without the code of the table.
    async fn raw_rows(&self, spec: &TableSpec) -> Vec<String> {
        let dir = self.dir.path().join(spec.id.as_str());
        let names =
            std::fs::read_dir(&dir).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        let last = names.filter(|name| name.ends_with(".json")).max().unwrap();
        let manifest: serde_json::Value =
            serde_json::from_slice(&std::fs::read(dir.join(last)).unwrap()).unwrap();
        let mut lines = Vec::new();
        for part in manifest["parts"].as_object().unwrap().values() {
            let file = std::fs::File::open(dir.join(part["file"].as_str().unwrap())).unwrap();
            for batch in arrow_ipc::reader::FileReader::try_new(file, None).unwrap() {
                let batch = batch.unwrap();
                lines.extend((0..batch.num_rows()).map(|row| line(&batch, row)));
            }
        }
        lines.sort();
        lines
    }

    async fn write_as_stranger(&self, _: &TableSpec, _: &RecordBatch) {
        unreachable!("whoever writes to the directory goes through a manifest");
    }

    async fn expire(&self, _: &TableSpec) {
        unreachable!("nothing is ever removed");
    }
}

fn line(batch: &RecordBatch, row: usize) -> String {
    let cell = |column: &ArrayRef| match column.data_type() {
        _ if column.is_null(row) => "NULL".to_owned(),
        DataType::Date32 => column.as_primitive::<Date32Type>().value_as_date(row).unwrap().to_string(),
        DataType::Int64 => column.as_primitive::<Int64Type>().value(row).to_string(),
        _ => column.as_string::<i32>().value(row).to_owned(),
    };
    batch.columns().iter().map(cell).collect::<Vec<_>>().join("/")
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
