//! The live files of a version by partition.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use iceberg::spec::DataContentType;
use reprocess_core::Result;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Slice;

use super::Named;
use super::deletes::Deletes;
use crate::partitions::{Partitions, Placed, Reach};

/// A live data file with the deletes that apply to it.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) entry: Arc<Named>,
    /// In the order of their paths.
    pub(crate) deletes: Vec<Arc<Named>>,
}

/// The live files of the partitions that were asked for.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Complete for what was wanted; the paths in order.
    pub(crate) files: BTreeMap<PartitionKey, Vec<File>>,
    /// Files of older specs whose rows may lie in several partitions; the paths in order.
    pub(crate) loose: Vec<(File, Reach)>,
    /// Files of deletes, whether they apply to a file of the listing or not.
    pub(crate) deletes: Vec<Arc<Named>>,
}

/// Which partitions a listing has to be complete for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wanted {
    All,
    /// The partitions under keys, which may bind only some dimensions.
    Keys(Vec<PartitionKey>),
    Slice(Slice),
}

impl Wanted {
    pub(crate) fn of(scope: &Scope) -> Self {
        if scope.is_whole_table() { Self::All } else { Self::Keys(scope.partitions()) }
    }

    /// Whether a row that is wanted may be where the reach says.
    pub(crate) fn may_reach(&self, reach: &Reach) -> bool {
        match self {
            Self::All => true,
            Self::Keys(keys) => keys.iter().any(|key| reach.may_hold(key)),
            Self::Slice(slice) => reach.may_be_in(slice),
        }
    }
}

/// What is wanted, with the keys that need only be looked up.
struct Asked<'a> {
    wanted: &'a Wanted,
    full: BTreeSet<PartitionKey>,
    open: Vec<&'a PartitionKey>,
}

impl<'a> Asked<'a> {
    fn new(partitions: &Partitions, wanted: &'a Wanted) -> Self {
        let mut asked = Self { wanted, full: BTreeSet::new(), open: Vec::new() };
        let Wanted::Keys(keys) = wanted else { return asked };
        let dimensions = partitions.dimensions();
        for key in keys {
            match dimensions.check_key(key) {
                Ok(known) if known.bound().len() == dimensions.dimensions().len() => {
                    asked.full.insert(known);
                }
                _ => asked.open.push(key),
            }
        }
        asked
    }

    fn holds(&self, placed: &Placed) -> bool {
        match (placed, self.wanted) {
            (Placed::Among(reach), wanted) => wanted.may_reach(reach),
            (Placed::In(_), Wanted::All) => true,
            (Placed::In(key), Wanted::Keys(_)) => {
                self.full.contains(key) || self.open.iter().any(|open| open.covers(key))
            }
            (Placed::In(key), Wanted::Slice(slice)) => slice.holds(key),
        }
    }
}

impl Listing {
    /// The files among live entries that are wanted, with the deletes among them that apply.
    pub(super) fn of(
        partitions: &Partitions,
        wanted: &Wanted,
        live: &[Arc<Vec<Arc<Named>>>],
    ) -> Result<Self> {
        let entries = || live.iter().flat_map(|entries| entries.iter());
        let is_data = |entry: &&Arc<Named>| entry.file.content_type() == DataContentType::Data;
        let deletes: Vec<_> = entries().filter(|entry| !is_data(entry)).cloned().collect();
        let index = Deletes::new(&deletes);
        let asked = Asked::new(partitions, wanted);
        let (mut files, mut loose) = (BTreeMap::<_, Vec<_>>::new(), Vec::new());
        for entry in entries().filter(is_data) {
            let placed = partitions.place(&entry.spec, &entry.schema, &entry.file)?;
            if !asked.holds(&placed) {
                continue;
            }
            let file = File { entry: Arc::clone(entry), deletes: index.of(entry) };
            match placed {
                Placed::In(key) => files.entry(key).or_default().push(file),
                Placed::Among(reach) => loose.push((file, reach)),
            }
        }
        files.values_mut().for_each(|files| files.sort_by(|a, b| a.path().cmp(b.path())));
        loose.sort_by(|(a, _), (b, _)| a.path().cmp(b.path()));
        Ok(Self { files, loose, deletes })
    }

    /// The files under a key of a scope, loose ones that may hold rows of it not among them.
    pub(crate) fn under(&self, key: &PartitionKey) -> Vec<&File> {
        // A key that binds every dimension is looked up; where it leaves one open, every partition is asked.
        let full = self.files.keys().next().filter(|known| known.bound().len() == key.bound().len());
        if let Some(known) = full {
            let bound = known.bound().filter_map(|(column, _)| Some((column, key.get(column)?)));
            let full =
                bound.fold(PartitionKey::whole(), |key, (column, value)| key.and(column, value.clone()));
            return self.files.get(&full).into_iter().flatten().collect();
        }
        self.files
            .iter()
            .filter(|(partition, _)| key.covers(partition))
            .flat_map(|(_, files)| files)
            .collect()
    }

    /// The files whose partition a slice holds.
    pub(crate) fn in_slice<'a>(&'a self, slice: &'a Slice) -> Vec<&'a File> {
        self.files
            .iter()
            .filter(|(partition, _)| slice.holds(partition))
            .flat_map(|(_, files)| files)
            .collect()
    }

    /// The loose files that may hold rows under a key.
    pub(crate) fn loose_under(&self, key: &PartitionKey) -> Vec<&File> {
        self.loose.iter().filter(|(_, reach)| reach.may_hold(key)).map(|(file, _)| file).collect()
    }

    /// The loose files that may hold rows of a slice.
    pub(crate) fn loose_in(&self, slice: &Slice) -> Vec<&File> {
        self.loose.iter().filter(|(_, reach)| reach.may_be_in(slice)).map(|(file, _)| file).collect()
    }
}

impl File {
    pub(crate) fn path(&self) -> &str {
        self.entry.file.file_path()
    }

    /// What tells its content from that of others: files are never changed, but rows are taken out of them.
    pub(crate) fn identity(&self) -> String {
        let mut identity = self.path().to_owned();
        for delete in &self.deletes {
            identity.push('\n');
            identity.push_str(delete.file.file_path());
            // Several deletion vectors may be in one file.
            if let Some(offset) = delete.file.content_offset() {
                identity.push_str(&format!("@{offset}"));
            }
        }
        identity
    }
}
