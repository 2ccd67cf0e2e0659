//! One task, step by step.

use std::collections::BTreeMap;

use crate::domain::partition::PartitionKey;
use crate::domain::plan::{Action, TaskId};
use crate::domain::request::{Inputs, WhenMoved};
use crate::domain::scope::Scope;
use crate::domain::slice::Base;
use crate::domain::validate::Decision;
use crate::engine::Engine;
use crate::engine::commit::{Committing, Ended, unknown};
use crate::engine::lease::{Held, Kept, Leased, retried};
use crate::engine::pins::{Pinning, Resolved};
use crate::engine::record::{Attempt, profile_of};
use crate::error::{Error, ErrorKind, Result};
use crate::ports::ledger::{Fence, LedgerRow, TaskResult};
use crate::ports::writer::{Change, Commit, CommitEntry, Found, Moved, PartitionWriter};

/// How an attempt at a task ended.
#[derive(Debug)]
pub(super) enum TaskEnd {
    /// In production and in the ledger.
    Committed,
    /// Staged for the publication.
    Staged(Box<TaskResult>),
    /// Not run, and why.
    Skipped(String),
    /// Stopped, or passed to another worker.
    Lost,
    /// Not begun: the process is to stop, or the backfill is paused.
    NotBegun,
    /// Production moved under a run of no backfill, which can be planned anew; nothing was written.
    Moved(Vec<Moved>),
}

/// A task before its commit.
#[derive(Debug)]
enum Prepared {
    /// It needs none.
    Ended(TaskEnd),
    /// It is staged, or what it brings back is known.
    Commit(Box<(TaskResult, Change)>),
}

/// What earlier attempts and other tasks have staged.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// By an earlier attempt at this task.
    pub(super) own: Option<TaskResult>,
    /// By the tasks that this one reads from.
    pub(super) others: BTreeMap<TaskId, TaskResult>,
}

impl Engine {
    pub(super) async fn run_task(&self, at: &Attempt<'_>, mut noted: Noted) -> Result<TaskEnd> {
        let outside = matches!(at.task.action, Action::Trigger);
        if outside || !at.plan.commits_at_once(at.task) {
            let held = Held { claim: at.claim, fence: None };
            let work = async {
                match outside {
                    true => self.have_run(at).await,
                    false => self.stage_shadow(at, &noted).await,
                }
            };
            return match self.holding(held, work).await? {
                Kept::Yes(end) => end,
                Kept::Lost => Ok(TaskEnd::Lost),
            };
        }
        loop {
            let policy = at.plan.request.when_leased;
            let lease = self.lease(&at.task.table, &at.task.scope, &at.holder(), policy, at.claim).await?;
            let fence = match lease {
                Leased::Yes(fence) => fence,
                // The other may be this very work, before it died.
                Leased::LeftToOther => {
                    let skipped = || TaskEnd::Skipped("another run holds the partition".to_owned());
                    return Ok(self.adopt(at, &noted).await?.unwrap_or_else(skipped));
                }
                Leased::Lost => return Ok(TaskEnd::Lost),
            };
            let held = Held { claim: at.claim, fence: fence.as_ref() };
            let end = self.run_direct(at, &mut noted, held).await;
            self.unlease(fence.as_ref()).await;
            match end? {
                Some(end) => return Ok(end),
                // Fenced: the lease had passed to another, or the claim had. With the claim it is taken again, the stamp
                // is asked for first, and what is staged and still fits is not computed again. The same goes for a downstream
                // task whose partition moved.
                None if self.prolong(Held { claim: at.claim, fence: None }).await? => {}
                None => return Ok(TaskEnd::Lost),
            }
        }
    }

    /// `None` where it has to be prepared again.
    async fn run_direct(
        &self,
        at: &Attempt<'_>,
        noted: &mut Noted,
        held: Held<'_>,
    ) -> Result<Option<TaskEnd>> {
        match self.holding(held, self.prepare(at, noted)).await? {
            Kept::Lost => Ok(Some(TaskEnd::Lost)),
            Kept::Yes(Err(error)) => Err(error),
            Kept::Yes(Ok(Prepared::Ended(end))) => Ok(Some(end)),
            Kept::Yes(Ok(Prepared::Commit(ready))) => {
                let (result, change) = *ready;
                self.to_its_end(held, self.commit_task(at, result, change, held.fence)).await
            }
        }
    }

