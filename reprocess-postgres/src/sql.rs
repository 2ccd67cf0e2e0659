//! Statements and the values bound to them. Values are bound, never spliced; names are quoted here and nowhere else.

use chrono::{DateTime, Datelike, Utc};
use reprocess_core::{Error, Result};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments, AssertSqlSafe, FromRow, PgConnection, Postgres};

use crate::error::Doing;

/// How many values one statement of PostgreSQL can bind.
const MOST_ARGUMENTS: usize = 65_535;

/// How many bytes of a name PostgreSQL keeps; it would cut the rest off without an error.
const LONGEST_NAME: usize = 63;

/// A value as PostgreSQL takes it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Arg {
    Flag(bool),
    Integer(i64),
    Text(String),
    Instant(DateTime<Utc>),
    /// A NULL that is text until the statement says otherwise.
    Null,
    NoFlag,
    NoInteger,
    NoText,
    NoInstant,
    Integers(Vec<i64>),
    Texts(Vec<String>),
}

impl Arg {
    fn add_to(self, arguments: &mut PgArguments) -> Result<()> {
        match self {
            Self::Flag(flag) => arguments.add(flag),
            Self::Integer(i) => arguments.add(i),
            Self::Text(text) => arguments.add(without_nul(text)?),
            Self::Instant(at) => arguments.add(to_micros(at)),
            Self::Null | Self::NoText => arguments.add(None::<String>),
            Self::NoFlag => arguments.add(None::<bool>),
            Self::NoInteger => arguments.add(None::<i64>),
            Self::NoInstant => arguments.add(None::<DateTime<Utc>>),
            Self::Integers(integers) => arguments.add(integers),
            Self::Texts(texts) => {
                arguments.add(texts.into_iter().map(without_nul).collect::<Result<Vec<_>>>()?)
            }
        }
        .map_err(|e| Error::internal("a value could not be bound").with_source(e))
    }
}

impl Arg {
    /// The value as text and its type; `None` for NULL.
    fn looked_up(self) -> Result<Option<(String, &'static str)>> {
        Ok(Some(match self {
            Self::Flag(flag) => (flag.to_string(), "boolean"),
            Self::Integer(i) => (i.to_string(), "bigint"),
            Self::Text(text) => (without_nul(text)?, "text"),
            Self::Instant(at) => (instant(at), "timestamptz"),
            Self::Null | Self::NoFlag | Self::NoInteger | Self::NoText | Self::NoInstant => {
                return Ok(None);
            }
            Self::Integers(_) | Self::Texts(_) => {
                return Err(Error::internal("a list is no value of a COPY"));
            }
        }))
    }
}

/// As PostgreSQL reads it, with any number of digits in the year.
fn instant(at: DateTime<Utc>) -> String {
    let at = to_micros(at);
    let (year, era) = match at.year() {
        year @ 1.. => (year, ""),
        before => (1 - before, " BC"),
    };
    format!("{year:04}-{}+00{era}", at.format("%m-%d %H:%M:%S%.6f"))
}

fn without_nul(text: String) -> Result<String> {
    if text.contains('\0') {
        let message =
            format!("`{}` holds the character NUL, which PostgreSQL cannot store", text.escape_debug());
        return Err(Error::invalid(message));
    }
    Ok(text)
}

/// The server keeps no more.
fn to_micros(at: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(at.timestamp_micros()).unwrap_or(at)
}

macro_rules! arg_from {
    ($($type:ty => $arm:ident, $none:ident;)*) => {$(
        impl From<$type> for Arg {
            fn from(value: $type) -> Self {
                Self::$arm(value.into())
            }
        }

        impl From<Option<$type>> for Arg {
            fn from(value: Option<$type>) -> Self {
                value.map_or(Self::$none, Self::from)
            }
        }
    )*};
}

arg_from! {
    bool => Flag, NoFlag;
    i64 => Integer, NoInteger;
    i32 => Integer, NoInteger;
    u32 => Integer, NoInteger;
    &str => Text, NoText;
    String => Text, NoText;
    DateTime<Utc> => Instant, NoInstant;
    Vec<i64> => Integers, Null;
    Vec<String> => Texts, Null;
}

