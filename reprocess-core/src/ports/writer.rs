//! Staging and committing output.
//!
//! Output is staged first (durable, guarded, profiled, not visible) and then committed in one atomic step.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::ledger::{Fence, RunLedger, TaskFinish};
use super::reader::{PinnedInput, RowStream};
use super::staged::StagedReader;
use crate::domain::ids::{BackfillId, JobName, PartitionVersion, RunId, TableId, TableVersion};
use crate::domain::partition::PartitionKey;
use crate::domain::profile::{Profile, ProfileSpec};
use crate::domain::request::SchemaPolicy;
use crate::domain::scope::Scope;
use crate::domain::slice::{Base, Kept};
use crate::domain::value::Value;
use crate::error::Result;

/// Rows to stage.
pub enum Rows {
    /// Record batches; an empty stream still has a schema.
    Stream {
        /// Schema of every batch.
        schema: SchemaRef,
        /// The batches.
        stream: RowStream,
    },
    /// A query for the table's own engine.
    Query(Query),
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream { schema, .. } => {
                f.debug_struct("Stream").field("schema", schema).finish_non_exhaustive()
            }
            Self::Query(query) => query.fmt(f),
        }
    }
}

/// A SQL query over pinned inputs.
#[derive(Clone, Debug)]
pub struct Query {
    /// The text; names of inputs stand for their pinned slices, `:name` for parameters.
    pub sql: String,
    /// Values of the parameters; bound, never spliced.
    pub params: BTreeMap<String, Value>,
    /// Inputs by name.
    pub inputs: BTreeMap<String, PinnedInput>,
}

/// What a commit does to its scope.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Intent {
    /// Afterwards the scope holds exactly the staged rows.
    Replace,
    /// Afterwards each partition that received rows holds exactly those; the others of the scope keep what they have.
    ReplaceDynamic,
    /// Rows are matched by key.
    Merge(MergeKeys),
}

/// How a merge matches and deletes rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MergeKeys {
    /// Columns that identify a row.
    pub keys: Vec<String>,
    /// Column by which a row is newer; an older or equally old row never overwrites.
    pub newer: Option<String>,
    /// Where set, rows of the scope that have these values and whose key is not among the staged rows are deleted.
    pub delete_vanished: Option<BTreeMap<String, Value>>,
}

/// Whether a staged set is committed at once or waits for a review.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// Committed by the task that staged it.
    Direct,
    /// Part of the shadow of a backfill.
    Shadow(BackfillId),
}

/// What kind of operation a stamp is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Replace or dynamic replace.
    Replace,
    /// Merge.
    Merge,
    /// Restore of what a commit replaced.
    Restore,
}

/// What a data commit carries so that it can be recognised later: the same stamp is the same work.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StampId {
    /// The run.
    pub run: RunId,
    /// The job.
    pub job: JobName,
    /// The operation.
    pub op: Op,
    /// [`Scope::digest`] of the task.
    pub scope_digest: String,
    /// Counts how often the same backfill was opened again.
    pub generation: u32,
}

impl fmt::Display for StampId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.op {
            Op::Replace => "replace",
            Op::Merge => "merge",
            Op::Restore => "restore",
        };
        write!(f, "{}/{}/{op}/{}/{}", self.run, self.job, self.scope_digest, self.generation)
    }
}

/// Identity of a staged set: one attempt at the work of a stamp.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StagedId {
    /// The work.
    pub stamp: StampId,
    /// Which attempt, from 1.
    pub attempt: u32,
}

impl StagedId {
    /// A short name that is safe in file and table names: 32 hexadecimal digits, equal on every machine.
    pub fn short(&self) -> String {
        blake3::hash(self.to_string().as_bytes()).to_hex()[..32].to_owned()
    }
}

impl fmt::Display for StagedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.stamp, self.attempt)
    }
}

/// What to stage.
#[derive(Clone, Debug)]
pub struct StageRequest {
    /// Identity of the staged set.
    pub id: StagedId,
    /// What it may touch.
    pub scope: Scope,
    /// What its commit does.
    pub intent: Intent,
    /// Whether it waits for a review.
    pub visibility: Visibility,
    /// What is profiled.
    pub profile: ProfileSpec,
    /// What to do where the rows have other columns than the table.
    pub schema: SchemaPolicy,
    /// The base of the plan; a backend that computes merged files at staging computes them on this.
    pub base: Base,
}

