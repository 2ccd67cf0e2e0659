//! What is noted of a staged set beside the table: which files hold its rows, and with which columns.

use std::collections::{BTreeMap, BTreeSet};

use iceberg::spec::{
    DataFile, Datum, FormatVersion, Schema, StructType, deserialize_data_file_from_json,
    serialize_data_file_to_json,
};
use reprocess_core::domain::ids::{PartitionVersion, TableVersion};
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::slice::Base;
use reprocess_core::ports::writer::{Staged, StagedId, StampId, Visibility};
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_lake::sets::{self, Noted};
use reprocess_lake::versions::ABSENT;
use serde::{Deserialize, Serialize};

use super::branch;
use crate::commits::Search;
use crate::error::Doing;
use crate::table::IcebergTable;
use crate::view::{There, View, Wanted};

/// A staged set with its files.
pub(crate) type Set = Noted<Content>;
/// What a merge came to, and on what.
pub(crate) type Merged = sets::Merged<Vec<Filed>>;
/// Files of the rows that came, paths of the files in which a row changes, and the versions that it was computed on.
pub(crate) type MergedFiles = (Vec<DataFile>, Vec<String>, Vec<(PartitionKey, PartitionVersion)>);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Content {
    /// The partition spec that the files are written by.
    spec_id: i32,
    /// The columns that the table has with the rows, with the ids that the files have.
    columns: Schema,
    /// What a commit adds.
    added: Vec<Filed>,
    /// Of a merge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) merged: Option<Merged>,
    /// Head of main when it was staged, before which it cannot have been committed.
    since: Option<i64>,
}

/// A data file as it is noted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Filed {
    path: String,
    size_bytes: u64,
    /// All that a manifest says of it, as JSON. As a text, since its partition values stand in the order of the spec.
    entry: String,
}

impl Content {
    /// Of a set that was staged for a version of the table, with files that `columns` were written to.
    pub(crate) fn new(
        view: &View,
        columns: &Schema,
        added: &[DataFile],
        merged: Option<MergedFiles>,
    ) -> Result<Self> {
        Self::since(view, columns, added, merged, view.snapshot_id())
    }

    /// The same set with a merge that was computed again, on another version.
    pub(crate) fn again(
        &self,
        view: &View,
        columns: &Schema,
        added: &[DataFile],
        merged: MergedFiles,
    ) -> Result<Self> {
        Self::since(view, columns, added, Some(merged), self.since)
    }

    fn since(
        view: &View,
        columns: &Schema,
        added: &[DataFile],
        merged: Option<MergedFiles>,
        since: Option<i64>,
    ) -> Result<Self> {
        let spec = view.there()?.partitions.spec();
        let partition = spec.partition_type(columns).doing("partition the columns of staged rows")?;
        let filed = |files: &[DataFile], partition: &StructType, spec_id: i32| {
            let filed = files.iter().map(|file| Filed::new(file, partition, columns, spec_id));
            filed.collect::<Result<Vec<_>>>()
        };
        let merged = merged.map(|(incoming, removes, on)| {
            Ok::<_, Error>(Merged { incoming: filed(&incoming, &beside(), 0)?, removes, on })
        });
        Ok(Self {
            spec_id: spec.spec_id(),
            added: filed(added, &partition, spec.spec_id())?,
            columns: columns.clone(),
            merged: merged.transpose()?,
            since,
        })
    }

    /// What a commit adds.
    pub(crate) fn added(&self, there: &There) -> Result<Vec<DataFile>> {
        let spec = there.loaded.metadata.partition_spec_by_id(self.spec_id).ok_or_else(|| {
            Error::new(ErrorKind::State, "the table no longer has the partition spec of the staged rows")
                .with_advice("stage them again")
        })?;
        let partition = spec.partition_type(&self.columns).doing("partition the columns of staged rows")?;
        self.added.iter().map(|file| file.read(&partition, &self.columns, self.spec_id)).collect()
    }

    /// The rows that came for a merge; none of another set.
    pub(crate) fn incoming(&self) -> Result<Vec<DataFile>> {
        let incoming = self.merged.iter().flat_map(|merged| &merged.incoming);
        incoming.map(|file| file.read(&beside(), &self.columns, 0)).collect()
    }

    pub(crate) fn columns(&self) -> &Schema {
        &self.columns
    }

    pub(crate) fn spec_id(&self) -> i32 {
        self.spec_id
    }

    pub(crate) fn removes(&self, path: &str) -> bool {
        self.merged.as_ref().is_some_and(|merged| merged.removes(path))
    }

    /// Every file, with its size in bytes.
    pub(crate) fn places(&self) -> Vec<(String, u64)> {
        let incoming = self.merged.iter().flat_map(|merged| &merged.incoming);
        self.added.iter().chain(incoming).map(|file| (file.path.clone(), file.size_bytes)).collect()
    }
}

/// Partition values of files that no version of the table will have.
fn beside() -> StructType {
    StructType::new(Vec::new())
}

impl Filed {
    /// Refuses a file that would be read as another one.
    fn new(file: &DataFile, partition: &StructType, columns: &Schema, spec_id: i32) -> Result<Self> {
        let what = "note a staged file";
        // Of a format that does not fill in what the file does not say.
        let entry = serialize_data_file_to_json(file.clone(), partition, FormatVersion::V2).doing(what)?;
        let (path, size_bytes) = (file.file_path().to_owned(), file.file_size_in_bytes());
        let filed = Self { path, size_bytes, entry };
        if is_same(&filed.read(partition, columns, spec_id)?, file) {
            return Ok(filed);
        }
        Err(Error::new(ErrorKind::Unsupported, "the partition of a file has values that JSON does not have")
            .with_context("file", &filed.path)
            .with_advice("partition the table by other values than floats"))
    }

