//! What one commit has over all its attempts.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use reprocess_core::domain::ids::BackfillId;
use reprocess_core::domain::slice::Kept;
use reprocess_core::ports::writer::{Change, CommitEntry, CommitOutcome, StagedId, StampId};
use reprocess_core::{Error, Result};
use reprocess_lake::record::id_of;

use super::super::keep::{self, Back};
use crate::catalog::{Answer, Proposal, Told};
use crate::shadow::{self, Set, branch};
use crate::snapshot::{Assembled, Desk};
use crate::table::IcebergTable;
use crate::view::View;

/// How many sets are claimed, and notes removed, at once.
const REQUESTS: usize = 16;

#[derive(Debug)]
pub(super) struct Work {
    pub(super) desk: Desk,
    /// The newest version that was seen.
    view: Option<Arc<View>>,
    /// What the catalog was asked for last.
    asked: Option<Assembled>,
    /// Whether it is not known what became of that.
    pub(super) in_doubt: bool,
    /// Nobody discards them any more, so that they are claimed once.
    sets: BTreeMap<StagedId, Set>,
    /// Copies are made once.
    backs: BTreeMap<StampId, Back>,
    /// Shadows of which something is left beside what is committed.
    pub(super) left: Vec<BackfillId>,
}

impl Work {
    pub(super) fn new() -> Self {
        Self {
            desk: Desk::new(),
            view: None,
            asked: None,
            in_doubt: false,
            sets: BTreeMap::new(),
            backs: BTreeMap::new(),
            left: Vec::new(),
        }
    }

    pub(super) fn saw(&mut self, view: &Arc<View>) {
        self.view = Some(Arc::clone(view));
    }

    pub(super) fn asked(&mut self, assembled: Assembled) {
        self.asked = Some(assembled);
    }

    /// Claims the staged sets of entries.
    pub(super) async fn claim(&mut self, table: &IcebergTable, open: &[&CommitEntry]) -> Result<()> {
        let mut claimed = Vec::new();
        for entry in open {
            if let Change::Apply(staged) = &entry.change
                && !self.sets.contains_key(&staged.id)
            {
                claimed.push(shadow::claim(table, staged));
            }
        }
        let sets: Vec<Set> = futures::stream::iter(claimed).buffered(REQUESTS).try_collect().await?;
        self.sets.extend(sets.into_iter().map(|set| (set.staged.id.clone(), set)));
        Ok(())
    }

    /// A set that was claimed.
    pub(super) fn set(&self, id: &StagedId) -> Result<&Set> {
        self.sets.get(id).ok_or_else(|| Error::internal("a set was not claimed").with_context("staged", id))
    }

    /// What a restore brings back of the partitions of an entry.
    pub(super) async fn back(
        &mut self,
        table: &IcebergTable,
        view: &View,
        kept: &Kept,
        entry: &CommitEntry,
    ) -> Result<&Back> {
        if !self.backs.contains_key(&entry.stamp) {
            let back = keep::back(table, view, kept, &entry.scope, &id_of(&[entry])).await?;
            self.backs.insert(entry.stamp.clone(), back);
        }
        let back = self.backs.get(&entry.stamp);
        back.ok_or_else(|| {
            Error::internal("nothing was made for a restore").with_context("stamp", &entry.stamp)
        })
    }

    /// After a commit: removes the notes of its sets, and shows what is left of shadows on what is there now.
    pub(super) async fn clean_up(&self, table: &IcebergTable) {
        let forgotten = self.sets.values().map(|set| async move {
            if let Err(e) = shadow::forget(table, set).await {
                tracing::warn!(error = %e, staged = %set.staged.id, "the note of a committed set could not be removed");
            }
        });
        let forgotten: Vec<_> = forgotten.collect();
        futures::stream::iter(forgotten).buffer_unordered(REQUESTS).collect::<()>().await;
        for backfill in &self.left {
            if let Err(e) = branch::rebuild(table, backfill).await {
                tracing::warn!(error = %e, %backfill, "what is left of a shadow could not be shown on its branch");
            }
        }
    }

    /// Removes what was written and nothing needs, where it is known what became of the commit.
    pub(super) async fn tidy(self, outcome: &Result<CommitOutcome>) {
        let Some(view) = self.view else { return };
        match outcome {
            Ok(CommitOutcome::Committed(_)) => self.desk.tidy(&view, self.asked.as_ref()).await,
            _ if self.in_doubt => {}
            _ => {
                // An answer that it did not happen may have been for the same change, sent a second time.
                let landed = self.asked.filter(|asked| is_in(asked, &view));
                self.desk.tidy(&view, landed.as_ref()).await;
            }
        }
    }
}

/// What became of a change that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Done,
    CameFirst,
    Fenced,
}

/// Asks the catalog for a snapshot. An error does not say that nothing was changed, since the answer may have been lost on
/// its way: it is returned where the table does not have the snapshot now.
pub(crate) async fn ask(
    table: &IcebergTable,
    view: &View,
    assembled: &Assembled,
    told: Option<Told<'_>>,
) -> Result<Reply> {
    let proposal = Proposal {
        base: &view.there()?.loaded,
        requirements: assembled.requirements.clone(),
        updates: assembled.updates.clone(),
        told,
    };
    match table.change(view, proposal).await {
        Ok(Answer::Done(_)) => Ok(Reply::Done),
        Ok(Answer::CameFirst) => Ok(Reply::CameFirst),
        Ok(Answer::Fenced) => Ok(Reply::Fenced),
        Err(error) => {
            let now = table.latest().await;
            if !now.is_ok_and(|now| is_in(assembled, &now)) {
                return Err(error);
            }
            let snapshot = assembled.snapshot.snapshot_id();
            tracing::warn!(error = %error, snapshot, "the snapshot is in the table, and an error came after it");
            Ok(Reply::Done)
        }
    }
}

/// Whether the very snapshot is in the table.
fn is_in(assembled: &Assembled, view: &View) -> bool {
    let snapshot = &assembled.snapshot;
    let there = view.known().and_then(|there| there.loaded.metadata.snapshot_by_id(snapshot.snapshot_id()));
    there.is_some_and(|there| there.manifest_list() == snapshot.manifest_list())
}
