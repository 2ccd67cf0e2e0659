//! What most backends do alike, so that a new one is short: gather and guard rows, make the staged set, decide whether a
//! commit may go on.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use futures::TryStreamExt;

use super::ledger::Fence;
use super::writer::{
    Change, Commit, CommitEntry, CommitOutcome, CommitRequest, Moved, MovedBy, Rows, StageRequest, Staged,
    StampId,
};
use crate::domain::ids::{PartitionVersion, TableId};
use crate::domain::partition::{PartitionKey, Partitioning};
use crate::domain::profile::{Profile, ScopeProfiler};
use crate::domain::rows::partition_runs;
use crate::domain::slice::Base;
use crate::error::{Error, ErrorKind, Result};

/// Rows that passed the guards of staging, by their full partition, with the table's columns in its order.
#[derive(Debug)]
#[non_exhaustive]
pub struct Gathered {
    /// The rows of each partition that received some.
    pub parts: BTreeMap<PartitionKey, Vec<RecordBatch>>,
    /// One for each key of the scope.
    pub profiles: Vec<Profile>,
}

impl StageRequest {
    /// Takes the rows of a stream into memory: profiled, and refused where they lie outside the scope or have other
    /// columns than the table. For a backend that writes a partition at a time and neither runs SQL nor changes columns.
    pub async fn gather(
        &self,
        partitioning: &Partitioning,
        table: &SchemaRef,
        rows: Rows,
    ) -> Result<Gathered> {
        let Rows::Stream { schema, mut stream } = rows else {
            return Err(Error::new(ErrorKind::Unsupported, "the backend runs no SQL"));
        };
        let order = order_of(table, &schema)?;
        let mut profiler = ScopeProfiler::new(partitioning, &self.scope, table, &self.profile)?;
        let mut parts = BTreeMap::<_, Vec<_>>::new();
        while let Some(batch) = stream.try_next().await? {
            let columns = order.iter().map(|place| Arc::clone(batch.column(*place))).collect();
            let batch = RecordBatch::try_new(Arc::clone(table), columns)
                .map_err(|e| Error::invalid(format!("the rows do not fit the table: {e}")))?;
            profiler.push(&batch)?;
            for (key, run) in partition_runs(partitioning, &batch)? {
                parts.entry(key).or_default().push(batch.slice(run.start, run.len()));
            }
        }
        Ok(Gathered { parts, profiles: profiler.finish() })
    }

    /// The staged set of this request, with its digest and without a payload, once its rows are written.
    pub fn staged(
        &self,
        schema: &SchemaRef,
        received: impl IntoIterator<Item = PartitionKey>,
        profiles: Vec<Profile>,
    ) -> Result<Staged> {
        let contents: Vec<_> = profiles.iter().map(|profile| &profile.content).collect();
        let what = (&self.id.stamp, &self.scope, &self.intent, &self.schema, schema, contents);
        let bytes = serde_json::to_vec(&what)
            .map_err(|e| Error::internal("a staged set does not serialise").with_source(e))?;
        Ok(Staged {
            id: self.id.clone(),
            scope: self.scope.clone(),
            intent: self.intent.clone(),
            visibility: self.visibility.clone(),
            schema_policy: self.schema,
            schema: Arc::clone(schema),
            received: received.into_iter().collect(),
            profiles,
            digest: blake3::hash(&bytes).to_hex()[..16].to_owned(),
            payload: serde_json::Value::Null,
        })
    }
}

