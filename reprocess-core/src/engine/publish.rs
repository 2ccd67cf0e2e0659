//! Review and publication of a shadow.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::domain::diff::{Diff, DiffSpec};
use crate::domain::ids::{Actor, BackfillId, TableId, WorkerId};
use crate::domain::partition::PartitionKey;
use crate::domain::plan::{Plan, Task, TaskId};
use crate::domain::scope::Scope;
use crate::domain::slice::Base;
use crate::domain::validate::{Decision, Verdict};
use crate::engine::Engine;
use crate::engine::commit::{Committing, Ended};
use crate::engine::control::wrong_state;
use crate::engine::execute::origin;
use crate::engine::lease::{Held, Leased};
use crate::engine::record::{Attempt, Beside, Origin};
use crate::engine::task::expect;
use crate::error::{Error, ErrorKind, Result};
use crate::ports::ledger::rules::dependents;
use crate::ports::ledger::{
    BackfillRecord, BackfillState, Fence, LedgerRow, RunStatus, StateChange, TaskRecord, TaskResult,
    TaskState, Transition, Trigger,
};
use crate::ports::writer::{Change as Write, CommitEntry, Moved};

/// What owners are told of a publication.
const IN_PRODUCTION: &str = "the outputs are in production";

/// What a reviewer looks at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Review {
    /// The backfill.
    pub backfill: BackfillId,
    /// Digest of every staged output with the base it replaces; an approval binds to it.
    pub digest: String,
    /// The worst of all verdicts.
    pub decision: Decision,
    /// One for each staged task.
    pub outputs: Vec<StagedOutput>,
}

/// One staged task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StagedOutput {
    /// Its number.
    pub task: TaskId,
    /// Its table.
    pub table: TableId,
    /// What it would touch.
    pub scope: Scope,
    /// What it read, what it staged, profiles before and after, verdict.
    pub result: TaskResult,
}

/// How a publication ended.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub enum Publication {
    /// Everything is in production.
    Published,
    /// Production moved under these tasks: nothing of their table was published. Executing the backfill again stages
    /// them anew, and only them; then it waits for another review.
    Stale {
        /// What moved.
        moved: Vec<Moved>,
        /// The tasks to be staged again: those whose partitions moved, and those that read from them.
        tasks: Vec<TaskId>,
    },
}

impl Engine {
    /// What waits for a review.
    pub async fn review(&self, id: &BackfillId) -> Result<Review> {
        let record = self.backfill(id).await?;
        let tasks = self.ledger.tasks(id).await?;
        review_of(&record.plan, &tasks)
    }

