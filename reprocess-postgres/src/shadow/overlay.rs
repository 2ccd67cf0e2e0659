//! Production as it would be with staged sets committed, as something to select from.

use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::ports::writer::{Intent, MergeKeys, Staged};
use reprocess_core::{Error, Result};
use sqlx::PgConnection;

use super::gone;
use super::set::find;
use crate::catalog::Managed;
use crate::layout::{Layout, quoted};
use crate::predicate::Rows;
use crate::sql::Sql;
use crate::writer::{PostgresTable, in_place_of, owned, takes_over};

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
    table: &PostgresTable,
    connection: &mut PgConnection,
    managed: Option<&Managed>,
    staged: &[Staged],
) -> Result<Overlay> {
    let mut parts = Vec::with_capacity(staged.len());
    for staged in staged {
        let found = find(connection, table, &staged.id).await?;
        let found = found.filter(|f| f.staged.digest == staged.digest).ok_or_else(|| gone(&staged.id))?;
        parts.push(Part { staged, rows: found.rows, layout: found.layout });
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
pub(super) fn selected(layout: &Layout, rows: Option<&Layout>, from: Sql, condition: Sql) -> Sql {
    let columns: Vec<_> = layout
        .columns()
        .map(|(field, store)| match (rows, quoted(field.name())) {
            (Some(rows), name) if rows.field(field.name()).is_err() => {
                format!("NULL::{} AS {name}", store.definition)
            }
            (_, name) => format!("t.{name} AS {name}"),
        })
        .collect();
    Sql::new(format!("SELECT {} FROM ", columns.join(", "))).then(from).text(" AS t WHERE ").then(condition)
}

/// The rows outside of what is replaced, and the staged rows.
fn replaced(table: &PostgresTable, layout: &Layout, base: Option<Sql>, parts: &[&Part<'_>]) -> Result<Sql> {
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
        let outside = Sql::new("NOT coalesce(").then(rows.keys(keys.iter())?).text(", false)");
        selects.push(selected(layout, None, Sql::new("(").then(base).text(")"), outside));
    }
    for part in parts {
        selects.push(selected(layout, Some(&part.layout), Sql::new(part.rows.clone()), Sql::all(vec![])));
    }
    union(selects)
}

fn union(selects: Vec<Sql>) -> Result<Sql> {
    let all = selects.into_iter().reduce(|all, next| all.text(" UNION ALL ").then(next));
    all.ok_or_else(|| Error::internal("an overlay has no rows to select from"))
}

fn merged(
    table: &PostgresTable,
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
    let takes = takes_over(layout, merge, "s", "t")?;
    let base = Sql::new("(").then(base).text(")");

    let same_key = format!("SELECT 1 FROM {} AS s WHERE {}", part.rows, in_place_of(merge, "s", "t"));
    let mut stays = vec![
        Sql::new("NOT (coalesce(")
            .then(scope.clone())
            .text(format!(", false) AND EXISTS ({same_key} AND {takes}))")),
    ];
    if let Some(owned) = owned(rows, scope.clone(), merge)? {
        stays.push(
            Sql::new("NOT (coalesce(").then(owned).text(format!(", false) AND NOT EXISTS ({same_key}))")),
        );
    }
    // Under the name `t` stands the staged row here, and under `b` the row that it does not take over.
    let newer = takes_over(layout, merge, "t", "b")?;
    let wins = Sql::new("NOT EXISTS (SELECT 1 FROM (")
        .then(selected(layout, None, base.clone(), scope))
        .text(format!(") AS b WHERE {} AND NOT {newer})", in_place_of(merge, "t", "b")));
    union(vec![selected(layout, None, base, Sql::all(stays)), coming(wins)])
}
