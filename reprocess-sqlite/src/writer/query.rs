//! Queries over pinned inputs, run by SQLite.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::Arc;

use arrow_schema::{Field, Schema, SchemaRef};
use reprocess_core::domain::value::Value;
use reprocess_core::ports::reader::RowStream;
use reprocess_core::ports::writer::Query;
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Column, Executor, SqlSafeStr, Statement};

use crate::config::SqliteDatabase;
use crate::error::Doing;
use crate::layout::{Layout, infer};
use crate::reader::{pinned, stream};
use crate::sql::{Arg, Sql, ident};

/// How many rows decide the types of columns that the table does not have.
const INFERRED_ROWS: i64 = 1_024;

/// Runs a query in one snapshot: each input is a common table of its name that holds the pinned rows. Instants are
/// integers of microseconds, dates texts, as this backend stores them. Columns get the types of the table's columns
/// of the same name; what the table does not have is typed by what the first rows hold.
pub(super) async fn run(
    database: &SqliteDatabase,
    typed: Option<&Layout>,
    query: &Query,
) -> Result<(SchemaRef, RowStream)> {
    let mut tx = database.begin_read().await?;
    let user = with_values(&query.sql, &query.params)?;
    let mut with = Vec::new();
    for (name, input) in &query.inputs {
        let (select, _) =
            pinned(database, input, &mut tx).await.map_err(|e| e.with_context("input", name))?;
        with.push(Sql::new(format!("{} AS (", ident(name))).then(select).text(")"));
    }
    let prefix = with.into_iter().enumerate().fold(Sql::default(), |sql, (place, input)| {
        sql.text(if place == 0 { "WITH " } else { ", " }).then(input)
    });
    let names = names(&mut tx, &prefix, &user).await.map_err(of_query)?;
    // A line of its own, since the text may end in a comment.
    let all = prefix.text(" SELECT * FROM (\n").then(user).text("\n)");
    let schema = schema(&mut tx, typed, &names, &all).await.map_err(of_query)?;
    let layout = Layout::queried(schema)?;
    Ok(stream(tx, all, layout, ErrorKind::Invalid, database.config().batch_rows))
}

async fn names(connection: &mut SqliteConnection, prefix: &Sql, user: &Sql) -> Result<Vec<String>> {
    let all = prefix.clone().text(" SELECT * FROM (\n").then(user.clone()).text("\n)");
    let (text, _) = all.build()?;
    let statement =
        (&mut *connection).prepare(AssertSqlSafe(text).into_sql_str()).await.doing("understand the query")?;
    Ok(statement.columns().iter().map(|column| column.name().to_owned()).collect())
}

async fn schema(
    connection: &mut SqliteConnection,
    typed: Option<&Layout>,
    names: &[String],
    all: &Sql,
) -> Result<SchemaRef> {
    let known = |name: &String| typed.and_then(|layout| layout.field(name).ok()).cloned();
    let mut fields: Vec<Option<Field>> = names.iter().map(known).collect();
    if fields.iter().any(Option::is_none) {
        let sample = Sql::new("SELECT * FROM (").then(all.clone()).text(format!(") LIMIT {INFERRED_ROWS}"));
        let rows = sample.rows(connection, "run the query").await?;
        for (place, data_type) in infer(&rows, names)?.into_iter().enumerate() {
            if let (Some(field @ None), Some(name)) = (fields.get_mut(place), names.get(place)) {
                *field = Some(Field::new(name, data_type, true));
            }
        }
    }
    Ok(Arc::new(Schema::new(fields.into_iter().flatten().collect::<Vec<_>>())))
}

/// What SQLite says against the text is for its author.
fn of_query(error: Error) -> Error {
    if error.kind() != ErrorKind::Internal {
        return error;
    }
    let reason = error.source().map_or_else(|| error.message().to_owned(), ToString::to_string);
    Error::invalid(format!("SQLite refuses the query: {reason}"))
        .with_advice("inputs are tables of their names, parameters are written as :name")
}

