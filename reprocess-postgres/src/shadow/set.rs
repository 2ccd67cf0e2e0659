//! Staged sets: an unlogged table for the rows of each, and a list that says which are complete.
//!
//! The server empties unlogged tables after it crashed. The list stays, so a set counts as intact only where its rows are
//! there.

use reprocess_core::domain::ids::RunId;
use reprocess_core::ports::writer::{Staged, StagedId, StampId};
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::PgConnection;

use super::waiting::{self, Waiting};
use crate::catalog::{Exclusive, Managed, from_json, to_json};
use crate::config::PostgresDatabase;
use crate::error::Doing;
use crate::layout::{Kind, Layout, quoted};
use crate::schema::Schema;
use crate::sql::Statement;
use crate::writer::{PostgresTable, stamp_digest};

const WHAT: &str = "stage rows";

/// How many bytes one message of a COPY has at the most.
const MESSAGE_BYTES: usize = 1 << 20;

/// How long the removal of tables that nobody needs waits for one that reads them.
const SWEEP_WAIT: &str = "SET LOCAL lock_timeout = '50ms'";

/// The name of the table with the rows of a set, for statements.
pub(crate) fn rows_name(schema: &Schema, n: i64) -> String {
    schema.text(&format!("reprocess.stage_{n}"))
}

/// A set that is complete.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Its number.
    pub(crate) n: i64,
    pub(crate) staged: Staged,
    pub(crate) layout: Layout,
    /// The table of its rows, for statements.
    pub(crate) rows: String,
    pub(crate) row_count: i64,
    /// How it takes the place of a partition, where it can.
    pub(crate) waiting: Option<Waiting>,
}

/// What is read of a set.
type Row = (i64, String, String, i64, Option<String>, Option<String>);

/// Looks for a complete set whose rows are there.
pub(crate) async fn find(
    connection: &mut PgConnection,
    table: &PostgresTable,
    id: &StagedId,
) -> Result<Option<Found>> {
    look(connection, table, id, "").await
}

/// Looks for one, and keeps others from removing it until the transaction ends.
pub(crate) async fn take(
    connection: &mut PgConnection,
    table: &PostgresTable,
    id: &StagedId,
) -> Result<Option<Found>> {
    look(connection, table, id, "FOR UPDATE").await
}

async fn look(
    connection: &mut PgConnection,
    table: &PostgresTable,
    id: &StagedId,
    lock: &str,
) -> Result<Option<Found>> {
    let schema = table.database().schema();
    let row: Option<Row> = schema
        .sql(&format!(
            "SELECT n, staged, layout, row_count, waiting, built::text FROM reprocess.table_staged
             WHERE complete AND digest = $1 AND attempt = $2 AND table_id = $3 ORDER BY n DESC LIMIT 1 {lock}"
        ))
        .bind(stamp_digest(&id.stamp)?)
        .bind(id.attempt)
        .bind(table.spec().id.as_str())
        .first(connection, WHAT)
        .await?;
    let Some((n, staged, layout, row_count, waiting, built)) = row else { return Ok(None) };
    let (staged, layout) = (from_json(&staged)?, from_json(&layout)?);
    let rows = rows_name(schema, n);
    let (there,): (bool,) = Statement::new("SELECT to_regclass($1) IS NOT NULL")
        .bind(rows.as_str())
        .one(connection, WHAT)
        .await?;
    let intact = there && (row_count == 0 || has_rows(connection, &rows).await?);
    let waiting = match waiting.zip(built) {
        Some((place, built)) => Some(Waiting { place: from_json(&place)?, built }),
        None => None,
    };
    Ok(intact.then_some(Found { n, staged, layout, rows, row_count, waiting }))
}

async fn has_rows(connection: &mut PgConnection, rows: &str) -> Result<bool> {
    let (any,): (bool,) =
        Statement::new(format!("SELECT EXISTS (SELECT 1 FROM {rows})")).one(connection, WHAT).await?;
    Ok(any)
}

