//! Replacing a partition by a table that takes its place.
//!
//! A snapshot does not keep which partitions there are, so whoever began before the rows were there would find none of
//! them: before its transaction the commit waits for those to end. In the transaction it keeps everyone from the table,
//! looks whether the partition is still as it was when the rows were staged, and exchanges the two. It asks for its locks
//! for a moment only, since everyone else waits behind it, and tries again later.

mod exchange;
mod wait;

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::ports::writer::{Change, CommitRequest, Intent, StageRequest, StampId};
use reprocess_core::{Error, Result};
use sqlx::PgConnection;

use super::PostgresTable;
use crate::catalog::{Exclusive, Managed};
use crate::shadow::{self, Found};
use crate::sql::Statement;

pub(super) use exchange::Exchange;

/// How long each lock of a swap is waited for, while others wait behind it.
const LOCK_WAIT: &str = "SET LOCAL lock_timeout = '200ms'";

/// The partition in whose place rows can be put once they are staged.
pub(super) async fn place(
    table: &PostgresTable,
    connection: &mut PgConnection,
    managed: &Managed,
    request: &StageRequest,
) -> Result<Option<Exclusive>> {
    let keys = request.scope.partitions();
    let ([key], Intent::Replace, true) = (keys.as_slice(), &request.intent, table.swaps) else {
        return Ok(None);
    };
    match managed.exclusive(connection, key).await? {
        Ok(place) => Ok(Some(place)),
        Err(why) => {
            tracing::info!(table = %table.spec().id, %key, why, "the rows are staged to be inserted, not swapped");
            Ok(None)
        }
    }
}

/// The staged sets of a commit that are to take the place of partitions.
#[derive(Debug)]
pub(super) struct Swap {
    sets: Vec<(StampId, Found)>,
}

/// What was swapped.
#[derive(Debug, Default)]
pub(super) struct Swapped {
    pub(super) touched: Vec<PartitionKey>,
    /// The entries that are done by that.
    pub(super) stamps: Vec<StampId>,
}

impl Swap {
    /// Makes ready what a swap needs before its transaction. `None` where nothing is to be swapped, or cannot be.
    pub(super) async fn prepare(table: &PostgresTable, request: &CommitRequest<'_>) -> Result<Option<Self>> {
        let swap = Self { sets: if table.swaps { sets(table, request).await? } else { Vec::new() } };
        if swap.sets.is_empty() {
            return Ok(None);
        }
        let why = match swap.add_foreign_keys(table).await {
            Ok(()) => wait::for_older_readers(table, swap.built()).await?,
            // A key that does not hold is refused as the rows are inserted.
            Err(e) => Some(e.to_string()),
        };
        let Some(why) = why else { return Ok(Some(swap)) };
        swap.give_up(table, &why).await;
        Ok(None)
    }

    fn built(&self) -> Vec<String> {
        self.sets.iter().filter_map(|(_, set)| Some(set.waiting.as_ref()?.built.clone())).collect()
    }

