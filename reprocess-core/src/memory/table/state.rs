//! What a table holds: each partition with everything it ever held.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};

use super::rows::{self, Parts};
use crate::domain::ids::{PartitionVersion, TableVersion};
use crate::domain::job::TableSpec;
use crate::domain::partition::PartitionKey;
use crate::domain::schema;
use crate::domain::scope::Scope;
use crate::domain::slice::{Base, Pin};
use crate::error::{Error, ErrorKind, Result};
use crate::ports::writer::{Commit, Staged, StagedId};

/// Versions are counted from 0, the table that is not there yet; every write makes the next one.
#[derive(Debug)]
pub(super) struct State {
    pub(super) spec: TableSpec,
    pub(super) version: u64,
    /// The columns, by the version that brought them.
    pub(super) schemas: BTreeMap<u64, SchemaRef>,
    /// What each partition held, by the version that changed it; empty where it lost its rows.
    pub(super) parts: BTreeMap<PartitionKey, BTreeMap<u64, Vec<RecordBatch>>>,
    /// Versions before this one count as expired.
    pub(super) expired_before: u64,
    /// Pins that stay readable.
    pub(super) held: BTreeSet<Pin>,
    pub(super) staged: BTreeMap<StagedId, StagedSet>,
    /// Every commit of ours, oldest first.
    pub(super) commits: Vec<Commit>,
    /// Versions that commits kept.
    pub(super) kept: BTreeSet<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct StagedSet {
    pub(super) staged: Staged,
    pub(super) rows: RecordBatch,
}

impl State {
    pub(super) fn new(spec: TableSpec) -> Self {
        Self {
            spec,
            version: 0,
            schemas: BTreeMap::new(),
            parts: BTreeMap::new(),
            expired_before: 0,
            held: BTreeSet::new(),
            staged: BTreeMap::new(),
            commits: Vec::new(),
            kept: BTreeSet::new(),
        }
    }

    pub(super) fn schema(&self) -> Option<&SchemaRef> {
        self.schemas.last_key_value().map(|(_, schema)| schema)
    }

    /// The columns at a version; none where the table was not there yet.
    pub(super) fn schema_at(&self, version: u64) -> SchemaRef {
        let then = self.schemas.range(..=version).next_back();
        then.map_or_else(|| Arc::new(Schema::empty()), |(_, schema)| schema.clone())
    }

    pub(super) fn not_there(&self) -> Error {
        Error::not_found("the table does not exist")
            .with_context("table", &self.spec.id)
            .with_advice("create it first")
    }

    /// The rows of the wanted partitions at a version, with the given columns; partitions without rows are left out.
    pub(super) fn rows_at(
        &self,
        version: u64,
        columns: &SchemaRef,
        wanted: impl Fn(&PartitionKey) -> bool,
    ) -> Result<Parts> {
        let mut found = Parts::new();
        for (key, history) in self.parts.iter().filter(|(key, _)| wanted(key)) {
            let Some((_, batches)) = history.range(..=version).next_back() else { continue };
            if !batches.is_empty() {
                let batches = batches.iter().map(|batch| schema::conform(batch, columns));
                found.insert(key.clone(), batches.collect::<Result<_>>()?);
            }
        }
        Ok(found)
    }

    /// The version that last changed one of the wanted partitions, up to a version; 0 where none did.
    pub(super) fn last_change(&self, version: u64, wanted: impl Fn(&PartitionKey) -> bool) -> u64 {
        let histories = self.parts.iter().filter(|(key, _)| wanted(key)).map(|(_, history)| history);
        let changes = histories.filter_map(|history| history.range(..=version).next_back());
        changes.map(|(version, _)| *version).max().unwrap_or(0)
    }

    /// Version of every key of a scope, now.
    pub(super) fn head(&self, scope: &Scope) -> Result<Base> {
        let mut partitions = BTreeMap::new();
        for key in scope.partitions() {
            let known = self.spec.partitioning.check_key(&key)?;
            let version = self.last_change(self.version, |partition| known.covers(partition));
            partitions.insert(key, PartitionVersion::new(version.to_string()));
        }
        Ok(Base::new(self.table_version(), partitions))
    }

    pub(super) fn table_version(&self) -> TableVersion {
        TableVersion::new(self.version.to_string())
    }

    /// The number of a version that the table had.
    pub(super) fn number(&self, version: &TableVersion) -> Result<u64> {
        version.as_str().parse().ok().filter(|number| *number <= self.version).ok_or_else(|| {
            Error::new(ErrorKind::PinBroken, format!("the table never had the version `{version}`"))
                .with_context("table", &self.spec.id)
        })
    }

    /// Makes the next version, in which the partitions of a scope hold these rows and nothing else; all scopes at once.
    /// A partition whose rows are the same does not change.
    pub(super) fn write(&mut self, schema: &SchemaRef, writes: Vec<(Scope, Parts)>) -> Result<()> {
        let mut changed = Vec::new();
        // With the columns they had: a rebuild that drops one changes every row that had a value in it.
        let had = self.schema().unwrap_or(schema).clone();
        for (scope, mut after) in writes {
            let before = self.rows_at(self.version, &had, |key| scope.covers(key))?;
            let keys: BTreeSet<_> = before.keys().chain(after.keys()).cloned().collect();
            for key in keys {
                let rows = after.remove(&key).unwrap_or_default();
                let known = before.get(&key).map(Vec::as_slice).unwrap_or_default();
                if rows::multiset(known)? != rows::multiset(&rows)? {
                    changed.push((key, rows));
                }
            }
        }
        // From here on nothing can fail, so that a version is there as a whole or not at all.
        self.version = self.version.saturating_add(1);
        if self.schema() != Some(schema) {
            self.schemas.insert(self.version, schema.clone());
        }
        for (key, rows) in changed {
            self.parts.entry(key).or_default().insert(self.version, rows);
        }
        Ok(())
    }
}
