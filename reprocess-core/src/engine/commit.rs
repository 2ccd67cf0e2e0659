//! The atomic step, and what to do with each of its answers.

use crate::domain::request::WhenMoved;
use crate::domain::slice::Base;
use crate::engine::Engine;
use crate::engine::lease::retried;
use crate::engine::record::{Attempt, profile_of};
use crate::error::{Error, ErrorKind, Result};
use crate::ports::ledger::Fence;
use crate::ports::writer::{
    Change, Commit, CommitEntry, CommitOutcome, CommitRequest, Found, Moved, MovedBy, PartitionWriter,
};

/// What is committed, and under which conditions.
#[derive(Debug)]
pub(super) struct Committing<'a> {
    pub(super) writer: &'a dyn PartitionWriter,
    pub(super) entries: Vec<CommitEntry>,
    /// For each entry the attempt that it is of.
    pub(super) at: Vec<Attempt<'a>>,
    pub(super) base: Base,
    /// The plan's base: where the search for an earlier commit starts.
    pub(super) since: &'a Base,
    pub(super) fence: Option<&'a Fence>,
    pub(super) keep: bool,
    pub(super) when_moved: WhenMoved,
}

/// How a commit ended.
#[derive(Debug)]
#[must_use]
pub(super) enum Ended {
    /// In production and in the ledger.
    Done,
    /// Partitions moved; nothing was written.
    Moved(Vec<Moved>),
    /// The lease has passed to another; nothing was written.
    Fenced,
}

impl Engine {
    /// Commits, and records the commit where the backend did not. An error is never taken for "not committed": the
    /// stamp is asked for first.
    pub(super) async fn commit(&self, mut what: Committing<'_>) -> Result<Ended> {
        let mut waits = self.settings.backoff();
        loop {
            match what.writer.commit(self.request(&what)).await {
                Ok(CommitOutcome::Committed(commit) | CommitOutcome::AlreadyCommitted(commit)) => {
                    return self.record(&what, &commit).await;
                }
                Ok(CommitOutcome::Conflicted { moved }) => {
                    if !what.may_refresh(&moved) {
                        return Ok(Ended::Moved(moved));
                    }
                    match moved.iter().all(|m| m.by == MovedBy::Layout) {
                        true => self.relocate(&mut what, &moved).await?,
                        false => self.refresh(&mut what).await?,
                    }
                }
                Ok(CommitOutcome::Fenced) => return Ok(Ended::Fenced),
                Ok(CommitOutcome::SchemaChanged) => {
                    return Err(Error::new(
                        ErrorKind::State,
                        "the table's columns changed since the rows were staged",
                    )
                    .with_context("table", what.writer.table())
                    .with_advice("plan again"));
                }
                Err(error) => {
                    if let Some(commit) = self.find_all(&what).await? {
                        return self.record(&what, &commit).await;
                    }
                    match waits.next().filter(|_| error.is_retryable()) {
                        Some(wait) => self.clock.sleep(wait).await,
                        None => return Err(error),
                    }
                }
            }
        }
    }

