//! What commits replaced, kept so that it can be restored.
//!
//! Of a replace every row of the touched partitions is kept; of a merge only the rows that changed or went, and, marked
//! as new, those that came.

use reprocess_core::domain::ids::TableId;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Kept;
use reprocess_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;

use super::apply::{Step, equal};
use crate::catalog::{Managed, from_json, to_json};
use crate::layout::Layout;
use crate::predicate::Rows;
use crate::schema::Schema;
use crate::sql::{Sql, Statement};

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
#[derive(Clone, Debug)]
pub(super) struct Slot {
    kept: i64,
    entry: i64,
    /// The table, for statements.
    pub(super) rows: String,
}

impl Slot {
    /// The table, for statements.
    pub(super) fn rows(&self) -> &str {
        &self.rows
    }

    /// The statements that make a table of rows the one of this entry, without writing it.
    pub(super) fn marks(&self, table: &str) -> String {
        format!(
            "ALTER TABLE {table} ADD COLUMN reprocess_kept bigint NOT NULL DEFAULT {},
             ADD COLUMN reprocess_entry bigint NOT NULL DEFAULT {}, ADD COLUMN reprocess_new boolean NOT NULL DEFAULT false",
            self.kept, self.entry
        )
    }

    /// Inserts rows of `from`, which names them `t`.
    pub(super) fn insert(&self, layout: &Layout, is_new: bool, from: Sql) -> Sql {
        Sql::new(format!(
            "INSERT INTO {} (reprocess_kept, reprocess_entry, reprocess_new, {}) SELECT ",
            self.rows,
            layout.list("")
        ))
        .bind(self.kept)
        .text("::bigint, ")
        .bind(self.entry)
        .text(format!("::bigint, {is_new}, {} FROM ", layout.list("t.")))
        .then(from)
    }

    /// The rows of the entry under a name.
    fn is_of(&self, name: &str) -> Sql {
        Sql::new(format!("{name}.reprocess_kept = "))
            .bind(self.kept)
            .text(format!(" AND {name}.reprocess_entry = "))
            .bind(self.entry)
    }
}

/// An entry, and where its rows are.
pub(super) struct Found {
    pub(super) slot: Slot,
    entry: KeptEntry,
    layout: Layout,
    /// Whether the table is of this entry alone.
    pub(super) alone: bool,
}

/// What is told of the rows that were kept under a number.
pub(super) fn kept(table: &TableId, number: i64) -> Kept {
    Kept(serde_json::json!({ "table": table, "kept": number }))
}

pub(super) fn number_of(kept: &Kept, table: &TableId) -> Result<i64> {
    let here = kept.0.get("table").and_then(serde_json::Value::as_str) == Some(table.as_str());
    kept.0
        .get("kept")
        .and_then(serde_json::Value::as_i64)
        .filter(|_| here)
        .ok_or_else(|| Error::new(ErrorKind::Corrupt, "what is to be restored was not kept by this table"))
}

/// The number under which a commit keeps rows.
pub(super) async fn number(connection: &mut PgConnection, schema: &Schema) -> Result<i64> {
    let sequence = schema.text("reprocess.table_kept_number");
    let (number,): (i64,) =
        Statement::new("SELECT nextval($1::regclass)").bind(sequence).one(connection, KEEP).await?;
    Ok(number)
}

/// Notes an entry, and answers where its rows go.
pub(super) async fn register(
    connection: &mut PgConnection,
    managed: &Managed,
    kept: i64,
    entry: &KeptEntry,
) -> Result<Slot> {
    let rows = rows_table(connection, managed).await?;
    register_in(connection, managed, kept, entry, rows).await
}

