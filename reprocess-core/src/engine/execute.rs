//! Working on a backfill: claims tasks, runs them, and leaves them in the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::SemaphorePermit;

use crate::domain::ids::{BackfillId, JobName, LogicVersion, WorkerId};
use crate::domain::plan::{Action, Plan, Task, TaskId};
use crate::domain::validate::Decision;
use crate::engine::Engine;
use crate::engine::control::wrong_state;
use crate::engine::lease::{Held, retried};
use crate::engine::pool::Ran;
use crate::engine::record::{Attempt, Beside, Origin};
use crate::engine::task::{Noted, TaskEnd, has_moved};
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

/// How running tasks ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// No task is open, or the backfill has another state.
    Over,
    /// The backfill is paused, or the process is to stop.
    Early,
}

/// The claims of tasks that run.
type Claims = Mutex<BTreeMap<TaskId, Claim>>;

fn locked(claims: &Claims) -> MutexGuard<'_, BTreeMap<TaskId, Claim>> {
    claims.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// are left alone. It ends before that where the backfill is paused, or where the process is asked to
    /// [stop](crate::engine::Stop).
    ///
    /// In direct mode the backfill is published afterwards. In shadow mode it waits for a review, or is aborted where an
    /// expectation of that severity does not hold. Downstream tasks are run as what they read is published: in direct mode
    /// as soon as the tasks before them are committed, in shadow mode after the publication.
    pub async fn execute(
        &self,
        id: &BackfillId,
        worker: &WorkerId,
        watch: impl Fn(TaskEvent) + Send + Sync,
    ) -> Result<Execution> {
        let mut record = self.start(id, worker).await?;
        while record.state.runs_tasks() {
            let around = self.beside(&record.plan).await?;
            let ended = self.run_tasks_until_stopped(&record, worker, &around, &watch).await?;
            self.conclude(id, worker).await?;
            self.dispatch_own(worker).await;
            record = self.backfill(id).await?;
            if ended == Ended::Early {
                break;
            }
        }
        Ok(Execution { state: record.state, tasks: self.ledger.tasks(id).await? })
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
            BackfillState::Published => {
                self.go_on_downstream(&record.plan, &worker_actor(worker)).await?;
                self.backfill(id).await
            }
            BackfillState::Planned => {
                Err(wrong_state(id, record.state, "running").with_advice("approve the plan first"))
            }
            _ => Ok(record),
        }
    }

    /// Runs tasks, and gives up those that run where the process is asked to.
    async fn run_tasks_until_stopped(
        &self,
        record: &BackfillRecord,
        worker: &WorkerId,
        around: &Beside,
        watch: &(impl Fn(TaskEvent) + Send + Sync),
    ) -> Result<Ended> {
        let held = Mutex::new(BTreeMap::new());
        tokio::select! {
            biased;
            ended = self.run_tasks(record, worker, around, watch, &held) => return ended,
            () = self.stop.released() => {}
        }
        let note = "the worker was stopped".to_owned();
        let left = std::mem::take(&mut *locked(&held));
        for claim in left.into_values() {
            let leave = || self.ledger.leave(&claim, Leave::Pending { note: note.clone() }, self.clock.now());
            // One that was left already stays as it is.
            retried(self, leave).await?;
        }
        self.unlease_all().await;
        Ok(Ended::Early)
    }

    async fn run_tasks(
        &self,
        record: &BackfillRecord,
        worker: &WorkerId,
        around: &Beside,
        watch: &(impl Fn(TaskEvent) + Send + Sync),
        held: &Claims,
    ) -> Result<Ended> {
        let id = &record.plan.request.id;
        let mut can_run = self.host.can_run();
        can_run.extend(needs_no_code(&record.plan));
        let watch = &|event: TaskEvent| {
            if let TaskEvent::Left(task, _) = event {
                locked(held).remove(&task);
            }
            watch(event);
        };
        let mut running = FuturesUnordered::new();
        // Read again now and then: a plan is long, and the ledger holds to the cap of now in any case.
        let (mut concurrency, mut read_at) = (record.concurrency, self.clock.now());
        loop {
            let free = match self.stop.is_asked() {
                true => 0,
                false => concurrency.saturating_sub(u32::try_from(running.len()).unwrap_or(u32::MAX)),
            };
            let mut slots = self.free_slots(free)?;
            let limit = u32::try_from(slots.num_permits()).unwrap_or(free);
            let (ttl, now) = (self.settings.lease_ttl(), self.clock.now());
            let ask = || self.ledger.claim(id, worker, &can_run, limit, ttl, now);
            let claims = match limit {
                0 => Vec::new(),
                _ => meanwhile(&mut running, watch, retried(self, ask)).await??,
            };
            let none = claims.is_empty();
            for claim in claims {
                watch(TaskEvent::Started(claim.task));
                locked(held).insert(claim.task, claim.clone());
                running.push(self.attempt(record, claim, worker, around, slots.split(1)));
            }
            drop(slots);
            match (running.is_empty(), none) {
                (false, true) => {
                    let poll = self.clock.sleep(self.settings.poll());
                    // Without `biased` the order would be drawn, and a seeded replay would differ.
                    tokio::select! {
                        biased;
                        ended = running.next() => report(ended, watch)?,
                        () = poll => {
                            if self.is_due(read_at) {
                                let now = meanwhile(&mut running, watch, self.backfill(id)).await??;
                                (concurrency, read_at) = (now.concurrency, self.clock.now());
                            }
                        }
                    }
                }
                (true, true) if !self.is_due(read_at) && self.others_work(id).await? => {
                    self.wait_for_others().await;
                }
                (true, true) => {
                    let open = open_tasks(record, self.ledger.tasks(id).await?);
                    let now = self.backfill(id).await?;
                    if now.state != record.state || open.is_empty() {
                        return Ok(Ended::Over);
                    }
                    if now.paused_by.is_some() || self.stop.is_asked() {
                        return Ok(Ended::Early);
                    }
                    check_runnable(&record.plan, &open, &can_run)?;
                    (concurrency, read_at) = (now.concurrency, self.clock.now());
                    self.wait_for_others().await;
                }
                _ => {}
            }
        }
    }

    /// Whether what was read then is to be read again.
    fn is_due(&self, read_at: DateTime<Utc>) -> bool {
        (self.clock.now() - read_at).to_std().is_ok_and(|since| since >= self.settings.lease_ttl() / 3)
    }

    /// Whether tasks are claimed, by processes other than this one where it has none; not where it is to stop.
    async fn others_work(&self, id: &BackfillId) -> Result<bool> {
        if self.stop.is_asked() {
            return Ok(false);
        }
        let progress = self.ledger.progress(id).await?;
        Ok(progress.tasks.get(&TaskState::Claimed).is_some_and(|tasks| *tasks > 0))
    }

    async fn wait_for_others(&self) {
        tokio::select! {
            biased;
            () = self.stop.asked() => {}
            () = self.clock.sleep(self.settings.poll()) => {}
        }
    }

    /// Up to so many of the slots for tasks that are free in this process.
    fn free_slots(&self, wanted: u32) -> Result<SemaphorePermit<'_>> {
        let free = u32::try_from(self.slots.available_permits()).unwrap_or(u32::MAX);
        let slots = self.slots.try_acquire_many(wanted.min(free)).or_else(|_| self.slots.try_acquire_many(0));
        slots.map_err(|e| Error::internal("the slots of this process are closed").with_source(e))
    }

    /// Runs one claim and leaves its task in the ledger.
    async fn attempt(
        &self,
        record: &BackfillRecord,
        claim: Claim,
        worker: &WorkerId,
        around: &Beside,
        _slot: Option<SemaphorePermit<'_>>,
    ) -> Result<(TaskId, TaskState)> {
        let plan = &record.plan;
        let task = plan.task(claim.task)?;
        let origin = origin(record, task, worker);
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
        let ran = match self.noted(record, &claim).await {
            Ok(noted) => self.run_in_pool(&at, noted).await,
            Err(error) => Ran { started_at: at.started_at, end: Err(error) },
        };
        let at = Attempt { started_at: ran.started_at, ..at };
        let (how, state) = match ran.end {
            Ok(TaskEnd::Committed) => return Ok((claim.task, TaskState::Committed)),
            Ok(TaskEnd::Lost) => return Ok((claim.task, TaskState::Pending)),
            Ok(TaskEnd::NotBegun) => {
                let note = "it waited for its turn when nothing more was to be begun".to_owned();
                (Leave::Pending { note }, TaskState::Pending)
            }
            // Only what has no claim ends so.
            Ok(TaskEnd::Moved(moved)) => self.after_error(&at, &claim, has_moved(&moved)).await?,
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
            Action::Propagate { .. } | Action::Trigger | Action::Restore { .. } => BTreeSet::new(),
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

    /// Takes a backfill whose tasks were worked on, and of which none is open any more, to its next state. Another process
    /// may have done so before.
    async fn conclude(&self, id: &BackfillId, worker: &WorkerId) -> Result<()> {
        let record = self.backfill(id).await?;
        let tasks = self.ledger.tasks(id).await?;
        if !record.state.runs_tasks() || !open_tasks(&record, tasks.clone()).is_empty() {
            return Ok(());
        }
        let (to, note) = conclusion(&record, &tasks);
        let text = note.as_deref().unwrap_or("every task is done");
        // Before the transition, since nobody would come back to it after a death in between.
        if to == BackfillState::Published {
            self.note_rollback(&record.plan, worker).await?;
        }
        if matches!(to, BackfillState::Published | BackfillState::Done) {
            self.file_notices(&record.plan, to, text).await?;
        }
        let change = StateChange {
            from: record.state,
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
        if to == BackfillState::Published {
            self.go_on_downstream(&record.plan, &worker_actor(worker)).await?;
        }
        Ok(())
    }
}

/// The tasks that are open now: those that wait for the publication of a shadow are not before it.
pub(super) fn open_tasks(record: &BackfillRecord, mut tasks: Vec<TaskRecord>) -> Vec<TaskRecord> {
    let (plan, published) = (&record.plan, record.state == BackfillState::Propagating);
    let waits = |id| plan.task(id).is_ok_and(|task| plan.waits_for_publication(task));
    tasks.retain(|task| task.state.is_open() && (published || !waits(task.id)));
    tasks
}

/// Where a backfill without open tasks goes.
fn conclusion(record: &BackfillRecord, tasks: &[TaskRecord]) -> (BackfillState, Option<String>) {
    let plan = &record.plan;
    let count = |state| tasks.iter().filter(|t| t.state == state).count();
    let (failed, blocked) = (count(TaskState::Failed), count(TaskState::Blocked));
    if failed + blocked > 0 {
        return (
            BackfillState::Failed,
            Some(format!("{failed} tasks failed, {blocked} are blocked by them")),
        );
    }
    if record.state == BackfillState::Propagating {
        return (BackfillState::Done, None);
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

/// Where a task of a backfill comes from.
pub(super) fn origin(record: &BackfillRecord, task: &Task, worker: &WorkerId) -> Origin {
    let plan = &record.plan;
    Origin {
        run: plan.run(),
        trigger: match plan.rolls_back {
            _ if task.is_downstream() => Trigger::Propagated,
            Some(_) => Trigger::Rollback,
            None => Trigger::Backfill,
        },
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
