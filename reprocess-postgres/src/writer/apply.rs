//! What a commit does to the rows.

use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::writer::{Change, CommitEntry, Intent, Staged};
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::PgConnection;

use super::difference::Difference;
use super::keep::{self, KeptEntry};
use super::{PostgresTable, merge};
use crate::catalog::{Managed, WRITING};
use crate::layout::{Layout, quoted};
use crate::shadow;
use crate::sql::{Sql, Statement};

pub(super) const WHAT: &str = "write the rows of a commit";

/// A table after the entries of a commit.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) managed: Managed,
    /// The keys that were changed.
    pub(super) touched: Vec<PartitionKey>,
    /// Under which number the replaced rows are kept.
    pub(super) kept: Option<i64>,
}

/// One entry on its way into the table.
pub(super) struct Step<'a> {
    pub(super) scope: &'a Scope,
    /// Under which number replaced rows are kept.
    pub(super) kept: Option<i64>,
}

/// Applies every entry. `None` where the table has other columns than the rows were staged for.
pub(super) async fn apply(
    table: &PostgresTable,
    connection: &mut PgConnection,
    managed: Option<Managed>,
    entries: &[CommitEntry],
    kept: Option<i64>,
) -> Result<Option<Applied>> {
    let Some(mut managed) = existing(table, connection, managed, entries).await? else { return Ok(None) };
    writing(connection, &managed.relation.to_string()).await?;
    for entry in entries {
        let step = Step { scope: &entry.scope, kept };
        let fits = match &entry.change {
            Change::Apply(staged) => apply_staged(table, connection, &mut managed, &step, staged).await?,
            Change::Restore(kept) => {
                keep::restore(connection, &mut managed, &step, &table.spec().id, kept).await?
            }
            Change::Adopt => return Err(Error::invalid("an adopted commit is only told to the ledger")),
        };
        if !fits {
            return Ok(None);
        }
    }
    writing(connection, "").await?;
    let touched = entries.iter().flat_map(touched).collect();
    Ok(Some(Applied { managed, touched, kept }))
}

/// The keys that an entry changes.
fn touched(entry: &CommitEntry) -> Vec<PartitionKey> {
    match &entry.change {
        Change::Apply(Staged { intent: Intent::ReplaceDynamic, received, .. }) => {
            received.iter().cloned().collect()
        }
        _ => entry.scope.partitions(),
    }
}

/// Tells the triggers which relation is written. Those of other tables still notice what a trigger of the user writes
/// meanwhile.
async fn writing(connection: &mut PgConnection, relation: &str) -> Result<()> {
    Statement::new(format!("SELECT set_config('{WRITING}', $1, true)"))
        .bind(relation)
        .execute(connection, WHAT)
        .await?;
    Ok(())
}

/// The table as it is, made where it is not there. `None` where others changed its columns.
async fn existing(
    table: &PostgresTable,
    connection: &mut PgConnection,
    managed: Option<Managed>,
    entries: &[CommitEntry],
) -> Result<Option<Managed>> {
    if let Some(managed) = managed {
        managed.check_dependants(connection).await?;
        return Ok(managed.is_as_known(connection).await?.then_some(managed));
    }
    let staged = entries.iter().find_map(|entry| match &entry.change {
        Change::Apply(staged) => Some(staged),
        Change::Restore(_) | Change::Adopt => None,
    });
    let staged = staged.ok_or_else(|| Error::not_found("there is no table to restore partitions of"))?;
    let schema = table.database().schema();
    Managed::create(connection, schema, table.spec(), table.name(), &staged.schema).await.map(Some)
}

