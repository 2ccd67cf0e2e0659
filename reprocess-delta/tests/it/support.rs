//! A table of sales in a folder, and the steps that tests take with it.

use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::{ArrayRef, Date32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use deltalake::datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use reprocess_core::Result;
use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::profile::ProfileSpec;
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::rows::Column;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::{Base, Pin, Slice};
use reprocess_core::domain::value::{Value, ValueKind};
use reprocess_core::ports::ledger::TaskFinish;
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_core::ports::writer::{
    Change, Commit, CommitEntry, CommitOutcome, CommitRequest, Intent, Op, PartitionWriter, Rows,
    StageRequest, Staged, StagedId, StampId, Visibility,
};
use reprocess_delta::{DeltaConfig, DeltaTable, deltalake};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

/// Day (NULL where empty), country, id, amount.
pub(crate) type Row<'a> = (&'a str, Option<&'a str>, i64, i64);

pub(crate) const MON: &str = "2026-10-05";
pub(crate) const TUE: &str = "2026-10-06";

pub(crate) struct Sales {
    folder: TempDir,
    place: Place,
    pub(crate) table: DeltaTable,
}

/// Where a table is, so that another process can be told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) location: String,
    pub(crate) config: DeltaConfig,
}

impl Place {
    pub(crate) fn open(&self) -> DeltaTable {
        DeltaTable::open_with(&self.location, spec(), self.config.clone()).unwrap()
    }
}

pub(crate) fn spec() -> TableSpec {
    let by_day = Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
    TableSpec::new("sales", by_day.with_key("country", ValueKind::Text))
}

impl Sales {
    /// The table exists and is empty.
    pub(crate) async fn new() -> Self {
        let sales = Self::absent();
        sales.table.create(&columns()).await.unwrap();
        sales
    }

