//! Working on a backfill: claims tasks, runs them, and leaves them in the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use crate::domain::ids::{BackfillId, JobName, LogicVersion, WorkerId};
use crate::domain::plan::{Action, Plan, TaskId};
use crate::domain::validate::Decision;
use crate::engine::Engine;
use crate::engine::control::wrong_state;
use crate::engine::lease::{Held, retried};
use crate::engine::record::{Attempt, Beside, Origin};
use crate::engine::task::{Noted, TaskEnd};
use crate::error::{Error, ErrorKind, Result};
use crate::ports::ledger::{
    BackfillRecord, BackfillState, Claim, Leave, RunStatus, StateChange, TaskRecord, TaskState, Trigger,
};

/// Something that happened to a task, for whoever watches.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TaskEvent {
    /// A worker of this process has claimed it.
    Started(TaskId),
    /// This process has left it in this state.
    Left(TaskId, TaskState),
}

/// How the work of one process on a backfill ended.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Execution {
    /// The state of the backfill.
    pub state: BackfillState,
    /// Every task of it, as the ledger has them: exact outcomes, also of those that other processes ran.
    pub tasks: Vec<TaskRecord>,
}

impl Execution {
    /// The tasks in a state.
    pub fn in_state(&self, state: TaskState) -> impl Iterator<Item = &TaskRecord> {
        self.tasks.iter().filter(move |task| task.state == state)
    }
}

impl Engine {
    /// Works on an approved backfill until no task of it is open. Several processes may do so at a time; one that starts
    /// after others died goes on where they were. A stale or failed backfill is taken up again: tasks that succeeded
    /// are left alone.
    ///
    /// In direct mode the backfill is published afterwards. In shadow mode it waits for a review, or is aborted where an
    /// expectation of that severity does not hold.
    pub async fn execute(
        &self,
        id: &BackfillId,
        worker: &WorkerId,
        watch: impl Fn(TaskEvent) + Send + Sync,
    ) -> Result<Execution> {
        let record = self.start(id, worker).await?;
        if record.state == BackfillState::Running {
            let around = self.beside(&record.plan).await?;
            self.work(&record, worker, &around, &watch).await?;
            self.conclude(id, worker).await?;
            self.dispatch_own(worker).await;
        }
        let state = self.backfill(id).await?.state;
        Ok(Execution { state, tasks: self.ledger.tasks(id).await? })
    }

    async fn start(&self, id: &BackfillId, worker: &WorkerId) -> Result<BackfillRecord> {
        let record = self.backfill(id).await?;
        match record.state {
            BackfillState::Approved | BackfillState::Stale | BackfillState::Failed => {
                let change = StateChange {
                    from: record.state,
                    to: BackfillState::Running,
                    by: worker_actor(worker),
                    approval: None,
                    note: None,
                };
                // Another process may have started it meanwhile, which is as good.
                let _ = self.ledger.transition(id, &change, self.clock.now()).await?;
                self.backfill(id).await
            }
            BackfillState::Planned => {
                Err(wrong_state(id, record.state, "running").with_advice("approve the plan first"))
            }
            _ => Ok(record),
        }
    }

    async fn work(
        &self,
        record: &BackfillRecord,
        worker: &WorkerId,
        around: &Beside,
        watch: &(impl Fn(TaskEvent) + Send + Sync),
    ) -> Result<()> {
        let id = &record.plan.request.id;
        let mut can_run = self.host.can_run();
        can_run.extend(needs_no_code(&record.plan));
        let mut running = FuturesUnordered::new();
        loop {
            let free = record
                .plan
                .request
                .concurrency
                .saturating_sub(u32::try_from(running.len()).unwrap_or(u32::MAX));
            let (ttl, now) = (self.settings.lease_ttl(), self.clock.now());
            let ask = || self.ledger.claim(id, worker, &can_run, free, ttl, now);
            let claims = match free {
                0 => Vec::new(),
                _ => meanwhile(&mut running, watch, retried(self, ask)).await??,
            };
            let none = claims.is_empty();
            for claim in claims {
                watch(TaskEvent::Started(claim.task));
                running.push(self.attempt(record, claim, worker, around));
            }
            match (running.is_empty(), none) {
                (false, true) => {
                    let poll = self.clock.sleep(self.settings.poll());
                    // Without `biased` the order would be drawn, and a seeded replay would differ.
                    tokio::select! {
                        biased;
                        ended = running.next() => report(ended, watch)?,
                        () = poll => {}
                    }
                }
                (true, true) => {
                    let tasks = self.ledger.tasks(id).await?;
                    let running = self.backfill(id).await?.state == BackfillState::Running;
                    if !running || !tasks.iter().any(|t| t.state.is_open()) {
                        return Ok(());
                    }
                    check_runnable(&record.plan, &tasks, &can_run)?;
                    self.clock.sleep(self.settings.poll()).await;
                }
                _ => {}
            }
        }
    }

