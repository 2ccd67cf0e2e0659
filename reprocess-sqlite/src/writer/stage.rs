//! Staging: rows stream into the file of staged rows, are guarded and profiled on the way, and count in the end.

use std::collections::BTreeSet;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use futures::StreamExt;
use reprocess_core::domain::profile::ScopeProfiler;
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::rows::partition_runs;
use reprocess_core::ports::reader::RowStream;
use reprocess_core::ports::writer::{Intent, Rows, StageRequest, Staged};
use reprocess_core::{Error, Result};

use super::{SqliteTable, guard, query};
use crate::catalog::{Managed, to_json};
use crate::layout::{Layout, aligned};
use crate::shadow::{self, Staging, rows_name};

/// Rows are written as soon as they have this many bytes, however few they are.
const CHUNK_BYTES: usize = 32 << 20;

pub(super) async fn stage(table: &SqliteTable, request: &StageRequest, rows: Rows) -> Result<Staged> {
    let spec = table.spec();
    for key in request.scope.partitions() {
        spec.partitioning.check_key(&key)?;
    }
    if request.schema == SchemaPolicy::Rebuild
        && !(request.scope.is_whole_table() && request.intent == Intent::Replace)
    {
        return Err(Error::invalid("only a replace of the whole table rebuilds it with other columns"));
    }
    let mut tx = table.database().begin_read().await?;
    let current = Managed::load(&mut tx, spec).await?.map(|table| table.layout);
    drop(tx);
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
    shadow::sweep(table.database(), &spec.id).await?;
    let staging = Staging::begin(table.database(), &spec.id, &request.id, &layout).await?;
    match write(table, request, &layout, &staging, stream).await {
        Ok(staged) => {
            staging.complete(&staged).await?;
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
    table: &SqliteTable,
    request: &StageRequest,
    layout: &Layout,
    staging: &Staging<'_>,
    mut stream: RowStream,
) -> Result<Staged> {
    let partitioning = &table.spec().partitioning;
    let mut profiler = ScopeProfiler::new(partitioning, &request.scope, layout.schema(), &request.profile)?;
    let mut received = BTreeSet::new();
    let mut chunk = Chunk::new(table.database().config().batch_rows);
    while let Some(batch) = stream.next().await {
        let batch = aligned(layout, &batch?)?;
        profiler.push(&batch)?;
        received.extend(partition_runs(partitioning, &batch)?.into_iter().map(|(key, _)| key));
        for full in chunk.push(&batch) {
            staging.insert(&full).await?;
        }
    }
    staging.insert(&chunk.rest()).await?;
    if let Intent::Merge(merge) = &request.intent {
        staging.index(&merge.keys).await?;
        let mut tx = table.database().begin_read().await?;
        guard::check_keys(&mut tx, &format!("staged.{}", rows_name(staging.n())), &merge.keys).await?;
    }
    let mut staged = Staged {
        id: request.id.clone(),
        scope: request.scope.clone(),
        intent: request.intent.clone(),
        visibility: request.visibility.clone(),
        schema_policy: request.schema,
        schema: SchemaRef::clone(layout.schema()),
        received,
        profiles: profiler.finish(),
        digest: String::new(),
        payload: serde_json::Value::Null,
    };
    staged.digest = digest(&staged)?;
    Ok(staged)
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

/// Gathers small batches and divides large ones, so that each transaction writes about as many rows.
struct Chunk {
    most: usize,
    rows: usize,
    bytes: usize,
    batches: Vec<RecordBatch>,
}

impl Chunk {
    fn new(most: usize) -> Self {
        Self { most: most.max(1), rows: 0, bytes: 0, batches: Vec::new() }
    }

    /// The chunks that are full with this batch.
    fn push(&mut self, batch: &RecordBatch) -> Vec<Vec<RecordBatch>> {
        let mut full = Vec::new();
        let bytes_per_row = batch.get_array_memory_size() / batch.num_rows().max(1);
        let mut from = 0;
        while from < batch.num_rows() {
            let rows = (self.most - self.rows).min(batch.num_rows() - from).max(1);
            self.batches.push(batch.slice(from, rows));
            self.rows += rows;
            self.bytes += rows.saturating_mul(bytes_per_row);
            from += rows;
            if self.rows >= self.most || self.bytes >= CHUNK_BYTES {
                full.push(self.rest());
            }
        }
        full
    }

    fn rest(&mut self) -> Vec<RecordBatch> {
        self.rows = 0;
        self.bytes = 0;
        std::mem::take(&mut self.batches)
    }
}