/// A staged set: durable, guarded, profiled, not visible.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Staged {
    /// Its identity.
    pub id: StagedId,
    /// What its commit may touch.
    pub scope: Scope,
    /// What its commit does.
    pub intent: Intent,
    /// Whether it waits for a review.
    pub visibility: Visibility,
    /// What it does to the table's columns.
    pub schema_policy: SchemaPolicy,
    /// Schema of the rows.
    pub schema: SchemaRef,
    /// The partitions that received rows; what a dynamic replace touches.
    pub received: BTreeSet<PartitionKey>,
    /// One profile for each key of the scope, of the staged rows. After a replace this is the profile of production.
    pub profiles: Vec<Profile>,
    /// Digest of what would be committed; an approval binds to it.
    pub digest: String,
    /// What the backend needs to find it again; opaque to the engine.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub payload: serde_json::Value,
}

impl Staged {
    /// Number of staged rows.
    pub fn rows(&self) -> u64 {
        self.profiles.iter().map(|p| p.rows).sum()
    }
}

/// One task's part of a commit.
#[derive(Clone, Debug)]
pub struct CommitEntry {
    /// What it touches; the scopes of the entries of one commit are disjoint.
    pub scope: Scope,
    /// What happens to it.
    pub change: Change,
    /// The work it completes.
    pub stamp: StampId,
    /// The attempt that does it; the ledger refuses one whose claim has passed to a later attempt.
    pub attempt: u32,
    /// What the ledger is told.
    pub finish: TaskFinish,
}

/// What happens to the scope of an entry.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "few at a time, and a box would be in the way of every match")]
pub enum Change {
    /// The staged set is applied.
    Apply(Staged),
    /// What an earlier commit replaced comes back, for the partitions of the entry's scope.
    Restore(Kept),
    /// Nothing: the work was found committed, and only the ledger is told. A writer refuses it.
    Adopt,
}

/// One atomic commit of one or more entries.
#[derive(Clone, Copy)]
pub struct CommitRequest<'a> {
    /// One for each task. Those whose stamps were committed before are not written again; the others are committed, all
    /// or none, whatever became of the partitions of the former since.
    pub entries: &'a [CommitEntry],
    /// What is expected to be replaced; holds every key of every entry's scope, and is never refreshed by a backend.
    pub base: &'a Base,
    /// The first base of the work, from before any attempt: where the search for an earlier commit of a stamp starts.
    pub since: &'a Base,
    /// Permission to write; `None` with leases switched off.
    pub fence: Option<&'a Fence>,
    /// Whether the replaced rows are kept.
    pub keep: bool,
    /// The ledger. A backend that finds it in its own database records the commit in the same transaction.
    pub ledger: Option<&'a dyn RunLedger>,
}

impl fmt::Debug for CommitRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommitRequest")
            .field("entries", &self.entries)
            .field("base", &self.base)
            .field("fence", &self.fence)
            .field("keep", &self.keep)
            .finish_non_exhaustive()
    }
}

/// What a commit did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    /// Version of the table after it.
    pub version: TableVersion,
    /// Version of every key of the entries' scopes after it.
    pub partitions: Base,
    /// For each stamp the attempt that was committed, which need not be the one that asked; those that were committed
    /// before come first.
    pub attempts: Vec<(StampId, u32)>,
    /// What it replaced, where that was asked for and is possible.
    pub kept: Option<Kept>,
    /// Whether the ledger has it already.
    pub recorded: bool,
    /// Grows with every commit of the table, as its storage system counts them; 0 where it does not. A ledger that is told
    /// of a commit late knows by it what came after.
    #[serde(default)]
    pub order: u64,
}

/// Why a partition no longer has the version of the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MovedBy {
    /// Its rows may be others.
    Content,
    /// Only files were rewritten, the rows are the same.
    Layout,
}

/// A partition that moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// The partition.
    pub partition: PartitionKey,
    /// How.
    pub by: MovedBy,
    /// The version that it has now, of the moment in which it was found to have moved.
    pub now: PartitionVersion,
}

