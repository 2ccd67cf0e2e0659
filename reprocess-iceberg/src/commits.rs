//! Our commits among the snapshots of a table: what they carry, and the search for one by its stamp.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use iceberg::spec::{Snapshot, SnapshotRef, TableMetadata};
use reprocess_core::Result;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Base;
use reprocess_core::ports::writer::{Commit, StampId};
use reprocess_lake::record::{Record, TookBack};
use uuid::Uuid;

use crate::view::{self, View};

/// Key of a snapshot's summary under which a commit carries what it is.
pub(crate) const KEY: &str = "reprocess";
/// How many snapshots that the table no longer has may be remembered.
const REMEMBERED: usize = 4_096;

/// Which snapshots carry which stamps. A snapshot never changes, so that each is looked at once.
#[derive(Debug, Default)]
pub(crate) struct Commits(Mutex<Index>);

#[derive(Debug, Default)]
struct Index {
    table: Uuid,
    seen: BTreeSet<i64>,
    /// The snapshots whose records name a stamp.
    stamps: BTreeMap<StampId, BTreeSet<i64>>,
}

/// What a search through the history came to.
#[derive(Debug, PartialEq)]
pub(crate) enum Search {
    Found(Box<Commit>),
    NotThere,
    Expired,
}

impl Commits {
    /// Looks for a stamp in every snapshot that the table still has, also where main has gone back behind it. What is not
    /// found was not committed, if the history of main is known as far back as `since`.
    pub(crate) fn find(&self, view: &View, stamp: &StampId, since: &Base) -> Result<Search> {
        let Some(there) = view.known() else { return Ok(Search::NotThere) };
        let since = view::snapshot_of(&since.table)?;
        self.find_in(&there.loaded.metadata, view.snapshot_id(), stamp, since)
    }

    fn find_in(
        &self,
        metadata: &TableMetadata,
        head: Option<i64>,
        stamp: &StampId,
        since: Option<i64>,
    ) -> Result<Search> {
        let carriers = {
            let mut index = self.index();
            index.learn(metadata)?;
            index.stamps.get(stamp).cloned().unwrap_or_default()
        };
        let mut carriers: Vec<_> =
            carriers.into_iter().filter_map(|id| metadata.snapshot_by_id(id)).collect();
        carriers.sort_by_key(|snapshot| order_of(snapshot));
        for snapshot in carriers {
            if let Some(commit) = record_of(snapshot)?.as_ref().and_then(|record| record.commit_of(stamp)) {
                return Ok(Search::Found(Box::new(commit.clone())));
            }
        }
        Ok(if after(metadata, head, since).complete { Search::NotThere } else { Search::Expired })
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Index {
    fn learn(&mut self, metadata: &TableMetadata) -> Result<()> {
        let gone = self.seen.len().saturating_sub(metadata.snapshots().len());
        if self.table != metadata.uuid() || gone > REMEMBERED {
            *self = Self { table: metadata.uuid(), ..Self::default() };
        }
        for snapshot in metadata.snapshots() {
            let id = snapshot.snapshot_id();
            if self.seen.contains(&id) {
                continue;
            }
            for stamp in record_of(snapshot)?.iter().flat_map(stamps_of) {
                self.stamps.entry(stamp.clone()).or_default().insert(id);
            }
            self.seen.insert(id);
        }
        Ok(())
    }
}

fn stamps_of(record: &Record) -> impl Iterator<Item = &StampId> {
    let taken = record.took_back.iter().flat_map(|took| &took.stamps);
    record.entries.iter().map(|entry| &entry.stamp).chain(taken)
}

/// What a commit of ours says of itself; `None` for snapshots of others.
pub(crate) fn record_of(snapshot: &Snapshot) -> Result<Option<Record>> {
    let text = snapshot.summary().additional_properties.get(KEY);
    text.map(|text| Record::read(serde_json::from_str(text), snapshot.snapshot_id())).transpose()
}

/// Whether a commit after `since` that touched the scope was made under a later lease.
pub(crate) fn later_lease(view: &View, scope: &Scope, since: &Base, token: u64) -> Result<bool> {
    let Some(there) = view.known() else { return Ok(false) };
    let since = view::snapshot_of(&since.table)?;
    later_lease_in(&there.loaded.metadata, view.snapshot_id(), scope, since, token)
}

fn later_lease_in(
    metadata: &TableMetadata,
    head: Option<i64>,
    scope: &Scope,
    since: Option<i64>,
    token: u64,
) -> Result<bool> {
    for snapshot in after(metadata, head, since).snapshots {
        if record_of(snapshot)?.is_some_and(|record| record.is_under_later_lease(scope, token)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The commits that are no longer in the history of main once it is at `to` again.
pub(crate) fn left_behind(metadata: &TableMetadata, head: Option<i64>, to: i64) -> Result<Vec<TookBack>> {
    let stays: BTreeSet<_> = ancestors(metadata, Some(to)).map(|snapshot| snapshot.snapshot_id()).collect();
    let stays_by_text: BTreeSet<_> = stays.iter().map(i64::to_string).collect();
    let mut left = Vec::new();
    for snapshot in ancestors(metadata, head).take_while(|at| !stays.contains(&at.snapshot_id())) {
        for took in record_of(snapshot)?.iter().flat_map(Record::left_behind) {
            if !stays_by_text.contains(took.commit.version.as_str()) {
                left.push(took);
            }
        }
    }
    Ok(left)
}

/// The snapshots of a branch after another one, the newest first.
#[derive(Debug)]
pub(crate) struct After<'a> {
    pub(crate) snapshots: Vec<&'a SnapshotRef>,
    /// Whether these are all; not where the table has lost some.
    pub(crate) complete: bool,
}

/// The ancestors of `head` that were made after `since`, of whichever branch that is.
pub(crate) fn after(metadata: &TableMetadata, head: Option<i64>, since: Option<i64>) -> After<'_> {
    let mark = since.and_then(|id| metadata.snapshot_by_id(id)).map(|snapshot| order_of(snapshot));
    let (mut at, mut snapshots) = (head, Vec::new());
    while let Some(id) = at.filter(|id| since != Some(*id)) {
        let Some(snapshot) = metadata.snapshot_by_id(id) else {
            return After { snapshots, complete: false };
        };
        if mark.is_some_and(|mark| order_of(snapshot) <= mark) {
            break;
        }
        snapshots.push(snapshot);
        at = snapshot.parent_snapshot_id();
    }
    After { snapshots, complete: true }
}

/// A snapshot and its ancestors as far as the table still has them, the newest first.
pub(crate) fn ancestors(metadata: &TableMetadata, head: Option<i64>) -> impl Iterator<Item = &SnapshotRef> {
    let by_id = |id| metadata.snapshot_by_id(id);
    std::iter::successors(head.and_then(by_id), move |at| at.parent_snapshot_id().and_then(by_id))
}

/// Grows along every branch, and over all of them where the format numbers its snapshots.
fn order_of(snapshot: &Snapshot) -> (i64, i64) {
    (snapshot.sequence_number(), snapshot.timestamp_ms())
}

#[cfg(test)]
mod tests;
