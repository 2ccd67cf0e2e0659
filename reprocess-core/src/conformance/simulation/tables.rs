//! Readers and writers with a gate before every call, which tell the model what they saw.

use std::fmt;
use std::sync::Arc;
use std::task::Poll;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};

use super::Backend;
use super::gate::{Port, State};
use super::ledger::SimLedger;
use super::plant::Plant;
use super::rows;
use crate::domain::diff::{Diff, DiffSpec};
use crate::domain::ids::{PartitionVersion, RunId, TableId, TableVersion};
use crate::domain::profile::{Profile, ProfileSpec};
use crate::domain::scope::Scope;
use crate::domain::slice::{Base, Kept, Pin, Slice};
use crate::error::Result;
use crate::ports::ledger::RunLedger;
use crate::ports::reader::{Availability, RowStream, SnapshotReader};
use crate::ports::staged::StagedReader;
use crate::ports::writer::{
    Capabilities, Change, CommitEntry, CommitOutcome, CommitRequest, Found, PartitionWriter, Rows,
    StageRequest, Staged, StagedId, StampId,
};

/// A reader behind a gate.
pub(super) struct SimReader {
    pub(super) port: Port,
    pub(super) inner: Arc<dyn SnapshotReader>,
    pub(super) backend: Arc<dyn Backend>,
}

impl fmt::Debug for SimReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimReader").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[async_trait]
impl SnapshotReader for SimReader {
    fn table(&self) -> &TableId {
        self.inner.table()
    }

    async fn current(&self) -> Result<TableVersion> {
        let saw = |state: &mut State, answer: &Result<TableVersion>| {
            if let Ok(version) = answer {
                state.model.saw_version(self.inner.table(), version);
            }
        };
        self.port.around("current", self.inner.current(), saw).await
    }

    async fn availability(&self, version: &TableVersion) -> Result<Availability> {
        self.port.around("availability", self.inner.availability(version), |_, _| {}).await
    }

    async fn slice_versions(
        &self,
        version: &TableVersion,
        slices: &[Slice],
    ) -> Result<Vec<PartitionVersion>> {
        let live = self.backend.is_live(version);
        let saw = |state: &mut State, answer: &Result<Vec<PartitionVersion>>| {
            for (slice, content) in slices.iter().zip(answer.iter().flatten()) {
                if let Err(law) = state.model.saw_slice(self.inner.table(), version, slice, content, live) {
                    state.breaks(law);
                }
            }
        };
        self.port.around("slice_versions", self.inner.slice_versions(version, slices), saw).await
    }

    async fn hold(&self, pins: &[Pin]) -> Result<()> {
        self.port.around("hold", self.inner.hold(pins), |_, _| {}).await
    }

    async fn release(&self, pins: &[Pin]) -> Result<()> {
        self.port.around("release_pins", self.inner.release(pins), |_, _| {}).await
    }

    async fn read(&self, pin: &Pin) -> Result<(SchemaRef, RowStream)> {
        let saw = |state: &mut State, answer: &Result<(SchemaRef, Vec<RecordBatch>)>| {
            if let Ok((_, batches)) = answer
                && let Err(law) = state.model.saw_read(pin, &rows::of(batches))
            {
                state.breaks(law);
            }
        };
        let (schema, batches) = self.port.around("read", gathered(self.inner.read(pin)), saw).await?;
        Ok((schema, stream::iter(batches.into_iter().map(Ok)).boxed()))
    }
}

/// Takes all rows within the call, so that no other call comes between two batches.
async fn gathered(
    read: impl Future<Output = Result<(SchemaRef, RowStream)>>,
) -> Result<(SchemaRef, Vec<RecordBatch>)> {
    let (schema, rows) = read.await?;
    Ok((schema, rows.try_collect().await?))
}