/// The name of a table, column or the like, quoted. Refuses what PostgreSQL would cut off or cannot hold.
pub(crate) fn ident(name: &str) -> Result<String> {
    let refuse =
        |why: &str| Err(Error::invalid(format!("`{}` is no name in PostgreSQL: {why}", name.escape_debug())));
    if name.is_empty() {
        return refuse("it is empty");
    }
    if name.contains('\0') {
        return refuse("it holds the character NUL");
    }
    if name.len() > LONGEST_NAME {
        return refuse(&format!("it has {} bytes, and {LONGEST_NAME} are kept", name.len()));
    }
    Ok(format!("\"{}\"", name.replace('"', "\"\"")))
}

/// One statement with the values of `$1`, `$2` …, run without a name: one that is prepared under a name would meet
/// another connection behind a pooler.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    text: String,
    values: Vec<Arg>,
}

impl Statement {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), values: Vec::new() }
    }

    /// Gives the next value.
    #[must_use]
    pub(crate) fn bind(mut self, value: impl Into<Arg>) -> Self {
        self.values.push(value.into());
        self
    }

    fn build(self) -> Result<(AssertSqlSafe<String>, PgArguments)> {
        if self.values.len() > MOST_ARGUMENTS {
            return Err(Error::invalid(format!(
                "the scope needs {} values in one statement, and PostgreSQL takes {MOST_ARGUMENTS}",
                self.values.len()
            ))
            .with_advice("commit or read fewer partitions at a time"));
        }
        let mut arguments = PgArguments::default();
        for value in self.values {
            value.add_to(&mut arguments)?;
        }
        Ok((AssertSqlSafe(self.text), arguments))
    }

    /// Runs it and answers how many rows it changed.
    pub(crate) async fn execute(self, connection: &mut PgConnection, what: &str) -> Result<u64> {
        let (text, arguments) = self.build()?;
        let query = sqlx::query_with::<Postgres, _>(text, arguments).persistent(false);
        Ok(query.execute(connection).await.doing(what)?.rows_affected())
    }

    /// All rows.
    pub(crate) async fn all<R>(self, connection: &mut PgConnection, what: &str) -> Result<Vec<R>>
    where
        R: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        let (text, arguments) = self.build()?;
        let query = sqlx::query_as_with::<Postgres, R, _>(text, arguments).persistent(false);
        query.fetch_all(connection).await.doing(what)
    }

    /// The first row, where there is one.
    pub(crate) async fn first<R>(self, connection: &mut PgConnection, what: &str) -> Result<Option<R>>
    where
        R: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        let (text, arguments) = self.build()?;
        let query = sqlx::query_as_with::<Postgres, R, _>(text, arguments).persistent(false);
        query.fetch_optional(connection).await.doing(what)
    }

    /// The one row.
    pub(crate) async fn one<R>(self, connection: &mut PgConnection, what: &str) -> Result<R>
    where
        R: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        let (text, arguments) = self.build()?;
        let query = sqlx::query_as_with::<Postgres, R, _>(text, arguments).persistent(false);
        query.fetch_one(connection).await.doing(what)
    }
}

/// Text with values in it, which are numbered as it becomes a statement.
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
        Self::joined(conditions, " OR ").unwrap_or_else(|| Self::new("false"))
    }

    /// All of the conditions; true where there is none.
    pub(crate) fn all(conditions: Vec<Self>) -> Self {
        Self::joined(conditions, " AND ").unwrap_or_else(|| Self::new("true"))
    }

    /// The server makes one flat list of them, however many there are.
    fn joined(conditions: Vec<Self>, with: &str) -> Option<Self> {
        let mut conditions = conditions.into_iter();
        let first = Self::new("(").then(conditions.next()?);
        let joined = conditions.fold(first, |joined, next| joined.text(with).then(next));
        Some(joined.text(")"))
    }

    /// The statement, its values numbered in the order of the text.
    pub(crate) fn statement(self) -> Statement {
        let mut statement = Statement::new("");
        for piece in self.0 {
            match piece {
                Piece::Text(text) => statement.text.push_str(&text),
                Piece::Value(value) => {
                    statement.values.push(value);
                    statement.text.push_str(&format!("${}", statement.values.len()));
                }
            }
        }
        statement
    }

    /// The text for a COPY, which takes no values: they are looked up by name, under which [`set`] puts them first.
    pub(crate) fn copied(self) -> Result<(String, Vec<String>)> {
        let (mut text, mut values) = (String::new(), Vec::new());
        for piece in self.0 {
            match piece {
                Piece::Text(piece) => text.push_str(&piece),
                Piece::Value(value) => match value.looked_up()? {
                    Some((value, kind)) => {
                        values.push(value);
                        text.push_str(&format!("current_setting('{VALUE}{}')::{kind}", values.len()));
                    }
                    None => text.push_str("NULL"),
                },
            }
        }
        Ok((text, values))
    }
}

