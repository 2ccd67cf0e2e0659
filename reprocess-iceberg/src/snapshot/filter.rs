//! Files that go: the manifests that name them are written again, those that do not stay as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use iceberg::spec::{DataFile, ManifestFile};
use reprocess_core::{Error, Result};

use super::sheet::{Line, Sheet};
use crate::view::Named;

/// What tells one entry of a manifest from the others: the path, and for deletion vectors, of which one file
/// may hold several, the place in the file.
pub(super) type Identity = (String, Option<i64>);

/// Which entries go from which manifest: what a rewritten manifest is remembered by.
pub(super) type Gone = (String, BTreeSet<Identity>);

/// The manifests of a head.
#[derive(Debug, Default)]
pub(super) struct Split<'a> {
    /// Those that name a file that goes.
    pub(super) hit: Vec<(&'a ManifestFile, Gone)>,
    /// Those that do not.
    pub(super) kept: Vec<&'a ManifestFile>,
}

fn identity(file: &DataFile) -> Identity {
    (file.file_path().to_owned(), file.content_offset())
}

/// Divides the manifests of a head. Those without a live file are in neither half: what they tell is of a
/// snapshot before.
pub(super) fn split<'a>(manifests: &'a [ManifestFile], removed: &[Arc<Named>]) -> Result<Split<'a>> {
    let mut gone: BTreeMap<&str, BTreeSet<Identity>> = BTreeMap::new();
    for entry in removed {
        gone.entry(&entry.manifest).or_default().insert(identity(&entry.file));
    }
    let mut split = Split::default();
    for manifest in manifests.iter().filter(|manifest| has_live(manifest)) {
        match gone.remove(manifest.manifest_path.as_str()) {
            Some(entries) => split.hit.push((manifest, (manifest.manifest_path.clone(), entries))),
            None => split.kept.push(manifest),
        }
    }
    match gone.pop_first() {
        None => Ok(split),
        Some((manifest, _)) => Err(Error::internal("files go from a manifest that the head does not have")
            .with_context("manifest", manifest)),
    }
}

/// Whether a manifest may name a live file; where it does not say, it may.
pub(super) fn has_live(manifest: &ManifestFile) -> bool {
    manifest.has_added_files() || manifest.has_existing_files()
}

/// A manifest without the entries that go, with its own columns and spec.
pub(super) fn without<'a>(
    manifest: &ManifestFile,
    live: &'a [Arc<Named>],
    gone: &BTreeSet<Identity>,
) -> Result<Sheet<'a>> {
    let missing = || {
        Error::internal("a file that goes is not among the live ones of its manifest")
            .with_context("manifest", &manifest.manifest_path)
    };
    let first = live.first().ok_or_else(missing)?;
    let mut found = BTreeSet::new();
    let mut lines = Vec::with_capacity(live.len());
    for entry in live {
        let identity = identity(&entry.file);
        if gone.contains(&identity) {
            found.insert(identity);
            lines.push(Line::Deleted(entry));
        } else {
            lines.push(Line::Existing(entry));
        }
    }
    if let Some((path, _)) = gone.difference(&found).next() {
        return Err(missing().with_context("file", path));
    }
    Ok(Sheet::like(manifest, first, lines))
}
