//! Making snapshots: what `iceberg` 0.10 cannot yet.
//!
//! A [`Draft`] says what a commit does, whatever the head it lands on. A [`Desk`] writes the manifests and
//! the list for one head, remembers them for the next where another came first, and removes in the end what
//! nobody needs.

mod added;
mod assemble;
mod desk;
mod filter;
mod identity;
mod merge;
mod rebuilt;
mod refs;
mod sheet;
mod summary;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use iceberg::spec::{DataFile, Operation, PartitionSpecRef, Snapshot};
use iceberg::{TableRequirement, TableUpdate};

pub(crate) use self::desk::Desk;
pub(crate) use self::identity::identify;
pub(crate) use self::rebuilt::with_path;
pub(crate) use self::refs::change_refs;
use crate::view::Named;

/// What one snapshot does.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    /// The same for every attempt, see [`identify`].
    pub(crate) id: i64,
    /// The branch that it becomes the head of.
    pub(crate) branch: String,
    pub(crate) operation: Operation,
    /// Live data files and files of deletes that go; all have to be live in the head.
    pub(crate) removed: Vec<Arc<Named>>,
    /// Data files that come, all of one spec.
    pub(crate) added: Vec<DataFile>,
    pub(crate) added_spec: PartitionSpecRef,
    /// Columns that the table has from now on, where they change. On a branch other than main they only
    /// become known to the table, which keeps those that it has.
    pub(crate) columns: Option<iceberg::spec::Schema>,
    /// What the summary says beside the totals.
    pub(crate) summary: BTreeMap<String, String>,
    /// Refs that are set and removed in the same change. One that is removed must not have moved since the
    /// version that the snapshot is made for.
    pub(crate) refs: Vec<RefChange>,
}

/// A change of a tag or branch beside the one that the snapshot is for.
#[derive(Clone, Debug)]
pub(crate) enum RefChange {
    /// A tag on a snapshot.
    Tag { name: String, snapshot: i64 },
    /// Gone, where it is there.
    Remove { name: String },
}

/// A snapshot that was written for a head, and what the catalog is asked for.
#[derive(Debug)]
pub(crate) struct Assembled {
    pub(crate) snapshot: Snapshot,
    pub(crate) requirements: Vec<TableRequirement>,
    pub(crate) updates: Vec<TableUpdate>,
    /// Files of metadata that it cannot do without.
    needs: BTreeSet<String>,
}
