//! What people do to a backfill: submit, approve, stop, close.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::ids::{Actor, BackfillId};
use crate::domain::plan::{Action, Plan, TaskId};
use crate::engine::lease::retried;
use crate::engine::{Engine, Review};
use crate::error::{Error, ErrorKind, Result};
use crate::ports::delivery::DeliveryOrigin;
use crate::ports::ledger::rules::dependents;
use crate::ports::ledger::{
    Approval, BackfillRecord, BackfillState, Overlap, StalePartition, StateChange, Submitted, TaskRecord,
    TaskState, Transition,
};
use crate::ports::notify::{self, NOTICES, Notice};

/// What became of a submitted plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Submission {
    /// It waits for an approval.
    New,
    /// The same plan is in the ledger already, in this state.
    Already(BackfillState),
    /// Every partition is skipped, so there is nothing to do and the ledger got no row.
    NothingToDo,
}

/// What is left behind when a backfill is closed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Closed {
    /// Downstream partitions that still hold what was computed from the rows before.
    pub stale: Vec<StalePartition>,
}

impl Engine {
    /// Files a plan in the ledger. A plan with refusals, or over partitions that another open backfill holds, is not
    /// taken.
    pub async fn submit(&self, plan: &Plan, by: &Actor) -> Result<Submission> {
        let id = &plan.request.id;
        if let Some(first) = plan.refused.first() {
            let place = first.partition.as_ref().map_or_else(|| "the job".to_owned(), ToString::to_string);
            return Err(Error::invalid(format!(
                "{} of the plan cannot run; the first: {place} of {}: {}",
                plan.refused.len(),
                first.job,
                first.reason
            ))
            .with_context("backfill", id)
            .with_advice("change the request so that nothing is refused"));
        }
        self.note_unchanged(plan, &plan.run()).await?;
        if plan.is_empty() {
            return Ok(Submission::NothingToDo);
        }
        self.check_host(plan)?;
        // The other way round than a run is checked: the work of the two could not be told apart.
        if self.ledger.run(&plan.run()).await?.iter().any(|row| row.record.backfill.is_none()) {
            return Err(refuse(
                id,
                format!("a run outside of any backfill is called `{}`", plan.run()),
                "choose another name",
            ));
        }
        let filed = match self.hold(plan).await {
            Ok(()) => self.ledger.submit(plan, by, self.clock.now()).await,
            Err(error) => Err(error),
        };
        if !matches!(filed, Ok(Submitted::New)) {
            self.release(plan).await;
        }
        match filed? {
            Submitted::New => {
                self.tell(plan, BackfillState::Planned, "a plan waits for approval").await;
                Ok(Submission::New)
            }
            Submitted::Already(state) => Ok(Submission::Already(state)),
            Submitted::OtherPlan { state, digest } => Err(refuse(
                id,
                format!("the backfill is {state} with another plan ({digest})"),
                "finish, cancel or abort it first, or choose another name",
            )),
            Submitted::OtherGeneration { next } => Err(refuse(
                id,
                format!("the plan is of generation {}, and the next one is {next}", plan.generation),
                "plan again",
            )),
            Submitted::Overlaps(overlaps) => Err(overlapping(id, &overlaps)),
        }
    }

    /// Approves a plan that waits (`digest` is that of the plan), or outputs that wait for a review (`digest` is that of
    /// the review). Another digest than that of what is there now is refused: it was not what the approver saw.
    pub async fn approve(&self, id: &BackfillId, digest: &str, by: &Actor, comment: &str) -> Result<()> {
        let record = self.backfill(id).await?;
        let (to, expected) = match record.state {
            BackfillState::Planned => (BackfillState::Approved, record.plan_digest.clone()),
            BackfillState::AwaitingReview => (BackfillState::AwaitingReview, self.review(id).await?.digest),
            state => return Err(wrong_state(id, state, "approved")),
        };
        if digest != expected {
            return Err(refuse(
                id,
                format!("the approval is for {digest}, and what is there now is {expected}"),
                "look at it again",
            ));
        }
        if self.settings.second_person && *by == record.plan.request.requester {
            return Err(refuse(id, "the requester cannot approve".to_owned(), "ask a second person"));
        }
        let approval = Approval {
            by: by.clone(),
            at: self.clock.now(),
            digest: digest.to_owned(),
            comment: comment.to_owned(),
        };
        let change =
            StateChange { from: record.state, to, by: by.clone(), approval: Some(approval), note: None };
        self.go(id, &change).await
    }

    /// A reviewer's no: the backfill ends, what was staged is discarded, production stays.
    pub async fn abort(&self, id: &BackfillId, by: &Actor, why: &str) -> Result<()> {
        self.end(id, BackfillState::Aborted, by, why).await
    }

    /// A person stops a backfill: tasks that run are stopped, what was staged is discarded, what is committed stays. A
    /// commit that is on its way may still land; [`close`](Self::close) looks for it once more.
    pub async fn cancel(&self, id: &BackfillId, by: &Actor, why: &str) -> Result<()> {
        self.end(id, BackfillState::Cancelled, by, why).await
    }