    pub(crate) async fn with(rows: &[Row<'_>]) -> Self {
        let sales = Self::new().await;
        sales.replace("given", &Scope::whole_table(), rows).await;
        sales
    }

    pub(crate) fn absent() -> Self {
        let folder = TempDir::new().unwrap();
        let location = folder.path().join("sales").to_str().unwrap().to_owned();
        Self::at(Place { location, config: DeltaConfig::new() }, folder)
    }

    /// The table exists in an object store, and is empty.
    pub(crate) async fn in_store(place: Place) -> Self {
        let sales = Self::at(place, TempDir::new().unwrap());
        sales.table.create(&columns()).await.unwrap();
        sales
    }

    fn at(place: Place, folder: TempDir) -> Self {
        let table = place.open();
        Self { folder, place, table }
    }

    /// As another process would open it.
    pub(crate) fn again(&self) -> DeltaTable {
        self.place.open()
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("sales")
    }

    /// As the library underneath opens it.
    pub(crate) async fn raw(&self) -> deltalake::DeltaTable {
        let url = deltalake::ensure_table_uri(&self.place.location).unwrap();
        let options = self.place.config.storage_options.clone().into_iter().collect();
        deltalake::open_table_with_storage_options(url, options).await.unwrap()
    }

    pub(crate) async fn replace(&self, run: &str, scope: &Scope, rows: &[Row<'_>]) -> Commit {
        self.write(run, scope, Intent::Replace, batch(rows)).await
    }

    /// Stages and commits on what is there now.
    pub(crate) async fn write(&self, run: &str, scope: &Scope, intent: Intent, rows: RecordBatch) -> Commit {
        let entry = apply(&stage(&self.table, run, scope, intent, rows).await.unwrap());
        let base = self.table.head(scope).await.unwrap();
        done(commit(&self.table, &[entry], &base).await.unwrap())
    }

    /// Every row, as the library underneath shows them.
    pub(crate) async fn rows(&self) -> Vec<String> {
        raw_rows(&self.raw().await).await
    }

    pub(crate) async fn read(&self, pin: &Pin) -> Result<Vec<String>> {
        lines_of(self.table.read(pin).await?.1).await
    }

    pub(crate) async fn pin(&self, slice: Slice) -> Pin {
        let version = self.table.current().await.unwrap();
        let content =
            self.table.slice_versions(&version, std::slice::from_ref(&slice)).await.unwrap().remove(0);
        Pin { table: spec().id, version, slice, content }
    }
}

/// A Python with what these tests need of it; `None` where there is none, which fails the test where everything has to be
/// tested. `scripts/test` makes one.
pub(crate) fn python() -> Option<String> {
    let python = std::env::var("REPROCESS_TEST_PYTHON").ok();
    assert!(
        python.is_some() || std::env::var("CI").is_err(),
        "set REPROCESS_TEST_PYTHON, or run scripts/test"
    );
    python
}

pub(crate) async fn raw_rows(table: &deltalake::DeltaTable) -> Vec<String> {
    let session = SessionContext::new();
    session.register_table("t", table.table_provider().await.unwrap()).unwrap();
    let batches = session.sql("SELECT * FROM t").await.unwrap().collect().await.unwrap();
    let mut lines: Vec<_> = batches.iter().flat_map(lines).collect();
    lines.sort();
    lines
}

pub(crate) async fn lines_of(rows: reprocess_core::ports::reader::RowStream) -> Result<Vec<String>> {
    let batches: Vec<RecordBatch> = rows.try_collect().await?;
    let mut lines: Vec<_> = batches.iter().flat_map(lines).collect();
    lines.sort();
    Ok(lines)
}

/// Cells joined with `/`.
pub(crate) fn lines(batch: &RecordBatch) -> Vec<String> {
    let schema = batch.schema();
    let columns = schema.fields().iter().zip(batch.columns());
    let columns: Vec<_> = columns.map(|(field, array)| Column::new(field.name(), array).unwrap()).collect();
    let line = |row| columns.iter().map(|column| column.cell(row).to_string()).collect::<Vec<_>>().join("/");
    (0..batch.num_rows()).map(line).collect()
}

pub(crate) fn texts(rows: &[Row<'_>]) -> Vec<String> {
    let mut texts = lines(&batch(rows));
    texts.sort();
    texts
}

pub(crate) async fn stage(
    table: &DeltaTable,
    run: &str,
    scope: &Scope,
    intent: Intent,
    rows: impl Into<Rows>,
) -> Result<Staged> {
    table.stage(&request(table, run, scope, intent).await, rows.into()).await
}

pub(crate) async fn request(table: &DeltaTable, run: &str, scope: &Scope, intent: Intent) -> StageRequest {
    StageRequest {
        id: StagedId { stamp: stamp(run, scope, &intent), attempt: 1 },
        scope: scope.clone(),
        intent,
        visibility: Visibility::Direct,
        profile: ProfileSpec::new(),
        schema: SchemaPolicy::Refuse,
        base: table.head(scope).await.unwrap(),
    }
}

pub(crate) fn stamp(run: &str, scope: &Scope, intent: &Intent) -> StampId {
    let op = if matches!(intent, Intent::Merge(_)) { Op::Merge } else { Op::Replace };
    StampId { run: run.into(), job: "daily".into(), op, scope_digest: scope.digest(), generation: 1 }
}

pub(crate) fn apply(staged: &Staged) -> CommitEntry {
    entry(staged.id.stamp.clone(), &staged.scope, Change::Apply(staged.clone()))
}

pub(crate) fn entry(stamp: StampId, scope: &Scope, change: Change) -> CommitEntry {
    let finish = TaskFinish::default();
    CommitEntry { scope: scope.clone(), change, stamp, attempt: 1, finish }
}

pub(crate) async fn commit(
    table: &DeltaTable,
    entries: &[CommitEntry],
    base: &Base,
) -> Result<CommitOutcome> {
    table.commit(CommitRequest { entries, base, since: base, fence: None, keep: true, ledger: None }).await
}

pub(crate) fn done(outcome: CommitOutcome) -> Commit {
    match outcome {
        CommitOutcome::Committed(commit) => commit,
        other => panic!("not committed: {other:?}"),
    }
}

pub(crate) fn columns() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("day", DataType::Date32, true),
        Field::new("country", DataType::Utf8, true),
        Field::new("id", DataType::Int64, true),
        Field::new("amount", DataType::Int64, true),
    ]))
}

pub(crate) fn batch(rows: &[Row<'_>]) -> RecordBatch {
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(|row| days_since_epoch(row.0)).collect::<Date32Array>()),
        Arc::new(rows.iter().map(|row| row.1).collect::<StringArray>()),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.3))),
    ];
    RecordBatch::try_new(columns(), arrays).unwrap()
}

pub(crate) fn days_since_epoch(text: &str) -> Option<i32> {
    text.parse().ok().map(arrow_array::types::Date32Type::from_naive_date)
}

pub(crate) fn day(text: &str) -> PartitionKey {
    PartitionKey::of("day", Value::Date(text.parse().unwrap()))
}

pub(crate) fn days(texts: &[&str]) -> Scope {
    Scope::keys(texts.iter().map(|text| day(text))).unwrap()
}
