//! Statements and the values bound to them. Values are bound, never spliced; names are quoted here and nowhere else.

use futures::stream::BoxStream;
use reprocess_core::{Error, Result};
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{Arguments, AssertSqlSafe, Sqlite};

use crate::error::Doing;

/// How many values one statement of SQLite can bind.
const MOST_ARGUMENTS: usize = 32_766;

/// A value as SQLite stores it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Arg {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
    Blob(Vec<u8>),
}

impl Arg {
    pub(crate) fn add_to(self, arguments: &mut SqliteArguments) -> Result<()> {
        match self {
            Self::Null => arguments.add(None::<i64>),
            Self::Integer(i) => arguments.add(i),
            Self::Real(x) => arguments.add(x),
            Self::Text(t) => arguments.add(t),
            Self::Blob(b) => arguments.add(b),
        }
        .map_err(|e| Error::internal("a value could not be bound").with_source(e))
    }
}

impl From<i64> for Arg {
    fn from(integer: i64) -> Self {
        Self::Integer(integer)
    }
}

impl From<&str> for Arg {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Arg {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// The name of a table or column, quoted.
pub(crate) fn ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Text with values in it, which are numbered when it is run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sql(Vec<Piece>);

#[derive(Clone, Debug)]
enum Piece {
    Text(String),
    Value(Arg),
}

impl Sql {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(vec![Piece::Text(text.into())])
    }

    /// Adds text.
    #[must_use]
    pub(crate) fn text(mut self, text: impl Into<String>) -> Self {
        self.0.push(Piece::Text(text.into()));
        self
    }

    /// Adds a bound value.
    #[must_use]
    pub(crate) fn bind(mut self, value: impl Into<Arg>) -> Self {
        self.0.push(Piece::Value(value.into()));
        self
    }

    /// Adds another statement's text and values.
    #[must_use]
    pub(crate) fn then(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Any of the conditions; false where there is none.
    pub(crate) fn any(conditions: Vec<Self>) -> Self {
        Self::joined(conditions, " OR ").unwrap_or_else(|| Self::new("0"))
    }

    /// All of the conditions; true where there is none.
    pub(crate) fn all(conditions: Vec<Self>) -> Self {
        Self::joined(conditions, " AND ").unwrap_or_else(|| Self::new("1"))
    }

    /// A balanced tree: SQLite limits the depth of an expression, and a chain of conditions is as deep as it is long.
    fn joined(mut conditions: Vec<Self>, with: &str) -> Option<Self> {
        while conditions.len() > 1 {
            let mut pairs = Vec::with_capacity(conditions.len().div_ceil(2));
            let mut left = conditions.into_iter();
            while let Some(a) = left.next() {
                pairs.push(match left.next() {
                    Some(b) => Self::new("(").then(a).text(with).then(b).text(")"),
                    None => a,
                });
            }
            conditions = pairs;
        }
        conditions.pop()
    }

    pub(crate) fn build(self) -> Result<(String, SqliteArguments)> {
        let (mut text, mut arguments) = (String::new(), SqliteArguments::default());
        for piece in self.0 {
            match piece {
                Piece::Text(piece) => text.push_str(&piece),
                Piece::Value(value) => {
                    value.add_to(&mut arguments)?;
                    text.push_str(&format!("?{}", arguments.len()));
                }
            }
        }
        if arguments.len() > MOST_ARGUMENTS {
            return Err(Error::invalid(format!(
                "the scope needs {} values in one statement, and SQLite takes {MOST_ARGUMENTS}",
                arguments.len()
            ))
            .with_advice("commit or read fewer partitions at a time"));
        }
        Ok((text, arguments))
    }

    /// Runs it and answers how many rows it changed.
    pub(crate) async fn execute(self, connection: &mut SqliteConnection, what: &str) -> Result<u64> {
        let (text, arguments) = self.build()?;
        let query = sqlx::query_with::<Sqlite, _>(AssertSqlSafe(text), arguments).persistent(false);
        Ok(query.execute(connection).await.doing(what)?.rows_affected())
    }

    /// The first row, where there is one.
    pub(crate) async fn first(
        self,
        connection: &mut SqliteConnection,
        what: &str,
    ) -> Result<Option<SqliteRow>> {
        let (text, arguments) = self.build()?;
        let query = sqlx::query_with::<Sqlite, _>(AssertSqlSafe(text), arguments).persistent(false);
        query.fetch_optional(connection).await.doing(what)
    }

    /// All rows.
    pub(crate) async fn rows(self, connection: &mut SqliteConnection, what: &str) -> Result<Vec<SqliteRow>> {
        let (text, arguments) = self.build()?;
        let query = sqlx::query_with::<Sqlite, _>(AssertSqlSafe(text), arguments).persistent(false);
        query.fetch_all(connection).await.doing(what)
    }

    /// The rows one after the other.
    pub(crate) fn stream(
        self,
        connection: &mut SqliteConnection,
    ) -> Result<BoxStream<'_, Result<SqliteRow, sqlx::Error>>> {
        let (text, arguments) = self.build()?;
        Ok(sqlx::query_with::<Sqlite, _>(AssertSqlSafe(text), arguments).persistent(false).fetch(connection))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_end_early() {
        assert_eq!(ident(r#"a"b"#), r#""a""b""#);
    }

    #[test]
    fn values_are_numbered_in_the_order_of_the_text() {
        let one = |i: i64| Sql::new("a = ").bind(i);
        let (text, arguments) =
            Sql::new("WHERE ").then(Sql::any(vec![one(1), one(2), one(3)])).build().unwrap();
        assert_eq!(text, "WHERE ((a = ?1 OR a = ?2) OR a = ?3)");
        assert_eq!(arguments.len(), 3);
        assert_eq!(Sql::any(vec![]).build().unwrap().0, "0");
        assert_eq!(Sql::all(vec![]).build().unwrap().0, "1");
    }
}