/// A writer behind a gate.
#[derive(Debug)]
pub(super) struct SimWriter {
    pub(super) port: Port,
    pub(super) inner: Arc<dyn PartitionWriter>,
    /// The ledger that the backend may recognise.
    pub(super) ledger: Arc<dyn RunLedger>,
    /// Whether it is not to recognise it.
    pub(super) foreign: bool,
}

impl SimWriter {
    fn has(&self, plant: Plant) -> bool {
        self.port.world.has(plant)
    }

    /// The rows as a stream that can break off after each.
    async fn one_by_one(&self, rows: Rows) -> Result<Rows> {
        let Rows::Stream { schema, stream } = rows else { return Ok(rows) };
        let batches: Vec<RecordBatch> = stream.try_collect().await?;
        let single = |batch: &RecordBatch| (0..batch.num_rows()).map(|row| batch.slice(row, 1)).collect();
        let mut left = batches
            .iter()
            .flat_map(|batch| -> Vec<RecordBatch> { single(batch) })
            .collect::<Vec<_>>()
            .into_iter();
        let (world, mut given) = (Arc::clone(&self.port.world), 0);
        let stream = stream::poll_fn(move |_| match world.lock().goes_on(given) {
            None => Poll::Pending,
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            Some(Ok(())) => {
                given += 1;
                Poll::Ready(left.next().map(Ok))
            }
        });
        Ok(Rows::Stream { schema, stream: stream.boxed() })
    }

    /// The call into the backend, with the defect that is built in.
    async fn commit_inner(&self, request: CommitRequest<'_>) -> Result<CommitOutcome> {
        let ledger: Arc<dyn RunLedger> = match self.foreign {
            true => Arc::new(SimLedger { port: None, inner: Arc::clone(&self.ledger) }),
            false => Arc::clone(&self.ledger),
        };
        let mut request = CommitRequest { ledger: Some(ledger.as_ref()), ..request };
        let mut entries: Vec<CommitEntry> = request.entries.to_vec();
        let mut base = request.base.clone();
        if self.has(Plant::NoBase) {
            for entry in &entries {
                base.partitions.extend(self.inner.head(&entry.scope).await?.partitions);
            }
        }
        for entry in &mut entries {
            if let (true, Change::Apply(staged)) = (self.has(Plant::NoStamp), &mut entry.change) {
                entry.stamp = staged.id.stamp.clone();
            }
            if self.has(Plant::NoFence) {
                entry.attempt = u32::MAX;
                entry.finish.task = None;
            }
            if self.has(Plant::Delivers) {
                entry.finish.deliver = true;
            }
        }
        if self.has(Plant::NoFence) {
            request.fence = None;
        }
        if self.has(Plant::Half) && entries.len() > 1 {
            entries.pop();
        }
        if self.has(Plant::NoBase) || self.port.world.plant.is_some() {
            return self.inner.commit(CommitRequest { entries: &entries, base: &base, ..request }).await;
        }
        self.inner.commit(request).await
    }
}

