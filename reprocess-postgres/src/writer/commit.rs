//! The atomic step: one short transaction with data, log, stamps and, where it lives in this database, the ledger.
//!
//! It waits for its turn, checks that nothing has moved, writes, and checks again: others may have written meanwhile. What
//! it changes of the log comes last, since that is where commits to other partitions meet.

use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::slice::Base;
use reprocess_core::ports::writer::{
    Change, Commit, CommitEntry, CommitOutcome, CommitRequest, Intent, Moved, MovedBy, Staged, StampId,
};
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::PgConnection;

use super::apply::{Applied, apply};
use super::ledger::Ledger;
use super::lock::Reach;
use super::stamps::{self, Done};
use super::swap::{self, Exchange, Swap, Swapped};
use super::{PostgresTable, forget, keep, merge, versions_of};
use crate::catalog::Managed;
use crate::changes::{Moment, Version, Versions};
use crate::config::Tx;
use crate::shadow;
use crate::sql::Statement;

/// What a try of a commit came to.
enum Try {
    Said(CommitOutcome),
    /// The table or an index has to be made, which needs every other commit away.
    NeedsTable,
    /// Others have changed its partitions, which has to be noted first.
    NeedsChildren,
    /// A swap did not come to its locks.
    Crowded,
    /// Why the rows are not to be swapped.
    NoSwap(String),
}

pub(super) async fn commit(table: &PostgresTable, request: CommitRequest<'_>) -> Result<CommitOutcome> {
    check(table, &request)?;
    let ledger = Ledger::of(table.database(), request.ledger);
    let fenced = ledger.refuses_before(request.fence).await?;
    let swap = Swap::prepare(table, &request).await?;
    let outcome = tried(table, &request, ledger, fenced, swap.as_ref()).await;
    match (&outcome, &swap) {
        (Ok(CommitOutcome::Committed(_) | CommitOutcome::AlreadyCommitted(_)), _) => {
            tidy(table, swap.is_some()).await;
        }
        (_, Some(swap)) => swap.give_up(table, "the rows are not committed").await,
        (_, None) => {}
    }
    outcome
}

/// Tries until something is said. What is to be swapped is inserted where that does not come about.
async fn tried(
    table: &PostgresTable,
    request: &CommitRequest<'_>,
    ledger: Ledger<'_>,
    fenced: bool,
    mut swap: Option<&Swap>,
) -> Result<CommitOutcome> {
    let mut reach = Reach::of(table, request);
    let mut delays = swap::backoff(table);
    loop {
        let mut tx = table.database().begin().await?;
        reach.lock(&mut tx, table).await?;
        let alone = reach == Reach::Table;
        let attempt = Attempt { table, request, ledger, fenced, alone, swap };
        let decided = match attempt.decide(&mut tx).await {
            Ok(decided) => decided,
            Err(e) if swap.is_some() && swap::is_crowded(&e) => Try::Crowded,
            Err(error) => {
                drop(tx);
                return attempt.conflict_or(error).await;
            }
        };
        match decided {
            Try::Said(outcome @ (CommitOutcome::Committed(_) | CommitOutcome::AlreadyCommitted(_))) => {
                tx.commit().await?;
                return Ok(outcome);
            }
            Try::Said(outcome) => {
                tx.rollback().await?;
                return Ok(outcome);
            }
            Try::NeedsTable => reach = Reach::Table,
            Try::NeedsChildren => {
                tx.rollback().await?;
                table.take_on().await?;
            }
            Try::Crowded => {
                tx.rollback().await?;
                match delays.next() {
                    Some(delay) => tokio::time::sleep(delay).await,
                    None => swap = not_swapped(table, "others use the table all the time"),
                }
            }
            Try::NoSwap(why) => {
                tx.rollback().await?;
                swap = not_swapped(table, &why);
            }
        }
    }
}

fn not_swapped(table: &PostgresTable, why: &str) -> Option<&'static Swap> {
    tracing::info!(table = %table.spec().id, why, "the rows are inserted, not swapped");
    None
}

/// Removes what is not needed any more. What cannot be removed now goes with a later commit.
async fn tidy(table: &PostgresTable, swapped: bool) {
    shadow::sweep(table.database()).await;
    if let Err(e) = forget::expire(table).await {
        tracing::warn!(error = %e, "old rows that were kept could not be freed");
    }
    if swapped && let Err(e) = swap::tidy(table).await {
        tracing::warn!(error = %e, "foreign keys of kept rows could not be removed");
    }
}

struct Attempt<'a> {
    table: &'a PostgresTable,
    request: &'a CommitRequest<'a>,
    ledger: Ledger<'a>,
    /// What a ledger elsewhere said of the fence.
    fenced: bool,
    /// Whether no other commit to the table is under way.
    alone: bool,
    /// What is to be swapped.
    swap: Option<&'a Swap>,
}

