//! What most backends do alike, so that a new one is short: gather and guard rows, make the staged set, decide whether a
//! commit may go on.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use futures::TryStreamExt;

use super::writer::{
    Change, Commit, CommitOutcome, CommitRequest, Moved, MovedBy, Rows, StageRequest, Staged,
};
use crate::domain::ids::PartitionVersion;
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
                .map_err(|e| Error::invalid("the rows do not fit the table").with_source(e))?;
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
    /// Why nothing may be committed, after the stamps were looked for: partitions that moved since the base, then a fence
    /// that is no longer the current one. `head` is the scope of all entries now. For backends that do not share a
    /// database with the ledger.
    pub async fn refusal(&self, head: &Base) -> Result<Option<CommitOutcome>> {
        let mut moved = Vec::new();
        for partition in self.entries.iter().flat_map(|entry| entry.scope.partitions()) {
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
    /// The commit of a request that left its scopes at `after`; nothing is kept, and the ledger does not have it yet.
    pub fn of(request: &CommitRequest<'_>, after: Base) -> Self {
        let attempt = |entry: &super::writer::CommitEntry| match &entry.change {
            // A later attempt may commit what an earlier one staged; deliveries stand under the one that staged.
            Change::Apply(staged) => (entry.stamp.clone(), staged.id.attempt),
            Change::Restore(_) | Change::Adopt => (entry.stamp.clone(), entry.attempt),
        };
        Self {
            version: after.table.clone(),
            partitions: after,
            attempts: request.entries.iter().map(attempt).collect(),
            kept: None,
            recorded: false,
            order: 0,
        }
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
