//! Our commits in the log of a table, and the search for one by its stamp.

use std::collections::BTreeSet;
use std::sync::Arc;

use deltalake::kernel::{Action, Transaction};
use deltalake::logstore::{LogStore, get_actions};
use reprocess_core::Result;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Base;
use reprocess_core::ports::writer::{Commit, CommitEntry, StampId};
use reprocess_lake::record::{Record, Remembered};

use crate::error::Doing;
use crate::view::{self, View};

/// Name under which a commit carries what it is.
pub(crate) const KEY: &str = "reprocess";
/// The commits of a table that were looked at.
#[derive(Debug, Default)]
pub(crate) struct Commits(Remembered<u64>);

/// What a search through the history came to.
#[derive(Debug)]
pub(crate) enum Search {
    Found(Commit),
    NotThere,
    Expired,
}

impl Commits {
    /// The commit of one version. `None` in `Ok` where the log no longer has the version.
    async fn of(&self, log: &dyn LogStore, version: u64) -> Result<Option<Option<Arc<Record>>>> {
        let known = self.0.get(&version);
        if known.is_some() {
            return Ok(known);
        }
        let Some(actions) = actions(log, version).await? else { return Ok(None) };
        let record = record_of(&actions, version)?.map(Arc::new);
        self.0.insert(version, record.clone());
        Ok(Some(record))
    }

    /// Looks for a stamp: in the versions after `since`, and among the transactions, where work that had no plan stands.
    pub(crate) async fn find(
        &self,
        log: &dyn LogStore,
        view: &View,
        stamp: &StampId,
        scope: &Scope,
        since: &Base,
    ) -> Result<Search> {
        match self.find_since(log, view, stamp, scope, since).await? {
            Search::NotThere => self.by_transaction(log, view, stamp).await,
            found => Ok(found),
        }
    }

    /// Looks for a stamp in the versions after `since`, the newest first.
    pub(crate) async fn find_since(
        &self,
        log: &dyn LogStore,
        view: &View,
        stamp: &StampId,
        scope: &Scope,
        since: &Base,
    ) -> Result<Search> {
        let Some(newest) = view.number() else { return Ok(Search::NotThere) };
        let from = view::number(&since.table)?.map_or(0, |since| since.saturating_add(1));
        for version in (from..=newest).rev() {
            let Some(record) = self.of(log, version).await? else {
                return self.in_transactions(log, view, scope, from).await;
            };
            if let Some(commit) = record.as_ref().and_then(|record| record.commit_of(stamp)) {
                return Ok(Search::Found(commit.clone()));
            }
        }
        Ok(Search::NotThere)
    }

    /// Work that has no plan has no base from before it either: after a crash it is looked for since a base that was taken
    /// after its commit. Its stamp stands among the transactions, with the version.
    async fn by_transaction(&self, log: &dyn LogStore, view: &View, stamp: &StampId) -> Result<Search> {
        if view.number().is_none() {
            return Ok(Search::NotThere);
        }
        let version = view.snapshot()?.transaction_version(log, stamp_id(stamp)).await;
        let version = version.doing("look up the transactions of the table")?;
        let Some(version) = version.and_then(|version| u64::try_from(version).ok()) else {
            return Ok(Search::NotThere);
        };
        let record = self.of(log, version).await?.flatten();
        // Else the log no longer has it, or the number is of a table that was here before.
        let commit = record.as_ref().and_then(|record| record.commit_of(stamp));
        Ok(commit.map_or(Search::Expired, |commit| Search::Found(commit.clone())))
    }

    /// Where the log has been cleaned, its transactions still tell whether a partition was written by us since.
    async fn in_transactions(
        &self,
        log: &dyn LogStore,
        view: &View,
        scope: &Scope,
        from: u64,
    ) -> Result<Search> {
        for key in scope.partitions() {
            let last = view.snapshot()?.transaction_version(log, app_id(&key)).await;
            let last = last.doing("look up the transactions of the table")?;
            if last.and_then(|last| u64::try_from(last).ok()).is_some_and(|last| last >= from) {
                return Ok(Search::Expired);
            }
        }
        Ok(Search::NotThere)
    }

    /// Whether a commit after `since` that touched the scope was made under a later lease.
    pub(crate) async fn later_lease(
        &self,
        log: &dyn LogStore,
        view: &View,
        scope: &Scope,
        since: &Base,
        token: u64,
    ) -> Result<bool> {
        let Some(newest) = view.number() else { return Ok(false) };
        let from = view::number(&since.table)?.map_or(0, |since| since.saturating_add(1));
        for version in from..=newest {
            let Some(Some(record)) = self.of(log, version).await? else { continue };
            if record.is_under_later_lease(scope, token) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The actions of a version; `None` where the log no longer has it.
pub(crate) async fn actions(log: &dyn LogStore, version: u64) -> Result<Option<Vec<Action>>> {
    let what = "read a version of the log";
    match log.read_commit_entry(version).await.doing(what)? {
        Some(bytes) => get_actions(version, &bytes).doing(what).map(Some),
        None => Ok(None),
    }
}

fn record_of(actions: &[Action], version: u64) -> Result<Option<Record>> {
    let info = actions.iter().find_map(|action| match action {
        Action::CommitInfo(info) => info.info.get(KEY),
        _ => None,
    });
    info.map(|info| Record::read(serde_json::from_value(info.clone()), version)).transpose()
}

/// Name under which the log keeps the last version in which we wrote a partition.
fn app_id(key: &PartitionKey) -> String {
    format!("{KEY}/{key}")
}

/// Name under which the log keeps the version that completed a stamp.
fn stamp_id(stamp: &StampId) -> String {
    format!("{KEY}.stamp/{}", &blake3::hash(stamp.to_string().as_bytes()).to_hex()[..32])
}

/// The transactions of a commit: each partition with the version that writes it, which only grows, and the stamp of what
/// was not planned, whose base is nowhere written down.
pub(crate) fn transactions(open: &[&CommitEntry], version: u64) -> Vec<Transaction> {
    let version = i64::try_from(version).unwrap_or(i64::MAX);
    // Without the time of the last update a transaction does not expire.
    let keys: BTreeSet<_> = open.iter().flat_map(|entry| entry.scope.partitions()).collect();
    let of_keys = keys.iter().map(|key| Transaction::new(app_id(key), version));
    // Those of stamps grow in number, so they expire where the table says so.
    let of_stamps = open.iter().filter(|entry| entry.finish.task.is_none()).map(|entry| {
        let at = entry.finish.records.first().map(|record| record.finished_at.timestamp_millis());
        Transaction::new_with_last_update(stamp_id(&entry.stamp), version, at)
    });
    of_keys.chain(of_stamps).collect()
}