    fn request<'a>(&'a self, what: &'a Committing<'_>) -> CommitRequest<'a> {
        CommitRequest {
            entries: &what.entries,
            base: &what.base,
            since: what.since,
            fence: what.fence,
            keep: what.keep,
            ledger: Some(self.ledger.as_ref()),
        }
    }

    /// The commit of every entry, where all of them were committed.
    async fn find_all(&self, what: &Committing<'_>) -> Result<Option<Commit>> {
        let mut all: Option<Commit> = None;
        for entry in &what.entries {
            let ask = || what.writer.find_commit(&entry.stamp, &entry.scope, what.since);
            let commit = match retried(self, ask).await? {
                Found::Yes(commit) => commit,
                Found::No => return Ok(None),
                Found::HistoryExpired => return Err(unknown(what.writer, entry)),
            };
            match &mut all {
                None => all = Some(commit),
                Some(all) => {
                    all.partitions.partitions.extend(commit.partitions.partitions);
                    all.attempts.extend(commit.attempts);
                    all.recorded &= commit.recorded;
                }
            }
        }
        Ok(all)
    }

    async fn record(&self, what: &Committing<'_>, commit: &Commit) -> Result<Ended> {
        if !commit.recorded {
            retried(self, || self.ledger.finish(commit, &what.entries)).await?;
        }
        Ok(Ended::Done)
    }

    /// Goes on to the very versions that hold the same rows in other files: where rows have changed beside that, or
    /// since, the commit conflicts again and says so.
    async fn relocate(&self, what: &mut Committing<'_>, moved: &[Moved]) -> Result<()> {
        for m in moved {
            for record in what.entries.iter_mut().flat_map(|entry| &mut entry.finish.records) {
                if record.scope.covers(&m.partition) && m.partition.covers(&record.partition) {
                    record.base = Some(m.now.clone());
                }
            }
            what.base.partitions.insert(m.partition.clone(), m.now.clone());
        }
        let mut table = None;
        for entry in &mut what.entries {
            let head = retried(self, || what.writer.head(&entry.scope)).await?;
            let expected = |key: &_| head.partitions.get(key) == what.base.partitions.get(key);
            if !entry.scope.partitions().iter().all(expected) {
                return Ok(());
            }
            if let Change::Apply(staged) = &entry.change {
                entry.change = Change::Apply(what.writer.rebase(staged, &head).await?);
            }
            table.get_or_insert(head.table);
        }
        what.base.table = table.unwrap_or_else(|| what.base.table.clone());
        Ok(())
    }

    /// Takes the base anew, makes the staged sets fit it, and looks again at what they replace. The base is taken first:
    /// what moves after it conflicts again.
    async fn refresh(&self, what: &mut Committing<'_>) -> Result<()> {
        let writer = what.writer;
        for (entry, at) in what.entries.iter_mut().zip(&what.at) {
            let job = self.host.catalog().job(&at.task.job)?;
            let head = retried(self, || writer.head(&entry.scope)).await?;
            let before = self.before(at, writer, job).await?;
            let mut after: Vec<_> =
                entry.finish.records.iter().filter_map(|record| record.after.clone()).collect();
            if let Change::Apply(staged) = &entry.change {
                let staged = writer.rebase(staged, &head).await?;
                after = self.after(at, writer, job, &staged).await?;
                entry.change = Change::Apply(staged);
            }
            for record in &mut entry.finish.records {
                record.base = record.version_in(&head).cloned();
                record.before = profile_of(&before, &record.partition);
                record.after = profile_of(&after, &record.partition);
            }
            entry.finish.stale = self.stale_after(at, &before, &after)?;
            what.base.table = head.table;
            what.base.partitions.extend(head.partitions);
        }
        Ok(())
    }
}

impl Committing<'_> {
    /// Whether what moved may be written over: the request said so, only files were rewritten, or rows say themselves
    /// which of them is newer.
    fn may_refresh(&self, moved: &[Moved]) -> bool {
        let merges_by_newer = |entry: &CommitEntry| {
            matches!(&entry.change, Change::Apply(staged)
                if matches!(&staged.intent, crate::ports::writer::Intent::Merge(keys) if keys.newer.is_some()))
        };
        self.when_moved == WhenMoved::Overwrite
            || moved.iter().all(|m| m.by == MovedBy::Layout)
            || self.entries.iter().all(merges_by_newer)
    }
}

/// The storage system no longer knows whether the work was done.
pub(super) fn unknown(writer: &dyn PartitionWriter, entry: &CommitEntry) -> Error {
    Error::new(ErrorKind::Corrupt, "the table's history no longer tells whether this was committed")
        .with_context("table", writer.table())
        .with_context("partition", &entry.scope)
        .with_context("run", &entry.stamp.run)
        .with_advice("compare the partition with the staged rows, then plan again under another name")
}
