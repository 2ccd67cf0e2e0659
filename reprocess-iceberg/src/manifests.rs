//! Manifests as they were read. A manifest never changes, so that each is read once.

mod recent;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iceberg::spec::{
    DataContentType, DataFile, Manifest, ManifestFile, ManifestList, ManifestMetadata, PartitionSpecRef,
    SchemaRef, Snapshot, TableMetadata,
};
use reprocess_core::{Error, ErrorKind, Result};

use self::recent::Recent;
use crate::error::{Doing, broken_promise};
use crate::features;
use crate::files::Files;
use crate::view::Named;

/// How much memory the entries of manifests may take, by estimate: those of some hundred thousand files with few columns.
const ENTRIES_BYTES: usize = 256 << 20;
/// How many manifests the lists that are kept may name.
const LISTED: usize = 50_000;
/// How many specs and sets of columns are looked through for an equal one.
const SHARED: usize = 64;

/// The manifests of a table that were read, as many as fit, and the lists of them.
#[derive(Debug)]
pub(crate) struct Manifests(Mutex<Known>);

#[derive(Debug)]
struct Known {
    entries: Recent<Key, Arc<Vec<Arc<Named>>>>,
    lists: Recent<String, Arc<Vec<ManifestFile>>>,
    /// Every manifest has its own copy of these, most of them equal.
    schemas: Vec<SchemaRef>,
    specs: Vec<PartitionSpecRef>,
}

/// What the entries of a manifest follow from: its path, and what they inherit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    path: String,
    sequence_number: i64,
    snapshot: i64,
    first_row_id: Option<u64>,
}

impl Default for Manifests {
    fn default() -> Self {
        let known = Known {
            entries: Recent::new(ENTRIES_BYTES),
            lists: Recent::new(LISTED),
            schemas: Vec::new(),
            specs: Vec::new(),
        };
        Self(Mutex::new(known))
    }
}

impl Manifests {
    /// The live entries of a manifest (those that are added or existing), with what they inherit from it, in its order.
    pub(crate) async fn live(&self, files: &Files, manifest: &ManifestFile) -> Result<Arc<Vec<Arc<Named>>>> {
        let key = Key {
            path: manifest.manifest_path.clone(),
            sequence_number: manifest.sequence_number,
            snapshot: manifest.added_snapshot_id,
            first_row_id: manifest.first_row_id,
        };
        if let Some(live) = self.known().entries.get(&key) {
            return Ok(live);
        }
        let read = self.read(files, manifest).await;
        let live = Arc::new(read.map_err(|e| e.with_context("manifest", &manifest.manifest_path))?);
        let weight = live.iter().map(|entry| weight(&entry.file)).sum();
        self.known().entries.put(key, Arc::clone(&live), weight);
        Ok(live)
    }

    /// The manifests of a snapshot.
    pub(crate) async fn list(
        &self,
        files: &Files,
        metadata: &TableMetadata,
        snapshot: &Snapshot,
    ) -> Result<Arc<Vec<ManifestFile>>> {
        if snapshot.encryption_key_id().is_some() {
            return Err(features::encrypted());
        }
        let path = snapshot.manifest_list();
        if let Some(list) = self.known().lists.get(path) {
            return Ok(list);
        }
        let what = "read the list of manifests of a snapshot";
        let bytes = files.io().new_input(path).doing(what)?.read().await.doing(what)?;
        let list = ManifestList::parse_with_version(&bytes, metadata.format_version()).doing(what)?;
        let list = Arc::new(list.consume_entries().into_iter().collect::<Vec<_>>());
        self.known().lists.put(path.to_owned(), Arc::clone(&list), list.len() + 1);
        Ok(list)
    }

    async fn read(&self, files: &Files, manifest: &ManifestFile) -> Result<Vec<Arc<Named>>> {
        if manifest.key_metadata.is_some() {
            return Err(features::encrypted());
        }
        let (io, file) = (files.io().clone(), manifest.clone());
        // Most of the work is in understanding what was read, which several threads can do at once.
        let read = tokio::spawn(async move { file.load_manifest(&io).await });
        let read = read.await.map_err(|e| broken_promise("the reading of a manifest broke off", e))?;
        let (entries, about) = read.doing("read a manifest of the table").map(Manifest::into_parts)?;
        let (schema, spec) = self.shared(about);
        let path: Arc<str> = manifest.manifest_path.as_str().into();
        let mut row_ids = RowIds(manifest.first_row_id.and_then(|id| i64::try_from(id).ok()));
        let live = entries.into_iter().filter(|entry| entry.is_alive()).map(|entry| {
            let entry = Arc::unwrap_or_clone(entry);
            let (Some(snapshot_id), Some(sequence_number)) = (entry.snapshot_id, entry.sequence_number)
            else {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    "a file of the table has no sequence number or snapshot",
                )
                .with_context("file", entry.file_path()));
            };
            Ok(Arc::new(Named {
                first_row_id: row_ids.of(&entry.data_file),
                file_sequence_number: entry.file_sequence_number,
                file: entry.data_file,
                manifest: Arc::clone(&path),
                spec: Arc::clone(&spec),
                schema: Arc::clone(&schema),
                snapshot_id,
                sequence_number,
            }))
        });
        live.collect()
    }

    /// Columns and spec of a manifest, as another manifest has them already.
    fn shared(&self, about: ManifestMetadata) -> (SchemaRef, PartitionSpecRef) {
        let mut known = self.known();
        let Known { schemas, specs, .. } = &mut *known;
        (one_of(schemas, about.schema), one_of(specs, Arc::new(about.partition_spec)))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn one_of<T: PartialEq>(known: &mut Vec<Arc<T>>, one: Arc<T>) -> Arc<T> {
    if let Some(equal) = known.iter().find(|known| **known == one) {
        return Arc::clone(equal);
    }
    if known.len() == SHARED {
        known.remove(0);
    }
    known.push(Arc::clone(&one));
    one
}

/// The next id of a row that a manifest of data gives to a live file without one of its own.
struct RowIds(Option<i64>);

impl RowIds {
    fn of(&mut self, file: &DataFile) -> Option<i64> {
        if file.first_row_id().is_some() || file.content_type() != DataContentType::Data {
            return file.first_row_id();
        }
        let first = self.0?;
        self.0 = i64::try_from(file.record_count()).ok().and_then(|rows| first.checked_add(rows));
        Some(first)
    }
}

/// About how many bytes an entry takes.
fn weight(file: &DataFile) -> usize {
    let counts =
        [file.column_sizes(), file.value_counts(), file.null_value_counts(), file.nan_value_counts()];
    let counts: usize = counts.iter().map(|counts| counts.len()).sum();
    let bounds = file.lower_bounds().len() + file.upper_bounds().len();
    768 + file.file_path().len() + 24 * counts + 128 * bounds
}

#[cfg(test)]
mod tests;
