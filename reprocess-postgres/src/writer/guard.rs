//! What is refused before anything is visible: rows whose keys do not tell them apart.

use reprocess_core::ports::writer::MergeKeys;
use reprocess_core::{Error, Result};
use sqlx::PgConnection;

use crate::catalog::Managed;
use crate::layout::{Kind, Layout, quoted};
use crate::sql::Statement;

/// How many offending keys an error names.
const NAMED_KEYS: i64 = 5;
const WHAT: &str = "check the keys of the rows";

/// Refuses keys that the table has not, and columns that cannot be compared.
pub(super) fn check_merge(layout: &Layout, merge: &MergeKeys) -> Result<()> {
    if merge.keys.is_empty() {
        return Err(Error::invalid("a merge needs columns that identify a row"));
    }
    for column in merge.keys.iter().chain(&merge.newer) {
        let (_, store) = layout.column(column)?;
        if !store.is_comparable() {
            return Err(Error::invalid(format!(
                "column `{column}` is a {}, by which rows are neither matched nor ordered",
                store.definition
            )));
        }
    }
    for (column, value) in merge.delete_vanished.iter().flatten() {
        layout.value(column, value)?;
    }
    Ok(())
}

/// Refuses to merge into a table of others that may hold a key twice.
pub(super) async fn check_target(
    connection: &mut PgConnection,
    table: &Managed,
    merge: &MergeKeys,
) -> Result<()> {
    if !table.adopted {
        return Ok(());
    }
    let keys = table.keys(connection).await?;
    if keys.iter().any(|key| key.iter().all(|column| merge.keys.contains(column))) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the table has no unique key among the columns {}, none of which is ever NULL",
        merge.keys.join(", ")
    ))
    .with_advice("add a primary key or a unique index, or merge by the key that it has"))
}

/// Refuses NULL and repeated keys among staged rows, naming some.
pub(super) async fn check_keys(
    connection: &mut PgConnection,
    layout: &Layout,
    rows: &str,
    keys: &[String],
) -> Result<()> {
    let columns: Vec<_> = keys.iter().map(|key| quoted(key)).collect();
    let list = columns.join(", ");
    let text = |key: &String| {
        let (_, store) = layout.column(key)?;
        let is_text = matches!(store.kind, Kind::Text { .. } | Kind::Padded { .. });
        let text = format!("{}::text", quoted(key));
        Ok(if is_text { format!("quote_literal({text})") } else { text })
    };
    let texts = keys.iter().map(text).collect::<Result<Vec<_>>>()?;
    let null: Vec<_> = columns.iter().map(|column| format!("{column} IS NULL")).collect();
    // Mostly all is well, which is found out sooner than what is not.
    let (any,): (bool,) = Statement::new(format!(
        "SELECT EXISTS (SELECT 1 FROM {rows} GROUP BY {list} HAVING count(*) > 1 OR {})",
        null.join(" OR ")
    ))
    .one(connection, WHAT)
    .await?;
    if !any {
        return Ok(());
    }
    let grouped = format!("SELECT ARRAY[{}] AS key, count(*) AS rows FROM {rows}", texts.join(", "));

    let nulls = format!("{grouped} WHERE {} GROUP BY {list}", null.join(" OR "));
    refuse(connection, keys, &nulls, "NULL in the keys of").await?;
    let repeated = format!("{grouped} GROUP BY {list} HAVING count(*) > 1");
    refuse(connection, keys, &repeated, "the same keys in").await
}

async fn refuse(connection: &mut PgConnection, keys: &[String], offending: &str, what: &str) -> Result<()> {
    let (groups, rows): (i64, i64) = Statement::new(format!(
        "SELECT count(*), coalesce(sum(rows), 0)::bigint FROM ({offending}) AS offending"
    ))
    .one(connection, WHAT)
    .await?;
    if groups == 0 {
        return Ok(());
    }
    let examples: Vec<(Vec<Option<String>>, i64)> =
        Statement::new(format!("{offending} ORDER BY key LIMIT {NAMED_KEYS}")).all(connection, WHAT).await?;
    let mut named: Vec<_> = examples.iter().map(|(key, rows)| name(keys, key, *rows)).collect();
    if groups > NAMED_KEYS {
        named.push(format!("and {} more", groups - NAMED_KEYS));
    }
    Err(Error::invalid(format!("there are {what} {rows} rows: {}", named.join("; ")))
        .with_advice("remove duplicates with a declared order before the merge, and rows without a key"))
}

fn name(keys: &[String], values: &[Option<String>], rows: i64) -> String {
    let parts: Vec<_> = keys
        .iter()
        .zip(values)
        .map(|(key, value)| format!("{key}={}", value.as_deref().unwrap_or("NULL")))
        .collect();
    format!("{} ({rows})", parts.join(", "))
}
