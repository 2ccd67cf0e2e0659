//! The ledger, in our own schema of a PostgreSQL database.
//!
//! Every method is one transaction, and what decides is locked before it is read:
//!
//! - What is ordered (rows of runs, stale partitions, deliveries) and the ends of tasks: the row of `reprocess.ledger`
//!   first, see [`order`]. Positions become visible in their order, so that who reads one has seen all before it.
//! - States and claims of a backfill: the row of its latest generation.
//! - Submissions, and leases of one table: an advisory lock of the transaction.
//!
//! A commit of a table in the same database records itself by [`PostgresLedger::finish_in`], as the last thing before it
//! is committed; it checks its fence before. Locks are taken in the order of this list, and claims pass over rows that
//! are locked, so that no two wait for each other.

mod backfill;
mod delivery;
mod finish;
mod lease;
mod order;
mod place;
mod reader;
mod row;
mod run;
mod schema;
mod slot;
mod stale;
mod task;

use std::collections::BTreeMap;
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
use sqlx::{PgConnection, Postgres, Transaction};

use crate::config::{PostgresDatabase, Tx};
use crate::schema::Schema;
use crate::sql::Statement;

/// The ledger of one PostgreSQL database. A handle is cheap to clone, and many processes and machines may have one of
/// the same database.
///
/// Whether a lease or a claim has run out is decided by the clock of the server, so that the clocks of the machines need
/// not agree. Other times, such as when a task started, are what the callers tell.
///
/// An error of a call that writes does not say that nothing was written: its answer may have been lost. The engine asks
/// again, and the same again changes nothing.
#[derive(Clone, Debug)]
pub struct PostgresLedger {
    db: PostgresDatabase,
    callers_clock: bool,
}

impl PostgresLedger {
    /// Opens the ledger of a database: makes its tables, or brings them to the present form. Refuses a ledger that a
    /// newer version of this library wrote.
    pub async fn open(db: PostgresDatabase) -> Result<Self> {
        db.migrate("ledger", &schema::FORMS).await?;
        Ok(Self { db, callers_clock: false })
    }

    /// Lets leases and claims run out by the time that the callers tell. For tests and simulations that control the
    /// time; all handles of a ledger have to agree.
    #[must_use]
    pub fn with_clock_of_callers(mut self) -> Self {
        self.callers_clock = true;
        self
    }

    /// The database.
    pub fn database(&self) -> &PostgresDatabase {
        &self.db
    }

    /// Records a commit as [`RunLedger::finish`] does, in the transaction that writes the data; it is done when that is
    /// committed. Refuses, so that the transaction is rolled back, an entry whose task has passed to a later attempt or
    /// was stopped.
    ///
    /// Call it last: until the transaction ends, no other commit is recorded. The transaction has to be READ COMMITTED.
    pub async fn finish_in(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        commit: &Commit,
        entries: &[CommitEntry],
    ) -> Result<()> {
        self.finish_on(tx, commit, entries).await
    }

    /// Answers [`RunLedger::is_current`] in the transaction that writes the data. Where it is, nobody can take an
    /// overlapping lease before the transaction ends.
    pub async fn fence_is_current_in(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        fence: &Fence,
    ) -> Result<bool> {
        self.fence_is_current_on(tx, fence).await
    }

    /// [`finish_in`](Self::finish_in) on a connection that is in a transaction.
    pub async fn finish_on(
        &self,
        connection: &mut PgConnection,
        commit: &Commit,
        entries: &[CommitEntry],
    ) -> Result<()> {
        let s = &mut self.session(connection);
        order::lock(s).await?;
        for entry in entries {
            finish::refuse_passed_on(s, entry).await?;
            finish::record(s, commit, entry).await?;
        }
        Ok(())
    }

    /// [`fence_is_current_in`](Self::fence_is_current_in) on a connection that is in a transaction.
    pub async fn fence_is_current_on(&self, connection: &mut PgConnection, fence: &Fence) -> Result<bool> {
        lease::hold(&mut self.session(connection), fence).await
    }

    fn session<'c>(&'c self, connection: &'c mut PgConnection) -> Session<'c> {
        Session { connection, schema: self.db.schema(), shapes: BTreeMap::new() }
    }

    /// The instant that decides what has run out; `None` for that of the server.
    fn deciding(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.callers_clock.then_some(now)
    }
}

