//! Merging staged rows by key.

use reprocess_core::Result;
use reprocess_core::ports::writer::MergeKeys;
use sqlx::sqlite::SqliteConnection;

use super::apply::Step;
use super::keep::{self, KeptEntry};
use crate::catalog::{Managed, to_json};
use crate::layout::Layout;
use crate::predicate::Rows;
use crate::sql::{Sql, ident};

const WHAT: &str = "merge rows";

/// Which staged row has the key of which row of the table, whether it is newer, and what becomes of the latter.
const MATCH: &str = "temp.reprocess_match";

/// Fates of a row of the table that a staged row meets: it stays, takes the staged values, or goes. Where several rows
/// have one key, which none of ours do, the merge leaves one.
const UPDATED: u8 = 1;
const DELETED: u8 = 2;

/// Merges the rows of a staged table. Rows are matched within the scope only, since a commit touches nothing else.
pub(super) async fn apply(
    connection: &mut SqliteConnection,
    managed: &Managed,
    step: &Step<'_>,
    merge: &MergeKeys,
    rows: &str,
) -> Result<()> {
    index(connection, managed, merge).await?;
    matches(connection, managed, step, merge, rows).await?;
    let vanished = vanished(managed, step, merge)?;
    if step.keep {
        keep_changes(connection, managed, step, merge, rows, vanished.clone()).await?;
    }
    let name = format!("main.{}", managed.name);
    let going = Sql::any([Some(met(DELETED)), vanished].into_iter().flatten().collect());
    Sql::new(format!("DELETE FROM {name} AS t WHERE ")).then(going).execute(connection, WHAT).await?;
    let others: Vec<_> =
        managed.layout.names().filter(|c| !merge.keys.iter().any(|k| k == c)).map(ident).collect();
    if !others.is_empty() {
        let taken: Vec<_> = others.iter().map(|column| format!("s.{column}")).collect();
        Sql::new(format!(
            "UPDATE {name} AS t SET ({}) = (SELECT {} FROM {MATCH} AS m CROSS JOIN {rows} AS s ON s._rowid_ = m.s
             WHERE m.t = t._rowid_) WHERE ",
            others.join(", "),
            taken.join(", ")
        ))
        .then(met(UPDATED))
        .execute(connection, WHAT)
        .await?;
    }
    Sql::new(format!(
        "INSERT INTO {name} ({}) SELECT {} FROM ",
        managed.layout.list(""),
        managed.layout.list("s.")
    ))
    .text(inserted(rows, "s"))
    .execute(connection, WHAT)
    .await?;
    Sql::new(format!("DROP TABLE {MATCH}")).execute(connection, WHAT).await?;
    Ok(())
}

/// Condition under which the staged row `s` takes the place of the row `t` with its key, as far as their order says.
pub(crate) fn takes_over(merge: &MergeKeys, s: &str, t: &str) -> String {
    match merge.newer.as_deref().map(ident) {
        Some(newer) => {
            format!("({s}.{newer} > {t}.{newer} OR ({t}.{newer} IS NULL AND {s}.{newer} IS NOT NULL))")
        }
        None => "1".to_owned(),
    }
}

/// Condition under which `s` and `t` have the same key.
pub(crate) fn in_place_of(merge: &MergeKeys, s: &str, t: &str) -> String {
    let equal: Vec<_> =
        merge.keys.iter().map(|key| ident(key)).map(|key| format!("{t}.{key} = {s}.{key}")).collect();
    equal.join(" AND ")
}

/// The rows `t` of the scope that the owner wrote, whatever their key.
pub(crate) fn owned(rows: Rows<'_>, step_scope: Sql, merge: &MergeKeys) -> Result<Option<Sql>> {
    let Some(owner) = &merge.delete_vanished else { return Ok(None) };
    let mut conditions = vec![step_scope];
    for (column, value) in owner {
        conditions.push(rows.equal(column, value)?);
    }
    Ok(Some(Sql::all(conditions)))
}

/// An index on the keys, made with the first merge: without it each staged row would scan the table.
async fn index(connection: &mut SqliteConnection, managed: &Managed, merge: &MergeKeys) -> Result<()> {
    let columns: Vec<_> = merge.keys.iter().map(|key| ident(key)).collect();
    let hash = blake3::hash(to_json(&merge.keys)?.as_bytes()).to_hex();
    let hash = hash.get(..16).unwrap_or_default();
    Sql::new(format!(
        "CREATE INDEX IF NOT EXISTS main.reprocess_keys_{}_{hash} ON {} ({})",
        managed.t,
        managed.name,
        columns.join(", ")
    ))
    .execute(connection, "create an index")
    .await?;
    Ok(())
}