    async fn end(&self, id: &BackfillId, to: BackfillState, by: &Actor, why: &str) -> Result<()> {
        let record = self.backfill(id).await?;
        let tasks = self.ledger.tasks(id).await?;
        if record.state != to {
            if !record.state.may_stop() {
                return Err(wrong_state(id, record.state, to.name()));
            }
            let change = StateChange {
                from: record.state,
                to,
                by: by.clone(),
                approval: None,
                note: Some(why.to_owned()),
            };
            self.go(id, &change).await?;
        }
        // Also where it was stopped before: that call may have died in between.
        self.settle(&record, &tasks).await?;
        self.discard(&record.plan, &tasks).await;
        self.release(&record.plan).await;
        self.tell(&record.plan, to, why).await;
        Ok(())
    }

    /// Takes staged tasks, and those that wait for them, out of a shadow that waits for a review: what they staged is
    /// discarded, and the others stay. What is left is another review, with another digest to approve.
    pub async fn discard_staged(
        &self,
        id: &BackfillId,
        tasks: &[TaskId],
        by: &Actor,
        why: &str,
    ) -> Result<Review> {
        let record = self.backfill(id).await?;
        let known = self.ledger.tasks(id).await?;
        let mut given: BTreeSet<_> = tasks.iter().copied().collect();
        given.extend(dependents(&record.plan, &given));
        let staged = known.iter().filter(|task| task.state == TaskState::Staged);
        let (gone, left): (Vec<_>, Vec<_>) = staged.cloned().partition(|task| given.contains(&task.id));
        let state = BackfillState::AwaitingReview;
        if record.state == state {
            if let Some(task) = tasks.iter().find(|id| !gone.iter().any(|task| task.id == **id)) {
                return Err(Error::not_found("the task has nothing staged")
                    .with_context("backfill", id)
                    .with_context("task", task));
            }
            if left.is_empty() {
                return Err(Error::new(ErrorKind::State, "nothing would be left to review")
                    .with_context("backfill", id)
                    .with_advice("abort the backfill instead"));
            }
        }
        let discard = StateChange {
            from: state,
            to: state,
            by: by.clone(),
            approval: None,
            note: Some(why.to_owned()),
        };
        match self.ledger.discard_staged(id, tasks, &discard, self.clock.now()).await? {
            Transition::Done => {}
            Transition::Elsewhere(state) => {
                return Err(Error::new(ErrorKind::State, format!("the backfill is {state}"))
                    .with_context("backfill", id)
                    .with_advice("only what waits for a review can be discarded in part"));
            }
        }
        self.discard(&record.plan, &gone).await;
        self.tell(&record.plan, state, why).await;
        self.review(id).await
    }

    /// Ends a backfill for good. With `forget`, what it replaced is freed and can no longer be restored. Answers what is
    /// left stale downstream.
    pub async fn close(&self, id: &BackfillId, by: &Actor, forget: bool) -> Result<Closed> {
        let record = self.backfill(id).await?;
        let tasks = self.ledger.tasks(id).await?;
        if record.state != BackfillState::Closed {
            let change = StateChange {
                from: record.state,
                to: BackfillState::Closed,
                by: by.clone(),
                approval: None,
                note: record.note.clone(),
            };
            self.go(id, &change).await?;
        }
        self.settle(&record, &tasks).await?;
        self.discard(&record.plan, &tasks).await;
        let rows = self.ledger.changes(id).await?;
        if forget {
            for row in &rows {
                if let Some(kept) = &row.record.kept {
                    self.host.writer(&row.record.table)?.forget(kept).await?;
                }
            }
        }
        self.release(&record.plan).await;
        let runs: Vec<_> = rows.into_iter().map(|row| row.record.run).collect();
        let mut stale = self.ledger.stale().await?;
        stale.retain(|s| runs.contains(&s.because));
        self.tell(&record.plan, BackfillState::Closed, "the backfill is closed").await;
        Ok(Closed { stale })
    }

    /// Releases suppressed deliveries by the keys of their business events, and answers how many were.
    pub async fn release_deliveries(&self, keys: &[String], by: &Actor) -> Result<u64> {
        self.ledger.release_deliveries(keys, by, self.clock.now()).await
    }

    /// The backfill, or an error that names it.
    pub async fn backfill(&self, id: &BackfillId) -> Result<BackfillRecord> {
        self.ledger
            .backfill(id)
            .await?
            .ok_or_else(|| Error::not_found("the ledger has no such backfill").with_context("backfill", id))
    }

    /// Changes the state, or says where the backfill is instead.
    pub(super) async fn go(&self, id: &BackfillId, change: &StateChange) -> Result<()> {
        match self.ledger.transition(id, change, self.clock.now()).await? {
            Transition::Done => Ok(()),
            Transition::Elsewhere(state) => Err(wrong_state(id, state, change.to.name())),
        }
    }

