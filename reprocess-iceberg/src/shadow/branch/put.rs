//! Putting staged sets onto a branch.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt};
use iceberg::TableUpdate;
use reprocess_core::domain::ids::BackfillId;
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::writer::{Intent, Op, StagedId, StampId};
use reprocess_core::{Error, ErrorKind, Result};

use super::super::Set;
use super::standing::{Mark, Shown, abandoned, mark, name, says};
use crate::snapshot::{Desk, Draft, identify};
use crate::table::IcebergTable;
use crate::view::{View, Wanted};
use crate::writer::{Changes, Reply, ask};

/// How many notes are read at once.
const REQUESTS: usize = 16;

/// What became of it.
#[derive(Debug)]
pub(super) enum Put {
    Done,
    /// Another change of the table came first.
    CameFirst,
    /// The sets cannot be committed onto that version: with an error where there is more to say than that its columns are
    /// others.
    Misfit(Option<Error>),
}

/// Puts sets onto a version, which becomes the parent of the branch's new head. `gone` are snapshots that nothing reaches
/// after that.
pub(super) async fn put(
    table: &IcebergTable,
    onto: &View,
    backfill: &BackfillId,
    sets: &[Set],
    gone: Vec<i64>,
) -> Result<Put> {
    let Some(scope) = Scope::union_of(sets.iter().map(|set| &set.staged.scope)) else {
        return Ok(Put::Misfit(None));
    };
    let wanted = Wanted::of(&scope);
    let listing = onto.listing(table, &wanted).await?;
    let mut changes = Changes::new(onto, &listing, &wanted)?;
    for set in sets {
        match changes.apply(set, &onto.head(&listing, &set.staged.scope)?) {
            Ok(true) => {}
            Ok(false) => return Ok(Put::Misfit(None)),
            Err(e) if matches!(e.kind(), ErrorKind::State | ErrorKind::Unsupported | ErrorKind::Internal) => {
                return Ok(Put::Misfit(Some(e)));
            }
            Err(e) => return Err(e),
        }
    }
    let draft = draft(onto, backfill, sets, &changes)?;
    let mut desk = Desk::new();
    let mut assembled = desk.assemble(table, onto, &draft).await?;
    if !gone.is_empty() {
        assembled.updates.push(TableUpdate::RemoveSnapshots { snapshot_ids: gone });
    }
    match ask(table, onto, &assembled, None).await? {
        Reply::Done => {
            desk.tidy(onto, Some(&assembled)).await;
            Ok(Put::Done)
        }
        Reply::CameFirst => {
            desk.tidy(onto, None).await;
            Ok(Put::CameFirst)
        }
        Reply::Fenced => Err(Error::internal("a change without a fence was fenced")),
    }
}

fn draft(onto: &View, backfill: &BackfillId, sets: &[Set], changes: &Changes<'_>) -> Result<Draft> {
    let metadata = onto.metadata()?;
    let (branch, marks) = (name(backfill), sets.iter().map(mark).collect::<Vec<_>>());
    let says = says(backfill, &marks)?;
    let mut summary = BTreeMap::from(says.clone());
    if sets.iter().all(|set| !matches!(set.staged.intent, Intent::Merge(_))) {
        summary.insert("replace-partitions".to_owned(), "true".to_owned());
    }
    // Not the id of the snapshot that will commit the work, and another one on another parent.
    let what = format!("{:?} {}", onto.snapshot_id(), says[0].1);
    let shows = StampId {
        run: branch.as_str().into(),
        job: "shadow".into(),
        op: Op::Replace,
        scope_digest: blake3::hash(what.as_bytes()).to_hex()[..32].to_owned(),
        generation: 0,
    };
    Ok(Draft {
        id: identify(&[&shows], |id| metadata.snapshot_by_id(id).is_some()),
        branch,
        operation: changes.operation(),
        removed: changes.removed()?,
        added: changes.added(),
        added_spec: changes.spec(),
        // Of the snapshot: without them it would have those that main has now.
        columns: Some(changes.columns_after().as_ref().clone())
            .filter(|after| after.as_struct() != metadata.current_schema().as_struct()),
        summary,
        refs: Vec::new(),
    })
}