    /// The rows that differ between production and a staged task, computed now.
    pub async fn diff(&self, id: &BackfillId, task: TaskId, samples: usize) -> Result<Vec<Diff>> {
        let record = self.backfill(id).await?;
        let planned = record.plan.task(task)?;
        let tasks = self.ledger.tasks(id).await?;
        let result = tasks.into_iter().find(|t| t.id == task).and_then(|t| t.result);
        let staged = result.and_then(|r| r.staged).ok_or_else(|| {
            Error::not_found("the task has nothing staged")
                .with_context("backfill", id)
                .with_context("task", task)
        })?;
        let reader = self.host.writer(&planned.table)?.staged().ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "the backend has no shadow")
                .with_context("table", &planned.table)
        })?;
        let job = self.host.catalog().job(&planned.job)?;
        let spec = DiffSpec::new(job.profile.keys.iter().cloned()).with_samples(samples);
        reader.diff(&staged, &spec).await
    }

    /// Commits an approved shadow: one commit for each table, upstream tables first. Goes on where a publication that
    /// died had stopped.
    pub async fn publish(&self, id: &BackfillId, by: &Actor, worker: &WorkerId) -> Result<Publication> {
        let record = self.backfill(id).await?;
        let tasks = self.ledger.tasks(id).await?;
        match record.state {
            BackfillState::AwaitingReview => {
                self.check_approval(&record, &tasks)?;
                self.go(id, &change(BackfillState::AwaitingReview, BackfillState::Publishing, by)).await?;
            }
            BackfillState::Publishing => {}
            BackfillState::Published | BackfillState::Propagating | BackfillState::Done => {
                return Ok(Publication::Published);
            }
            state => return Err(wrong_state(id, state, "published")),
        }
        let staged: BTreeMap<TaskId, TaskRecord> = tasks
            .iter()
            .filter(|t| t.state == TaskState::Staged)
            .map(|task| (task.id, task.clone()))
            .collect();
        let beside = self.beside(&record.plan).await?;
        for group in groups(&record.plan, &staged) {
            match self.publish_group(&record, &staged, &group, worker, &beside).await {
                Ok(None) => {}
                Ok(Some((moved, under))) => return self.stale(&record, by, &tasks, moved, under).await,
                Err(error) => return Err(self.not_published(&record, by, error).await),
            }
        }
        // Before the transition, since nobody would come back to it after a death in between.
        self.file_notices(&record.plan, BackfillState::Published, IN_PRODUCTION).await?;
        self.go(id, &change(BackfillState::Publishing, BackfillState::Published, by)).await?;
        self.release(&record.plan).await;
        self.tell(&record.plan, BackfillState::Published, IN_PRODUCTION).await;
        self.go_on_downstream(&record.plan, by).await?;
        self.dispatch_own(worker).await;
        Ok(Publication::Published)
    }

    fn check_approval(&self, record: &BackfillRecord, tasks: &[TaskRecord]) -> Result<()> {
        let id = &record.plan.request.id;
        let digest = review_of(&record.plan, tasks)?.digest;
        match record.approvals.last() {
            Some(approval) if approval.digest == digest => Ok(()),
            _ => Err(Error::new(ErrorKind::State, "the staged outputs are not approved")
                .with_context("backfill", id)
                .with_advice(format!("review them, then approve {digest}"))),
        }
    }

    /// Commits tasks of one table whose scopes are disjoint; answers what moved, and the tasks it moved under.
    async fn publish_group(
        &self,
        record: &BackfillRecord,
        staged: &BTreeMap<TaskId, TaskRecord>,
        group: &[TaskId],
        worker: &WorkerId,
        beside: &Beside,
    ) -> Result<Option<(Vec<Moved>, BTreeSet<TaskId>)>> {
        let plan = &record.plan;
        let tasks: Vec<&Task> = group.iter().map(|id| plan.task(*id)).collect::<Result<_>>()?;
        let Some(first) = tasks.first() else { return Ok(None) };
        let Some(scope) = Scope::union_of(tasks.iter().map(|task| &task.scope)) else { return Ok(None) };
        let policy = plan.request.when_leased;
        let holder = WorkerId::new(format!("{worker}/{}/publish", plan.run()));
        loop {
            let fence = match self.lease(&first.table, &scope, &holder, policy, None).await? {
                Leased::Yes(fence) => fence,
                Leased::LeftToOther | Leased::Lost => {
                    return Err(Error::new(ErrorKind::State, "another run holds a lease on the partitions")
                        .with_context("table", &first.table)
                        .with_retry(true)
                        .with_advice("publish again when the other is done"));
                }
            };
            let held = Held { claim: None, fence: fence.as_ref() };
            let work = self.commit_group(record, staged, &tasks, worker, beside, fence.as_ref());
            let ended = self.to_its_end(held, work).await;
            self.unlease(fence.as_ref()).await;
            match ended? {
                Ended::Done => return Ok(None),
                Ended::Moved(moved) => {
                    let under = |t: &&&Task| moved.iter().any(|m| t.scope.covers(&m.partition));
                    let ids = tasks.iter().filter(under).map(|t| t.id).collect();
                    return Ok(Some((moved, ids)));
                }
                Ended::Fenced => {}
            }
        }
    }

    async fn commit_group(
        &self,
        record: &BackfillRecord,
        staged: &BTreeMap<TaskId, TaskRecord>,
        tasks: &[&Task],
        worker: &WorkerId,
        beside: &Beside,
        fence: Option<&Fence>,
    ) -> Result<Ended> {
        let plan = &record.plan;
        let origin = origin(record, tasks[0], worker);
        let (mut entries, mut attempts) = (Vec::new(), Vec::new());
        let (mut base, mut since) = (None, None);
        for task in tasks {
            let known =
                staged.get(&task.id).ok_or_else(|| Error::internal("a task to publish is not staged"))?;
            let result =
                known.result.as_ref().ok_or_else(|| Error::internal("a staged task has no result"))?;
            entries.push(self.published_entry(record, task, known, &origin, beside)?);
            attempts.push(attempt(plan, task, known, &origin, beside));
            join(&mut base, &result.base);
            join(&mut since, &task.base);
        }
        let (Some(mut base), Some(since)) = (base, since) else {
            return Err(Error::internal("a publication without entries"));
        };
        let scope = Scope::union_of(tasks.iter().map(|task| &task.scope));
        let scope = scope.ok_or_else(|| Error::internal("a publication without scope"))?;
        let writer = self.host.writer(&tasks[0].table)?.as_ref();
        loop {
            let what = Committing {
                writer,
                entries: entries.clone(),
                at: attempts.clone(),
                base: base.clone(),
                since: &since,
                fence,
                keep: plan.request.keep_replaced,
                when_moved: plan.request.when_moved,
            };
            let ended = self.commit(what).await?;
            let Ended::Moved(_) = &ended else { return Ok(ended) };
            match self.after_own_commits(&attempts[0], writer, &scope, &base).await? {
                Some(own) => {
                    base = own;
                    expect(&mut entries, &base);
                }
                None => return Ok(ended),
            }
        }
    }

    fn published_entry(
        &self,
        record: &BackfillRecord,
        task: &Task,
        known: &TaskRecord,
        origin: &Origin,
        beside: &Beside,
    ) -> Result<CommitEntry> {
        let plan = &record.plan;
        let result = known.result.as_ref().ok_or_else(|| Error::internal("a staged task has no result"))?;
        let set = result.staged.clone().ok_or_else(|| Error::internal("a staged task has nothing staged"))?;
        let at = attempt(plan, task, known, origin, beside);
        let mut entry = self.entry(&at, Write::Apply(set), result)?;
        entry.attempt = known.attempt;
        for row in &mut entry.finish.records {
            row.attempt = known.attempt;
        }
        entry.finish.task = Some((plan.request.id.clone(), plan.generation, task.id));
        Ok(entry)
    }

    /// Sends the tasks whose partitions moved, and those that read from them, back to be staged again.
    async fn stale(
        &self,
        record: &BackfillRecord,
        by: &Actor,
        known: &[TaskRecord],
        moved: Vec<Moved>,
        under: BTreeSet<TaskId>,
    ) -> Result<Publication> {
        let plan = &record.plan;
        let id = &plan.request.id;
        let staged = |id: &TaskId| known.iter().any(|task| task.id == *id && task.state == TaskState::Staged);
        let mut again = with_dependants(plan, under);
        again.retain(staged);
        let keys: Vec<_> = moved.iter().map(|m| m.partition.to_string()).collect();
        let note = format!("production moved under the shadow: {}", keys.join(", "));
        let tasks: Vec<_> = again.iter().copied().collect();
        let mut stale = change(BackfillState::Publishing, BackfillState::Stale, by);
        stale.note = Some(note.clone());
        match self.ledger.restage(id, &tasks, &stale, self.clock.now()).await? {
            Transition::Done => {}
            // Another process found the same first.
            Transition::Elsewhere(BackfillState::Stale) => return Ok(Publication::Stale { moved, tasks }),
            Transition::Elsewhere(state) => return Err(wrong_state(id, state, stale.to.name())),
        }
        let sent: Vec<_> = known.iter().filter(|task| again.contains(&task.id)).cloned().collect();
        self.discard(plan, &sent).await;
        self.tell(plan, BackfillState::Stale, &note).await;
        Ok(Publication::Stale { moved, tasks })
    }

    /// A publication that cannot succeed by being called again is failed, so that the backfill can be executed again or
    /// stopped. What is committed stays.
    async fn not_published(&self, record: &BackfillRecord, by: &Actor, error: Error) -> Error {
        let id = &record.plan.request.id;
        if error.is_retryable() {
            return error;
        }
        let mut failed = change(BackfillState::Publishing, BackfillState::Failed, by);
        failed.note = Some(error.to_string());
        if let Err(other) = self.ledger.transition(id, &failed, self.clock.now()).await {
            tracing::warn!(backfill = %id, error = %other, "a failed publication was not noted");
        }
        error
    }

    /// A backfill of which everything was taken back is rolled back.
    pub(super) async fn note_rollback(&self, plan: &Plan, worker: &WorkerId) -> Result<()> {
        let Some(of) = &plan.rolls_back else { return Ok(()) };
        let record = self.backfill(of).await?;
        if !record.state.may_become(BackfillState::RolledBack) {
            return Ok(());
        }
        let mut last = BTreeMap::new();
        let rows = self.ledger.changes(of).await?;
        let own = |row: &LedgerRow| {
            row.record.status == RunStatus::Committed && row.record.trigger != Trigger::Propagated
        };
        for row in rows.into_iter().filter(own) {
            last.insert((row.record.table, row.record.partition), row.record.trigger);
        }
        if last.values().all(|trigger| *trigger == Trigger::Rollback) {
            let by = Actor::new(worker.as_str());
            let _ = self
                .ledger
                .transition(of, &change(record.state, BackfillState::RolledBack, &by), self.clock.now())
                .await?;
        }
        Ok(())
    }
}

