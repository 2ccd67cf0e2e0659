//! A table of sales in a fresh place, and the steps that laws take with it.

use std::sync::Arc;

use arrow_array::types::Date32Type;
use arrow_array::{ArrayRef, Date32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use chrono::{DateTime, Utc};
use futures::TryStreamExt;

use super::fixture::{Fixture, Handle, Place};
use crate::domain::interval::Grain;
use crate::domain::job::TableSpec;
use crate::domain::partition::{PartitionKey, Partitioning};
use crate::domain::profile::ProfileSpec;
use crate::domain::request::SchemaPolicy;
use crate::domain::rows::Column;
use crate::domain::scope::Scope;
use crate::domain::slice::{Base, Kept, Pin, Slice};
use crate::domain::value::{Value, ValueKind};
use crate::error::{Error, ErrorKind, Result};
use crate::ports::ledger::TaskFinish;
use crate::ports::reader::{RowStream, SnapshotReader};
use crate::ports::staged::StagedReader;
use crate::ports::writer::{
    Change, Commit, CommitEntry, CommitOutcome, CommitRequest, Intent, MergeKeys, MovedBy, Op,
    PartitionWriter, Rows, StageRequest, Staged, StagedId, StampId, Visibility,
};

pub(super) const MON: &str = "2026-10-05";
pub(super) const TUE: &str = "2026-10-06";
pub(super) const WED: &str = "2026-10-07";

/// Day (NULL where empty), country, id, amount.
pub(super) type Row = (&'static str, Option<&'static str>, i64, i64);

pub(super) struct World {
    pub(super) place: Box<dyn Place>,
    pub(super) spec: TableSpec,
    pub(super) table: Handle,
}

impl World {
    /// The table exists and is empty.
    pub(super) async fn new(fixture: &dyn Fixture) -> Self {
        Self::of(fixture, by_day_and_country(), &columns()).await
    }

    pub(super) async fn with(fixture: &dyn Fixture, rows: &[Row]) -> Self {
        let world = Self::new(fixture).await;
        world.replace("given", &Scope::whole_table(), rows).await;
        world
    }

    pub(super) async fn of(fixture: &dyn Fixture, partitioning: Partitioning, columns: &SchemaRef) -> Self {
        let world = Self::absent(fixture, partitioning).await;
        world.writer().create(columns).await.unwrap();
        world
    }

    /// The table does not exist yet.
    pub(super) async fn absent(fixture: &dyn Fixture, partitioning: Partitioning) -> Self {
        let place = fixture.fresh().await;
        let spec = TableSpec::new("sales", partitioning);
        let table = place.open(&spec).await;
        Self { place, spec, table }
    }

    pub(super) fn writer(&self) -> &dyn PartitionWriter {
        &*self.table.writer
    }

    pub(super) fn reader(&self) -> &dyn SnapshotReader {
        &*self.table.reader
    }

    pub(super) fn staged(&self) -> &dyn StagedReader {
        self.table.writer.staged().expect("a writer that declares a shadow reads staged sets")
    }

    pub(super) async fn request(&self, run: &str, scope: &Scope, intent: Intent) -> StageRequest {
        StageRequest {
            id: StagedId { stamp: stamp(run, scope, &intent), attempt: 1 },
            scope: scope.clone(),
            intent,
            visibility: Visibility::Direct,
            profile: ProfileSpec::new(),
            schema: SchemaPolicy::Refuse,
            base: self.head(scope).await,
        }
    }

    pub(super) async fn try_stage(
        &self,
        run: &str,
        scope: &Scope,
        intent: Intent,
        rows: RecordBatch,
    ) -> Result<Staged> {
        self.writer().stage(&self.request(run, scope, intent).await, rows.into()).await
    }

    pub(super) async fn stage(&self, run: &str, scope: &Scope, intent: Intent, rows: &[Row]) -> Staged {
        self.try_stage(run, scope, intent, batch(rows)).await.unwrap()
    }

    /// A staged replace, ready to commit.
    pub(super) async fn entry(&self, run: &str, scope: &Scope, rows: &[Row]) -> CommitEntry {
        apply(&self.stage(run, scope, Intent::Replace, rows).await)
    }

    pub(super) async fn replace(&self, run: &str, scope: &Scope, rows: &[Row]) -> Commit {
        self.write(run, scope, Intent::Replace, rows).await
    }

    /// Stages and commits on what is there now.
    pub(super) async fn write(&self, run: &str, scope: &Scope, intent: Intent, rows: &[Row]) -> Commit {
        let entry = apply(&self.stage(run, scope, intent, rows).await);
        self.committed(&entry).await
    }

    pub(super) async fn committed(&self, entry: &CommitEntry) -> Commit {
        let base = self.head(&entry.scope).await;
        done(self.commit(std::slice::from_ref(entry), &base).await)
    }

    pub(super) async fn commit(&self, entries: &[CommitEntry], base: &Base) -> CommitOutcome {
        self.try_commit(entries, base).await.unwrap()
    }

    /// Rows are kept where the backend can.
    pub(super) async fn try_commit(&self, entries: &[CommitEntry], base: &Base) -> Result<CommitOutcome> {
        let keep = self.writer().capabilities().restore;
        let request = CommitRequest { entries, base, since: base, fence: None, keep, ledger: None };
        self.writer().commit(request).await
    }

    pub(super) async fn head(&self, scope: &Scope) -> Base {
        self.writer().head(scope).await.unwrap()
    }

    /// Every row, as the reader and as other means show them.
    pub(super) async fn rows(&self) -> Vec<String> {
        let rows = self.rows_of(Slice::All).await;
        assert_eq!(self.place.raw_rows(&self.spec).await, rows, "the reader shows other rows than are there");
        rows
    }

    pub(super) async fn rows_of(&self, slice: Slice) -> Vec<String> {
        let pin = self.pin(slice).await;
        self.read(&pin).await.unwrap()
    }

    pub(super) async fn pin(&self, slice: Slice) -> Pin {
        pin(self.reader(), slice).await.unwrap()
    }

    pub(super) async fn read(&self, pin: &Pin) -> Result<Vec<String>> {
        texts(self.reader().read(pin).await?.1).await
    }

    /// Staging refuses these rows, says why, leaves nothing behind and will not be helped by a retry.
    pub(super) async fn refuses(&self, request: &StageRequest, rows: RecordBatch, words: &[&str]) {
        let before = self.rows().await;
        let error = refused(self.writer().stage(request, rows.into()).await, ErrorKind::Invalid, words);
        assert!(!error.is_retryable(), "{error}");
        assert_eq!(self.rows().await, before);
        if self.writer().capabilities().shadow {
            assert_eq!(self.staged().open(&request.id).await.unwrap(), None);
        }
    }
}

pub(super) async fn pin(reader: &dyn SnapshotReader, slice: Slice) -> Result<Pin> {
    let version = reader.current().await?;
    let content = reader.slice_versions(&version, std::slice::from_ref(&slice)).await?.remove(0);
    Ok(Pin { table: reader.table().clone(), version, slice, content })
}

pub(super) fn by_day_and_country() -> Partitioning {
    by_day().with_key("country", ValueKind::Text)
}

pub(super) fn by_day() -> Partitioning {
    Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC)
}

