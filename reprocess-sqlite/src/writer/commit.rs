//! The atomic step: one short transaction with data, log, stamps and, where it lives in this file, the ledger.

use std::any::Any;

use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::ports::ledger::{Fence, RunLedger};
use reprocess_core::ports::writer::{
    Change, Commit, CommitEntry, CommitOutcome, CommitRequest, Moved, MovedBy, StampId,
};
use reprocess_core::{ErrorKind, Result};
use sqlx::{Sqlite, Transaction};

use super::apply::{Applied, apply};
use super::stamps::{self, Done};
use super::{SqliteTable, base_of, keep};
use crate::catalog::Managed;
use crate::changes::table_version;
use crate::config::SqliteDatabase;
use crate::error::Doing;
use crate::ledger::SqliteLedger;
use crate::shadow;

/// Where the ledger is.
#[derive(Clone, Copy)]
enum Ledger<'a> {
    None,
    /// In this file, so that it takes part in the transaction.
    Here(&'a SqliteLedger),
    Elsewhere(&'a dyn RunLedger),
}

impl<'a> Ledger<'a> {
    fn of(database: &SqliteDatabase, ledger: Option<&'a dyn RunLedger>) -> Self {
        let Some(ledger) = ledger else { return Self::None };
        let any: &dyn Any = ledger;
        match any.downcast_ref::<SqliteLedger>() {
            Some(here) if here.database().is_same_file(database) => Self::Here(here),
            _ => Self::Elsewhere(ledger),
        }
    }

    async fn refuses(self, tx: &mut Transaction<'static, Sqlite>, fence: Option<&Fence>) -> Result<bool> {
        match (self, fence) {
            (Self::Here(ledger), Some(fence)) => Ok(!ledger.fence_is_current_in(tx, fence).await?),
            _ => Ok(false),
        }
    }
}

pub(super) async fn commit(table: &SqliteTable, request: CommitRequest<'_>) -> Result<CommitOutcome> {
    check(table, &request)?;
    let ledger = Ledger::of(table.database(), request.ledger);
    // A ledger elsewhere cannot be asked inside the transaction; the base guards what happens meanwhile.
    let fenced = match (ledger, request.fence) {
        (Ledger::Elsewhere(ledger), Some(fence)) => !ledger.is_current(fence).await?,
        _ => false,
    };
    let mut tx = table.database().begin_write().await?;
    let outcome = decide(table, &request, ledger, fenced, &mut tx).await?;
    let CommitOutcome::Committed(commit) = &outcome else {
        tx.rollback().await.doing("end a commit without changes")?;
        return Ok(outcome);
    };
    tx.commit().await.doing("commit")?;
    clean_up(table, &request, commit).await;
    Ok(outcome)
}

async fn decide(
    table: &SqliteTable,
    request: &CommitRequest<'_>,
    ledger: Ledger<'_>,
    fenced: bool,
    tx: &mut Transaction<'static, Sqlite>,
) -> Result<CommitOutcome> {
    let stamps: Vec<StampId> = request.entries.iter().map(|entry| entry.stamp.clone()).collect();
    let found = stamps::find(tx, table.spec(), &stamps).await?;
    let open: Vec<CommitEntry> = request
        .entries
        .iter()
        .zip(&found)
        .filter(|(_, done)| done.is_none())
        .map(|(entry, _)| entry.clone())
        .collect();
    let earlier: Vec<(StampId, u32)> = stamps
        .iter()
        .zip(&found)
        .filter_map(|(stamp, done)| Some((stamp.clone(), done.as_ref()?.attempt)))
        .collect();
    if open.is_empty() {
        let done: Vec<Done> = found.into_iter().flatten().collect();
        return Ok(CommitOutcome::AlreadyCommitted(stamps::summed(done)?));
    }
    let managed = Managed::load(tx, table.spec()).await?;
    if let Some(managed) = &managed {
        managed.changes().fold(tx).await?;
    }
    let moved = moved(tx, managed.as_ref(), request, &open).await?;
    if !moved.is_empty() {
        return Ok(CommitOutcome::Conflicted { moved });
    }
    if fenced || ledger.refuses(tx, request.fence).await? {
        return Ok(CommitOutcome::Fenced);
    }
    let Some(applied) = apply(table, tx, managed, &open, request.keep).await? else {
        return Ok(CommitOutcome::SchemaChanged);
    };
    match finish(table, request, ledger, tx, applied, &open, earlier).await {
        // The ledger has given the task to a later attempt.
        Err(e) if e.kind() == ErrorKind::State => Ok(CommitOutcome::Fenced),
        finished => finished.map(CommitOutcome::Committed),
    }
}

/// Stamps, and the ledger's rows where they belong into the same transaction.
async fn finish(
    table: &SqliteTable,
    request: &CommitRequest<'_>,
    ledger: Ledger<'_>,
    tx: &mut Transaction<'static, Sqlite>,
    applied: Applied,
    open: &[CommitEntry],
    earlier: Vec<(StampId, u32)>,
) -> Result<Commit> {
    let Applied { managed, seq } = applied;
    let keys: Vec<_> = request.entries.iter().flat_map(|entry| entry.scope.partitions()).collect();
    let completed: Vec<_> = open.iter().map(|entry| (entry.stamp.clone(), attempt(entry))).collect();
    let mut commit = Commit {
        version: table_version(seq),
        partitions: base_of(tx, Some(&managed), &keys).await?,
        attempts: earlier.into_iter().chain(completed.iter().cloned()).collect(),
        kept: request.keep.then(|| keep::kept(&table.spec().id, seq)),
        recorded: false,
        order: u64::try_from(seq).unwrap_or(0),
    };
    if let Ledger::Here(ledger) = ledger {
        commit.recorded = true;
        // Told in order, since both are one transaction.
        commit.order = 0;
        ledger.finish_in(tx, &commit, open).await?;
    }
    stamps::write(tx, managed.t, seq, &commit, &completed).await?;
    Ok(commit)
}

/// A later attempt may commit what an earlier one staged; deliveries stand under the one that staged.
fn attempt(entry: &CommitEntry) -> u32 {
    match &entry.change {
        Change::Apply(staged) => staged.id.attempt,
        Change::Restore(_) | Change::Adopt => entry.attempt,
    }
}

fn check(table: &SqliteTable, request: &CommitRequest<'_>) -> Result<()> {
    for key in request.entries.iter().flat_map(|entry| entry.scope.partitions()) {
        table.spec().partitioning.check_key(&key)?;
    }
    request.check(&table.spec().id)
}

async fn moved(
    tx: &mut Transaction<'static, Sqlite>,
    managed: Option<&Managed>,
    request: &CommitRequest<'_>,
    open: &[CommitEntry],
) -> Result<Vec<Moved>> {
    let keys: Vec<PartitionKey> = open.iter().flat_map(|entry| entry.scope.partitions()).collect();
    let head = base_of(tx, managed, &keys).await?;
    let moved =
        head.partitions.into_iter().filter(|(key, now)| request.base.partitions.get(key) != Some(now));
    Ok(moved.map(|(partition, now)| Moved { partition, by: MovedBy::Content, now }).collect())
}

/// The staged rows are in production now. What cannot be removed does no harm, and goes with a later `discard`.
async fn clean_up(table: &SqliteTable, request: &CommitRequest<'_>, commit: &Commit) {
    for entry in request.entries {
        let Change::Apply(staged) = &entry.change else { continue };
        let committed = (entry.stamp.clone(), staged.id.attempt);
        if !commit.attempts.contains(&committed) {
            continue;
        }
        if let Err(e) = shadow::discard(table.database(), &table.spec().id, &staged.id).await {
            tracing::warn!(error = %e, staged = %staged.id, "staged rows could not be removed after their commit");
        }
    }
}
