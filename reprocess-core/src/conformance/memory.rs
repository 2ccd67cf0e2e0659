//! The fixture of the reference backend; also how a fixture looks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use arrow_array::RecordBatch;
use async_trait::async_trait;

use super::fixture::{Fixture, Handle, Hooks, Place};
use super::world;
use crate::domain::ids::TableId;
use crate::domain::job::TableSpec;
use crate::domain::slice::Slice;
use crate::memory::{MemoryLedger, MemoryTable};
use crate::ports::ledger::RunLedger;
use crate::ports::reader::SnapshotReader;

/// Tables and a ledger in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryFixture;

#[async_trait]
impl Fixture for MemoryFixture {
    fn hooks(&self) -> Hooks {
        Hooks::none().with_ledger().with_strangers().with_expiry()
    }

    async fn fresh(&self) -> Box<dyn Place> {
        Box::new(MemoryPlace::default())
    }
}

/// What is in memory is another process's only through the same tables.
#[derive(Debug, Default)]
pub(super) struct MemoryPlace {
    tables: Mutex<BTreeMap<TableId, MemoryTable>>,
    ledger: Arc<MemoryLedger>,
}

impl MemoryPlace {
    pub(super) fn table(&self, spec: &TableSpec) -> MemoryTable {
        let mut tables = self.tables.lock().unwrap();
        tables.entry(spec.id.clone()).or_insert_with(|| MemoryTable::new(spec.clone())).clone()
    }

    pub(super) fn memory_ledger(&self) -> Arc<MemoryLedger> {
        Arc::clone(&self.ledger)
    }
}

#[async_trait]
impl Place for MemoryPlace {
    async fn open(&self, spec: &TableSpec) -> Handle {
        Handle::of(self.table(spec))
    }

    async fn ledger(&self) -> Arc<dyn RunLedger> {
        self.memory_ledger()
    }

    /// There is no other way to look at it.
    async fn raw_rows(&self, spec: &TableSpec) -> Vec<String> {
        let table = self.table(spec);
        let pin = world::pin(&table, Slice::All).await.unwrap();
        world::texts(table.read(&pin).await.unwrap().1).await.unwrap()
    }

    async fn write_as_stranger(&self, spec: &TableSpec, rows: &RecordBatch) {
        self.table(spec).append_unmanaged(rows).unwrap();
    }

    async fn expire(&self, spec: &TableSpec) {
        let table = self.table(spec);
        table.expire_before(&table.current().await.unwrap()).unwrap();
    }
}
