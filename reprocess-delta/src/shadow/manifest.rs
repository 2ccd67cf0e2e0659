//! The note of a staged set beside the table: what it is, and which files hold its rows.

use std::collections::BTreeMap;

use arrow_schema::Schema;
use deltalake::Path;
use deltalake::kernel::Add;
use reprocess_core::domain::ids::{PartitionVersion, RunId};
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::slice::Base;
use reprocess_core::ports::writer::{Staged, StagedId, StampId};
use reprocess_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::commits::Search;
use crate::features;
use crate::folder::place;
use crate::table::DeltaTable;
use crate::view::{View, path_of, version};
use crate::writer::folder_name;

const STAGED: &str = "staged";

// A version that names a file which is removed at the same time could not be read. So whoever commits a set and whoever
// discards it first write their word beside its note, where nothing is yet: the first of them has it. The files of a set
// that a commit has claimed are never removed by us; if it is not committed after all, a full `VACUUM` takes them.
const COMMIT: &str = "commit";
const DISCARD: &str = "discard";

/// A staged set with its files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) staged: Staged,
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

/// What a merge came to, and on what.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Merged {
    /// The rows that came, from which it can be computed again.
    pub(crate) incoming: Vec<Add>,
    /// Paths of the files in which a row changes.
    pub(crate) removes: Vec<String>,
    /// Version of each key of the scope that it was computed on.
    pub(crate) on: Vec<(PartitionKey, PartitionVersion)>,
}

impl Merged {
    /// Whether it was computed on this base.
    pub(crate) fn is_on(&self, base: &Base) -> bool {
        self.on.iter().all(|(key, version)| base.partitions.get(key) == Some(version))
    }
}

impl Files {
    pub(crate) fn removes(&self, path: &str) -> bool {
        self.merged.as_ref().is_some_and(|merged| merged.removes.iter().any(|removed| removed == path))
    }

    /// Every file, with its size.
    fn places(&self) -> Vec<(Path, u64)> {
        let incoming = self.merged.iter().flat_map(|merged| &merged.incoming);
        let place = |add: &Add| (path_of(add), u64::try_from(add.size).unwrap_or(0));
        self.adds.iter().chain(incoming).map(place).collect()
    }
}

/// Of all sets of a run.
fn folder_of(run: &RunId) -> String {
    blake3::hash(run.as_str().as_bytes()).to_hex()[..32].to_owned()
}

/// The folder for files of a set that no version of the table will have.
pub(crate) fn staged_folder(id: &StagedId) -> Path {
    place([STAGED, &folder_of(&id.stamp.run), &id.short()])
}

fn note_of(id: &StagedId) -> Path {
    place([STAGED, &folder_of(&id.stamp.run), &format!("{}.json", id.short())])
}

fn claim_of(id: &StagedId) -> Path {
    place([STAGED, &folder_of(&id.stamp.run), &format!("{}.claimed", id.short())])
}

/// The staged set is not there any more, or another took its place.
fn gone(id: &StagedId) -> Error {
    Error::not_found("the staged rows are gone").with_context("staged", id).with_advice("stage them again")
}

impl Manifest {
    /// A set that was staged for a version of the table.
    pub(crate) fn new(staged: Staged, files: Files, view: &View) -> Result<Self> {
        Ok(Self { staged, files, since: view.number(), constraints: features::constraints(view)? })
    }

    /// Whether its rows are such that the table, with these columns, takes them: what was checked at staging still holds.
    pub(crate) fn fits(&self, view: &View, columns: &Schema) -> Result<bool> {
        let strict = columns.fields().iter().filter(|field| !field.is_nullable());
        let had =
            |name: &str| self.staged.schema.field_with_name(name).is_ok_and(|field| !field.is_nullable());
        Ok(strict.into_iter().all(|field| had(field.name()))
            && self.constraints == features::constraints(view)?)
    }

    /// Notes the set, in place of one of the same id.
    pub(crate) async fn keep(&self, table: &DeltaTable) -> Result<()> {
        table.folder().write(&note_of(&self.staged.id), self).await
    }

