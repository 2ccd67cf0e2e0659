//! The database, its settings and its connections.

mod open;
mod transaction;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use reprocess_core::{Error, Result};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;

pub use transaction::PostgresTransaction;
pub(crate) use transaction::PostgresTransaction as Tx;

use crate::reader::SnapshotId;
use crate::schema::Schema;
use crate::sql::Statement;

/// Settings of a database; passwords are not among them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PostgresConfig {
    /// The schema of our own tables, which is made where it is absent: ASCII letters, digits and `_`.
    pub schema: String,
    /// How many connections are open at a time at the most; each stream of rows holds one.
    pub connections: u32,
    /// How long a connection is waited for, in milliseconds; after it the error is `Unavailable`.
    pub connect_timeout_ms: u64,
    /// How long one statement may take before the server stops it, in milliseconds; 0 for ever.
    pub statement_timeout_ms: u32,
    /// How long one lock is waited for, in milliseconds; after it the error is `Unavailable`. 0 for ever.
    pub lock_timeout_ms: u32,
    /// How long the server lets one of our transactions wait for its client, in milliseconds; then it rolls the
    /// transaction back and closes the connection, so that a client that hangs holds no lock. Shorter than the wait for
    /// a lock, so that those who wait outlast him. 0 for ever.
    pub idle_timeout_ms: u32,
    /// How long a swap of partitions is put off by those who read older rows, and again by those who use the table, in
    /// milliseconds; then the rows are deleted and inserted. 0 for not at all.
    pub swap_timeout_ms: u64,
    /// How many rows a batch has at the most.
    pub batch_rows: usize,
}

impl Default for PostgresConfig {
    fn default() -> Self {
        Self {
            schema: "reprocess".to_owned(),
            connections: 16,
            connect_timeout_ms: 30_000,
            statement_timeout_ms: 3_600_000,
            lock_timeout_ms: 30_000,
            idle_timeout_ms: 20_000,
            swap_timeout_ms: 30_000,
            batch_rows: 8_192,
        }
    }
}

impl PostgresConfig {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the schema of our own tables.
    #[must_use]
    pub fn with_schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// Sets how many connections are open at a time at the most.
    #[must_use]
    pub fn with_connections(mut self, connections: u32) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// Sets how long a connection is waited for.
    #[must_use]
    pub fn with_connect_timeout_ms(mut self, milliseconds: u64) -> Self {
        self.connect_timeout_ms = milliseconds;
        self
    }

    /// Sets how long one statement may take.
    #[must_use]
    pub fn with_statement_timeout_ms(mut self, milliseconds: u32) -> Self {
        self.statement_timeout_ms = milliseconds;
        self
    }

    /// Sets how long one lock is waited for.
    #[must_use]
    pub fn with_lock_timeout_ms(mut self, milliseconds: u32) -> Self {
        self.lock_timeout_ms = milliseconds;
        self
    }

    /// Sets how long a transaction may wait for its client.
    #[must_use]
    pub fn with_idle_timeout_ms(mut self, milliseconds: u32) -> Self {
        self.idle_timeout_ms = milliseconds;
        self
    }

    /// Sets how long a swap of partitions is put off.
    #[must_use]
    pub fn with_swap_timeout_ms(mut self, milliseconds: u64) -> Self {
        self.swap_timeout_ms = milliseconds;
        self
    }

    /// Sets how many rows a batch has at the most.
    #[must_use]
    pub fn with_batch_rows(mut self, rows: usize) -> Self {
        self.batch_rows = rows.max(1);
        self
    }

    /// Connects to the database of an address like `postgres://user:password@host:5432/database`; what it leaves out is
    /// taken from the environment as `psql` does. Refuses servers before PostgreSQL 15 and databases that are not in
    /// UTF-8.
    pub async fn connect(self, address: &str) -> Result<PostgresDatabase> {
        // The source of the error may not hold the address, and so no password.
        let options = PgConnectOptions::from_str(address)
            .map_err(|error| Error::invalid(format!("the address of the database is not valid: {error}")))?;
        self.connect_with(options).await
    }