async fn register_in(
    connection: &mut PgConnection,
    managed: &Managed,
    kept: i64,
    entry: &KeptEntry,
    rows: i64,
) -> Result<Slot> {
    let (number,): (i64,) = managed
        .schema
        .sql(
            "INSERT INTO reprocess.table_kept (kept, entry, t, detail, kept_rows)
             SELECT $1, count(*), $2, $3, $4 FROM reprocess.table_kept WHERE kept = $1 RETURNING entry",
        )
        .bind(kept)
        .bind(managed.t)
        .bind(to_json(entry)?)
        .bind(rows)
        .one(connection, KEEP)
        .await?;
    Ok(Slot { kept, entry: number, rows: rows_name(managed, rows) })
}

/// Copies rows with the columns of a layout as they were; `from` names them `t`.
pub(super) async fn copy(
    connection: &mut PgConnection,
    layout: &Layout,
    slot: &Slot,
    from: Sql,
) -> Result<()> {
    slot.insert(layout, false, from).statement().execute(connection, KEEP).await?;
    Ok(())
}

/// Notes an entry whose rows are a partition that was replaced, whole, and answers where it belongs.
pub(super) async fn register_alone(
    connection: &mut PgConnection,
    managed: &Managed,
    kept: i64,
    entry: &KeptEntry,
    old: &str,
) -> Result<Slot> {
    let (rows,): (i64,) = managed
        .schema
        .sql(
            "INSERT INTO reprocess.table_kept_rows (t, digest, columns, alone) VALUES ($1, $2, $3, true)
             RETURNING kept_rows",
        )
        .bind(managed.t)
        .bind(old)
        .bind(to_json(&managed.layout)?)
        .one(connection, KEEP)
        .await?;
    register_in(connection, managed, kept, entry, rows).await
}

fn rows_name(managed: &Managed, rows: i64) -> String {
    managed.schema.text(&format!("reprocess.kept_{rows}"))
}

/// One table for each set of columns that the table had.
async fn rows_table(connection: &mut PgConnection, managed: &Managed) -> Result<i64> {
    let columns = to_json(&managed.layout)?;
    let digest = blake3::hash(columns.as_bytes()).to_hex().to_string();
    let find = || {
        let find = "SELECT kept_rows FROM reprocess.table_kept_rows WHERE t = $1 AND digest = $2";
        managed.schema.sql(find).bind(managed.t).bind(digest.as_str())
    };
    if let Some((rows,)) = find().first(connection, KEEP).await? {
        return Ok(rows);
    }
    let new: Option<(i64,)> = managed
        .schema
        .sql(
            "INSERT INTO reprocess.table_kept_rows (t, digest, columns) VALUES ($1, $2, $3)
             ON CONFLICT DO NOTHING RETURNING kept_rows",
        )
        .bind(managed.t)
        .bind(digest.as_str())
        .bind(columns)
        .first(connection, KEEP)
        .await?;
    // A commit to other partitions was first.
    let Some((rows,)) = new else {
        let (rows,) = find().one(connection, KEEP).await?;
        return Ok(rows);
    };
    let name = rows_name(managed, rows);
    let columns = managed.layout.copied_definitions().join(", ");
    for statement in [
        format!(
            "CREATE TABLE {name} (reprocess_kept bigint NOT NULL, reprocess_entry bigint NOT NULL, \
             reprocess_new boolean NOT NULL, {columns})"
        ),
        format!("CREATE INDEX kept_{rows}_number ON {name} (reprocess_kept, reprocess_entry)"),
    ] {
        Statement::new(statement).execute(connection, KEEP).await?;
    }
    Ok(rows)
}

/// Brings back what a commit replaced in the partitions of the step's scope. `false` where the table has other columns
/// than the rows.
pub(super) async fn restore(
    connection: &mut PgConnection,
    managed: &mut Managed,
    step: &Step<'_>,
    table: &TableId,
    kept: &Kept,
) -> Result<bool> {
    let found = find(connection, managed, number_of(kept, table)?, "FOR SHARE").await?;
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
    connection: &mut PgConnection,
    managed: &mut Managed,
    step: &Step<'_>,
    found: &Found,
    rebuilds: bool,
) -> Result<()> {
    let entry = KeptEntry { merge: None, ..found.entry.narrowed(step.scope) };
    let gone = entry.region(managed.rows())?;
    if let Some(kept) = step.kept {
        let slot = register(connection, managed, kept, &entry).await?;
        let from = managed.from().text(" AS t WHERE ").then(gone.clone());
        copy(connection, &managed.layout, &slot, from).await?;
    }
    Sql::new(format!("DELETE FROM {} AS t WHERE ", managed.name.quoted()))
        .then(gone)
        .statement()
        .execute(connection, RESTORE)
        .await?;
    if rebuilds {
        managed.rebuild(connection, &found.layout).await?;
    }
    bring_back(connection, managed, step, found).await
}

