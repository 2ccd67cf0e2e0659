//! What commits and branches do to the files of a version.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use iceberg::spec::{
    DataContentType, DataFile, DataFileBuilder, Operation, PartitionSpecRef, Schema, SchemaRef,
};
use reprocess_core::domain::ids::PartitionVersion;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Base;
use reprocess_core::ports::writer::Intent;
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_lake::versions::version_of;

use super::columns::Columns;
use crate::columns::to_arrow;
use crate::error::broken_promise;
use crate::features;
use crate::partitions::Placed;
use crate::shadow::Set;
use crate::view::{File, Listing, Named, There, View, Wanted};

/// The files that go and come, and the columns afterwards.
#[derive(Debug)]
pub(crate) struct Changes<'a> {
    view: &'a View,
    there: &'a There,
    listing: &'a Listing,
    /// What the listing is complete for.
    wanted: &'a Wanted,
    columns: Columns,
    /// Of the files that come, once there are some.
    spec: Option<PartitionSpecRef>,
    removed: BTreeMap<&'a str, &'a File>,
    added: BTreeMap<PartitionKey, Vec<DataFile>>,
}

impl<'a> Changes<'a> {
    pub(crate) fn new(view: &'a View, listing: &'a Listing, wanted: &'a Wanted) -> Result<Self> {
        let there = view.there()?;
        Ok(Self {
            view,
            there,
            listing,
            wanted,
            columns: Columns::new(view.schema(), &there.columns),
            spec: None,
            removed: BTreeMap::new(),
            added: BTreeMap::new(),
        })
    }

    /// Applies a staged set; `false` where the table's columns are no longer such that its rows fit. `head` has the
    /// versions of its scope. What fails has changed nothing.
    pub(crate) fn apply(&mut self, set: &Set, head: &Base) -> Result<bool> {
        let (staged, content) = (&set.staged, &set.content);
        features::check_write(self.view, matches!(staged.intent, Intent::Merge(_)))?;
        let (of_files, mut columns) = (content.columns(), self.columns.clone());
        if !columns.take(&self.there.loaded.metadata, staged, of_files)? {
            return Ok(false);
        }
        let removed = match (&staged.intent, &content.merged) {
            (Intent::Merge(_), Some(merged)) if merged.is_on(head) => self.of_paths(&merged.removes)?,
            (Intent::Merge(_), Some(_)) => return Err(moved_under(set)),
            (Intent::Merge(_), None) => {
                return Err(
                    Error::internal("a merge was staged without its rows").with_context("staged", &staged.id)
                );
            }
            (Intent::Replace, _) => self.under(staged.scope.partitions())?,
            (Intent::ReplaceDynamic, _) => self.under(staged.received.iter().cloned())?,
        };
        let added = content.added(self.there)?;
        self.replace(removed, added, content.spec_id(), of_files)?;
        self.columns = columns;
        Ok(true)
    }

    /// Whether the scope can hold files again that were written when the table had the columns of `then`.
    pub(crate) fn can_hold(&self, then: &SchemaRef) -> Result<bool> {
        Ok(self.columns.can_hold(then, &to_arrow(then)?))
    }

    /// Leaves of a scope what stays, and adds files of the default spec.
    pub(crate) fn restore(
        &mut self,
        scope: &Scope,
        stays: &BTreeSet<String>,
        added: Vec<DataFile>,
    ) -> Result<()> {
        let mut removed = self.under(scope.partitions())?;
        removed.retain(|file| !stays.contains(file.path()));
        let columns = Arc::clone(self.columns.iceberg());
        let spec = self.there.loaded.metadata.default_partition_spec_id();
        self.replace(removed, added, spec, &columns)
    }

    /// The whole table with the columns of then.
    pub(crate) fn go_back(&mut self, then: &SchemaRef) -> Result<()> {
        self.columns.go_back(then, &to_arrow(then)?);
        Ok(())
    }

