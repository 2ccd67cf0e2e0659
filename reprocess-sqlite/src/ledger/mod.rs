//! The ledger, in tables `reprocess_…` of a SQLite file.
//!
//! Every method is one transaction; what writes takes the write lock first, so that several handles and processes wait
//! for each other instead of failing. A commit of a table in the same file records itself by
//! [`SqliteLedger::finish_in`], in its own transaction.

mod backfill;
mod delivery;
mod finish;
mod lease;
mod place;
mod reader;
mod row;
mod run;
mod schema;
mod slot;
mod stale;
mod task;

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use reprocess_core::Result;
use reprocess_core::domain::ids::{Actor, BackfillId, JobName, LogicVersion, RunId, TableId, WorkerId};
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::plan::{Plan, TaskId};
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::delivery::{
    Delivery, DeliveryClaim, DeliveryDecision, DeliveryEnd, DeliveryOrigin,
};
use reprocess_core::ports::ledger::{
    Adjustment, Claim, Fence, Leave, RunLedger, RunRecord, SlotAsk, StateChange, Submitted, TaskResult,
    TaskState, Transition,
};
use reprocess_core::ports::writer::{Commit, CommitEntry, StagedId};
use sqlx::{Sqlite, Transaction};

use crate::config::SqliteDatabase;
use crate::error::Doing;

/// The ledger of one SQLite file. A handle is cheap to clone, and several processes may have one of the same file.
///
/// All processes are of one machine, so leases and claims go by the time that the callers tell.
#[derive(Clone, Debug)]
pub struct SqliteLedger {
    db: SqliteDatabase,
}

impl SqliteLedger {
    /// Opens the ledger of a file: makes its tables, or brings them to the present form. Refuses a ledger that a newer
    /// version of this library wrote.
    pub async fn open(db: SqliteDatabase) -> Result<Self> {
        db.migrate("ledger", &schema::FORMS).await?;
        Ok(Self { db })
    }

    /// The file.
    pub fn database(&self) -> &SqliteDatabase {
        &self.db
    }

    /// Records a commit as [`RunLedger::finish`] does, in the transaction that writes the data; it is done when that is
    /// committed. Refuses, so that the transaction is rolled back, an entry whose task has passed to a later attempt or
    /// was stopped.
    pub async fn finish_in(
        &self,
        tx: &mut Transaction<'_, Sqlite>,
        commit: &Commit,
        entries: &[CommitEntry],
    ) -> Result<()> {
        for entry in entries {
            finish::refuse_passed_on(tx, entry).await?;
            finish::record(tx, commit, entry).await?;
        }
        Ok(())
    }

    /// Answers [`RunLedger::is_current`] in the transaction that writes the data.
    pub async fn fence_is_current_in(&self, tx: &mut Transaction<'_, Sqlite>, fence: &Fence) -> Result<bool> {
        lease::is_current(tx, fence).await
    }
}

async fn written<T>(tx: Transaction<'_, Sqlite>, answer: T) -> Result<T> {
    tx.commit().await.doing("commit a change of the ledger")?;
    Ok(answer)
}

#[async_trait]
impl RunLedger for SqliteLedger {
    async fn submit(&self, plan: &Plan, by: &Actor, now: DateTime<Utc>) -> Result<Submitted> {
        let mut tx = self.db.begin_write().await?;
        let answer = backfill::submit(&mut tx, plan, by, now).await?;
        written(tx, answer).await
    }

    async fn transition(
        &self,
        id: &BackfillId,
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        let mut tx = self.db.begin_write().await?;
        let answer = backfill::transition(&mut tx, id, change, now).await?;
        written(tx, answer).await
    }

    async fn adjust(&self, id: &BackfillId, what: Adjustment, by: &Actor) -> Result<()> {
        let mut tx = self.db.begin_write().await?;
        backfill::adjust(&mut tx, id, what, by).await?;
        written(tx, ()).await
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
        let mut tx = self.db.begin_write().await?;
        let wish = task::Wish { worker, can_run, limit, ttl };
        let claims = task::claim(&mut tx, id, &wish, now).await?;
        written(tx, claims).await
    }

    async fn renew_claim(&self, claim: &Claim, ttl: Duration, now: DateTime<Utc>) -> Result<bool> {
        let mut tx = self.db.begin_write().await?;
        let answer = task::renew(&mut tx, claim, ttl, now).await?;
        written(tx, answer).await
    }

    async fn note_staged(&self, claim: &Claim, result: &TaskResult) -> Result<bool> {
        let mut tx = self.db.begin_write().await?;
        let answer = task::note_staged(&mut tx, claim, result).await?;
        written(tx, answer).await
    }

    async fn leave(&self, claim: &Claim, how: Leave, now: DateTime<Utc>) -> Result<bool> {
        let mut tx = self.db.begin_write().await?;
        let answer = task::leave(&mut tx, claim, how, now).await?;
        written(tx, answer).await
    }

    async fn found_unchanged(
        &self,
        table: &TableId,
        partitions: &[PartitionKey],
        run: &RunId,
        pinned_at: u64,
    ) -> Result<()> {
        let mut tx = self.db.begin_write().await?;
        for key in partitions {
            stale::clear(&mut tx, table, key, run, pinned_at).await?;
        }
        written(tx, ()).await
    }