impl Attempt<'_> {
    async fn decide(&self, tx: &mut Tx) -> Result<Try> {
        let said = |outcome| Ok(Try::Said(outcome));
        let (open, found) = self.open(tx).await?;
        let pairs = self.request.entries.iter().zip(&found);
        let earlier: Vec<(StampId, u32)> =
            pairs.filter_map(|(entry, done)| Some((entry.stamp.clone(), done.as_ref()?.attempt))).collect();
        if open.is_empty() {
            shadow::strike_committed(tx, self.table, &self.stamps()).await?;
            let done: Vec<Done> = found.into_iter().flatten().collect();
            return said(CommitOutcome::AlreadyCommitted(stamps::summed(done)?));
        }
        let managed = self.table.managed(tx).await?;
        if !self.alone && has_to_be_made(tx, managed.as_ref(), &open).await? {
            return Ok(Try::NeedsTable);
        }
        if let Some(managed) = managed.as_ref().filter(|_| self.table.locks_table()) {
            Statement::new(format!("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", managed.name.quoted()))
                .execute(tx, "lock the table")
                .await?;
        }
        if let Some(managed) = managed.as_ref().filter(|managed| managed.partitioned) {
            if self.swap.is_none() {
                keep_children(tx, managed).await?;
            }
            if managed.has_other_children(tx).await? {
                return Ok(Try::NeedsChildren);
            }
        }
        let keys: Vec<_> = open.iter().flat_map(|entry| entry.scope.partitions()).collect();
        let before = versions_of(tx, managed.as_ref(), &keys).await?;
        let moved = moved_since(self.request.base, &keys, &before);
        if !moved.is_empty() {
            return said(CommitOutcome::Conflicted { moved });
        }
        if self.fenced || self.ledger.refuses(tx, self.request.fence).await? {
            return said(CommitOutcome::Fenced);
        }
        let is_new = managed.is_none();
        let schema = self.table.database().schema();
        let kept = if self.request.keep { Some(keep::number(tx, schema).await?) } else { None };
        let swapped = match self.exchange(tx, managed.as_ref(), &open, kept).await? {
            Exchange::Done(swapped) => swapped,
            Exchange::OtherChildren => return Ok(Try::NeedsChildren),
            Exchange::No(why) => return Ok(Try::NoSwap(why)),
        };
        let left: Vec<_> = open.iter().filter(|e| !swapped.stamps.contains(&e.stamp)).cloned().collect();
        let Some(mut applied) = apply(self.table, tx, managed, &left, kept).await? else {
            return said(CommitOutcome::SchemaChanged);
        };
        applied.touched.extend(swapped.touched);
        let all: Vec<_> = self.request.entries.iter().flat_map(|entry| entry.scope.partitions()).collect();
        let after = versions_of(tx, Some(&applied.managed), &all).await?;
        let mut moved = moved_since(self.request.base, &all, &after);
        moved.retain(|moved| keys.contains(&moved.partition));
        if !is_new && !moved.is_empty() {
            return said(CommitOutcome::Conflicted { moved });
        }
        match self.finish(tx, applied, base_after(&all, after), &open, earlier).await {
            // The ledger has given the task to a later attempt.
            Err(e) if e.kind() == ErrorKind::State => said(CommitOutcome::Fenced),
            finished => said(CommitOutcome::Committed(finished?)),
        }
    }

    async fn exchange(
        &self,
        tx: &mut Tx,
        managed: Option<&Managed>,
        open: &[CommitEntry],
        kept: Option<i64>,
    ) -> Result<Exchange> {
        match self.swap.zip(managed) {
            Some((swap, managed)) => swap.exchange(self.table, tx, managed, open, kept).await,
            None => Ok(Exchange::Done(Swapped::default())),
        }
    }

    fn stamps(&self) -> Vec<StampId> {
        self.request.entries.iter().map(|entry| entry.stamp.clone()).collect()
    }

    /// The entries that are not committed yet, and for each entry what its commit said.
    async fn open(&self, tx: &mut Tx) -> Result<(Vec<CommitEntry>, Vec<Option<Done>>)> {
        let entries = self.request.entries;
        let found = stamps::find(tx, self.table, &self.stamps()).await?;
        let open = entries.iter().zip(&found).filter(|(_, done)| done.is_none());
        Ok((open.map(|(entry, _)| entry.clone()).collect(), found))
    }

    /// The error, unless partitions have moved: what others wrote beside this commit, such as a row with the key of one
    /// that was to be inserted, is then what was in its way.
    async fn conflict_or(&self, error: Error) -> Result<CommitOutcome> {
        if error.is_retryable() {
            return Err(error);
        }
        match self.moved().await {
            Ok(moved) if !moved.is_empty() => Ok(CommitOutcome::Conflicted { moved }),
            _ => Err(error),
        }
    }

    async fn moved(&self) -> Result<Vec<Moved>> {
        let mut tx = self.table.database().begin_read().await?;
        let (open, _) = self.open(&mut tx).await?;
        let managed = self.table.managed(&mut tx).await?;
        let keys: Vec<_> = open.iter().flat_map(|entry| entry.scope.partitions()).collect();
        let now = versions_of(&mut tx, managed.as_ref(), &keys).await?;
        tx.rollback().await?;
        Ok(moved_since(self.request.base, &keys, &now))
    }

    /// Log, stamps, and the ledger's rows where they belong into the same transaction. `after` gives the versions that
    /// follow from the number of the commit: what others commit from here on is no part of it.
    async fn finish(
        &self,
        tx: &mut Tx,
        applied: Applied,
        after: impl FnOnce(i64, &[PartitionKey]) -> Base + Send,
        open: &[CommitEntry],
        earlier: Vec<(StampId, u32)>,
    ) -> Result<Commit> {
        let Applied { managed, touched, kept } = applied;
        managed.changes().fold(tx).await?;
        let seq = managed.changes().log(tx, &touched).await?;
        let partitions = after(seq, &touched);
        let completed: Vec<_> = open.iter().map(|entry| (entry.stamp.clone(), attempt(entry))).collect();
        let recorded = self.ledger.records();
        let commit = Commit {
            version: partitions.table.clone(),
            partitions,
            attempts: earlier.into_iter().chain(completed.iter().cloned()).collect(),
            kept: kept.map(|kept| keep::kept(&self.table.spec().id, kept)),
            recorded,
            // Told in order, where both are one transaction.
            order: if recorded { 0 } else { u64::try_from(seq).unwrap_or(0) },
        };
        stamps::write(tx, &managed, seq, &commit, &completed).await?;
        shadow::strike_committed(tx, self.table, &self.stamps()).await?;
        self.ledger.finish(tx, &commit, open).await?;
        Ok(commit)
    }
}

