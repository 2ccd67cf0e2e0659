//! Jobs, tables and the catalog that a host declares.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::{JobName, TableId};
use super::interval::Interval;
use super::partition::{PartitionKey, Partitioning};
use super::profile::ProfileSpec;
use super::scope::Scope;
use super::value::Value;
use crate::error::{Error, Result};

/// A table that jobs read or write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableSpec {
    /// Its identity.
    pub id: TableId,
    /// How it is divided.
    pub partitioning: Partitioning,
}

impl TableSpec {
    /// A table and its partitioning.
    pub fn new(id: impl Into<TableId>, partitioning: Partitioning) -> Self {
        Self { id: id.into(), partitioning }
    }
}

/// Which part of an input one task reads, relative to the task's partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Window {
    /// The same period; needs the same grain and zone.
    Same,
    /// The last `n` periods of the input, the task's own included: `Trailing(7)` over days is a week up to the day.
    Trailing(u32),
    /// So many periods of the input before and after those the task covers.
    Between {
        /// Periods before.
        before: u32,
        /// Periods after.
        after: u32,
    },
    /// The periods of an input of another grain or zone that share an instant with the task's; rounded outward.
    Covering,
    /// Reference rows effective at the partition's first date: selected by effective dates, not by time travel.
    AsOf {
        /// Column with the first date or instant at which a row holds.
        from: String,
        /// Column with the first date or instant at which it no longer holds.
        to: Option<String>,
        /// Columns that name the entity; needed where there is no `to`.
        entity: Vec<String>,
    },
    /// The partition before, of the job's own output.
    PreviousOutput,
    /// The whole table.
    All,
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("the same period"),
            Self::Trailing(n) => write!(f, "the last {n} periods"),
            Self::Between { before, after } => write!(f, "{before} periods before and {after} after"),
            Self::Covering => f.write_str("every period that shares time with the task's"),
            Self::AsOf { .. } => f.write_str("the rows effective at the partition's date"),
            Self::PreviousOutput => f.write_str("the partition before"),
            Self::All => f.write_str("the whole table"),
        }
    }
}

/// One input of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InputSpec {
    /// Name under which the transform finds it; a SQL transform uses it as a table name.
    pub name: String,
    /// The table.
    pub table: TableId,
    /// What one task reads of it.
    pub window: Window,
}

/// How a job writes its output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WriteMode {
    /// Replaces exactly the task's partitions; those that receive no rows become empty.
    Replace,
    /// Replaces only the partitions that receive rows. Old rows of a partition that the logic no longer produces
    /// stay: say so only where that is meant.
    ReplaceDynamic,
    /// Updates and inserts by key.
    Merge(MergeSpec),
    /// Adds rows. Re-running it would double them, so every plan refuses it; it is here so that the refusal can say why.
    Append,
}

/// How a merge job matches and deletes rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MergeSpec {
    /// Columns that identify a row; never NULL, never repeated in one task's rows.
    pub keys: Vec<String>,
    /// Column by which a row is newer than another with its key; an older row never overwrites a newer one, so that
    /// the order of re-runs does not matter. Ties keep the row that is there.
    pub newer: Option<String>,
    /// Where set, rows of the scope whose key vanished from the task's rows are deleted, but only those this owner
    /// wrote: every column must have its value.
    pub delete_vanished: Option<BTreeMap<String, OwnerValue>>,
}

impl MergeSpec {
    /// Matches rows by these columns.
    pub fn by(keys: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { keys: keys.into_iter().map(Into::into).collect(), newer: None, delete_vanished: None }
    }

    /// Declares the column that orders rows of one key.
    #[must_use]
    pub fn newer(mut self, column: impl Into<String>) -> Self {
        self.newer = Some(column.into());
        self
    }

    /// Deletes rows whose key vanished, where `column` has the value; call it once per owner column.
    #[must_use]
    pub fn delete_vanished_where(mut self, column: impl Into<String>, value: OwnerValue) -> Self {
        self.delete_vanished.get_or_insert_default().insert(column.into(), value);
        self
    }
}

/// Value of an owner column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnerValue {
    /// Always this.
    Fixed(Value),
    /// The value that the task's unit has for this dimension.
    OfUnit(String),
}

/// Two totals that agree where both layers are right: that of a column of a job's output, and that of a column of what it
/// reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MatchingTotal {
    /// Totalled column of the output.
    pub column: String,
    /// The input that is added up.
    pub input: String,
    /// Totalled column of the input's table, which a job of this library writes.
    pub of: String,
}

