//! A small table of sales, and the steps that the tests take with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::types::Date32Type;
use arrow_array::{ArrayRef, Date32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use chrono::NaiveDate;
use futures::{StreamExt, TryStreamExt, stream};
use reprocess_core::domain::ids::PartitionVersion;
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
use reprocess_core::ports::reader::{RowStream, SnapshotReader};
use reprocess_core::ports::writer::{
    Change, Commit, CommitEntry, CommitOutcome, CommitRequest, Intent, MergeKeys, Op, PartitionWriter, Rows,
    StageRequest, Staged, StagedId, StampId, Visibility,
};
use reprocess_core::{Error, Result};
use reprocess_sqlite::{Durability, SqliteConfig, SqliteDatabase, SqliteTable};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor};
use tempfile::TempDir;

/// One row: day, country, id, amount, revision. No day or country is NULL.
pub(super) type Row<'a> = (&'a str, &'a str, i64, i64, i64);

pub(super) struct Fixture {
    pub(super) folder: TempDir,
    pub(super) db: SqliteDatabase,
    pub(super) table: SqliteTable,
}

pub(super) fn by_day_and_country() -> Partitioning {
    Partitioning::unpartitioned()
        .with_time("day", Grain::Day, chrono_tz::UTC)
        .with_key("country", ValueKind::Text)
}

pub(super) async fn fixture() -> Fixture {
    fixture_of(by_day_and_country()).await
}

/// The table exists and is empty.
pub(super) async fn fixture_of(partitioning: Partitioning) -> Fixture {
    let folder = TempDir::new().unwrap();
    let db = open(&folder).await;
    let table = SqliteTable::new(db.clone(), TableSpec::new("sales", partitioning));
    table.create(&columns()).await.unwrap();
    Fixture { folder, db, table }
}

pub(super) async fn open(folder: &TempDir) -> SqliteDatabase {
    // Small batches, so that every test crosses a border between two.
    let config = SqliteConfig::new().with_batch_rows(2).with_durability(Durability::Normal);
    config.open(folder.path().join("a file?.db")).await.unwrap()
}

pub(super) fn columns() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("day", DataType::Date32, true),
        Field::new("country", DataType::Utf8, true),
        Field::new("id", DataType::Int64, true),
        Field::new("amount", DataType::Int64, true),
        Field::new("rev", DataType::Int64, true),
    ]))
}

pub(super) fn batch(rows: &[Row<'_>]) -> RecordBatch {
    let days = rows.iter().map(|row| row.0.parse().ok().map(Date32Type::from_naive_date));
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(days.collect::<Date32Array>()),
        Arc::new(rows.iter().map(|row| Some(row.1).filter(|c| *c != "NULL")).collect::<StringArray>()),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.3))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.4))),
    ];
    RecordBatch::try_new(columns(), arrays).unwrap()
}

pub(super) fn of(batch: RecordBatch) -> Rows {
    Rows::Stream { schema: batch.schema(), stream: stream::iter([Ok(batch)]).boxed() }
}

pub(super) fn date(text: &str) -> NaiveDate {
    text.parse().unwrap()
}

pub(super) fn day(text: &str) -> PartitionKey {
    PartitionKey::of("day", date(text))
}

pub(super) fn scope(key: PartitionKey) -> Scope {
    Scope::key(key).unwrap()
}

pub(super) fn days(texts: &[&str]) -> Scope {
    Scope::keys(texts.iter().map(|text| day(text))).unwrap()
}

pub(super) fn stamp(run: &str, scope: &Scope, op: Op) -> StampId {
    StampId { run: run.into(), job: "daily".into(), op, scope_digest: scope.digest(), generation: 1 }
}

pub(super) fn finish() -> TaskFinish {
    TaskFinish::default()
}

