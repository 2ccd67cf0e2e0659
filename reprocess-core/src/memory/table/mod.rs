//! A table in memory.

mod commit;
mod merge;
mod reader;
mod rows;
mod slice;
mod stage;
mod staged;
mod state;
mod writer;

use std::sync::{Arc, Mutex, MutexGuard};

use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;

use self::state::State;
use crate::domain::ids::TableVersion;
use crate::domain::job::TableSpec;
use crate::domain::request::SchemaPolicy;
use crate::domain::rows::check_rows;
use crate::domain::schema;
use crate::domain::scope::Scope;
use crate::error::{Error, Result};

/// A table that keeps every version of its rows. Clones are the same table.
///
/// Versions are numbers that every write counts up; the version of a partition or slice is that of the last write after
/// which its rows were others. Whoever does not go through the ports, as writers in other systems do, uses
/// [`append_unmanaged`](Self::append_unmanaged) and [`replace_unmanaged`](Self::replace_unmanaged).
#[derive(Clone, Debug)]
pub struct MemoryTable {
    spec: TableSpec,
    state: Arc<Mutex<State>>,
}

impl MemoryTable {
    /// A table that does not exist yet: creating it, or the first unmanaged rows, give it columns.
    pub fn new(spec: TableSpec) -> Self {
        let state = Arc::new(Mutex::new(State::new(spec.clone())));
        Self { spec, state }
    }

    /// Adds rows as a writer that is not ours would. Answers the new version.
    pub fn append_unmanaged(&self, rows: &RecordBatch) -> Result<TableVersion> {
        self.write_unmanaged(None, rows)
    }

    /// Replaces the partitions of a scope as a writer that is not ours would. Answers the new version.
    pub fn replace_unmanaged(&self, scope: &Scope, rows: &RecordBatch) -> Result<TableVersion> {
        self.write_unmanaged(Some(scope), rows)
    }

    /// Makes all versions before this one count as expired, as a vacuum would. What is held, kept or staged stays.
    pub fn expire_before(&self, version: &TableVersion) -> Result<()> {
        let mut state = self.lock()?;
        state.expired_before = state.number(version)?.max(state.expired_before);
        Ok(())
    }

    fn write_unmanaged(&self, scope: Option<&Scope>, batch: &RecordBatch) -> Result<TableVersion> {
        let mut state = self.lock()?;
        let table = state.schema().cloned().unwrap_or_else(|| batch.schema());
        schema::resolve(&table, &batch.schema(), SchemaPolicy::Refuse)?;
        schema::check_nulls(&table, batch)?;
        let mut batch = schema::conform(batch, &table)?;
        let whole_table = Scope::whole_table();
        if let Some(scope) = scope {
            check_rows(&self.spec.partitioning, scope, &batch)?;
        } else {
            let there = rows::flatten(state.rows_at(state.version, &table, |_| true)?);
            batch = concat_batches(&table, there.iter().chain([&batch]))
                .map_err(|e| Error::invalid("the rows do not fit together").with_source(e))?;
        }
        let parts = rows::split(&self.spec.partitioning, &batch)?;
        state.write(&table, vec![(scope.unwrap_or(&whole_table).clone(), parts)])?;
        Ok(state.table_version())
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>> {
        self.state.lock().map_err(|_| {
            Error::internal("an earlier call to the table did not end").with_context("table", &self.spec.id)
        })
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
