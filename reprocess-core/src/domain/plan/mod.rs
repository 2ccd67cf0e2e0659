//! The plan: the frozen answer to a request. Execution and display use the same plan.

mod cost;
pub mod downstream;
mod expand;
pub mod facts;
mod make;
mod propagate;
mod refuse;
mod rollback;
mod select;

use std::collections::BTreeMap;
use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

pub use expand::{expand, expand_run};
pub use make::{plan, plan_run};
pub(crate) use propagate::EXTERNAL;
pub use rollback::{RollbackRequest, WrittenPartition, plan_rollback, scope_of};

use super::estimate::Estimate;
use super::fingerprint::Fingerprint;
use super::ids::{BackfillId, JobName, LogicVersion, RunId, TableId};
use super::interval::Interval;
use super::job::Exposure;
use super::partition::PartitionKey;
use super::request::{Mode, Request};
use super::scope::Scope;
use super::slice::{Base, Kept, Pin, Slice};
use crate::error::{Error, ErrorKind, Result};

/// Version of the plan's serial form; a plan of a newer one is refused.
pub const PLAN_FORMAT: u32 = 1;

/// The frozen answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Plan {
    /// Version of this form.
    pub format: u32,
    /// The request as it was.
    pub request: Request,
    /// The backfill that this plan takes back, where it is a rollback.
    pub rolls_back: Option<BackfillId>,
    /// Counts how often the backfill was opened, from 1.
    pub generation: u32,
    /// When the plan was made; relative dates were resolved then.
    pub as_of: DateTime<Utc>,
    /// Position of the ledger when the inputs were pinned.
    pub position: u64,
    /// What runs, in an order in which every task comes after those it waits for.
    pub tasks: Vec<Task>,
    /// What the selection names and does not run.
    pub skipped: Vec<Skipped>,
    /// What cannot run. A plan with refusals is not executed.
    pub refused: Vec<Refused>,
    /// What reads the changed partitions, in dependency order. Those that can be run have tasks of their own.
    pub downstream: Vec<Downstream>,
    /// What consumes the changed tables.
    pub exposures: Vec<Exposure>,
    /// Owners of the jobs, downstream jobs and exposures.
    pub owners: Vec<String>,
    /// What is read or written beyond what was asked for, and why.
    pub widened: Vec<Widened>,
    /// What a reviewer should know.
    pub warnings: Vec<String>,
    /// What it will cost.
    pub estimate: Estimate,
}

/// Number of a task in its plan, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(pub u32);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One unit of work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Task {
    /// Its number.
    pub id: TaskId,
    /// The job.
    pub job: JobName,
    /// The logic version it runs.
    pub logic: LogicVersion,
    /// The table it writes.
    pub table: TableId,
    /// The units it computes: one, or several with coarsening.
    pub units: Vec<PartitionKey>,
    /// What it is responsible for in time; `None` where its units have no time.
    pub interval: Option<Interval>,
    /// What its commit may touch.
    pub scope: Scope,
    /// What it does.
    pub action: Action,
    /// What it expects to replace, frozen with the plan.
    pub base: Base,
    /// Parameters, those of the request over those of the job.
    #[serde(default)]
    pub parameters: BTreeMap<String, serde_json::Value>,
    /// Tasks that must have succeeded before.
    #[serde(default)]
    pub after: Vec<TaskId>,
}

/// What a task does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Reads its inputs, transforms, writes.
    Compute {
        /// Inputs by name.
        inputs: BTreeMap<String, PlannedInput>,
        /// Known at planning where every input is; otherwise decided at run time.
        fingerprint: Option<Fingerprint>,
    },
    /// Downstream of other tasks: reads its inputs as they are when it runs, which is once those tasks are in production,
    /// and only where they came out otherwise than before.
    Propagate {
        /// What is read of each table, by the name of the input.
        inputs: BTreeMap<String, FollowedInput>,
    },
    /// Downstream of other tasks, of a job that runs outside of this library: has it run by what the host declares for it.
    Trigger,
    /// Brings back what a run replaced.
    Restore {
        /// The run whose commit is undone; of several runs of a backfill the first.
        undo: RunId,
        /// What it kept.
        kept: Kept,
        /// Logic version of the rows that come back; `None` where no run of ours had written them.
        logic: Option<LogicVersion>,
        /// Fingerprint of the rows that come back.
        fingerprint: Option<Fingerprint>,
    },
}