/// A connection in a transaction, and the schema that its statements are of.
#[derive(Debug)]
struct Session<'c> {
    connection: &'c mut PgConnection,
    schema: &'c Schema,
    /// The shapes of the tables that were asked for. Others may add some meanwhile, but no row under them that this
    /// transaction should see: it holds the lock under which such rows are written.
    shapes: BTreeMap<TableId, Vec<place::Shape>>,
}

impl Session<'_> {
    fn sql(&self, text: &str) -> Statement {
        self.schema.sql(text)
    }

    fn conn(&mut self) -> &mut PgConnection {
        self.connection
    }
}

async fn written<T>(tx: Tx, answer: T) -> Result<T> {
    tx.commit().await?;
    Ok(answer)
}

#[async_trait]
impl RunLedger for PostgresLedger {
    async fn submit(&self, plan: &Plan, by: &Actor, now: DateTime<Utc>) -> Result<Submitted> {
        let mut tx = self.db.begin().await?;
        let answer = backfill::submit(&mut self.session(&mut tx), plan, by, now).await?;
        written(tx, answer).await
    }

    async fn transition(
        &self,
        id: &BackfillId,
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        let mut tx = self.db.begin().await?;
        let answer = backfill::transition(&mut self.session(&mut tx), id, change, now).await?;
        written(tx, answer).await
    }

    async fn adjust(&self, id: &BackfillId, what: Adjustment, by: &Actor) -> Result<()> {
        let mut tx = self.db.begin().await?;
        backfill::adjust(&mut self.session(&mut tx), id, what, by).await?;
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
        let mut tx = self.db.begin().await?;
        let wish = task::Wish { worker, can_run, limit, ttl, now, deciding: self.deciding(now) };
        let claims = task::claim(&mut self.session(&mut tx), id, &wish).await?;
        written(tx, claims).await
    }

    async fn renew_claim(&self, claim: &Claim, ttl: Duration, now: DateTime<Utc>) -> Result<bool> {
        let mut tx = self.db.begin().await?;
        let answer = task::renew(&mut self.session(&mut tx), claim, ttl, self.deciding(now)).await?;
        written(tx, answer).await
    }

    async fn note_staged(&self, claim: &Claim, result: &TaskResult) -> Result<bool> {
        let mut tx = self.db.begin().await?;
        let answer = task::note_staged(&mut self.session(&mut tx), claim, result).await?;
        written(tx, answer).await
    }

    async fn leave(&self, claim: &Claim, how: Leave, now: DateTime<Utc>) -> Result<bool> {
        let mut tx = self.db.begin().await?;
        let answer = task::leave(&mut self.session(&mut tx), claim, how, now).await?;
        written(tx, answer).await
    }

    async fn found_unchanged(
        &self,
        table: &TableId,
        partitions: &[PartitionKey],
        run: &RunId,
        pinned_at: u64,
    ) -> Result<()> {
        let mut tx = self.db.begin().await?;
        let s = &mut self.session(&mut tx);
        order::lock(s).await?;
        for key in partitions {
            stale::clear(s, table, key, run, pinned_at).await?;
        }
        written(tx, ()).await
    }

    async fn record_failed(&self, records: &[RunRecord]) -> Result<()> {
        let mut tx = self.db.begin().await?;
        let s = &mut self.session(&mut tx);
        order::lock(s).await?;
        task::record_failed(s, records).await?;
        written(tx, ()).await
    }

