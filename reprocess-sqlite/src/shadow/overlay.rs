//! Production as it would be with staged sets committed, as something to select from.

use std::sync::Arc;

use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::ports::writer::{Intent, MergeKeys, Staged};
use reprocess_core::{Error, Result};
use sqlx::sqlite::SqliteConnection;

use super::file::{find, rows_name};
use super::gone;
use crate::catalog::Managed;
use crate::layout::Layout;
use crate::predicate::Rows;
use crate::sql::{Sql, ident};
use crate::writer::{SqliteTable, in_place_of, owned, takes_over};

/// How many parts one `UNION ALL` has at the most; SQLite takes 500.
const PARTS: usize = 100;

/// Rows to select from, and their columns.
#[derive(Clone, Debug)]
pub(super) struct Overlay {
    pub(super) from: Sql,
    pub(super) layout: Layout,
}

/// One staged set with the table of its rows.
struct Part<'a> {
    staged: &'a Staged,
    rows: String,
    layout: Layout,
}

pub(super) async fn of(
    table: &SqliteTable,
    connection: &mut SqliteConnection,
    managed: Option<&Managed>,
    staged: &[Staged],
) -> Result<Overlay> {
    let mut parts = Vec::with_capacity(staged.len());
    for staged in staged {
        let found = find(connection, &table.spec().id, &staged.id).await?;
        let found = found.filter(|f| f.staged.digest == staged.digest).ok_or_else(|| gone(&staged.id))?;
        let rows = format!("staged.{}", rows_name(found.n));
        parts.push(Part { staged, rows, layout: Layout::own(Arc::clone(&staged.schema))? });
    }
    let layout = layout(managed, &parts)?;
    let mut from =
        managed.map(|managed| selected(&layout, Some(&managed.layout), managed.from(), Sql::all(vec![])));
    let mut replacing: Vec<&Part<'_>> = Vec::new();
    for part in &parts {
        match &part.staged.intent {
            Intent::Merge(merge) => {
                from = Some(replaced(table, &layout, from, &std::mem::take(&mut replacing))?);
                from = Some(merged(table, &layout, from, part, merge)?);
            }
            _ => replacing.push(part),
        }
    }
    Ok(Overlay { from: Sql::new("(").then(replaced(table, &layout, from, &replacing)?).text(")"), layout })
}

/// The columns after all commits: those of a rebuild, or the table's and what is added to them.
fn layout(managed: Option<&Managed>, parts: &[Part<'_>]) -> Result<Layout> {
    let mut layout = managed.map(|managed| managed.layout.clone());
    for part in parts {
        layout = Some(match layout {
            Some(layout) if part.staged.schema_policy != SchemaPolicy::Rebuild => {
                layout.extended(&part.layout)?
            }
            _ => part.layout.clone(),
        });
    }
    layout.ok_or_else(|| Error::not_found("there is neither a table nor a staged set"))
}

/// Selects the columns of the layout; those that the rows do not have are NULL.
fn selected(layout: &Layout, rows: Option<&Layout>, from: Sql, condition: Sql) -> Sql {
    let columns: Vec<_> = layout
        .names()
        .map(|name| match rows {
            Some(rows) if rows.field(name).is_err() => format!("NULL AS {}", ident(name)),
            _ => format!("t.{0} AS {0}", ident(name)),
        })
        .collect();
    Sql::new(format!("SELECT {} FROM ", columns.join(", "))).then(from).text(" AS t WHERE ").then(condition)
}

/// The rows outside of what is replaced, and the staged rows.
fn replaced(table: &SqliteTable, layout: &Layout, base: Option<Sql>, parts: &[&Part<'_>]) -> Result<Sql> {
    let rows = Rows { layout, partitioning: &table.spec().partitioning };
    let mut keys: Vec<PartitionKey> = Vec::new();
    for part in parts {
        match part.staged.intent {
            Intent::ReplaceDynamic => keys.extend(part.staged.received.iter().cloned()),
            _ => keys.extend(part.staged.scope.partitions()),
        }
    }
    let mut selects = Vec::new();
    if let Some(base) = base {
        let outside = Sql::new("NOT ifnull(").then(rows.keys(keys.iter())?).text(", 0)");
        selects.push(selected(layout, None, Sql::new("(").then(base).text(")"), outside));
    }
    for part in parts {
        selects.push(selected(layout, Some(&part.layout), Sql::new(part.rows.clone()), Sql::all(vec![])));
    }
    union(layout, selects)
}

/// In a tree, since SQLite limits how many selects one compound has.
fn union(layout: &Layout, mut selects: Vec<Sql>) -> Result<Sql> {
    while selects.len() > 1 {
        let mut joined = Vec::new();
        for chunk in selects.chunks(PARTS) {
            let all = chunk.iter().cloned().reduce(|all, next| all.text(" UNION ALL ").then(next));
            joined.extend(
                all.map(|all| selected(layout, None, Sql::new("(").then(all).text(")"), Sql::all(vec![]))),
            );
        }
        selects = joined;
    }
    selects.pop().ok_or_else(|| Error::internal("an overlay has no rows to select from"))
}

fn merged(
    table: &SqliteTable,
    layout: &Layout,
    base: Option<Sql>,
    part: &Part<'_>,
    merge: &MergeKeys,
) -> Result<Sql> {
    let all = Sql::all(vec![]);
    let coming = |condition| selected(layout, Some(&part.layout), Sql::new(part.rows.clone()), condition);
    let Some(base) = base else { return Ok(coming(all)) };
    let rows = Rows { layout, partitioning: &table.spec().partitioning };
    let scope = rows.scope(&part.staged.scope)?;
    let takes = takes_over(merge, "s", "t");
    let base = Sql::new("(").then(base).text(")");

    let same_key = format!("SELECT 1 FROM {} AS s WHERE {}", part.rows, in_place_of(merge, "s", "t"));
    let mut stays = vec![
        Sql::new("NOT (ifnull(")
            .then(scope.clone())
            .text(format!(", 0) AND EXISTS ({same_key} AND ifnull({takes}, 0)))")),
    ];
    if let Some(owned) = owned(rows, scope.clone(), merge)? {
        stays.push(Sql::new("NOT (ifnull(").then(owned).text(format!(", 0) AND NOT EXISTS ({same_key}))")));
    }
    // Under the name `t` stands the staged row here, and under `b` the row that it does not take over.
    let newer = takes_over(merge, "t", "b");
    let wins = Sql::new("NOT EXISTS (SELECT 1 FROM (")
        .then(selected(layout, None, base.clone(), scope))
        .text(format!(") AS b WHERE {} AND NOT ifnull({newer}, 0))", in_place_of(merge, "t", "b")));
    union(layout, vec![selected(layout, None, base, Sql::all(stays)), coming(wins)])
}