/// An input of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedInput {
    /// What is read. Where tasks of the plan produce a part of it, that part is read as they leave it.
    pub pin: Box<Pin>,
    /// Tasks of the plan whose output is part of the slice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub produced_by: Vec<TaskId>,
}

/// An input of a downstream task, which is pinned when the task runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowedInput {
    /// The table.
    pub table: TableId,
    /// The part of it.
    pub slice: Slice,
}

impl Task {
    /// Whether it is downstream of other tasks of its plan and runs once they are in production.
    pub fn is_downstream(&self) -> bool {
        matches!(self.action, Action::Propagate { .. } | Action::Trigger)
    }
}

/// A partition of the selection that does not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The job.
    pub job: JobName,
    /// The partition.
    pub partition: PartitionKey,
    /// Why.
    pub reason: SkipReason,
}

/// Why a partition does not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SkipReason {
    /// A run with the same fingerprint is current, and the table is as it left it.
    Unchanged {
        /// That run.
        since: RunId,
    },
    /// It was rolled back, and the request does not force it.
    RolledBack {
        /// The rollback.
        by: RunId,
    },
    /// It is left to the normal schedule.
    LiveWindow,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unchanged { since } => write!(f, "unchanged since run {since}"),
            Self::RolledBack { by } => write!(f, "rolled back by run {by}"),
            Self::LiveWindow => f.write_str("in the live window"),
        }
    }
}

/// A partition, or a whole job, that cannot run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The job.
    pub job: JobName,
    /// The partition; `None` where the whole job is refused.
    pub partition: Option<PartitionKey>,
    /// Why, and what to do.
    pub reason: String,
}

/// A downstream partition that a correction reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Downstream {
    /// The job.
    pub job: JobName,
    /// The table it writes.
    pub table: TableId,
    /// The partition.
    pub partition: PartitionKey,
    /// Every cause: the table and partition that it reads and that changes.
    pub causes: Vec<(TableId, PartitionKey)>,
}

/// Something that is read or written beyond what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Widened {
    /// The job.
    pub job: JobName,
    /// What is wider, and why.
    pub text: String,
}

impl Plan {
    /// Digest of the whole plan; an approval binds to it.
    pub fn digest(&self) -> String {
        // A plan holds only ordered maps, so its JSON is the same on every machine.
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        blake3::hash(&bytes).to_hex()[..16].to_owned()
    }

    /// The task of a number.
    pub fn task(&self, id: TaskId) -> Result<&Task> {
        usize::try_from(id.0).ok().and_then(|i| self.tasks.get(i)).ok_or_else(|| {
            Error::not_found(format!("the plan has no task {id}")).with_context("backfill", &self.request.id)
        })
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Whether it has downstream tasks.
    pub fn propagates(&self) -> bool {
        self.tasks.iter().any(Task::is_downstream)
    }

    /// Whether a task commits as it ends, rather than waiting for a review.
    pub fn commits_at_once(&self, task: &Task) -> bool {
        self.request.mode == Mode::Direct || !matches!(task.action, Action::Compute { .. })
    }

    /// Whether a task waits for the publication of a shadow.
    pub fn waits_for_publication(&self, task: &Task) -> bool {
        self.request.mode == Mode::Shadow && task.is_downstream()
    }

    /// Run id of the plan's tasks: the same for every process that works on it.
    pub fn run(&self) -> RunId {
        RunId::new(format!("{}.{}", self.request.id, self.generation))
    }

    /// Reads a plan from JSON. Refuses one of a newer form, and one whose tasks do not fit together.
    pub fn from_json(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let refuse = |e| Error::invalid("the text is no plan").with_source(e);
        let head: Head = serde_json::from_str(text).map_err(refuse)?;
        if head.format > PLAN_FORMAT {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "the plan has form {}, and this version knows forms up to {PLAN_FORMAT}",
                    head.format
                ),
            )
            .with_advice("use the version of reprocess that wrote it, or plan again"));
        }
        let plan: Self = serde_json::from_str(text).map_err(refuse)?;
        for (place, task) in plan.tasks.iter().enumerate() {
            let own = usize::try_from(task.id.0).is_ok_and(|id| id == place);
            if !own || task.units.is_empty() || task.after.iter().any(|before| before.0 >= task.id.0) {
                return Err(Error::invalid(format!("task {place} of the plan does not fit the others")));
            }
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod oracle_tests;
#[cfg(test)]
mod parse_tests;
#[cfg(test)]
mod propagate_tests;
#[cfg(test)]
mod tests;