    fn replace(
        &mut self,
        removed: Vec<&'a File>,
        added: Vec<DataFile>,
        spec: i32,
        columns: &Schema,
    ) -> Result<()> {
        if !added.is_empty() {
            let spec = self.spec_of(spec)?;
            let placed =
                added.into_iter().map(|file| match self.there.partitions.place(&spec, columns, &file)? {
                    Placed::In(key) => Ok((key, file)),
                    Placed::Among(_) => Err(divided_since(&file)),
                });
            for (key, file) in placed.collect::<Result<Vec<_>>>()? {
                self.added.entry(key).or_default().push(file);
            }
            self.spec = Some(spec);
        }
        self.removed.extend(removed.into_iter().map(|file| (file.path(), file)));
        Ok(())
    }

    /// The spec by which files were written, the same for all of one commit.
    fn spec_of(&self, id: i32) -> Result<PartitionSpecRef> {
        let metadata = &self.there.loaded.metadata;
        let known = metadata.partition_spec_by_id(id);
        let known =
            known.filter(|spec| self.spec.as_ref().is_none_or(|first| first.spec_id() == spec.spec_id()));
        known.cloned().ok_or_else(|| {
            Error::new(
                ErrorKind::State,
                "the table was partitioned in another way while the rows were staged",
            )
            .with_context("spec", id)
            .with_advice("stage those again that were staged first")
        })
    }

    /// The files under keys. Refuses one that may hold rows beside them, which would go with it.
    fn under(&self, keys: impl IntoIterator<Item = PartitionKey>) -> Result<Vec<&'a File>> {
        let (listing, keys): (&'a Listing, BTreeSet<_>) = (self.listing, keys.into_iter().collect());
        let mut found: Vec<&File> = keys.iter().flat_map(|key| listing.under(key)).collect();
        let all = keys.iter().any(PartitionKey::is_whole);
        let scope = if all { Scope::whole_table() } else { Scope::keys(keys.iter().cloned())? };
        for (file, reach) in &listing.loose {
            if !keys.iter().any(|key| reach.may_hold(key)) {
                continue;
            }
            if !all && !reach.is_within(&scope, self.there.partitions.dimensions()) {
                return Err(divided(file, &scope));
            }
            found.push(file);
        }
        Ok(found)
    }

