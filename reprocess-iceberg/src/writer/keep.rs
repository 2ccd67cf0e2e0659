//! What commits replaced: a tag on the snapshot before, so that its files stay, and the way back to it.

mod back;

use iceberg::spec::{SchemaId, SnapshotRef};
use reprocess_core::domain::slice::Kept;
use reprocess_core::{Error, Result};
use reprocess_lake::kept;
use serde::{Deserialize, Serialize};
use serde_json::json;

pub(super) use back::{Back, back};

use super::commit::{outrun, waits};
use crate::catalog::{Answer, Proposal};
use crate::features;
use crate::snapshot::{RefChange, change_refs};
use crate::table::IcebergTable;
use crate::view::{There, View};

/// What a commit kept, as the caller has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Ticket {
    table: String,
    /// A table of the same name that was made later is another one.
    uuid: String,
    /// The snapshot before the commit; `None` where the table had none, and was empty.
    snapshot: Option<i64>,
    /// The columns that the table had.
    columns: SchemaId,
    tag: String,
}

/// Keeps a version that a commit changes: what the caller gets, and the tag that the commit has to set. `id` is of the
/// commit, 32 hexadecimal digits. Of a table without a snapshot there is nothing to tag.
pub(super) fn keep(table: &IcebergTable, view: &View, id: &str) -> Result<(Kept, Option<RefChange>)> {
    let there = view.there()?;
    let tag = format!("reprocess-kept-{id}");
    let snapshot = view.snapshot_id();
    if snapshot.is_some() {
        features::check_refs(view)?;
    }
    let ticket = Ticket {
        table: table.spec().id.to_string(),
        uuid: there.loaded.metadata.uuid().to_string(),
        snapshot,
        columns: there.columns.schema_id(),
        tag: tag.clone(),
    };
    Ok((Kept(json!(ticket)), snapshot.map(|snapshot| RefChange::Tag { name: tag, snapshot })))
}

fn ticket(table: &IcebergTable, kept: &Kept) -> Result<Ticket> {
    kept::ticket(kept, |ticket: &Ticket| ticket.table == table.spec().id.as_str())
}

impl Ticket {
    /// The table, where it is still the one of then.
    fn there<'a>(&self, view: &'a View) -> Option<&'a There> {
        view.known().filter(|there| there.loaded.metadata.uuid().to_string() == self.uuid)
    }

    fn find(&self, view: &View) -> Result<Option<SnapshotRef>> {
        let there = self.there(view).ok_or_else(kept::freed)?;
        let Some(id) = self.snapshot else { return Ok(None) };
        let tagged = there.loaded.metadata.snapshot_for_ref(&self.tag);
        let tagged = tagged.filter(|snapshot| snapshot.snapshot_id() == id).cloned();
        tagged.map(Some).ok_or_else(kept::freed)
    }
}

/// The snapshot that was kept; `None` where the table had none, and was empty. Refuses what was freed. `view` is the newest
/// version.
pub(super) fn find(table: &IcebergTable, view: &View, kept: &Kept) -> Result<Option<SnapshotRef>> {
    ticket(table, kept)?.find(view)
}

/// The columns that the table had, in the words of Iceberg.
pub(super) fn columns_of(table: &IcebergTable, view: &View, kept: &Kept) -> Result<iceberg::spec::SchemaRef> {
    let ticket = ticket(table, kept)?;
    let there = ticket.there(view).ok_or_else(kept::freed)?;
    let columns = there.loaded.metadata.schema_by_id(ticket.columns);
    columns.cloned().ok_or_else(|| kept::freed().with_context("columns", ticket.columns))
}

/// Frees what a commit kept. Its files go with the next expiry of snapshots.
pub(super) async fn forget(table: &IcebergTable, kept: &Kept) -> Result<()> {
    let ticket = ticket(table, kept)?;
    for wait in waits() {
        let view = table.latest().await?;
        let Some(there) = ticket.there(&view) else { return Ok(()) };
        let gone = RefChange::Remove { name: ticket.tag.clone() };
        let (requirements, updates) = change_refs(&there.loaded.metadata, &[gone])?;
        if updates.is_empty() {
            return Ok(());
        }
        let proposal = Proposal { base: &there.loaded, requirements, updates, told: None };
        match table.change(&view, proposal).await? {
            Answer::Done(_) => return Ok(()),
            Answer::CameFirst => tokio::time::sleep(wait).await,
            Answer::Fenced => return Err(Error::internal("a change without a fence was fenced")),
        }
    }
    Err(outrun())
}

#[cfg(feature = "sqlite")]
#[cfg(test)]
mod tests;