pub(super) fn request(run: &str, scope: &Scope, intent: Intent) -> StageRequest {
    let op = if matches!(intent, Intent::Merge(_)) { Op::Merge } else { Op::Replace };
    StageRequest {
        id: StagedId { stamp: stamp(run, scope, op), attempt: 1 },
        scope: scope.clone(),
        intent,
        visibility: Visibility::Direct,
        profile: ProfileSpec::new(),
        schema: SchemaPolicy::Refuse,
        base: Base::new("0".into(), BTreeMap::new()),
    }
}

pub(super) fn apply(staged: &Staged) -> CommitEntry {
    CommitEntry {
        scope: staged.scope.clone(),
        change: Change::Apply(staged.clone()),
        stamp: staged.id.stamp.clone(),
        attempt: staged.id.attempt,
        finish: finish(),
    }
}

pub(super) async fn commit(
    table: &SqliteTable,
    entries: &[CommitEntry],
    base: &Base,
    keep: bool,
) -> Result<CommitOutcome> {
    table.commit(CommitRequest { entries, base, since: base, fence: None, keep, ledger: None }).await
}

pub(super) fn committed(outcome: CommitOutcome) -> Commit {
    match outcome {
        CommitOutcome::Committed(commit) => commit,
        other => panic!("not committed: {other:?}"),
    }
}

/// Merges by id.
pub(super) fn by_id() -> MergeKeys {
    MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: None }
}

impl Fixture {
    pub(super) async fn stage(
        &self,
        run: &str,
        scope: &Scope,
        intent: Intent,
        rows: &[Row<'_>],
    ) -> Result<Staged> {
        self.table.stage(&request(run, scope, intent), of(batch(rows))).await
    }

    /// Stages and commits on the present base.
    pub(super) async fn write(&self, run: &str, scope: &Scope, intent: Intent, rows: &[Row<'_>]) -> Commit {
        let base = self.table.head(scope).await.unwrap();
        let staged = self.stage(run, scope, intent, rows).await.unwrap();
        committed(commit(&self.table, &[apply(&staged)], &base, true).await.unwrap())
    }

    pub(super) async fn replace(&self, run: &str, scope: &Scope, rows: &[Row<'_>]) -> Commit {
        self.write(run, scope, Intent::Replace, rows).await
    }

    pub(super) async fn rows(&self) -> Vec<String> {
        rows(&self.table).await
    }

    pub(super) async fn version(&self, key: PartitionKey) -> PartitionVersion {
        let key_scope = if key.is_whole() { Scope::whole_table() } else { scope(key.clone()) };
        self.table.head(&key_scope).await.unwrap().partitions[&key].clone()
    }

    /// A connection that knows nothing of reprocess.
    pub(super) async fn other(&self) -> SqliteConnection {
        SqliteConnectOptions::new().filename(self.db.path()).connect().await.unwrap()
    }

    pub(super) async fn sql(&self, sql: &str) {
        self.other().await.execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
    }
}

pub(super) async fn pin(reader: &dyn SnapshotReader, slice: Slice) -> Result<Pin> {
    let version = reader.current().await?;
    let content = reader.slice_versions(&version, std::slice::from_ref(&slice)).await?.remove(0);
    Ok(Pin { table: reader.table().clone(), version, slice, content })
}

pub(super) async fn read(reader: &dyn SnapshotReader, pin: &Pin) -> Result<Vec<String>> {
    let (_, stream) = reader.read(pin).await?;
    texts(stream).await
}

/// All rows as sorted text.
pub(super) async fn rows(reader: &dyn SnapshotReader) -> Vec<String> {
    let pin = pin(reader, Slice::All).await.unwrap();
    read(reader, &pin).await.unwrap()
}

pub(super) async fn texts(stream: RowStream) -> Result<Vec<String>> {
    let batches: Vec<RecordBatch> = stream.try_collect().await?;
    let mut texts = Vec::new();
    for batch in &batches {
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
    Ok(texts)
}

pub(super) fn refused<T>(result: Result<T>, words: &[&str]) -> Error {
    let Err(error) = result else { panic!("not refused") };
    for word in words {
        assert!(error.to_string().contains(word), "{error} does not say {word}");
    }
    error
}

pub(super) fn value(text: &str) -> Value {
    Value::from(text)
}