    /// The set for a commit, which nobody discards from now on.
    pub(crate) async fn claim(table: &DeltaTable, staged: &Staged) -> Result<Self> {
        if table.folder().claim(&claim_of(&staged.id), COMMIT).await? != COMMIT {
            return Err(gone(&staged.id));
        }
        let found = match Self::find(table, staged).await {
            Ok(found) => found,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                table.folder().remove(vec![claim_of(&staged.id)]).await?;
                return Err(e);
            }
            Err(e) => return Err(e),
        };
        match table.folder().missing(found.files.places()).await?.first() {
            None => Ok(found),
            Some(path) => Err(gone(&staged.id).with_context("file", path)),
        }
    }

    /// The set as it was when the caller got to know it.
    pub(crate) async fn find(table: &DeltaTable, staged: &Staged) -> Result<Self> {
        let found: Option<Self> = table.folder().read(&note_of(&staged.id)).await?;
        let found = found.filter(|found| found.staged.id == staged.id).ok_or_else(|| gone(&staged.id))?;
        if found.staged.digest == staged.digest {
            return Ok(found);
        }
        Err(Error::new(ErrorKind::State, "other rows were staged under this id since")
            .with_context("staged", &staged.id))
    }

    /// Removes the note, and what no version needs of a set that was committed.
    pub(crate) async fn forget(&self, table: &DeltaTable) -> Result<()> {
        let incoming = self.files.merged.iter().flat_map(|merged| &merged.incoming).map(path_of);
        table
            .folder()
            .remove(incoming.chain([note_of(&self.staged.id), claim_of(&self.staged.id)]).collect())
            .await
    }

    async fn is_committed(&self, table: &DeltaTable, view: &View) -> Result<bool> {
        let id = &self.staged.id;
        let since = Base::new(version(self.since), [].into());
        let search = table
            .commits()
            .find_since(table.log().as_ref(), view, &id.stamp, &self.staged.scope, &since)
            .await?;
        let this = |(stamp, attempt): &(StampId, u32)| *stamp == id.stamp && *attempt == id.attempt;
        Ok(matches!(search, Search::Found(record) if record.commit.attempts.iter().any(this)))
    }
}

/// A set by its id; `None` where it is not there, not intact, or committed.
pub(crate) async fn open(table: &DeltaTable, id: &StagedId) -> Result<Option<Manifest>> {
    let found: Option<Manifest> = table.folder().read(&note_of(id)).await?;
    let Some(found) = found.filter(|found| found.staged.id == *id) else { return Ok(None) };
    let intact = table.folder().missing(found.files.places()).await?.is_empty();
    let there = intact && !found.is_committed(table, table.latest().await?.as_ref()).await?;
    Ok(there.then_some(found))
}

/// The ids of the sets of a run that are noted.
pub(crate) async fn of_run(table: &DeltaTable, run: &RunId) -> Result<Vec<StagedId>> {
    let mut ids = Vec::new();
    for path in table.folder().list(&place([STAGED, &folder_of(run)])).await? {
        if path.extension() != Some("json") {
            continue;
        }
        let found: Option<Manifest> = table.folder().read(&path).await?;
        ids.extend(found.map(|found| found.staged.id).filter(|id| id.stamp.run == *run));
    }
    Ok(ids)
}

/// Removes a set. Refuses one that is committed: its files are the table's.
pub(crate) async fn discard(table: &DeltaTable, id: &StagedId) -> Result<()> {
    let committed = || Error::new(ErrorKind::State, "the staged set is committed").with_context("staged", id);
    let view = table.latest().await?;
    let found: Option<Manifest> = table.folder().read(&note_of(id)).await?;
    let Some(found) = found else {
        return if view.has_file_in(&folder_name(&id.short())) { Err(committed()) } else { Ok(()) };
    };
    if found.is_committed(table, &view).await? {
        return Err(committed());
    }
    let claimed = table.folder().claim(&claim_of(id), DISCARD).await?;
    // The note goes first: a set without its note is no set, one without its files would be a broken one.
    table.folder().remove(vec![note_of(id)]).await?;
    if claimed == DISCARD {
        table.folder().remove(found.files.places().into_iter().map(|(path, _)| path).collect()).await?;
    }
    table.folder().remove(vec![claim_of(id)]).await
}
