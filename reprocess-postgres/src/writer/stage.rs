//! Staging: rows stream into a table of their own, are guarded and profiled on the way, and count in the end.

use std::collections::BTreeSet;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use futures::StreamExt;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::profile::{Profile, ScopeProfiler};
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::rows::partition_runs;
use reprocess_core::ports::reader::RowStream;
use reprocess_core::ports::writer::{Intent, Rows, StageRequest, Staged};
use reprocess_core::{Error, ErrorKind, Result};
use tokio::task::JoinSet;

use super::{PostgresTable, guard, query, swap};
use crate::catalog::{Exclusive, Managed, to_json};
use crate::layout::{self, Encoder, Layout, aligned};
use crate::shadow::Staging;
use crate::sql::Sql;

/// Rows are sent as soon as they have this many bytes. Each time in a transaction of its own: the rows may be long in
/// coming, and one that is open all the while keeps the server from cleaning up.
const CHUNK_BYTES: usize = 8 << 20;

/// What the planner assumes of fewer rows is good enough.
const ANALYZED_ROWS: i64 = 1_000;

/// So many rows are encoded before the bytes are counted.
const SLICE_ROWS: usize = 1_024;

pub(super) async fn stage(table: &PostgresTable, request: &StageRequest, rows: Rows) -> Result<Staged> {
    let spec = table.spec();
    for key in request.scope.partitions() {
        spec.partitioning.check_key(&key)?;
    }
    if request.schema == SchemaPolicy::Rebuild
        && !(request.scope.is_whole_table() && request.intent == Intent::Replace)
    {
        return Err(Error::invalid("only a replace of the whole table rebuilds it with other columns"));
    }
    let Known { table: managed, key, place } = known(table, request).await?;
    let current = managed.as_ref().map(|managed| managed.layout.clone());
    let (schema, stream) = match rows {
        Rows::Stream { schema, stream } => (schema, stream),
        Rows::Query(query) => query::run(table.database(), current.as_ref(), &query).await?,
    };
    let layout = target(request.schema, current.as_ref(), &schema)?;
    layout.check_partitioning(&spec.partitioning)?;
    aligned(&layout, &RecordBatch::new_empty(schema))?;
    if let Intent::Merge(merge) = &request.intent {
        guard::check_merge(&layout, merge)?;
    }
    let place = managed.zip(place).filter(|(managed, _)| managed.layout == layout);
    let staging = Staging::begin(table, &request.id, &layout, place.as_ref()).await?;
    match write(table, request, &layout, key, &staging, stream).await {
        Ok((staged, rows)) => {
            staging.complete(&staged, rows).await?;
            Ok(staged)
        }
        Err(e) => {
            // What cannot be removed now goes with the next attempt; the first error says more.
            if let Err(other) = staging.give_up().await {
                tracing::warn!(error = %other, staged = %request.id, "staged rows could not be removed");
            }
            Err(e)
        }
    }
}

/// What is known of the table before rows are staged.
struct Known {
    table: Option<Managed>,
    /// The columns by which its rows are told apart.
    key: Option<Vec<String>>,
    /// The partition in whose place the staged rows can be put.
    place: Option<Exclusive>,
}

async fn known(table: &PostgresTable, request: &StageRequest) -> Result<Known> {
    let (mut tx, managed) = table.look().await?;
    let key = match (&managed, &request.intent) {
        (Some(managed), Intent::Merge(merge)) => {
            guard::check_target(&mut tx, managed, merge).await?;
            Some(merge.keys.clone())
        }
        (None, Intent::Merge(merge)) => Some(merge.keys.clone()),
        (Some(managed), _) => managed.keys(&mut tx).await?.into_iter().next(),
        (None, _) => None,
    };
    let place = match &managed {
        Some(managed) => swap::place(table, &mut tx, managed, request).await?,
        None => None,
    };
    tx.rollback().await?;
    Ok(Known { table: managed, key, place })
}

/// The columns that the table has after the commit.
fn target(policy: SchemaPolicy, current: Option<&Layout>, rows: &SchemaRef) -> Result<Layout> {
    match (policy, current) {
        (SchemaPolicy::Refuse, Some(current)) => Ok(current.clone()),
        (SchemaPolicy::AddNullable, Some(current)) => {
            let new = rows.fields().iter().filter(|field| current.field(field.name()).is_err());
            let new: Vec<_> = new.cloned().collect();
            if new.is_empty() {
                Ok(current.clone())
            } else {
                current.extended(&Layout::own(Schema::new(new).into())?)
            }
        }
        (SchemaPolicy::Rebuild, _) | (_, None) => Layout::own(SchemaRef::clone(rows)),
    }
}