fn review_of(plan: &Plan, tasks: &[TaskRecord]) -> Result<Review> {
    let mut hasher = blake3::Hasher::new();
    let mut outputs = Vec::new();
    let mut decision = Decision::Approve;
    for known in tasks.iter().filter(|t| t.state == TaskState::Staged) {
        let task = plan.task(known.id)?;
        let Some(result) = &known.result else { continue };
        let digest = result.staged.as_ref().map_or("", |s| s.digest.as_str());
        hasher.update(format!("{} {} {digest} ", task.id, task.scope.digest()).as_bytes());
        for (key, version) in &result.base.partitions {
            hasher.update(format!("{key}@{version} ").as_bytes());
        }
        decision = decision.max(result.verdict.as_ref().map_or(Decision::Review, |v: &Verdict| v.decision));
        outputs.push(StagedOutput {
            task: task.id,
            table: task.table.clone(),
            scope: task.scope.clone(),
            result: result.clone(),
        });
    }
    let digest = hasher.finalize().to_hex()[..16].to_owned();
    Ok(Review { backfill: plan.request.id.clone(), digest, decision, outputs })
}

/// Staged tasks in groups that one commit takes: of one table, with disjoint scopes, upstream tables first.
fn groups(plan: &Plan, staged: &BTreeMap<TaskId, TaskRecord>) -> Vec<Vec<TaskId>> {
    let mut groups: Vec<(&TableId, Vec<TaskId>, Touched)> = Vec::new();
    for task in plan.tasks.iter().filter(|t| staged.contains_key(&t.id)) {
        let keys = task.scope.partitions();
        match groups.iter_mut().find(|(table, _, touched)| **table == task.table && !touched.overlap(&keys)) {
            Some((_, ids, touched)) => {
                ids.push(task.id);
                touched.add(&keys);
            }
            None => groups.push((&task.table, vec![task.id], Touched::of(&keys))),
        }
    }
    groups.into_iter().map(|(_, ids, _)| ids).collect()
}

