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
use reprocess_postgres::{PostgresConfig, PostgresDatabase, PostgresTable};
use sqlx::PgConnection;

use crate::server::TestDatabase;

/// One row: day, country, id, amount, revision. No day or country is NULL.
pub(crate) type Row<'a> = (&'a str, &'a str, i64, i64, i64);

pub(crate) struct Fixture {
    pub(crate) table: PostgresTable,
    pub(crate) db: PostgresDatabase,
    pub(crate) database: TestDatabase,
}

pub(crate) fn by_day_and_country() -> Partitioning {
    Partitioning::unpartitioned()
        .with_time("day", Grain::Day, chrono_tz::UTC)
        .with_key("country", ValueKind::Text)
}

pub(crate) async fn fixture() -> Fixture {
    fixture_of(by_day_and_country()).await
}

/// The table exists and is empty.
pub(crate) async fn fixture_of(partitioning: Partitioning) -> Fixture {
    let database = TestDatabase::fresh().await;
    let db = open(&database).await;
    let table = table_of(&db, "sales", partitioning).await;
    table.create(&columns()).await.unwrap();
    Fixture { table, db, database }
}

pub(crate) async fn open(database: &TestDatabase) -> PostgresDatabase {
    // Small batches, so that every test crosses a border between two.
    PostgresConfig::new().with_batch_rows(2).connect(database.address()).await.unwrap()
}

pub(crate) async fn table_of(db: &PostgresDatabase, name: &str, partitioning: Partitioning) -> PostgresTable {
    PostgresTable::open(db.clone(), TableSpec::new(name, partitioning)).await.unwrap()
}

pub(crate) fn columns() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("day", DataType::Date32, true),
        Field::new("country", DataType::Utf8, true),
        Field::new("id", DataType::Int64, true),
        Field::new("amount", DataType::Int64, true),
        Field::new("rev", DataType::Int64, true),
    ]))
}

pub(crate) fn batch(rows: &[Row<'_>]) -> RecordBatch {
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

pub(crate) fn of(batch: RecordBatch) -> Rows {
    Rows::Stream { schema: batch.schema(), stream: stream::iter([Ok(batch)]).boxed() }
}

pub(crate) fn date(text: &str) -> NaiveDate {
    text.parse().unwrap()
}

pub(crate) fn day(text: &str) -> PartitionKey {
    PartitionKey::of("day", date(text))
}

pub(crate) fn scope(key: PartitionKey) -> Scope {
    Scope::key(key).unwrap()
}

pub(crate) fn days(texts: &[&str]) -> Scope {
    Scope::keys(texts.iter().map(|text| day(text))).unwrap()
}

pub(crate) fn stamp(run: &str, scope: &Scope, op: Op) -> StampId {
    StampId { run: run.into(), job: "daily".into(), op, scope_digest: scope.digest(), generation: 1 }
}

pub(crate) fn finish() -> TaskFinish {
    TaskFinish::default()
}

pub(crate) fn request(run: &str, scope: &Scope, intent: Intent) -> StageRequest {
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

pub(crate) fn apply(staged: &Staged) -> CommitEntry {
    CommitEntry {
        scope: staged.scope.clone(),
        change: Change::Apply(staged.clone()),
        stamp: staged.id.stamp.clone(),
        attempt: staged.id.attempt,
        finish: finish(),
    }
}

pub(crate) async fn commit(
    table: &PostgresTable,
    entries: &[CommitEntry],
    base: &Base,
    keep: bool,
) -> Result<CommitOutcome> {
    table.commit(CommitRequest { entries, base, since: base, fence: None, keep, ledger: None }).await
}

pub(crate) fn committed(outcome: CommitOutcome) -> Commit {
    match outcome {
        CommitOutcome::Committed(commit) => commit,
        other => panic!("not committed: {other:?}"),
    }
}

/// Merges by id.
pub(crate) fn by_id() -> MergeKeys {
    MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: None }
}

impl Fixture {
    pub(crate) async fn stage(
        &self,
        run: &str,
        scope: &Scope,
        intent: Intent,
        rows: &[Row<'_>],
    ) -> Result<Staged> {
        self.table.stage(&request(run, scope, intent), of(batch(rows))).await
    }

    /// Stages and commits on the present base.
    pub(crate) async fn write(&self, run: &str, scope: &Scope, intent: Intent, rows: &[Row<'_>]) -> Commit {
        let base = self.table.head(scope).await.unwrap();
        let staged = self.stage(run, scope, intent, rows).await.unwrap();
        committed(commit(&self.table, &[apply(&staged)], &base, true).await.unwrap())
    }

    pub(crate) async fn replace(&self, run: &str, scope: &Scope, rows: &[Row<'_>]) -> Commit {
        self.write(run, scope, Intent::Replace, rows).await
    }

    pub(crate) async fn rows(&self) -> Vec<String> {
        rows(&self.table).await
    }

    pub(crate) async fn version(&self, key: PartitionKey) -> PartitionVersion {
        let key_scope = if key.is_whole() { Scope::whole_table() } else { scope(key.clone()) };
        self.table.head(&key_scope).await.unwrap().partitions[&key].clone()
    }

    /// A connection that knows nothing of reprocess.
    pub(crate) async fn other(&self) -> PgConnection {
        self.database.raw().await
    }

    /// Waits until so many connections to the database wait for a lock.
    pub(super) async fn until_waiting(&self, count: i64) {
        let mut look = self.other().await;
        let waits = "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while sqlx::query_scalar::<_, i64>(waits).fetch_one(&mut look).await.unwrap() < count {
            tokio::task::yield_now().await;
        }
    }

    pub(crate) async fn sql(&self, sql: &str) {
        // The role may have the name of our schema, which would be looked into first.
        self.database.execute(&format!("SET search_path = public; {sql}")).await;
    }
}

pub(crate) async fn pin(reader: &dyn SnapshotReader, slice: Slice) -> Result<Pin> {
    let version = reader.current().await?;
    let content = reader.slice_versions(&version, std::slice::from_ref(&slice)).await?.remove(0);
    Ok(Pin { table: reader.table().clone(), version, slice, content })
}

pub(crate) async fn read(reader: &dyn SnapshotReader, pin: &Pin) -> Result<Vec<String>> {
    let (_, stream) = reader.read(pin).await?;
    texts(stream).await
}

/// All rows as sorted text.
pub(crate) async fn rows(reader: &dyn SnapshotReader) -> Vec<String> {
    let pin = pin(reader, Slice::All).await.unwrap();
    read(reader, &pin).await.unwrap()
}

pub(crate) async fn texts(stream: RowStream) -> Result<Vec<String>> {
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

pub(crate) fn refused<T>(result: Result<T>, words: &[&str]) -> Error {
    let Err(error) = result else { panic!("not refused") };
    for word in words {
        assert!(error.to_string().contains(word), "{error} does not say {word}");
    }
    error
}

pub(crate) fn value(text: &str) -> Value {
    Value::from(text)
}
