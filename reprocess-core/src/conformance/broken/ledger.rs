//! A ledger that breaks one promise.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};

use super::Broken;
use crate::domain::ids::{Actor, BackfillId, JobName, LogicVersion, RunId, TableId, WorkerId};
use crate::domain::interval::Interval;
use crate::domain::partition::PartitionKey;
use crate::domain::plan::{Plan, TaskId};
use crate::domain::request::Mode;
use crate::domain::scope::Scope;
use crate::error::Result;
use crate::memory::MemoryLedger;
use crate::ports::delivery::{
    Delivery, DeliveryClaim, DeliveryDecision, DeliveryEnd, DeliveryOrigin, DeliveryRecord,
};
use crate::ports::ledger::*;
use crate::ports::writer::{Commit, CommitEntry, StagedId, StampId};

#[derive(Debug)]
pub(super) struct BrokenLedger {
    inner: Arc<MemoryLedger>,
    broken: Broken,
    told: Mutex<BTreeSet<StampId>>,
}

#[async_trait]
impl LedgerReader for BrokenLedger {
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

    async fn current(&self, table: &TableId, keys: &[PartitionKey]) -> Result<Vec<Option<LedgerRow>>> {
        let mut rows = self.inner.current(table, keys).await?;
        if self.is(Broken::KnowsEqualKeysOnly) {
            for (row, key) in rows.iter_mut().zip(keys) {
                row.take_if(|row| row.record.partition != *key);
            }
        }
        Ok(rows)
    }

    async fn history(&self, table: &TableId, key: &PartitionKey, limit: u32) -> Result<Vec<LedgerRow>> {
        let mut rows = self.inner.history(table, key, limit).await?;
        rows.retain(|row| !self.is(Broken::RemembersEqualKeysOnly) || row.record.partition == *key);
        Ok(rows)
    }

    async fn run(&self, run: &RunId) -> Result<Vec<LedgerRow>> {
        self.inner.run(run).await
    }

    async fn changes(&self, backfill: &BackfillId) -> Result<Vec<LedgerRow>> {
        self.inner.changes(backfill).await
    }

    async fn partitions(&self, table: &TableId) -> Result<Vec<PartitionKey>> {
        self.inner.partitions(table).await
    }

    async fn recent(&self, job: &JobName, limit: u32) -> Result<Vec<LedgerRow>> {
        self.inner.recent(job, limit).await
    }

    async fn outdated(&self, versions: &BTreeMap<JobName, LogicVersion>) -> Result<Vec<Outdated>> {
        let mut outdated = self.inner.outdated(versions).await?;
        outdated.retain(|row| !self.is(Broken::OutdatesKnownLogicOnly) || row.logic.is_some());
        Ok(outdated)
    }

    async fn stale(&self) -> Result<Vec<StalePartition>> {
        self.inner.stale().await
    }

    async fn progress(&self, id: &BackfillId) -> Result<Progress> {
        let mut progress = self.inner.progress(id).await?;
        if self.is(Broken::CountsNoTime) {
            progress.busy_ms = 0;
        }
        Ok(progress)
    }

    async fn queue_times(&self, during: &Interval) -> Result<BTreeMap<Trigger, QueueTime>> {
        let during = match self.is(Broken::CountsTheEndToo) {
            true => Interval::new(during.start(), during.end() + TimeDelta::microseconds(1)).unwrap(),
            false => *during,
        };
        self.inner.queue_times(&during).await
    }

    async fn deliveries(&self, filter: &DeliveryFilter) -> Result<Vec<DeliveryRecord>> {
        self.inner.deliveries(filter).await
    }
}

impl BrokenLedger {
    pub(super) fn new(inner: Arc<MemoryLedger>, broken: Broken) -> Self {
        Self { inner, broken, told: Mutex::default() }
    }

    fn is(&self, broken: Broken) -> bool {
        self.broken == broken
    }

    /// The table by which leases of equal scopes exclude each other, and no others.
    fn leased(&self, table: &TableId, scope: &Scope) -> TableId {
        if self.is(Broken::LeasesByEqualityOnly) {
            format!("{table} {scope}").as_str().into()
        } else {
            table.clone()
        }
    }

