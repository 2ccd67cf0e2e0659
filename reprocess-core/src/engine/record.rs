//! What the ledger is told of a task.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};

use crate::domain::fingerprint::Fingerprint;
use crate::domain::ids::{BackfillId, JobName, LogicVersion, RunId, TableId, WorkerId};
use crate::domain::job::WriteMode;
use crate::domain::partition::PartitionKey;
use crate::domain::plan::downstream::{self, Changed, Planned};
use crate::domain::plan::facts::Existing;
use crate::domain::plan::{Action, Plan, SkipReason, Task};
use crate::domain::profile::Profile;
use crate::domain::request::Inputs;
use crate::domain::scope::Scope;
use crate::engine::Engine;
use crate::engine::lease::retried;
use crate::error::Result;
use crate::ports::delivery::Delivery;
use crate::ports::ledger::{Approval, Claim, RunRecord, RunStatus, TaskFinish, TaskResult, Trigger};
use crate::ports::notify::{EVENTS, Event};
use crate::ports::writer::{Op, StampId};

/// Where a task comes from.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) run: RunId,
    pub(super) trigger: Trigger,
    /// The backfill that rows are recorded under; of a rollback, the one that it takes back.
    pub(super) backfill: Option<BackfillId>,
    pub(super) approval: Option<Approval>,
    pub(super) worker: WorkerId,
}

/// What there is beside a task, gathered once for all tasks of a plan: it decides which downstream partitions become
/// stale.
#[derive(Debug, Default)]
pub(super) struct Beside {
    existing: Existing,
    planned: Arc<Planned>,
}

/// One attempt at a task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt<'a> {
    pub(super) plan: &'a Plan,
    pub(super) task: &'a Task,
    pub(super) origin: &'a Origin,
    pub(super) claim: Option<&'a Claim>,
    pub(super) beside: &'a Beside,
    pub(super) queued_at: DateTime<Utc>,
    pub(super) started_at: DateTime<Utc>,
}

impl Attempt<'_> {
    pub(super) fn number(&self) -> u32 {
        self.claim.map_or(1, |claim| claim.attempt)
    }

    /// Who holds the lease: the worker with this very task, since one worker may run several over the same partitions.
    /// The same worker comes back to it at once after a restart.
    pub(super) fn holder(&self) -> WorkerId {
        let (worker, run) = (&self.origin.worker, &self.origin.run);
        WorkerId::new(format!("{worker}/{run}/{}", self.task.id))
    }

    /// Position of the ledger at which the plan's inputs were pinned. What comes back, and what reads inputs that an
    /// earlier run recorded, has seen nothing new.
    pub(super) fn pinned_by_plan(&self) -> u64 {
        let replays = self.replays().is_some();
        let restores = matches!(self.task.action, Action::Restore { .. });
        if replays || restores { 0 } else { self.plan.position }
    }

    /// The run whose recorded inputs it reads.
    fn replays(&self) -> Option<&RunId> {
        match &self.plan.request.inputs {
            Inputs::Recorded { by } if !self.task.is_downstream() => Some(by),
            _ => None,
        }
    }

    /// A result of which only the plan's part is known.
    pub(super) fn empty_result(&self) -> TaskResult {
        TaskResult::new(self.task.base.clone(), self.pinned_by_plan())
    }
}

impl Engine {
    /// What there is beside the tasks of a plan.
    pub(super) async fn beside(&self, plan: &Plan) -> Result<Beside> {
        let planned = Arc::new(downstream::planned(&plan.tasks));
        Ok(Beside { existing: self.existing().await?, planned })
    }

    /// Tells the ledger what a plan found unchanged, so that it does not stay stale for want of a row.
    pub(super) async fn note_unchanged(&self, plan: &Plan, run: &RunId) -> Result<()> {
        if !matches!(plan.request.inputs, Inputs::Current) {
            return Ok(());
        }
        let mut by_table = BTreeMap::<_, Vec<_>>::new();
        for skipped in plan.skipped.iter().filter(|s| matches!(s.reason, SkipReason::Unchanged { .. })) {
            let table = &self.host.catalog().job(&skipped.job)?.output;
            by_table.entry(table).or_default().push(skipped.partition.clone());
        }
        for (table, units) in by_table {
            retried(self, || self.ledger.found_unchanged(table, &units, run, plan.position)).await?;
        }
        Ok(())
    }

