//! Writing the snapshot of a commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use iceberg::TableUpdate;
use iceberg::spec::{FormatVersion, MAIN_BRANCH};
use reprocess_core::domain::slice::Base;
use reprocess_core::ports::writer::{
    Change, Commit, CommitEntry, CommitOutcome, CommitRequest, Intent, Visibility,
};
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_lake::record::{Record, id_of, in_words};

use super::super::keep;
use super::changes::Changes;
use super::work::{Reply, Work, ask};
use crate::catalog::Told;
use crate::commits;
use crate::shadow::branch::{self, Mark, Shown};
use crate::snapshot::{Assembled, Draft, RefChange, identify};
use crate::table::IcebergTable;
use crate::view::{View, Wanted};

/// Of more partitions the history does not say what made them: it is in the ledger, and every version of the metadata
/// would have it again.
const MADE_BY: usize = 16;

/// What a snapshot is put onto.
#[derive(Debug)]
pub(super) enum Onto {
    /// The head of main.
    Head,
    /// A version of before, to which main goes back.
    Earlier(Arc<View>),
    /// The head of a branch that already shows what is committed.
    Branch(Arc<View>),
}

/// One attempt at the entries that are left, onto the version that was checked.
pub(super) struct Landing<'a> {
    pub(super) table: &'a IcebergTable,
    pub(super) view: &'a View,
    pub(super) request: &'a CommitRequest<'a>,
    pub(super) open: &'a [&'a CommitEntry],
    pub(super) earlier: &'a [Commit],
}

