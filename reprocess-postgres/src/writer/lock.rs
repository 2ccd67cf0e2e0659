//! Who waits for whom: commits to partitions that may overlap, each for the end of the one before.
//!
//! Every commit takes these locks in statements of their own before it looks at anything, in READ COMMITTED: under a
//! stricter level it would look at what there was before it waited. They go with the transaction.

use std::collections::BTreeSet;

use reprocess_core::Result;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::ports::writer::{Change, CommitRequest};
use sqlx::PgConnection;

use super::PostgresTable;
use crate::sql::Statement;

const WHAT: &str = "wait for other commits to the same partitions";

/// Of one transaction at the most: the server has room for some thousands in all.
const MOST_LOCKS: usize = 64;

/// What a commit keeps others away from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The table, with its columns.
    Table,
    /// Everything below these values of the first dimension. Keys that overlap and bind it have the same value.
    Values(BTreeSet<i64>),
}

impl Reach {
    pub(super) fn of(table: &PostgresTable, request: &CommitRequest<'_>) -> Self {
        let stays = |change: &Change| matches!(change, Change::Apply(staged) if staged.schema_policy == SchemaPolicy::Refuse);
        let first = table.spec().partitioning.dimensions().first();
        let Some(first) = first.filter(|_| request.entries.iter().all(|entry| stays(&entry.change))) else {
            return Self::Table;
        };
        let mut values = BTreeSet::new();
        for key in request.entries.iter().flat_map(|entry| entry.scope.partitions()) {
            let Some(value) = key.get(first.column()) else { return Self::Table };
            let below = PartitionKey::of(first.column(), value.clone());
            values.insert(number(table, &below.to_string()));
        }
        if values.len() <= MOST_LOCKS { Self::Values(values) } else { Self::Table }
    }

    pub(super) async fn lock(&self, connection: &mut PgConnection, table: &PostgresTable) -> Result<()> {
        let Self::Values(values) = self else { return whole_table(connection, table).await };
        Statement::new("SELECT pg_advisory_xact_lock_shared($1)")
            .bind(number(table, ""))
            .execute(connection, WHAT)
            .await?;
        // One after the other, and everyone in the same order.
        for value in values {
            Statement::new("SELECT pg_advisory_xact_lock($1)").bind(*value).execute(connection, WHAT).await?;
        }
        Ok(())
    }
}

/// Keeps every other commit to the table away.
pub(super) async fn whole_table(connection: &mut PgConnection, table: &PostgresTable) -> Result<()> {
    Statement::new("SELECT pg_advisory_xact_lock($1)")
        .bind(number(table, ""))
        .execute(connection, WHAT)
        .await?;
    Ok(())
}

/// The lock of a key, the empty one being that of the table.
fn number(table: &PostgresTable, key: &str) -> i64 {
    let mut hasher = blake3::Hasher::new();
    for part in ["reprocess table", table.database().schema().name(), table.spec().id.as_str(), key] {
        hasher.update(part.as_bytes());
        hasher.update(&[0]);
    }
    let hash = hasher.finalize();
    hash.as_bytes().first_chunk::<8>().map_or(0, |bytes| i64::from_be_bytes(*bytes))
}