    /// Everything up to the commit.
    async fn prepare(&self, at: &Attempt<'_>, noted: &mut Noted) -> Result<Prepared> {
        if let Some(adopted) = self.adopt(at, noted).await? {
            return Ok(Prepared::Ended(adopted));
        }
        if let Action::Restore { kept, .. } = &at.task.action {
            let result = self.restore_result(at).await?;
            return Ok(Prepared::Commit(Box::new((result, Change::Restore(kept.clone())))));
        }
        if let Some(why) = self.cut_off(at).await? {
            return Ok(Prepared::Ended(TaskEnd::Skipped(why)));
        }
        let base = match at.task.is_downstream() {
            // What it replaces is what is there before it reads anything.
            true => {
                let writer = self.host.writer(&at.task.table)?;
                retried(self, || writer.head(&at.task.scope)).await?
            }
            false => at.task.base.clone(),
        };
        let resolved = self.resolve(at, Pinning::Committed).await?;
        if let Some(why) = self.unchanged(at, &resolved).await? {
            let (units, run, pinned_at) = (&at.task.units, &at.origin.run, resolved.pinned_at);
            retried(self, || self.ledger.found_unchanged(&at.task.table, units, run, pinned_at)).await?;
            return Ok(Prepared::Ended(TaskEnd::Skipped(why)));
        }
        let fits = |result: &TaskResult| {
            let same_inputs = result.fingerprint.as_ref() == Some(&resolved.fingerprint);
            !at.task.is_downstream() || (result.base == base && same_inputs)
        };
        let result = match self.reusable(at, noted).await?.filter(fits) {
            Some(result) => result,
            None => {
                let result = self.stage(at, &resolved, &base).await?;
                if !self.note(at, &result).await? {
                    return Ok(Prepared::Ended(TaskEnd::Lost));
                }
                noted.own = Some(result.clone());
                result
            }
        };
        if let Some(verdict) = result.verdict.as_ref().filter(|v| v.decision == Decision::Abort) {
            return Err(Error::new(ErrorKind::State, format!("the expectations do not hold: {verdict}"))
                .with_advice("nothing was committed; look at the logic or at the expectations"));
        }
        let staged = result.staged.clone().ok_or_else(|| Error::internal("a task staged nothing"))?;
        Ok(Prepared::Commit(Box::new((result, Change::Apply(staged)))))
    }

    async fn commit_task(
        &self,
        at: &Attempt<'_>,
        result: TaskResult,
        change: Change,
        fence: Option<&Fence>,
    ) -> Result<Option<TaskEnd>> {
        let writer = self.host.writer(&at.task.table)?.as_ref();
        let mut entry = self.entry(at, change, &result)?;
        let mut base = result.base.clone();
        // A downstream task is computed anew from what is there.
        let when_moved = match at.task.is_downstream() {
            true => WhenMoved::Stop,
            false => at.plan.request.when_moved,
        };
        loop {
            let ended = self
                .commit(Committing {
                    writer,
                    entries: vec![entry.clone()],
                    at: vec![*at],
                    base: base.clone(),
                    since: &at.task.base,
                    fence,
                    keep: at.plan.request.keep_replaced,
                    when_moved,
                })
                .await?;
            match ended {
                Ended::Done => return Ok(Some(TaskEnd::Committed)),
                Ended::Fenced => return Ok(None),
                Ended::Moved(moved) => match self.after_own_commits(at, writer, &at.task.scope, &base).await?
                {
                    Some(own) => {
                        base = own;
                        expect(std::slice::from_mut(&mut entry), &base);
                    }
                    None if at.task.is_downstream() => return Ok(None),
                    None if at.claim.is_none() => return Ok(Some(TaskEnd::Moved(moved))),
                    None => return Err(has_moved(&moved)),
                },
            }
        }
    }

    pub(super) fn entry(&self, at: &Attempt<'_>, change: Change, result: &TaskResult) -> Result<CommitEntry> {
        Ok(CommitEntry {
            scope: at.task.scope.clone(),
            change,
            stamp: self.stamp(at)?,
            attempt: at.number(),
            finish: self.finish(at, result)?,
        })
    }

    /// The base of now, where every partition that differs from `base` is as this very run has left it. Each of its
    /// commits checked the base before, so nothing of others was written over.
    pub(super) async fn after_own_commits(
        &self,
        at: &Attempt<'_>,
        writer: &dyn PartitionWriter,
        scope: &Scope,
        base: &Base,
    ) -> Result<Option<Base>> {
        let head = retried(self, || writer.head(scope)).await?;
        let moved = head.moved_since(base);
        if moved.is_empty() {
            return Ok(None);
        }
        let rows = self.ledger.run(&at.origin.run).await?;
        let own = |key: &PartitionKey| {
            rows.iter().rev().filter(|r| r.record.scope.covers(key)).any(|r| {
                r.record.table == at.task.table
                    && r.record.output_partition.as_ref() == head.partitions.get(key)
            })
        };
        Ok(moved.iter().all(own).then_some(head))
    }

