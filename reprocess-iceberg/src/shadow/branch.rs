//! The branch of a shadow: every engine sees there how the table would look with the staged sets of a backfill.
//!
//! The notes beside the table say what is staged; a branch only shows it. Where the two come to differ, for example because
//! a process ended between two steps, the branch is made anew, and a publication takes the notes.

mod put;
mod standing;

use iceberg::TableUpdate;
use iceberg::spec::{SchemaRef, TableMetadata};
use reprocess_core::domain::ids::BackfillId;
use reprocess_core::ports::writer::{StagedId, Visibility};
use reprocess_core::{Error, ErrorKind, Result};

use self::put::{Put, again, put};
pub(crate) use self::standing::{Mark, Shown, abandoned, mark, shown};
use super::Set;
use crate::catalog::{Answer, Proposal};
use crate::error::Doing;
use crate::features;
use crate::snapshot::{RefChange, change_refs};
use crate::table::IcebergTable;
use crate::view::View;
use crate::writer::{outrun, waits, widened};

/// Shows a staged set, in place of an earlier one of the same work.
pub(crate) async fn show(table: &IcebergTable, set: &Set) -> Result<()> {
    let Visibility::Shadow(backfill) = &set.staged.visibility else { return Ok(()) };
    let mark = mark(set);
    for wait in waits() {
        let turn = table.turn().await;
        let view = table.latest().await?;
        features::check_refs(&view)?;
        let shown = shown(view.metadata()?, backfill);
        let put = match &shown {
            Some(shown) if shown.marks.contains(&mark) => return Ok(()),
            Some(shown) if shown.marks.iter().any(|known| known.id.stamp == mark.id.stamp) => {
                again(table, &view, shown, None, Some(set)).await?
            }
            Some(shown) => {
                let head = table.at_snapshot(&view, &shown.head).await?;
                match put(table, &head, backfill, std::slice::from_ref(set), Vec::new()).await? {
                    // The branch begins at a version that the set does not fit.
                    Put::Misfit(_) => again(table, &view, shown, None, Some(set)).await?,
                    put => put,
                }
            }
            None => put(table, &view, backfill, std::slice::from_ref(set), Vec::new()).await?,
        };
        match put {
            Put::Done => return Ok(()),
            Put::CameFirst => {}
            Put::Misfit(why) => return Err(misfit(set, why)),
        }
        drop(turn);
        tokio::time::sleep(wait).await;
    }
    Err(outrun())
}

/// The rows were staged while the table, or the shadow, got other columns or other rows.
fn misfit(set: &Set, why: Option<Error>) -> Error {
    let error = Error::new(ErrorKind::Unavailable, "the table changed while rows were staged for a shadow")
        .with_context("staged", &set.staged.id)
        .with_advice("stage them again");
    match why {
        Some(why) => error.with_source(why),
        None => error,
    }
}

/// Shows a set no longer. Its files may be removed after that.
pub(crate) async fn hide(table: &IcebergTable, backfill: &BackfillId, id: &StagedId) -> Result<()> {
    make_again(table, backfill, Some(id)).await
}

/// Shows the sets that are still noted, on main as it is; after some of them were committed.
pub(crate) async fn rebuild(table: &IcebergTable, backfill: &BackfillId) -> Result<()> {
    make_again(table, backfill, None).await
}

async fn make_again(table: &IcebergTable, backfill: &BackfillId, without: Option<&StagedId>) -> Result<()> {
    for wait in waits() {
        let turn = table.turn().await;
        let view = table.latest().await?;
        let Some(there) = view.known() else { return Ok(()) };
        let shown = shown(&there.loaded.metadata, backfill);
        let matters = |shown: &Shown| match without {
            Some(id) => shown.marks.iter().any(|mark| mark.id == *id),
            None => !shown.marks.is_empty(),
        };
        let Some(shown) = shown.filter(matters) else { return Ok(()) };
        match again(table, &view, &shown, without, None).await? {
            Put::Done => return Ok(()),
            Put::CameFirst => {}
            // None of the sets fits what is there, so that there is nothing to show.
            Put::Misfit(_) => {
                if remove(table, &view, &shown).await? {
                    return Ok(());
                }
            }
        }
        drop(turn);
        tokio::time::sleep(wait).await;
    }
    Err(outrun())
}

/// Removes a branch with its snapshots; `false` where another change came first.
async fn remove(table: &IcebergTable, view: &View, shown: &Shown) -> Result<bool> {
    let there = view.there()?;
    let metadata: &TableMetadata = &there.loaded.metadata;
    let gone = RefChange::Remove { name: shown.branch.clone() };
    let (requirements, mut updates) = change_refs(metadata, &[gone])?;
    let abandoned = abandoned(metadata, shown)?;
    if !abandoned.is_empty() {
        updates.push(TableUpdate::RemoveSnapshots { snapshot_ids: abandoned });
    }
    let proposal = Proposal { base: &there.loaded, requirements, updates, told: None };
    Ok(matches!(table.change(view, proposal).await?, Answer::Done(_)))
}

/// The columns that rows for a shadow are staged with: those of main, and those that its branch shows beside.
pub(crate) fn columns(view: &View, backfill: &BackfillId) -> Result<SchemaRef> {
    let there = view.there()?;
    let metadata = &there.loaded.metadata;
    let Some(shown) = shown(metadata, backfill) else { return Ok(there.columns.clone()) };
    let of_branch = shown.head.schema(metadata).doing("find the columns of a branch")?;
    Ok(widened(&there.columns, &of_branch)?.into())
}
