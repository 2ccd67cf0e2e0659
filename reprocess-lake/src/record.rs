//! What a commit of ours carries in the history of a table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

use reprocess_core::domain::fingerprint::Fingerprint;
use reprocess_core::domain::ids::{Build, JobName, LogicVersion, RunId};
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Pin;
use reprocess_core::ports::ledger::RunRecord;
use reprocess_core::ports::writer::{Commit, CommitEntry, CommitRequest, StampId};
use reprocess_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// How many commits are remembered.
const REMEMBERED: usize = 4_096;

/// What one commit of ours carries in the version that it made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// What it said.
    pub commit: Commit,
    /// Its tasks.
    pub entries: Vec<Entry>,
    /// Commits that it took back, since the table went on from a version before them: they are no longer in its history,
    /// and were made all the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub took_back: Vec<TookBack>,
}

/// One task of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The work that it completed.
    pub stamp: StampId,
    /// What it touched.
    pub scope: Scope,
    /// Of the lease under which it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// What made the rows, for people who look at the history.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub made_by: Vec<MadeBy>,
}

/// A commit that a later one took back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TookBack {
    /// The work that it completed.
    pub stamps: Vec<StampId>,
    /// What it said.
    pub commit: Commit,
}

/// What made one partition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MadeBy {
    run: RunId,
    job: JobName,
    partition: PartitionKey,
    logic: Option<LogicVersion>,
    build: Build,
    fingerprint: Option<Fingerprint>,
    inputs: BTreeMap<String, Pin>,
}

impl From<&RunRecord> for MadeBy {
    fn from(record: &RunRecord) -> Self {
        Self {
            run: record.run.clone(),
            job: record.job.clone(),
            partition: record.partition.clone(),
            logic: record.logic.clone(),
            build: record.build.clone(),
            fingerprint: record.fingerprint.clone(),
            inputs: record.inputs.clone(),
        }
    }
}

impl Entry {
    /// What a commit says of one of its entries.
    pub fn of(entry: &CommitEntry, request: &CommitRequest<'_>) -> Self {
        Self {
            stamp: entry.stamp.clone(),
            scope: entry.scope.clone(),
            token: request.fence.map(|fence| fence.token),
            made_by: entry.finish.records.iter().map(Into::into).collect(),
        }
    }
}

impl Record {
    /// Of a commit of the entries that were left; it took nothing back.
    pub fn of(commit: Commit, open: &[&CommitEntry], request: &CommitRequest<'_>) -> Self {
        let entries = open.iter().map(|entry| Entry::of(entry, request)).collect();
        Self { commit, entries, took_back: Vec::new() }
    }

    /// A record that was read in a version of the table.
    pub fn read(parsed: serde_json::Result<Self>, version: impl Display) -> Result<Self> {
        parsed.map_err(|e| {
            Error::new(ErrorKind::Corrupt, "what a commit of ours says of itself cannot be read")
                .with_context("version", version)
                .with_source(e)
                .with_advice("a newer release of reprocess wrote it; use that one")
        })
    }

    /// What the commit of a stamp said: this one, or one that it took back.
    pub fn commit_of(&self, stamp: &StampId) -> Option<&Commit> {
        if self.entries.iter().any(|entry| entry.stamp == *stamp) {
            return Some(&self.commit);
        }
        let of_stamp = |took: &&TookBack| took.stamps.contains(stamp);
        self.took_back.iter().find(of_stamp).map(|took| &took.commit)
    }

    /// What a commit that leaves this one behind has taken back by it: this one, and what it took back itself.
    pub fn left_behind(&self) -> impl Iterator<Item = TookBack> {
        let stamps = self.entries.iter().map(|entry| entry.stamp.clone()).collect();
        let this = TookBack { stamps, commit: self.commit.clone() };
        std::iter::once(this).chain(self.took_back.iter().cloned())
    }

    /// Whether it touched the scope under a later lease than that of the token.
    pub fn is_under_later_lease(&self, scope: &Scope, token: u64) -> bool {
        let mut entries = self.entries.iter().filter(|entry| entry.scope.overlaps(scope));
        entries.any(|entry| entry.token.is_some_and(|other| other > token))
    }
}

/// The records of versions that were looked at, by what a version is known by; `None` for versions of others. A version
/// never changes. The greatest are remembered longest.
#[derive(Debug)]
pub struct Remembered<K>(Mutex<BTreeMap<K, Option<Arc<Record>>>>);