pub(super) fn columns() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("day", DataType::Date32, true),
        Field::new("country", DataType::Utf8, true),
        Field::new("id", DataType::Int64, true),
        Field::new("amount", DataType::Int64, true),
    ]))
}

pub(super) fn batch(rows: &[Row]) -> RecordBatch {
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(|row| days_since_epoch(row.0)).collect::<Date32Array>()),
        Arc::new(rows.iter().map(|row| row.1).collect::<StringArray>()),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.3))),
    ];
    RecordBatch::try_new(columns(), arrays).unwrap()
}

pub(super) fn days_since_epoch(text: &str) -> Option<i32> {
    text.parse().ok().map(Date32Type::from_naive_date)
}

/// The rows as their texts.
pub(super) fn lines(rows: &[Row]) -> Vec<String> {
    let mut lines = texts_of(&[batch(rows)]);
    lines.sort();
    lines
}

pub(super) async fn texts(stream: RowStream) -> Result<Vec<String>> {
    let mut texts = texts_of(&stream.try_collect::<Vec<_>>().await?);
    texts.sort();
    Ok(texts)
}

fn texts_of(batches: &[RecordBatch]) -> Vec<String> {
    let mut texts = Vec::new();
    for batch in batches {
        let schema = batch.schema();
        let columns = schema.fields().iter().zip(batch.columns());
        let columns: Vec<_> = columns.map(|(f, array)| Column::new(f.name(), array).unwrap()).collect();
        for row in 0..batch.num_rows() {
            texts.push(columns.iter().map(|c| c.cell(row).to_string()).collect::<Vec<_>>().join("/"));
        }
    }
    texts
}