    /// Connects as the options of sqlx say, which also set certificates.
    pub async fn connect_with(self, options: PgConnectOptions) -> Result<PostgresDatabase> {
        open::database(self, options).await
    }
}

/// One PostgreSQL database with tables, and with the ledger where it is kept there. A handle is cheap to clone.
///
/// Many processes and machines may have one of the same database.
#[derive(Clone)]
pub struct PostgresDatabase {
    inner: Arc<Inner>,
}

struct Inner {
    config: PostgresConfig,
    schema: Schema,
    pool: PgPool,
    identity: Identity,
    /// What begins a transaction that writes, and one that reads.
    begin: String,
    begin_read: String,
    /// What every transaction sets.
    settings: String,
}

/// What tells a database from every other, however it is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    /// Of the files of the server, since they were made.
    system: i64,
    /// Number of the database there.
    database: i64,
    name: String,
}

impl PostgresDatabase {
    /// Connects with the default settings, as [`PostgresConfig::connect`] does.
    pub async fn connect(address: &str) -> Result<Self> {
        PostgresConfig::new().connect(address).await
    }

    /// The settings.
    pub fn config(&self) -> &PostgresConfig {
        &self.inner.config
    }

    /// The name of the database.
    pub fn name(&self) -> &str {
        &self.inner.identity.name
    }

    /// Whether the other handle is of the same database and the same schema of ours.
    pub fn is_same_database(&self, other: &Self) -> bool {
        self.inner.identity == other.inner.identity && self.inner.schema == other.inner.schema
    }

    /// Closes the connections of every clone of this handle, after the work that is running.
    pub async fn close(&self) {
        self.inner.pool.close().await;
    }

    /// A transaction that may write, for what others keep in this database beside our tables, with
    /// [`PostgresLedger::finish_on`](crate::PostgresLedger::finish_on) also for a commit that the ledger is told of in
    /// the same transaction. Each statement sees what was committed when it began. Names without a schema are looked up
    /// in the search path of the connection. Statements have to run without a name (`persistent(false)`), since a pooler
    /// may stand between.
    pub async fn begin_write(&self) -> Result<PostgresTransaction> {
        self.begin().await
    }

    /// The schema of our own tables.
    pub(crate) fn schema(&self) -> &Schema {
        &self.inner.schema
    }

    /// A transaction that may write; each statement sees what was committed when it began.
    pub(crate) async fn begin(&self) -> Result<Tx> {
        Tx::begin(&self.inner.pool, &self.inner.begin).await
    }

    /// A transaction that reads, and sees one moment from its first statement.
    pub(crate) async fn begin_read(&self) -> Result<Tx> {
        Tx::begin(&self.inner.pool, &self.inner.begin_read).await
    }

    /// A transaction that reads, and sees the moment of an exported snapshot; `None` where that has ended.
    pub(crate) async fn begin_in(&self, snapshot: &SnapshotId) -> Result<Option<Tx>> {
        // Before all else, since the settings are a statement that sees a moment of its own.
        let begin = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT '{snapshot}'; {}",
            self.inner.settings
        );
        match Tx::begin(&self.inner.pool, &begin).await {
            Ok(tx) => Ok(Some(tx)),
            Err(error) if SnapshotId::is_over(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// One that sees a moment from which on nobody detaches a partition of the tables, whose names are quoted.
    pub(crate) async fn begin_read_of(&self, tables: &BTreeSet<&str>) -> Result<Tx> {
        let mut tx = self.begin_read().await?;
        for table in tables {
            Statement::new(format!("LOCK TABLE ONLY {table} IN ACCESS SHARE MODE"))
                .execute(&mut tx, "read a partitioned table")
                .await?;
        }
        Ok(tx)
    }
}

impl fmt::Debug for PostgresDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("PostgresDatabase");
        debug.field("name", &self.name()).field("config", self.config()).finish_non_exhaustive()
    }
}
