//! A deterministic simulation: seeded histories of runs, backfills, publications and rollbacks, with faults, over any
//! backend.
//!
//! One thread, one port call at a time: every call of reader, writer and ledger is a scheduling point, the clock is put
//! forward by the scheduler, and every choice comes from the seed, so that a seed replays exactly. After every call that
//! writes, an auditor compares the tables with a plain model of what the ledger records.

mod actors;
mod audit;
mod dice;
mod drive;
mod ending;
mod gate;
mod history;
mod ledger;
mod model;
mod plant;
mod rows;
mod seeds;
mod shop;
mod shrink;
mod tables;

use std::fmt;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_trait::async_trait;

use crate::domain::ids::TableVersion;
use crate::domain::job::TableSpec;
use crate::domain::scope::Scope;
use crate::error::Result;
use crate::ports::ledger::RunLedger;
use crate::ports::reader::SnapshotReader;
use crate::ports::writer::PartitionWriter;

pub use plant::Plant;
pub use seeds::{Failure, Simulation, Summary};

/// A backend for one history: nothing in it yet.
#[async_trait]
pub trait Backend: Send + Sync {
    /// A table that others write, with these columns and without rows.
    async fn source(&self, spec: TableSpec, schema: SchemaRef) -> Result<Arc<dyn SnapshotReader>>;

    /// A table that jobs write; it does not exist yet.
    async fn table(&self, spec: TableSpec) -> Result<Table>;

    /// The ledger.
    async fn ledger(&self) -> Result<Arc<dyn RunLedger>>;

    /// Replaces the rows of a scope as a writer that is not ours would.
    async fn replace_outside(&self, table: &TableSpec, scope: &Scope, rows: &RecordBatch) -> Result<()>;

    /// The history is over.
    async fn close(&self);

    /// Whether a version stands for no moment, but for whatever is there when it is used.
    fn is_live(&self, version: &TableVersion) -> bool {
        let _ = version;
        false
    }
}

/// An output table of a backend.
#[derive(Clone)]
pub struct Table {
    /// Who reads it.
    pub reader: Arc<dyn SnapshotReader>,
    /// Who writes it.
    pub writer: Arc<dyn PartitionWriter>,
}

impl Table {
    /// A table that one value reads and writes.
    pub fn of<T: SnapshotReader + PartitionWriter>(table: Arc<T>) -> Self {
        Self { reader: Arc::clone(&table) as Arc<dyn SnapshotReader>, writer: table }
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("writer", &self.writer).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
