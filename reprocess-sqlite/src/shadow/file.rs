//! The file of staged rows: one table for each staged set, and a manifest that says which are complete.
//!
//! It is written through a connection of its own, so that staging never takes the write lock of production, and is
//! attached, read only and under the name `staged`, to the connections of production.

use reprocess_core::domain::ids::{RunId, TableId};
use reprocess_core::ports::writer::{Staged, StagedId};
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::sqlite::{SqliteArguments, SqliteConnection};
use sqlx::{AssertSqlSafe, Row, Sqlite, SqlitePool};

use arrow_array::RecordBatch;

use crate::catalog::{from_json, to_json};
use crate::config::SqliteDatabase;
use crate::error::Doing;
use crate::layout::{Encoder, Layout};
use crate::sql::{Sql, ident};

const WHAT: &str = "stage rows";
const VERSION: i64 = 1;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS manifest (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    table_id TEXT NOT NULL,
    stamp TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    run TEXT NOT NULL,
    complete INTEGER NOT NULL,
    staged TEXT
);
CREATE INDEX IF NOT EXISTS manifest_by_stamp ON manifest (table_id, stamp, attempt);
CREATE INDEX IF NOT EXISTS manifest_by_run ON manifest (table_id, run);
PRAGMA user_version = 1;
";

/// How many values one insert binds, and how many rows it has, at the most.
const INSERT_VALUES: usize = 16_000;
const INSERT_ROWS: usize = 1_024;

/// Makes the manifest. Refuses a file in which a newer library staged.
pub(crate) async fn prepare(stage: &SqlitePool) -> Result<()> {
    let mut tx = stage.begin_with("BEGIN IMMEDIATE").await.doing("open the staged rows")?;
    let row = sqlx::query("PRAGMA user_version").fetch_one(&mut *tx).await.doing(WHAT)?;
    if row.try_get::<i64, _>(0).doing(WHAT)? > VERSION {
        return Err(Error::new(ErrorKind::Corrupt, "the staged rows are of a newer version")
            .with_advice("a newer release of reprocess wrote here; use that one"));
    }
    sqlx::raw_sql(TABLES).execute(&mut *tx).await.doing(WHAT)?;
    tx.commit().await.doing(WHAT)
}

/// The name of the table with the rows of a set.
pub(crate) fn rows_name(n: i64) -> String {
    format!("rows_{n}")
}

/// A set that is complete.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Its number.
    pub(crate) n: i64,
    pub(crate) staged: Staged,
}

/// Looks for a complete set, through a connection to production.
pub(crate) async fn find(
    connection: &mut SqliteConnection,
    table: &TableId,
    id: &StagedId,
) -> Result<Option<Found>> {
    let row = Sql::new("SELECT n, staged FROM staged.manifest WHERE complete = 1 AND table_id = ")
        .bind(table.as_str())
        .text(" AND stamp = ")
        .bind(to_json(&id.stamp)?)
        .text(" AND attempt = ")
        .bind(i64::from(id.attempt))
        .text(" ORDER BY n DESC LIMIT 1")
        .first(connection, WHAT)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let n = row.try_get(0).doing(WHAT)?;
    Ok(Some(Found { n, staged: from_json(&row.try_get::<String, _>(1).doing(WHAT)?)? }))
}

/// The complete sets of a run, by id.
pub(crate) async fn list(
    connection: &mut SqliteConnection,
    table: &TableId,
    run: &RunId,
) -> Result<Vec<StagedId>> {
    let rows = Sql::new("SELECT stamp, attempt FROM staged.manifest WHERE complete = 1 AND table_id = ")
        .bind(table.as_str())
        .text(" AND run = ")
        .bind(run.as_str())
        .rows(connection, WHAT)
        .await?;
    let mut ids = Vec::with_capacity(rows.len());
    for row in rows {
        let stamp = from_json(&row.try_get::<String, _>(0).doing(WHAT)?)?;
        ids.push(StagedId { stamp, attempt: row.try_get(1).doing(WHAT)? });
    }
    ids.sort();
    ids.dedup();
    Ok(ids)
}

/// A set that is being written.
#[derive(Debug)]
pub(crate) struct Staging<'a> {
    database: &'a SqliteDatabase,
    table: &'a TableId,
    id: &'a StagedId,
    layout: &'a Layout,
    n: i64,
}

impl<'a> Staging<'a> {
    /// Begins a set; what earlier attempts did not finish goes.
    pub(crate) async fn begin(
        database: &'a SqliteDatabase,
        table: &'a TableId,
        id: &'a StagedId,
        layout: &'a Layout,
    ) -> Result<Self> {
        let mut tx = database.begin_stage().await?;
        let stale = Sql::new(" AND complete = 0 AND attempt < ").bind(i64::from(id.attempt));
        remove(&mut tx, table, id, stale).await?;
        let row = Sql::new("INSERT INTO manifest (table_id, stamp, attempt, run, complete) VALUES (")
            .bind(table.as_str())
            .text(", ")
            .bind(to_json(&id.stamp)?)
            .text(", ")
            .bind(i64::from(id.attempt))
            .text(", ")
            .bind(id.stamp.run.as_str())
            .text(", 0) RETURNING n")
            .first(&mut tx, WHAT)
            .await?
            .ok_or_else(|| Error::internal("a staged set got no number"))?;
        let n = row.try_get(0).doing(WHAT)?;
        let columns = layout.definitions()?.join(", ");
        Sql::new(format!("CREATE TABLE {} ({columns})", rows_name(n))).execute(&mut tx, WHAT).await?;
        tx.commit().await.doing(WHAT)?;
        Ok(Self { database, table, id, layout, n })
    }