    async fn record_failed(&self, records: &[RunRecord]) -> Result<()> {
        let mut tx = self.db.begin_write().await?;
        task::record_failed(&mut tx, records).await?;
        written(tx, ()).await
    }

    async fn restage(
        &self,
        id: &BackfillId,
        tasks: &[TaskId],
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        let mut tx = self.db.begin_write().await?;
        let answer = backfill::transition(&mut tx, id, change, now).await?;
        if answer == Transition::Done {
            task::unstage(&mut tx, id, tasks, TaskState::Pending, change, now).await?;
        }
        written(tx, answer).await
    }

    async fn discard_staged(
        &self,
        id: &BackfillId,
        tasks: &[TaskId],
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        let mut tx = self.db.begin_write().await?;
        let answer = backfill::transition(&mut tx, id, change, now).await?;
        if answer == Transition::Done {
            let tasks = task::with_later(&mut tx, id, tasks).await?;
            task::unstage(&mut tx, id, &tasks, TaskState::Cancelled, change, now).await?;
        }
        written(tx, answer).await
    }

    async fn acquire(
        &self,
        table: &TableId,
        scope: &Scope,
        holder: &WorkerId,
        ttl: Duration,
        now: DateTime<Utc>,
    ) -> Result<Option<Fence>> {
        let mut tx = self.db.begin_write().await?;
        let fence = lease::acquire(&mut tx, table, scope, holder, ttl, now).await?;
        written(tx, fence).await
    }

    async fn renew(&self, fence: &Fence, ttl: Duration, now: DateTime<Utc>) -> Result<bool> {
        let mut tx = self.db.begin_write().await?;
        let answer = lease::renew(&mut tx, fence, ttl, now).await?;
        written(tx, answer).await
    }

    async fn release(&self, fence: &Fence) -> Result<()> {
        let mut tx = self.db.begin_write().await?;
        lease::release(&mut tx, fence).await?;
        written(tx, ()).await
    }

    async fn ask_slot(&self, ask: &SlotAsk, ttl: Duration, now: DateTime<Utc>) -> Result<bool> {
        let mut tx = self.db.begin_write().await?;
        let answer = slot::ask(&mut tx, ask, ttl, now).await?;
        written(tx, answer).await
    }

    async fn end_slot(&self, ask: &SlotAsk) -> Result<()> {
        let mut tx = self.db.begin_write().await?;
        slot::end(&mut tx, ask).await?;
        written(tx, ()).await
    }

    async fn prepare_deliveries(
        &self,
        id: &StagedId,
        backfill: Option<&BackfillId>,
        batch: &[Delivery],
        now: DateTime<Utc>,
    ) -> Result<()> {
        // Most tasks deliver nothing, and only one process writes at a time.
        if batch.is_empty() && !delivery::stand_for(&mut *self.db.read().await?, id).await? {
            return Ok(());
        }
        let mut tx = self.db.begin_write().await?;
        delivery::prepare(&mut tx, id, backfill, batch, now).await?;
        written(tx, ()).await
    }

    async fn release_deliveries(&self, keys: &[String], by: &Actor, now: DateTime<Utc>) -> Result<u64> {
        let mut tx = self.db.begin_write().await?;
        let count = delivery::release(&mut tx, keys, by, now).await?;
        written(tx, count).await
    }

    async fn announce(&self, origin: &DeliveryOrigin, batch: &[Delivery], now: DateTime<Utc>) -> Result<u64> {
        let mut tx = self.db.begin_write().await?;
        let count = delivery::announce(&mut tx, origin, batch, now).await?;
        written(tx, count).await
    }

    async fn claim_deliveries(
        &self,
        channels: &[String],
        worker: &WorkerId,
        limit: u32,
        ttl: Duration,
        now: DateTime<Utc>,
    ) -> Result<Vec<DeliveryClaim>> {
        let mut tx = self.db.begin_write().await?;
        let claims = delivery::claim(&mut tx, channels, worker, limit, ttl, now).await?;
        written(tx, claims).await
    }

    async fn end_delivery(
        &self,
        claim: &DeliveryClaim,
        end: &DeliveryEnd,
        now: DateTime<Utc>,
    ) -> Result<bool> {
        let mut tx = self.db.begin_write().await?;
        let answer = delivery::end(&mut tx, claim, end, now).await?;
        written(tx, answer).await
    }

    async fn decide_deliveries(
        &self,
        keys: &[String],
        decision: DeliveryDecision,
        by: &Actor,
        now: DateTime<Utc>,
    ) -> Result<u64> {
        let mut tx = self.db.begin_write().await?;
        let count = delivery::decide(&mut tx, keys, decision, by, now).await?;
        written(tx, count).await
    }

    async fn finish(&self, commit: &Commit, entries: &[CommitEntry]) -> Result<()> {
        let mut tx = self.db.begin_write().await?;
        for entry in entries {
            finish::record(&mut tx, commit, entry).await?;
        }
        written(tx, ()).await
    }

    async fn is_current(&self, fence: &Fence) -> Result<bool> {
        lease::is_current(&mut *self.db.read().await?, fence).await
    }
}

#[cfg(test)]
mod tests;
