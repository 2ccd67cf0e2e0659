//! What the ledger holds.

use std::collections::BTreeMap;
use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::domain::fingerprint::Fingerprint;
use crate::domain::ids::{
    Actor, BackfillId, Build, JobName, LogicVersion, PartitionVersion, RunId, TableId, TableVersion, WorkerId,
};
use crate::domain::partition::PartitionKey;
use crate::domain::plan::{Plan, TaskId};
use crate::domain::profile::Profile;
use crate::domain::scope::Scope;
use crate::domain::slice::{Base, Kept, Pin};
use crate::domain::validate::Verdict;
use crate::ports::delivery::Delivery;
use crate::ports::writer::{Staged, StampId};

/// What made a run happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// The schedule.
    Scheduled,
    /// A person, for one interval.
    Manual,
    /// A backfill.
    Backfill,
    /// A correction upstream.
    Propagated,
    /// A rollback.
    Rollback,
}

impl Trigger {
    /// The name in storage and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Manual => "manual",
            Self::Backfill => "backfill",
            Self::Propagated => "propagated",
            Self::Rollback => "rollback",
        }
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How a run of one partition ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Its output is, or was, in production.
    Committed,
    /// It failed for good.
    Failed,
}

/// What the ledger knows of one partition of one run: one row, however often it was tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunRecord {
    /// The run.
    pub run: RunId,
    /// The job.
    pub job: JobName,
    /// The output table.
    pub table: TableId,
    /// The partition; for a merge job, its unit.
    pub partition: PartitionKey,
    /// What the commit was allowed to touch.
    pub scope: Scope,
    /// The stamp of its commit.
    pub stamp: StampId,
    /// The attempt that ended it, from 1.
    pub attempt: u32,
    /// How it ended.
    pub status: RunStatus,
    /// Why it failed.
    pub error: Option<String>,
    /// What made it happen.
    pub trigger: Trigger,
    /// The backfill, where it is of one.
    pub backfill: Option<BackfillId>,
    /// Why it was run.
    pub reason: String,
    /// Who asked.
    pub requester: Actor,
    /// The last approval before the commit, where there was one.
    pub approval: Option<Approval>,
    /// The logic version; of a rollback, that of the rows that came back, where known.
    pub logic: Option<LogicVersion>,
    /// What was running.
    pub build: Build,
    /// Parameters.
    pub parameters: BTreeMap<String, serde_json::Value>,
    /// The fingerprint; of a rollback, that of the rows that came back, where known.
    pub fingerprint: Option<Fingerprint>,
    /// What it read.
    pub inputs: BTreeMap<String, Pin>,
    /// Whether the inputs were those that an earlier run recorded, and which.
    pub replays: Option<RunId>,
    /// What it expected to replace; of a unit that shares its scope with others, the version of the scope.
    pub base: Option<PartitionVersion>,
    /// Version of the table after the commit.
    pub output: Option<TableVersion>,
    /// Version of the partition after the commit.
    pub output_partition: Option<PartitionVersion>,
    /// The partition before the commit.
    pub before: Option<Profile>,
    /// What was written: rows, bytes, totals, digests.
    pub after: Option<Profile>,
    /// Bytes that were read, as Arrow arrays; unknown where the table's own engine read them.
    #[serde(default)]
    pub read_bytes: Option<u64>,
    /// Order of the commit among those of its table; 0 where it is not known.
    #[serde(default)]
    pub order: u64,
    /// What the validator said.
    pub verdict: Option<Verdict>,
    /// What the commit replaced, where it was kept.
    pub kept: Option<Kept>,
    /// When the task could have started.
    pub queued_at: DateTime<Utc>,
    /// When its last attempt started.
    pub started_at: DateTime<Utc>,
    /// When it ended.
    pub finished_at: DateTime<Utc>,
    /// Who did it.
    pub worker: WorkerId,
}

impl RunRecord {
    /// Whether the partition is no key of the scope: intervals that are merged into the same rows have no versions of
    /// their own, and stand under that of the scope.
    pub fn shares_scope(&self) -> bool {
        !self.scope.partitions().contains(&self.partition)
    }

    /// The version that a base or head has for the record: of its partition, else of the key of the scope above it.
    pub fn version_in<'a>(&self, base: &'a Base) -> Option<&'a PartitionVersion> {
        let above = || {
            let keys = self.scope.partitions().into_iter().filter(|key| key.covers(&self.partition));
            keys.filter_map(|key| base.partitions.get(&key)).next()
        };
        base.partitions.get(&self.partition).or_else(above)
    }
}

/// A record with its place in the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LedgerRow {
    /// Grows with every row; a later commit has a greater one.
    pub position: u64,
    /// The record.
    #[serde(flatten)]
    pub record: RunRecord,
}

/// Who approved what, when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// Who.
    pub by: Actor,
    /// When.
    pub at: DateTime<Utc>,
    /// Digest of what was seen: of the plan, or of the staged outputs.
    pub digest: String,
    /// What was said.
    pub comment: String,
}