    pub(crate) fn n(&self) -> i64 {
        self.n
    }

    /// Adds rows in one transaction.
    pub(crate) async fn insert(&self, batches: &[RecordBatch]) -> Result<()> {
        let mut tx = self.database.begin_stage().await?;
        let width = self.layout.schema().fields().len().max(1);
        let rows = (INSERT_VALUES / width).clamp(1, INSERT_ROWS);
        for batch in batches {
            let encoder = Encoder::new(self.layout, batch)?;
            let mut from = 0;
            while from < batch.num_rows() {
                let to = batch.num_rows().min(from + rows);
                let mut arguments = SqliteArguments::default();
                for value in encoder.values(from..to)? {
                    value.add_to(&mut arguments)?;
                }
                let sql = AssertSqlSafe(self.insert_text(to - from, width));
                sqlx::query_with::<Sqlite, _>(sql, arguments).execute(&mut *tx).await.doing(WHAT)?;
                from = to;
            }
        }
        tx.commit().await.doing(WHAT)
    }

    fn insert_text(&self, rows: usize, width: usize) -> String {
        let row = format!("({})", vec!["?"; width].join(", "));
        let rows = vec![row.as_str(); rows].join(", ");
        format!("INSERT INTO {} ({}) VALUES {rows}", rows_name(self.n), self.layout.list(""))
    }

    /// Indexes the columns by which rows are matched.
    pub(crate) async fn index(&self, columns: &[String]) -> Result<()> {
        let columns: Vec<_> = columns.iter().map(|column| ident(column)).collect();
        let name = rows_name(self.n);
        let mut tx = self.database.begin_stage().await?;
        Sql::new(format!("CREATE INDEX {name}_keys ON {name} ({})", columns.join(", ")))
            .execute(&mut tx, WHAT)
            .await?;
        tx.commit().await.doing(WHAT)
    }

    /// Makes the set count, in place of an earlier one of its id.
    pub(crate) async fn complete(self, staged: &Staged) -> Result<()> {
        let mut tx = self.database.begin_stage().await?;
        let earlier =
            Sql::new(" AND n < ").bind(self.n).text(" AND attempt = ").bind(i64::from(self.id.attempt));
        remove(&mut tx, self.table, self.id, earlier).await?;
        let found = Sql::new("UPDATE manifest SET complete = 1, staged = ")
            .bind(to_json(staged)?)
            .text(" WHERE n = ")
            .bind(self.n)
            .execute(&mut tx, WHAT)
            .await?;
        if found == 0 {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "a later attempt has taken the place of this one",
            ));
        }
        tx.commit().await.doing(WHAT)
    }

    /// Removes what was written.
    pub(crate) async fn give_up(self) -> Result<()> {
        let mut tx = self.database.begin_stage().await?;
        remove(&mut tx, self.table, self.id, Sql::new(" AND n = ").bind(self.n)).await?;
        tx.commit().await.doing(WHAT)
    }
}

/// Removes sets that a process left behind which died after it had committed them.
pub(crate) async fn sweep(database: &SqliteDatabase, table: &TableId) -> Result<()> {
    let mut tx = database.begin_read().await?;
    let rows = Sql::new(
        "SELECT m.stamp, m.attempt FROM staged.manifest AS m
         CROSS JOIN main.reprocess_table AS r ON r.table_id = m.table_id
         CROSS JOIN main.reprocess_stamp AS s ON s.t = r.t AND s.stamp = m.stamp AND s.attempt = m.attempt
         WHERE m.table_id = ",
    )
    .bind(table.as_str())
    .rows(&mut tx, WHAT)
    .await?;
    drop(tx);
    for row in rows {
        let stamp = from_json(&row.try_get::<String, _>(0).doing(WHAT)?)?;
        discard(database, table, &StagedId { stamp, attempt: row.try_get(1).doing(WHAT)? }).await?;
    }
    Ok(())
}

/// Removes every set of an id.
pub(crate) async fn discard(database: &SqliteDatabase, table: &TableId, id: &StagedId) -> Result<()> {
    let mut tx = database.begin_stage().await?;
    remove(&mut tx, table, id, Sql::new(" AND attempt = ").bind(i64::from(id.attempt))).await?;
    tx.commit().await.doing(WHAT)
}

async fn remove(connection: &mut SqliteConnection, table: &TableId, id: &StagedId, which: Sql) -> Result<()> {
    let rows = Sql::new("DELETE FROM manifest WHERE table_id = ")
        .bind(table.as_str())
        .text(" AND stamp = ")
        .bind(to_json(&id.stamp)?)
        .then(which)
        .text(" RETURNING n")
        .rows(connection, WHAT)
        .await?;
    for row in rows {
        let n = row.try_get(0).doing(WHAT)?;
        Sql::new(format!("DROP TABLE IF EXISTS {}", rows_name(n))).execute(connection, WHAT).await?;
    }
    Ok(())
}
