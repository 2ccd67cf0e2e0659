//! What a commit does to the rows.

use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::writer::{Change, CommitEntry, Intent, Staged};
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use super::keep::{self, KeptEntry};
use super::{SqliteTable, merge};
use crate::catalog::Managed;
use crate::error::Doing;
use crate::layout::Layout;
use crate::shadow::{self, rows_name};
use crate::sql::Sql;

const WHAT: &str = "write the rows of a commit";

/// No table has this number.
const NOTHING: i64 = 0;

/// A table after the entries of a commit, and the number that the commit took.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) managed: Managed,
    pub(super) seq: i64,
}

/// One entry on its way into the table.
pub(super) struct Step<'a> {
    pub(super) scope: &'a Scope,
    pub(super) seq: i64,
    pub(super) keep: bool,
}

/// Applies every entry. `None` where the table has other columns than the rows were staged for.
pub(super) async fn apply(
    table: &SqliteTable,
    connection: &mut SqliteConnection,
    managed: Option<Managed>,
    entries: &[CommitEntry],
    keep: bool,
) -> Result<Option<Applied>> {
    let Some(mut managed) = existing(table, connection, managed, entries).await? else { return Ok(None) };
    guard(connection, managed.t).await?;
    let touched: Vec<PartitionKey> = entries.iter().flat_map(touched).collect();
    let seq = managed.changes().log(connection, &touched).await?;
    for entry in entries {
        let step = Step { scope: &entry.scope, seq, keep };
        let fits = match &entry.change {
            Change::Apply(staged) => apply_staged(table, connection, &mut managed, &step, staged).await?,
            Change::Restore(kept) => keep::restore(connection, &mut managed, &step, kept).await?,
            Change::Adopt => return Err(Error::invalid("an adopted commit is only told to the ledger")),
        };
        if !fits {
            return Ok(None);
        }
    }
    guard(connection, NOTHING).await?;
    Ok(Some(Applied { managed, seq }))
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

/// The table as it is, made where it is not there. `None` where others changed its columns.
async fn existing(
    table: &SqliteTable,
    connection: &mut SqliteConnection,
    managed: Option<Managed>,
    entries: &[CommitEntry],
) -> Result<Option<Managed>> {
    let Some(managed) = managed else {
        let staged = entries.iter().find_map(|entry| match &entry.change {
            Change::Apply(staged) => Some(staged),
            Change::Restore(_) | Change::Adopt => None,
        });
        let staged = staged.ok_or_else(|| Error::not_found("there is no table to restore partitions of"))?;
        return Managed::create(connection, table.spec(), &staged.schema).await.map(Some);
    };
    let rows = Sql::new("SELECT name FROM pragma_table_info(")
        .bind(table.spec().id.as_str())
        .text(", 'main') ORDER BY cid")
        .rows(connection, WHAT)
        .await?;
    let names: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().doing(WHAT)?;
    let same = names.iter().map(String::as_str).eq(managed.layout.names());
    Ok(same.then_some(managed))
}

async fn apply_staged(
    table: &SqliteTable,
    connection: &mut SqliteConnection,
    managed: &mut Managed,
    step: &Step<'_>,
    staged: &Staged,
) -> Result<bool> {
    let found = shadow::find(connection, &table.spec().id, &staged.id).await?;
    let Some(found) = found.filter(|found| found.staged.digest == staged.digest) else {
        return Err(Error::new(
            ErrorKind::NotFound,
            "the staged rows are gone, or others were staged in their place",
        )
        .with_context("staged", &staged.id)
        .with_advice("stage them again"));
    };
    let layout = Layout::own(staged.schema.clone())?;
    let same = managed.layout.has_columns_of(&staged.schema);
    if !same && !may_change(managed, &layout, staged.schema_policy) {
        return Ok(false);
    }
    let rows = format!("staged.{}", rows_name(found.n));
    if let Intent::Merge(keys) = &staged.intent {
        if !same {
            change(connection, managed, layout, staged.schema_policy).await?;
        }
        merge::apply(connection, managed, step, keys, &rows).await?;
        return Ok(true);
    }
    let keys = match staged.intent {
        Intent::ReplaceDynamic => staged.received.iter().cloned().collect(),
        _ => step.scope.partitions(),
    };
    replace(connection, managed, step, &keys).await?;
    if !same {
        change(connection, managed, layout, staged.schema_policy).await?;
    }
    let columns = managed.layout.list("");
    Sql::new(format!("INSERT INTO main.{} ({columns}) SELECT {columns} FROM {rows}", managed.name))
        .execute(connection, WHAT)
        .await?;
    Ok(true)
}

/// Keeps, where asked, and deletes the rows of keys.
async fn replace(
    connection: &mut SqliteConnection,
    managed: &Managed,
    step: &Step<'_>,
    keys: &[PartitionKey],
) -> Result<()> {
    let rows = managed.rows().keys(keys.iter())?;
    if step.keep {
        let entry = KeptEntry { touched: keys.to_vec(), within: vec![step.scope.clone()], merge: None };
        let slot = keep::register(connection, managed, step.seq, &entry).await?;
        keep::copy(connection, &managed.layout, slot, managed.from().text(" AS t WHERE ").then(rows.clone()))
            .await?;
    }
    Sql::new(format!("DELETE FROM main.{} AS t WHERE ", managed.name))
        .then(rows)
        .execute(connection, WHAT)
        .await?;
    Ok(())
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
    connection: &mut SqliteConnection,
    managed: &mut Managed,
    layout: Layout,
    policy: SchemaPolicy,
) -> Result<()> {
    match policy {
        SchemaPolicy::Rebuild => managed.rebuild(connection, layout).await,
        _ => managed.extend(connection, &layout).await,
    }
}

/// Tells the triggers which table the library writes. Those of other tables still notice what a trigger of the user
/// writes meanwhile.
async fn guard(connection: &mut SqliteConnection, t: i64) -> Result<()> {
    Sql::new("UPDATE main.reprocess_guard SET writing = ").bind(t).execute(connection, WHAT).await?;
    Ok(())
}