/// What the ledger is told when a task ends. The commit fills in what only it knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskFinish {
    /// One for each unit of the task.
    pub records: Vec<RunRecord>,
    /// The task of the backfill, where it is of one.
    pub task: Option<(BackfillId, u32, TaskId)>,
    /// Whether prepared deliveries are released, or wait to be released by name.
    pub deliver: bool,
    /// Downstream partitions that read what changed; those that have a current run become stale.
    pub stale: Vec<(JobName, TableId, PartitionKey)>,
    /// Position of the ledger when the inputs were pinned: what became stale up to here, this run has seen.
    pub pinned_at: u64,
    /// The partitions of managed tables that the inputs were read from: where another run has changed one of them since
    /// the inputs were pinned, what was computed from it is stale from the start.
    #[serde(default)]
    pub reads: Vec<(TableId, Vec<PartitionKey>)>,
    /// What is told with the commit: filed as released, each key once.
    #[serde(default)]
    pub announce: Vec<Delivery>,
}

/// A downstream partition that was computed from what has changed since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StalePartition {
    /// The job that has to run again.
    pub job: JobName,
    /// Its table.
    pub table: TableId,
    /// The partition.
    pub partition: PartitionKey,
    /// The run that changed what it read.
    pub because: RunId,
    /// Place of that change in the ledger.
    pub position: u64,
}

/// State of a backfill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackfillState {
    /// Submitted, waiting for an approval of its plan.
    Planned,
    /// The plan is approved.
    Approved,
    /// Tasks are running, or wait for a worker.
    Running,
    /// The shadow is complete and waits for a review.
    AwaitingReview,
    /// Production moved under some partitions of the shadow: they have to be staged again.
    Stale,
    /// The publication is under way.
    Publishing,
    /// Its output is in production.
    Published,
    /// Downstream tasks are running.
    Propagating,
    /// Downstream tasks are done.
    Done,
    /// Nothing is left to do, and what it replaced may expire.
    Closed,
    /// Stopped by the validator or a reviewer; production was not touched by what was not committed.
    Aborted,
    /// Some task failed for good.
    Failed,
    /// Stopped by a person.
    Cancelled,
    /// Its output was taken back.
    RolledBack,
}

impl BackfillState {
    /// Every state.
    pub const ALL: [Self; 14] = [
        Self::Planned,
        Self::Approved,
        Self::Running,
        Self::AwaitingReview,
        Self::Stale,
        Self::Publishing,
        Self::Published,
        Self::Propagating,
        Self::Done,
        Self::Closed,
        Self::Aborted,
        Self::Failed,
        Self::Cancelled,
        Self::RolledBack,
    ];

    /// The name in storage and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Approved => "approved",
            Self::Running => "running",
            Self::AwaitingReview => "awaiting_review",
            Self::Stale => "stale",
            Self::Publishing => "publishing",
            Self::Published => "published",
            Self::Propagating => "propagating",
            Self::Done => "done",
            Self::Closed => "closed",
            Self::Aborted => "aborted",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::RolledBack => "rolled_back",
        }
    }

    /// The state of a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }

    /// Whether the backfill holds its partitions: another one over them is refused.
    pub fn holds_partitions(self) -> bool {
        matches!(
            self,
            Self::Planned
                | Self::Approved
                | Self::Running
                | Self::AwaitingReview
                | Self::Stale
                | Self::Publishing
                | Self::Failed
        )
    }

    /// Whether workers take tasks of it.
    pub fn runs_tasks(self) -> bool {
        matches!(self, Self::Running | Self::Propagating)
    }

    /// Whether its tasks are given up that are not in production.
    pub fn gives_up(self) -> bool {
        matches!(self, Self::Closed | Self::Aborted | Self::Cancelled | Self::RolledBack)
    }

    /// Whether a person may stop the backfill.
    pub fn may_stop(self) -> bool {
        self.holds_partitions() && self != Self::Publishing
    }

    /// Whether the ledger lets a backfill go from this state to that.
    pub fn may_become(self, to: Self) -> bool {
        use BackfillState::{
            Aborted, Approved, AwaitingReview, Cancelled, Closed, Done, Failed, Planned, Propagating,
            Published, Publishing, RolledBack, Running, Stale,
        };
        match to {
            Planned => false,
            Approved => self == Planned,
            Running => matches!(self, Approved | Stale | Failed),
            // An approval of the outputs is written without leaving the state.
            AwaitingReview => matches!(self, Running | Publishing | AwaitingReview),
            Stale => matches!(self, AwaitingReview | Publishing),
            Publishing => self == AwaitingReview,
            Published => matches!(self, Running | Publishing),
            Propagating => self == Published,
            Done => self == Propagating,
            Closed => {
                matches!(self, Published | Propagating | Done | RolledBack | Aborted | Failed | Cancelled)
            }
            Failed => matches!(self, Running | Publishing | Propagating),
            Aborted | Cancelled => self.may_stop(),
            RolledBack => matches!(self, Published | Propagating | Done),
        }
    }
}

impl fmt::Display for BackfillState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::AwaitingReview => "awaiting review",
            Self::RolledBack => "rolled back",
            other => other.name(),
        })
    }
}

