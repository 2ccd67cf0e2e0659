//! Submitting backfills and changing their state.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};

use super::state::{Opened, State, TaskEntry};
use crate::domain::ids::{Actor, BackfillId};
use crate::domain::plan::{Plan, TaskId};
use crate::error::{Error, ErrorKind, Result};
use crate::ports::delivery::DeliveryRecord;
use crate::ports::ledger::{
    Adjustment, BackfillRecord, BackfillState, StateChange, Submitted, TaskRecord, TaskState, Transition,
    rules,
};

impl State {
    pub(super) fn submit(&mut self, plan: &Plan, by: &Actor, now: DateTime<Utc>) -> Submitted {
        let known = self.latest(&plan.request.id).map(|o| {
            let record = &o.record;
            (record.plan.generation, record.state, record.plan_digest.as_str())
        });
        if let Some(answer) = rules::submission(known, plan) {
            return answer;
        }
        let open = self.backfills.values().filter_map(|generations| generations.last());
        let overlaps: Vec<_> = open
            .filter(|o| o.record.state.holds_partitions())
            .flat_map(|o| rules::overlaps(plan, &o.record.plan, o.record.state))
            .collect();
        if !overlaps.is_empty() {
            return Submitted::Overlaps(overlaps);
        }
        let opened = Opened::new(plan, by, now);
        self.backfills.entry(plan.request.id.clone()).or_default().push(opened);
        Submitted::New
    }

    pub(super) fn transition(
        &mut self,
        id: &BackfillId,
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        let opened = self.latest_mut(id)?;
        let state = opened.record.state;
        if state != change.from {
            return Ok(Transition::Elsewhere(state));
        }
        if !state.may_become(change.to) {
            return Err(Error::new(
                ErrorKind::State,
                format!("a backfill that is {state} cannot become {}", change.to),
            )
            .with_context("backfill", id));
        }
        opened.change(change, now);
        let generation = opened.record.plan.generation;
        if !change.to.holds_partitions() {
            self.deliveries.withdraw(now, |delivery| {
                let of_generation = delivery.stamp().is_some_and(|stamp| stamp.generation == generation);
                delivery.backfill.as_ref() == Some(id) && of_generation
            });
        }
        Ok(Transition::Done)
    }

    pub(super) fn adjust(&mut self, id: &BackfillId, what: Adjustment, by: &Actor) -> Result<()> {
        let record = &mut self.latest_mut(id)?.record;
        match what {
            Adjustment::Pause => record.paused_by = Some(by.clone()),
            Adjustment::Resume => record.paused_by = None,
            Adjustment::Concurrency(tasks) => record.concurrency = tasks.get(),
        }
        Ok(())
    }

    pub(super) fn restage(
        &mut self,
        id: &BackfillId,
        tasks: &[TaskId],
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        self.unstage(id, tasks, TaskState::Pending, change, now)
    }

    pub(super) fn discard_staged(
        &mut self,
        id: &BackfillId,
        tasks: &[TaskId],
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        let mut all: BTreeSet<_> = tasks.iter().copied().collect();
        all.extend(rules::dependents(&self.latest_mut(id)?.record.plan, &all));
        let tasks: Vec<_> = all.into_iter().collect();
        self.unstage(id, &tasks, TaskState::Cancelled, change, now)
    }

    fn unstage(
        &mut self,
        id: &BackfillId,
        tasks: &[TaskId],
        becomes: TaskState,
        change: &StateChange,
        now: DateTime<Utc>,
    ) -> Result<Transition> {
        let answer = self.transition(id, change, now)?;
        if answer != Transition::Done {
            return Ok(answer);
        }
        let opened = self.latest_mut(id)?;
        let mut stamps = Vec::new();
        for entry in &mut opened.tasks {
            let record = &mut entry.record;
            if record.state != TaskState::Staged || !tasks.contains(&record.id) {
                continue;
            }
            stamps.extend(record.result.take().and_then(|r| r.staged).map(|staged| staged.id.stamp));
            record.state = becomes;
            if becomes == TaskState::Pending {
                record.queued_at = now;
            }
            record.note.clone_from(&change.note);
        }
        let given_up =
            |delivery: &DeliveryRecord| delivery.stamp().is_some_and(|stamp| stamps.contains(stamp));
        self.deliveries.withdraw(now, given_up);
        Ok(answer)
    }
}

impl Opened {
    fn new(plan: &Plan, by: &Actor, now: DateTime<Utc>) -> Self {
        let entry = |id| TaskEntry { record: TaskRecord::new(id, now), claimed_until: now };
        Self {
            record: BackfillRecord::new(plan.clone(), plan.digest(), by.clone(), now),
            tasks: plan.tasks.iter().map(|task| entry(task.id)).collect(),
        }
    }

    fn change(&mut self, change: &StateChange, now: DateTime<Utc>) {
        self.record.state = change.to;
        self.record.changed_at = now;
        self.record.approvals.extend(change.approval.clone());
        // A note tells why it was stopped, which is no longer so once it runs again.
        if change.note.is_some() || change.to == BackfillState::Running {
            self.record.note.clone_from(&change.note);
        }
        for entry in &mut self.tasks {
            let record = &mut entry.record;
            if let Some(state) = rules::task_after_change(record.state, change.from, change.to) {
                if record.state == TaskState::Claimed {
                    record.finished_at = Some(now);
                }
                record.state = state;
                record.note = None;
            }
            if change.to.runs_tasks() && record.state == TaskState::Pending {
                record.queued_at = now;
            }
        }
    }
}
