//! The run ledger: the durable record of backfills, runs, tasks, leases and deliveries.

mod record;
pub mod rules;
mod slot;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

pub use record::{
    Approval, BackfillRecord, BackfillState, LedgerRow, RunRecord, RunStatus, StalePartition, TaskFinish,
    TaskRecord, TaskResult, TaskState, Trigger,
};
pub use slot::{SlotAsk, SlotClass, SlotEntry};

use super::delivery::{
    Delivery, DeliveryClaim, DeliveryDecision, DeliveryEnd, DeliveryOrigin, DeliveryRecord, DeliveryState,
};
use super::writer::{Commit, CommitEntry, StagedId};
use crate::domain::ids::{Actor, BackfillId, JobName, LogicVersion, RunId, TableId, WorkerId};
use crate::domain::interval::Interval;
use crate::domain::partition::PartitionKey;
use crate::domain::plan::{Plan, TaskId};
use crate::domain::scope::Scope;
use crate::error::Result;

/// Permission to try a write: a lease that was held when it was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// The table.
    pub table: TableId,
    /// What may be written.
    pub scope: Scope,
    /// Grows with every lease of the whole ledger; a lease that overlaps a later one is void.
    pub token: u64,
}

/// A task that a worker has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The backfill.
    pub backfill: BackfillId,
    /// Its generation.
    pub generation: u32,
    /// The task.
    pub task: TaskId,
    /// Which attempt this is, from 1. The ledger takes results of the latest attempt only.
    pub attempt: u32,
    /// Who claimed it.
    pub worker: WorkerId,
    /// When the task could first run.
    pub queued_at: DateTime<Utc>,
    /// When it was claimed.
    pub started_at: DateTime<Utc>,
}

/// The answer to a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Submitted {
    /// It is in the ledger, planned.
    New,
    /// The same plan is there already.
    Already(BackfillState),
    /// The backfill is open with another plan.
    OtherPlan {
        /// Its state.
        state: BackfillState,
        /// Digest of the plan that is there.
        digest: String,
    },
    /// Its generation is not the one after the last.
    OtherGeneration {
        /// The generation that a new plan must have.
        next: u32,
    },
    /// Other open backfills hold some of its partitions.
    Overlaps(Vec<Overlap>),
}

/// A partition that another backfill holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlap {
    /// The other backfill.
    pub backfill: BackfillId,
    /// Its state.
    pub state: BackfillState,
    /// The table.
    pub table: TableId,
    /// One of the partitions.
    pub partition: PartitionKey,
}

/// A change of state.
#[derive(Clone, Debug, PartialEq)]
pub struct StateChange {
    /// The state it must be in.
    pub from: BackfillState,
    /// The state it gets.
    pub to: BackfillState,
    /// Who wants it.
    pub by: Actor,
    /// An approval that is written with it.
    pub approval: Option<Approval>,
    /// Why.
    pub note: Option<String>,
}

/// The answer to a change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Transition {
    /// It has the new state.
    Done,
    /// It is in another state than expected; nothing was changed.
    Elsewhere(BackfillState),
}

/// A change of how a backfill is worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Adjustment {
    /// No more of its tasks are claimed; those that are go on.
    Pause,
    /// They are claimed again.
    Resume,
    /// So many of its tasks run at a time, over all processes.
    Concurrency(NonZeroU32),
}

/// How a worker leaves a task.
#[derive(Clone, Debug, PartialEq)]
pub enum Leave {
    /// Another attempt may take it, at once: storage could not be reached for a while, or the worker stops.
    Pending {
        /// Why it was left.
        note: String,
    },
    /// Staged for the publication.
    Staged(Box<TaskResult>),
    /// Found unchanged, or left to another run.
    Skipped {
        /// Why.
        note: String,
    },
    /// Failed for good. Tasks after it become blocked; the records are written as failed.
    Failed {
        /// Why.
        note: String,
        /// One for each unit.
        records: Vec<RunRecord>,
    },
}

/// A production partition whose current run has another logic version than the job should have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outdated {
    /// The job.
    pub job: JobName,
    /// The table.
    pub table: TableId,
    /// The partition.
    pub partition: PartitionKey,
    /// Its logic version, where known.
    pub logic: Option<LogicVersion>,
    /// The run that made it.
    pub run: RunId,
}

/// How many tasks of a backfill are in each state, and how long the finished ones took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Number of tasks by state.
    pub tasks: BTreeMap<TaskState, u64>,
    /// Sum of the durations of tasks that were claimed and finished, in milliseconds.
    pub busy_ms: u64,
    /// Number of those.
    pub timed: u64,
}

/// How long tasks of one trigger waited for a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueTime {
    /// Number of rows.
    pub rows: u64,
    /// Mean wait in milliseconds.
    pub mean_ms: u64,
    /// Longest wait in milliseconds.
    pub max_ms: u64,
}

/// Which deliveries to list; each condition that is set must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveryFilter {
    /// Of this backfill.
    pub backfill: Option<BackfillId>,
    /// Of this run.
    pub run: Option<RunId>,
    /// In this state.
    pub state: Option<DeliveryState>,
}

