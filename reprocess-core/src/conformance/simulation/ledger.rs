//! The ledger with a gate before every call.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::gate::{Port, State};
use super::plant::Plant;
use crate::domain::ids::{Actor, BackfillId, JobName, LogicVersion, RunId, TableId, WorkerId};
use crate::domain::interval::Interval;
use crate::domain::partition::PartitionKey;
use crate::domain::plan::{Plan, TaskId};
use crate::domain::scope::Scope;
use crate::error::Result;
use crate::ports::delivery::{
    Delivery, DeliveryClaim, DeliveryDecision, DeliveryEnd, DeliveryOrigin, DeliveryRecord,
};
use crate::ports::ledger::{
    Adjustment, BackfillRecord, BackfillState, Claim, DeliveryFilter, Fence, Leave, LedgerReader, LedgerRow,
    Outdated, Progress, QueueTime, RunLedger, RunRecord, SlotAsk, StalePartition, StateChange, Submitted,
    TaskRecord, TaskResult, Transition, Trigger,
};
use crate::ports::writer::Change::Adopt;
use crate::ports::writer::{Commit, CommitEntry, StagedId};

/// A ledger behind a gate. Without a port it is one that no backend recognises, and without scheduling points.
#[derive(Debug)]
pub(super) struct SimLedger {
    pub(super) port: Option<Port>,
    pub(super) inner: Arc<dyn RunLedger>,
}

impl SimLedger {
    async fn around<T>(&self, call: &'static str, inner: impl Future<Output = Result<T>>) -> Result<T> {
        match &self.port {
            Some(port) => port.around(call, inner, |_, _| {}).await,
            None => inner.await,
        }
    }

    fn has(&self, plant: Plant) -> bool {
        self.port.as_ref().is_some_and(|port| port.world.has(plant))
    }
}

#[async_trait]
impl LedgerReader for SimLedger {
    async fn position(&self) -> Result<u64> {
        self.around("position", self.inner.position()).await
    }

    async fn time(&self) -> Result<Option<DateTime<Utc>>> {
        self.around("time", self.inner.time()).await
    }

    async fn backfill(&self, id: &BackfillId) -> Result<Option<BackfillRecord>> {
        self.around("backfill", self.inner.backfill(id)).await
    }

    async fn backfills(&self, states: &[BackfillState]) -> Result<Vec<BackfillRecord>> {
        self.around("backfills", self.inner.backfills(states)).await
    }

    async fn tasks(&self, id: &BackfillId) -> Result<Vec<TaskRecord>> {
        self.around("tasks", self.inner.tasks(id)).await
    }

    async fn current(&self, table: &TableId, partitions: &[PartitionKey]) -> Result<Vec<Option<LedgerRow>>> {
        self.around("current_rows", self.inner.current(table, partitions)).await
    }

    async fn history(&self, table: &TableId, partition: &PartitionKey, limit: u32) -> Result<Vec<LedgerRow>> {
        self.around("history", self.inner.history(table, partition, limit)).await
    }

    async fn run(&self, run: &RunId) -> Result<Vec<LedgerRow>> {
        self.around("run", self.inner.run(run)).await
    }

    async fn changes(&self, backfill: &BackfillId) -> Result<Vec<LedgerRow>> {
        self.around("changes", self.inner.changes(backfill)).await
    }

    async fn partitions(&self, table: &TableId) -> Result<Vec<PartitionKey>> {
        self.around("partitions", self.inner.partitions(table)).await
    }

    async fn recent(&self, job: &JobName, limit: u32) -> Result<Vec<LedgerRow>> {
        self.around("recent", self.inner.recent(job, limit)).await
    }

    async fn outdated(&self, versions: &BTreeMap<JobName, LogicVersion>) -> Result<Vec<Outdated>> {
        self.around("outdated", self.inner.outdated(versions)).await
    }

    async fn stale(&self) -> Result<Vec<StalePartition>> {
        self.around("stale", self.inner.stale()).await
    }

    async fn progress(&self, id: &BackfillId) -> Result<Progress> {
        self.around("progress", self.inner.progress(id)).await
    }

    async fn queue_times(&self, during: &Interval) -> Result<BTreeMap<Trigger, QueueTime>> {
        self.around("queue_times", self.inner.queue_times(during)).await
    }

    async fn deliveries(&self, filter: &DeliveryFilter) -> Result<Vec<DeliveryRecord>> {
        self.around("deliveries", self.inner.deliveries(filter)).await
    }
}

#[async_trait]
impl RunLedger for SimLedger {
    async fn submit(&self, plan: &Plan, by: &Actor, now: DateTime<Utc>) -> Result<Submitted> {
        let Some(port) = &self.port else { return self.inner.submit(plan, by, now).await };
        let saw = |state: &mut State, answer: &Result<Submitted>| {
            if let Ok(Submitted::New) = answer {
                state.model.policies.insert(plan.run(), plan.request.when_moved);
            }
        };
        port.around("submit", self.inner.submit(plan, by, now), saw).await
    }

    async fn transition(
        &self,
        id: &BackfillId,
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        self.around("transition", self.inner.transition(id, change, now)).await
    }

    async fn adjust(&self, id: &BackfillId, what: Adjustment, by: &Actor) -> Result<()> {
        self.around("adjust", self.inner.adjust(id, what, by)).await
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
        self.around("claim", self.inner.claim(id, worker, can_run, limit, ttl, now)).await
    }