impl CommitRequest<'_> {
    /// Refuses what no backend could commit: no entries, entries that touch the same partition or change nothing, a base
    /// without one of their keys, a fence that is none for them.
    pub fn check(&self, table: &TableId) -> Result<()> {
        let refuse = |message: &str| Err(Error::invalid(message).with_context("table", table));
        if self.entries.is_empty() {
            return refuse("a commit without entries would commit nothing");
        }
        for (place, entry) in self.entries.iter().enumerate() {
            let refuse = |message| refuse(message).map_err(|e: Error| e.with_context("stamp", &entry.stamp));
            let mut others = self.entries.iter().take(place);
            if others.any(|other| other.stamp == entry.stamp || other.scope.overlaps(&entry.scope)) {
                return refuse("two entries of one commit touch the same partitions");
            }
            let keys = entry.scope.partitions();
            if let Some(key) = keys.iter().find(|key| !self.base.partitions.contains_key(key)) {
                return refuse("the base does not hold a partition of the commit")
                    .map_err(|e: Error| e.with_context("partition", key));
            }
            match &entry.change {
                Change::Apply(staged) if staged.id.stamp != entry.stamp || staged.scope != entry.scope => {
                    return refuse("an entry has another stamp or scope than its staged set");
                }
                Change::Adopt => return refuse("what is only to be told to the ledger cannot be committed"),
                Change::Apply(_) | Change::Restore(_) => {}
            }
            let is_for = |fence: &Fence| fence.table == *table && fence.scope.covers_all(&entry.scope);
            if self.fence.is_some_and(|fence| !is_for(fence)) {
                return refuse("the fence is not one for the scope of the commit");
            }
        }
        Ok(())
    }

    /// The entries that are left to commit, and what the commits of the others said. `find` answers the first commit of
    /// a stamp.
    pub fn left(&self, find: impl Fn(&StampId) -> Option<Commit>) -> (Vec<&CommitEntry>, Vec<Commit>) {
        let (mut open, mut earlier) = (Vec::new(), Vec::new());
        for entry in self.entries {
            match find(&entry.stamp) {
                Some(commit) => earlier.push(commit),
                None => open.push(entry),
            }
        }
        (open, earlier)
    }

    /// Why the entries that are left may not be committed: partitions that moved since the base, then a fence that is no
    /// longer the current one. `head` holds their scopes now. For backends that do not share a database with the ledger.
    pub async fn refusal(&self, open: &[&CommitEntry], head: &Base) -> Result<Option<CommitOutcome>> {
        let mut moved = Vec::new();
        for partition in open.iter().flat_map(|entry| entry.scope.partitions()) {
            let Some(now) = head.partitions.get(&partition).cloned() else {
                return Err(Error::internal("the head does not hold a partition of the commit")
                    .with_context("partition", partition));
            };
            if self.base.partitions.get(&partition) != Some(&now) {
                moved.push(Moved { partition, by: MovedBy::Content, now });
            }
        }
        if !moved.is_empty() {
            return Ok(Some(CommitOutcome::Conflicted { moved }));
        }
        match (self.fence, self.ledger) {
            (Some(fence), Some(ledger)) if !ledger.is_current(fence).await? => {
                Ok(Some(CommitOutcome::Fenced))
            }
            _ => Ok(None),
        }
    }
}

impl Commit {
    /// The commit of the entries that were left, beside what was committed earlier; `after` holds the scopes of all.
    /// Nothing is kept, and the ledger does not have it yet.
    pub fn of(open: &[&CommitEntry], earlier: &[Self], request: &CommitRequest<'_>, after: Base) -> Self {
        let attempt = |entry: &&CommitEntry| match &entry.change {
            // A later attempt may commit what an earlier one staged; deliveries stand under the one that staged.
            Change::Apply(staged) => (entry.stamp.clone(), staged.id.attempt),
            Change::Restore(_) | Change::Adopt => (entry.stamp.clone(), entry.attempt),
        };
        let asked = |(stamp, _): &&(StampId, u32)| request.entries.iter().any(|entry| entry.stamp == *stamp);
        let mut attempts = Vec::new();
        for known in earlier.iter().flat_map(|commit| &commit.attempts).filter(asked) {
            if !attempts.contains(known) {
                attempts.push(known.clone());
            }
        }
        attempts.extend(open.iter().map(attempt));
        Self {
            version: after.table.clone(),
            partitions: after,
            attempts,
            kept: None,
            recorded: false,
            order: 0,
        }
    }

    /// What several commits said, oldest first; one that comes twice in a row counts once, and of none there is nothing
    /// to say. The answer to a request whose entries were committed apart: nothing is kept, since what one commit kept
    /// would not restore all.
    pub fn sum(commits: impl IntoIterator<Item = Self>) -> Option<Self> {
        commits.into_iter().reduce(|sum, next| {
            if sum.version == next.version {
                return sum;
            }
            let mut partitions = sum.partitions.partitions;
            partitions.extend(next.partitions.partitions);
            Self {
                partitions: Base::new(next.version.clone(), partitions),
                version: next.version,
                attempts: sum.attempts.into_iter().chain(next.attempts).collect(),
                kept: None,
                recorded: sum.recorded && next.recorded,
                order: next.order,
            }
        })
    }
}

impl PartitionVersion {
    /// The version of several partitions together: another one where any of them has another, or where one comes or
    /// goes. For readers whose slices hold many partitions.
    pub fn of_parts<'a>(parts: impl IntoIterator<Item = (&'a str, &'a Self)>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for text in parts.into_iter().flat_map(|(key, version)| [key, version.as_str()]) {
            hasher.update(&u64::try_from(text.len()).unwrap_or(u64::MAX).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        Self::new(&hasher.finalize().to_hex()[..32])
    }
}

/// Where the rows have each column of the table.
fn order_of(table: &Schema, rows: &Schema) -> Result<Vec<usize>> {
    let place = |field: &Arc<arrow_schema::Field>| {
        let found = rows.fields().find(field.name());
        found.filter(|(_, f)| f.data_type() == field.data_type()).map(|(place, _)| place)
    };
    let order: Vec<_> = table.fields().iter().filter_map(place).collect();
    if order.len() == table.fields().len() && order.len() == rows.fields().len() {
        return Ok(order);
    }
    let columns = |schema: &Schema| {
        let columns = schema.fields().iter().map(|f| format!("{} {}", f.name(), f.data_type()));
        columns.collect::<Vec<_>>().join(", ")
    };
    Err(Error::invalid(format!("the rows have other columns than the table: {}", columns(rows)))
        .with_advice(format!("its columns are: {}", columns(table))))
}