/// Undoes what the merge did to single rows; others of the scope stay.
async fn restore_merged(
    connection: &mut PgConnection,
    managed: &Managed,
    step: &Step<'_>,
    found: &Found,
    keys: &[String],
) -> Result<()> {
    let matched = Sql::new(format!(
        "EXISTS (SELECT 1 FROM {} AS k WHERE {} AND ",
        found.slot.rows,
        equal(keys, "t", "k")
    ))
    .then(found.slot.is_of("k"))
    .text(") AND ")
    .then(managed.rows().scope(step.scope)?);
    if let Some(kept) = step.kept {
        let slot = register(connection, managed, kept, &found.entry.narrowed(step.scope)).await?;
        let going = managed.from().text(" AS t WHERE ").then(matched.clone());
        copy(connection, &managed.layout, &slot, going).await?;
        let coming = slot.insert(&found.layout, true, kept_rows(managed, step, found)?);
        coming.statement().execute(connection, KEEP).await?;
    }
    Sql::new(format!("DELETE FROM {} AS t WHERE ", managed.name.quoted()))
        .then(matched)
        .statement()
        .execute(connection, RESTORE)
        .await?;
    bring_back(connection, managed, step, found).await
}

/// Puts the kept rows of the step's scope into the table.
async fn bring_back(
    connection: &mut PgConnection,
    managed: &Managed,
    step: &Step<'_>,
    found: &Found,
) -> Result<()> {
    let (into, from) = (found.layout.list(""), found.layout.list("t."));
    Sql::new(format!(
        "INSERT INTO {} ({into}) OVERRIDING SYSTEM VALUE SELECT {from} FROM ",
        managed.name.quoted()
    ))
    .then(kept_rows(managed, step, found)?)
    .statement()
    .execute(connection, RESTORE)
    .await?;
    Ok(())
}

/// The kept rows of the step's scope that were there before the commit, under the name `t`.
fn kept_rows(managed: &Managed, step: &Step<'_>, found: &Found) -> Result<Sql> {
    let rows = Rows { layout: &found.layout, partitioning: &managed.partitioning };
    Ok(Sql::new(format!("{} AS t WHERE NOT t.reprocess_new AND ", found.slot.rows))
        .then(found.slot.is_of("t"))
        .text(" AND ")
        .then(rows.scope(step.scope)?))
}

/// The entries under a number, locked so that nobody frees their rows while they are restored.
pub(super) async fn find(
    connection: &mut PgConnection,
    managed: &Managed,
    kept: i64,
    lock: &str,
) -> Result<Vec<Found>> {
    let rows: Vec<(i64, String, i64, String, bool)> = managed
        .schema
        .sql(&format!(
            "SELECT k.entry, k.detail, k.kept_rows, r.columns, r.alone FROM reprocess.table_kept AS k
             JOIN reprocess.table_kept_rows AS r ON r.kept_rows = k.kept_rows
             WHERE k.t = $1 AND k.kept = $2 ORDER BY k.entry {lock} OF k"
        ))
        .bind(managed.t)
        .bind(kept)
        .all(connection, RESTORE)
        .await?;
    let found = rows.into_iter().map(|(entry, detail, rows, columns, alone)| {
        let slot = Slot { kept, entry, rows: rows_name(managed, rows) };
        Ok(Found { slot, entry: from_json(&detail)?, layout: from_json(&columns)?, alone })
    });
    found.collect()
}