/// Keeps others from detaching partitions until the end, as writing does.
async fn keep_children(connection: &mut PgConnection, managed: &Managed) -> Result<()> {
    Statement::new(format!("LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE", managed.name.quoted()))
        .execute(connection, "keep the partitions of the table")
        .await?;
    Ok(())
}

/// Whether the table, or an index that a merge needs, is not there.
async fn has_to_be_made(tx: &mut Tx, managed: Option<&Managed>, open: &[CommitEntry]) -> Result<bool> {
    let Some(managed) = managed else { return Ok(true) };
    for entry in open {
        if let Change::Apply(Staged { intent: Intent::Merge(merge), .. }) = &entry.change
            && merge::needs_index(tx, managed, merge).await?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn base_after(keys: &[PartitionKey], before: Versions) -> impl FnOnce(i64, &[PartitionKey]) -> Base + Send {
    let keys = keys.to_vec();
    move |seq, touched| {
        let version = |key: &PartitionKey, before: Version| {
            let own = if touched.iter().any(|touched| touched.overlaps(key)) { seq } else { before.own };
            Version { own, ..before }.partition()
        };
        let versions =
            keys.iter().zip(&before.keys).map(|(key, before)| (key.clone(), version(key, *before)));
        let versions = versions.collect();
        Base::new(Moment { seq, ..before.moment }.table(), versions)
    }
}

/// The keys that do not have the version of the base.
fn moved_since(base: &Base, keys: &[PartitionKey], now: &Versions) -> Vec<Moved> {
    let now = keys.iter().zip(&now.keys).map(|(key, version)| (key, version.partition()));
    let mut moved: Vec<_> = now
        .filter(|(key, now)| base.partitions.get(key) != Some(now))
        .map(|(key, now)| Moved { partition: key.clone(), by: MovedBy::Content, now })
        .collect();
    moved.sort_by(|a, b| a.partition.cmp(&b.partition));
    moved
}

/// A later attempt may commit what an earlier one staged; deliveries stand under the one that staged.
fn attempt(entry: &CommitEntry) -> u32 {
    match &entry.change {
        Change::Apply(staged) => staged.id.attempt,
        Change::Restore(_) | Change::Adopt => entry.attempt,
    }
}

fn check(table: &PostgresTable, request: &CommitRequest<'_>) -> Result<()> {
    for key in request.entries.iter().flat_map(|entry| entry.scope.partitions()) {
        table.spec().partitioning.check_key(&key)?;
    }
    request.check(&table.spec().id)
}
