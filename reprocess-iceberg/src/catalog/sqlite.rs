//! The rows of a SQL catalog in a SQLite file.

use std::any::Any;

use async_trait::async_trait;
use reprocess_core::ports::ledger::RunLedger;
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_sqlite::{SqliteDatabase, SqliteLedger};
use sqlx::sqlite::SqliteConnection;
use sqlx::{Sqlite, Transaction};

use super::Told;
use super::sql::{Ended, Pointer, Pointers, Row, TABLES, statement};
use crate::error::Doing;

const ROW: &str = "SELECT metadata_location, iceberg_type FROM iceberg_tables
    WHERE catalog_name = $1 AND table_namespace = $2 AND table_name = $3";
/// Of a catalog that does not know views.
const ROW_WITHOUT_TYPE: &str = "SELECT metadata_location, NULL FROM iceberg_tables
    WHERE catalog_name = $1 AND table_namespace = $2 AND table_name = $3";
const HAS_TYPE: &str = "SELECT count(*) FROM pragma_table_info('iceberg_tables') WHERE name = 'iceberg_type'";

/// The rows in a file.
#[derive(Clone, Debug)]
pub(super) struct InSqlite {
    database: SqliteDatabase,
}

impl InSqlite {
    /// Makes the tables where they are absent.
    pub(super) async fn open(database: SqliteDatabase) -> Result<Self> {
        let mut read = database.begin_read().await?;
        let found: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ($1, $2)",
        )
        .bind(TABLES[0].0)
        .bind(TABLES[1].0)
        .fetch_one(&mut *read)
        .await
        .doing("look for the catalog")?;
        drop(read);
        if found < 2 {
            let mut tx = database.begin_write().await?;
            for (_, create) in TABLES {
                sqlx::query(create).execute(&mut *tx).await.doing("make the catalog")?;
            }
            tx.commit().await.doing("make the catalog")?;
        }
        Ok(Self { database })
    }

    fn ledger<'a>(&self, ledger: &'a dyn RunLedger) -> Option<&'a SqliteLedger> {
        let any: &dyn Any = ledger;
        any.downcast_ref::<SqliteLedger>().filter(|ledger| ledger.database().is_same_file(&self.database))
    }

    /// Checks the fence, changes the row, and tells the ledger; `Some` where nothing is to be committed.
    async fn swap_in(
        &self,
        tx: &mut Transaction<'static, Sqlite>,
        row: &Row<'_>,
        (from, to): (&str, &str),
        told: Option<Told<'_>>,
    ) -> Result<Option<Ended>> {
        let ledger = match &told {
            Some(told) => Some((self.ledger(told.ledger).ok_or_else(not_here)?, told)),
            None => None,
        };
        if let Some((ledger, Told { fence: Some(fence), .. })) = ledger
            && !ledger.fence_is_current_in(tx, fence).await?
        {
            return Ok(Some(Ended::Fenced));
        }
        let moved = sqlx::query(statement::MOVE)
            .bind(to)
            .bind(from)
            .bind(row.catalog)
            .bind(&row.namespace)
            .bind(row.table)
            .execute(&mut **tx)
            .await
            .doing("move a table of the catalog")?;
        if moved.rows_affected() == 0 {
            return Ok(Some(Ended::NotAsExpected));
        }
        let Some((ledger, told)) = ledger else { return Ok(None) };
        match ledger.finish_in(tx, told.commit, told.entries).await {
            // The ledger has given the task to a later attempt.
            Err(error) if error.kind() == ErrorKind::State => Ok(Some(Ended::Fenced)),
            finished => finished.map(|()| None),
        }
    }
}

#[async_trait]
impl Pointers for InSqlite {
    async fn pointer(&self, row: &Row<'_>) -> Result<Pointer> {
        let mut tx = self.database.begin_read().await?;
        pointer(&mut tx, row).await
    }

    async fn settled(&self, row: &Row<'_>) -> Result<Pointer> {
        // Whoever has the write lock is alone.
        let mut tx = self.database.begin_write().await?;
        pointer(&mut tx, row).await
    }

    async fn folder(&self, row: &Row<'_>) -> Result<Option<String>> {
        let mut tx = self.database.begin_read().await?;
        sqlx::query_scalar(statement::FOLDER)
            .bind(row.catalog)
            .bind(&row.namespace)
            .fetch_optional(&mut *tx)
            .await
            .doing("read a namespace of the catalog")
    }

    async fn add(&self, row: &Row<'_>, to: &str) -> Result<Ended> {
        let what = "add a table to the catalog";
        let mut tx = self.database.begin_write().await?;
        let add =
            sqlx::query(statement::INSERT).bind(row.catalog).bind(&row.namespace).bind(row.table).bind(to);
        if add.execute(&mut *tx).await.doing(what)?.rows_affected() == 0 {
            return Ok(Ended::NotAsExpected);
        }
        if has_type(&mut tx).await? {
            let mark = sqlx::query(statement::MARK).bind(row.catalog).bind(&row.namespace).bind(row.table);
            mark.execute(&mut *tx).await.doing(what)?;
        }
        let namespace = sqlx::query(statement::NAMESPACE).bind(row.catalog).bind(&row.namespace);
        namespace.execute(&mut *tx).await.doing(what)?;
        Ok(ended(tx.commit().await))
    }

    async fn swap(&self, row: &Row<'_>, from: &str, to: &str, told: Option<Told<'_>>) -> Result<Ended> {
        let mut tx = self.database.begin_write().await?;
        match self.swap_in(&mut tx, row, (from, to), told).await? {
            Some(refused) => Ok(refused),
            None => Ok(ended(tx.commit().await)),
        }
    }

    fn holds(&self, ledger: &dyn RunLedger) -> bool {
        self.ledger(ledger).is_some()
    }
}

/// What the row points to, in a transaction: others may add the column between two.
async fn pointer(connection: &mut SqliteConnection, row: &Row<'_>) -> Result<Pointer> {
    let what = "read a table of the catalog";
    let statement = if has_type(connection).await? { ROW } else { ROW_WITHOUT_TYPE };
    let found: Option<(Option<String>, Option<String>)> = sqlx::query_as(statement)
        .bind(row.catalog)
        .bind(&row.namespace)
        .bind(row.table)
        .fetch_optional(connection)
        .await
        .doing(what)?;
    found.map_or(Ok(Pointer::None), |(location, kind)| Pointer::of(location, kind.as_deref()))
}

/// Whether the catalog knows views.
async fn has_type(connection: &mut SqliteConnection) -> Result<bool> {
    let found: i64 = sqlx::query_scalar(HAS_TYPE).fetch_one(connection).await.doing("look at the catalog")?;
    Ok(found > 0)
}

fn ended(committed: Result<(), sqlx::Error>) -> Ended {
    match committed.doing("commit a change of the catalog") {
        Ok(()) => Ended::Committed,
        Err(error) => Ended::Unknown(error),
    }
}

fn not_here() -> Error {
    Error::internal("a ledger that is not in the file of the catalog cannot be told in its transaction")
}
