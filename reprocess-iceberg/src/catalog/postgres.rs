//! The rows of a SQL catalog in a PostgreSQL database.

use std::any::Any;

use async_trait::async_trait;
use reprocess_core::ports::ledger::RunLedger;
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_postgres::{PostgresDatabase, PostgresLedger, PostgresTransaction};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnection;

use super::Told;
use super::sql::{Ended, Pointer, Pointers, Row, TABLES, statement};
use crate::error::Doing;

/// A catalog that does not know views has no column `iceberg_type`.
const ROW: &str = "SELECT metadata_location, to_jsonb(iceberg_tables) ->> 'iceberg_type' FROM iceberg_tables
    WHERE catalog_name = $1 AND table_namespace = $2 AND table_name = $3";
const HAS_TYPE: &str = "SELECT count(*) FROM pg_attribute
    WHERE attrelid = to_regclass('iceberg_tables') AND attname = 'iceberg_type' AND NOT attisdropped";

/// Those who make the tables at once wait for each other: `IF NOT EXISTS` does not.
const ONE_AT_A_TIME: &str = "SELECT pg_advisory_xact_lock(hashtextextended('reprocess iceberg_tables', 0))";

/// The rows in a database.
#[derive(Clone, Debug)]
pub(super) struct InPostgres {
    database: PostgresDatabase,
}

impl InPostgres {
    /// Makes the tables where the search path does not lead to them.
    pub(super) async fn open(database: PostgresDatabase) -> Result<Self> {
        let mut tx = database.begin_write().await?;
        if !are_there(&mut tx).await? {
            let what = "make the catalog";
            sqlx::query(ONE_AT_A_TIME).persistent(false).execute(&mut *tx).await.doing(what)?;
            for (_, create) in TABLES {
                sqlx::query(create).persistent(false).execute(&mut *tx).await.doing(what)?;
            }
            tx.commit().await?;
        } else {
            tx.rollback().await?;
        }
        Ok(Self { database })
    }

    fn ledger<'a>(&self, ledger: &'a dyn RunLedger) -> Option<&'a PostgresLedger> {
        let any: &dyn Any = ledger;
        let here = any.downcast_ref::<PostgresLedger>();
        here.filter(|ledger| ledger.database().is_same_database(&self.database))
    }

    /// Checks the fence, changes the row, and tells the ledger last, which lets one commit after the other do so; `Some`
    /// where nothing is to be committed.
    async fn swap_in(
        &self,
        tx: &mut PostgresTransaction,
        row: &Row<'_>,
        (from, to): (&str, &str),
        told: Option<Told<'_>>,
    ) -> Result<Option<Ended>> {
        let ledger = match &told {
            Some(told) => Some((self.ledger(told.ledger).ok_or_else(not_here)?, told)),
            None => None,
        };
        if let Some((ledger, Told { fence: Some(fence), .. })) = ledger
            && !ledger.fence_is_current_on(tx, fence).await?
        {
            return Ok(Some(Ended::Fenced));
        }
        let moved = sqlx::query(statement::MOVE)
            .persistent(false)
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
        match ledger.finish_on(tx, told.commit, told.entries).await {
            // The ledger has given the task to a later attempt.
            Err(error) if error.kind() == ErrorKind::State => Ok(Some(Ended::Fenced)),
            finished => finished.map(|()| None),
        }
    }
}

#[async_trait]
impl Pointers for InPostgres {
    async fn pointer(&self, row: &Row<'_>) -> Result<Pointer> {
        let mut tx = self.database.begin_write().await?;
        let pointer = pointer(&mut tx, row, "").await?;
        tx.rollback().await?;
        Ok(pointer)
    }

    async fn settled(&self, row: &Row<'_>) -> Result<Pointer> {
        // A transaction that changed the row holds its lock until it ends, also one whose client has gone.
        let mut tx = self.database.begin_write().await?;
        let pointer = pointer(&mut tx, row, "FOR UPDATE").await?;
        tx.rollback().await?;
        Ok(pointer)
    }

    async fn folder(&self, row: &Row<'_>) -> Result<Option<String>> {
        let mut tx = self.database.begin_write().await?;
        let folder = sqlx::query_scalar(statement::FOLDER)
            .persistent(false)
            .bind(row.catalog)
            .bind(&row.namespace)
            .fetch_optional(&mut *tx)
            .await
            .doing("read a namespace of the catalog")?;
        tx.rollback().await?;
        Ok(folder)
    }

    async fn add(&self, row: &Row<'_>, to: &str) -> Result<Ended> {
        let what = "add a table to the catalog";
        let mut tx = self.database.begin_write().await?;
        let add =
            sqlx::query(statement::INSERT).bind(row.catalog).bind(&row.namespace).bind(row.table).bind(to);
        if add.persistent(false).execute(&mut *tx).await.doing(what)?.rows_affected() == 0 {
            tx.rollback().await?;
            return Ok(Ended::NotAsExpected);
        }
        let has_type = sqlx::query_scalar(HAS_TYPE).persistent(false);
        let has_type: i64 = has_type.fetch_one(&mut *tx).await.doing(what)?;
        if has_type > 0 {
            let mark = sqlx::query(statement::MARK).bind(row.catalog).bind(&row.namespace).bind(row.table);
            mark.persistent(false).execute(&mut *tx).await.doing(what)?;
        }
        let namespace = sqlx::query(statement::NAMESPACE).bind(row.catalog).bind(&row.namespace);
        namespace.persistent(false).execute(&mut *tx).await.doing(what)?;
        Ok(ended(tx.commit().await))
    }

    async fn swap(&self, row: &Row<'_>, from: &str, to: &str, told: Option<Told<'_>>) -> Result<Ended> {
        let mut tx = self.database.begin_write().await?;
        match self.swap_in(&mut tx, row, (from, to), told).await? {
            Some(refused) => tx.rollback().await.map(|()| refused),
            None => Ok(ended(tx.commit().await)),
        }
    }

    fn holds(&self, ledger: &dyn RunLedger) -> bool {
        self.ledger(ledger).is_some()
    }
}

async fn are_there(connection: &mut PgConnection) -> Result<bool> {
    let text = "SELECT to_regclass($1) IS NOT NULL AND to_regclass($2) IS NOT NULL";
    let query = sqlx::query_scalar(text).persistent(false).bind(TABLES[0].0).bind(TABLES[1].0);
    query.fetch_one(connection).await.doing("look for the catalog")
}

async fn pointer(connection: &mut PgConnection, row: &Row<'_>, lock: &str) -> Result<Pointer> {
    let found: Option<(Option<String>, Option<String>)> =
        sqlx::query_as(AssertSqlSafe(format!("{ROW} {lock}")))
            .persistent(false)
            .bind(row.catalog)
            .bind(&row.namespace)
            .bind(row.table)
            .fetch_optional(connection)
            .await
            .doing("read a table of the catalog")?;
    found.map_or(Ok(Pointer::None), |(location, kind)| Pointer::of(location, kind.as_deref()))
}

fn ended(committed: Result<()>) -> Ended {
    match committed {
        Ok(()) => Ended::Committed,
        Err(error) => Ended::Unknown(error),
    }
}

fn not_here() -> Error {
    Error::internal("a ledger that is not in the database of the catalog cannot be told in its transaction")
}