/// The complete sets of a run that are intact, by id.
pub(crate) async fn list(
    connection: &mut PgConnection,
    table: &PostgresTable,
    run: &RunId,
) -> Result<Vec<StagedId>> {
    let rows: Vec<(String, i64)> = table
        .database()
        .schema()
        .sql(
            "SELECT DISTINCT stamp, attempt FROM reprocess.table_staged
             WHERE complete AND table_id = $1 AND run = $2",
        )
        .bind(table.spec().id.as_str())
        .bind(run.as_str())
        .all(connection, WHAT)
        .await?;
    let mut ids = Vec::with_capacity(rows.len());
    for (stamp, attempt) in rows {
        let attempt = u32::try_from(attempt).map_err(|_| Error::internal("an attempt is no small number"))?;
        let id = StagedId { stamp: from_json::<StampId>(&stamp)?, attempt };
        if find(connection, table, &id).await?.is_some() {
            ids.push(id);
        }
    }
    ids.sort();
    Ok(ids)
}

/// A set that is being written.
#[derive(Debug)]
pub(crate) struct Staging<'a> {
    table: &'a PostgresTable,
    id: &'a StagedId,
    layout: &'a Layout,
    place: Option<&'a (Managed, Exclusive)>,
    n: i64,
    rows: String,
}

impl<'a> Staging<'a> {
    /// Begins a set, one that can take the place of a partition where it is given; what earlier attempts did not finish
    /// goes.
    pub(crate) async fn begin(
        table: &'a PostgresTable,
        id: &'a StagedId,
        layout: &'a Layout,
        place: Option<&'a (Managed, Exclusive)>,
    ) -> Result<Self> {
        let schema = table.database().schema();
        let mut tx = table.database().begin().await?;
        strike(&mut tx, table, id, "NOT complete AND attempt < $3", i64::from(id.attempt)).await?;
        let (n,): (i64,) = schema
            .sql(
                "INSERT INTO reprocess.table_staged (table_id, digest, stamp, attempt, run, complete, layout, waiting)
                 VALUES ($1, $2, $3, $4, $5, false, $6, $7) RETURNING n",
            )
            .bind(table.spec().id.as_str())
            .bind(stamp_digest(&id.stamp)?)
            .bind(to_json(&id.stamp)?)
            .bind(id.attempt)
            .bind(id.stamp.run.as_str())
            .bind(to_json(layout)?)
            .bind(place.map(|(_, place)| to_json(place)).transpose()?)
            .one(&mut tx, WHAT)
            .await?;
        let rows = rows_name(schema, n);
        match place {
            Some((_, place)) => waiting::create(&mut tx, &rows, place).await?,
            None => create(&mut tx, &rows, layout).await?,
        }
        tx.commit().await?;
        // An attempt before this one may have died; else what there is to remove goes with the commit.
        if id.attempt > 1 {
            sweep(table.database()).await;
        }
        Ok(Self { table, id, layout, place, n, rows })
    }

    pub(crate) fn rows(&self) -> &str {
        &self.rows
    }

    /// Adds the rows of a body of COPY in one transaction, beside what the caller does meanwhile.
    pub(crate) fn copy(&self, body: Vec<u8>, rows: u64) -> impl Future<Output = Result<()>> + Send + use<> {
        let copy = format!("COPY {} ({}) FROM STDIN (FORMAT binary)", self.rows, self.layout.list(""));
        let database = self.table.database().clone();
        async move {
            let mut tx = database.begin().await?;
            let mut copying = tx.copy_in_raw(&copy).await.doing(WHAT)?;
            for message in body.chunks(MESSAGE_BYTES) {
                copying.send(message).await.doing(WHAT)?;
            }
            let arrived = copying.finish().await.doing(WHAT)?;
            if arrived != rows {
                return Err(Error::internal(format!("{arrived} of {rows} rows were copied")));
            }
            tx.commit().await
        }
    }

