//! The seeded simulation over tables in folders.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_trait::async_trait;
use futures::future::BoxFuture;
use reprocess_core::conformance::simulation::{Backend, Simulation, Table};
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::scope::Scope;
use reprocess_core::memory::MemoryLedger;
use reprocess_core::ports::ledger::RunLedger;
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_core::ports::writer::PartitionWriter;
use reprocess_core::{Error, Result};
use reprocess_delta::{DeltaTable, deltalake};

const COMMAND: &str = "cargo test -p reprocess-delta simulation::histories -- --nocapture";
const HISTORIES: u64 = 100;

struct Delta {
    folder: tempfile::TempDir,
    ledger: Arc<MemoryLedger>,
}

impl Delta {
    fn table(&self, spec: &TableSpec) -> Result<Arc<DeltaTable>> {
        DeltaTable::open(self.folder.path().join(spec.id.as_str()).to_str().unwrap(), spec.clone())
            .map(Arc::new)
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::internal("the test's own writer failed").with_source(error)
}

#[async_trait]
impl Backend for Delta {
    async fn source(&self, spec: TableSpec, schema: SchemaRef) -> Result<Arc<dyn SnapshotReader>> {
        let table = self.table(&spec)?;
        table.create(&schema).await?;
        Ok(table)
    }

    async fn table(&self, spec: TableSpec) -> Result<Table> {
        Ok(Table::of(Self::table(self, &spec)?))
    }

    async fn ledger(&self) -> Result<Arc<dyn RunLedger>> {
        Ok(Arc::clone(&self.ledger) as Arc<dyn RunLedger>)
    }

    async fn replace_outside(&self, table: &TableSpec, scope: &Scope, rows: &RecordBatch) -> Result<()> {
        let url = deltalake::ensure_table_uri(self.folder.path().join(table.id.as_str()).to_str().unwrap());
        let raw = deltalake::open_table(url.map_err(failed)?).await.map_err(failed)?;
        let keys = scope.partitions().into_iter().map(|key| {
            let terms = key.bound().map(|(column, value)| format!("{column} = '{value}'"));
            format!("({})", terms.collect::<Vec<_>>().join(" AND "))
        });
        raw.write([rows.clone()])
            .with_save_mode(deltalake::protocol::SaveMode::Overwrite)
            .with_replace_where(keys.collect::<Vec<_>>().join(" OR "))
            .await
            .map(drop)
            .map_err(failed)
    }

    async fn close(&self) {}
}

#[test]
fn histories_keep_every_law() {
    let open = || -> BoxFuture<'static, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let folder = tempfile::tempdir().map_err(failed)?;
            Ok(Arc::new(Delta { folder, ledger: Arc::default() }) as Arc<dyn Backend>)
        })
    };
    let histories = std::env::var("REPROCESS_HISTORIES").map_or(HISTORIES, |n| n.parse().unwrap());
    let done = Simulation::new(open, COMMAND).check(histories).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{done:?}");
}
