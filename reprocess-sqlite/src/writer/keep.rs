//! What commits replaced, kept so that it can be restored.
//!
//! Of a replace every row of the touched partitions is kept; of a merge only the rows that changed or went, and, marked
//! as new, those that came.

use std::sync::Arc;

use arrow_schema::Schema;
use reprocess_core::domain::ids::TableId;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Kept;
use reprocess_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use super::SqliteTable;
use super::apply::Step;
use crate::catalog::{Managed, from_json, to_json};
use crate::error::Doing;
use crate::layout::Layout;
use crate::predicate::Rows;
use crate::sql::{Sql, ident};

const KEEP: &str = "keep replaced rows";
const RESTORE: &str = "restore rows";

/// What one entry of a commit replaced.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct KeptEntry {
    /// The keys whose rows were replaced,
    pub(super) touched: Vec<PartitionKey>,
    /// as far as they belong to each of these scopes.
    pub(super) within: Vec<Scope>,
    /// The columns by which rows were merged; `None` for a replace.
    pub(super) merge: Option<Vec<String>>,
}

impl KeptEntry {
    fn covers(&self, key: &PartitionKey) -> bool {
        self.within.iter().all(|scope| scope.covers(key))
    }

    fn overlaps(&self, other: &Scope) -> bool {
        self.within.iter().all(|scope| scope.overlaps(other))
    }

    /// The part of this entry that belongs to the scope as well.
    fn narrowed(&self, scope: &Scope) -> Self {
        let within = self.within.iter().cloned().chain([scope.clone()]).collect();
        Self { touched: self.touched.clone(), within, merge: self.merge.clone() }
    }

    /// The rows `t` that the entry is about.
    fn region(&self, rows: Rows<'_>) -> Result<Sql> {
        let mut conditions = vec![rows.keys(self.touched.iter())?];
        for scope in &self.within {
            conditions.push(rows.scope(scope)?);
        }
        Ok(Sql::all(conditions))
    }
}

/// Where the rows of an entry go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    seq: i64,
    entry: i64,
    rows: i64,
}

/// An entry, and where its rows are.
struct Found {
    slot: Slot,
    entry: KeptEntry,
    layout: Layout,
}

/// What is told of the rows that the commit of a number replaced.
pub(super) fn kept(table: &TableId, seq: i64) -> Kept {
    Kept(serde_json::json!({ "table": table, "seq": seq }))
}

fn seq_of(kept: &Kept, name: &str) -> Result<i64> {
    let here = kept.0.get("table").and_then(|table| table.as_str()).map(ident).as_deref() == Some(name);
    kept.0
        .get("seq")
        .and_then(serde_json::Value::as_i64)
        .filter(|_| here)
        .ok_or_else(|| Error::new(ErrorKind::Corrupt, "what is to be restored was not kept by this table"))
}

/// Notes an entry, and answers where its rows go.
pub(super) async fn register(
    connection: &mut SqliteConnection,
    managed: &Managed,
    seq: i64,
    entry: &KeptEntry,
) -> Result<Slot> {
    let rows = rows_table(connection, managed).await?;
    let row = Sql::new("INSERT INTO main.reprocess_kept (t, seq, entry, detail, kept_rows) SELECT ")
        .bind(managed.t)
        .text(", ")
        .bind(seq)
        .text(", count(*), ")
        .bind(to_json(entry)?)
        .text(", ")
        .bind(rows)
        .text(" FROM main.reprocess_kept WHERE t = ")
        .bind(managed.t)
        .text(" AND seq = ")
        .bind(seq)
        .text(" RETURNING entry")
        .first(connection, KEEP)
        .await?
        .ok_or_else(|| Error::internal("a kept entry got no number"))?;
    Ok(Slot { seq, entry: row.try_get(0).doing(KEEP)?, rows })
}

/// Copies rows with the columns of a layout as they were; `from` names them `t`.
pub(super) async fn copy(
    connection: &mut SqliteConnection,
    layout: &Layout,
    slot: Slot,
    from: Sql,
) -> Result<()> {
    copy_as(connection, layout, slot, 0, from).await
}

/// Copies rows that were not there before.
pub(super) async fn copy_new(
    connection: &mut SqliteConnection,
    layout: &Layout,
    slot: Slot,
    from: Sql,
) -> Result<()> {
    copy_as(connection, layout, slot, 1, from).await
}