/// A backfill in the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BackfillRecord {
    /// Its plan.
    pub plan: Plan,
    /// Digest of the plan.
    pub plan_digest: String,
    /// Its state.
    pub state: BackfillState,
    /// Who submitted it.
    pub submitted_by: Actor,
    /// When.
    pub submitted_at: DateTime<Utc>,
    /// When the state last changed.
    pub changed_at: DateTime<Utc>,
    /// Every approval, oldest first.
    pub approvals: Vec<Approval>,
    /// Why it was stopped or failed, where it was.
    pub note: Option<String>,
    /// How many of its tasks run at a time, over all processes: what the request says, or what was set since.
    pub concurrency: u32,
    /// Who has paused it, where it is.
    pub paused_by: Option<Actor>,
}

impl BackfillRecord {
    /// A backfill as it is filed: planned, with nothing said about it yet.
    pub fn new(plan: Plan, plan_digest: impl Into<String>, by: Actor, at: DateTime<Utc>) -> Self {
        Self {
            concurrency: plan.request.concurrency,
            paused_by: None,
            plan,
            plan_digest: plan_digest.into(),
            state: BackfillState::Planned,
            submitted_by: by,
            submitted_at: at,
            changed_at: at,
            approvals: Vec::new(),
            note: None,
        }
    }
}

/// State of a task of a backfill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Waits for a worker, or for the tasks before it.
    Pending,
    /// A worker has claimed it.
    Claimed,
    /// Its output is staged and waits for the publication.
    Staged,
    /// Its output is in production.
    Committed,
    /// Found unchanged at run time, or left to another run.
    Skipped,
    /// Failed for good.
    Failed,
    /// Cannot run since a task before it failed.
    Blocked,
    /// Stopped.
    Cancelled,
}

impl TaskState {
    /// Every state.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Claimed,
        Self::Staged,
        Self::Committed,
        Self::Skipped,
        Self::Failed,
        Self::Blocked,
        Self::Cancelled,
    ];

    /// The name in storage and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Claimed => "claimed",
            Self::Staged => "staged",
            Self::Committed => "committed",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
            Self::Blocked => "blocked",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state of a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }

    /// Whether it ended well.
    pub fn is_success(self) -> bool {
        matches!(self, Self::Staged | Self::Committed | Self::Skipped)
    }

    /// Whether tasks after it need not wait for it any more. What a reviewer has discarded is none of them: it stays as it
    /// was, and so does what they read of it.
    pub fn is_settled(self) -> bool {
        self.is_success() || self == Self::Cancelled
    }

    /// Whether a worker may still work on it.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Pending | Self::Claimed)
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A task of a backfill as the ledger knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TaskRecord {
    /// Its number in the plan.
    pub id: TaskId,
    /// Its state.
    pub state: TaskState,
    /// How often it was claimed.
    pub attempt: u32,
    /// When it could first run.
    pub queued_at: DateTime<Utc>,
    /// When it was last claimed.
    pub started_at: Option<DateTime<Utc>>,
    /// When it got out of `Claimed`.
    pub finished_at: Option<DateTime<Utc>>,
    /// Who claimed it last.
    pub worker: Option<WorkerId>,
    /// Its result, where it has one.
    pub result: Option<TaskResult>,
    /// Why it failed, was blocked or was skipped.
    pub note: Option<String>,
}

impl TaskRecord {
    /// A task as it is filed: pending, never claimed.
    pub fn new(id: TaskId, at: DateTime<Utc>) -> Self {
        Self {
            id,
            state: TaskState::Pending,
            attempt: 0,
            queued_at: at,
            started_at: None,
            finished_at: None,
            worker: None,
            result: None,
            note: None,
        }
    }
}

/// What a task left for the review and the publication.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TaskResult {
    /// What it staged; `None` for a restore, which has nothing to stage.
    pub staged: Option<Staged>,
    /// What it read.
    pub inputs: BTreeMap<String, Pin>,
    /// Its fingerprint.
    pub fingerprint: Option<Fingerprint>,
    /// The base that its commit expects: that of the plan, or one taken anew when it was staged again.
    pub base: Base,
    /// Profiles of its scope in production when it was staged.
    pub before: Vec<Profile>,
    /// What its scope will look like.
    pub after: Vec<Profile>,
    /// What the validator said.
    pub verdict: Option<Verdict>,
    /// Bytes that were read, as Arrow arrays; unknown where the table's own engine read them.
    #[serde(default)]
    pub read_bytes: Option<u64>,
    /// Position of the ledger when the inputs were pinned.
    pub pinned_at: u64,
    /// When its task began to run, after it had waited for its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<DateTime<Utc>>,
}

impl TaskResult {
    /// A result on a base, with nothing known beside it.
    pub fn new(base: Base, pinned_at: u64) -> Self {
        Self {
            staged: None,
            inputs: BTreeMap::new(),
            fingerprint: None,
            base,
            before: Vec::new(),
            after: Vec::new(),
            verdict: None,
            read_bytes: None,
            pinned_at,
            started_at: None,
        }
    }
}
