//! What is noted of a staged set beside the table: which files hold its rows, and what they were checked by.

use std::collections::BTreeMap;

use arrow_schema::Schema;
use deltalake::Path;
use deltalake::kernel::Add;
use reprocess_core::domain::slice::Base;
use reprocess_core::ports::writer::{Staged, StagedId, StampId};
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_lake::placement::folder_name;
use reprocess_lake::sets::{self, Noted};
use serde::{Deserialize, Serialize};

use crate::commits::Search;
use crate::features;
use crate::table::DeltaTable;
use crate::view::{View, path_of, version};

/// A staged set with its files.
pub(crate) type Set = Noted<Content>;
/// What a merge came to, and on what.
pub(crate) type Merged = sets::Merged<Vec<Add>>;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Content {
    pub(crate) files: Files,
    /// Version of the table when it was staged, before which it cannot have been committed.
    since: Option<u64>,
    /// The CHECK constraints that its rows were checked by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    constraints: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Files {
    /// What a commit adds.
    pub(crate) adds: Vec<Add>,
    /// Of a merge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) merged: Option<Merged>,
}

impl Files {
    pub(crate) fn removes(&self, path: &str) -> bool {
        self.merged.as_ref().is_some_and(|merged| merged.removes(path))
    }

    /// Every file, with its size.
    fn places(&self) -> Vec<(Path, u64)> {
        let incoming = self.merged.iter().flat_map(|merged| &merged.incoming);
        let place = |add: &Add| (path_of(add), u64::try_from(add.size).unwrap_or(0));
        self.adds.iter().chain(incoming).map(place).collect()
    }
}

impl Content {
    /// Of a set that was staged for a version of the table.
    pub(crate) fn new(files: Files, view: &View) -> Result<Self> {
        Ok(Self { files, since: view.number(), constraints: features::constraints(view)? })
    }

    /// Whether the rows of the set are such that the table, with these columns, takes them: what was checked at staging
    /// still holds.
    pub(crate) fn fits(&self, staged: &Staged, view: &View, columns: &Schema) -> Result<bool> {
        let strict = columns.fields().iter().filter(|field| !field.is_nullable());
        let had = |name: &str| staged.schema.field_with_name(name).is_ok_and(|field| !field.is_nullable());
        Ok(strict.into_iter().all(|field| had(field.name()))
            && self.constraints == features::constraints(view)?)
    }
}

/// The set for a commit, which nobody discards from now on. The files of one that is not committed after all are taken by
/// a full `VACUUM`.
pub(crate) async fn claim(table: &DeltaTable, staged: &Staged) -> Result<Set> {
    let found = Set::claim(table.folder(), staged).await?;
    match table.folder().missing(found.content.files.places()).await?.first() {
        None => Ok(found),
        Some(path) => Err(sets::gone(&staged.id).with_context("file", path)),
    }
}

/// Removes the note, and what no version needs of a set that was committed.
pub(crate) async fn forget(table: &DeltaTable, set: &Set) -> Result<()> {
    let incoming = set.content.files.merged.iter().flat_map(|merged| &merged.incoming);
    table.folder().remove(incoming.map(path_of).collect()).await?;
    Set::forget(table.folder(), &set.staged.id).await
}

/// A set by its id; `None` where it is not there, not intact, or committed.
pub(crate) async fn open(table: &DeltaTable, id: &StagedId) -> Result<Option<Set>> {
    let Some(found) = Set::read(table.folder(), id).await? else { return Ok(None) };
    let intact = table.folder().missing(found.content.files.places()).await?.is_empty();
    let there = intact && !is_committed(table, table.latest().await?.as_ref(), &found).await?;
    Ok(there.then_some(found))
}

/// Removes a set. Refuses one that is committed: its files are the table's.
pub(crate) async fn discard(table: &DeltaTable, id: &StagedId) -> Result<()> {
    let committed = || Error::new(ErrorKind::State, "the staged set is committed").with_context("staged", id);
    let view = table.latest().await?;
    let Some(found) = Set::read(table.folder(), id).await? else {
        return if view.has_file_in(&folder_name(&id.short())) { Err(committed()) } else { Ok(()) };
    };
    if is_committed(table, &view, &found).await? {
        return Err(committed());
    }
    if sets::discard(table.folder(), id).await? {
        let files = found.content.files.places().into_iter().map(|(path, _)| path);
        table.folder().remove(files.collect()).await?;
    }
    sets::finish_discard(table.folder(), id).await
}

async fn is_committed(table: &DeltaTable, view: &View, set: &Set) -> Result<bool> {
    let id = &set.staged.id;
    let since = Base::new(version(set.content.since), [].into());
    let search =
        table.commits().find_since(table.log().as_ref(), view, &id.stamp, &set.staged.scope, &since).await?;
    let this = |(stamp, attempt): &(StampId, u32)| *stamp == id.stamp && *attempt == id.attempt;
    Ok(matches!(search, Search::Found(commit) if commit.attempts.iter().any(this)))
}