    /// Work that is in production already, from before a crash or a lost reply.
    pub(super) async fn adopt(&self, at: &Attempt<'_>, noted: &Noted) -> Result<Option<TaskEnd>> {
        let writer = self.host.writer(&at.task.table)?.as_ref();
        let stamp = self.stamp(at)?;
        let found = retried(self, || writer.find_commit(&stamp, &at.task.scope, &at.task.base)).await?;
        let commit = match found {
            Found::No => return Ok(None),
            Found::Yes(commit) => commit,
            Found::HistoryExpired => {
                let entry = self.entry(at, Change::Adopt, &at.empty_result())?;
                return Err(unknown(writer, &entry));
            }
        };
        self.tell_of(at, noted, &commit).await?;
        Ok(Some(TaskEnd::Committed))
    }

    /// Tells the ledger of a commit that was found.
    pub(super) async fn tell_of(&self, at: &Attempt<'_>, noted: &Noted, commit: &Commit) -> Result<()> {
        let result = match &noted.own {
            Some(result) => result.clone(),
            None => self.adopted_result(at, &commit.partitions).await?,
        };
        let entry = self.entry(at, Change::Adopt, &result)?;
        retried(self, || self.ledger.finish(commit, std::slice::from_ref(&entry))).await
    }

    /// What can still be said of a commit whose staged set is gone.
    async fn adopted_result(&self, at: &Attempt<'_>, committed: &Base) -> Result<TaskResult> {
        let writer = self.host.writer(&at.task.table)?;
        let job = self.host.catalog().job(&at.task.job)?;
        let (head, profiles) = retried(self, || writer.profile(&at.task.scope, &job.profile)).await?;
        let untouched = head.moved_since(committed).is_empty();
        let mut result = match at.claim {
            Some(_) => at.empty_result(),
            // A run of the schedule is planned anew each time it is started, so this plan tells neither what the commit
            // read nor what it replaced.
            None => TaskResult::new(Base::new(at.task.base.table.clone(), BTreeMap::new()), 0),
        };
        if untouched {
            result.after = profiles;
        }
        if at.claim.is_some()
            && let Action::Compute { inputs, fingerprint } = &at.task.action
        {
            result.inputs =
                inputs.iter().map(|(name, input)| (name.clone(), input.pin.as_ref().clone())).collect();
            result.fingerprint = fingerprint.clone();
        }
        Ok(result)
    }

    /// Profiles of a restore: before it, and what comes back as far as the ledger knows.
    async fn restore_result(&self, at: &Attempt<'_>) -> Result<TaskResult> {
        let writer = self.host.writer(&at.task.table)?;
        let job = self.host.catalog().job(&at.task.job)?;
        let mut result = at.empty_result();
        result.before = retried(self, || writer.profile(&at.task.scope, &job.profile)).await?.1;
        let Action::Restore { undo, .. } = &at.task.action else { return Ok(result) };
        let rows = self.ledger.run(undo).await?;
        let of_task = |row: &LedgerRow| {
            row.record.table == at.task.table && at.task.units.contains(&row.record.partition)
        };
        let undone = rows.into_iter().filter(of_task);
        result.after = undone.filter_map(|r| r.record.before).collect();
        Ok(result)
    }

    /// What an earlier attempt staged, where it is intact and still fits.
    async fn reusable(&self, at: &Attempt<'_>, noted: &Noted) -> Result<Option<TaskResult>> {
        let Some(result) = &noted.own else { return Ok(None) };
        let writer = self.host.writer(&at.task.table)?;
        let (Some(staged), Some(reader)) = (&result.staged, writer.staged()) else { return Ok(None) };
        let intact = reader.open(&staged.id).await?.is_some_and(|found| found.digest == staged.digest);
        Ok(intact.then(|| result.clone()))
    }

