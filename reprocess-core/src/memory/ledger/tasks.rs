//! Claiming tasks and leaving them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::state::{Opened, State, TaskEntry};
use crate::domain::ids::{BackfillId, JobName, LogicVersion, WorkerId};
use crate::domain::plan::{Task, TaskId};
use crate::error::Result;
use crate::memory::clock::later;
use crate::ports::ledger::{Claim, Leave, RunRecord, TaskResult, TaskState, rules};

impl State {
    pub(super) fn claim(
        &mut self,
        id: &BackfillId,
        worker: &WorkerId,
        can_run: &[(JobName, LogicVersion)],
        limit: u32,
        ttl: Duration,
        now: DateTime<Utc>,
    ) -> Result<Vec<Claim>> {
        let opened = self.latest_mut(id)?;
        let runs = |task: &Task| can_run.iter().any(|(job, logic)| *job == task.job && *logic == task.logic);
        let free = opened.free(now);
        let wanted: Vec<_> = opened.record.plan.tasks.iter().filter(|t| runs(t)).map(|t| t.id).collect();
        let room = opened.room(now).min(usize::try_from(limit).unwrap_or(usize::MAX));
        let generation = opened.record.plan.generation;
        let mut claims = Vec::new();
        for task in wanted.into_iter().filter(|id| free.contains(id)).take(room) {
            let Some(entry) = opened.task_mut(task) else { continue };
            entry.claimed_until = later(now, ttl);
            let record = &mut entry.record;
            record.state = TaskState::Claimed;
            record.attempt = record.attempt.saturating_add(1);
            record.started_at = Some(now);
            record.finished_at = None;
            record.worker = Some(worker.clone());
            record.note = None;
            claims.push(Claim {
                backfill: id.clone(),
                generation,
                task,
                attempt: record.attempt,
                worker: worker.clone(),
                queued_at: record.queued_at,
                started_at: now,
            });
        }
        Ok(claims)
    }

    pub(super) fn renew_claim(&mut self, claim: &Claim, ttl: Duration, now: DateTime<Utc>) -> bool {
        match self.claimed(claim) {
            Some(entry) => {
                entry.claimed_until = later(now, ttl);
                true
            }
            None => false,
        }
    }

    pub(super) fn note_staged(&mut self, claim: &Claim, result: &TaskResult) -> bool {
        match self.claimed(claim) {
            Some(entry) => {
                entry.record.result = Some(result.clone());
                true
            }
            None => false,
        }
    }

    pub(super) fn leave(&mut self, claim: &Claim, how: Leave, now: DateTime<Utc>) -> bool {
        let Some(entry) = self.claimed(claim) else { return false };
        let record = &mut entry.record;
        record.finished_at = Some(now);
        let mut failed = Vec::new();
        let mut given_up = None;
        (record.state, record.note) = match how {
            Leave::Pending { note } => (TaskState::Pending, Some(note)),
            Leave::Staged(result) => {
                record.result = Some(*result);
                (TaskState::Staged, None)
            }
            Leave::Skipped { note } => {
                given_up = record.result.take().and_then(|result| result.staged);
                (TaskState::Skipped, Some(note))
            }
            Leave::Failed { note, records } => {
                failed = records;
                (TaskState::Failed, Some(note))
            }
        };
        let state = record.state;
        if let Ok(opened) = self.latest_mut(&claim.backfill) {
            opened.follow(claim.task, state, now);
        }
        if let Some(staged) = given_up {
            self.deliveries.withdraw(now, |delivery| delivery.stamp() == Some(&staged.id.stamp));
        }
        self.record_failed(&failed);
        true
    }

    pub(super) fn record_failed(&mut self, records: &[RunRecord]) {
        for record in records {
            self.put_row(record.clone());
        }
    }

    /// The task of a claim that has not passed to another attempt and was not stopped. One that ran out and nobody took
    /// is still good.
    fn claimed(&mut self, claim: &Claim) -> Option<&mut TaskEntry> {
        let opened = self.latest_mut(&claim.backfill).ok()?;
        let same_generation = opened.record.plan.generation == claim.generation;
        let entry = opened.task_mut(claim.task)?;
        let same_attempt = entry.record.state == TaskState::Claimed && entry.record.attempt == claim.attempt;
        (same_generation && same_attempt).then_some(entry)
    }
}

impl Opened {
    /// The tasks that may be claimed: pending or with a claim that ran out, and with success before them.
    fn free(&self, now: DateTime<Utc>) -> BTreeSet<TaskId> {
        let states = self.states();
        let untaken: BTreeSet<_> = self
            .tasks
            .iter()
            .filter(|entry| entry.record.state.is_open() && !entry.is_taken(now))
            .map(|entry| entry.record.id)
            .collect();
        let (plan, state) = (&self.record.plan, self.record.state);
        let ready = |task: &&Task| {
            rules::may_be_claimed(plan, task, state) && rules::is_ready(task, |id| states.get(&id).copied())
        };
        let ready = plan.tasks.iter().filter(ready).map(|task| task.id);
        ready.filter(|id| untaken.contains(id)).collect()
    }

    /// How many more tasks may be claimed.
    fn room(&self, now: DateTime<Utc>) -> usize {
        let taken = self.tasks.iter().filter(|entry| entry.is_taken(now)).count();
        let cap = usize::try_from(self.record.concurrency).unwrap_or(usize::MAX);
        if self.record.paused_by.is_some() { 0 } else { cap.saturating_sub(taken) }
    }

    /// What the end of a task does to those after it: they have become ready, or are blocked.
    pub(super) fn follow(&mut self, ended: TaskId, state: TaskState, now: DateTime<Utc>) {
        let states = self.states();
        if state.is_success() {
            let waited = self.record.plan.tasks.iter().filter(|task| task.after.contains(&ended));
            let ready: BTreeSet<_> = waited
                .filter(|task| rules::is_ready(task, |id| states.get(&id).copied()))
                .map(|task| task.id)
                .collect();
            for entry in self.pending_among(&ready) {
                entry.record.queued_at = now;
            }
        } else if state == TaskState::Failed {
            let blocked = rules::dependents(&self.record.plan, &BTreeSet::from([ended]));
            for entry in self.pending_among(&blocked) {
                entry.record.state = TaskState::Blocked;
                entry.record.note = Some(format!("task {ended} before it failed"));
            }
        }
    }

    fn states(&self) -> BTreeMap<TaskId, TaskState> {
        self.tasks.iter().map(|entry| (entry.record.id, entry.record.state)).collect()
    }

    fn pending_among(&mut self, ids: &BTreeSet<TaskId>) -> impl Iterator<Item = &mut TaskEntry> {
        let pending = |entry: &&mut TaskEntry| entry.record.state == TaskState::Pending;
        self.tasks.iter_mut().filter(pending).filter(|entry| ids.contains(&entry.record.id))
    }
}

impl TaskEntry {
    fn is_taken(&self, now: DateTime<Utc>) -> bool {
        self.record.state == TaskState::Claimed && now < self.claimed_until
    }
}
