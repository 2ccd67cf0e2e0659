//! The atomic step: one snapshot, written onto the version that was checked.
//!
//! Whether a commit may go on is decided here, on the newest metadata, by the files of each partition and by stamps. The
//! catalog then makes sure that nothing came in between: where another change came first nothing happened, and all is
//! checked again on what it left. Data files are never written again for that.

mod changes;
mod columns;
mod work;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::{Base, Kept};
use reprocess_core::ports::writer::{
    Change, Commit, CommitEntry, CommitOutcome, CommitRequest, MovedBy, StampId,
};
use reprocess_core::{Error, ErrorKind, Result};

pub(crate) use changes::Changes;
pub(crate) use columns::widened;
use work::Work;
pub(crate) use work::{Reply, ask};
use write::{Landing, Onto};

use super::{keep, layout};
use crate::commits::{self, Search};
use crate::features;
use crate::table::IcebergTable;
use crate::view::{View, Wanted};

/// How often a change is tried again after another came first.
const TRIES: usize = 1_000;

/// How long to wait after another change came first.
pub(crate) fn waits() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(2))
        .with_max_delay(Duration::from_millis(200))
        .with_max_times(TRIES)
        .with_jitter()
        .build()
}

pub(crate) fn outrun() -> Error {
    Error::new(ErrorKind::Unavailable, "other changes came first, again and again")
}

pub(super) async fn commit(table: &IcebergTable, request: CommitRequest<'_>) -> Result<CommitOutcome> {
    request.check(&table.spec().id)?;
    for key in request.entries.iter().flat_map(|entry| entry.scope.partitions()) {
        table.spec().partitioning.check_key(&key)?;
    }
    let mut work = Work::new();
    let outcome = attempts(table, &request, &mut work).await;
    work.tidy(&outcome).await;
    outcome
}

async fn attempts(
    table: &IcebergTable,
    request: &CommitRequest<'_>,
    work: &mut Work,
) -> Result<CommitOutcome> {
    for wait in waits() {
        let turn = table.turn().await;
        if let Some(outcome) = attempt(table, request, work).await? {
            drop(turn);
            if matches!(outcome, CommitOutcome::Committed(_)) {
                work.clean_up(table).await;
            }
            return Ok(outcome);
        }
        drop(turn);
        tokio::time::sleep(wait).await;
    }
    Err(outrun())
}

/// One try onto the newest version; `None` where another change came first.
async fn attempt(
    table: &IcebergTable,
    request: &CommitRequest<'_>,
    work: &mut Work,
) -> Result<Option<CommitOutcome>> {
    let view = table.latest().await?;
    work.saw(&view);
    let known = known(table, &view, request)?;
    let (open, mut earlier) = request.left(|stamp| known.get(stamp).cloned());
    earlier.sort_by_key(|commit| commit.order);
    if open.is_empty() {
        let said = Commit::sum(earlier).ok_or_else(|| Error::internal("nothing was committed"))?;
        return Ok(Some(CommitOutcome::AlreadyCommitted(said)));
    }
    // Those that were committed earlier are told as they are now.
    let scope = Scope::union_of(request.entries.iter().map(|entry| &entry.scope));
    let wanted = Wanted::of(&scope.ok_or_else(|| Error::internal("a commit has no scope"))?);
    let listing = view.listing(table, &wanted).await?;
    let mut head = Base::new(view.version(), BTreeMap::new());
    for entry in &open {
        head.partitions.extend(view.head(&listing, &entry.scope)?.partitions);
    }
    if let Some(outcome) = refusal(table, &view, request, &open, &head).await? {
        return Ok(Some(outcome));
    }
    features::check_write(&view, false)?;
    work.claim(table, &open).await?;
    let mut changes = Changes::new(&view, &listing, &wanted)?;
    let mut onto = Onto::Head;
    for entry in &open {
        let fits = match &entry.change {
            Change::Apply(staged) => changes.apply(work.set(&staged.id)?, &head)?,
            Change::Restore(kept) => {
                let back = restore(table, &view, kept, entry, &mut changes, work).await?;
                back.map(|back| onto = back).is_some()
            }
            Change::Adopt => {
                return Err(Error::internal("what is only to be told to the ledger cannot be committed"));
            }
        };
        if !fits {
            return Ok(Some(CommitOutcome::SchemaChanged));
        }
    }
    let landing = Landing { table, view: &view, request, open: &open, earlier: &earlier };
    landing.write(changes, onto, work).await
}

/// Brings back what a commit replaced: a part by its files, the whole table by going back. `None` where the columns of a
/// part are no longer there.
async fn restore(
    table: &IcebergTable,
    view: &View,
    kept: &Kept,
    entry: &CommitEntry,
    changes: &mut Changes<'_>,
    work: &mut Work,
) -> Result<Option<Onto>> {
    let (snapshot, columns) = (keep::find(table, view, kept)?, keep::columns_of(table, view, kept)?);
    if entry.scope.is_whole_table() {
        changes.go_back(&columns)?;
        return Ok(Some(match snapshot {
            Some(snapshot) => Onto::Earlier(table.at_snapshot(view, &snapshot).await?),
            // There were no rows then, nor a snapshot to go back to.
            None => {
                changes.restore(&entry.scope, &BTreeSet::new(), Vec::new())?;
                Onto::Head
            }
        }));
    }
    if !changes.can_hold(&columns)? {
        return Ok(None);
    }
    let back = work.back(table, view, kept, entry).await?;
    changes.restore(&entry.scope, &back.stays, back.added.clone())?;
    Ok(Some(Onto::Head))
}

/// The commits of those stamps that have one.
fn known(
    table: &IcebergTable,
    view: &View,
    request: &CommitRequest<'_>,
) -> Result<BTreeMap<StampId, Commit>> {
    let mut known = BTreeMap::new();
    for entry in request.entries {
        match table.commits().find(view, &entry.stamp, request.since)? {
            Search::Found(commit) => {
                known.insert(entry.stamp.clone(), *commit);
            }
            Search::NotThere => {}
            Search::Expired => {
                return Err(Error::new(
                    ErrorKind::State,
                    "the snapshots no longer tell whether this was committed",
                )
                .with_context("stamp", &entry.stamp)
                .with_advice("keep snapshots longer than plans run (`history.expire.max-snapshot-age-ms` of the table), and plan the work again"));
            }
        }
    }
    Ok(known)
}

/// Why what is left may not be committed.
async fn refusal(
    table: &IcebergTable,
    view: &View,
    request: &CommitRequest<'_>,
    open: &[&CommitEntry],
    head: &Base,
) -> Result<Option<CommitOutcome>> {
    let refused = request.refusal(open, head).await?;
    if let Some(CommitOutcome::Conflicted { mut moved }) = refused {
        for moved in &mut moved {
            if layout::only_files_moved(table, view, &moved.partition, request.base).await? {
                moved.by = MovedBy::Layout;
            }
        }
        return Ok(Some(CommitOutcome::Conflicted { moved }));
    }
    if let (None, Some(fence)) = (&refused, request.fence) {
        for entry in open {
            if commits::later_lease(view, &entry.scope, request.base, fence.token)? {
                return Ok(Some(CommitOutcome::Fenced));
            }
        }
    }
    Ok(refused)
}