    /// Why the task need not run: its fingerprint is that of the current run, and the rows are still that run's.
    async fn unchanged(&self, at: &Attempt<'_>, resolved: &Resolved) -> Result<Option<String>> {
        if at.plan.request.force && !at.task.is_downstream() {
            return Ok(None);
        }
        let job = self.host.catalog().job(&at.task.job)?;
        // It comes after an interval that was merged again, and without a declared order the last one wins.
        if job.depends_on_order() && !at.task.after.is_empty() {
            return Ok(None);
        }
        let rows = self.ledger.current(&at.task.table, &at.task.units).await?;
        let oldest = rows.iter().flatten().map(|row| row.position).min().unwrap_or(0);
        let current: Vec<_> = rows.into_iter().flatten().map(|row| row.record).collect();
        let same = current.len() == at.task.units.len()
            && current.iter().zip(&at.task.units).all(|(record, unit)| {
                record.job == at.task.job
                    && record.partition == *unit
                    && record.fingerprint.as_ref() == Some(&resolved.fingerprint)
            });
        let Some(first) = current.first().filter(|_| same) else { return Ok(None) };
        let why = format!("unchanged since run {}", first.run);
        let writer = self.host.writer(&at.task.table)?;
        let head = retried(self, || writer.head(&at.task.scope)).await?;
        // Intervals that share a scope have no versions of their own; other runs may have merged since.
        if current.iter().any(crate::ports::ledger::RunRecord::shares_scope) {
            let lost_before = self.lost_before(&at.task.table, &head).await?;
            return Ok((oldest > lost_before).then_some(why));
        }
        let in_place = |r: &crate::ports::ledger::RunRecord| {
            r.output_partition.is_some() && r.output_partition.as_ref() == head.partitions.get(&r.partition)
        };
        if current.iter().all(in_place) {
            return Ok(Some(why));
        }
        // Another version with the same rows, for example after a compaction.
        let (_, profiles) = retried(self, || writer.profile(&at.task.scope, &job.profile)).await?;
        let same_rows = current.iter().all(|r| {
            let now = profile_of(&profiles, &r.partition).map(|p| p.content);
            now.is_some() && now == r.after.as_ref().map(|p| p.content.clone())
        });
        Ok(same_rows.then_some(why))
    }

    async fn note(&self, at: &Attempt<'_>, result: &TaskResult) -> Result<bool> {
        match at.claim {
            Some(claim) => retried(self, || self.ledger.note_staged(claim, result)).await,
            None => Ok(true),
        }
    }

    /// Stages a task of a shadow. Where production moved since the plan, inputs and base are taken anew, so that the
    /// review compares with what is there now and nothing newer is lost.
    async fn stage_shadow(&self, at: &Attempt<'_>, noted: &Noted) -> Result<TaskEnd> {
        let writer = self.host.writer(&at.task.table)?;
        let head = retried(self, || writer.head(&at.task.scope)).await?;
        let moved = head.moved_since(&at.task.base);
        let pinning = match (moved.is_empty(), &at.plan.request.inputs) {
            (true, _) => Pinning::Staged(&noted.others),
            (false, Inputs::Current) => Pinning::Anew(&noted.others),
            (false, Inputs::Recorded { .. }) if at.plan.request.when_moved == WhenMoved::Stop => {
                return Err(Error::new(
                    ErrorKind::State,
                    "production moved since the plan, and a replay keeps its inputs",
                )
                .with_context("partition", &at.task.scope)
                .with_advice("plan the replay again"));
            }
            (false, Inputs::Recorded { .. }) => Pinning::Staged(&noted.others),
        };
        let base = if moved.is_empty() { at.task.base.clone() } else { head };
        let resolved = self.resolve(at, pinning).await?;
        if let Some(why) = self.unchanged(at, &resolved).await? {
            let (units, run, pinned_at) = (&at.task.units, &at.origin.run, resolved.pinned_at);
            retried(self, || self.ledger.found_unchanged(&at.task.table, units, run, pinned_at)).await?;
            return Ok(TaskEnd::Skipped(why));
        }
        let earlier = self.reusable(at, noted).await?;
        let fits = |r: &TaskResult| r.base == base && r.fingerprint.as_ref() == Some(&resolved.fingerprint);
        if let Some(result) = earlier.filter(fits) {
            return Ok(TaskEnd::Staged(Box::new(result)));
        }
        let result = self.stage(at, &resolved, &base).await?;
        Ok(match self.note(at, &result).await? {
            true => TaskEnd::Staged(Box::new(result)),
            false => TaskEnd::Lost,
        })
    }
}

/// Tells the records of entries the base that they are committed on.
pub(super) fn expect(entries: &mut [CommitEntry], base: &Base) {
    for record in entries.iter_mut().flat_map(|entry| &mut entry.finish.records) {
        record.base = record.version_in(base).cloned();
    }
}

pub(super) fn has_moved(moved: &[Moved]) -> Error {
    let keys: Vec<_> = moved.iter().map(|m| m.partition.to_string()).collect();
    Error::new(ErrorKind::State, format!("production moved since the plan: {}", keys.join(", ")))
        .with_advice("nothing was overwritten; plan again, or ask for it to be overwritten")
}
