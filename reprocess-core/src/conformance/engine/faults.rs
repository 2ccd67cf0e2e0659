//! A writer and a ledger between which a process dies, or loses a reply, at a chosen call.

use std::any::Any;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use chrono::{DateTime, Utc};
use tokio::sync::Notify;

use crate::domain::ids::{Actor, BackfillId, JobName, LogicVersion, TableId, WorkerId};
use crate::domain::plan::{Plan, TaskId};
use crate::domain::profile::{Profile, ProfileSpec};
use crate::domain::scope::Scope;
use crate::domain::slice::{Base, Kept};
use crate::error::{Error, ErrorKind, Result};
use crate::ports::delivery::{
    Delivery, DeliveryClaim, DeliveryDecision, DeliveryEnd, DeliveryOrigin, DeliveryRecord,
};
use crate::ports::ledger::*;
use crate::ports::staged::StagedReader;
use crate::ports::writer::*;

/// What happens at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process dies before the call reaches anything.
    DiesBefore,
    /// The process dies after the call took effect.
    DiesAfter,
    /// The call took effect, and its reply is lost: an error that may be retried.
    LosesReply,
}

/// Counts down port calls to a fault.
#[derive(Debug)]
pub(crate) struct Fuse {
    left: AtomicI64,
    fault: Fault,
    died: Notify,
}

impl Fuse {
    pub(crate) fn new(calls: i64, fault: Fault) -> Arc<Self> {
        Arc::new(Self { left: AtomicI64::new(calls), fault, died: Notify::new() })
    }

    /// Waits until the process has died.
    pub(crate) async fn died(&self) {
        self.died.notified().await;
    }

    /// Whether the fault has not happened yet.
    pub(crate) fn is_whole(&self) -> bool {
        self.left.load(Ordering::SeqCst) >= 0
    }

    pub(super) async fn around<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let now = self.left.fetch_sub(1, Ordering::SeqCst) == 0;
        if now && self.fault == Fault::DiesBefore {
            self.die::<()>().await;
        }
        let answer = call.await;
        match (now, self.fault) {
            (true, Fault::DiesAfter) => self.die().await,
            (true, Fault::LosesReply) => Err(Error::new(ErrorKind::Unavailable, "the reply was lost")),
            _ => answer,
        }
    }

    async fn die<T>(&self) -> T {
        self.died.notify_one();
        std::future::pending().await
    }
}

#[derive(Debug)]
pub(crate) struct FaultyTable {
    pub(crate) inner: Arc<dyn PartitionWriter>,
    pub(crate) fuse: Arc<Fuse>,
    /// What the next commits answer without being tried, the last one first.
    pub(crate) answers: Mutex<Vec<CommitOutcome>>,
}

impl FaultyTable {
    pub(crate) fn new(inner: Arc<dyn PartitionWriter>, fuse: Arc<Fuse>) -> Self {
        Self { inner, fuse, answers: Mutex::default() }
    }
}

#[async_trait]
impl PartitionWriter for FaultyTable {
    fn table(&self) -> &TableId {
        self.inner.table()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn schema(&self) -> Result<Option<SchemaRef>> {
        self.fuse.around(self.inner.schema()).await
    }

    async fn create(&self, schema: &SchemaRef) -> Result<()> {
        self.fuse.around(self.inner.create(schema)).await
    }

    async fn head(&self, scope: &Scope) -> Result<Base> {
        self.fuse.around(self.inner.head(scope)).await
    }

    async fn profile(&self, scope: &Scope, spec: &ProfileSpec) -> Result<(Base, Vec<Profile>)> {
        self.fuse.around(self.inner.profile(scope, spec)).await
    }

    async fn stage(&self, request: &StageRequest, rows: Rows) -> Result<Staged> {
        self.fuse.around(self.inner.stage(request, rows)).await
    }

    async fn rebase(&self, staged: &Staged, onto: &Base) -> Result<Staged> {
        self.fuse.around(self.inner.rebase(staged, onto)).await
    }

    async fn discard(&self, id: &StagedId) -> Result<()> {
        self.fuse.around(self.inner.discard(id)).await
    }

    async fn commit(&self, request: CommitRequest<'_>) -> Result<CommitOutcome> {
        if let Some(answer) = self.answers.lock().unwrap().pop() {
            return Ok(answer);
        }
        // A backend recognises its own ledger, which the fault must not hide from it.
        let ledger = request.ledger.map(|ledger| match (ledger as &dyn Any).downcast_ref::<FaultyLedger>() {
            Some(faulty) => &*faulty.inner,
            None => ledger,
        });
        self.fuse.around(self.inner.commit(CommitRequest { ledger, ..request })).await
    }

    async fn find_commit(&self, stamp: &StampId, scope: &Scope, since: &Base) -> Result<Found> {
        self.fuse.around(self.inner.find_commit(stamp, scope, since)).await
    }

    async fn forget(&self, kept: &Kept) -> Result<()> {
        self.fuse.around(self.inner.forget(kept)).await
    }

    fn staged(&self) -> Option<&dyn StagedReader> {
        self.inner.staged()
    }
}

#[derive(Debug)]
pub(crate) struct FaultyLedger {
    pub(crate) inner: Arc<dyn RunLedger>,
    pub(crate) fuse: Arc<Fuse>,
}

#[async_trait]
impl LedgerReader for FaultyLedger {
    async fn position(&self) -> Result<u64> {
        self.inner.position().await
    }