/// Keys that a group touches. Keys that bind the same columns overlap only where they are equal, which is looked up.
#[derive(Default)]
struct Touched {
    keys: BTreeSet<PartitionKey>,
    shapes: BTreeSet<Vec<String>>,
}

impl Touched {
    fn of(keys: &[PartitionKey]) -> Self {
        let mut touched = Self::default();
        touched.add(keys);
        touched
    }

    fn add(&mut self, keys: &[PartitionKey]) {
        self.shapes.extend(keys.iter().map(shape));
        self.keys.extend(keys.iter().cloned());
    }

    fn overlap(&self, keys: &[PartitionKey]) -> bool {
        keys.iter().any(|key| match self.shapes.len() == 1 && self.shapes.contains(&shape(key)) {
            true => self.keys.contains(key),
            false => self.keys.iter().any(|other| other.overlaps(key)),
        })
    }
}

fn shape(key: &PartitionKey) -> Vec<String> {
    key.bound().map(|(column, _)| column.to_owned()).collect()
}

fn with_dependants(plan: &Plan, mut tasks: BTreeSet<TaskId>) -> BTreeSet<TaskId> {
    tasks.extend(dependents(plan, &tasks));
    tasks
}

fn attempt<'a>(
    plan: &'a Plan,
    task: &'a Task,
    known: &TaskRecord,
    origin: &'a Origin,
    beside: &'a Beside,
) -> Attempt<'a> {
    let began = known.result.as_ref().and_then(|result| result.started_at);
    let started_at = began.or(known.started_at).unwrap_or(known.queued_at);
    Attempt { plan, task, origin, claim: None, beside, queued_at: known.queued_at, started_at }
}

fn join(all: &mut Option<Base>, base: &Base) {
    match all {
        Some(all) => all.partitions.extend(base.partitions.clone()),
        None => *all = Some(base.clone()),
    }
}

fn change(from: BackfillState, to: BackfillState, by: &Actor) -> StateChange {
    StateChange { from, to, by: by.clone(), approval: None, note: None }
}
