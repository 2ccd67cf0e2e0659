//! Delta keeps the laws of the conformance suite, but for that of expiry: versions expire by file, and two pins of one
//! version share theirs. What holds of that is tested in `it/held.rs`.
#![allow(clippy::unwrap_used, reason = "a fixture that cannot be made fails the law that asks for it")]

use std::sync::Arc;

use arrow_array::RecordBatch;
use async_trait::async_trait;
use deltalake::datafusion::prelude::SessionContext;
use reprocess_core::conformance::{Fixture, Handle, Hooks, Place};
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::rows::Column;
use reprocess_core::memory::MemoryLedger;
use reprocess_core::ports::ledger::RunLedger;
use reprocess_delta::{DeltaConfig, DeltaTable, deltalake};
use tempfile::TempDir;

reprocess_core::conformance_tests!(Folders);

/// Each place is a folder, and each table is opened by a handle of its own, as by another process.
struct Folders;

#[async_trait]
impl Fixture for Folders {
    fn hooks(&self) -> Hooks {
        Hooks::none().with_strangers()
    }

    async fn fresh(&self) -> Box<dyn Place> {
        Box::new(Folder { folder: TempDir::new().unwrap(), ledger: Arc::default() })
    }
}

struct Folder {
    folder: TempDir,
    ledger: Arc<MemoryLedger>,
}

impl Folder {
    fn location(&self, spec: &TableSpec) -> String {
        self.folder.path().join(format!("a folder/{}", spec.id)).to_str().unwrap().to_owned()
    }

    async fn raw(&self, spec: &TableSpec) -> deltalake::DeltaTable {
        deltalake::open_table(deltalake::ensure_table_uri(self.location(spec)).unwrap()).await.unwrap()
    }
}

#[async_trait]
impl Place for Folder {
    async fn open(&self, spec: &TableSpec) -> Handle {
        // Few partitions at once, so that files are closed and opened again.
        let config = DeltaConfig::new().with_open_partitions(2);
        Handle::of(DeltaTable::open_with(&self.location(spec), spec.clone(), config).unwrap())
    }

    async fn ledger(&self) -> Arc<dyn RunLedger> {
        Arc::clone(&self.ledger) as Arc<dyn RunLedger>
    }

    /// As the library underneath shows them.
    async fn raw_rows(&self, spec: &TableSpec) -> Vec<String> {
        let session = SessionContext::new();
        let table = self.raw(spec).await;
        session.register_table("t", table.table_provider().await.unwrap()).unwrap();
        let batches = session.sql("SELECT * FROM t").await.unwrap().collect().await.unwrap();
        let mut lines: Vec<_> = batches.iter().flat_map(lines).collect();
        lines.sort();
        lines
    }

    async fn write_as_stranger(&self, spec: &TableSpec, rows: &RecordBatch) {
        self.raw(spec).await.write([rows.clone()]).await.unwrap();
    }

    async fn expire(&self, _: &TableSpec) {
        unreachable!("versions expire by file");
    }
}

fn lines(batch: &RecordBatch) -> Vec<String> {
    let schema = batch.schema();
    let columns = schema.fields().iter().zip(batch.columns());
    let columns: Vec<_> = columns.map(|(field, array)| Column::new(field.name(), array).unwrap()).collect();
    let line = |row| columns.iter().map(|column| column.cell(row).to_string()).collect::<Vec<_>>().join("/");
    (0..batch.num_rows()).map(line).collect()
}
