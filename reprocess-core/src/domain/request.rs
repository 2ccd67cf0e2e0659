//! What a person asks for.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::ids::{Actor, BackfillId, JobName, LogicVersion, RunId};
use super::interval::Grain;
use super::partition::PartitionKey;
use super::validate::{Expectation, Severity};
use super::value::Value;

/// A request to re-run jobs over a selection of partitions. Nothing in it defaults to "everything".
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Request {
    /// Name of the backfill; the same name again is the same backfill.
    pub id: BackfillId,
    /// The jobs, and the logic version that each is to run; checked against what is registered.
    pub jobs: BTreeMap<JobName, LogicVersion>,
    /// Which partitions.
    pub selection: Selection,
    /// Why; recorded with every row of the ledger.
    pub reason: String,
    /// Who asks.
    pub requester: Actor,
    /// Whether the output waits for a review.
    pub mode: Mode,
    /// Which versions of the inputs are read.
    #[serde(default)]
    pub inputs: Inputs,
    /// In which order tasks run. A job that reads its own earlier partition runs oldest first in any case.
    #[serde(default)]
    pub order: Order,
    /// How many tasks run at a time, over all processes.
    pub concurrency: u32,
    /// Whether deliveries are released at the commit; otherwise they wait, suppressed, to be released by name.
    #[serde(default)]
    pub deliver: bool,
    /// Whether partitions run again that are unchanged, or were rolled back.
    #[serde(default)]
    pub force: bool,
    /// Whether downstream tasks are part of the plan.
    pub propagate: bool,
    /// What is expected to change, and what not.
    #[serde(default)]
    pub expectations: Vec<Expected>,
    /// What to do where the logic produces other columns.
    #[serde(default)]
    pub schema: SchemaPolicy,
    /// How many partitions one commit takes, where the job allows it.
    pub partitions_per_commit: u32,
    /// Where set, one commit takes the partitions of one period of this grain in the zone of the job, as far as the job allows
    /// so many; `partitions_per_commit` is of no meaning then. Units that bind more than their time stay by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit_by: Option<Grain>,
    /// What to do where a partition moved after planning.
    #[serde(default)]
    pub when_moved: WhenMoved,
    /// What to do where another run holds a lease on the partition.
    #[serde(default)]
    pub when_leased: WhenLeased,
    /// Whether the replaced rows are kept, so that the backfill can be rolled back.
    pub keep_replaced: bool,
    /// Parameters that override those of the jobs.
    #[serde(default)]
    pub parameters: BTreeMap<String, serde_json::Value>,
}

impl Request {
    /// A request with the careful choices: shadow mode, current inputs, deliveries off, downstream planned, replaced
    /// rows kept, one task at a time, one partition per commit.
    pub fn new(
        id: impl Into<BackfillId>,
        selection: Selection,
        reason: impl Into<String>,
        requester: impl Into<Actor>,
    ) -> Self {
        Self {
            id: id.into(),
            jobs: BTreeMap::new(),
            selection,
            reason: reason.into(),
            requester: requester.into(),
            mode: Mode::Shadow,
            inputs: Inputs::Current,
            order: Order::Any,
            concurrency: 1,
            deliver: false,
            force: false,
            propagate: true,
            expectations: Vec::new(),
            schema: SchemaPolicy::Refuse,
            partitions_per_commit: 1,
            commit_by: None,
            when_moved: WhenMoved::Stop,
            when_leased: WhenLeased::Wait,
            keep_replaced: true,
            parameters: BTreeMap::new(),
        }
    }

    /// Adds a job and the logic version it is to run.
    #[must_use]
    pub fn with_job(mut self, job: impl Into<JobName>, version: impl Into<LogicVersion>) -> Self {
        self.jobs.insert(job.into(), version.into());
        self
    }

    /// Commits each task as it ends, or leaves the output for a review.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Reads current inputs, or exactly those that an earlier run recorded.
    #[must_use]
    pub fn with_inputs(mut self, inputs: Inputs) -> Self {
        self.inputs = inputs;
        self
    }

    /// Sets the order of tasks.
    #[must_use]
    pub fn with_order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Sets how many tasks run at a time.
    #[must_use]
    pub fn with_concurrency(mut self, tasks: u32) -> Self {
        self.concurrency = tasks.max(1);
        self
    }