/// A named transformation with inputs, one output table and an owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JobSpec {
    /// Its name.
    pub name: JobName,
    /// Who answers for it.
    pub owner: String,
    /// What it reads.
    pub inputs: Vec<InputSpec>,
    /// What it writes.
    pub output: TableId,
    /// How it writes.
    pub write: WriteMode,
    /// What one task is responsible for, where that is not a partition of the output: the input interval or the
    /// entity keys of a merge job.
    pub unit: Option<Partitioning>,
    /// Key dimensions that a task binds beside time. Empty: a task covers every key of its period, so that a key that
    /// the logic no longer produces disappears.
    pub keyed_by: Vec<String>,
    /// What is profiled of its output.
    pub profile: ProfileSpec,
    /// Parameters of every run; a request can override them.
    pub parameters: BTreeMap<String, serde_json::Value>,
    /// How many partitions one commit may hold at the most; 1 forbids coarsening.
    pub partitions_per_commit: u32,
    /// How many of the most recent partitions belong to the schedule and are left out of backfills.
    pub live_window: u32,
    /// Whether it runs outside of this library, which then has no record of what it computed.
    pub external: bool,
    /// The pool that its tasks run in; `None` where nothing but concurrency limits them.
    pub pool: Option<String>,
    /// Of tasks that wait for a slot of a pool, those of greater priority come first.
    pub priority: i32,
    /// How much memory one of its tasks needs at the most, in MiB; 0 where it is of no account.
    pub memory_mib: u32,
    /// How long after the end of its interval a partition is to be there, in seconds; `None` where nobody relies on it.
    pub ready_within_s: Option<u64>,
    /// Totals that agree with those of what it reads.
    pub matching_totals: Vec<MatchingTotal>,
}

impl JobSpec {
    /// A job that replaces the partitions of its output.
    pub fn new(name: impl Into<JobName>, owner: impl Into<String>, output: impl Into<TableId>) -> Self {
        Self {
            name: name.into(),
            owner: owner.into(),
            inputs: Vec::new(),
            output: output.into(),
            write: WriteMode::Replace,
            unit: None,
            keyed_by: Vec::new(),
            profile: ProfileSpec::new(),
            parameters: BTreeMap::new(),
            partitions_per_commit: 1,
            live_window: 0,
            external: false,
            pool: None,
            priority: 0,
            memory_mib: 0,
            ready_within_s: None,
            matching_totals: Vec::new(),
        }
    }

    /// Adds an input.
    #[must_use]
    pub fn with_input(mut self, name: impl Into<String>, table: impl Into<TableId>, window: Window) -> Self {
        self.inputs.push(InputSpec { name: name.into(), table: table.into(), window });
        self
    }

    /// Sets how it writes.
    #[must_use]
    pub fn with_write(mut self, write: WriteMode) -> Self {
        self.write = write;
        self
    }

    /// Sets the unit of a merge job.
    #[must_use]
    pub fn with_unit(mut self, unit: Partitioning) -> Self {
        self.unit = Some(unit);
        self
    }

    /// Lets a task bind key dimensions beside time.
    #[must_use]
    pub fn with_keyed_by(mut self, columns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.keyed_by = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets what is profiled.
    #[must_use]
    pub fn with_profile(mut self, profile: ProfileSpec) -> Self {
        self.profile = profile;
        self
    }

    /// Sets a parameter.
    #[must_use]
    pub fn with_parameter(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.parameters.insert(name.into(), value.into());
        self
    }

    /// Allows several partitions in one commit.
    #[must_use]
    pub fn with_partitions_per_commit(mut self, partitions: u32) -> Self {
        self.partitions_per_commit = partitions.max(1);
        self
    }

    /// Leaves the most recent partitions to the schedule.
    #[must_use]
    pub fn with_live_window(mut self, partitions: u32) -> Self {
        self.live_window = partitions;
        self
    }

    /// Says that it runs outside of this library.
    #[must_use]
    pub fn with_external(mut self) -> Self {
        self.external = true;
        self
    }

    /// Runs its tasks in a pool.
    #[must_use]
    pub fn with_pool(mut self, name: impl Into<String>) -> Self {
        self.pool = Some(name.into());
        self
    }

    /// Sets its priority in its pool; that of others is 0.
    #[must_use]
    pub fn with_priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets how much memory one of its tasks needs at the most. A process begins only as many tasks as its
    /// [memory](crate::engine::Settings::memory_mib) holds.
    #[must_use]
    pub fn with_memory_mib(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self
    }

    /// Says how long after the end of its interval a partition is to be there.
    #[must_use]
    pub fn with_ready_within(mut self, time: Duration) -> Self {
        self.ready_within_s = Some(time.as_secs());
        self
    }

    /// Declares that the total of `column` in each partition is that of `of` over what it reads of an input.
    #[must_use]
    pub fn with_matching_total(
        mut self,
        column: impl Into<String>,
        input: impl Into<String>,
        of: impl Into<String>,
    ) -> Self {
        self.matching_totals.push(MatchingTotal {
            column: column.into(),
            input: input.into(),
            of: of.into(),
        });
        self
    }

    /// Whether it reads its own earlier partition, so that its tasks run oldest first.
    pub fn reads_itself(&self) -> bool {
        self.inputs.iter().any(|i| i.window == Window::PreviousOutput)
    }

    /// Whether re-running an interval must be followed by every later one, since rows have no declared order.
    pub fn depends_on_order(&self) -> bool {
        matches!(&self.write, WriteMode::Merge(merge) if merge.newer.is_none())
    }
}

/// Something outside that consumes a table: a dashboard, an export, a feature table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Exposure {
    /// Its name.
    pub name: String,
    /// Who is to be told.
    pub owner: String,
    /// What it consumes.
    pub tables: Vec<TableId>,
}

