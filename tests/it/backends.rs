//! Tables and ledger of every backend, so that one test can run over each.

use std::sync::Arc;

use reprocess::arrow::schema::SchemaRef;
use reprocess::domain::job::TableSpec;
use reprocess::engine::Host;
use reprocess::ports::ledger::RunLedger;
use reprocess::ports::reader::SnapshotReader;
use reprocess::ports::writer::PartitionWriter;
use reprocess::sqlite::{SqliteDatabase, SqliteLedger, SqliteTable};
use tempfile::TempDir;

/// One backend, in a place of its own.
pub(crate) struct Backend {
    tables: Tables,
    /// Where the ledger is, unless it is in the database of the tables.
    file: SqliteDatabase,
    _folder: TempDir,
}

enum Tables {
    Sqlite,
    #[cfg(feature = "postgres")]
    Postgres {
        database: reprocess::postgres::PostgresDatabase,
        _own: super::postgres::TestDatabase,
    },
    #[cfg(feature = "delta")]
    Delta(std::path::PathBuf),
    #[cfg(feature = "iceberg")]
    Iceberg(reprocess::iceberg::IcebergCatalog),
}

async fn file() -> (TempDir, SqliteDatabase) {
    let folder = tempfile::tempdir().unwrap();
    let file = SqliteDatabase::open(folder.path().join("test.db")).await.unwrap();
    (folder, file)
}

impl Backend {
    pub(crate) async fn sqlite() -> Self {
        let (folder, file) = file().await;
        Self { tables: Tables::Sqlite, file, _folder: folder }
    }

    /// `None` where there is no server.
    #[cfg(feature = "postgres")]
    pub(crate) async fn postgres() -> Option<Self> {
        let (folder, file) = file().await;
        let database = super::postgres::TestDatabase::fresh().await?;
        let connected = database.connect().await;
        Some(Self { tables: Tables::Postgres { database: connected, _own: database }, file, _folder: folder })
    }

    #[cfg(feature = "delta")]
    pub(crate) async fn delta() -> Self {
        let (folder, file) = file().await;
        Self { tables: Tables::Delta(folder.path().to_owned()), file, _folder: folder }
    }

    /// Catalog and ledger in one file.
    #[cfg(feature = "iceberg")]
    pub(crate) async fn iceberg() -> Self {
        let (folder, file) = file().await;
        let warehouse = folder.path().join("warehouse");
        let catalog = reprocess::iceberg::IcebergCatalog::sqlite(&file, "test", warehouse.to_str().unwrap());
        Self { tables: Tables::Iceberg(catalog.await.unwrap()), file, _folder: folder }
    }

    /// Makes a table, and declares it.
    pub(crate) async fn table(&self, host: &mut Host, spec: TableSpec, columns: &SchemaRef) {
        match &self.tables {
            Tables::Sqlite => {
                declare(host, spec.clone(), SqliteTable::new(self.file.clone(), spec), columns).await;
            }
            #[cfg(feature = "postgres")]
            Tables::Postgres { database, .. } => {
                let table = reprocess::postgres::PostgresTable::open(database.clone(), spec.clone()).await;
                declare(host, spec, table.unwrap(), columns).await;
            }
            #[cfg(feature = "delta")]
            Tables::Delta(folder) => {
                let location = folder.join(spec.id.as_str());
                let table = reprocess::delta::DeltaTable::open(location.to_str().unwrap(), spec.clone());
                declare(host, spec, table.unwrap(), columns).await;
            }
            #[cfg(feature = "iceberg")]
            Tables::Iceberg(catalog) => {
                let name = format!("test.{}", spec.id);
                let table = reprocess::iceberg::IcebergTable::open(catalog, &name, spec.clone());
                declare(host, spec, table.unwrap(), columns).await;
            }
        }
    }

    pub(crate) async fn ledger(&self) -> Arc<dyn RunLedger> {
        match &self.tables {
            #[cfg(feature = "postgres")]
            Tables::Postgres { database, .. } => {
                Arc::new(reprocess::postgres::PostgresLedger::open(database.clone()).await.unwrap())
            }
            _ => Arc::new(SqliteLedger::open(self.file.clone()).await.unwrap()),
        }
    }
}

async fn declare<T: PartitionWriter + SnapshotReader>(
    host: &mut Host,
    spec: TableSpec,
    table: T,
    columns: &SchemaRef,
) {
    table.create(columns).await.unwrap();
    host.add_table(spec, Arc::new(table)).unwrap();
}