async fn copy_as(
    connection: &mut SqliteConnection,
    layout: &Layout,
    slot: Slot,
    is_new: i64,
    from: Sql,
) -> Result<()> {
    Sql::new(format!(
        "INSERT INTO main.reprocess_kept_rows_{} (reprocess_seq, reprocess_entry, reprocess_new, {}) SELECT ",
        slot.rows,
        layout.list("")
    ))
    .bind(slot.seq)
    .text(", ")
    .bind(slot.entry)
    .text(", ")
    .bind(is_new)
    .text(format!(", {} FROM ", layout.list("t.")))
    .then(from)
    .execute(connection, KEEP)
    .await?;
    Ok(())
}

/// One table for each set of columns that the table had.
async fn rows_table(connection: &mut SqliteConnection, managed: &Managed) -> Result<i64> {
    let columns = to_json(managed.layout.schema().as_ref())?;
    let find = Sql::new("SELECT kept_rows FROM main.reprocess_kept_rows WHERE t = ")
        .bind(managed.t)
        .text(" AND columns = ")
        .bind(columns.as_str());
    if let Some(row) = find.first(connection, KEEP).await? {
        return row.try_get(0).doing(KEEP);
    }
    let row = Sql::new("INSERT INTO main.reprocess_kept_rows (t, columns) VALUES (")
        .bind(managed.t)
        .text(", ")
        .bind(columns)
        .text(") RETURNING kept_rows")
        .first(connection, KEEP)
        .await?
        .ok_or_else(|| Error::internal("kept rows got no number"))?;
    let rows: i64 = row.try_get(0).doing(KEEP)?;
    let columns = managed.layout.definitions()?.join(", ");
    Sql::new(format!(
        "CREATE TABLE main.reprocess_kept_rows_{rows} (reprocess_seq INTEGER NOT NULL, \
         reprocess_entry INTEGER NOT NULL, reprocess_new INTEGER NOT NULL, {columns})"
    ))
    .execute(connection, KEEP)
    .await?;
    Sql::new(format!(
        "CREATE INDEX main.reprocess_kept_seq_{rows} ON reprocess_kept_rows_{rows} (reprocess_seq, reprocess_entry)"
    ))
    .execute(connection, KEEP)
    .await?;
    Ok(rows)
}

/// Brings back what a commit replaced in the partitions of the step's scope. `false` where the table has other columns
/// than the rows.
pub(super) async fn restore(
    connection: &mut SqliteConnection,
    managed: &mut Managed,
    step: &Step<'_>,
    kept: &Kept,
) -> Result<bool> {
    let found = find(connection, managed, seq_of(kept, &managed.name)?).await?;
    if found.is_empty() {
        return Err(Error::new(ErrorKind::State, "what the commit replaced is no longer kept")
            .with_advice("re-run the partitions with the earlier logic instead"));
    }
    let covered = |key: &PartitionKey| found.iter().any(|f| f.entry.covers(key));
    if let Some(key) = step.scope.partitions().iter().find(|key| !covered(key)) {
        return Err(Error::invalid("the commit did not replace a partition that is to be restored")
            .with_context("partition", key));
    }
    for found in found.iter().filter(|f| f.entry.overlaps(step.scope)) {
        let rebuilds = !managed.layout.has_all_of(&found.layout);
        if rebuilds && !step.scope.is_whole_table() {
            return Ok(false);
        }
        let merged = found.entry.merge.as_ref().filter(|_| !rebuilds);
        match merged {
            Some(keys) => restore_merged(connection, managed, step, found, keys).await?,
            None => restore_replaced(connection, managed, step, found, rebuilds).await?,
        }
    }
    Ok(true)
}

/// Where the table had other columns, it gets them back.
async fn restore_replaced(
    connection: &mut SqliteConnection,
    managed: &mut Managed,
    step: &Step<'_>,
    found: &Found,
    rebuilds: bool,
) -> Result<()> {
    let entry = KeptEntry { merge: None, ..found.entry.narrowed(step.scope) };
    let gone = entry.region(managed.rows())?;
    if step.keep {
        let slot = register(connection, managed, step.seq, &entry).await?;
        let from = managed.from().text(" AS t WHERE ").then(gone.clone());
        copy(connection, &managed.layout, slot, from).await?;
    }
    if rebuilds {
        managed.rebuild(connection, found.layout.clone()).await?;
    } else {
        Sql::new(format!("DELETE FROM main.{} AS t WHERE ", managed.name))
            .then(gone)
            .execute(connection, RESTORE)
            .await?;
    }
    bring_back(connection, managed, step, found).await
}