/// The questions that the ledger answers.
#[async_trait]
pub trait LedgerReader: Send + Sync + fmt::Debug {
    /// Position of the last row; 0 where there is none.
    async fn position(&self) -> Result<u64>;

    /// The time of the clock that decides leases and claims; `None` where the callers tell it.
    async fn time(&self) -> Result<Option<DateTime<Utc>>>;

    /// A backfill in its latest generation.
    async fn backfill(&self, id: &BackfillId) -> Result<Option<BackfillRecord>>;

    /// All backfills in their latest generation that are in one of the states, by id; no state means every state.
    async fn backfills(&self, states: &[BackfillState]) -> Result<Vec<BackfillRecord>>;

    /// The tasks of a backfill's latest generation, by number.
    async fn tasks(&self, id: &BackfillId) -> Result<Vec<TaskRecord>>;

    /// What produced each partition: the last committed row whose partition covers the key; `None` where no run has.
    async fn current(&self, table: &TableId, partitions: &[PartitionKey]) -> Result<Vec<Option<LedgerRow>>>;

    /// Every row whose partition overlaps the key, newest first.
    async fn history(&self, table: &TableId, partition: &PartitionKey, limit: u32) -> Result<Vec<LedgerRow>>;

    /// The rows of a run, by position.
    async fn run(&self, run: &RunId) -> Result<Vec<LedgerRow>>;

    /// The rows of a backfill over all its generations, rollbacks included, by position: what it changed, with the
    /// profiles before and after.
    async fn changes(&self, backfill: &BackfillId) -> Result<Vec<LedgerRow>>;

    /// The partitions of a table that have a current run, in order.
    async fn partitions(&self, table: &TableId) -> Result<Vec<PartitionKey>>;

    /// Current rows of a job, newest first: the history that an estimate is made of.
    async fn recent(&self, job: &JobName, limit: u32) -> Result<Vec<LedgerRow>>;

    /// Production partitions whose current run has another logic version than the one given for its job.
    async fn outdated(&self, versions: &BTreeMap<JobName, LogicVersion>) -> Result<Vec<Outdated>>;

    /// Downstream partitions that are stale against what they read, by table and partition.
    async fn stale(&self) -> Result<Vec<StalePartition>>;

    /// What is in progress, done and left.
    async fn progress(&self, id: &BackfillId) -> Result<Progress>;

    /// How long rows that started in the interval had waited, by trigger.
    async fn queue_times(&self, during: &Interval) -> Result<BTreeMap<Trigger, QueueTime>>;

    /// Deliveries, in the order in which they were prepared.
    async fn deliveries(&self, filter: &DeliveryFilter) -> Result<Vec<DeliveryRecord>>;
}

/// Writes the ledger.
///
/// Contract, each line a law of the conformance suite:
/// - every method is atomic, and several processes may call it at a time;
/// - `now` is told by the caller, except for what decides a lease, a claim or a slot, where a ledger that many machines share
///   uses its own clock;
/// - a lease or claim that ran out decides who may try, never what is true: commits are guarded by base and stamp;
/// - [`finish`](Self::finish) is an upsert: the same stamp and partition again changes nothing, and never makes a
///   superseded run current.
#[async_trait]
pub trait RunLedger: LedgerReader + Any {
    /// Files a plan as planned, unless open backfills hold some of its partitions.
    async fn submit(&self, plan: &Plan, by: &Actor, now: DateTime<Utc>) -> Result<Submitted>;