async fn apply_staged(
    table: &PostgresTable,
    connection: &mut PgConnection,
    managed: &mut Managed,
    step: &Step<'_>,
    staged: &Staged,
) -> Result<bool> {
    let found = shadow::take(connection, table, &staged.id).await?;
    let Some(found) = found.filter(|found| found.staged.digest == staged.digest) else {
        return Err(shadow::gone(&staged.id));
    };
    let same = managed.layout.has_columns_of(&staged.schema);
    if !same && !may_change(managed, &found.layout, staged.schema_policy) {
        return Ok(false);
    }
    if let Intent::Merge(keys) = &staged.intent {
        if !same {
            change(connection, managed, &found.layout, staged.schema_policy).await?;
        }
        merge::apply(connection, managed, step, keys, &found.rows).await?;
        return Ok(true);
    }
    let keys = match staged.intent {
        Intent::ReplaceDynamic => staged.received.iter().cloned().collect(),
        _ => step.scope.partitions(),
    };
    let region = managed.rows().keys(keys.iter())?;
    if let Some(kept) = step.kept {
        let entry = KeptEntry { touched: keys, within: vec![step.scope.clone()], merge: None };
        let slot = keep::register(connection, managed, kept, &entry).await?;
        let from = managed.from().text(" AS t WHERE ").then(region.clone());
        keep::copy(connection, &managed.layout, &slot, from).await?;
    }
    let rows = found.row_count;
    let difference = match same {
        true => Difference::of(connection, managed, &region, &found.rows, rows).await?,
        false => None,
    };
    match difference {
        Some(difference) => difference.write(connection).await?,
        None => {
            delete(connection, managed, region.clone()).await?;
            if !same {
                change(connection, managed, &found.layout, staged.schema_policy).await?;
            }
            insert(connection, managed, &found.rows).await?;
        }
    }
    verify(connection, managed, region, rows, &staged.id.to_string()).await?;
    Ok(true)
}

pub(super) async fn delete(connection: &mut PgConnection, managed: &Managed, region: Sql) -> Result<()> {
    Sql::new(format!("DELETE FROM {} AS t WHERE ", managed.name.quoted()))
        .then(region)
        .statement()
        .execute(connection, WHAT)
        .await?;
    Ok(())
}

async fn insert(connection: &mut PgConnection, managed: &Managed, rows: &str) -> Result<()> {
    let columns = managed.layout.list("");
    Statement::new(format!(
        "INSERT INTO {} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {rows}",
        managed.name.quoted()
    ))
    .execute(connection, WHAT)
    .await?;
    Ok(())
}

/// A crash of the server empties staged sets, and triggers of others may keep rows out.
async fn verify(
    connection: &mut PgConnection,
    managed: &Managed,
    region: Sql,
    rows: i64,
    id: &str,
) -> Result<()> {
    let (there,): (i64,) = Sql::new(format!("SELECT count(*) FROM {} AS t WHERE ", managed.name.quoted()))
        .then(region)
        .statement()
        .one(connection, "count the rows of a commit")
        .await?;
    if there == rows {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Storage, format!("{there} rows are there after the commit of {rows}"))
        .with_context("staged", id)
        .with_advice("look for triggers and rules of the table that keep rows out or add some"))
}

/// Condition under which two rows have the same key.
pub(crate) fn equal(key: &[String], a: &str, b: &str) -> String {
    let equal: Vec<_> =
        key.iter().map(|column| quoted(column)).map(|c| format!("{a}.{c} = {b}.{c}")).collect();
    equal.join(" AND ")
}

/// Condition under which the rows `t` and `s` of one key differ: what is equal is not rewritten.
pub(super) fn differs(layout: &Layout, key: &[String]) -> String {
    let others = layout.columns().filter(|(field, _)| !key.contains(field.name()));
    let differ: Vec<_> = others
        .map(|(field, store)| {
            let name = quoted(field.name());
            store.differ(&format!("t.{name}"), &format!("s.{name}"))
        })
        .collect();
    if differ.is_empty() { "false".to_owned() } else { differ.join(" OR ") }
}

/// Whether the policy under which rows were staged allows what their columns need now.
fn may_change(managed: &Managed, layout: &Layout, policy: SchemaPolicy) -> bool {
    match policy {
        SchemaPolicy::Refuse => false,
        SchemaPolicy::Rebuild => true,
        SchemaPolicy::AddNullable => layout.has_all_of(&managed.layout),
    }
}

async fn change(
    connection: &mut PgConnection,
    managed: &mut Managed,
    layout: &Layout,
    policy: SchemaPolicy,
) -> Result<()> {
    match policy {
        SchemaPolicy::Rebuild => managed.rebuild(connection, layout).await,
        _ => managed.extend(connection, layout).await,
    }
}
