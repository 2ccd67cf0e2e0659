//! Opening the file: connections, the attached file of staged rows, and the version of what is stored.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use backon::Retryable;
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Row, SqlitePool};

use super::{Durability, Inner, SqliteConfig, SqliteDatabase, backoff};
use crate::error::{Doing, is_busy};

const META: &str = "CREATE TABLE IF NOT EXISTS reprocess_meta (
    component TEXT PRIMARY KEY NOT NULL,
    version INTEGER NOT NULL
) WITHOUT ROWID";

/// What a connection that writes holds in memory, in the notation of SQLite. With its default of 2 MiB a commit of a
/// large partition writes the pages of the index again and again.
const WRITE_CACHE_KIB: &str = "-16384";

pub(super) async fn database(config: SqliteConfig, path: &Path) -> Result<SqliteDatabase> {
    let path = absolute(path)?;
    let staged = beside(&path, ".staged");
    let connect = |file: &Path| {
        SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .busy_timeout(Duration::from_millis(config.busy_timeout_ms.min(3_600_000)))
            .foreign_keys(true)
            .row_buffer_size(512)
            .synchronous(match config.durability {
                Durability::Full => SqliteSynchronous::Full,
                Durability::Normal => SqliteSynchronous::Normal,
            })
    };
    let writing = |file: &Path| {
        let connect = connect(file).pragma("cache_size", WRITE_CACHE_KIB);
        if config.keeps_journal_mode && is_there(file) {
            connect
        } else {
            connect.journal_mode(SqliteJournalMode::Wal)
        }
    };
    // The staged file comes first: the connections below attach it, and would not make it.
    let stage = open(&config, pool(1), writing(&staged)).await?;
    crate::shadow::prepare(&stage).await.map_err(|e| e.with_context("file", staged.display()))?;
    let attach = attached(&staged)?;
    let mut main = writing(&path);
    if let Some(pages) = config.max_pages {
        main = main.pragma("max_page_count", pages.to_string());
    }
    let write = open(&config, attaching(pool(1), &attach), main).await?;
    let reading = connect(&path).pragma("query_only", "ON");
    let read = open(&config, attaching(pool(config.readers), &attach), reading).await?;
    let path = path.canonicalize().unwrap_or(path);
    let database = SqliteDatabase { inner: Arc::new(Inner { config, path, write, read, stage }) };
    database.migrate("tables", crate::catalog::STEPS).await?;
    Ok(database)
}

impl SqliteDatabase {
    /// Brings the tables of a component to the newest version: step `n` leads from version `n` to `n + 1`. Refuses a
    /// file in which a newer library wrote.
    pub(crate) async fn migrate(&self, component: &str, steps: &[&'static str]) -> Result<()> {
        let mut tx = self.begin_write().await?;
        sqlx::query(META).execute(&mut *tx).await.doing("make its tables")?;
        let row = sqlx::query("SELECT version FROM reprocess_meta WHERE component = ?1")
            .bind(component)
            .fetch_optional(&mut *tx)
            .await
            .doing("read its version")?;
        let version: i64 = row.map_or(Ok(0), |row| row.try_get(0)).doing("read its version")?;
        let newest = i64::try_from(steps.len()).unwrap_or(i64::MAX);
        let done = usize::try_from(version).ok().filter(|done| *done <= steps.len()).ok_or_else(|| {
            Error::new(
                ErrorKind::Corrupt,
                format!("the file holds {component} of version {version}, and this library knows {newest}"),
            )
            .with_context("file", self.path().display())
            .with_advice("a newer release of reprocess wrote here; use that one")
        })?;
        for step in &steps[done..] {
            sqlx::raw_sql(*step).execute(&mut *tx).await.doing("make its tables")?;
        }
        sqlx::query(
            "INSERT INTO reprocess_meta (component, version) VALUES (?1, ?2)
             ON CONFLICT (component) DO UPDATE SET version = excluded.version",
        )
        .bind(component)
        .bind(newest)
        .execute(&mut *tx)
        .await
        .doing("write its version")?;
        tx.commit().await.doing("make its tables")
    }
}

fn pool(connections: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(connections)
        .min_connections(0)
        .acquire_timeout(Duration::from_secs(30))
        .idle_timeout(Duration::from_secs(60))
        .max_lifetime(None)
        .test_before_acquire(false)
}

/// Switching a new file to WAL asks for a lock that SQLite does not wait for, so opening is tried again.
async fn open(
    config: &SqliteConfig,
    pool: SqlitePoolOptions,
    connect: SqliteConnectOptions,
) -> Result<SqlitePool> {
    let file = connect.get_filename().display().to_string();
    (|| pool.clone().connect_with(connect.clone()))
        .retry(backoff(config))
        .when(is_busy)
        .await
        .doing("open the database")
        .map_err(|e| e.with_context("file", file))
}

fn attaching(pool: SqlitePoolOptions, uri: &str) -> SqlitePoolOptions {
    let uri: Arc<str> = uri.into();
    pool.after_connect(move |connection, _| {
        let uri = Arc::clone(&uri);
        Box::pin(async move {
            sqlx::query("ATTACH DATABASE ?1 AS staged").bind(uri.to_string()).execute(connection).await?;
            Ok(())
        })
    })
}

/// Read only: `BEGIN IMMEDIATE` takes the write lock of every attached file that is writable.
fn attached(file: &Path) -> Result<String> {
    let path = file.to_str().ok_or_else(|| not_utf8(file))?.replace('\\', "/");
    let root = if path.starts_with('/') { "" } else { "/" };
    let mut uri = format!("file:{root}");
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b':' => {
                uri.push(char::from(byte));
            }
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri.push_str("?mode=ro");
    Ok(uri)
}

/// An empty file is none: its journal mode is not set yet.
fn is_there(file: &Path) -> bool {
    file.metadata().is_ok_and(|file| file.len() > 0)
}

fn absolute(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path)
        .map_err(|e| Error::invalid(format!("`{}` is no path of a file", path.display())).with_source(e))?;
    let resolved = absolute.canonicalize().unwrap_or_else(|_| {
        let folder = absolute.parent().and_then(|folder| folder.canonicalize().ok());
        folder.zip(absolute.file_name()).map_or_else(|| absolute.clone(), |(folder, name)| folder.join(name))
    });
    if resolved.to_str().is_none() {
        return Err(not_utf8(&resolved));
    }
    Ok(resolved)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(suffix);
    PathBuf::from(name)
}

fn not_utf8(path: &Path) -> Error {
    Error::invalid(format!("the path `{}` is not UTF-8", path.display()))
}