    /// Live files by their paths.
    fn of_paths(&self, paths: &[String]) -> Result<Vec<&'a File>> {
        let listing: &'a Listing = self.listing;
        let all = listing.files.values().flatten().chain(listing.loose.iter().map(|(file, _)| file));
        let known: BTreeMap<_, _> = all.map(|file| (file.path(), file)).collect();
        let find = |path: &String| {
            known.get(path.as_str()).copied().ok_or_else(|| {
                Error::internal("a file of a merge is not in the version that it was computed on")
                    .with_context("file", path)
            })
        };
        paths.iter().map(find).collect()
    }

    /// Versions of keys, once all is done.
    pub(crate) fn after(
        &self,
        keys: impl IntoIterator<Item = PartitionKey>,
    ) -> Result<BTreeMap<PartitionKey, PartitionVersion>> {
        let version = |key: PartitionKey| {
            let there = self.listing.under(&key).into_iter().chain(self.listing.loose_under(&key));
            let stays = there.filter(|file| !self.removed.contains_key(file.path()));
            let comes = self.added_under(&key).map(|file| file.file_path().to_owned());
            let version = version_of(stays.map(File::identity).chain(comes));
            (key, version)
        };
        Ok(keys.into_iter().map(version).collect())
    }

    fn added_under(&self, key: &PartitionKey) -> Box<dyn Iterator<Item = &DataFile> + '_> {
        // A full key is looked up; where it leaves a dimension open, every partition is asked.
        if key.bound().len() == self.there.partitions.dimensions().dimensions().len() {
            return Box::new(self.added.get(key).into_iter().flatten());
        }
        let (key, added) = (key.clone(), self.added.iter());
        Box::new(added.filter(move |(partition, _)| key.covers(partition)).flat_map(|(_, files)| files))
    }

    /// What goes: data files, and with them the files of deletes that nothing else is read with.
    pub(crate) fn removed(&self) -> Result<Vec<Arc<Named>>> {
        let mut removed: Vec<_> = self.removed.values().map(|file| Arc::clone(&file.entry)).collect();
        let listing = self.listing;
        let live = listing.files.values().flatten().chain(listing.loose.iter().map(|(file, _)| file));
        let staying = live.filter(|file| !self.removed.contains_key(file.path()));
        let needed: BTreeSet<_> =
            staying.flat_map(|file| &file.deletes).map(|deletes| place_of(deletes)).collect();
        for deletes in &listing.deletes {
            if !needed.contains(&place_of(deletes)) && self.is_of_removed(deletes)? {
                removed.push(Arc::clone(deletes));
            }
        }
        Ok(removed)
    }

    /// Whether all files that such deletes can be of are in the listing, and this commit removed some of their partition.
    fn is_of_removed(&self, deletes: &Named) -> Result<bool> {
        let of_this = |file: &&File| {
            let same_spec = file.entry.spec.spec_id() == deletes.spec.spec_id();
            same_spec && file.entry.file.partition() == deletes.file.partition()
        };
        if *self.wanted == Wanted::All {
            // Those of an unpartitioned spec are of all files, and go with the last.
            let everywhere = deletes.spec.is_unpartitioned();
            return Ok(!self.removed.is_empty() && everywhere || self.removed.values().any(of_this));
        }
        let Wanted::Keys(keys) = self.wanted else { return Ok(false) };
        let bare = bare(&deletes.file)?;
        let placed = self.there.partitions.place(&deletes.spec, &deletes.schema, &bare)?;
        let Placed::In(key) = placed else { return Ok(false) };
        Ok(keys.iter().any(|wanted| wanted.covers(&key)) && self.removed.values().any(of_this))
    }

    /// What comes.
    pub(crate) fn added(&self) -> Vec<DataFile> {
        self.added.values().flatten().cloned().collect()
    }

    /// The spec of what comes.
    pub(crate) fn spec(&self) -> PartitionSpecRef {
        let default = || Arc::clone(self.there.loaded.metadata.default_partition_spec());
        self.spec.clone().unwrap_or_else(default)
    }

    /// Columns once all is done.
    pub(crate) fn columns_after(&self) -> &SchemaRef {
        self.columns.iceberg()
    }

    /// Columns that the table has from now on, where they change.
    pub(crate) fn columns(&self) -> Option<Schema> {
        self.columns.change().map(|columns| columns.as_ref().clone())
    }

    /// What Iceberg calls it.
    pub(crate) fn operation(&self) -> Operation {
        match (self.removed.is_empty(), self.added.is_empty()) {
            (true, false) => Operation::Append,
            (false, true) => Operation::Delete,
            (false, false) | (true, true) => Operation::Overwrite,
        }
    }
}

/// A merge that was computed on other rows than those of the version.
pub(crate) fn moved_under(set: &Set) -> Error {
    Error::new(ErrorKind::State, "the merge was computed on other rows than those of the base")
        .with_context("staged", &set.staged.id)
        .with_advice("take the base for it first: `PartitionWriter::rebase`")
}

fn divided_since(file: &DataFile) -> Error {
    Error::new(ErrorKind::State, "the table is partitioned in another way since the rows were staged")
        .with_context("file", file.file_path())
        .with_advice("stage them again")
}

fn divided(file: &File, scope: &Scope) -> Error {
    Error::new(ErrorKind::Unsupported, "a file of an older partition spec may hold rows beside the scope")
        .with_context("file", file.path())
        .with_context("scope", scope)
        .with_advice("rewrite the files of the older spec, for example with `rewrite_data_files`, or replace the whole table")
}

/// A file of deletes by its partition values alone: its bounds say nothing about the files that it is of.
fn bare(deletes: &DataFile) -> Result<DataFile> {
    DataFileBuilder::default()
        .file_path(deletes.file_path().to_owned())
        .file_format(deletes.file_format())
        .content(DataContentType::Data)
        .partition(deletes.partition().clone())
        .record_count(deletes.record_count())
        .file_size_in_bytes(deletes.file_size_in_bytes())
        .build()
        .map_err(|e| broken_promise("a file of deletes cannot be named again", e))
}

/// Where deletes are: several vectors may be in one file.
fn place_of(deletes: &Named) -> (&str, Option<i64>) {
    (deletes.file.file_path(), deletes.file.content_offset())
}
