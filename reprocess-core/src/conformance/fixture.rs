//! What a backend supplies so that it can be judged.

use std::fmt;
use std::sync::Arc;

use arrow_array::RecordBatch;
use async_trait::async_trait;

use crate::domain::job::TableSpec;
use crate::ports::ledger::RunLedger;
use crate::ports::reader::SnapshotReader;
use crate::ports::writer::{Capabilities, PartitionWriter};

/// Makes places in which tables of a backend are tried. What it needs and does not find, a server for example, is its
/// own failure: under `CI=true` it panics, so that no law counts as held that was not tried.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// What can be done beside the ports.
    fn hooks(&self) -> Hooks;

    /// A place without tables that no other law sees.
    async fn fresh(&self) -> Box<dyn Place>;
}

/// One isolated place: a database, a directory, a catalog.
///
/// Its methods panic where they cannot do what is asked, which the law that asks then fails by.
#[async_trait]
pub trait Place: Send + Sync {
    /// Opens a table, which need not exist. Each call opens it as another process would, as far as that is possible.
    async fn open(&self, spec: &TableSpec) -> Handle;

    /// A ledger, in the same database where the backend has one; each call answers the same ledger, by another handle
    /// where that is possible.
    async fn ledger(&self) -> Arc<dyn RunLedger>;

    /// Every row of a table by other means than the port: cells in the order of the columns joined with `/`, NULL as
    /// `NULL`, dates as `2026-10-05`, integers and texts as they are; sorted.
    async fn raw_rows(&self, spec: &TableSpec) -> Vec<String>;

    /// Adds rows to a table as a writer that is not ours would. Called only with [`Hooks::strangers`].
    async fn write_as_stranger(&self, spec: &TableSpec, rows: &RecordBatch);

    /// Makes every version of a table before the current one unreadable, as a vacuum would. Called only with
    /// [`Hooks::expiry`].
    async fn expire(&self, spec: &TableSpec);
}

/// Both ends of an open table.
#[derive(Clone, Debug)]
pub struct Handle {
    /// Writes it.
    pub writer: Arc<dyn PartitionWriter>,
    /// Reads it.
    pub reader: Arc<dyn SnapshotReader>,
}

impl Handle {
    /// Both ends of a table that reads and writes.
    pub fn of<T: PartitionWriter + SnapshotReader>(table: T) -> Self {
        let table = Arc::new(table);
        Self { writer: Arc::clone(&table) as Arc<dyn PartitionWriter>, reader: table }
    }
}

/// What a place can do beside the ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hooks {
    /// The backend has a ledger of its own, which is judged too.
    pub ledger: bool,
    /// [`Place::write_as_stranger`] works.
    pub strangers: bool,
    /// [`Place::expire`] works.
    pub expiry: bool,
}

impl Hooks {
    /// None of them.
    pub fn none() -> Self {
        Self::default()
    }

    /// The backend has a ledger.
    #[must_use]
    pub fn with_ledger(mut self) -> Self {
        self.ledger = true;
        self
    }

    /// Others can write its tables.
    #[must_use]
    pub fn with_strangers(mut self) -> Self {
        self.strangers = true;
        self
    }

    /// Versions can be made to expire.
    #[must_use]
    pub fn with_expiry(mut self) -> Self {
        self.expiry = true;
        self
    }
}

/// What is offered in all; a law is tried where what it needs is.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// What the writer declares.
    pub capabilities: Capabilities,
    /// What the fixture can do beside.
    pub hooks: Hooks,
}

impl fmt::Debug for dyn Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Place")
    }
}