/// The text with its parameters bound: `:name` outside of texts, quoted names and comments.
fn with_values(sql: &str, params: &BTreeMap<String, Value>) -> Result<Sql> {
    let mut bound = Sql::default();
    let mut rest = sql;
    let mut plain = String::new();
    while let Some(first) = rest.chars().next() {
        let skipped = skipped(rest, first);
        if skipped > 0 {
            let (text, after) = rest.split_at(skipped);
            plain.push_str(text);
            rest = after;
            continue;
        }
        let after = rest.get(first.len_utf8()..).unwrap_or_default();
        let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        match first {
            ':' if !name.is_empty() => {
                let value = params.get(&name).ok_or_else(|| {
                    let known: Vec<_> = params.keys().map(String::as_str).collect();
                    Error::invalid(format!("the query names a parameter :{name} that has no value"))
                        .with_advice(format!("its parameters are: {}", known.join(", ")))
                })?;
                bound = bound.text(std::mem::take(&mut plain)).bind(argument(value));
                rest = after.get(name.len()..).unwrap_or_default();
            }
            // The text becomes a part of another, in which its end cannot stand.
            ';' if is_blank(after) => rest = after,
            '?' | '@' | '$' => {
                return Err(Error::invalid(format!("the query has a parameter `{first}{name}`"))
                    .with_advice("write parameters as :name"));
            }
            _ => {
                plain.push(first);
                rest = after;
            }
        }
    }
    Ok(bound.text(plain))
}

/// Whether nothing follows but comments.
fn is_blank(mut rest: &str) -> bool {
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
        if !rest.starts_with("--") && !rest.starts_with("/*") {
            return rest.is_empty();
        }
        let comment = rest.chars().next().map_or(0, |first| skipped(rest, first));
        rest = rest.get(comment..).unwrap_or_default();
    }
}

/// How many bytes at the start are a text, a quoted name, a comment or a name: nothing in there is a parameter.
fn skipped(rest: &str, first: char) -> usize {
    let until = |mark: &str, from: usize| {
        rest.get(from..).and_then(|tail| tail.find(mark)).map_or(rest.len(), |at| from + at + mark.len())
    };
    match first {
        // A doubled quote ends one text and begins the next.
        '\'' => until("'", 1),
        '"' => until("\"", 1),
        '`' => until("`", 1),
        '[' => until("]", 1),
        '-' if rest.starts_with("--") => until("\n", 2),
        '/' if rest.starts_with("/*") => until("*/", 2),
        // A dollar or a question mark may stand inside a name.
        c if c.is_alphanumeric() || c == '_' => {
            rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$')).unwrap_or(rest.len())
        }
        _ => 0,
    }
}

fn argument(value: &Value) -> Arg {
    match value {
        Value::Null => Arg::Null,
        Value::Boolean(b) => Arg::Integer(i64::from(*b)),
        Value::Integer(i) => Arg::Integer(*i),
        Value::Text(t) => Arg::from(t.as_str()),
        Value::Date(d) => Arg::Text(d.to_string()),
        Value::Timestamp(t) => Arg::Integer(t.timestamp_micros()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_where_they_stand_and_nowhere_else() {
        let params = BTreeMap::from([("day".to_owned(), Value::from("x'y"))]);
        let text = |sql: &str| with_values(sql, &params).and_then(Sql::build).map(|(text, _)| text);
        assert_eq!(
            text("SELECT :day, ':day' -- :day\n, \":day\" /* :other */ , [:a] ; -- end").unwrap(),
            "SELECT ?1, ':day' -- :day\n, \":day\" /* :other */ , [:a]  -- end"
        );
        assert_eq!(text("SELECT 'it''s :day', :day || :day").unwrap(), "SELECT 'it''s :day', ?1 || ?2");
        assert!(text("SELECT :other").unwrap_err().to_string().contains(":other"));
        assert!(text("SELECT ?").is_err());
        assert!(text("SELECT $1").is_err());
        assert_eq!(text("SELECT a$b, é:day").unwrap(), "SELECT a$b, é?1");
    }
}