pub(super) fn day(text: &str) -> PartitionKey {
    PartitionKey::of("day", Value::Date(text.parse().unwrap()))
}

pub(super) fn no_day() -> PartitionKey {
    PartitionKey::of("day", Value::Null)
}

pub(super) fn in_country(key: PartitionKey, country: Option<&str>) -> PartitionKey {
    key.and("country", country.map_or(Value::Null, Value::from))
}

pub(super) fn days(texts: &[&str]) -> Scope {
    Scope::keys(texts.iter().map(|text| day(text))).unwrap()
}

pub(super) fn scope(key: PartitionKey) -> Scope {
    Scope::key(key).unwrap()
}

pub(super) fn instant(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

pub(super) fn stamp(run: &str, scope: &Scope, intent: &Intent) -> StampId {
    let op = if matches!(intent, Intent::Merge(_)) { Op::Merge } else { Op::Replace };
    StampId { run: run.into(), job: "daily".into(), op, scope_digest: scope.digest(), generation: 1 }
}

pub(super) fn nothing_told() -> TaskFinish {
    TaskFinish::default()
}

pub(super) fn apply(staged: &Staged) -> CommitEntry {
    CommitEntry {
        scope: staged.scope.clone(),
        change: Change::Apply(staged.clone()),
        stamp: staged.id.stamp.clone(),
        attempt: staged.id.attempt,
        finish: nothing_told(),
    }
}

pub(super) fn restore(run: &str, scope: &Scope, kept: &Kept) -> CommitEntry {
    let stamp = StampId { op: Op::Restore, ..stamp(run, scope, &Intent::Replace) };
    let change = Change::Restore(kept.clone());
    CommitEntry { scope: scope.clone(), change, stamp, attempt: 1, finish: nothing_told() }
}

pub(super) fn by_id() -> MergeKeys {
    MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: None }
}

pub(super) fn done(outcome: CommitOutcome) -> Commit {
    match outcome {
        CommitOutcome::Committed(commit) => commit,
        other => panic!("not committed: {other:?}"),
    }
}

/// Conflicts, and names exactly these.
pub(super) fn conflicts(outcome: &CommitOutcome, keys: &[PartitionKey]) {
    let CommitOutcome::Conflicted { moved } = outcome else { panic!("no conflict: {outcome:?}") };
    let found: Vec<_> = moved.iter().map(|moved| (&moved.partition, moved.by)).collect();
    assert_eq!(found, keys.iter().map(|key| (key, MovedBy::Content)).collect::<Vec<_>>());
}

pub(super) fn refused<T>(result: Result<T>, kind: ErrorKind, words: &[&str]) -> Error {
    let Err(error) = result else { panic!("not refused, and should say {words:?}") };
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "`{error}` does not say `{word}`");
    }
    error
}

/// All rows in one stream.
pub(super) fn stream_of(batches: Vec<RecordBatch>) -> Rows {
    let schema = batches.first().expect("a batch").schema();
    Rows::batches(schema, batches)
}
