//! The database file, its settings and its connections.

mod open;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use reprocess_core::Result;
use serde::{Deserialize, Serialize};
use sqlx::pool::PoolConnection;
use sqlx::{Sqlite, SqlitePool, Transaction};

use crate::error::{Doing, is_busy};

/// What a commit survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// A crash of the machine: each commit waits for the disk (`synchronous = FULL`).
    #[default]
    Full,
    /// A crash of the process. After a crash of the machine the last commits may be gone, data and ledger alike, but
    /// the file is sound (`synchronous = NORMAL`).
    Normal,
}

/// Settings of a database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SqliteConfig {
    /// How long one statement waits for a lock that another process holds before it is tried again, in milliseconds.
    pub busy_timeout_ms: u64,
    /// How long a lock is waited for over all tries, in milliseconds; after it the error is `Unavailable`.
    pub lock_timeout_ms: u64,
    /// What a commit survives.
    pub durability: Durability,
    /// How many reads run at a time at the most; each stream of rows holds one.
    pub readers: u32,
    /// How many rows a batch has at the most.
    pub batch_rows: usize,
    /// How many pages the file may have, where it is to be limited; a page has 4,096 bytes.
    pub max_pages: Option<u32>,
    /// Whether a file that is there already keeps its journal mode; see
    /// [`with_journal_mode_kept`](Self::with_journal_mode_kept).
    pub keeps_journal_mode: bool,
}

impl Default for SqliteConfig {
    fn default() -> Self {
        Self {
            busy_timeout_ms: 60_000,
            lock_timeout_ms: 600_000,
            durability: Durability::Full,
            readers: 256,
            batch_rows: 8_192,
            max_pages: None,
            keeps_journal_mode: false,
        }
    }
}

impl SqliteConfig {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long one statement waits for a lock before it is tried again.
    #[must_use]
    pub fn with_busy_timeout_ms(mut self, milliseconds: u64) -> Self {
        self.busy_timeout_ms = milliseconds;
        self
    }

    /// Sets how long a lock is waited for over all tries.
    #[must_use]
    pub fn with_lock_timeout_ms(mut self, milliseconds: u64) -> Self {
        self.lock_timeout_ms = milliseconds;
        self
    }

    /// Sets what a commit survives.
    #[must_use]
    pub fn with_durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets how many rows a batch has at the most.
    #[must_use]
    pub fn with_batch_rows(mut self, rows: usize) -> Self {
        self.batch_rows = rows.max(1);
        self
    }

    /// Limits how many pages the file may have.
    #[must_use]
    pub fn with_max_pages(mut self, pages: u32) -> Self {
        self.max_pages = Some(pages);
        self
    }

    /// Leaves the journal mode of a file that is there already as it is, for one that other programs made and may have
    /// open: to switch it asks for a lock that they hold. Without a write-ahead log readers and writers wait for each
    /// other. A file that is made here has one.
    #[must_use]
    pub fn with_journal_mode_kept(mut self) -> Self {
        self.keeps_journal_mode = true;
        self
    }

    /// Opens the file, and makes it where there is none.
    pub async fn open(self, path: impl AsRef<Path>) -> Result<SqliteDatabase> {
        open::database(self, path.as_ref()).await
    }
}

/// One SQLite file with tables, and with the ledger where it is kept there. A handle is cheap to clone.
///
/// Several processes may open the same file. A lock that another holds is waited for. Beside the file stands
/// `<file>.staged`, which holds rows that are staged and not yet committed, so that staging never takes the write lock
/// of production; move and back up both together, and neither without its `-wal` file while it is in use.
#[derive(Clone, Debug)]
pub struct SqliteDatabase {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: SqliteConfig,
    path: PathBuf,
    /// One connection, so that writers of this process wait in order instead of for the lock of the file.
    write: SqlitePool,
    read: SqlitePool,
    /// One connection to the file of staged rows.
    stage: SqlitePool,
}

impl SqliteDatabase {
    /// Opens the file with the default settings, and makes it where there is none.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        SqliteConfig::new().open(path).await
    }

    /// The file, as an absolute path.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The settings.
    pub fn config(&self) -> &SqliteConfig {
        &self.inner.config
    }

    /// Whether the other handle is of the same file.
    pub fn is_same_file(&self, other: &Self) -> bool {
        self.inner.path == other.inner.path
    }

    /// Closes the connections of every clone of this handle, after the reads that are running.
    pub async fn close(&self) {
        self.inner.read.close().await;
        self.inner.write.close().await;
        self.inner.stage.close().await;
    }

    /// A transaction that holds the write lock from its start, so that it never has to be given up for another's. For
    /// what others keep in this file beside our tables, with
    /// [`SqliteLedger::finish_in`](crate::SqliteLedger::finish_in) also for a commit that the ledger is told of in the
    /// same transaction.
    pub async fn begin_write(&self) -> Result<Transaction<'static, Sqlite>> {
        self.waiting("begin a write", || self.inner.write.begin_with("BEGIN IMMEDIATE")).await
    }

    /// A transaction that sees one moment, from its first statement, and cannot write.
    pub async fn begin_read(&self) -> Result<Transaction<'static, Sqlite>> {
        self.waiting("begin a read", || self.inner.read.begin()).await
    }

    /// A connection that cannot write.
    #[allow(dead_code, reason = "for reads of one statement")]
    pub(crate) async fn read(&self) -> Result<PoolConnection<Sqlite>> {
        self.waiting("open a connection", || self.inner.read.acquire()).await
    }

    /// A transaction on the file of staged rows.
    #[allow(dead_code, reason = "used by the writer")]
    pub(crate) async fn begin_stage(&self) -> Result<Transaction<'static, Sqlite>> {
        self.waiting("begin to stage", || self.inner.stage.begin_with("BEGIN IMMEDIATE")).await
    }

    async fn waiting<T, F, R>(&self, what: &str, attempt: F) -> Result<T>
    where
        F: FnMut() -> R,
        R: Future<Output = Result<T, sqlx::Error>>,
    {
        attempt.retry(backoff(&self.inner.config)).when(is_busy).await.doing(what)
    }
}

/// Short waits first; after the lock timeout the last error surfaces.
fn backoff(config: &SqliteConfig) -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(5))
        .with_max_delay(Duration::from_millis(500))
        .with_total_delay(Some(Duration::from_millis(config.lock_timeout_ms)))
        .with_jitter()
        .without_max_times()
}