impl<K> Default for Remembered<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord> Remembered<K> {
    /// What is known of a version; `None` where it was not looked at.
    pub fn get(&self, version: &K) -> Option<Option<Arc<Record>>> {
        self.known().get(version).cloned()
    }

    /// What was found in a version.
    pub fn insert(&self, version: K, record: Option<Arc<Record>>) {
        let mut known = self.known();
        known.insert(version, record);
        while known.len() > REMEMBERED {
            known.pop_first();
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<K, Option<Arc<Record>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names a commit of entries: unlike any other attempt at them.
pub fn id_of(open: &[&CommitEntry]) -> String {
    let mut hasher = blake3::Hasher::new();
    for entry in open {
        hasher.update(format!("{}#{}\n", entry.stamp, entry.attempt).as_bytes());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

/// What made a version, for people who look at the history with other tools.
pub fn in_words(open: &[&CommitEntry]) -> String {
    let runs: BTreeSet<_> =
        open.iter().map(|entry| format!("{} of {}", entry.stamp.run, entry.stamp.job)).collect();
    format!("reprocess: {}", runs.into_iter().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use reprocess_core::domain::slice::Base;

    use super::*;
    use crate::testing::{MON, TUE, day, stamp};

    fn record(version: &str, runs: &[(&str, &str, Option<u64>)]) -> Record {
        let entries = runs.iter().map(|(run, partition, token)| Entry {
            stamp: stamp(run),
            scope: Scope::key(day(partition)).unwrap(),
            token: *token,
            made_by: Vec::new(),
        });
        let commit = Commit {
            version: version.into(),
            partitions: Base::new(version.into(), BTreeMap::new()),
            attempts: runs.iter().map(|(run, ..)| (stamp(run), 1)).collect(),
            kept: None,
            recorded: false,
            order: 1,
        };
        Record { commit, entries: entries.collect(), took_back: Vec::new() }
    }

    fn version_of(record: &Record, run: &str) -> Option<String> {
        record.commit_of(&stamp(run)).map(|commit| commit.version.to_string())
    }

    #[test]
    fn what_was_taken_back_is_found_with_what_it_said() {
        let first = record("1", &[("a", MON, None), ("b", TUE, None)]);
        let mut back = record("2", &[("back", MON, None)]);
        back.took_back = first.left_behind().collect();
        let mut again = record("3", &[("again", MON, None)]);
        again.took_back = back.left_behind().collect();

        let found = |run| version_of(&again, run);
        assert_eq!(found("again").as_deref(), Some("3"));
        assert_eq!(found("back").as_deref(), Some("2"));
        assert_eq!(found("a").as_deref(), Some("1"));
        assert_eq!(found("b").as_deref(), Some("1"));
        assert_eq!(found("c"), None);
    }

    #[test]
    fn a_record_reads_as_it_was_written_also_by_an_earlier_release() {
        let mut written = record("1", &[("a", MON, Some(7))]);
        let text = serde_json::to_string(&written).unwrap();
        assert!(!text.contains("took_back") && !text.contains("made_by"), "{text}");
        assert_eq!(Record::read(serde_json::from_str(&text), 1).unwrap(), written);
        written.took_back = record("0", &[("z", MON, None)]).left_behind().collect();
        let text = serde_json::to_string(&written).unwrap();
        assert_eq!(Record::read(serde_json::from_str(&text), 1).unwrap(), written);
        let error = Record::read(serde_json::from_str("{}"), 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_later_lease_counts_where_the_scopes_meet() {
        let record = record("1", &[("a", MON, Some(7)), ("b", TUE, None)]);
        let on = |text| Scope::key(day(text)).unwrap();
        assert!(record.is_under_later_lease(&on(MON), 6));
        assert!(record.is_under_later_lease(&Scope::whole_table(), 6));
        assert!(!record.is_under_later_lease(&on(MON), 7));
        assert!(!record.is_under_later_lease(&on(TUE), 6));
    }

    #[test]
    fn the_greatest_versions_are_remembered_longest() {
        let remembered = Remembered::default();
        let known = Arc::new(record("1", &[]));
        for version in 0..=REMEMBERED {
            remembered.insert(version, Some(Arc::clone(&known)));
        }
        assert_eq!(remembered.get(&0), None);
        assert!(remembered.get(&REMEMBERED).flatten().is_some());
        remembered.insert(REMEMBERED + 1, None);
        assert_eq!(remembered.get(&(REMEMBERED + 1)), Some(None));
    }
}