/// Where the values of a COPY are looked up, until the transaction ends.
const VALUE: &str = "reprocess_value.v";

/// Sets the values of a COPY for this transaction.
pub(crate) async fn set(connection: &mut PgConnection, values: Vec<String>, what: &str) -> Result<()> {
    if values.is_empty() {
        return Ok(());
    }
    let set: Vec<(i64,)> = Statement::new(format!(
        "SELECT count(set_config('{VALUE}' || n, value, true)) FROM unnest($1::text[]) WITH ORDINALITY AS v (value, n)"
    ))
    .bind(values)
    .all(connection, what)
    .await?;
    debug_assert_eq!(set.len(), 1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_end_early_and_are_not_cut_off() {
        assert_eq!(ident(r#"a"b"#).unwrap(), r#""a""b""#);
        let check = |name: &str, words: &str| {
            let error = ident(name).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        check("", "empty");
        check("a\0b", r"`a\0b`");
        assert!(ident(&"é".repeat(31)).is_ok());
        check(&"é".repeat(32), "it has 64 bytes, and 63 are kept");
    }

    #[test]
    fn values_of_a_copy_are_looked_up() {
        let sql =
            Sql::new("a = ").bind(5_i64).text(" AND b IS ").bind(Arg::NoText).text(" AND c = ").bind("x'");
        let (text, values) = sql.copied().unwrap();
        assert_eq!(
            text,
            "a = current_setting('reprocess_value.v1')::bigint AND b IS NULL AND c = \
             current_setting('reprocess_value.v2')::text"
        );
        assert_eq!(values, ["5", "x'"]);
        let check = |micros: i64, text: &str| {
            assert_eq!(instant(DateTime::from_timestamp_micros(micros).unwrap()), text);
        };
        check(-1, "1969-12-31 23:59:59.999999+00");
        check(253_402_300_800_000_000, "10000-01-01 00:00:00.000000+00");
        check(-62_135_596_800_000_001, "0001-12-31 23:59:59.999999+00 BC");
    }

    #[test]
    fn text_with_nul_is_refused_by_its_value() {
        for value in [Arg::from("a\0b"), Arg::Texts(vec!["good".into(), "a\0b".into()])] {
            let error = Statement::new("SELECT $1").bind(value).build().err().unwrap();
            assert!(error.to_string().contains(r"`a\0b`"), "{error}");
        }
    }

    #[test]
    fn more_values_than_the_protocol_counts_are_refused() {
        let values = (0..65_536).fold(Statement::new("SELECT"), |statement, i| statement.bind(i));
        assert!(values.build().err().unwrap().to_string().contains("65536"));
    }

    #[test]
    fn values_are_numbered_in_the_order_of_the_text() {
        let one = |i: i64| Sql::new("a = ").bind(i);
        let statement = Sql::new("WHERE ").then(Sql::any(vec![one(1), one(2), one(3)])).statement();
        assert_eq!(statement.text, "WHERE (a = $1 OR a = $2 OR a = $3)");
        assert_eq!(statement.values, [1, 2, 3].map(Arg::Integer));
        assert_eq!(Sql::any(vec![]).statement().text, "false");
        assert_eq!(Sql::all(vec![]).statement().text, "true");
    }
}
