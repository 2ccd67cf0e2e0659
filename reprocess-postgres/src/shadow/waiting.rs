//! Staged sets that can take the place of a partition: tables made like it, logged, with its indexes and constraints.

use reprocess_core::Result;
use sqlx::PgConnection;

use crate::catalog::{Exclusive, Managed};
use crate::config::PostgresDatabase;
use crate::sql::Statement;

/// The constraint that holds what rows of the partition fulfil, until the table is one.
pub(crate) const BOUNDS: &str = "reprocess_bounds";

/// A staged set that waits to be a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// The partition as it was when the rows were staged.
    pub(crate) place: Exclusive,
    /// Number of the transaction from which on everyone sees all rows of the set.
    pub(crate) built: String,
}

/// The name of an index of a set, by its place among those of the partition; quoted it is the same.
pub(crate) fn index_name(n: i64, place: usize) -> String {
    format!("reprocess_new_{n}_{place}")
}

/// Makes the table.
pub(super) async fn create(connection: &mut PgConnection, rows: &str, place: &Exclusive) -> Result<()> {
    let create = format!(
        "CREATE TABLE {rows} (
             LIKE {} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING STORAGE INCLUDING COMPRESSION,
             CONSTRAINT {BOUNDS} CHECK ({}))",
        place.quoted(),
        place.condition
    );
    Statement::new(create).execute(connection, "make a table like a partition").await?;
    Ok(())
}

/// Gives it what is cheaper once the rows are there, each in a transaction of its own, since some take long.
pub(super) async fn finish(
    database: &PostgresDatabase,
    managed: &Managed,
    n: i64,
    rows: &str,
    place: &Exclusive,
) -> Result<()> {
    for (number, index) in place.indexes.iter().enumerate() {
        let mut tx = database.begin().await?;
        for statement in index.statements(&index_name(n, number), rows) {
            Statement::new(statement).execute(&mut tx, "index rows that wait to be a partition").await?;
        }
        tx.commit().await?;
    }
    let mut tx = database.begin().await?;
    for statement in managed.watch(rows) {
        Statement::new(statement).execute(&mut tx, "create a trigger").await?;
    }
    tx.commit().await
}
