//! Which rows would differ. The server leaves out those that are the same on both sides, to the last bit.

use arrow_array::RecordBatch;
use reprocess_core::domain::diff::{Diff, DiffSpec, LeftOut, diff, diff_of_rest};
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::{ErrorKind, Result};
use sqlx::PgConnection;

use super::overlay::{Overlay, selected};
use crate::catalog::Managed;
use crate::layout::{self, Kind, Layout, quoted};
use crate::predicate::Rows;
use crate::sql::Sql;
use crate::writer::{PostgresTable, equal};

const WHAT: &str = "compare rows before and after";

/// One key's rows on one side, with the columns of a layout.
#[derive(Clone, Debug)]
struct Side {
    from: Sql,
    layout: Layout,
}

/// From production now to what it would be.
pub(super) async fn of(
    table: &PostgresTable,
    connection: &mut PgConnection,
    managed: Option<&Managed>,
    overlay: &Overlay,
    key: PartitionKey,
    spec: &DiffSpec,
) -> Result<Diff> {
    let comparing = Comparing { table, spec };
    let after = comparing.side(overlay.from.clone(), &overlay.layout, &key)?;
    let Some(managed) = managed else {
        return diff(key, &[], &comparing.rows(connection, &after, &after.from).await?, spec);
    };
    let before = comparing.side(managed.from(), &managed.layout, &key)?;
    let Some(layout) = joined(&before.layout, &after.layout) else {
        let rows = comparing.rows(connection, &before, &before.from).await?;
        return diff(key, &rows, &comparing.rows(connection, &after, &after.from).await?, spec);
    };
    let (before, after) = (before.with(&layout), after.with(&layout));
    comparing.rest(connection, key, &before, &after).await
}

/// The columns of both sides; `None` where a column is of one type here and of another there.
fn joined(before: &Layout, after: &Layout) -> Option<Layout> {
    let same = before.columns().all(|(field, store)| {
        after.column(field.name()).map_or(true, |(_, other)| other.definition == store.definition)
    });
    same.then(|| after.extended(before).ok()).flatten()
}

impl Side {
    /// With the columns of both sides: those that this one does not have are NULL.
    fn with(self, layout: &Layout) -> Self {
        let from =
            Sql::new("(").then(selected(layout, Some(&self.layout), self.from, Sql::all(vec![]))).text(")");
        Self { from, layout: layout.clone() }
    }
}

struct Comparing<'a> {
    table: &'a PostgresTable,
    spec: &'a DiffSpec,
}

impl Comparing<'_> {
    fn side(&self, from: Sql, layout: &Layout, key: &PartitionKey) -> Result<Side> {
        let rows = Rows { layout, partitioning: &self.table.spec().partitioning };
        let of_key = if key.is_whole() { Sql::all(vec![]) } else { rows.keys([key].into_iter())? };
        let from = Sql::new("(").then(selected(layout, None, from, of_key)).text(")");
        Ok(Side { from, layout: layout.clone() })
    }

    async fn rest(
        &self,
        connection: &mut PgConnection,
        key: PartitionKey,
        before: &Side,
        after: &Side,
    ) -> Result<Diff> {
        let keys = self.keys(&before.layout);
        let identified = match keys {
            Some(keys) => {
                is_identified(connection, before, keys).await?
                    && is_identified(connection, after, keys).await?
            }
            None => false,
        };
        let keys = keys.filter(|_| identified);
        let mut removed = self.rows(connection, before, &without(before, after, keys)).await?;
        let mut added = self.rows(connection, after, &without(after, before, keys)).await?;
        let (there,): (i64,) = Sql::new("SELECT count(*) FROM ")
            .then(before.from.clone())
            .text(" AS t")
            .statement()
            .one(connection, WHAT)
            .await?;
        let there = u64::try_from(there).unwrap_or(0);
        let left: usize = removed.iter().map(RecordBatch::num_rows).sum();
        let pairs = there.saturating_sub(u64::try_from(left).unwrap_or(u64::MAX));
        if pairs > 0 {
            let columns = RecordBatch::new_empty(before.layout.schema().clone());
            removed.push(columns.clone());
            added.push(columns);
        }
        diff_of_rest(key, &removed, &added, self.spec, LeftOut { pairs, identified })
    }

    /// The keys of the spec, where the server can match rows by them.
    fn keys(&self, layout: &Layout) -> Option<&[String]> {
        let keys = self.spec.keys.as_slice();
        let exact = |key: &String| {
            layout.column(key).is_ok_and(|(_, store)| {
                store.is_comparable() && !matches!(store.kind, Kind::Float4 | Kind::Float8)
            })
        };
        (!keys.is_empty() && keys.iter().all(exact)).then_some(keys)
    }

    async fn rows(&self, connection: &mut PgConnection, side: &Side, from: &Sql) -> Result<Vec<RecordBatch>> {
        let select =
            Sql::new(format!("SELECT {} FROM ", side.layout.readable("t."))).then(from.clone()).text(" AS t");
        let batch_rows = self.table.database().config().batch_rows;
        let mut batches =
            layout::read(connection, select, &side.layout, ErrorKind::Corrupt, batch_rows).await?;
        let mut all = Vec::new();
        while let Some(batch) = batches.next().await? {
            all.push(batch);
        }
        Ok(all)
    }
}