    /// Runs one claim and leaves its task in the ledger.
    async fn attempt(
        &self,
        record: &BackfillRecord,
        claim: Claim,
        worker: &WorkerId,
        around: &Beside,
    ) -> Result<(TaskId, TaskState)> {
        let plan = &record.plan;
        let task = plan.task(claim.task)?;
        let origin = origin(record, worker);
        let at = Attempt {
            plan,
            task,
            origin: &origin,
            claim: Some(&claim),
            beside: around,
            queued_at: claim.queued_at,
            started_at: claim.started_at,
        };
        tracing::info!(backfill = %plan.request.id, task = %task.id, job = %task.job, scope = %task.scope, attempt = claim.attempt, "task started");
        let end = match self.noted(record, &claim).await {
            Ok(noted) => self.run_task(&at, noted).await,
            Err(error) => Err(error),
        };
        let (how, state) = match end {
            Ok(TaskEnd::Committed) => return Ok((claim.task, TaskState::Committed)),
            Ok(TaskEnd::Lost) => return Ok((claim.task, TaskState::Pending)),
            Ok(TaskEnd::Staged(result)) => (Leave::Staged(result), TaskState::Staged),
            Ok(TaskEnd::Skipped(note)) => (Leave::Skipped { note }, TaskState::Skipped),
            Err(error) => self.after_error(&at, &claim, error).await?,
        };
        let now = self.clock.now();
        retried(self, || self.ledger.leave(&claim, how.clone(), now)).await?;
        Ok((claim.task, state))
    }

    /// What becomes of a task after an error. Where storage was away for longer than one attempt tries, another one may
    /// take the task, after a wait in which this one keeps it, so that a database that is down is not asked all the time.
    async fn after_error(&self, at: &Attempt<'_>, claim: &Claim, error: Error) -> Result<(Leave, TaskState)> {
        let error = error
            .with_context("job", &at.task.job)
            .with_context("partition", &at.task.scope)
            .with_context("run", &at.origin.run);
        let note = error.to_string();
        // A lease that another holds is an error of this kind only where the request says so.
        let may_pass = error.is_retryable() && error.kind() != ErrorKind::State;
        if may_pass && !claim.attempt.is_multiple_of(self.settings.attempts.max(1)) {
            tracing::warn!(%error, "task is left to another attempt");
            let wait = self.clock.sleep(self.settings.pause(claim.attempt));
            // Whatever becomes of the claim meanwhile is seen when the task is left.
            let _ = self.holding(Held { claim: Some(claim), fence: None }, wait).await;
            return Ok((Leave::Pending { note }, TaskState::Pending));
        }
        tracing::warn!(%error, "task failed");
        let records = self.records(at, None, RunStatus::Failed, Some(&note))?;
        Ok((Leave::Failed { note, records }, TaskState::Failed))
    }

    /// What earlier attempts at the task, and the tasks it reads from, have staged.
    async fn noted(&self, record: &BackfillRecord, claim: &Claim) -> Result<Noted> {
        let task = record.plan.task(claim.task)?;
        let produced_by: BTreeSet<TaskId> = match &task.action {
            Action::Compute { inputs, .. } => {
                inputs.values().flat_map(|i| i.produced_by.iter().copied()).collect()
            }
            Action::Restore { .. } => BTreeSet::new(),
        };
        if claim.attempt == 1 && produced_by.is_empty() {
            return Ok(Noted::default());
        }
        let tasks = retried(self, || self.ledger.tasks(&claim.backfill)).await?;
        let mut noted = Noted::default();
        for other in tasks {
            if other.id == task.id {
                noted.own = other.result;
            } else if other.state == TaskState::Staged && produced_by.contains(&other.id) {
                noted.others.extend(other.result.map(|result| (other.id, result)));
            }
        }
        Ok(noted)
    }

