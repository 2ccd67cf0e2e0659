//! What the planner must be told, and what it is told.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::domain::estimate::History;
use crate::domain::fingerprint::Fingerprint;
use crate::domain::ids::{BackfillId, JobName, LogicVersion, PartitionVersion, RunId, TableId, TableVersion};
use crate::domain::partition::PartitionKey;
use crate::domain::scope::Scope;
use crate::domain::slice::{Base, Pin, Slice};

/// Partitions of each table that have been computed so far.
pub type Existing = BTreeMap<TableId, BTreeSet<PartitionKey>>;

/// What facts are needed for; the answer of [`expand`](super::expand).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Slices of each input whose versions are needed.
    pub slices: BTreeMap<TableId, BTreeSet<Slice>>,
    /// Scopes of each output whose base is needed; the whole table is one of its own beside keys.
    pub bases: BTreeMap<TableId, Vec<Scope>>,
    /// Units of each job whose current run is needed.
    pub units: BTreeMap<JobName, Vec<PartitionKey>>,
    /// The run whose recorded inputs are needed.
    pub recorded: Option<RunId>,
}

/// What the planner is told about storage and ledger at one moment.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Position of the ledger before anything was pinned.
    pub position: u64,
    /// The backfill as the ledger has it, where it has it.
    pub backfill: Option<KnownBackfill>,
    /// Logic versions that each job has code for.
    pub registered: BTreeMap<JobName, Registered>,
    /// Version of each input that a pin taken now has.
    pub pins: BTreeMap<TableId, TableVersion>,
    /// Until when a pin taken now can be read; `None` where nothing ends it.
    pub readable_until: BTreeMap<TableId, Option<DateTime<Utc>>>,
    /// Versions of slices at those pins.
    pub slices: BTreeMap<TableId, BTreeMap<Slice, PartitionVersion>>,
    /// Version of each partition of the outputs.
    pub bases: BTreeMap<TableId, Base>,
    /// Version of each table that a job downstream of the request writes.
    pub outputs: BTreeMap<TableId, TableVersion>,
    /// What each writer offers.
    pub offers: BTreeMap<TableId, Offer>,
    /// The current run of each unit, where there is one.
    pub current: BTreeMap<JobName, BTreeMap<PartitionKey, CurrentRun>>,
    /// Versions of slices by the name of the input, where the current run of a unit read them while they were staged and
    /// production holds exactly that since: the version that the run recorded stands for the one of now.
    pub settled: BTreeMap<JobName, BTreeMap<PartitionKey, BTreeMap<String, PartitionVersion>>>,
    /// The inputs that a run recorded, and whether they can be read.
    pub recorded: BTreeMap<(JobName, PartitionKey), RecordedInputs>,
    /// Partitions that have been computed so far.
    pub existing: Existing,
    /// Earlier runs of each job, for the estimate.
    pub history: History,
    /// For tables that jobs merge into, the position up to which rows that runs have merged may be lost: something else
    /// has changed the table since.
    pub lost_before: BTreeMap<TableId, u64>,
}

/// A backfill of the request's name that the ledger has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownBackfill {
    /// Its latest generation.
    pub generation: u32,
    /// Whether it still holds its partitions, so that a new plan would be a new plan for the same generation.
    pub open: bool,
}

/// The code that a job has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// Logic versions, with the text where the transform is SQL.
    pub versions: BTreeMap<LogicVersion, Option<String>>,
    /// The version that the schedule runs.
    pub current: Option<LogicVersion>,
}

/// What the planner needs to know of a writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Merges by key.
    pub merge: bool,
    /// Replaces only partitions that receive rows.
    pub replace_dynamic: bool,
    /// Runs SQL transforms.
    pub query: bool,
    /// Keeps and restores what a commit replaced.
    pub restore: bool,
    /// Changes columns.
    pub schema_change: bool,
    /// Has staged sets that can wait.
    pub shadow: bool,
}

/// The run that made a partition what it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurrentRun {
    /// The run.
    pub run: RunId,
    /// Position of its row.
    pub position: u64,
    /// Its fingerprint.
    pub fingerprint: Option<Fingerprint>,
    /// Version of the partition that it left.
    pub output: Option<PartitionVersion>,
    /// The backfill that it took back, where it is a rollback.
    pub rolled_back: Option<BackfillId>,
}

/// The inputs that a run recorded for one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedInputs {
    /// Pins by the name of the input.
    pub pins: BTreeMap<String, Pin>,
    /// Tables whose pinned version is gone.
    pub expired: Vec<TableId>,
}