async fn write(
    table: &PostgresTable,
    request: &StageRequest,
    layout: &Layout,
    key: Option<Vec<String>>,
    staging: &Staging<'_>,
    mut stream: RowStream,
) -> Result<(Staged, i64)> {
    let partitioning = &table.spec().partitioning;
    let mut seen = Seen::new(partitioning, request, layout)?;
    let mut chunk = Encoder::new();
    let mut copying = Copying { staging, under_way: JoinSet::new() };
    while let Some(batch) = stream.next().await {
        let batch = aligned(layout, &batch?)?;
        seen.push(&batch)?;
        for from in (0..batch.num_rows()).step_by(SLICE_ROWS) {
            chunk.push(layout, &batch.slice(from, SLICE_ROWS.min(batch.num_rows() - from)))?;
            if chunk.len() >= CHUNK_BYTES {
                copying.add(std::mem::replace(&mut chunk, Encoder::new())).await?;
            }
        }
    }
    copying.add(chunk).await?;
    copying.end().await?;
    staging.typed().await?;
    if seen.rows >= ANALYZED_ROWS {
        staging.analyze().await?;
    }
    if let Some(key) = key.filter(|key| key.iter().all(|column| layout.field(column).is_ok())) {
        let mut tx = table.database().begin().await?;
        guard::check_keys(&mut tx, layout, staging.rows(), &key).await?;
        tx.rollback().await?;
    }
    if layout.normalises() {
        seen = read_again(table, request, layout, staging).await?;
    }
    staging.index().await?;
    let rows = seen.rows;
    let (received, profiles) = seen.finish();
    let mut staged = Staged {
        id: request.id.clone(),
        scope: request.scope.clone(),
        intent: request.intent.clone(),
        visibility: request.visibility.clone(),
        schema_policy: request.schema,
        schema: SchemaRef::clone(layout.schema()),
        received,
        profiles,
        digest: String::new(),
        payload: serde_json::Value::Null,
    };
    staged.digest = digest(&staged)?;
    Ok((staged, rows))
}

/// Sends one chunk while the next is made ready. Where it is dropped, what is under way is stopped.
struct Copying<'a> {
    staging: &'a Staging<'a>,
    under_way: JoinSet<Result<()>>,
}

impl Copying<'_> {
    async fn add(&mut self, chunk: Encoder) -> Result<()> {
        self.end().await?;
        if chunk.rows() > 0 {
            let (body, rows) = chunk.finish();
            self.under_way.spawn(self.staging.copy(body, rows));
        }
        Ok(())
    }

    async fn end(&mut self) -> Result<()> {
        while let Some(copied) = self.under_way.join_next().await {
            copied.map_err(|e| Error::internal("rows were not copied to their end").with_source(e))??;
        }
        Ok(())
    }
}

/// What is stored may be another text than what came.
async fn read_again<'a>(
    table: &'a PostgresTable,
    request: &'a StageRequest,
    layout: &Layout,
    staging: &Staging<'_>,
) -> Result<Seen<'a>> {
    let mut seen = Seen::new(&table.spec().partitioning, request, layout)?;
    let mut tx = table.database().begin_read().await?;
    let select = Sql::new(format!("SELECT {} FROM {} AS t", layout.readable("t."), staging.rows()));
    let batch_rows = table.database().config().batch_rows;
    let mut batches = layout::read(&mut tx, select, layout, ErrorKind::Corrupt, batch_rows).await?;
    while let Some(batch) = batches.next().await? {
        seen.push(&batch)?;
    }
    drop(batches);
    tx.rollback().await?;
    Ok(seen)
}

/// What is noted of rows as they pass; those outside the scope are refused.
struct Seen<'a> {
    partitioning: &'a Partitioning,
    profiler: ScopeProfiler,
    received: BTreeSet<PartitionKey>,
    /// Each row once, while profiles of keys that overlap count it several times.
    rows: i64,
}

impl<'a> Seen<'a> {
    fn new(partitioning: &'a Partitioning, request: &StageRequest, layout: &Layout) -> Result<Self> {
        let profiler = ScopeProfiler::new(partitioning, &request.scope, layout.schema(), &request.profile)?;
        Ok(Self { partitioning, profiler, received: BTreeSet::new(), rows: 0 })
    }

    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        self.profiler.push(batch)?;
        self.rows += i64::try_from(batch.num_rows()).unwrap_or(i64::MAX);
        self.received.extend(partition_runs(self.partitioning, batch)?.into_iter().map(|(key, _)| key));
        Ok(())
    }

    fn finish(self) -> (BTreeSet<PartitionKey>, Vec<Profile>) {
        (self.received, self.profiler.finish())
    }
}

/// Of what would be committed: the content of every partition, and what happens to it.
fn digest(staged: &Staged) -> Result<String> {
    let contents: Vec<_> = staged.profiles.iter().map(|p| (&p.partition, p.rows, &p.content)).collect();
    let what = to_json(&(
        &staged.scope,
        &staged.intent,
        staged.schema_policy,
        &staged.schema,
        &staged.received,
        contents,
    ))?;
    Ok(blake3::hash(what.as_bytes()).to_hex().to_string())
}
