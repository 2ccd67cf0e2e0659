//! The seeded simulation over tables of a SQL catalog, with the ledger beside it.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_trait::async_trait;
use futures::future::BoxFuture;
use reprocess_core::conformance::simulation::{Backend, Simulation, Table};
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::ledger::RunLedger;
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_core::ports::writer::PartitionWriter;
use reprocess_core::{Error, Result};
use reprocess_iceberg::{IcebergCatalog, IcebergTable};
use reprocess_sqlite::{SqliteDatabase, SqliteLedger};

use crate::others;
use crate::raw::Raw;
use crate::support::Place;

const COMMAND: &str = "cargo test -p reprocess-iceberg --all-features simulation::histories -- --nocapture";
const HISTORIES: u64 = 100;

struct Lake {
    folder: tempfile::TempDir,
    database: SqliteDatabase,
    ledger: Arc<SqliteLedger>,
}

impl Lake {
    async fn open(&self, spec: &TableSpec) -> Result<Arc<IcebergTable>> {
        let place = Place::in_folder(self.folder.path());
        let catalog = IcebergCatalog::sqlite(&self.database, "test", &place.warehouse).await?;
        IcebergTable::open(&catalog, &format!("shop.{}", spec.id), spec.clone()).map(Arc::new)
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::internal("the test's own writer failed").with_source(error)
}

#[async_trait]
impl Backend for Lake {
    async fn source(&self, spec: TableSpec, schema: SchemaRef) -> Result<Arc<dyn SnapshotReader>> {
        let table = self.open(&spec).await?;
        table.create(&schema).await?;
        Ok(table)
    }

    async fn table(&self, spec: TableSpec) -> Result<Table> {
        Ok(Table::of(self.open(&spec).await?))
    }

    async fn ledger(&self) -> Result<Arc<dyn RunLedger>> {
        Ok(Arc::clone(&self.ledger) as Arc<dyn RunLedger>)
    }

    async fn replace_outside(&self, table: &TableSpec, scope: &Scope, rows: &RecordBatch) -> Result<()> {
        let raw = Raw::in_file(&Place::in_folder(self.folder.path()).catalog, &format!("shop.{}", table.id));
        others::replace(&raw, scope, rows).await;
        Ok(())
    }

    async fn close(&self) {
        self.database.close().await;
    }
}

#[test]
fn histories_keep_every_law() {
    let open = || -> BoxFuture<'static, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let folder = tempfile::tempdir().map_err(failed)?;
            let database = SqliteDatabase::open(Place::in_folder(folder.path()).catalog).await?;
            let ledger = Arc::new(SqliteLedger::open(database.clone()).await?);
            Ok(Arc::new(Lake { folder, database, ledger }) as Arc<dyn Backend>)
        })
    };
    let histories = std::env::var("REPROCESS_HISTORIES").map_or(HISTORIES, |n| n.parse().unwrap());
    let done = Simulation::new(open, COMMAND).check(histories).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{done:?}");
}
