//! The ledger in memory.

mod backfills;
mod deliveries;
mod finish;
mod leases;
mod reader;
mod slots;
mod state;
mod tasks;

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use self::state::State;
use crate::domain::ids::{Actor, BackfillId, JobName, LogicVersion, RunId, TableId, WorkerId};
use crate::domain::partition::PartitionKey;
use crate::domain::plan::{Plan, TaskId};
use crate::domain::scope::Scope;
use crate::error::{Error, Result};
use crate::ports::delivery::{Delivery, DeliveryClaim, DeliveryDecision, DeliveryEnd, DeliveryOrigin};
use crate::ports::ledger::{
    Adjustment, Claim, Fence, Leave, RunLedger, RunRecord, SlotAsk, StateChange, Submitted, TaskResult,
    Transition,
};
use crate::ports::writer::{Commit, CommitEntry, StagedId};

/// The ledger as plain state behind one lock, which is never held across an await: every method is one step.
#[derive(Debug, Default)]
pub struct MemoryLedger {
    state: Mutex<State>,
}

impl MemoryLedger {
    /// A ledger without rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether this is the latest attempt at a task, as far as the ledger knows the task. For writers that share the
    /// process with the ledger and refuse a result whose claim has passed on.
    pub(crate) fn is_latest_attempt(&self, task: &(BackfillId, u32, TaskId), attempt: u32) -> Result<bool> {
        let mut state = self.lock()?;
        let (backfill, generation, task) = task;
        if state.latest(backfill).is_some_and(|opened| opened.record.plan.generation > *generation) {
            return Ok(false);
        }
        Ok(state.task_mut(backfill, *generation, *task).is_none_or(|entry| entry.record.attempt <= attempt))
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>> {
        self.state.lock().map_err(|_| Error::internal("an earlier call to the ledger did not end"))
    }
}

#[async_trait]
impl RunLedger for MemoryLedger {
    async fn submit(&self, plan: &Plan, by: &Actor, now: DateTime<Utc>) -> Result<Submitted> {
        Ok(self.lock()?.submit(plan, by, now))
    }

    async fn transition(
        &self,
        id: &BackfillId,
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        self.lock()?.transition(id, change, now)
    }

    async fn adjust(&self, id: &BackfillId, what: Adjustment, by: &Actor) -> Result<()> {
        self.lock()?.adjust(id, what, by)
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
        self.lock()?.claim(id, worker, can_run, limit, ttl, now)
    }

    async fn renew_claim(&self, claim: &Claim, ttl: Duration, now: DateTime<Utc>) -> Result<bool> {
        Ok(self.lock()?.renew_claim(claim, ttl, now))
    }

    async fn note_staged(&self, claim: &Claim, result: &TaskResult) -> Result<bool> {
        Ok(self.lock()?.note_staged(claim, result))
    }

    async fn leave(&self, claim: &Claim, how: Leave, now: DateTime<Utc>) -> Result<bool> {
        Ok(self.lock()?.leave(claim, how, now))
    }

    async fn found_unchanged(
        &self,
        table: &TableId,
        partitions: &[PartitionKey],
        run: &RunId,
        pinned_at: u64,
    ) -> Result<()> {
        let mut state = self.lock()?;
        partitions.iter().for_each(|key| state.clear_stale(table, key, run, pinned_at));
        Ok(())
    }

    async fn record_failed(&self, records: &[RunRecord]) -> Result<()> {
        self.lock()?.record_failed(records);
        Ok(())
    }

    async fn restage(
        &self,
        id: &BackfillId,
        tasks: &[TaskId],
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        self.lock()?.restage(id, tasks, change, now)
    }

    async fn discard_staged(
        &self,
        id: &BackfillId,
        tasks: &[TaskId],
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        self.lock()?.discard_staged(id, tasks, change, now)
    }

    async fn acquire(
        &self,
        table: &TableId,
        scope: &Scope,
        holder: &WorkerId,
        ttl: Duration,
        now: DateTime<Utc>,
    ) -> Result<Option<Fence>> {
        Ok(self.lock()?.leases.acquire(table, scope, holder, ttl, now))
    }

    async fn renew(&self, fence: &Fence, ttl: Duration, now: DateTime<Utc>) -> Result<bool> {
        Ok(self.lock()?.leases.renew(fence, ttl, now))
    }

    async fn release(&self, fence: &Fence) -> Result<()> {
        self.lock()?.leases.release(fence);
        Ok(())
    }

    async fn ask_slot(&self, ask: &SlotAsk, ttl: Duration, now: DateTime<Utc>) -> Result<bool> {
        Ok(self.lock()?.slots.ask(ask, ttl, now))
    }

    async fn end_slot(&self, ask: &SlotAsk) -> Result<()> {
        self.lock()?.slots.end(ask);
        Ok(())
    }

    async fn prepare_deliveries(
        &self,
        id: &StagedId,
        backfill: Option<&BackfillId>,
        batch: &[Delivery],
        now: DateTime<Utc>,
    ) -> Result<()> {
        self.lock()?.deliveries.prepare(id, backfill, batch, now);
        Ok(())
    }

    /// The actor is not recorded: a delivery has no place for it yet.
    async fn release_deliveries(&self, keys: &[String], _by: &Actor, now: DateTime<Utc>) -> Result<u64> {
        Ok(self.lock()?.deliveries.release(keys, now))
    }

    async fn announce(&self, origin: &DeliveryOrigin, batch: &[Delivery], now: DateTime<Utc>) -> Result<u64> {
        Ok(self.lock()?.deliveries.announce(origin, batch, now))
    }

    async fn claim_deliveries(
        &self,
        channels: &[String],
        worker: &WorkerId,
        limit: u32,
        ttl: Duration,
        now: DateTime<Utc>,
    ) -> Result<Vec<DeliveryClaim>> {
        Ok(self.lock()?.deliveries.claim(channels, worker, limit, ttl, now))
    }

    async fn end_delivery(
        &self,
        claim: &DeliveryClaim,
        end: &DeliveryEnd,
        now: DateTime<Utc>,
    ) -> Result<bool> {
        Ok(self.lock()?.deliveries.end(claim, end, now))
    }

    /// The actor is not recorded, as of a release.
    async fn decide_deliveries(
        &self,
        keys: &[String],
        decision: DeliveryDecision,
        _by: &Actor,
        now: DateTime<Utc>,
    ) -> Result<u64> {
        Ok(self.lock()?.deliveries.decide(keys, decision, now))
    }

    async fn finish(&self, commit: &Commit, entries: &[CommitEntry]) -> Result<()> {
        let mut state = self.lock()?;
        for entry in entries {
            state.finish(commit, entry);
        }
        Ok(())
    }

    async fn is_current(&self, fence: &Fence) -> Result<bool> {
        Ok(self.lock()?.leases.is_current(fence))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