    /// The foreign keys of the partitions, so that none of the rows need be looked at as they are attached. Not earlier:
    /// what a staged row refers to could not be removed.
    async fn add_foreign_keys(&self, table: &PostgresTable) -> Result<()> {
        let what = "give rows that wait to be a partition its foreign keys";
        for (set, name, definition) in self.foreign_keys() {
            let mut tx = table.database().begin().await?;
            Statement::new(LOCK_WAIT).execute(&mut tx, what).await?;
            let rows = &set.rows;
            Statement::new(format!("ALTER TABLE {rows} DROP CONSTRAINT IF EXISTS {name}"))
                .execute(&mut tx, what)
                .await?;
            Statement::new(format!("ALTER TABLE {rows} ADD CONSTRAINT {name} {definition} NOT VALID"))
                .execute(&mut tx, what)
                .await?;
            tx.commit().await?;
            let mut tx = table.database().begin().await?;
            let validate = format!("ALTER TABLE {rows} VALIDATE CONSTRAINT {name}");
            Statement::new(validate).execute(&mut tx, what).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    fn foreign_keys(&self) -> impl Iterator<Item = (&Found, String, &str)> {
        self.sets.iter().flat_map(|(_, set)| {
            let keys = set.waiting.iter().flat_map(|waiting| &waiting.place.foreign_keys);
            keys.map(move |(name, definition)| (set, crate::layout::quoted(name), definition.as_str()))
        })
    }

    /// The rows are not swapped, now or at all: takes away what would be in the way of others.
    pub(super) async fn give_up(&self, table: &PostgresTable, why: &str) {
        tracing::info!(table = %table.spec().id, why, "partitions are not swapped");
        for (set, name, _) in self.foreign_keys() {
            if let Err(e) = drop_foreign_key(table, &set.rows, &name).await {
                tracing::warn!(error = %e, "a foreign key of staged rows could not be removed");
            }
        }
    }
}

/// Whether a swap may come to its locks another time.
pub(super) fn is_crowded(error: &Error) -> bool {
    error.context().any(|(name, value)| name == "sqlstate" && matches!(value, "55P03" | "40P01"))
}

/// The waits between tries.
pub(super) fn backoff(table: &PostgresTable) -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(20))
        .with_max_delay(Duration::from_millis(500))
        .with_total_delay(Some(Duration::from_millis(table.database().config().swap_timeout_ms)))
        .with_jitter()
        .without_max_times()
        .build()
}

async fn sets(table: &PostgresTable, request: &CommitRequest<'_>) -> Result<Vec<(StampId, Found)>> {
    let mut tx = table.database().begin_read().await?;
    let mut sets = Vec::new();
    for entry in request.entries {
        let Change::Apply(staged) = &entry.change else { continue };
        let found = shadow::find(&mut tx, table, &staged.id).await?;
        if let Some(found) = found.filter(|f| f.waiting.is_some() && f.staged.digest == staged.digest) {
            sets.push((entry.stamp.clone(), found));
        }
    }
    tx.rollback().await?;
    Ok(sets)
}

/// Removes the foreign keys of partitions that were replaced and are kept: what their rows refer to may go. What someone
/// reads meanwhile stays until the next time.
pub(super) async fn tidy(table: &PostgresTable) -> Result<()> {
    let schema = table.database().schema();
    let mut tx = table.database().begin().await?;
    let keys: Vec<(String, String)> = schema
        .sql(
            "SELECT quote_ident(k.conname), c.relname::text
             FROM pg_constraint AS k JOIN pg_class AS c ON c.oid = k.conrelid
             JOIN pg_namespace AS n ON n.oid = c.relnamespace
             WHERE n.nspname = $1 AND k.contype = 'f' AND c.relname ~ '^kept_[0-9]+$'",
        )
        .bind(schema.name())
        .all(&mut tx, "look for foreign keys of kept rows")
        .await?;
    tx.rollback().await?;
    for (name, rows) in keys {
        let rows = schema.text(&format!("reprocess.{rows}"));
        let dropped = drop_foreign_key(table, &rows, &name).await;
        if let Err(e) = dropped {
            if !is_crowded(&e) {
                return Err(e);
            }
            tracing::debug!(error = %e, rows, "a foreign key of kept rows stays for now");
        }
    }
    Ok(())
}

async fn drop_foreign_key(table: &PostgresTable, rows: &str, name: &str) -> Result<()> {
    let what = "remove a foreign key";
    let mut tx = table.database().begin().await?;
    Statement::new(LOCK_WAIT).execute(&mut tx, what).await?;
    Statement::new(format!("ALTER TABLE IF EXISTS {rows} DROP CONSTRAINT IF EXISTS {name}"))
        .execute(&mut tx, what)
        .await?;
    tx.commit().await
}