    /// The stamp of a task's work.
    pub(super) fn stamp(&self, at: &Attempt<'_>) -> Result<StampId> {
        let job = self.host.catalog().job(&at.task.job)?;
        let op = match (&at.task.action, &job.write) {
            (Action::Restore { .. }, _) => Op::Restore,
            (_, WriteMode::Merge(_)) => Op::Merge,
            _ => Op::Replace,
        };
        // Merges of several intervals share the scope of the whole table, so the units tell them apart; one rollback may
        // take back several runs of one unit.
        let merges = matches!(job.write, WriteMode::Merge(_));
        let digest = match (Scope::keys(at.task.units.iter().cloned()), &at.task.action) {
            (Ok(units), Action::Restore { undo, .. }) if merges => format!("{}.{undo}", units.digest()),
            (Ok(units), _) if merges => units.digest(),
            _ => at.task.scope.digest(),
        };
        Ok(StampId {
            run: at.origin.run.clone(),
            job: at.task.job.clone(),
            op,
            scope_digest: digest,
            generation: at.plan.generation,
        })
    }

    /// The rows of a task that ended, without what only a commit knows.
    pub(super) fn records(
        &self,
        at: &Attempt<'_>,
        result: Option<&TaskResult>,
        status: RunStatus,
        error: Option<&str>,
    ) -> Result<Vec<RunRecord>> {
        let stamp = self.stamp(at)?;
        let (logic, fingerprint) = labels(at.task, result);
        let record = |unit: &PartitionKey| RunRecord {
            run: at.origin.run.clone(),
            job: at.task.job.clone(),
            table: at.task.table.clone(),
            partition: unit.clone(),
            scope: at.task.scope.clone(),
            stamp: stamp.clone(),
            attempt: at.number(),
            status,
            error: error.map(str::to_owned),
            trigger: at.origin.trigger,
            backfill: at.origin.backfill.clone(),
            reason: at.plan.request.reason.clone(),
            requester: at.plan.request.requester.clone(),
            approval: at.origin.approval.clone(),
            logic: logic.clone(),
            build: self.host.build().clone(),
            parameters: at.task.parameters.clone(),
            fingerprint: fingerprint.clone(),
            inputs: result.map(|r| r.inputs.clone()).unwrap_or_default(),
            replays: at.replays().cloned(),
            base: None,
            output: None,
            output_partition: None,
            before: result.and_then(|r| profile_of(&r.before, unit)),
            after: result.and_then(|r| profile_of(&r.after, unit)),
            read_bytes: result.and_then(|r| r.read_bytes),
            order: 0,
            verdict: result.and_then(|r| r.verdict.clone()),
            kept: None,
            queued_at: at.queued_at,
            started_at: at.started_at,
            finished_at: self.clock.now(),
            worker: at.origin.worker.clone(),
        };
        let base = result.map_or(&at.task.base, |r| &r.base);
        let on_base = |mut record: RunRecord| {
            record.base = record.version_in(base).cloned();
            record
        };
        Ok(at.task.units.iter().map(record).map(on_base).collect())
    }

    /// What the ledger is told with a commit.
    pub(super) fn finish(&self, at: &Attempt<'_>, result: &TaskResult) -> Result<TaskFinish> {
        let task = at.claim.map(|claim| (claim.backfill.clone(), claim.generation, claim.task));
        let records = self.records(at, Some(result), RunStatus::Committed, None)?;
        Ok(TaskFinish {
            announce: self.events(&records)?,
            records,
            task,
            deliver: at.plan.request.deliver,
            stale: self.stale_after(at, &result.before, &result.after)?,
            pinned_at: result.pinned_at,
            reads: self.reads(at, result)?,
        })
    }