    async fn time(&self) -> Result<Option<DateTime<Utc>>> {
        self.inner.time().await
    }

    async fn backfill(&self, id: &BackfillId) -> Result<Option<BackfillRecord>> {
        self.inner.backfill(id).await
    }

    async fn backfills(&self, states: &[BackfillState]) -> Result<Vec<BackfillRecord>> {
        self.inner.backfills(states).await
    }

    async fn tasks(&self, id: &BackfillId) -> Result<Vec<TaskRecord>> {
        self.inner.tasks(id).await
    }

    async fn current(
        &self,
        table: &TableId,
        partitions: &[crate::domain::partition::PartitionKey],
    ) -> Result<Vec<Option<LedgerRow>>> {
        self.inner.current(table, partitions).await
    }

    async fn history(
        &self,
        table: &TableId,
        partition: &crate::domain::partition::PartitionKey,
        limit: u32,
    ) -> Result<Vec<LedgerRow>> {
        self.inner.history(table, partition, limit).await
    }

    async fn run(&self, run: &crate::domain::ids::RunId) -> Result<Vec<LedgerRow>> {
        self.inner.run(run).await
    }

    async fn changes(&self, backfill: &BackfillId) -> Result<Vec<LedgerRow>> {
        self.inner.changes(backfill).await
    }

    async fn partitions(&self, table: &TableId) -> Result<Vec<crate::domain::partition::PartitionKey>> {
        self.inner.partitions(table).await
    }

    async fn recent(&self, job: &JobName, limit: u32) -> Result<Vec<LedgerRow>> {
        self.inner.recent(job, limit).await
    }

    async fn outdated(
        &self,
        versions: &std::collections::BTreeMap<JobName, LogicVersion>,
    ) -> Result<Vec<Outdated>> {
        self.inner.outdated(versions).await
    }

    async fn stale(&self) -> Result<Vec<StalePartition>> {
        self.inner.stale().await
    }

    async fn progress(&self, id: &BackfillId) -> Result<Progress> {
        self.inner.progress(id).await
    }

    async fn queue_times(
        &self,
        during: &crate::domain::interval::Interval,
    ) -> Result<std::collections::BTreeMap<Trigger, QueueTime>> {
        self.inner.queue_times(during).await
    }

    async fn deliveries(&self, filter: &DeliveryFilter) -> Result<Vec<DeliveryRecord>> {
        self.inner.deliveries(filter).await
    }
}

#[async_trait]
impl RunLedger for FaultyLedger {
    async fn submit(&self, plan: &Plan, by: &Actor, now: DateTime<Utc>) -> Result<Submitted> {
        self.inner.submit(plan, by, now).await
    }

    async fn transition(
        &self,
        id: &BackfillId,
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        self.inner.transition(id, change, now).await
    }

    async fn adjust(&self, id: &BackfillId, what: Adjustment, by: &Actor) -> Result<()> {
        self.inner.adjust(id, what, by).await
    }

    async fn claim(
        &self,
        id: &BackfillId,
        worker: &WorkerId,
        can_run: &[(JobName, LogicVersion)],
        limit: u32,
        ttl: Duration,
        now: DateTime<Utc>,
    ) -> Result<Vec<Claim>> {
        self.fuse.around(self.inner.claim(id, worker, can_run, limit, ttl, now)).await
    }