    /// Releases deliveries at the commit.
    #[must_use]
    pub fn with_deliveries(mut self) -> Self {
        self.deliver = true;
        self
    }

    /// Runs unchanged and rolled-back partitions too.
    #[must_use]
    pub fn with_force(mut self) -> Self {
        self.force = true;
        self
    }

    /// Leaves downstream tables alone.
    #[must_use]
    pub fn without_propagation(mut self) -> Self {
        self.propagate = false;
        self
    }

    /// Adds an expectation about every job; one that is not met asks for a review.
    #[must_use]
    pub fn with_expectation(mut self, expectation: Expectation) -> Self {
        self.expectations.push(Expected { job: None, expectation, severity: Severity::Review });
        self
    }

    /// Adds an expectation with its job and severity.
    #[must_use]
    pub fn with_expected(mut self, expected: Expected) -> Self {
        self.expectations.push(expected);
        self
    }

    /// Sets what happens where the logic produces other columns.
    #[must_use]
    pub fn with_schema(mut self, policy: SchemaPolicy) -> Self {
        self.schema = policy;
        self
    }

    /// Commits several partitions at once, where the job allows it.
    #[must_use]
    pub fn with_partitions_per_commit(mut self, partitions: u32) -> Self {
        self.partitions_per_commit = partitions.max(1);
        self
    }

    /// Commits the partitions of a period at once, as far as the job allows so many: 20 years of days by month are 240
    /// commits.
    #[must_use]
    pub fn with_commit_by(mut self, grain: Grain) -> Self {
        self.commit_by = Some(grain);
        self
    }

    /// Sets what happens where a partition moved after planning.
    #[must_use]
    pub fn with_when_moved(mut self, policy: WhenMoved) -> Self {
        self.when_moved = policy;
        self
    }

    /// Sets what happens where another run holds a lease.
    #[must_use]
    pub fn with_when_leased(mut self, policy: WhenLeased) -> Self {
        self.when_leased = policy;
        self
    }

    /// Does not keep the replaced rows: cheaper, and not to be rolled back.
    #[must_use]
    pub fn without_kept_rows(mut self) -> Self {
        self.keep_replaced = false;
        self
    }

    /// Overrides a parameter of the jobs.
    #[must_use]
    pub fn with_parameter(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.parameters.insert(name.into(), value.into());
        self
    }
}

/// Which partitions a request is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Selection {
    /// From the first to the last time key, both included. A job of another grain covers the same time, rounded
    /// outward.
    Range {
        /// The first period.
        first: Value,
        /// The last period, included.
        last: Value,
    },
    /// These keys.
    Keys(BTreeSet<PartitionKey>),
    /// The whole table, rebuilt.
    WholeTable,
}

/// Whether the output waits for a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Each task stages and commits at once.
    Direct,
    /// Tasks stage; a review decides; one publication commits.
    Shadow,
}

/// Which versions of the inputs are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Inputs {
    /// Those that are current when the plan is made.
    #[default]
    Current,
    /// Exactly those that a run recorded.
    Recorded {
        /// The run.
        by: RunId,
    },
}

/// In which order tasks run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Any; one that fails does not hold up the others.
    #[default]
    Any,
    /// Oldest partition first, one after the other; a failure blocks the later ones.
    OldestFirst,
}

/// What to do where the logic produces other columns than the table has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchemaPolicy {
    /// Refuse.
    #[default]
    Refuse,
    /// Add the new columns, nullable, to the table; partitions outside the range have NULL in them.
    AddNullable,
    /// Rebuild the whole table with the new columns; only with the selection `WholeTable`.
    Rebuild,
}

/// What to do where a partition moved between planning and commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenMoved {
    /// Leave it as it is and say so; a shadow stages it again and asks for another review.
    #[default]
    Stop,
    /// Take the base anew and commit: what moved is overwritten, because the request said so.
    Overwrite,
}

/// What to do where another run holds a lease on the partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenLeased {
    /// Wait for it.
    #[default]
    Wait,
    /// Leave the partition to the other run and say so.
    Skip,
    /// Fail the task.
    Fail,
}

/// An expectation, about which job, and how bad it is where it is not met.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    /// The job; `None` means every job of the request.
    #[serde(default)]
    pub job: Option<JobName>,
    /// What is expected.
    pub expectation: Expectation,
    /// What a miss does to the verdict.
    #[serde(default)]
    pub severity: Severity,
}