    fn read(&self, partition: &StructType, columns: &Schema, spec_id: i32) -> Result<DataFile> {
        deserialize_data_file_from_json(&self.entry, spec_id, partition, columns)
            .doing("read the note of a staged file")
            .map_err(|e| e.with_context("file", &self.path))
    }
}

/// Whether all that differs from file to file is the same.
fn is_same(a: &DataFile, b: &DataFile) -> bool {
    #[allow(clippy::disallowed_types, reason = "the library has it, and only equality is asked")]
    type Bounds = std::collections::HashMap<i32, Datum>;
    let bounds = |file: &DataFile| -> BTreeMap<i32, (Option<Datum>, Option<Datum>)> {
        let of = |bounds: &Bounds, id: &i32| bounds.get(id).cloned();
        let ids = file.lower_bounds().keys().chain(file.upper_bounds().keys());
        ids.map(|id| (*id, (of(file.lower_bounds(), id), of(file.upper_bounds(), id)))).collect()
    };
    a.file_path() == b.file_path()
        && a.partition() == b.partition()
        && a.record_count() == b.record_count()
        && a.value_counts() == b.value_counts()
        && a.null_value_counts() == b.null_value_counts()
        && a.nan_value_counts() == b.nan_value_counts()
        && a.column_sizes() == b.column_sizes()
        && bounds(a) == bounds(b)
}

/// The set for a commit, which nobody discards from now on. The files of one that is not committed after all are orphans.
pub(crate) async fn claim(table: &IcebergTable, staged: &Staged) -> Result<Set> {
    let view = table.latest().await?;
    let files = &view.there()?.files;
    let found = Set::claim(files.folder(), staged).await?;
    match files.missing(found.content.places()).await?.first() {
        None => Ok(found),
        Some(path) => Err(sets::gone(&staged.id).with_context("file", path)),
    }
}

/// Removes the note, and what no version needs of a set that was committed.
pub(crate) async fn forget(table: &IcebergTable, set: &Set) -> Result<()> {
    let view = table.latest().await?;
    let files = &view.there()?.files;
    let incoming = set.content.merged.iter().flat_map(|merged| &merged.incoming);
    files.remove(incoming.map(|file| file.path.clone()).collect()).await?;
    Set::forget(files.folder(), &set.staged.id).await
}

/// A set by its id; `None` where it is not there, not intact, or committed.
pub(crate) async fn open(table: &IcebergTable, id: &StagedId) -> Result<Option<Set>> {
    let view = table.latest().await?;
    let Some(there) = view.known() else { return Ok(None) };
    let Some(found) = Set::read(there.files.folder(), id).await? else { return Ok(None) };
    let intact = there.files.missing(found.content.places()).await?.is_empty();
    let there = intact && !is_committed(table, &view, id, Some(&found)).await?;
    Ok(there.then_some(found))
}

/// Removes a set. Refuses one that is committed: its files are the table's.
pub(crate) async fn discard(table: &IcebergTable, id: &StagedId) -> Result<()> {
    let view = table.latest().await?;
    let Some(there) = view.known() else { return Ok(()) };
    let found = Set::read(there.files.folder(), id).await?;
    if is_committed(table, &view, id, found.as_ref()).await? {
        return Err(Error::new(ErrorKind::State, "the staged set is committed").with_context("staged", id));
    }
    let Some(found) = found else { return Ok(()) };
    // The branch first, as long as a note leads to it; and once more after the note, for those who made it again in between.
    hide(table, &found).await?;
    if sets::discard(there.files.folder(), id).await? {
        hide(table, &found).await?;
        let files = found.content.places().into_iter().map(|(path, _)| path);
        there.files.remove(files.collect()).await?;
    }
    sets::finish_discard(there.files.folder(), id).await
}

async fn hide(table: &IcebergTable, set: &Set) -> Result<()> {
    match &set.staged.visibility {
        Visibility::Shadow(backfill) => branch::hide(table, backfill, &set.staged.id).await,
        Visibility::Direct => Ok(()),
    }
}

async fn is_committed(table: &IcebergTable, view: &View, id: &StagedId, set: Option<&Set>) -> Result<bool> {
    let since = set.and_then(|set| set.content.since);
    let since = since.map_or_else(|| ABSENT.into(), |since| TableVersion::new(since.to_string()));
    match table.commits().find(view, &id.stamp, &Base::new(since, [].into()))? {
        Search::Found(commit) => {
            let this = |(stamp, attempt): &(StampId, u32)| *stamp == id.stamp && *attempt == id.attempt;
            Ok(commit.attempts.iter().any(this))
        }
        Search::NotThere => Ok(false),
        // The history does not tell any more; the files do, as long as they are the table's.
        Search::Expired => match set {
            Some(set) => is_live(table, view, set).await,
            None => Ok(false),
        },
    }
}

async fn is_live(table: &IcebergTable, view: &View, set: &Set) -> Result<bool> {
    let listing = view.listing(table, &Wanted::of(&set.staged.scope)).await?;
    let added: BTreeSet<&str> = set.content.added.iter().map(|file| file.path.as_str()).collect();
    let live = listing.files.values().flatten().chain(listing.loose.iter().map(|(file, _)| file));
    Ok(live.into_iter().any(|file| added.contains(file.path())))
}

#[cfg(test)]
mod tests;
