//! The Arrow columns of a table that others declared.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use reprocess_core::domain::ids::TableId;
use reprocess_core::{Error, Result};
use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use crate::error::Doing;
use crate::sql::Sql;

/// The columns by their declared types, read as SQLite reads them: a type that contains `INT` is an integer, and so on.
pub(crate) async fn declared_schema(connection: &mut SqliteConnection, table: &TableId) -> Result<SchemaRef> {
    let what = "read the columns of a table";
    let rows = Sql::new("SELECT name, type, \"notnull\", pk FROM pragma_table_info(")
        .bind(table.as_str())
        .text(") ORDER BY cid")
        .rows(connection, what)
        .await?;
    if rows.is_empty() {
        return Err(Error::not_found(format!("there is no table `{table}` in the file")));
    }
    let mut fields = Vec::with_capacity(rows.len());
    for row in rows {
        let name: String = row.try_get(0).doing(what)?;
        let declared: String = row.try_get(1).doing(what)?;
        let not_null: bool = row.try_get(2).doing(what)?;
        let place_in_key: i64 = row.try_get(3).doing(what)?;
        let data_type = data_type(&declared);
        // An integer primary key is the row's number, which is never NULL.
        let never_null = not_null || (place_in_key > 0 && data_type == DataType::Int64);
        fields.push(Field::new(name, data_type, !never_null));
    }
    Ok(Arc::new(Schema::new(fields)))
}

fn data_type(declared: &str) -> DataType {
    let declared = declared.to_ascii_uppercase();
    let has = |words: &[&str]| words.iter().any(|word| declared.contains(word));
    match declared.as_str() {
        "DATE" => DataType::Date32,
        "BOOLEAN" | "BOOL" => DataType::Boolean,
        _ if has(&["TIMESTAMP", "DATETIME"]) => {
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
        }
        _ if has(&["INT"]) => DataType::Int64,
        _ if has(&["CHAR", "CLOB", "TEXT"]) => DataType::Utf8,
        _ if has(&["BLOB"]) || declared.is_empty() => DataType::Binary,
        _ => DataType::Float64,
    }
}
