//! Copies of pinned slices, for inputs that change in place.

use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use reprocess_core::domain::slice::Pin;
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use crate::catalog::{from_json, to_json};
use crate::config::SqliteDatabase;
use crate::error::Doing;
use crate::layout::Layout;
use crate::sql::{Sql, ident};

const WHAT: &str = "keep a copy of pinned rows";

/// Selects the rows that are held for a pin, where some are.
pub(super) async fn find(connection: &mut SqliteConnection, pin: &Pin) -> Result<Option<(Sql, SchemaRef)>> {
    let row = Sql::new("SELECT held, columns FROM main.reprocess_held WHERE complete = 1 AND pin = ")
        .bind(to_json(pin)?)
        .first(connection, WHAT)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let schema: Schema = from_json(&row.try_get::<String, _>(1).doing(WHAT)?)?;
    let schema = Arc::new(schema);
    Ok(Some((select(row.try_get(0).doing(WHAT)?, &schema), schema)))
}

/// Selects the rows of a copy.
pub(super) fn select(held: i64, schema: &SchemaRef) -> Sql {
    let columns: Vec<_> = schema.fields().iter().map(|f| ident(f.name())).collect();
    Sql::new(format!("SELECT {} FROM main.reprocess_held_{held}", columns.join(", ")))
}

/// Copies the rows of a statement, in place of a copy that was not finished.
pub(super) async fn copy(database: &SqliteDatabase, pin: &Pin, rows: Sql, schema: &SchemaRef) -> Result<i64> {
    let mut tx = database.begin_write().await?;
    remove(&mut tx, pin).await?;
    let row = Sql::new("INSERT INTO main.reprocess_held (pin, columns, complete) VALUES (")
        .bind(to_json(pin)?)
        .text(", ")
        .bind(to_json(schema.as_ref())?)
        .text(", 0) RETURNING held")
        .first(&mut tx, WHAT)
        .await?
        .ok_or_else(|| Error::internal("a copy got no number"))?;
    let held: i64 = row.try_get(0).doing(WHAT)?;
    let layout = Layout::foreign(Arc::clone(schema))?;
    // Without declared types every value stays as it is.
    Sql::new(format!("CREATE TABLE main.reprocess_held_{held} ({})", layout.list("")))
        .execute(&mut tx, WHAT)
        .await?;
    Sql::new(format!("INSERT INTO main.reprocess_held_{held} ")).then(rows).execute(&mut tx, WHAT).await?;
    tx.commit().await.doing(WHAT)?;
    Ok(held)
}

/// Makes a copy count.
pub(super) async fn complete(database: &SqliteDatabase, held: i64) -> Result<()> {
    let mut tx = database.begin_write().await?;
    let found = Sql::new("UPDATE main.reprocess_held SET complete = 1 WHERE held = ")
        .bind(held)
        .execute(&mut tx, WHAT)
        .await?;
    if found == 0 {
        return Err(Error::new(ErrorKind::Unavailable, "another process copies the same pinned rows"));
    }
    tx.commit().await.doing(WHAT)
}

/// Removes the copy of a pin, where there is one.
pub(super) async fn forget(database: &SqliteDatabase, pin: &Pin) -> Result<()> {
    let mut tx = database.begin_write().await?;
    remove(&mut tx, pin).await?;
    tx.commit().await.doing(WHAT)
}

async fn remove(connection: &mut SqliteConnection, pin: &Pin) -> Result<()> {
    let row = Sql::new("DELETE FROM main.reprocess_held WHERE pin = ")
        .bind(to_json(pin)?)
        .text(" RETURNING held")
        .first(connection, WHAT)
        .await?;
    if let Some(row) = row {
        let held: i64 = row.try_get(0).doing(WHAT)?;
        Sql::new(format!("DROP TABLE IF EXISTS main.reprocess_held_{held}"))
            .execute(connection, WHAT)
            .await?;
    }
    Ok(())
}
