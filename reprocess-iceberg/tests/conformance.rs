//! Iceberg keeps the laws of the conformance suite in each catalog, but for that of expiry: a held pin keeps the snapshot of
//! every pin of its version. What holds of that is tested in `it/held.rs`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a fixture that cannot be made fails the law that asks for it"
)]

#[path = "it/postgres.rs"]
mod postgres;
#[path = "it/raw.rs"]
mod raw;
#[path = "rest_server/server.rs"]
mod rest_server;

use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use async_trait::async_trait;
use reprocess_core::conformance::{Fixture, Handle, Hooks, Place};
use reprocess_core::domain::job::TableSpec;
use reprocess_core::memory::MemoryLedger;
use reprocess_core::ports::ledger::RunLedger;
use reprocess_iceberg::{IcebergCatalog, IcebergConfig, IcebergTable, RestConfig};
use reprocess_postgres::{PostgresDatabase, PostgresLedger};
use reprocess_sqlite::{Durability, SqliteConfig, SqliteDatabase, SqliteLedger};
use tempfile::TempDir;

use postgres::TestDatabase;
use raw::{Pointer, Raw};
use rest_server::RestServer;

/// As `conformance_tests!`; but the laws that let the engine die at each of its calls know nothing of catalogs and take more
/// time than all others, so that they are tried when they are asked for: `--ignored engine_crash`.
macro_rules! tests_with_crashes_on_demand {
    ([$fixture:expr]) => {};
    ([$fixture:expr] engine_crash { $($law:ident: $needs:ident,)* } $($rest:tt)*) => {
        mod engine_crash {
            $(
                #[test]
                #[ignore = "takes minutes, and is tried over the catalog in SQLite"]
                fn $law() {
                    reprocess_core::conformance::check(&$fixture, "engine_crash", stringify!($law));
                }
            )*
        }
        tests_with_crashes_on_demand! { [$fixture] $($rest)* }
    };
    ([$fixture:expr] $room:ident { $($law:tt)* } $($rest:tt)*) => {
        reprocess_core::conformance_test_functions! { [$fixture] $room { $($law)* } }
        tests_with_crashes_on_demand! { [$fixture] $($rest)* }
    };
}

/// Catalog and ledger in one SQLite file.
mod sqlite_catalog {
    reprocess_core::conformance_tests!(crate::Catalogs::InSqlite);
}

/// Catalog and ledger in one PostgreSQL database.
mod postgres_catalog {
    reprocess_core::conformance_laws! { [tests_with_crashes_on_demand] crate::Catalogs::InPostgres }
}

/// A REST catalog, and a ledger elsewhere.
mod rest_catalog {
    reprocess_core::conformance_laws! { [tests_with_crashes_on_demand] crate::Catalogs::Rest }
}

/// A REST catalog that shares no code with the one above but the library, and a ledger elsewhere.
mod foreign_rest_catalog {
    reprocess_core::conformance_laws! { [tests_with_crashes_on_demand] crate::Catalogs::ForeignRest }
}

/// Each place is a catalog, and each table is opened by a handle of its own, as by another process.
#[derive(Clone, Copy, Debug)]
enum Catalogs {
    InSqlite,
    InPostgres,
    Rest,
    ForeignRest,
}

#[async_trait]
impl Fixture for Catalogs {
    fn hooks(&self) -> Hooks {
        Hooks::none().with_strangers()
    }