#[async_trait]
impl PartitionWriter for SimWriter {
    fn table(&self) -> &TableId {
        self.inner.table()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn schema(&self) -> Result<Option<SchemaRef>> {
        self.port.around("schema", self.inner.schema(), |_, _| {}).await
    }

    async fn create(&self, schema: &SchemaRef) -> Result<()> {
        self.port.around("create", self.inner.create(schema), |_, _| {}).await
    }

    async fn head(&self, scope: &Scope) -> Result<Base> {
        let saw = |state: &mut State, answer: &Result<Base>| {
            if let Ok(base) = answer {
                state.model.saw_base(self.inner.table(), base);
            }
        };
        self.port.around("head", self.inner.head(scope), saw).await
    }

    async fn profile(&self, scope: &Scope, spec: &ProfileSpec) -> Result<(Base, Vec<Profile>)> {
        let saw = |state: &mut State, answer: &Result<(Base, Vec<Profile>)>| {
            if let Ok((base, profiles)) = answer {
                state.model.saw_base(self.inner.table(), base);
                if let Err(law) = state.model.saw_profiles(self.inner.table(), profiles) {
                    state.breaks(law);
                }
            }
        };
        self.port.around("profile", self.inner.profile(scope, spec), saw).await
    }

    async fn stage(&self, request: &StageRequest, rows: Rows) -> Result<Staged> {
        let mut planted = request.clone();
        if self.has(Plant::NoStamp) {
            planted.id.stamp.generation += planted.id.attempt * 1000 + self.port.world.lock().next_salt();
        }
        let saw = |state: &mut State, answer: &Result<Staged>| {
            if answer.is_ok() {
                state.model.saw_stage(request);
            }
        };
        let rows = self.one_by_one(rows).await?;
        self.port.around("stage", self.inner.stage(&planted, rows), saw).await
    }

    async fn rebase(&self, staged: &Staged, onto: &Base) -> Result<Staged> {
        self.port.around("rebase", self.inner.rebase(staged, onto), |_, _| {}).await
    }

    async fn discard(&self, id: &StagedId) -> Result<()> {
        self.port.around("discard", self.inner.discard(id), |_, _| {}).await
    }

    async fn commit(&self, request: CommitRequest<'_>) -> Result<CommitOutcome> {
        let saw = |state: &mut State, answer: &Result<CommitOutcome>| {
            let seen = match answer {
                Ok(CommitOutcome::Committed(commit)) => {
                    state.model.saw_commit(self.inner.table(), &request, commit)
                }
                Ok(CommitOutcome::AlreadyCommitted(_)) => state.model.saw_already(&request),
                _ => Ok(()),
            };
            if let Err(law) = seen {
                state.breaks(law);
            }
        };
        self.port.around("commit", self.commit_inner(request), saw).await
    }

    async fn find_commit(&self, stamp: &StampId, scope: &Scope, since: &Base) -> Result<Found> {
        let inner = async {
            match self.has(Plant::NoStamp) {
                true => Ok(Found::No),
                false => self.inner.find_commit(stamp, scope, since).await,
            }
        };
        self.port.around("find_commit", inner, |_, _| {}).await
    }

    async fn forget(&self, kept: &Kept) -> Result<()> {
        self.port.around("forget", self.inner.forget(kept), |_, _| {}).await
    }

    fn staged(&self) -> Option<&dyn StagedReader> {
        self.inner.staged().map(|_| self as &dyn StagedReader)
    }
}

#[async_trait]
impl StagedReader for SimWriter {
    async fn list(&self, run: &RunId) -> Result<Vec<StagedId>> {
        self.port.around("list", shadow(self)?.list(run), |_, _| {}).await
    }

    async fn open(&self, id: &StagedId) -> Result<Option<Staged>> {
        self.port.around("open", shadow(self)?.open(id), |_, _| {}).await
    }

    async fn read_overlaid(&self, staged: &[Staged], pin: &Pin) -> Result<(SchemaRef, RowStream)> {
        let inner = gathered(shadow(self)?.read_overlaid(staged, pin));
        let (schema, batches) = self.port.around("read_overlaid", inner, |_, _| {}).await?;
        Ok((schema, stream::iter(batches.into_iter().map(Ok)).boxed()))
    }

    async fn profile_after(&self, staged: &Staged, spec: &ProfileSpec) -> Result<Vec<Profile>> {
        self.port.around("profile_after", shadow(self)?.profile_after(staged, spec), |_, _| {}).await
    }

    async fn diff(&self, staged: &Staged, spec: &DiffSpec) -> Result<Vec<Diff>> {
        self.port.around("diff", shadow(self)?.diff(staged, spec), |_, _| {}).await
    }
}

fn shadow(writer: &SimWriter) -> Result<&dyn StagedReader> {
    writer.inner.staged().ok_or_else(|| crate::error::Error::internal("a shadow that was there has gone"))
}
