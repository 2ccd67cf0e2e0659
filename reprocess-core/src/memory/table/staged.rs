//! Looking at staged sets.

use std::collections::BTreeMap;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_trait::async_trait;
use futures::{StreamExt, stream};

use super::rows::{self, Parts};
use super::state::State;
use super::{MemoryTable, slice, stage};
use crate::domain::diff::{Diff, DiffSpec, diff};
use crate::domain::ids::RunId;
use crate::domain::partition::PartitionKey;
use crate::domain::profile::{Profile, ProfileSpec, ScopeProfiler};
use crate::domain::schema;
use crate::domain::slice::Pin;
use crate::error::Result;
use crate::ports::reader::RowStream;
use crate::ports::staged::StagedReader;
use crate::ports::writer::{Staged, StagedId};

#[async_trait]
impl StagedReader for MemoryTable {
    async fn list(&self, run: &RunId) -> Result<Vec<StagedId>> {
        let state = self.lock()?;
        Ok(state.staged.keys().filter(|id| id.stamp.run == *run).cloned().collect())
    }

    async fn open(&self, id: &StagedId) -> Result<Option<Staged>> {
        Ok(self.lock()?.staged.get(id).map(|set| set.staged.clone()))
    }

    async fn read_overlaid(&self, staged: &[Staged], pin: &Pin) -> Result<(SchemaRef, RowStream)> {
        let state = self.lock()?;
        let version = state.check_readable(pin)?;
        state.check_around(staged, pin, version)?;
        // The sets were staged for the columns of now, which the version of the pin may not have had yet.
        let now = state.schema().filter(|_| !staged.is_empty()).cloned();
        let schema = state.schema_with(staged, now.unwrap_or_else(|| state.schema_at(version)))?;
        let parts = state.overlaid(staged, version, &schema)?;
        let batches = rows::flatten(slice::narrow(parts, &pin.slice)?);
        Ok((schema, stream::iter(batches.into_iter().map(Ok)).boxed()))
    }

    async fn profile_after(&self, staged: &Staged, spec: &ProfileSpec) -> Result<Vec<Profile>> {
        let state = self.lock()?;
        let (schema, _, after) = state.compared(staged)?;
        let mut profiler = ScopeProfiler::new(&self.spec.partitioning, &staged.scope, &schema, spec)?;
        rows::flatten(after).iter().try_for_each(|batch| profiler.push(batch))?;
        Ok(profiler.finish())
    }

    async fn diff(&self, staged: &Staged, spec: &DiffSpec) -> Result<Vec<Diff>> {
        let state = self.lock()?;
        let (_, before, after) = state.compared(staged)?;
        let keys = staged.scope.partitions();
        keys.into_iter().map(|key| diff(key.clone(), &of(&before, &key), &of(&after, &key), spec)).collect()
    }
}

impl State {
    /// The columns after, and the rows of a staged set's scope now and after.
    fn compared(&self, staged: &Staged) -> Result<(SchemaRef, Parts, Parts)> {
        let now = self.schema().ok_or_else(|| self.not_there())?.clone();
        let schema = self.schema_with(std::slice::from_ref(staged), now.clone())?;
        let in_scope = |key: &PartitionKey| staged.scope.covers(key);
        // With its own columns: what a rebuild drops is part of the difference.
        let before = self.rows_at(self.version, &now, in_scope)?;
        let base = self.rows_at(self.version, &schema, in_scope)?;
        let after = stage::apply(self, self.find_staged(staged)?, &schema, base)?;
        Ok((schema, before, after))
    }

    fn schema_with(&self, staged: &[Staged], table: SchemaRef) -> Result<SchemaRef> {
        staged.iter().try_fold(table, |table, set| schema::resolve(&table, &set.schema, set.schema_policy))
    }

    /// The table at a version with the staged sets committed.
    fn overlaid(&self, staged: &[Staged], version: u64, schema: &SchemaRef) -> Result<Parts> {
        let mut parts = self.rows_at(version, schema, |_| true)?;
        for staged in staged {
            let (before, others) = parts.into_iter().partition(|(key, _)| staged.scope.covers(key));
            parts = others;
            parts.extend(stage::apply(self, self.find_staged(staged)?, schema, before)?);
        }
        Ok(parts)
    }

    /// Refuses a pin whose content changed outside the scopes of the staged sets.
    fn check_around(&self, staged: &[Staged], pin: &Pin, version: u64) -> Result<()> {
        if self.slice_version(version, &pin.slice)?.to_string() == pin.content.as_str() {
            return Ok(());
        }
        // The content of a pin is the version that last changed it, so the rows of that version are those it names.
        let named = pin.content.as_str().parse().ok().filter(|named| *named <= self.version);
        let named = named.ok_or_else(|| slice::broken(pin, "the table never had the content of the pin"))?;
        if self.around(staged, pin, version)? == self.around(staged, pin, named)? {
            return Ok(());
        }
        Err(slice::broken(pin, "what the pin names has changed beside the staged partitions"))
    }

    fn around(&self, staged: &[Staged], pin: &Pin, version: u64) -> Result<BTreeMap<Vec<u8>, u64>> {
        let parts = self.slice_at(version, &self.schema_at(version), &pin.slice)?;
        let outside = |key: &PartitionKey| !staged.iter().any(|set| set.scope.covers(key));
        let parts = parts.into_iter().filter(|(key, _)| outside(key)).collect();
        rows::multiset(&rows::flatten(parts))
    }
}

/// The rows under a key.
fn of(parts: &Parts, key: &PartitionKey) -> Vec<RecordBatch> {
    parts
        .iter()
        .filter(|(partition, _)| key.covers(partition))
        .flat_map(|(_, batches)| batches.clone())
        .collect()
}
