//! Small manifests put together, so that a table of many small commits stays fast to read and to commit to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use iceberg::spec::{ManifestContentType, ManifestFile, TableMetadata};

use super::added::FILES;
use super::sheet::{Line, Sheet, by_partition, packed};
use crate::view::Named;

const ENABLED: &str = "commit.manifest-merge.enabled";
const MIN_COUNT: &str = "commit.manifest.min-count-to-merge";
const TARGET_SIZE: &str = "commit.manifest.target-size-bytes";

/// What a table says about it; the defaults are those of Iceberg.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Settings {
    enabled: bool,
    min_count: usize,
    target_bytes: u64,
}

/// Manifests that others were put together from. Remembered by the attempts of a commit.
#[derive(Debug)]
pub(super) struct Merged {
    from: BTreeSet<String>,
    to: Vec<ManifestFile>,
}

/// Small manifests of one spec, with their live entries.
#[derive(Debug)]
pub(super) struct Small<'a> {
    pub(super) manifest: &'a ManifestFile,
    pub(super) live: Arc<Vec<Arc<Named>>>,
}

impl Settings {
    pub(super) fn of(metadata: &TableMetadata) -> Self {
        Self {
            enabled: property(metadata, ENABLED).unwrap_or(true),
            min_count: property(metadata, MIN_COUNT).unwrap_or(100),
            target_bytes: property(metadata, TARGET_SIZE).unwrap_or(8 << 20),
        }
    }

    /// Of manifests that stay those that are put together: the small ones of each spec, where there are
    /// enough of them.
    pub(super) fn choose<'a>(self, manifests: &[&'a ManifestFile]) -> Vec<Vec<&'a ManifestFile>> {
        if !self.enabled {
            return Vec::new();
        }
        let mut groups: BTreeMap<_, Vec<&ManifestFile>> = BTreeMap::new();
        for manifest in manifests.iter().filter(|manifest| self.is_small(manifest)) {
            let of_deletes = manifest.content == ManifestContentType::Deletes;
            groups.entry((manifest.partition_spec_id, of_deletes)).or_default().push(manifest);
        }
        // One alone cannot be put together, whatever the table says.
        groups.into_values().filter(|group| group.len() >= self.min_count.max(2)).collect()
    }

    /// Under half of what a manifest may be, so that two small ones always fit into one.
    fn is_small(self, manifest: &ManifestFile) -> bool {
        let files = manifest.added_files_count.zip(manifest.existing_files_count);
        let files = files.and_then(|(added, existing)| usize::try_from(added.saturating_add(existing)).ok());
        let bytes = u64::try_from(manifest.manifest_length).unwrap_or(u64::MAX);
        files.is_some_and(|files| files <= FILES / 2) && bytes <= self.target_bytes / 2
    }

    /// How many files a manifest may name, by the size that they take in those that are there.
    fn most(self, group: &[Small<'_>]) -> usize {
        let bytes: i64 = group.iter().map(|small| small.manifest.manifest_length).sum();
        let files: usize = group.iter().map(|small| small.live.len()).sum();
        let each = u64::try_from(bytes).unwrap_or(0) / u64::try_from(files.max(1)).unwrap_or(1);
        let fit = self.target_bytes / each.max(1);
        usize::try_from(fit).unwrap_or(FILES).clamp(1, FILES)
    }

    /// The manifests that take the place of small ones, by partition. Entries of other snapshots exist: none
    /// was added by the one that is made.
    pub(super) fn sheets<'a>(self, group: &'a [Small<'a>]) -> Vec<Sheet<'a>> {
        let first = group.iter().find_map(|small| Some((small.manifest, small.live.first()?)));
        let Some((manifest, entry)) = first else { return Vec::new() };
        let lines =
            group.iter().flat_map(|small| small.live.iter()).map(|entry| Line::Existing(entry)).collect();
        let sheet = |lines| Sheet::like(manifest, entry, lines);
        packed(by_partition(lines), self.most(group)).into_iter().map(sheet).collect()
    }
}

/// A group by the columns and the spec that its manifests were written with: only by them the values and
/// bounds of files are understood. What is alone then stays as it is.
pub(super) fn alike(group: Vec<Small<'_>>) -> Vec<Vec<Small<'_>>> {
    let mut alike: Vec<Vec<Small<'_>>> = Vec::new();
    for small in group {
        let Some(entry) = small.live.first() else { continue };
        let found = alike.iter_mut().find(|others| {
            let other = others.first().and_then(|other| other.live.first());
            other.is_some_and(|other| other.schema == entry.schema && other.spec == entry.spec)
        });
        match found {
            Some(others) => others.push(small),
            None => alike.push(vec![small]),
        }
    }
    alike.retain(|group| group.len() > 1);
    alike
}

impl Merged {
    pub(super) fn new(group: &[Small<'_>], to: Vec<ManifestFile>) -> Self {
        Self { from: group.iter().map(|small| small.manifest.manifest_path.clone()).collect(), to }
    }

    /// Puts itself in the place of what it was made from, where all of that stays.
    pub(super) fn replace(&self, kept: &mut Vec<&ManifestFile>) -> Option<&[ManifestFile]> {
        let there: BTreeSet<&str> = kept.iter().map(|manifest| manifest.manifest_path.as_str()).collect();
        if !self.from.iter().all(|path| there.contains(path.as_str())) {
            return None;
        }
        kept.retain(|manifest| !self.from.contains(&manifest.manifest_path));
        Some(&self.to)
    }
}

/// A property, where it is there and can be read.
fn property<T: std::str::FromStr>(metadata: &TableMetadata, name: &str) -> Option<T> {
    metadata.properties().get(name)?.parse().ok()
}
