//! The ways to pin a table of others.

use reprocess_core::domain::ids::TableVersion;
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::PgConnection;

use super::super::exported::SnapshotId;
use super::super::moment::Seen;
use super::super::unknown_version;
use crate::catalog::TableName;
use crate::layout::{Kind, quoted, stored};
use crate::sql::{Sql, Statement, ident};

/// Version of a table that is changed in place: its slices tell their versions, the table has none.
const LIVE: &str = "live";

/// Before the mark of a version; alone where the table had no rows.
const MARK: &str = "mark";

/// Before the name of a snapshot.
const SNAPSHOT: &str = "snapshot:";

const XMIN: &str =
    "it has 32 bits and starts again after 4 billion transactions, so that old rows become new ones";

#[derive(Clone, Debug)]
pub(super) enum Way {
    /// By the transaction that added a row.
    AppendOnly { column: String },
    /// By a column that does not fall.
    HighWaterMark { column: String },
    /// By the rows themselves.
    Mutable,
    /// By a moment that another connection keeps.
    InSnapshot { id: SnapshotId },
}

/// The column of a high-water mark.
pub(super) struct Mark {
    /// As it is written in statements.
    name: String,
    /// Its type.
    definition: String,
    nullable: bool,
}

impl Way {
    /// Refuses a table whose column will not do; answers the column of a mark.
    pub(super) async fn check(&self, connection: &mut PgConnection, relation: i64) -> Result<Option<Mark>> {
        match self {
            Self::AppendOnly { column } => {
                check_xid(connection, relation, column)
                    .await
                    .map_err(|e| e.with_context("column", column))?;
                Ok(None)
            }
            Self::HighWaterMark { column } => mark(connection, relation, column).await.map(Some),
            Self::Mutable | Self::InSnapshot { .. } => Ok(None),
        }
    }

    pub(super) async fn current(
        &self,
        connection: &mut PgConnection,
        table: &TableName,
        mark: Option<&Mark>,
    ) -> Result<TableVersion> {
        Ok(match (self, mark) {
            (Self::AppendOnly { .. }, _) => {
                let (seen,): (String,) = Statement::new("SELECT pg_current_snapshot()::text")
                    .one(connection, "ask which transactions have ended")
                    .await?;
                TableVersion::new(seen)
            }
            (_, Some(mark)) => {
                let last: Option<(String,)> = Statement::new(format!(
                    "SELECT m.{name}::text FROM {} AS m WHERE m.{name} IS NOT NULL ORDER BY m.{name} DESC LIMIT 1",
                    table.quoted(),
                    name = mark.name
                ))
                .first(connection, "read the largest mark")
                .await?;
                TableVersion::new(last.map_or(MARK.to_owned(), |(last,)| format!("{MARK}:{last}")))
            }
            (Self::InSnapshot { id }, None) => TableVersion::new(format!("{SNAPSHOT}{id}")),
            (Self::Mutable | Self::HighWaterMark { .. }, None) => TableVersion::from(LIVE),
        })
    }