impl Landing<'_> {
    /// Writes the snapshot; `None` where another change came first.
    pub(super) async fn write(
        &self,
        changes: Changes<'_>,
        onto: Onto,
        work: &mut Work,
    ) -> Result<Option<CommitOutcome>> {
        let metadata = self.view.metadata()?;
        let shown = self.shown()?;
        let onto = match (onto, self.to_forward(&shown, work)?) {
            (Onto::Head, Some(shown)) => Onto::Branch(self.table.at_snapshot(self.view, &shown.head).await?),
            (onto, _) => onto,
        };
        let stamps: Vec<_> = self.open.iter().map(|entry| &entry.stamp).collect();
        let id = identify(&stamps, |id| metadata.snapshot_by_id(id).is_some());
        let (mut commit, mut refs) = (self.commit(&changes, &onto, id).await?, Vec::new());
        if self.request.keep {
            let (kept, tag) = keep::keep(self.table, self.view, &id_of(self.open))?;
            commit.kept = Some(kept);
            refs.extend(tag);
        }
        let mut abandoned = Vec::new();
        work.left.clear();
        for shown in &shown {
            if self.shows_more(shown) {
                work.left.push(shown.backfill.clone());
                continue;
            }
            refs.push(RefChange::Remove { name: shown.branch.clone() });
            if !matches!(onto, Onto::Branch(_)) {
                abandoned.extend(branch::abandoned(metadata, shown)?);
            }
        }
        let draft = Draft {
            id,
            branch: MAIN_BRANCH.to_owned(),
            operation: changes.operation(),
            removed: changes.removed()?,
            added: changes.added(),
            added_spec: changes.spec(),
            columns: changes.columns(),
            summary: self.summary(&commit, &onto, &shown)?,
            refs,
        };
        let mut assembled = match &onto {
            Onto::Head => work.desk.assemble(self.table, self.view, &draft).await?,
            Onto::Branch(branch) => work.desk.forward(self.view, branch, &draft).await?,
            Onto::Earlier(then) => {
                let to = then.snapshot_id().ok_or_else(|| Error::internal("nothing to go back to"))?;
                work.desk.roll_back(self.table, self.view, to, &draft).await?
            }
        };
        if !abandoned.is_empty() {
            assembled.updates.push(TableUpdate::RemoveSnapshots { snapshot_ids: abandoned });
        }
        self.send(assembled, commit, work).await
    }

    /// What the commit will have said.
    async fn commit(&self, changes: &Changes<'_>, onto: &Onto, id: i64) -> Result<Commit> {
        let keys = self.request.entries.iter().flat_map(|entry| entry.scope.partitions());
        let partitions = match (onto, self.open) {
            (Onto::Earlier(then), [entry]) => {
                let listing = then.listing(self.table, &Wanted::of(&entry.scope)).await?;
                then.head(&listing, &entry.scope)?.partitions
            }
            _ => changes.after(keys)?,
        };
        let after = Base::new(id.to_string().as_str().into(), partitions);
        let commit = Commit::of(self.open, self.earlier, self.request, after);
        Ok(Commit { recorded: self.is_told(), order: self.order()?, ..commit })
    }

    /// The sequence number; of a format that has none something else that grows with every commit.
    fn order(&self) -> Result<u64> {
        let metadata = self.view.metadata()?;
        let order = match metadata.format_version() {
            FormatVersion::V1 => metadata.last_updated_ms().saturating_add(1),
            FormatVersion::V2 | FormatVersion::V3 => metadata.next_sequence_number(),
        };
        u64::try_from(order).map_err(|e| {
            Error::new(ErrorKind::Corrupt, "the table has a sequence number below zero").with_source(e)
        })
    }

    fn is_told(&self) -> bool {
        self.request.ledger.is_some_and(|ledger| self.table.catalog().inner().holds(ledger))
    }

    /// The branches of the shadows that the entries were staged for.
    fn shown(&self) -> Result<Vec<Shown>> {
        let metadata = self.view.metadata()?;
        let mut backfills = Vec::new();
        for entry in self.open {
            if let Change::Apply(staged) = &entry.change
                && let Visibility::Shadow(backfill) = &staged.visibility
                && !backfills.contains(backfill)
            {
                backfills.push(backfill.clone());
            }
        }
        let shown = backfills.iter().filter_map(|backfill| branch::shown(metadata, backfill));
        // What others did on a branch of ours is theirs.
        Ok(shown.filter(|shown| !shown.marks.is_empty()).collect())
    }

    /// The branch that shows what all entries leave, and nothing else, on main as it is.
    fn to_forward<'s>(&self, shown: &'s [Shown], work: &Work) -> Result<Option<&'s Shown>> {
        let [only] = shown else { return Ok(None) };
        let mut marks = Vec::new();
        for entry in self.open {
            match &entry.change {
                Change::Apply(staged) => marks.push(branch::mark(work.set(&staged.id)?)),
                Change::Restore(_) | Change::Adopt => return Ok(None),
            }
        }
        Ok((only.fork == Some(self.view.snapshot_id()) && only.shows_just(&marks)).then_some(only))
    }

    /// Whether a branch shows more than the work of the entries.
    fn shows_more(&self, shown: &Shown) -> bool {
        let committed = |mark: &Mark| self.request.entries.iter().any(|entry| entry.stamp == mark.id.stamp);
        !shown.marks.iter().all(committed)
    }

    /// What the snapshot says of itself, for us and for people and tools that look at the history.
    fn summary(&self, commit: &Commit, onto: &Onto, shown: &[Shown]) -> Result<BTreeMap<String, String>> {
        let mut record = Record::of(commit.clone(), self.open, self.request);
        if record.entries.iter().map(|entry| entry.made_by.len()).sum::<usize>() > MADE_BY {
            record.entries.iter_mut().for_each(|entry| entry.made_by.clear());
        }
        if let Onto::Earlier(then) = onto
            && let Some(to) = then.snapshot_id()
        {
            record.took_back = commits::left_behind(self.view.metadata()?, self.view.snapshot_id(), to)?;
        }
        let record = serde_json::to_string(&record)
            .map_err(|e| Error::internal("what a commit says of itself does not serialise").with_source(e))?;
        let mut summary = BTreeMap::from([
            (commits::KEY.to_owned(), record),
            (format!("{}.work", commits::KEY), in_words(self.open)),
        ]);
        let replaces = |entry: &&CommitEntry| match &entry.change {
            Change::Apply(staged) => matches!(staged.intent, Intent::Replace | Intent::ReplaceDynamic),
            Change::Restore(_) | Change::Adopt => true,
        };
        if self.open.iter().all(replaces) {
            summary.insert("replace-partitions".to_owned(), "true".to_owned());
        }
        // By these Java knows what was published, and that the files of the branch are main's now.
        if let [shown] = shown {
            summary.insert("published-wap-id".to_owned(), shown.backfill.to_string());
            summary.insert("source-snapshot-id".to_owned(), shown.head.snapshot_id().to_string());
        }
        Ok(summary)
    }

    async fn send(
        &self,
        assembled: Assembled,
        commit: Commit,
        work: &mut Work,
    ) -> Result<Option<CommitOutcome>> {
        let entries: Vec<CommitEntry> = match commit.recorded {
            true => self.open.iter().map(|entry| (*entry).clone()).collect(),
            false => Vec::new(),
        };
        let ledger = self.request.ledger.filter(|_| commit.recorded);
        let told = ledger.map(|ledger| Told {
            ledger,
            fence: self.request.fence,
            commit: &commit,
            entries: &entries,
        });
        work.in_doubt = true;
        let reply = ask(self.table, self.view, &assembled, told).await;
        work.in_doubt = reply.as_ref().is_err_and(|error| !is_definite(error));
        work.asked(assembled);
        Ok(match reply? {
            Reply::Done => Some(CommitOutcome::Committed(commit)),
            Reply::CameFirst => None,
            Reply::Fenced => Some(CommitOutcome::Fenced),
        })
    }
}

/// Whether an error of a catalog says that nothing happened.
fn is_definite(error: &Error) -> bool {
    use ErrorKind::{Invalid, NotFound, State, Unsupported};
    matches!(error.kind(), Invalid | NotFound | State | Unsupported)
}
