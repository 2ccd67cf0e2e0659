//! Copies of pinned slices, for inputs that change in place.

use reprocess_core::Result;
use reprocess_core::domain::slice::Pin;
use sqlx::PgConnection;

use super::fingerprint;
use crate::catalog::{from_json, to_json};
use crate::config::PostgresDatabase;
use crate::layout::Layout;
use crate::schema::Schema;
use crate::sql::{Sql, Statement};

/// The component under which the versions of these tables are counted.
const COMPONENT: &str = "sources";
const STEPS: &[&str] = &[include_str!("held/v1.sql")];

const WHAT: &str = "keep a copy of pinned rows";

/// Makes the tables that know of the copies, where they are absent.
pub(super) async fn prepare(database: &PostgresDatabase) -> Result<()> {
    database.migrate(COMPONENT, STEPS).await
}

/// Selects the rows that are held for a pin, where some are.
pub(super) async fn find(
    connection: &mut PgConnection,
    schema: &Schema,
    pin: &Pin,
) -> Result<Option<(Sql, Layout)>> {
    if !is_prepared(connection, schema).await? {
        return Ok(None);
    }
    let row: Option<(i64, String)> = schema
        .sql("SELECT held, layout FROM reprocess.source_held WHERE digest = $1")
        .bind(digest(pin)?)
        .first(connection, WHAT)
        .await?;
    let Some((held, layout)) = row else { return Ok(None) };
    let layout: Layout = from_json(&layout)?;
    Ok(Some((select(schema, held, &layout), layout)))
}

/// Copies the rows of a statement, unless they are held already. One statement copies, so that the rows are of one
/// moment; what it copied is then compared with the pin, before anybody else can see it.
pub(super) async fn copy(
    connection: &mut PgConnection,
    schema: &Schema,
    pin: &Pin,
    rows: Sql,
    layout: &Layout,
) -> Result<()> {
    // Waits for another process that is about to hold the same.
    let row: Option<(i64,)> = schema
        .sql(
            "INSERT INTO reprocess.source_held (digest, pin, layout) VALUES ($1, $2, $3)
             ON CONFLICT (digest) DO NOTHING RETURNING held",
        )
        .bind(digest(pin)?)
        .bind(to_json(pin)?)
        .bind(to_json(layout)?)
        .first(connection, WHAT)
        .await?;
    let Some((held,)) = row else { return Ok(()) };
    let table = table(schema, held);
    // Logged, since a crash empties tables that are not.
    Statement::new(format!("CREATE TABLE {table} ({})", layout.plain_definitions().join(", ")))
        .execute(connection, WHAT)
        .await?;
    Sql::new(format!("INSERT INTO {table} SELECT {} FROM (", layout.plain("r.")))
        .then(rows)
        .text(") AS r")
        .statement()
        .execute(connection, WHAT)
        .await?;
    fingerprint::check(connection, pin, select(schema, held, layout), layout).await
}

/// Removes the copy of a pin, where there is one.
pub(super) async fn forget(connection: &mut PgConnection, schema: &Schema, pin: &Pin) -> Result<()> {
    if !is_prepared(connection, schema).await? {
        return Ok(());
    }
    let row: Option<(i64,)> = schema
        .sql("DELETE FROM reprocess.source_held WHERE digest = $1 RETURNING held")
        .bind(digest(pin)?)
        .first(connection, WHAT)
        .await?;
    if let Some((held,)) = row {
        Statement::new(format!("DROP TABLE IF EXISTS {}", table(schema, held)))
            .execute(connection, WHAT)
            .await?;
    }
    Ok(())
}

fn select(schema: &Schema, held: i64, layout: &Layout) -> Sql {
    Sql::new(format!("SELECT {} FROM {} AS h", layout.readable("h."), table(schema, held)))
}

fn table(schema: &Schema, held: i64) -> String {
    schema.text(&format!("reprocess.source_held_{held}"))
}

async fn is_prepared(connection: &mut PgConnection, schema: &Schema) -> Result<bool> {
    let (there,): (bool,) = Statement::new("SELECT to_regclass($1) IS NOT NULL")
        .bind(schema.text("reprocess.source_held"))
        .one(connection, WHAT)
        .await?;
    Ok(there)
}

/// A pin of many partitions is longer than what an index takes.
fn digest(pin: &Pin) -> Result<String> {
    Ok(blake3::hash(to_json(pin)?.as_bytes()).to_hex()[..32].to_owned())
}