async fn is_identified(connection: &mut PgConnection, side: &Side, keys: &[String]) -> Result<bool> {
    let columns: Vec<_> = keys.iter().map(|key| format!("t.{}", quoted(key))).collect();
    let null: Vec<_> = columns.iter().map(|column| format!("{column} IS NULL")).collect();
    let (refused,): (bool,) = Sql::new("SELECT EXISTS (SELECT 1 FROM ")
        .then(side.from.clone())
        .text(format!(" AS t GROUP BY {} HAVING count(*) > 1 OR {})", columns.join(", "), null.join(" OR ")))
        .statement()
        .one(connection, WHAT)
        .await?;
    Ok(!refused)
}

/// The rows of one side that the other does not have: by their keys, or as a multiset.
fn without(side: &Side, other: &Side, keys: Option<&[String]>) -> Sql {
    let layout = &side.layout;
    if let Some(keys) = keys {
        let same: Vec<_> = layout
            .columns()
            .filter(|(field, _)| !keys.contains(field.name()))
            .map(|(field, store)| {
                let name = quoted(field.name());
                format!("NOT ({})", store.differ(&format!("t.{name}"), &format!("s.{name}")))
            })
            .chain([equal(keys, "t", "s")])
            .collect();
        return Sql::new("(SELECT t.* FROM ")
            .then(side.from.clone())
            .text(" AS t WHERE NOT EXISTS (SELECT 1 FROM ")
            .then(other.from.clone())
            .text(format!(" AS s WHERE {}))", same.join(" AND ")));
    }
    // Beside each value its bits, where the server takes different ones for equal.
    let columns: Vec<_> = layout
        .columns()
        .flat_map(|(field, store)| {
            let name = quoted(field.name());
            let value = match store.kind.is_read_as_text() {
                true => format!("t.{name}::text COLLATE \"C\" AS {name}"),
                false => format!("t.{name}"),
            };
            let bits = match store.kind {
                Kind::Float4 => Some(format!("float4send(t.{name})")),
                Kind::Float8 => Some(format!("float8send(t.{name})")),
                _ => store.blurred.then(|| format!("t.{name}::text COLLATE \"C\"")),
            };
            [Some(value), bits].into_iter().flatten()
        })
        .collect();
    let all = |side: &Side| {
        Sql::new(format!("SELECT {} FROM ", columns.join(", "))).then(side.from.clone()).text(" AS t")
    };
    Sql::new("(").then(all(side)).text(" EXCEPT ALL ").then(all(other)).text(")")
}