    async fn renew_claim(&self, claim: &Claim, ttl: Duration, now: DateTime<Utc>) -> Result<bool> {
        self.around("renew_claim", self.inner.renew_claim(claim, ttl, now)).await
    }

    async fn note_staged(&self, claim: &Claim, result: &TaskResult) -> Result<bool> {
        self.around("note_staged", self.inner.note_staged(claim, result)).await
    }

    async fn leave(&self, claim: &Claim, how: Leave, now: DateTime<Utc>) -> Result<bool> {
        self.around("leave", self.inner.leave(claim, how, now)).await
    }

    async fn restage(
        &self,
        id: &BackfillId,
        tasks: &[TaskId],
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        self.around("restage", self.inner.restage(id, tasks, change, now)).await
    }

    async fn discard_staged(
        &self,
        id: &BackfillId,
        tasks: &[TaskId],
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        self.around("discard_staged", self.inner.discard_staged(id, tasks, change, now)).await
    }

    async fn acquire(
        &self,
        table: &TableId,
        scope: &Scope,
        holder: &WorkerId,
        ttl: Duration,
        now: DateTime<Utc>,
    ) -> Result<Option<Fence>> {
        self.around("acquire", self.inner.acquire(table, scope, holder, ttl, now)).await
    }

    async fn renew(&self, fence: &Fence, ttl: Duration, now: DateTime<Utc>) -> Result<bool> {
        self.around("renew", self.inner.renew(fence, ttl, now)).await
    }

    async fn release(&self, fence: &Fence) -> Result<()> {
        self.around("release", self.inner.release(fence)).await
    }

    async fn ask_slot(&self, ask: &SlotAsk, ttl: Duration, now: DateTime<Utc>) -> Result<bool> {
        self.around("ask_slot", self.inner.ask_slot(ask, ttl, now)).await
    }

    async fn end_slot(&self, ask: &SlotAsk) -> Result<()> {
        self.around("end_slot", self.inner.end_slot(ask)).await
    }

    async fn prepare_deliveries(
        &self,
        id: &StagedId,
        backfill: Option<&BackfillId>,
        batch: &[Delivery],
        now: DateTime<Utc>,
    ) -> Result<()> {
        self.around("prepare", self.inner.prepare_deliveries(id, backfill, batch, now)).await
    }

    async fn release_deliveries(&self, keys: &[String], by: &Actor, now: DateTime<Utc>) -> Result<u64> {
        self.around("release_deliveries", self.inner.release_deliveries(keys, by, now)).await
    }

    async fn announce(&self, origin: &DeliveryOrigin, batch: &[Delivery], now: DateTime<Utc>) -> Result<u64> {
        self.around("announce", self.inner.announce(origin, batch, now)).await
    }

    async fn claim_deliveries(
        &self,
        channels: &[String],
        worker: &WorkerId,
        limit: u32,
        ttl: Duration,
        now: DateTime<Utc>,
    ) -> Result<Vec<DeliveryClaim>> {
        self.around("claim_deliveries", self.inner.claim_deliveries(channels, worker, limit, ttl, now)).await
    }

    async fn end_delivery(
        &self,
        claim: &DeliveryClaim,
        end: &DeliveryEnd,
        now: DateTime<Utc>,
    ) -> Result<bool> {
        self.around("end_delivery", self.inner.end_delivery(claim, end, now)).await
    }

    async fn decide_deliveries(
        &self,
        keys: &[String],
        decision: DeliveryDecision,
        by: &Actor,
        now: DateTime<Utc>,
    ) -> Result<u64> {
        self.around("decide_deliveries", self.inner.decide_deliveries(keys, decision, by, now)).await
    }

    async fn finish(&self, commit: &Commit, entries: &[CommitEntry]) -> Result<()> {
        if self.has(Plant::NoFinish) {
            return self.around("finish", async { Ok(()) }).await;
        }
        if self.has(Plant::NoAdopt) && entries.iter().all(|entry| matches!(entry.change, Adopt)) {
            return self.around("finish", async { Ok(()) }).await;
        }
        let inner = async {
            if self.has(Plant::NoUpsert) {
                let mut again = entries.to_vec();
                for entry in &mut again {
                    let known = self.inner.run(&entry.stamp.run).await?;
                    entry.stamp.generation += u32::try_from(known.len()).unwrap_or(0) * 1000;
                    for record in &mut entry.finish.records {
                        record.stamp = entry.stamp.clone();
                    }
                }
                return self.inner.finish(commit, &again).await;
            }
            if self.has(Plant::Delivers) {
                let mut all = entries.to_vec();
                all.iter_mut().for_each(|entry| entry.finish.deliver = true);
                return self.inner.finish(commit, &all).await;
            }
            self.inner.finish(commit, entries).await
        };
        self.around("finish", inner).await
    }

    async fn found_unchanged(
        &self,
        table: &TableId,
        partitions: &[PartitionKey],
        run: &RunId,
        pinned_at: u64,
    ) -> Result<()> {
        let inner = self.inner.found_unchanged(table, partitions, run, pinned_at);
        self.around("found_unchanged", inner).await
    }

    async fn record_failed(&self, records: &[RunRecord]) -> Result<()> {
        self.around("record_failed", self.inner.record_failed(records)).await
    }

    async fn is_current(&self, fence: &Fence) -> Result<bool> {
        self.around("is_current", self.inner.is_current(fence)).await
    }
}
