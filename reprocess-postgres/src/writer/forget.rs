//! Freeing what commits kept: when it is asked for, and when it is old.

use reprocess_core::Result;
use reprocess_core::domain::slice::Kept;
use sqlx::PgConnection;

use super::{PostgresTable, keep};
use crate::catalog::Managed;
use crate::sql::Statement;

const WHAT: &str = "free kept rows";

/// Frees the rows that a commit kept.
pub(super) async fn forget(table: &PostgresTable, kept: &Kept) -> Result<()> {
    let number = keep::number_of(kept, &table.spec().id)?;
    let mut tx = table.database().begin().await?;
    let Some(managed) = table.managed(&mut tx).await? else { return tx.rollback().await };
    free(&mut tx, &managed, number).await?;
    tx.commit().await
}

/// Frees what was kept for longer than the table says, by the clock of the server.
pub(super) async fn expire(table: &PostgresTable) -> Result<()> {
    let Some(kept_for) = table.kept_for() else { return Ok(()) };
    let mut tx = table.database().begin().await?;
    let Some(managed) = table.managed(&mut tx).await? else { return tx.rollback().await };
    // Another that does the same is left alone with it.
    let old: Vec<(i64,)> = managed
        .schema
        .sql(
            "WITH old AS (
                 SELECT kept FROM reprocess.table_kept
                 WHERE t = $1 AND kept_at < clock_timestamp() - $2 * interval '1 second' FOR UPDATE SKIP LOCKED)
             SELECT DISTINCT kept FROM old",
        )
        .bind(managed.t)
        .bind(i64::try_from(kept_for.as_secs()).unwrap_or(i64::MAX))
        .all(&mut tx, WHAT)
        .await?;
    for (number,) in old {
        free(&mut tx, &managed, number).await?;
    }
    tx.commit().await
}

async fn free(connection: &mut PgConnection, managed: &Managed, number: i64) -> Result<()> {
    for found in keep::find(connection, managed, number, "FOR UPDATE").await? {
        let free = if found.alone {
            Statement::new(format!("DROP TABLE {}", found.slot.rows))
        } else {
            Statement::new(format!("DELETE FROM {} WHERE reprocess_kept = $1", found.slot.rows)).bind(number)
        };
        free.execute(connection, WHAT).await?;
    }
    managed
        .schema
        .sql(
            "WITH gone AS (DELETE FROM reprocess.table_kept WHERE t = $1 AND kept = $2 RETURNING kept_rows)
             DELETE FROM reprocess.table_kept_rows WHERE alone AND kept_rows IN (SELECT kept_rows FROM gone)",
        )
        .bind(managed.t)
        .bind(number)
        .execute(connection, WHAT)
        .await?;
    Ok(())
}
