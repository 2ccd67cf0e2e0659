//! Writing the table.

use std::any::Any;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use async_trait::async_trait;
use futures::TryStreamExt;

use super::{MemoryTable, rows};
use crate::domain::ids::TableId;
use crate::domain::profile::{Profile, ProfileSpec, ScopeProfiler};
use crate::domain::request::SchemaPolicy;
use crate::domain::rows::{Columns, partition_of_rows};
use crate::domain::schema;
use crate::domain::scope::Scope;
use crate::domain::slice::{Base, Kept};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::MemoryLedger;
use crate::ports::staged::StagedReader;
use crate::ports::writer::{
    Capabilities, CommitOutcome, CommitRequest, Found, PartitionWriter, Rows, StageRequest, Staged, StagedId,
    StampId,
};

#[async_trait]
impl PartitionWriter for MemoryTable {
    fn table(&self) -> &TableId {
        &self.spec.id
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { query: false, ledger_in_commit: false, ..Capabilities::all() }
    }

    async fn schema(&self) -> Result<Option<SchemaRef>> {
        Ok(self.lock()?.schema().cloned())
    }

    async fn create(&self, schema: &SchemaRef) -> Result<()> {
        let empty = RecordBatch::new_empty(schema.clone());
        let fits = Columns::new(&empty).and_then(|_| partition_of_rows(&self.spec.partitioning, &empty));
        fits.map_err(|e| e.with_context("table", &self.spec.id))?;
        let mut state = self.lock()?;
        match state.schema() {
            Some(known) => schema::resolve(known, schema, SchemaPolicy::Refuse)
                .map(drop)
                .map_err(|e| e.with_context("table", &self.spec.id)),
            None => state.write(schema, Vec::new()),
        }
    }

    async fn head(&self, scope: &Scope) -> Result<Base> {
        self.lock()?.head(scope)
    }

    /// A table that does not exist has no columns, so what the spec names is left out of its profile.
    async fn profile(&self, scope: &Scope, spec: &ProfileSpec) -> Result<(Base, Vec<Profile>)> {
        let state = self.lock()?;
        let nothing = (Arc::new(Schema::empty()), ProfileSpec::new());
        let (schema, spec) = state.schema().map_or(nothing, |schema| (schema.clone(), spec.clone()));
        let parts = state.rows_at(state.version, &schema, |key| scope.covers(key))?;
        let mut profiler = ScopeProfiler::new(&self.spec.partitioning, scope, &schema, &spec)?;
        rows::flatten(parts).iter().try_for_each(|batch| profiler.push(batch))?;
        Ok((state.head(scope)?, profiler.finish()))
    }

    async fn stage(&self, request: &StageRequest, rows: Rows) -> Result<Staged> {
        let Rows::Stream { schema, stream } = rows else {
            return Err(Error::new(ErrorKind::Unsupported, "a table in memory runs no queries")
                .with_context("table", &self.spec.id)
                .with_advice("transform the rows in code"));
        };
        let batches: Vec<_> = stream.try_collect().await?;
        self.lock()?.stage(request, &schema, &batches)
    }

    async fn rebase(&self, staged: &Staged, _onto: &Base) -> Result<Staged> {
        Ok(staged.clone())
    }

    async fn discard(&self, id: &StagedId) -> Result<()> {
        self.lock()?.discard(id)
    }

    /// The fence is asked for before the table is locked, so that a lease may pass on in between: the base decides then,
    /// as it does for every table that shares no database with the ledger.
    async fn commit(&self, request: CommitRequest<'_>) -> Result<CommitOutcome> {
        let lost = lost(&request).await?;
        self.lock()?.commit(request, &lost)
    }

    async fn find_commit(&self, stamp: &StampId, _scope: &Scope, since: &Base) -> Result<Found> {
        self.lock()?.find_commit(stamp, since)
    }

    async fn forget(&self, kept: &Kept) -> Result<()> {
        self.lock()?.forget(kept)
    }

    fn staged(&self) -> Option<&dyn StagedReader> {
        Some(self)
    }
}

/// Of each entry whether another may have taken its scope since, or a later attempt its task.
async fn lost(request: &CommitRequest<'_>) -> Result<Vec<bool>> {
    let mut lost = vec![false; request.entries.len()];
    let Some(ledger) = request.ledger else { return Ok(lost) };
    if let Some(fence) = request.fence
        && !ledger.is_current(fence).await?
    {
        lost.fill(true);
    }
    if let Some(ledger) = (ledger as &dyn Any).downcast_ref::<MemoryLedger>() {
        for (entry, lost) in request.entries.iter().zip(&mut lost) {
            if let Some(task) = &entry.finish.task {
                *lost |= !ledger.is_latest_attempt(task, entry.attempt)?;
            }
        }
    }
    Ok(lost)
}