    /// Takes a running backfill without open tasks to its next state. Another process may have done so before.
    async fn conclude(&self, id: &BackfillId, worker: &WorkerId) -> Result<()> {
        let record = self.backfill(id).await?;
        if record.state != BackfillState::Running {
            return Ok(());
        }
        let tasks = self.ledger.tasks(id).await?;
        let (to, note) = conclusion(&record.plan, &tasks);
        let text = note.as_deref().unwrap_or("every task is done");
        // Before the transition, since nobody would come back to it after a death in between.
        if to == BackfillState::Published {
            self.note_rollback(&record.plan, worker).await?;
            self.file_notices(&record.plan, to, text).await?;
        }
        let change = StateChange {
            from: BackfillState::Running,
            to,
            by: worker_actor(worker),
            approval: None,
            note: note.clone(),
        };
        let done = self.ledger.transition(id, &change, self.clock.now()).await?;
        if done != crate::ports::ledger::Transition::Done {
            return Ok(());
        }
        if to == BackfillState::Aborted {
            self.discard(&record.plan, &tasks).await;
        }
        if matches!(to, BackfillState::Aborted | BackfillState::Published) {
            self.release(&record.plan).await;
        }
        self.tell(&record.plan, to, text).await;
        Ok(())
    }
}

/// Where a backfill without open tasks goes.
fn conclusion(plan: &Plan, tasks: &[TaskRecord]) -> (BackfillState, Option<String>) {
    let count = |state| tasks.iter().filter(|t| t.state == state).count();
    let (failed, blocked) = (count(TaskState::Failed), count(TaskState::Blocked));
    if failed + blocked > 0 {
        return (
            BackfillState::Failed,
            Some(format!("{failed} tasks failed, {blocked} are blocked by them")),
        );
    }
    if count(TaskState::Staged) == 0 {
        return (BackfillState::Published, None);
    }
    let verdicts = tasks.iter().filter_map(|t| Some((t.id, t.result.as_ref()?.verdict.as_ref()?)));
    let stops: BTreeMap<_, _> = verdicts.filter(|(_, verdict)| verdict.decision == Decision::Abort).collect();
    match stops.first_key_value() {
        Some((task, verdict)) => {
            let scope = plan.task(*task).map(|t| t.scope.to_string()).unwrap_or_default();
            let text =
                format!("an expectation does not hold in {} partitions; {scope}: {verdict}", stops.len());
            (BackfillState::Aborted, Some(text))
        }
        None => (BackfillState::AwaitingReview, None),
    }
}

/// Where the tasks of a backfill come from.
pub(super) fn origin(record: &BackfillRecord, worker: &WorkerId) -> Origin {
    let plan = &record.plan;
    Origin {
        run: plan.run(),
        trigger: if plan.rolls_back.is_some() { Trigger::Rollback } else { Trigger::Backfill },
        backfill: Some(plan.rolls_back.clone().unwrap_or_else(|| plan.request.id.clone())),
        approval: record.approvals.last().cloned(),
        worker: worker.clone(),
    }
}

fn worker_actor(worker: &WorkerId) -> crate::domain::ids::Actor {
    crate::domain::ids::Actor::new(worker.as_str())
}

/// Waits for a step of the loop while the tasks go on: one that is not polled could hold the very connection that the
/// step waits for.
async fn meanwhile<T>(
    running: &mut FuturesUnordered<impl Future<Output = Result<(TaskId, TaskState)>>>,
    watch: &(impl Fn(TaskEvent) + Send + Sync),
    step: impl Future<Output = T>,
) -> Result<T> {
    let mut step = pin!(step);
    loop {
        tokio::select! {
            biased;
            done = &mut step => return Ok(done),
            Some(ended) = running.next() => report(Some(ended), watch)?,
        }
    }
}

fn report(
    ended: Option<Result<(TaskId, TaskState)>>,
    watch: &(impl Fn(TaskEvent) + Send + Sync),
) -> Result<()> {
    if let Some(ended) = ended {
        let (task, state) = ended?;
        watch(TaskEvent::Left(task, state));
    }
    Ok(())
}

/// What every host can run: bringing rows back needs no code of the version that wrote them.
fn needs_no_code(plan: &Plan) -> BTreeSet<(JobName, LogicVersion)> {
    let restores = plan.tasks.iter().filter(|task| matches!(task.action, Action::Restore { .. }));
    restores.map(|task| (task.job.clone(), task.logic.clone())).collect()
}

/// Refuses to wait for tasks that no process of this host can run.
fn check_runnable(plan: &Plan, tasks: &[TaskRecord], can_run: &[(JobName, LogicVersion)]) -> Result<()> {
    let claimed = tasks.iter().any(|t| t.state == TaskState::Claimed);
    for record in tasks.iter().filter(|t| t.state == TaskState::Pending && !claimed) {
        let task = plan.task(record.id)?;
        if !can_run.contains(&(task.job.clone(), task.logic.clone())) {
            return Err(Error::not_found(format!("logic version `{}` is not registered", task.logic))
                .with_context("job", &task.job)
                .with_context("backfill", &plan.request.id)
                .with_advice("run it with a host that has the code"));
        }
    }
    Ok(())
}
