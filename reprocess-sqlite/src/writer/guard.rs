//! What is refused before anything is visible: merges without a way to tell rows apart.

use arrow_schema::DataType;
use reprocess_core::ports::writer::MergeKeys;
use reprocess_core::{Error, Result};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::error::Doing;
use crate::layout::Layout;
use crate::sql::{Sql, ident};

/// How many offending keys an error names.
const NAMED_KEYS: i64 = 5;
const WHAT: &str = "check the keys of the rows";

/// Refuses keys that the table has not, and a `newer` that cannot be ordered.
pub(super) fn check_merge(layout: &Layout, merge: &MergeKeys) -> Result<()> {
    if merge.keys.is_empty() {
        return Err(Error::invalid("a merge needs columns that identify a row"));
    }
    for column in &merge.keys {
        layout.field(column)?;
    }
    if let Some(newer) = &merge.newer {
        let field = layout.field(newer)?;
        if matches!(field.data_type(), DataType::Decimal128(..) | DataType::Decimal256(..)) {
            return Err(Error::invalid(format!(
                "decimals in column `{newer}` cannot say which row is newer"
            ))
            .with_advice("order by an integer or a timestamp"));
        }
    }
    for (column, value) in merge.delete_vanished.iter().flatten() {
        layout.value(column, value)?;
    }
    Ok(())
}

/// Refuses NULL and repeated keys among staged rows, naming some.
pub(super) async fn check_keys(connection: &mut SqliteConnection, rows: &str, keys: &[String]) -> Result<()> {
    let columns: Vec<_> = keys.iter().map(|key| ident(key)).collect();
    let list = columns.join(", ");
    let quoted: Vec<_> = columns.iter().map(|column| format!("quote({column})")).collect();
    let null: Vec<_> = columns.iter().map(|column| format!("{column} IS NULL")).collect();
    let grouped = format!("SELECT {}, count(*) AS rows FROM {rows}", quoted.join(", "));

    let nulls = format!("{grouped} WHERE {} GROUP BY {list}", null.join(" OR "));
    refuse(connection, keys, &nulls, "NULL in the keys of").await?;
    let repeated = format!("{grouped} GROUP BY {list} HAVING count(*) > 1");
    refuse(connection, keys, &repeated, "the same keys in").await
}

async fn refuse(
    connection: &mut SqliteConnection,
    keys: &[String],
    offending: &str,
    what: &str,
) -> Result<()> {
    let row = Sql::new(format!("SELECT count(*), coalesce(sum(rows), 0) FROM ({offending})"))
        .first(connection, WHAT)
        .await?
        .ok_or_else(|| Error::internal("a count has no row"))?;
    let (groups, rows): (i64, i64) = (row.try_get(0).doing(WHAT)?, row.try_get(1).doing(WHAT)?);
    if groups == 0 {
        return Ok(());
    }
    let examples = Sql::new(format!("{offending} LIMIT {NAMED_KEYS}")).rows(connection, WHAT).await?;
    let mut named = examples.iter().map(|row| name(row, keys)).collect::<Result<Vec<_>>>()?;
    if groups > NAMED_KEYS {
        named.push(format!("and {} more", groups - NAMED_KEYS));
    }
    Err(Error::invalid(format!("there are {what} {rows} rows: {}", named.join("; ")))
        .with_advice("remove duplicates with a declared order before the merge, and rows without a key"))
}

fn name(row: &SqliteRow, keys: &[String]) -> Result<String> {
    let mut parts = Vec::with_capacity(keys.len());
    for (index, key) in keys.iter().enumerate() {
        parts.push(format!("{key}={}", row.try_get::<String, _>(index).doing(WHAT)?));
    }
    let rows: i64 = row.try_get(keys.len()).doing(WHAT)?;
    Ok(format!("{} ({rows})", parts.join(", ")))
}