/// The answer to a commit. Where several apply: already committed, then conflicted, then fenced.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub enum CommitOutcome {
    /// The entries are in production.
    Committed(Commit),
    /// All of them were already; nothing was written. Says what the first commit said, or the sum of what several said
    /// ([`Commit::sum`]). Whether it is still current is another question.
    AlreadyCommitted(Commit),
    /// Some partitions no longer have the version of the base; nothing was written.
    Conflicted {
        /// Which.
        moved: Vec<Moved>,
    },
    /// The fence is not the current one; nothing was written.
    Fenced,
    /// The table's columns are no longer those that the rows were staged for; nothing was written.
    SchemaChanged,
}

/// Whether the work of a stamp was committed.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub enum Found {
    /// It was; not necessarily still current.
    Yes(Commit),
    /// It was not.
    No,
    /// The storage system no longer knows.
    HistoryExpired,
}

/// What a writer offers; the engine refuses at planning what is not offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// Merges by key.
    pub merge: bool,
    /// Replaces only partitions that receive rows.
    pub replace_dynamic: bool,
    /// Runs SQL transforms.
    pub query: bool,
    /// Keeps what a commit replaced, and restores it.
    pub restore: bool,
    /// Adds columns, and rebuilds with another schema.
    pub schema_change: bool,
    /// Reads, lists and compares staged sets; without it only direct mode.
    pub shadow: bool,
    /// Writes data and the row of a ledger in its own database in one transaction.
    pub ledger_in_commit: bool,
}

impl Capabilities {
    /// Everything.
    pub fn all() -> Self {
        Self {
            merge: true,
            replace_dynamic: true,
            query: true,
            restore: true,
            schema_change: true,
            shadow: true,
            ledger_in_commit: true,
        }
    }
}

/// Writes one table.
///
/// Contract, each line a law of the conformance suite:
/// - [`stage`](Self::stage) refuses, before anything is visible and naming the values: rows outside the scope, a wrong
///   schema, NULL or repeated merge keys. It is durable when it returns; staging an id again replaces what was staged;
/// - [`commit`](Self::commit) acts on the scopes of its entries, all or nothing, and on nothing else. Partitions of a
///   replaced scope that receive no rows become empty;
/// - a partition that does not have the version of the base answers [`CommitOutcome::Conflicted`], also when it was
///   empty, and also with leases switched off. A version is another one whenever the rows may be; whether it moves with
///   a commit that leaves the same rows is the backend's choice, so two commits that change nothing may both succeed;
/// - the same stamp again answers [`CommitOutcome::AlreadyCommitted`] and writes nothing. Of entries of which some were
///   committed before, the others are committed and the answer is [`CommitOutcome::Committed`], naming every stamp;
/// - an error of `commit` says nothing about whether it happened: ask [`find_commit`](Self::find_commit).
#[async_trait]
pub trait PartitionWriter: Any + Send + Sync + fmt::Debug {
    /// The table.
    fn table(&self) -> &TableId;

    /// What it offers.
    fn capabilities(&self) -> Capabilities;

    /// The table's columns; `None` where the table does not exist.
    async fn schema(&self) -> Result<Option<SchemaRef>>;

    /// Creates the table. Does nothing where it exists with these columns; refuses where it has others.
    async fn create(&self, schema: &SchemaRef) -> Result<()>;

    /// Version of every key of the scope, now.
    async fn head(&self, scope: &Scope) -> Result<Base>;

    /// One profile for each key of the scope, in order, of one moment, and the base of that moment.
    async fn profile(&self, scope: &Scope, spec: &ProfileSpec) -> Result<(Base, Vec<Profile>)>;

    /// Writes rows durably and invisibly.
    async fn stage(&self, request: &StageRequest, rows: Rows) -> Result<Staged>;

    /// Makes a staged set committable on another base without running the transform again. The identity for a backend
    /// that merges at commit, and for a replace.
    async fn rebase(&self, staged: &Staged, onto: &Base) -> Result<Staged>;

    /// Removes a staged set that the ledger has given up. Idempotent; refuses what is committed, where it can tell.
    async fn discard(&self, id: &StagedId) -> Result<()>;

    /// The atomic step.
    async fn commit(&self, request: CommitRequest<'_>) -> Result<CommitOutcome>;

    /// Whether the work of a stamp over a scope was committed after `since`.
    async fn find_commit(&self, stamp: &StampId, scope: &Scope, since: &Base) -> Result<Found>;

    /// Frees what a commit kept. Idempotent.
    async fn forget(&self, kept: &Kept) -> Result<()>;

    /// Access to staged sets; `None` means direct mode only.
    fn staged(&self) -> Option<&dyn StagedReader>;
}