/// Everything the planner knows of a host: its tables, jobs and exposures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Catalog {
    tables: BTreeMap<TableId, TableSpec>,
    jobs: BTreeMap<JobName, JobSpec>,
    exposures: Vec<Exposure>,
}

impl Catalog {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares a table; the same id again must be the same table.
    pub fn add_table(&mut self, table: TableSpec) -> Result<()> {
        table.partitioning.validate().map_err(|e| e.with_context("table", &table.id))?;
        match self.tables.get(&table.id) {
            Some(known) if *known != table => {
                Err(Error::invalid("the table is declared twice, and differently")
                    .with_context("table", &table.id))
            }
            _ => {
                self.tables.insert(table.id.clone(), table);
                Ok(())
            }
        }
    }

    /// Declares a job over tables that are declared.
    pub fn add_job(&mut self, job: JobSpec) -> Result<()> {
        super::lineage::check_job(self, &job).map_err(|e| e.with_context("job", &job.name))?;
        if self.jobs.contains_key(&job.name) {
            return Err(
                Error::invalid("a job of this name is declared already").with_context("job", &job.name)
            );
        }
        self.jobs.insert(job.name.clone(), job);
        Ok(())
    }

    /// Declares an exposure.
    pub fn add_exposure(&mut self, exposure: Exposure) {
        self.exposures.push(exposure);
    }

    /// The table, or an error that names it.
    pub fn table(&self, id: &TableId) -> Result<&TableSpec> {
        self.tables.get(id).ok_or_else(|| {
            let known: Vec<_> = self.tables.keys().map(TableId::as_str).collect();
            Error::not_found(format!("table `{id}` is not declared"))
                .with_advice(format!("declared tables: {}", known.join(", ")))
        })
    }

    /// The job, or an error that names it.
    pub fn job(&self, name: &JobName) -> Result<&JobSpec> {
        self.jobs.get(name).ok_or_else(|| {
            let known: Vec<_> = self.jobs.keys().map(JobName::as_str).collect();
            Error::not_found(format!("job `{name}` is not declared"))
                .with_advice(format!("declared jobs: {}", known.join(", ")))
        })
    }

    /// All jobs by name.
    pub fn jobs(&self) -> impl Iterator<Item = &JobSpec> {
        self.jobs.values()
    }

    /// All tables by id.
    pub fn tables(&self) -> impl Iterator<Item = &TableSpec> {
        self.tables.values()
    }

    /// All exposures.
    pub fn exposures(&self) -> &[Exposure] {
        &self.exposures
    }

    /// What one task of the job is responsible for: its unit, or a partition of its output.
    pub fn unit<'a>(&'a self, job: &'a JobSpec) -> Result<&'a Partitioning> {
        match &job.unit {
            Some(unit) => Ok(unit),
            None => Ok(&self.table(&job.output)?.partitioning),
        }
    }

    /// What a task of the job over these units may touch in the output.
    pub fn scope(&self, job: &JobSpec, units: &[PartitionKey]) -> Result<Scope> {
        let output = &self.table(&job.output)?.partitioning;
        let other_unit = job.unit.as_ref().is_some_and(|unit| unit != output);
        // A unit that binds nothing comes only from a selection that says "the whole table".
        if output.dimensions().is_empty() || other_unit || units.iter().any(PartitionKey::is_whole) {
            return Ok(Scope::whole_table());
        }
        Scope::keys(units.iter().cloned())
    }
}

/// A deterministic key for rows of a table that is shared with other writers: the same source, interval and row give
/// the same key on every run.
///
/// `row` tells the rows of one source and interval apart, for example by a natural key or a line number.
pub fn derived_key(source: &str, interval: &Interval, row: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in [source, &interval.to_string(), row] {
        hasher.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}