    async fn renew_claim(&self, claim: &Claim, ttl: Duration, now: DateTime<Utc>) -> Result<bool> {
        self.inner.renew_claim(claim, ttl, now).await
    }

    async fn note_staged(&self, claim: &Claim, result: &TaskResult) -> Result<bool> {
        self.fuse.around(self.inner.note_staged(claim, result)).await
    }

    async fn leave(&self, claim: &Claim, how: Leave, now: DateTime<Utc>) -> Result<bool> {
        self.fuse.around(self.inner.leave(claim, how, now)).await
    }

    async fn restage(
        &self,
        id: &BackfillId,
        tasks: &[TaskId],
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        self.inner.restage(id, tasks, change, now).await
    }

    async fn discard_staged(
        &self,
        id: &BackfillId,
        tasks: &[TaskId],
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        self.inner.discard_staged(id, tasks, change, now).await
    }

    async fn acquire(
        &self,
        table: &TableId,
        scope: &Scope,
        holder: &WorkerId,
        ttl: Duration,
        now: DateTime<Utc>,
    ) -> Result<Option<Fence>> {
        self.fuse.around(self.inner.acquire(table, scope, holder, ttl, now)).await
    }

    async fn renew(&self, fence: &Fence, ttl: Duration, now: DateTime<Utc>) -> Result<bool> {
        self.inner.renew(fence, ttl, now).await
    }

    async fn release(&self, fence: &Fence) -> Result<()> {
        self.fuse.around(self.inner.release(fence)).await
    }

    async fn ask_slot(&self, ask: &SlotAsk, ttl: Duration, now: DateTime<Utc>) -> Result<bool> {
        self.fuse.around(self.inner.ask_slot(ask, ttl, now)).await
    }

    async fn end_slot(&self, ask: &SlotAsk) -> Result<()> {
        self.fuse.around(self.inner.end_slot(ask)).await
    }

    async fn prepare_deliveries(
        &self,
        id: &StagedId,
        backfill: Option<&BackfillId>,
        batch: &[Delivery],
        now: DateTime<Utc>,
    ) -> Result<()> {
        self.fuse.around(self.inner.prepare_deliveries(id, backfill, batch, now)).await
    }

    async fn release_deliveries(&self, keys: &[String], by: &Actor, now: DateTime<Utc>) -> Result<u64> {
        self.inner.release_deliveries(keys, by, now).await
    }

    async fn announce(&self, origin: &DeliveryOrigin, batch: &[Delivery], now: DateTime<Utc>) -> Result<u64> {
        self.fuse.around(self.inner.announce(origin, batch, now)).await
    }

    async fn claim_deliveries(
        &self,
        channels: &[String],
        worker: &WorkerId,
        limit: u32,
        ttl: Duration,
        now: DateTime<Utc>,
    ) -> Result<Vec<DeliveryClaim>> {
        self.fuse.around(self.inner.claim_deliveries(channels, worker, limit, ttl, now)).await
    }

    async fn end_delivery(
        &self,
        claim: &DeliveryClaim,
        end: &DeliveryEnd,
        now: DateTime<Utc>,
    ) -> Result<bool> {
        self.fuse.around(self.inner.end_delivery(claim, end, now)).await
    }

    async fn decide_deliveries(
        &self,
        keys: &[String],
        decision: DeliveryDecision,
        by: &Actor,
        now: DateTime<Utc>,
    ) -> Result<u64> {
        self.inner.decide_deliveries(keys, decision, by, now).await
    }

    async fn finish(&self, commit: &Commit, entries: &[CommitEntry]) -> Result<()> {
        self.fuse.around(self.inner.finish(commit, entries)).await
    }

    async fn found_unchanged(
        &self,
        table: &TableId,
        partitions: &[crate::domain::partition::PartitionKey],
        run: &crate::domain::ids::RunId,
        pinned_at: u64,
    ) -> Result<()> {
        self.inner.found_unchanged(table, partitions, run, pinned_at).await
    }

    async fn record_failed(&self, records: &[RunRecord]) -> Result<()> {
        self.inner.record_failed(records).await
    }

    async fn is_current(&self, fence: &Fence) -> Result<bool> {
        self.inner.is_current(fence).await
    }
}