    fn fence(&self, fence: &Fence) -> Fence {
        Fence { table: self.leased(&fence.table, &fence.scope), ..fence.clone() }
    }

    /// The claim as if it were the latest.
    async fn latest(&self, claim: &Claim) -> Result<Claim> {
        let mut claim = claim.clone();
        if self.is(Broken::HearsZombies) {
            let tasks = self.inner.tasks(&claim.backfill).await?;
            let task = tasks.iter().find(|task| task.id == claim.task);
            claim.attempt = task.map_or(claim.attempt, |task| task.attempt);
        }
        Ok(claim)
    }
}

#[async_trait]
impl RunLedger for BrokenLedger {
    async fn submit(&self, plan: &Plan, by: &Actor, now: DateTime<Utc>) -> Result<Submitted> {
        let mut plan = plan.clone();
        if self.is(Broken::ClaimsBeyondTheCap) {
            plan.request.concurrency = 99;
        }
        if self.is(Broken::TakesAShadowForDirect) {
            plan.request.mode = Mode::Direct;
        }
        for task in &mut plan.tasks {
            if self.is(Broken::IgnoresOrder) {
                task.after.clear();
            }
            if self.is(Broken::IgnoresOverlaps) {
                task.table = format!("{} of {}", task.table, plan.request.id).as_str().into();
            }
        }
        self.inner.submit(&plan, by, now).await
    }

    async fn transition(
        &self,
        id: &BackfillId,
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        if change.to == BackfillState::Closed && self.is(Broken::ClosesNothing) {
            return Ok(Transition::Done);
        }
        match self.inner.transition(id, change, now).await? {
            Transition::Elsewhere(from) if self.is(Broken::ChangesFromAnyState) => {
                self.inner.transition(id, &StateChange { from, ..change.clone() }, now).await
            }
            transition => Ok(transition),
        }
    }

    async fn adjust(&self, id: &BackfillId, what: Adjustment, by: &Actor) -> Result<()> {
        match what {
            Adjustment::Pause if self.is(Broken::PausesNothing) => Ok(()),
            _ => self.inner.adjust(id, what, by).await,
        }
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
        self.inner.claim(id, worker, can_run, limit, ttl, now).await
    }

    async fn renew_claim(&self, claim: &Claim, ttl: Duration, now: DateTime<Utc>) -> Result<bool> {
        self.inner.renew_claim(&self.latest(claim).await?, ttl, now).await
    }

    async fn note_staged(&self, claim: &Claim, result: &TaskResult) -> Result<bool> {
        self.inner.note_staged(&self.latest(claim).await?, result).await
    }

    async fn leave(&self, claim: &Claim, how: Leave, now: DateTime<Utc>) -> Result<bool> {
        self.inner.leave(&self.latest(claim).await?, how, now).await
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
        let now = if self.is(Broken::NeverEndsALease) { DateTime::UNIX_EPOCH } else { now };
        let given = self.inner.acquire(&self.leased(table, scope), scope, holder, ttl, now).await?;
        Ok(given.map(|fence| Fence { table: table.clone(), ..fence }))
    }

    async fn renew(&self, fence: &Fence, ttl: Duration, now: DateTime<Utc>) -> Result<bool> {
        self.inner.renew(&self.fence(fence), ttl, now).await
    }

    async fn release(&self, fence: &Fence) -> Result<()> {
        self.inner.release(&self.fence(fence)).await
    }

    async fn ask_slot(&self, ask: &SlotAsk, ttl: Duration, now: DateTime<Utc>) -> Result<bool> {
        let mut ask = ask.clone();
        if self.is(Broken::ServesInTurn) {
            (ask.class, ask.priority) = (SlotClass::Scheduled, 0);
        }
        Ok(self.inner.ask_slot(&ask, ttl, now).await? || self.is(Broken::GivesEverySlot))
    }

    async fn end_slot(&self, ask: &SlotAsk) -> Result<()> {
        self.inner.end_slot(ask).await
    }

    async fn prepare_deliveries(
        &self,
        id: &StagedId,
        backfill: Option<&BackfillId>,
        batch: &[Delivery],
        now: DateTime<Utc>,
    ) -> Result<()> {
        self.inner.prepare_deliveries(id, backfill, batch, now).await
    }

