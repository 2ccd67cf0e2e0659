//! Catalogs: who holds the pointer to the current metadata of a table, and moves it from one version to the next.

#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod document;
#[cfg(feature = "postgres")]
mod postgres;
mod rest;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use iceberg::spec::{Schema, TableMetadataRef, UnboundPartitionSpec};
use iceberg::{TableIdent, TableRequirement, TableUpdate};
use reprocess_core::Result;
use reprocess_core::ports::ledger::{Fence, RunLedger};
use reprocess_core::ports::writer::{Commit, CommitEntry};

pub use rest::RestConfig;

use crate::files::Files;
use crate::storage::Stores;

/// A catalog that tables are opened from. Clones are the same catalog.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # async fn opened() -> reprocess_core::Result<()> {
/// use reprocess_iceberg::{IcebergCatalog, RestConfig};
/// use reprocess_sqlite::{SqliteDatabase, SqliteLedger};
///
/// // A SQL catalog in a file, with the ledger beside it: data and ledger change in one transaction.
/// let file = SqliteDatabase::open("warehouse/catalog.db").await?;
/// let ledger = SqliteLedger::open(file.clone()).await?;
/// let catalog = IcebergCatalog::sqlite(&file, "default", "/srv/warehouse").await?;
///
/// // A catalog behind a server.
/// let config = RestConfig::new("https://catalog.example.com/api")
///     .with_warehouse("lake")
///     .with_credential("client-id:client-secret")
///     .with_scope("PRINCIPAL_ROLE:ALL");
/// let catalog = IcebergCatalog::rest(config).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct IcebergCatalog(Arc<dyn Catalog>);

impl fmt::Debug for IcebergCatalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl IcebergCatalog {
    /// The catalog `name` in the tables `iceberg_tables` and `iceberg_namespace_properties` of a SQLite file, which are
    /// made where they are absent. They are those of Java's `JdbcCatalog` and PyIceberg's `SqlCatalog`, with and without
    /// the column `iceberg_type`, so that all may use one file; open a file that such a program made and has open with
    /// [`SqliteConfig::with_journal_mode_kept`](reprocess_sqlite::SqliteConfig::with_journal_mode_kept).
    ///
    /// New tables are made in folders of `warehouse`, an absolute path or a location such as `s3://bucket/folder`, or of
    /// the `location` that their namespace has.
    #[cfg(feature = "sqlite")]
    pub async fn sqlite(
        database: &reprocess_sqlite::SqliteDatabase,
        name: &str,
        warehouse: &str,
    ) -> Result<Self> {
        let pointers = sqlite::InSqlite::open(database.clone()).await?;
        Ok(Self(Arc::new(sql::SqlCatalog::new(name, warehouse, pointers)?)))
    }

    /// The catalog `name` in the same tables of a PostgreSQL database. They are looked for, and made where they are
    /// absent, in the search path of the connection, which is where other programs have them; give it as an option of
    /// the address (`?options=-c%20search_path%3Dcatalog`) where that is not `public`.
    #[cfg(feature = "postgres")]
    pub async fn postgres(
        database: &reprocess_postgres::PostgresDatabase,
        name: &str,
        warehouse: &str,
    ) -> Result<Self> {
        let pointers = postgres::InPostgres::open(database.clone()).await?;
        Ok(Self(Arc::new(sql::SqlCatalog::new(name, warehouse, pointers)?)))
    }

    /// A catalog that speaks the REST protocol of Iceberg. Asks the server for its settings.
    pub async fn rest(config: RestConfig) -> Result<Self> {
        Ok(Self(Arc::new(rest::RestCatalog::connect(config).await?)))
    }

    pub(crate) fn inner(&self) -> &dyn Catalog {
        &*self.0
    }
}

/// The current metadata of a table, as a catalog has it.
#[derive(Clone)]
pub(crate) struct Loaded {
    pub(crate) metadata: TableMetadataRef,
    /// Where the metadata file is; a REST catalog need not say.
    pub(crate) location: Option<String>,
    /// What the catalog says about the stores of the table, credentials among it; the newest that it said.
    pub(crate) config: BTreeMap<String, String>,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded")
            .field("uuid", &self.metadata.uuid())
            .field("location", &self.location)
            .field("config", &self.config.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// A table to be made.
#[derive(Debug)]
pub(crate) struct Creation {
    pub(crate) schema: Schema,
    pub(crate) spec: UnboundPartitionSpec,
    /// `format-version` is taken from here; without it the table is of version 2.
    pub(crate) properties: BTreeMap<String, String>,
}

/// A change of a table's metadata.
#[derive(Debug)]
pub(crate) struct Proposal<'a> {
    /// What the updates were made for.
    pub(crate) base: &'a Loaded,
    pub(crate) requirements: Vec<TableRequirement>,
    pub(crate) updates: Vec<TableUpdate>,
    /// What a ledger in the database of the catalog is told in the same transaction.
    pub(crate) told: Option<Told<'a>>,
}

/// What a ledger is told of a commit.
#[derive(Clone, Copy)]
pub(crate) struct Told<'a> {
    pub(crate) ledger: &'a dyn RunLedger,
    pub(crate) fence: Option<&'a Fence>,
    /// The commit with `recorded: true`.
    pub(crate) commit: &'a Commit,
    pub(crate) entries: &'a [CommitEntry],
}

impl fmt::Debug for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Told")
            .field("commit", self.commit)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

/// What became of a proposal. An error says nothing about whether it happened, unless its kind is `Invalid`,
/// `Unsupported`, `NotFound` or `State`: then it did not.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The metadata is this now, or was: others may have changed it since.
    Done(#[cfg_attr(not(test), allow(dead_code, reason = "a commit looks at the newest again"))] Loaded),
    /// Another change came first, and nothing happened: load again, stage again.
    CameFirst,
    /// The fence is not the current one, or the ledger has given the work to another, and nothing happened.
    Fenced,
}

/// A catalog of tables. A table is loaded and changed; everything else is done on its files.
#[async_trait]
pub(crate) trait Catalog: fmt::Debug + Send + Sync {
    /// The table now; `None` where there is none. A catalog without a server reads the metadata through `stores`.
    async fn load(&self, table: &TableIdent, stores: &Arc<Stores>) -> Result<Option<Loaded>>;

    /// Makes a table, and its namespace where there is none. `None` where another made it first.
    async fn create(
        &self,
        table: &TableIdent,
        creation: Creation,
        stores: &Arc<Stores>,
    ) -> Result<Option<Loaded>>;

    /// Changes a table, all or nothing, if it still is what the requirements say. `files` are the table's.
    async fn change(&self, table: &TableIdent, files: &Files, proposal: Proposal<'_>) -> Result<Answer>;

    /// Whether the catalog is in a database that a ledger may be in as well, so that both change in one transaction.
    fn has_transactions(&self) -> bool;

    /// Whether the ledger is in the database of the catalog, so that [`Proposal::told`] is recorded with the change.
    fn holds(&self, ledger: &dyn RunLedger) -> bool;
}

#[cfg(test)]
mod tests;