    async fn restage(
        &self,
        id: &BackfillId,
        tasks: &[TaskId],
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        let mut tx = self.db.begin().await?;
        let s = &mut self.session(&mut tx);
        let answer = backfill::transition(s, id, change, now).await?;
        if answer == Transition::Done {
            let (generation, _) = backfill::locked(s, id).await?;
            task::unstage(s, id, generation, tasks, TaskState::Pending, change, now).await?;
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
        let mut tx = self.db.begin().await?;
        let s = &mut self.session(&mut tx);
        let answer = backfill::transition(s, id, change, now).await?;
        if answer == Transition::Done {
            let (generation, _) = backfill::locked(s, id).await?;
            let tasks = task::with_later(s, id, generation, tasks).await?;
            task::unstage(s, id, generation, &tasks, TaskState::Cancelled, change, now).await?;
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
        let mut tx = self.db.begin().await?;
        let s = &mut self.session(&mut tx);
        match lease::acquire(s, table, scope, holder, ttl, self.deciding(now)).await? {
            Some(fence) => written(tx, Some(fence)).await,
            None => tx.rollback().await.map(|()| None),
        }
    }

    async fn renew(&self, fence: &Fence, ttl: Duration, now: DateTime<Utc>) -> Result<bool> {
        let mut tx = self.db.begin().await?;
        let answer = lease::renew(&mut self.session(&mut tx), fence, ttl, self.deciding(now)).await?;
        written(tx, answer).await
    }

    async fn release(&self, fence: &Fence) -> Result<()> {
        let mut tx = self.db.begin().await?;
        lease::release(&mut self.session(&mut tx), fence).await?;
        written(tx, ()).await
    }

    async fn ask_slot(&self, ask: &SlotAsk, ttl: Duration, now: DateTime<Utc>) -> Result<bool> {
        let mut tx = self.db.begin().await?;
        let deciding = self.deciding(now);
        let answer = slot::ask(&mut self.session(&mut tx), ask, ttl, deciding).await?;
        written(tx, answer).await
    }

    async fn end_slot(&self, ask: &SlotAsk) -> Result<()> {
        let mut tx = self.db.begin().await?;
        slot::end(&mut self.session(&mut tx), ask).await?;
        written(tx, ()).await
    }

    async fn prepare_deliveries(
        &self,
        id: &StagedId,
        backfill: Option<&BackfillId>,
        batch: &[Delivery],
        now: DateTime<Utc>,
    ) -> Result<()> {
        // Most tasks deliver nothing, and writing takes its turn with everything that the ledger records.
        if batch.is_empty() {
            let mut tx = self.db.begin_read().await?;
            let some = delivery::stand_for(&mut self.session(&mut tx), id).await?;
            tx.rollback().await?;
            if !some {
                return Ok(());
            }
        }
        let mut tx = self.db.begin().await?;
        let s = &mut self.session(&mut tx);
        order::lock(s).await?;
        delivery::prepare(s, id, backfill, batch, now).await?;
        written(tx, ()).await
    }

    async fn release_deliveries(&self, keys: &[String], by: &Actor, now: DateTime<Utc>) -> Result<u64> {
        let mut tx = self.db.begin().await?;
        let s = &mut self.session(&mut tx);
        order::lock(s).await?;
        let count = delivery::release(s, keys, by, now).await?;
        written(tx, count).await
    }

    async fn announce(&self, origin: &DeliveryOrigin, batch: &[Delivery], now: DateTime<Utc>) -> Result<u64> {
        let mut tx = self.db.begin().await?;
        let s = &mut self.session(&mut tx);
        order::lock(s).await?;
        let count = delivery::announce(s, origin, batch, now).await?;
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
        let mut tx = self.db.begin().await?;
        let s = &mut self.session(&mut tx);
        order::lock(s).await?;
        let wish = delivery::Wish { channels, worker, limit, ttl, now, deciding: self.deciding(now) };
        let claims = delivery::claim(s, &wish).await?;
        written(tx, claims).await
    }

    async fn end_delivery(
        &self,
        claim: &DeliveryClaim,
        end: &DeliveryEnd,
        now: DateTime<Utc>,
    ) -> Result<bool> {
        let mut tx = self.db.begin().await?;
        let s = &mut self.session(&mut tx);
        order::lock(s).await?;
        let answer = delivery::end(s, claim, end, now).await?;
        written(tx, answer).await
    }

    async fn decide_deliveries(
        &self,
        keys: &[String],
        decision: DeliveryDecision,
        by: &Actor,
        now: DateTime<Utc>,
    ) -> Result<u64> {
        let mut tx = self.db.begin().await?;
        let s = &mut self.session(&mut tx);
        order::lock(s).await?;
        let count = delivery::decide(s, keys, decision, by, now).await?;
        written(tx, count).await
    }

    async fn finish(&self, commit: &Commit, entries: &[CommitEntry]) -> Result<()> {
        let mut tx = self.db.begin().await?;
        let s = &mut self.session(&mut tx);
        order::lock(s).await?;
        for entry in entries {
            finish::record(s, commit, entry).await?;
        }
        written(tx, ()).await
    }

    async fn is_current(&self, fence: &Fence) -> Result<bool> {
        let mut tx = self.db.begin_read().await?;
        let answer = lease::is_current(&mut self.session(&mut tx), fence).await?;
        tx.rollback().await?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests;