    /// Changes the state of a backfill's latest generation, by compare-and-set and along
    /// [`BackfillState::may_become`]. Going to `Running` from `Failed` makes failed and blocked tasks pending again;
    /// going to a state that [gives up](BackfillState::gives_up) cancels open and staged tasks; going to one that does not
    /// hold partitions withdraws deliveries that are only prepared.
    async fn transition(
        &self,
        id: &BackfillId,
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition>;

    /// Changes how a backfill's latest generation is worked on, in whatever state it is.
    async fn adjust(&self, id: &BackfillId, what: Adjustment, by: &Actor) -> Result<()>;

    /// Claims up to `limit` tasks of a backfill that [runs tasks](BackfillState::runs_tasks), which the worker can run and
    /// whose earlier tasks are [settled](TaskState::is_settled); of a shadow those that wait for its publication only after
    /// it. Over all workers no more tasks are claimed at a time than its concurrency, and none while it is paused. A claim
    /// that ran out is free again. Oldest task first.
    async fn claim(
        &self,
        id: &BackfillId,
        worker: &WorkerId,
        can_run: &[(JobName, LogicVersion)],
        limit: u32,
        ttl: Duration,
        now: DateTime<Utc>,
    ) -> Result<Vec<Claim>>;

    /// Prolongs a claim; `false` where it has passed to another attempt or was stopped.
    async fn renew_claim(&self, claim: &Claim, ttl: Duration, now: DateTime<Utc>) -> Result<bool>;

    /// Notes what a claimed task has staged, so that a later attempt can go on from there; `false` where the claim has
    /// passed to another attempt or was stopped.
    async fn note_staged(&self, claim: &Claim, result: &TaskResult) -> Result<bool>;

    /// Leaves a claimed task; `false` where the claim has passed to another attempt or was stopped.
    async fn leave(&self, claim: &Claim, how: Leave, now: DateTime<Utc>) -> Result<bool>;

    /// Changes the state as [`transition`](Self::transition) does and, only where it did, makes those of the tasks that
    /// are staged pending again, since production moved under them; their deliveries are withdrawn.
    async fn restage(
        &self,
        id: &BackfillId,
        tasks: &[TaskId],
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition>;

    /// Changes the state as [`transition`](Self::transition) does and, only where it did, cancels those of the tasks, and
    /// of all that wait for them, that are staged, since a reviewer wants to be rid of them; their deliveries are
    /// withdrawn.
    async fn discard_staged(
        &self,
        id: &BackfillId,
        tasks: &[TaskId],
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition>;

    /// Takes a lease on a scope, all or nothing; `None` where one that overlaps is held. Taking it again under the same
    /// holder is a new lease with a greater token.
    async fn acquire(
        &self,
        table: &TableId,
        scope: &Scope,
        holder: &WorkerId,
        ttl: Duration,
        now: DateTime<Utc>,
    ) -> Result<Option<Fence>>;

    /// Prolongs a lease; `false` where it has passed to another.
    async fn renew(&self, fence: &Fence, ttl: Duration, now: DateTime<Utc>) -> Result<bool>;

    /// Ends a lease. Idempotent.
    async fn release(&self, fence: &Fence) -> Result<()>;

    /// Asks for a slot of a pool, or prolongs one that it has, and answers whether it has one. Who waits asks again and again:
    /// an ask that is not repeated within its time is forgotten, and so is a slot. By the rules of
    /// [`has_slot`](rules::has_slot), each asker's declaration of the pool deciding for itself.
    async fn ask_slot(&self, ask: &SlotAsk, ttl: Duration, now: DateTime<Utc>) -> Result<bool>;

    /// Gives up a slot, or the wish for one. Idempotent.
    async fn end_slot(&self, ask: &SlotAsk) -> Result<()>;

    /// Writes the deliveries of a staged set as prepared, in place of those that were there. Nothing is sent.
    async fn prepare_deliveries(
        &self,
        id: &StagedId,
        backfill: Option<&BackfillId>,
        batch: &[Delivery],
        now: DateTime<Utc>,
    ) -> Result<()>;

    /// Releases suppressed deliveries by the keys of their business events, and answers how many were.
    async fn release_deliveries(&self, keys: &[String], by: &Actor, now: DateTime<Utc>) -> Result<u64>;

    /// Files deliveries of this library's own as released; those whose key is there already, in whatever state, are left
    /// out. Answers how many are new.
    async fn announce(&self, origin: &DeliveryOrigin, batch: &[Delivery], now: DateTime<Utc>) -> Result<u64>;

    /// Takes up to `limit` deliveries of some channels to send them, the oldest first: released ones that are due, and
    /// those whose taker has not come back within its time, which are in doubt. No two takers get the same one.
    async fn claim_deliveries(
        &self,
        channels: &[String],
        worker: &WorkerId,
        limit: u32,
        ttl: Duration,
        now: DateTime<Utc>,
    ) -> Result<Vec<DeliveryClaim>>;

    /// Says how the attempt of a claim ended; `false` where another attempt has begun or ended it.
    async fn end_delivery(
        &self,
        claim: &DeliveryClaim,
        end: &DeliveryEnd,
        now: DateTime<Utc>,
    ) -> Result<bool>;

    /// Decides about deliveries of these keys that are unknown or dead, and answers how many were changed.
    async fn decide_deliveries(
        &self,
        keys: &[String],
        decision: DeliveryDecision,
        by: &Actor,
        now: DateTime<Utc>,
    ) -> Result<u64>;

    /// Records a commit: the rows, the tasks as committed, deliveries of the committed attempts released, suppressed or
    /// duplicate, those of other attempts withdrawn, what is announced with it filed, downstream partitions stale. What a partition had become stale by up
    /// to the position at which the inputs were pinned, or by an earlier task of the same run, it is no longer; what other
    /// runs have changed since in the partitions that were read makes it stale.
    /// Idempotent.
    async fn finish(&self, commit: &Commit, entries: &[CommitEntry]) -> Result<()>;

    /// Says that a run has found partitions unchanged: it writes no row, and what [`finish`](Self::finish) would no
    /// longer count as stale is stale no longer. Idempotent.
    async fn found_unchanged(
        &self,
        table: &TableId,
        partitions: &[PartitionKey],
        run: &RunId,
        pinned_at: u64,
    ) -> Result<()>;

    /// Records runs that failed for good outside of any backfill. An upsert that never replaces a committed row.
    async fn record_failed(&self, records: &[RunRecord]) -> Result<()>;

    /// Whether the holder of a fence is still the last one that took an overlapping lease. For backends that do not share
    /// a database with the ledger.
    async fn is_current(&self, fence: &Fence) -> Result<bool>;
}