    /// Whether a version is one that was given.
    pub(super) async fn knows(&self, connection: &mut PgConnection, version: &TableVersion) -> Result<bool> {
        Ok(match self {
            Self::AppendOnly { .. } => {
                let Ok(seen) = version.as_str().parse::<Seen>() else { return Ok(false) };
                // As text: the numbers have 64 bits without a sign.
                let (next,): (String,) =
                    Statement::new("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
                        .one(connection, "ask which transactions have ended")
                        .await?;
                next.parse::<u64>().is_ok_and(|next| seen.next <= next)
            }
            Self::HighWaterMark { .. } => up_to(version).is_some(),
            Self::Mutable => version.as_str() == LIVE,
            Self::InSnapshot { id } => version.as_str().strip_prefix(SNAPSHOT) == Some(&id.to_string()),
        })
    }

    /// The rows of a version to select from.
    pub(super) fn from(&self, table: &TableName, mark: Option<&Mark>, version: &TableVersion) -> Result<Sql> {
        let name = table.quoted();
        let known = match (self, mark) {
            (Self::AppendOnly { column }, _) => version.as_str().parse::<Seen>().ok().map(|seen| {
                // A query of its own, so that the text is read once and not for each row.
                Sql::new(format!(
                    "(SELECT * FROM {name} AS m WHERE pg_visible_in_snapshot(m.{}, (SELECT ",
                    quoted(column)
                ))
                .bind(seen.to_string())
                .text("::pg_snapshot)))")
            }),
            (_, Some(mark)) => up_to(version).map(|last| {
                let rows = Sql::new(format!("(SELECT * FROM {name} AS m WHERE "));
                match last {
                    Some(last) => rows
                        .text(format!("m.{} <= (SELECT ", mark.name))
                        .bind(last)
                        .text(format!("::{}))", mark.definition)),
                    None => rows.text("false)"),
                }
            }),
            (Self::InSnapshot { id }, None) => {
                (version.as_str().strip_prefix(SNAPSHOT) == Some(&id.to_string())).then(|| Sql::new(name))
            }
            (Self::Mutable | Self::HighWaterMark { .. }, None) => {
                (version.as_str() == LIVE).then(|| Sql::new(name))
            }
        };
        known.ok_or_else(|| unknown_version(version, table.table()))
    }

    /// Rows that no pin would read, or not the right ones, and what to say where there are some.
    pub(super) fn unreadable(&self, table: &TableName, mark: Option<&Mark>) -> Option<(Sql, Error)> {
        let from =
            |condition: &str| Sql::new(format!("(SELECT * FROM {} AS m WHERE {condition})", table.quoted()));
        match (self, mark) {
            (Self::AppendOnly { column }, _) => {
                // Who can see a row can see that its transaction has ended.
                let column = quoted(column);
                let condition = format!(
                    "m.{column} >= (SELECT pg_snapshot_xmin(pg_current_snapshot()))
                     AND NOT pg_visible_in_snapshot(m.{column}, (SELECT pg_current_snapshot()))"
                );
                let refusal = Error::new(
                    ErrorKind::Corrupt,
                    format!("rows name in {column} transactions that are not theirs: this server has not ended them"),
                )
                .with_advice(
                    "nobody but the default may fill the column; after a restore from the dump of another server set \
                     it to '3' in all rows",
                );
                Some((from(&condition), refusal))
            }
            (_, Some(mark)) if mark.nullable => {
                let refusal = Error::new(
                    ErrorKind::Corrupt,
                    format!("rows have no mark in {}, and would never be read", mark.name),
                )
                .with_advice("give them one, and make the column NOT NULL");
                Some((from(&format!("m.{} IS NULL", mark.name)), refusal))
            }
            _ => None,
        }
    }
}

/// The mark up to which a version reads, `Some(None)` where there was none. `None` where the version is of another kind.
fn up_to(version: &TableVersion) -> Option<Option<&str>> {
    match version.as_str().strip_prefix(MARK)? {
        "" => Some(None),
        rest => rest.strip_prefix(':').map(Some),
    }
}

async fn mark(connection: &mut PgConnection, relation: i64, column: &str) -> Result<Mark> {
    let name = ident(column)?;
    let (store, nullable) = stored(connection, relation, column)
        .await?
        .ok_or_else(|| Error::invalid(format!("the table has no column `{column}`")))?;
    let grows = match store.kind {
        Kind::Int2 | Kind::Int4 | Kind::Int8 | Kind::Numeric { .. } => true,
        Kind::Date | Kind::Timestamp { .. } | Kind::Text { .. } | Kind::Uuid => !store.blurred,
        _ => false,
    };
    if !grows {
        return Err(Error::invalid(format!(
            "column `{column}` is a {}, which is no mark that grows",
            store.definition
        ))
        .with_advice(
            "use a number, an instant, a day, a text or a UUID; for `xid8` there is `append_only`",
        ));
    }
    Ok(Mark { name, definition: store.definition, nullable })
}

/// Partitions and heirs included: what is added to them directly gets their defaults.
const XID_COLUMNS: &str = "
    WITH RECURSIVE tree (oid) AS (
        SELECT $1::oid
        UNION
        SELECT i.inhrelid FROM tree AS t JOIN pg_inherits AS i ON i.inhparent = t.oid)
    SELECT c.relname::text, c.relkind::text, a.atttypid::bigint, coalesce(a.attnotnull, false),
           coalesce(pg_get_expr(d.adbin, d.adrelid), '')
    FROM tree AS t
    JOIN pg_class AS c ON c.oid = t.oid
    LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = $2 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
    ORDER BY t.oid <> $1::oid, 1";

const XID: i64 = 28;
const XID8: i64 = 5069;

/// What is known of the column in one relation.
type XidColumn = (String, String, Option<i64>, bool, String);

async fn check_xid(connection: &mut PgConnection, relation: i64, column: &str) -> Result<()> {
    const WHAT: &str = "look at the column of transactions";
    let (is_standby,): (bool,) = Statement::new("SELECT pg_is_in_recovery()").one(connection, WHAT).await?;
    if is_standby {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "a standby does not tell which transactions are under way, and their rows would be lost",
        )
        .with_advice("connect to the primary"));
    }
    let found: Vec<XidColumn> =
        Statement::new(XID_COLUMNS).bind(relation).bind(column).all(connection, WHAT).await?;
    for (name, relkind, data_type, not_null, default) in found {
        let refuse = |why: &str| {
            Err(Error::invalid(format!(
                "a source that only grows cannot be pinned by `{column}` of `{name}`: {why}"
            ))
            .with_advice(format!(
                "let its owner declare {} xid8 NOT NULL DEFAULT pg_current_xact_id()",
                quoted(column)
            )))
        };
        match (relkind.as_str(), data_type) {
            ("r" | "p", Some(XID8)) => {}
            ("r" | "p", Some(XID)) => return refuse(XMIN),
            ("r" | "p", Some(_)) => return refuse("it is not of the type xid8"),
            ("r" | "p", None) => return refuse("there is no such column"),
            _ => return refuse("only tables of this server say which of its transactions added a row"),
        }
        if !not_null {
            return refuse("it may be NULL, and such rows would never be read");
        }
        if !["pg_current_xact_id()", "pg_catalog.pg_current_xact_id()"].contains(&default.as_str()) {
            return refuse("its default is not pg_current_xact_id()");
        }
    }
    Ok(())
}