    /// Gives every column its type. Refuses texts that PostgreSQL would store as others.
    pub(crate) async fn typed(&self) -> Result<()> {
        let texts: Vec<_> = self.layout.columns().filter(|(_, store)| store.kind == Kind::Other).collect();
        if texts.is_empty() {
            return Ok(());
        }
        let mut tx = self.table.database().begin().await?;
        for (field, store) in texts {
            let (column, kind) = (quoted(field.name()), &store.definition);
            let what = format!("take the texts of column `{}` for {kind}", field.name());
            let changed: Option<(String, String)> = Statement::new(format!(
                "SELECT {column}, {column}::{kind}::text FROM {} WHERE {column}::{kind}::text <> {column} LIMIT 1",
                self.rows
            ))
            .first(&mut tx, &what)
            .await?;
            if let Some((given, stored)) = changed {
                return Err(Error::invalid(format!(
                    "`{given}` in column `{}` is stored as `{stored}` by PostgreSQL",
                    field.name()
                ))
                .with_advice("give values in the form in which PostgreSQL writes them"));
            }
            Statement::new(format!(
                "ALTER TABLE {} ALTER COLUMN {column} TYPE {kind} USING {column}::{kind}",
                self.rows
            ))
            .execute(&mut tx, &what)
            .await?;
        }
        tx.commit().await
    }

    /// Indexes the rows where they can take the place of a partition.
    pub(crate) async fn index(&self) -> Result<()> {
        match self.place {
            Some((managed, place)) => {
                waiting::finish(self.table.database(), managed, self.n, &self.rows, place).await
            }
            None => Ok(()),
        }
    }

    /// Lets the planner know the rows.
    pub(crate) async fn analyze(&self) -> Result<()> {
        let mut tx = self.table.database().begin().await?;
        Statement::new("SET LOCAL default_statistics_target = 10").execute(&mut tx, WHAT).await?;
        Statement::new(format!("ANALYZE {}", self.rows)).execute(&mut tx, WHAT).await?;
        tx.commit().await
    }

    /// Makes the set count, in place of an earlier one of its id.
    pub(crate) async fn complete(self, staged: &Staged, row_count: i64) -> Result<()> {
        let mut tx = self.table.database().begin().await?;
        let earlier = format!("n < $3 AND attempt = {}", self.id.attempt);
        strike(&mut tx, self.table, self.id, &earlier, self.n).await?;
        let found = self
            .table
            .database()
            .schema()
            .sql(
                "UPDATE reprocess.table_staged SET complete = true, staged = $2, row_count = $3,
                     built = pg_current_xact_id() WHERE n = $1",
            )
            .bind(self.n)
            .bind(to_json(staged)?)
            .bind(row_count)
            .execute(&mut tx, WHAT)
            .await?;
        if found == 0 {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "a later attempt has taken the place of this one",
            ));
        }
        tx.commit().await
    }

    /// Removes what was written.
    pub(crate) async fn give_up(self) -> Result<()> {
        let mut tx = self.table.database().begin().await?;
        strike(&mut tx, self.table, self.id, "n = $3", self.n).await?;
        tx.commit().await?;
        sweep(self.table.database()).await;
        Ok(())
    }
}

async fn create(connection: &mut PgConnection, rows: &str, layout: &Layout) -> Result<()> {
    // What has no binary form of its own comes as text, and gets its type when all is there.
    let definition = |(field, store): (&arrow_schema::Field, &crate::layout::Store)| {
        let definition = if store.kind == Kind::Other { "text" } else { &store.definition };
        format!("{} {definition}", quoted(field.name()))
    };
    let columns = layout.columns().map(definition).collect::<Vec<_>>().join(", ");
    // Vacuum has nothing to do in a table that is written once, and its locks would be in the way.
    let create = format!("CREATE UNLOGGED TABLE {rows} ({columns}) WITH (autovacuum_enabled = false)");
    Statement::new(create).execute(connection, WHAT).await?;
    Ok(())
}