    async fn release_deliveries(&self, keys: &[String], by: &Actor, now: DateTime<Utc>) -> Result<u64> {
        self.inner.release_deliveries(keys, by, now).await
    }

    async fn announce(&self, origin: &DeliveryOrigin, batch: &[Delivery], now: DateTime<Utc>) -> Result<u64> {
        let mut batch = batch.to_vec();
        if self.is(Broken::AnnouncesAgain) {
            batch.iter_mut().for_each(|delivery| delivery.key.push_str(&now.to_string()));
        }
        self.inner.announce(origin, &batch, now).await
    }

    async fn claim_deliveries(
        &self,
        channels: &[String],
        worker: &WorkerId,
        limit: u32,
        ttl: Duration,
        now: DateTime<Utc>,
    ) -> Result<Vec<DeliveryClaim>> {
        let ttl = if self.is(Broken::TakesDeliveriesAtOnce) { Duration::ZERO } else { ttl };
        let now = if self.is(Broken::ForgetsWhenItIsDue) { now + TimeDelta::days(1) } else { now };
        let mut claims = self.inner.claim_deliveries(channels, worker, limit, ttl, now).await?;
        if self.is(Broken::NeverDoubts) {
            claims.iter_mut().for_each(|claim| claim.in_doubt = false);
        }
        Ok(claims)
    }

    async fn end_delivery(
        &self,
        claim: &DeliveryClaim,
        end: &DeliveryEnd,
        now: DateTime<Utc>,
    ) -> Result<bool> {
        if self.is(Broken::EndsNoDelivery) {
            return Ok(false);
        }
        let mut claim = claim.clone();
        if self.is(Broken::HearsEveryTaker) {
            let all = self.inner.deliveries(&DeliveryFilter::default()).await?;
            let known = all.iter().find(|record| record.place == claim.place);
            claim.attempt = known.map_or(claim.attempt, |record| record.attempts);
            claim.worker = if claim.worker.as_str() == "w1" { "w2".into() } else { claim.worker };
        }
        self.inner.end_delivery(&claim, end, now).await
    }

    async fn decide_deliveries(
        &self,
        keys: &[String],
        decision: DeliveryDecision,
        by: &Actor,
        now: DateTime<Utc>,
    ) -> Result<u64> {
        let keys = if self.is(Broken::DecidesNothing) { &[] } else { keys };
        self.inner.decide_deliveries(keys, decision, by, now).await
    }

    async fn finish(&self, commit: &Commit, entries: &[CommitEntry]) -> Result<()> {
        let mut entries = entries.to_vec();
        for entry in &mut entries {
            let again = !self.told.lock().unwrap().insert(entry.stamp.clone());
            if again && self.is(Broken::RevivesASupersededRun) {
                entry.finish.records.iter_mut().for_each(|record| record.stamp.generation += 1);
            }
            entry.finish.deliver |= self.is(Broken::ReleasesWhatIsSuppressed);
            if self.is(Broken::ForgetsWhatIsStale) {
                entry.finish.stale.clear();
            }
            if self.is(Broken::ForgetsWhatWasRead) {
                entry.finish.reads.clear();
            }
            if self.is(Broken::KeepsAFailure) {
                let known = self.inner.run(&entry.stamp.run).await?;
                let failed = |record: &RunRecord| {
                    let same = |row: &&LedgerRow| row.record.partition == record.partition;
                    known.iter().find(same).is_some_and(|row| row.record.status == RunStatus::Failed)
                };
                entry.finish.records.retain(|record| !failed(record));
            }
        }
        self.inner.finish(commit, &entries).await
    }

    async fn found_unchanged(
        &self,
        table: &TableId,
        partitions: &[PartitionKey],
        run: &RunId,
        pinned_at: u64,
    ) -> Result<()> {
        self.inner.found_unchanged(table, partitions, run, pinned_at).await
    }

    async fn record_failed(&self, records: &[RunRecord]) -> Result<()> {
        self.inner.record_failed(records).await
    }

    async fn is_current(&self, fence: &Fence) -> Result<bool> {
        Ok(self.is(Broken::CallsEveryFenceCurrent) || self.inner.is_current(&self.fence(fence)).await?)
    }
}