    /// What schedulers are told of a commit, where somebody listens.
    fn events(&self, records: &[RunRecord]) -> Result<Vec<Delivery>> {
        if self.host.sink(EVENTS).is_none() {
            return Ok(Vec::new());
        }
        let catalog = self.host.catalog();
        let event = |record: &RunRecord| {
            let unit = catalog.unit(catalog.job(&record.job)?)?;
            Event::delivery(record, unit.interval(&record.partition))
        };
        records.iter().map(event).collect()
    }

    /// The partitions of managed tables in the slices that a task has read. A replay read what was there for another run,
    /// which the position of its plan says nothing about.
    fn reads(&self, at: &Attempt<'_>, result: &TaskResult) -> Result<Vec<(TableId, Vec<PartitionKey>)>> {
        let mut reads = BTreeMap::<_, BTreeSet<_>>::new();
        if at.replays().is_some() {
            return Ok(Vec::new());
        }
        let catalog = self.host.catalog();
        for pin in result.inputs.values() {
            let of_table = &catalog.table(&pin.table)?.partitioning;
            let writers: Vec<_> = catalog.jobs().filter(|job| job.output == pin.table).collect();
            // Rows of a job with units of its own do not tell which partitions it changed.
            let other_unit = writers.iter().any(|job| job.unit.as_ref().is_some_and(|unit| unit != of_table));
            let keys = match other_unit {
                true => BTreeSet::from([PartitionKey::whole()]),
                false => pin.slice.keys(of_table),
            };
            if !writers.is_empty() {
                reads.entry(pin.table.clone()).or_default().extend(keys);
            }
        }
        Ok(reads.into_iter().map(|(table, keys)| (table, keys.into_iter().collect())).collect())
    }

    /// Downstream partitions that read what this task changes. What the same plan computes is among them until its task
    /// has succeeded, and what it reaches in turn is left to that task.
    pub(super) fn stale_after(
        &self,
        at: &Attempt<'_>,
        before: &[Profile],
        after: &[Profile],
    ) -> Result<Vec<(JobName, TableId, PartitionKey)>> {
        let mut changed = Changed::beside(Arc::clone(&at.beside.planned));
        let content = |profiles: &[Profile], key: &PartitionKey| profile_of(profiles, key).map(|p| p.content);
        let differs = |key: &PartitionKey| {
            let (before, after) = (content(before, key), content(after, key));
            before.is_none() || before != after
        };
        changed.add(&at.task.table, at.task.scope.partitions().into_iter().filter(differs));
        let reached = downstream::reach(self.host.catalog(), &changed, &at.beside.existing)?;
        let mut stale: Vec<_> =
            reached.partitions.into_iter().map(|d| (d.job, d.table, d.partition)).collect();
        let own = |job: &JobName, unit: &PartitionKey| *job == at.task.job && at.task.units.contains(unit);
        stale.extend(reached.planned.into_iter().filter(|(job, _, unit)| !own(job, unit)));
        Ok(stale)
    }
}

fn labels(task: &Task, result: Option<&TaskResult>) -> (Option<LogicVersion>, Option<Fingerprint>) {
    match &task.action {
        Action::Compute { fingerprint, .. } => {
            let known = result.map_or_else(|| fingerprint.clone(), |r| r.fingerprint.clone());
            (Some(task.logic.clone()), known)
        }
        Action::Propagate { .. } | Action::Trigger => {
            (Some(task.logic.clone()), result.and_then(|r| r.fingerprint.clone()))
        }
        Action::Restore { logic, fingerprint, .. } => (logic.clone(), fingerprint.clone()),
    }
}

/// The profile of a unit: its own, or the only one where the scope is the whole table.
pub(super) fn profile_of(profiles: &[Profile], unit: &PartitionKey) -> Option<Profile> {
    match profiles {
        [only] => Some(only.clone()),
        many => many.iter().find(|p| p.partition == *unit).cloned(),
    }
}