/// Undoes what the merge did to single rows; others of the scope stay.
async fn restore_merged(
    connection: &mut SqliteConnection,
    managed: &Managed,
    step: &Step<'_>,
    found: &Found,
    keys: &[String],
) -> Result<()> {
    let equal: Vec<_> = keys.iter().map(|key| ident(key)).map(|key| format!("t.{key} = k.{key}")).collect();
    let matched = Sql::new(format!(
        "SELECT t._rowid_ FROM main.reprocess_kept_rows_{} AS k CROSS JOIN main.{} AS t ON {} WHERE ",
        found.slot.rows,
        managed.name,
        equal.join(" AND ")
    ))
    .then(of_entry("k", found.slot))
    .text(" AND ")
    .then(managed.rows().scope(step.scope)?);
    if step.keep {
        let slot = register(connection, managed, step.seq, &found.entry.narrowed(step.scope)).await?;
        let going = managed.from().text(" AS t WHERE t._rowid_ IN (").then(matched.clone()).text(")");
        copy(connection, &managed.layout, slot, going).await?;
        copy_new(connection, &found.layout, slot, kept_rows(managed, step, found)?).await?;
    }
    Sql::new(format!("DELETE FROM main.{} WHERE _rowid_ IN (", managed.name))
        .then(matched)
        .text(")")
        .execute(connection, RESTORE)
        .await?;
    bring_back(connection, managed, step, found).await
}

/// Puts the kept rows of the step's scope into the table.
async fn bring_back(
    connection: &mut SqliteConnection,
    managed: &Managed,
    step: &Step<'_>,
    found: &Found,
) -> Result<()> {
    let (into, from) = (found.layout.list(""), found.layout.list("t."));
    Sql::new(format!("INSERT INTO main.{} ({into}) SELECT {from} FROM ", managed.name))
        .then(kept_rows(managed, step, found)?)
        .execute(connection, RESTORE)
        .await?;
    Ok(())
}

/// The kept rows of the step's scope that were there before the commit, under the name `t`.
fn kept_rows(managed: &Managed, step: &Step<'_>, found: &Found) -> Result<Sql> {
    let rows = Rows { layout: &found.layout, partitioning: &managed.partitioning };
    Ok(Sql::new(format!("main.reprocess_kept_rows_{} AS t WHERE t.reprocess_new = 0 AND ", found.slot.rows))
        .then(of_entry("t", found.slot))
        .text(" AND ")
        .then(rows.scope(step.scope)?))
}

fn of_entry(name: &str, slot: Slot) -> Sql {
    Sql::new(format!("{name}.reprocess_seq = "))
        .bind(slot.seq)
        .text(format!(" AND {name}.reprocess_entry = "))
        .bind(slot.entry)
}

async fn find(connection: &mut SqliteConnection, managed: &Managed, seq: i64) -> Result<Vec<Found>> {
    let rows = Sql::new(
        "SELECT k.entry, k.detail, k.kept_rows, r.columns FROM main.reprocess_kept AS k
         JOIN main.reprocess_kept_rows AS r ON r.kept_rows = k.kept_rows WHERE k.t = ",
    )
    .bind(managed.t)
    .text(" AND k.seq = ")
    .bind(seq)
    .text(" ORDER BY k.entry")
    .rows(connection, RESTORE)
    .await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        let schema: Schema = from_json(&row.try_get::<String, _>(3).doing(RESTORE)?)?;
        found.push(Found {
            slot: Slot { seq, entry: row.try_get(0).doing(RESTORE)?, rows: row.try_get(2).doing(RESTORE)? },
            entry: from_json(&row.try_get::<String, _>(1).doing(RESTORE)?)?,
            layout: Layout::own(Arc::new(schema))?,
        });
    }
    Ok(found)
}

/// Frees the rows that a commit kept.
pub(super) async fn forget(table: &SqliteTable, kept: &Kept) -> Result<()> {
    let what = "free kept rows";
    let mut tx = table.database().begin_write().await?;
    let Some(managed) = Managed::load(&mut tx, table.spec()).await? else { return Ok(()) };
    let seq = seq_of(kept, &managed.name)?;
    for found in find(&mut tx, &managed, seq).await? {
        Sql::new(format!("DELETE FROM main.reprocess_kept_rows_{} WHERE reprocess_seq = ", found.slot.rows))
            .bind(seq)
            .execute(&mut tx, what)
            .await?;
    }
    Sql::new("DELETE FROM main.reprocess_kept WHERE t = ")
        .bind(managed.t)
        .text(" AND seq = ")
        .bind(seq)
        .execute(&mut tx, what)
        .await?;
    tx.commit().await.doing(what)
}
