//! Queries over pinned inputs, run by PostgreSQL.

mod text;

use std::error::Error as _;
use std::sync::Arc;

use arrow_schema::{Field, Schema, SchemaRef};
use reprocess_core::ports::reader::RowStream;
use reprocess_core::ports::writer::Query;
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::PgConnection;

use crate::config::PostgresDatabase;
use crate::layout::{Kind, Layout, Store, declared, quoted};
use crate::reader::{self, Look, pinned, stream};
use crate::sql::{Sql, Statement, ident, set};

const UNDERSTAND: &str = "understand the query";

/// Runs a query in one snapshot: each input is a common table of its name that holds the pinned rows. Columns get the
/// types of the table's columns of the same name, where that changes no value.
pub(super) async fn run(
    database: &PostgresDatabase,
    typed: Option<&Layout>,
    query: &Query,
) -> Result<(SchemaRef, RowStream)> {
    let user = text::with_values(&query.sql, &query.params)?;
    let inputs: Vec<_> = query.inputs.values().collect();
    // First, since it takes on partitions that have come.
    let partitioned = reader::partitioned(database, &inputs).await?;
    let shape = shape(database, query, &user).await.map_err(of_query)?;
    let (layout, columns) = read_as(&shape, typed)?;
    let mut tx = reader::begin(database, &inputs, &partitioned).await?;
    let all = whole(database, &mut tx, query, &user, Look::AtRows).await?;
    let select = Sql::new(format!("SELECT {} FROM (", columns.join(", "))).then(all).text("\n) AS q");
    Ok(stream(tx, select, layout, ErrorKind::Invalid, database.config().batch_rows))
}

/// The text with its inputs.
async fn whole(
    database: &PostgresDatabase,
    connection: &mut PgConnection,
    query: &Query,
    user: &Sql,
    look: Look,
) -> Result<Sql> {
    let mut all = Sql::default();
    for (place, (name, input)) in query.inputs.iter().enumerate() {
        let (select, _) =
            pinned(database, input, connection, look).await.map_err(|e| e.with_context("input", name))?;
        let before = if place == 0 { "WITH " } else { ", " };
        all = all.text(format!("{before}{} AS (", ident(name)?)).then(select).text(")");
    }
    // Lines of its own, since the text may end in a comment.
    Ok(all.text(" SELECT * FROM (\n").then(user.clone()).text("\n) AS q"))
}

/// The columns of the query as the server types them, by a table of them without rows.
async fn shape(database: &PostgresDatabase, query: &Query, user: &Sql) -> Result<Layout> {
    let mut tx = database.begin().await?;
    let all = whole(database, &mut tx, query, user, Look::AtColumns).await?;
    let (text, values) = all.copied()?;
    set(&mut tx, values, UNDERSTAND).await?;
    // Prepared, which refuses a text that ends this statement and begins others.
    let create = format!("CREATE TEMP TABLE reprocess_shape ON COMMIT DROP AS {text} WITH NO DATA");
    Statement::new(create).execute(&mut tx, UNDERSTAND).await?;
    let (relation,): (i64,) = Statement::new("SELECT 'pg_temp.reprocess_shape'::regclass::oid::bigint")
        .one(&mut tx, UNDERSTAND)
        .await?;
    let shape = declared(&mut tx, relation, None).await?;
    tx.rollback().await?;
    Ok(shape)
}

/// How the columns are read, and as what.
fn read_as(shape: &Layout, typed: Option<&Layout>) -> Result<(Layout, Vec<String>)> {
    let (mut fields, mut stores, mut columns) = (Vec::new(), Vec::new(), Vec::new());
    for (given, from) in shape.columns() {
        let name = quoted(given.name());
        let known = typed.and_then(|layout| layout.column(given.name()).ok());
        let (field, to, expression) = match known {
            Some((field, to)) => (field.clone(), to.clone(), cast(&name, from, to)),
            None if from.kind == Kind::Other && from.definition == "numeric" => {
                return Err(Error::invalid(format!(
                    "column `{}` of the query has no precision",
                    given.name()
                ))
                .with_advice("cast it, for example as numeric(38, 2)"));
            }
            None => (given.clone(), from.clone(), cast(&name, from, from)),
        };
        let expression = expression.ok_or_else(|| {
            Error::invalid(format!(
                "column `{}` is a {} in the query and a {} in the table",
                given.name(),
                from.definition,
                to.definition
            ))
            .with_advice("cast it in the query")
        })?;
        columns.push(format!("{expression} AS {name}"));
        fields.push(Field::clone(&field).with_nullable(true));
        stores.push(to);
    }
    Ok((Layout::new(Arc::new(Schema::new(fields)), stores)?, columns))
}

/// The expression that reads a column of one type as one of the other; `None` where that could change a value.
fn cast(name: &str, from: &Store, to: &Store) -> Option<String> {
    let is_integer = |kind: Kind| matches!(kind, Kind::Int2 | Kind::Int4 | Kind::Int8);
    let is_number =
        |store: &Store| matches!(store.kind, Kind::Numeric { .. }) || store.definition == "numeric";
    let is_text = |kind: Kind| matches!(kind, Kind::Text { .. } | Kind::Padded { .. });
    let column = format!("q.{name}");
    Some(match (from.kind, to.kind) {
        // The reader refuses digits that the column does not have.
        (_, Kind::Numeric { .. }) if is_number(from) => column,
        (from, Kind::Numeric { .. }) if is_integer(from) => format!("{column}::numeric"),
        (from, to_kind) if is_integer(from) && is_integer(to_kind) => format!("{column}::{}", to.definition),
        (_, to_kind) if is_number(from) && is_integer(to_kind) => {
            format!("trim_scale({column})::text::{}", to.definition)
        }
        (Kind::Float4, Kind::Float8) => format!("{column}::double precision"),
        (a, b) if is_text(a) && is_text(b) => format!("{column}::text"),
        (a, b) if b.is_read_as_text() => {
            (is_text(a) || from.definition == to.definition).then(|| format!("{column}::text"))?
        }
        (Kind::Timestamp { zone: a, .. }, Kind::Timestamp { zone: b, .. }) => (a == b).then_some(column)?,
        (a, b) => (a == b).then_some(column)?,
    })
}

/// What PostgreSQL says against the text is for its author.
fn of_query(error: Error) -> Error {
    if error.is_retryable() || matches!(error.kind(), ErrorKind::PinBroken | ErrorKind::Storage) {
        return error;
    }
    // What did not come from the server says enough.
    let Some(reason) = error.source() else { return error };
    Error::invalid(format!("PostgreSQL refuses the query: {reason}"))
        .with_advice("inputs are tables of their names, parameters are written as :name")
}