/// Makes a branch anew, with the sets of it that are still noted but for one, and with another one: from where it began, or
/// where they do not fit that, from main as it is. Those that do not fit main are not shown any more, unless it is the one
/// that comes.
pub(super) async fn again(
    table: &IcebergTable,
    view: &View,
    shown: &Shown,
    without: Option<&StagedId>,
    with: Option<&Set>,
) -> Result<Put> {
    let metadata = view.metadata()?;
    let mut sets = noted(table, view, shown, without, with).await?;
    let gone = abandoned(metadata, shown)?;
    let fork = shown.fork.flatten().filter(|_| without.is_some() || with.is_some());
    if let Some(fork) = fork.and_then(|id| metadata.snapshot_by_id(id)) {
        let fork = table.at_snapshot(view, fork).await?;
        match put(table, &fork, &shown.backfill, &sets, gone.clone()).await? {
            Put::Misfit(_) => {}
            put => return Ok(put),
        }
    }
    let mut why = put(table, view, &shown.backfill, &sets, gone.clone()).await?;
    if matches!(why, Put::Misfit(_)) {
        sets = fitting(table, view, sets).await?;
        let comes = with.is_none_or(|with| sets.iter().any(|set| set.staged.id == with.staged.id));
        if comes && !sets.is_empty() {
            why = put(table, view, &shown.backfill, &sets, gone).await?;
        }
    }
    Ok(why)
}

/// Those of the sets that can be committed onto a version, each after those before it.
async fn fitting(table: &IcebergTable, view: &View, sets: Vec<Set>) -> Result<Vec<Set>> {
    let Some(scope) = Scope::union_of(sets.iter().map(|set| &set.staged.scope)) else { return Ok(sets) };
    let wanted = Wanted::of(&scope);
    let listing = view.listing(table, &wanted).await?;
    let mut changes = Changes::new(view, &listing, &wanted)?;
    let mut fitting = Vec::new();
    for set in sets {
        match changes.apply(&set, &view.head(&listing, &set.staged.scope)?) {
            Ok(true) => fitting.push(set),
            misfit => {
                let why = misfit.err().map(|e| e.to_string()).unwrap_or_default();
                tracing::warn!(staged = %set.staged.id, why, "a staged set does not fit the table as it is, and is not shown");
            }
        }
    }
    Ok(fitting)
}

/// The sets of a branch as they are noted now, and the one that comes. Of several attempts at one work only the last, and of
/// sets that touch the same partitions only the first.
async fn noted(
    table: &IcebergTable,
    view: &View,
    shown: &Shown,
    without: Option<&StagedId>,
    with: Option<&Set>,
) -> Result<Vec<Set>> {
    let folder = view.there()?.files.folder();
    let comes = with.map(|set| &set.staged.id.stamp);
    let kept = |mark: &&Mark| Some(&mark.id) != without && Some(&mark.id.stamp) != comes;
    let read = shown.marks.iter().filter(kept).map(|known| async move {
        let set = Set::read(folder, &known.id).await?;
        Ok::<_, Error>(set.filter(|set| mark(set) == *known))
    });
    let read: Vec<_> = read.collect();
    let read: Vec<Option<Set>> = futures::stream::iter(read).buffered(REQUESTS).try_collect().await?;
    let mut last: BTreeMap<StampId, Set> = BTreeMap::new();
    for set in read.into_iter().flatten() {
        let stamp = set.staged.id.stamp.clone();
        if last.get(&stamp).is_none_or(|known| known.staged.id.attempt <= set.staged.id.attempt) {
            last.insert(stamp, set);
        }
    }
    let table = &table.spec().id;
    let mut sets: Vec<Set> = with.cloned().into_iter().collect();
    for set in last.into_values() {
        if sets.iter().any(|other| other.staged.scope.overlaps(&set.staged.scope)) {
            let staged = &set.staged.id;
            tracing::warn!(%table, %staged, "a staged set touches partitions of another one, and is not shown");
            continue;
        }
        sets.push(set);
    }
    Ok(sets)
}