    async fn fresh(&self) -> Box<dyn Place> {
        let folder = TempDir::new().unwrap();
        let home = match self {
            Self::InSqlite => Home::Sqlite,
            Self::InPostgres => {
                let database =
                    TestDatabase::fresh().await.expect("set REPROCESS_TEST_POSTGRES, or run scripts/test");
                Home::Postgres(database)
            }
            Self::Rest => {
                let server = RestServer::start(&folder.path().join("a warehouse")).await;
                Home::Rest(server, Arc::default())
            }
            Self::ForeignRest => {
                let uri = std::env::var("REPROCESS_TEST_REST_CATALOG");
                let uri = uri.expect("set REPROCESS_TEST_REST_CATALOG, or run scripts/test");
                Home::ForeignRest(uri, Arc::default())
            }
        };
        // Others are in the same catalog, each with the folder of their own.
        let name = folder.path().file_name().unwrap().to_str().unwrap().trim_start_matches('.');
        Box::new(Shop { namespace: format!("laws_{name}"), folder, home })
    }
}

struct Shop {
    folder: TempDir,
    namespace: String,
    home: Home,
}

enum Home {
    Sqlite,
    Postgres(TestDatabase),
    Rest(RestServer, Arc<MemoryLedger>),
    /// At an address, where others are too.
    ForeignRest(String, Arc<MemoryLedger>),
}

impl Shop {
    fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("a catalog.db")
    }

    async fn sqlite(&self) -> SqliteDatabase {
        SqliteConfig::new().with_durability(Durability::Normal).open(self.file()).await.unwrap()
    }

    async fn catalog(&self) -> IcebergCatalog {
        let warehouse = self.folder.path().join("a warehouse");
        let warehouse: &Path = &warehouse;
        let warehouse = warehouse.to_str().unwrap();
        match &self.home {
            Home::Sqlite => IcebergCatalog::sqlite(&self.sqlite().await, "laws", warehouse).await.unwrap(),
            Home::Postgres(database) => {
                let database: PostgresDatabase = database.connect().await;
                IcebergCatalog::postgres(&database, "laws", warehouse).await.unwrap()
            }
            Home::Rest(server, _) => IcebergCatalog::rest(RestConfig::new(server.uri())).await.unwrap(),
            Home::ForeignRest(uri, _) => IcebergCatalog::rest(RestConfig::new(uri)).await.unwrap(),
        }
    }

    fn name(&self, spec: &TableSpec) -> String {
        format!("{}.{}", self.namespace, spec.id)
    }

    fn raw(&self, spec: &TableSpec) -> Raw {
        let pointer = match &self.home {
            Home::Sqlite => Pointer::Sqlite(self.file()),
            Home::Postgres(database) => Pointer::Postgres(database.address().to_owned()),
            Home::Rest(server, _) => Pointer::Rest(server.uri()),
            Home::ForeignRest(uri, _) => Pointer::Rest(uri.clone()),
        };
        Raw::new(pointer, &self.name(spec))
    }
}

#[async_trait]
impl Place for Shop {
    async fn open(&self, spec: &TableSpec) -> Handle {
        // Few partitions at once, so that files are closed and opened again.
        let config = IcebergConfig::new().with_open_partitions(2);
        let (catalog, name) = (self.catalog().await, self.name(spec));
        Handle::of(IcebergTable::open_with(&catalog, &name, spec.clone(), config).unwrap())
    }

    async fn ledger(&self) -> Arc<dyn RunLedger> {
        match &self.home {
            Home::Sqlite => Arc::new(SqliteLedger::open(self.sqlite().await).await.unwrap()),
            Home::Postgres(database) => {
                let ledger = PostgresLedger::open(database.connect().await).await.unwrap();
                Arc::new(ledger.with_clock_of_callers())
            }
            Home::Rest(_, ledger) | Home::ForeignRest(_, ledger) => Arc::clone(ledger) as Arc<dyn RunLedger>,
        }
    }

    /// As the library underneath shows them.
    async fn raw_rows(&self, spec: &TableSpec) -> Vec<String> {
        self.raw(spec).rows().await
    }

    async fn write_as_stranger(&self, spec: &TableSpec, rows: &RecordBatch) {
        self.raw(spec).append(rows).await;
    }

    async fn expire(&self, _: &TableSpec) {
        unreachable!("snapshots of held pins stay for all pins of their version");
    }
}