    /// Removes staged sets that were given up. A leftover does no harm, so an error is only logged.
    ///
    /// In direct mode a task that was claimed when it was stopped may be in the middle of its commit; its set stays.
    pub(super) async fn discard(&self, plan: &Plan, tasks: &[TaskRecord]) {
        for known in tasks {
            let Some(staged) = known.result.as_ref().and_then(|result| result.staged.as_ref()) else {
                continue;
            };
            let Ok(task) = plan.task(known.id) else { continue };
            let Ok(writer) = self.host.writer(&task.table) else { continue };
            let stopped = matches!(known.state, TaskState::Claimed | TaskState::Cancelled);
            let may_commit = plan.commits_at_once(task) && stopped;
            if known.state == TaskState::Committed || may_commit {
                continue;
            }
            if let Err(error) = writer.discard(&staged.id).await {
                tracing::warn!(staged = %staged.id, %error, "a staged set was not discarded");
            }
        }
    }

    async fn hold(&self, plan: &Plan) -> Result<()> {
        for (table, pins) in self.pins_by_table(plan) {
            self.host.reader(&table)?.hold(&pins).await?;
        }
        Ok(())
    }

    /// Ends the holds of the plan's pins, but for those that an open backfill needs too. A hold that stays costs space
    /// only, so an error is only logged.
    pub(super) async fn release(&self, plan: &Plan) {
        let pins = self.pins_by_table(plan);
        if pins.is_empty() {
            return;
        }
        let open: Vec<_> = BackfillState::ALL.into_iter().filter(|s| s.holds_partitions()).collect();
        let others = match self.ledger.backfills(&open).await {
            Ok(others) => others,
            Err(error) => return tracing::warn!(%error, "pins were not released"),
        };
        let mut needed = BTreeMap::<_, BTreeSet<_>>::new();
        for (table, pins) in others.iter().flat_map(|other| self.pins_by_table(&other.plan)) {
            needed.entry(table).or_default().extend(pins);
        }
        for (table, mut pins) in pins {
            let Ok(reader) = self.host.reader(&table) else { continue };
            pins.retain(|pin| !needed.get(&table).is_some_and(|needed| needed.contains(pin)));
            if let Err(error) = reader.release(&pins).await {
                tracing::warn!(%table, %error, "pins were not released");
            }
        }
    }

    /// Tells owners of the state of a backfill. What cannot be filed never fails the work that it tells of.
    pub(super) async fn tell(&self, plan: &Plan, state: BackfillState, text: &str) {
        let id = &plan.request.id;
        tracing::info!(backfill = %id, %state, "{text}");
        if let Err(error) = self.file_notices(plan, state, text).await {
            tracing::warn!(backfill = %id, %error, "owners were not told");
        }
    }

    /// Files the notices of a state, one for each owner. Filed again they are the same.
    pub(super) async fn file_notices(&self, plan: &Plan, state: BackfillState, text: &str) -> Result<()> {
        // Of a plan that goes on downstream owners are told when that is done.
        let goes_on = state == BackfillState::Published && plan.propagates();
        if self.host.sink(NOTICES).is_none() || plan.owners.is_empty() || goes_on {
            return Ok(());
        }
        let id = &plan.request.id;
        let changes = notify::changes(&self.ledger.run(&plan.run()).await?);
        let notice = |owner: &String| Notice {
            backfill: id.clone(),
            generation: plan.generation,
            state,
            owner: owner.clone(),
            text: text.to_owned(),
            reason: plan.request.reason.clone(),
            changes: changes.clone(),
        };
        let notices = plan.owners.iter().map(|owner| notice(owner).delivery()).collect::<Result<Vec<_>>>()?;
        let origin = DeliveryOrigin { staged: None, run: Some(plan.run()), backfill: Some(id.clone()) };
        let now = self.clock.now();
        retried(self, || self.ledger.announce(&origin, &notices, now)).await.map(drop)
    }

    /// Refuses a plan for jobs or versions that this host does not have.
    fn check_host(&self, plan: &Plan) -> Result<()> {
        for task in &plan.tasks {
            match task.action {
                Action::Compute { .. } | Action::Propagate { .. } => {
                    self.host.writer(&task.table)?;
                    self.host.transform(&task.job, &task.logic)?;
                }
                Action::Restore { .. } => drop(self.host.writer(&task.table)?),
                Action::Trigger => drop(self.host.trigger(&task.job)?),
            }
        }
        Ok(())
    }
}

fn overlapping(id: &BackfillId, overlaps: &[Overlap]) -> Error {
    let others: Vec<_> = overlaps
        .iter()
        .map(|o| format!("`{}` ({}) holds {} of {}", o.backfill, o.state, o.partition, o.table))
        .collect();
    refuse(
        id,
        format!("other backfills hold partitions of this one: {}", others.join("; ")),
        "wait for them, or select other partitions",
    )
}

fn refuse(id: &BackfillId, text: String, advice: &str) -> Error {
    Error::new(ErrorKind::State, text).with_context("backfill", id).with_advice(advice)
}

pub(super) fn wrong_state(id: &BackfillId, state: BackfillState, wanted: &str) -> Error {
    refuse(
        id,
        format!("the backfill is {state} and cannot become {}", wanted.replace('_', " ")),
        "see its status",
    )
}
