//! What commits replaced, noted so that it can be added again: the actions of the files, which stay where they are.

use std::collections::BTreeSet;

use deltalake::Path;
use deltalake::kernel::Add;
use reprocess_core::domain::slice::Kept;
use reprocess_core::ports::writer::CommitEntry;
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_lake::{Folder, kept as tickets, place};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::table::DeltaTable;
use crate::view::{File, View};

const KEPT: &str = "kept";

/// What the scopes of a commit held before it, also what stayed, and the columns that the table had.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Replaced {
    pub(super) columns: String,
    pub(super) files: Vec<Add>,
}

/// Where the note is, and what the caller gets of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ticket {
    table: String,
    version: u64,
    id: String,
}

impl Ticket {
    fn note(&self) -> Path {
        place([KEPT, &self.version.to_string(), &format!("{}.json", self.id)])
    }
}

/// Notes what the scopes hold that a commit onto a version is about to change. `id` is of the commit.
pub(super) async fn keep(table: &DeltaTable, view: &View, open: &[&CommitEntry], id: &str) -> Result<Kept> {
    let snapshot = view.snapshot()?;
    let mut files = Vec::new();
    for entry in open {
        files.extend(view.files_in(&entry.scope)?.into_iter().map(File::add));
    }
    let replaced = Replaced { columns: columns_of(view)?, files };
    let ticket =
        Ticket { table: table.spec().id.to_string(), version: snapshot.version(), id: id.to_owned() };
    table.folder().write(&ticket.note(), &replaced).await?;
    Ok(Kept(json!(ticket)))
}

/// The columns of a version in the words of Delta.
pub(super) fn columns_of(view: &View) -> Result<String> {
    serde_json::to_string(view.snapshot()?.schema().as_ref())
        .map_err(|e| Error::internal("the columns of the table do not serialise").with_source(e))
}

fn ticket(table: &DeltaTable, kept: &Kept) -> Result<Ticket> {
    tickets::ticket(kept, |ticket: &Ticket| ticket.table == table.spec().id.as_str())
}

/// What was kept. Refuses what was freed.
pub(super) async fn find(table: &DeltaTable, kept: &Kept) -> Result<Replaced> {
    let note = ticket(table, kept)?.note();
    let found = table.folder().read(&note).await?;
    found.ok_or_else(tickets::freed)
}

/// Refuses files that are gone, as a vacuum that knew nothing of them leaves it.
pub(super) async fn check_files(table: &DeltaTable, files: &[Add]) -> Result<()> {
    let files = files.iter().map(|add| (crate::view::path_of(add), u64::try_from(add.size).unwrap_or(0)));
    match table.folder().missing(files.collect()).await?.first() {
        None => Ok(()),
        Some(path) => Err(Error::new(ErrorKind::State, "what the commit replaced is no longer kept: a file was removed")
            .with_context("file", path)
            .with_advice("vacuum with `DeltaTable::vacuum`, or keep `DeltaTable::needed_versions`; run the logic of then again")),
    }
}

/// Frees what a commit kept. Its files go with the next vacuum.
pub(super) async fn forget(table: &DeltaTable, kept: &Kept) -> Result<()> {
    table.folder().remove(vec![ticket(table, kept)?.note()]).await
}

/// The versions whose files are kept.
pub(crate) async fn kept_versions(folder: &Folder) -> Result<BTreeSet<u64>> {
    let versions = folder.folders(&place([KEPT])).await?;
    Ok(versions.iter().filter_map(|version| version.parse().ok()).collect())
}