/// Takes every complete set of stamps that are committed off the list, those of attempts that others overtook too. One
/// that is being written stays until its attempt finds that the stamp is committed.
pub(crate) async fn strike_committed(
    connection: &mut PgConnection,
    table: &PostgresTable,
    stamps: &[StampId],
) -> Result<()> {
    let digests = stamps.iter().map(stamp_digest).collect::<Result<Vec<_>>>()?;
    table
        .database()
        .schema()
        .sql("DELETE FROM reprocess.table_staged WHERE complete AND table_id = $1 AND digest = ANY ($2)")
        .bind(table.spec().id.as_str())
        .bind(digests)
        .execute(connection, WHAT)
        .await?;
    Ok(())
}

/// Removes the tables of sets that are not on the list any more. What cannot be removed now, such as one that is being read
/// or written, goes with a later staging or commit.
pub(crate) async fn sweep(database: &PostgresDatabase) {
    if let Err(e) = sweep_all(database).await {
        tracing::warn!(error = %e, "staged rows that nobody needs could not be removed");
    }
}

/// Sets that an attempt began, whose stamp another has committed long ago.
const DEAD: &str = "DELETE FROM reprocess.table_staged AS l
    USING reprocess.table_registry AS r, reprocess.table_stamp AS s
    WHERE NOT l.complete AND l.begun_at < clock_timestamp() - interval '1 day'
      AND r.table_id = l.table_id AND s.t = r.t AND s.digest = l.digest";

async fn sweep_all(database: &PostgresDatabase) -> Result<()> {
    let schema = database.schema();
    let mut tx = database.begin().await?;
    schema.sql(DEAD).execute(&mut tx, WHAT).await?;
    let left: Vec<(i64,)> = schema
        .sql(
            "SELECT t.n FROM (
                 SELECT substr(c.relname, 7)::bigint AS n
                 FROM pg_class AS c JOIN pg_namespace AS s ON s.oid = c.relnamespace
                 WHERE s.nspname = $1 AND c.relkind = 'r' AND c.relname ~ '^stage_[0-9]{1,18}$') AS t
             WHERE NOT EXISTS (SELECT 1 FROM reprocess.table_staged AS l WHERE l.n = t.n)",
        )
        .bind(schema.name())
        .all(&mut tx, WHAT)
        .await?;
    tx.commit().await?;
    for (n,) in left {
        let mut tx = database.begin().await?;
        Statement::new(SWEEP_WAIT).execute(&mut tx, WHAT).await?;
        let drop = format!("DROP TABLE IF EXISTS {}", rows_name(schema, n));
        match Statement::new(drop).execute(&mut tx, WHAT).await {
            Ok(_) => tx.commit().await?,
            Err(e) => tracing::debug!(error = %e, n, "a table of staged rows is still read"),
        }
    }
    Ok(())
}

/// Takes every set of an id off the list.
pub(crate) async fn discard(
    connection: &mut PgConnection,
    table: &PostgresTable,
    id: &StagedId,
) -> Result<()> {
    strike(connection, table, id, "attempt = $3", i64::from(id.attempt)).await
}

/// Takes sets of the stamp off the list; `which` says of `$3` which of them. [`sweep`] removes their tables: who hangs in
/// one would hold up the removal here.
async fn strike(
    connection: &mut PgConnection,
    table: &PostgresTable,
    id: &StagedId,
    which: &str,
    value: i64,
) -> Result<()> {
    table
        .database()
        .schema()
        .sql(&format!("DELETE FROM reprocess.table_staged WHERE table_id = $1 AND digest = $2 AND {which}"))
        .bind(table.spec().id.as_str())
        .bind(stamp_digest(&id.stamp)?)
        .bind(value)
        .execute(connection, WHAT)
        .await?;
    Ok(())
}