/// The cross join fixes the order: few staged rows, each with a look into the index of the table.
async fn matches(
    connection: &mut SqliteConnection,
    managed: &Managed,
    step: &Step<'_>,
    merge: &MergeKeys,
    rows: &str,
) -> Result<()> {
    for statement in [
        format!("DROP TABLE IF EXISTS {MATCH}"),
        format!(
            "CREATE TABLE {MATCH} (t INTEGER PRIMARY KEY, s INTEGER NOT NULL, newer INTEGER, fate INTEGER)"
        ),
    ] {
        Sql::new(statement).execute(connection, WHAT).await?;
    }
    let newer = takes_over(merge, "s", "t");
    Sql::new(format!(
        "INSERT INTO {MATCH} (t, s, newer, fate) SELECT t._rowid_, s._rowid_, ifnull({newer}, 0), "
    ))
    .then(Sql::all(vec![Sql::new(format!("ifnull({newer}, 0)")), differs(&managed.layout, merge)]))
    .text(format!(
        " FROM {rows} AS s CROSS JOIN main.{} AS t ON {} WHERE ",
        managed.name,
        in_place_of(merge, "s", "t")
    ))
    .then(managed.rows().scope(step.scope)?)
    .execute(connection, WHAT)
    .await?;
    Sql::new("CREATE INDEX temp.reprocess_match_s ON reprocess_match (s)").execute(connection, WHAT).await?;
    Sql::new(format!(
        "UPDATE {MATCH} AS m SET fate = {DELETED} WHERE m.newer = 1 AND EXISTS
         (SELECT 1 FROM {MATCH} AS o WHERE o.s = m.s AND (o.newer = 0 OR o.t < m.t))"
    ))
    .execute(connection, WHAT)
    .await?;
    Ok(())
}

/// The rows `t` of the table that have a fate.
fn met(fate: u8) -> Sql {
    Sql::new(format!("t._rowid_ IN (SELECT m.t FROM {MATCH} AS m WHERE m.fate = {fate})"))
}

/// Rows that are equal already are not rewritten.
fn differs(layout: &Layout, merge: &MergeKeys) -> Sql {
    let others = layout.names().filter(|c| !merge.keys.iter().any(|k| k == c)).map(ident);
    Sql::any(others.map(|column| Sql::new(format!("t.{column} IS NOT s.{column}"))).collect())
}

fn vanished(managed: &Managed, step: &Step<'_>, merge: &MergeKeys) -> Result<Option<Sql>> {
    let rows = managed.rows();
    let owned = owned(rows, rows.scope(step.scope)?, merge)?;
    Ok(owned.map(|owned| owned.text(format!(" AND t._rowid_ NOT IN (SELECT m.t FROM {MATCH} AS m)"))))
}

/// The staged rows, under a name, that match none.
fn inserted(rows: &str, name: &str) -> String {
    format!("{rows} AS {name} WHERE {name}._rowid_ NOT IN (SELECT m.s FROM {MATCH} AS m)")
}

/// Keeps the rows that go as they are, and those that come so that a restore knows them.
async fn keep_changes(
    connection: &mut SqliteConnection,
    managed: &Managed,
    step: &Step<'_>,
    merge: &MergeKeys,
    rows: &str,
    vanished: Option<Sql>,
) -> Result<()> {
    let entry = KeptEntry {
        touched: step.scope.partitions(),
        within: vec![step.scope.clone()],
        merge: Some(merge.keys.clone()),
    };
    let slot = keep::register(connection, managed, step.seq, &entry).await?;
    let changed = Sql::new(format!("t._rowid_ IN (SELECT m.t FROM {MATCH} AS m WHERE m.fate > 0)"));
    let going = Sql::any([Some(changed), vanished].into_iter().flatten().collect());
    // With the others of their keys, in a table where keys repeat: a restore takes away every row of a kept key.
    let others = Sql::new(format!(
        "t._rowid_ IN (SELECT o._rowid_ FROM (SELECT t.* FROM main.{} AS t WHERE ",
        managed.name
    ))
    .then(going.clone())
    .text(format!(") AS k CROSS JOIN main.{} AS o ON {})", managed.name, in_place_of(merge, "k", "o")));
    let kept = Sql::all(vec![managed.rows().scope(step.scope)?, Sql::any(vec![going, others])]);
    keep::copy(connection, &managed.layout, slot, managed.from().text(" AS t WHERE ").then(kept)).await?;
    keep::copy_new(connection, &managed.layout, slot, Sql::new(inserted(rows, "t"))).await
}
