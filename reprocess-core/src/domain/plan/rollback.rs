//! Planning a rollback: a run of its own that brings back what a backfill replaced, for just the chosen partitions.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::downstream::{self, Changed};
use super::facts::Facts;
use super::{Action, PLAN_FORMAT, Plan, Refused, Task, TaskId, propagate};
use crate::domain::estimate::Estimate;
use crate::domain::fingerprint::Fingerprint;
use crate::domain::ids::{
    Actor, BackfillId, JobName, LogicVersion, PartitionVersion, RunId, TableId, TableVersion,
};
use crate::domain::job::Catalog;
use crate::domain::partition::PartitionKey;
use crate::domain::request::{Mode, Request, Selection};
use crate::domain::scope::Scope;
use crate::domain::slice::{Base, Kept};
use crate::error::{Error, Result};

/// What a person asks for when a backfill is to be taken back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollbackRequest {
    /// Name of the rollback, itself a backfill in the ledger.
    pub id: BackfillId,
    /// The backfill whose commits are undone.
    pub of: BackfillId,
    /// Which partitions; `None` means all that the backfill wrote, said so by the caller.
    pub partitions: Option<BTreeSet<PartitionKey>>,
    /// Why.
    pub reason: String,
    /// Who asks.
    pub requester: Actor,
}

/// What the planner is told about one partition that the backfill wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenPartition {
    /// The job.
    pub job: JobName,
    /// The logic version that the backfill ran.
    pub logic: LogicVersion,
    /// The table.
    pub table: TableId,
    /// The unit.
    pub partition: PartitionKey,
    /// The last run of the backfill that wrote it.
    pub run: RunId,
    /// The first of its runs that did, where it ran again over what it had written itself; mostly the same.
    pub first: RunId,
    /// What the first run kept.
    pub kept: Option<Kept>,
    /// Version of the partition that the first run replaced; of a unit that shares its scope with others, of the scope.
    pub base: Option<PartitionVersion>,
    /// Version of the partition that it left.
    pub output: Option<PartitionVersion>,
    /// The run that is current now.
    pub current: RunId,
    /// Version of the partition now, of the scope's key.
    pub head: PartitionVersion,
    /// Version of the table now.
    pub table_head: TableVersion,
    /// What the partition was before: logic version and fingerprint of the run before, where there was one and its rows
    /// were still there.
    pub previous: Option<(Option<LogicVersion>, Option<Fingerprint>)>,
}

/// Plans a rollback with its downstream tasks. Of the facts it needs position, backfill, registered versions, outputs and
/// what exists.
///
/// A partition that a later run replaced, that moved since, or whose rows were not kept is refused; nothing newer is
/// ever overwritten. Merges of several intervals into the same rows are taken back one after the other, the newest
/// first, as far as nothing else came between them. `written` is in the order of the commits.
pub fn plan_rollback(
    request: &RollbackRequest,
    catalog: &Catalog,
    written: &[WrittenPartition],
    facts: &Facts,
    as_of: DateTime<Utc>,
) -> Result<Plan> {
    check(request, written)?;
    let chosen = |w: &&WrittenPartition| request.partitions.as_ref().is_none_or(|p| p.contains(&w.partition));
    let mut tasks: Vec<Task> = Vec::new();
    let mut refused = Vec::new();
    let scopes = written.iter().map(|w| Ok((w, scope_of(catalog, &w.job, &w.partition)?)));
    let scopes = scopes.collect::<Result<Vec<_>>>()?;
    let (own, shared): (Vec<_>, Vec<_>) =
        scopes.into_iter().partition(|(w, scope)| scope.partitions().contains(&w.partition));
    let mut newer = BTreeMap::<&TableId, Newer<'_>>::new();
    let merges = shared.into_iter().rev().map(|(w, scope)| (w, scope, true));
    for (w, scope, merges) in own.into_iter().map(|(w, scope)| (w, scope, false)).chain(merges) {
        let mut after = None;
        let refusal = if merges {
            let newer = newer.entry(&w.table).or_default();
            after = newer.task;
            newer.before(w, chosen(&w))
        } else {
            refusal(w, None)
        };
        match refusal {
            _ if !chosen(&w) => {}
            None => {
                let id = u32::try_from(tasks.len());
                let id = TaskId(id.map_err(|_| Error::invalid("the plan has too many tasks"))?);
                newer.entry(&w.table).and_modify(|newer| newer.task = Some(id));
                tasks.push(restore(id, catalog, w, scope, after)?);
            }
            Some(reason) => {
                refused.push(Refused { job: w.job.clone(), partition: Some(w.partition.clone()), reason });
            }
        }
    }
    let changed = Changed::of(&tasks);
    let reached = downstream::reach(catalog, &changed, &facts.existing)?;
    let jobs: BTreeMap<_, _> = tasks.iter().map(|t| (t.job.clone(), t.logic.clone())).collect();
    let owners = downstream::owners(catalog, jobs.keys(), &reached.jobs, &reached.exposures)?;
    let as_backfill = as_backfill(request, jobs, &tasks, &refused);
    let propagated = propagate::with_downstream(catalog, facts, &reached.partitions, tasks, as_of)?;
    Ok(Plan {
        format: PLAN_FORMAT,
        request: as_backfill,
        rolls_back: Some(request.of.clone()),
        generation: facts.backfill.map_or(1, |b| if b.open { b.generation } else { b.generation + 1 }),
        as_of,
        position: facts.position,
        estimate: Estimate::default(),
        tasks: propagated.tasks,
        skipped: Vec::new(),
        refused,
        downstream: reached.partitions,
        exposures: reached.exposures,
        owners,
        widened: Vec::new(),
        warnings: propagated.warnings,
    })
}

fn check(request: &RollbackRequest, written: &[WrittenPartition]) -> Result<()> {
    if request.reason.trim().is_empty() {
        return Err(Error::invalid("a rollback needs a reason").with_context("backfill", &request.of));
    }
    if written.is_empty() {
        return Err(Error::invalid("the backfill has written nothing that could be taken back")
            .with_context("backfill", &request.of));
    }
    for key in request.partitions.iter().flatten() {
        if !written.iter().any(|w| w.partition == *key) {
            return Err(Error::invalid("the backfill did not write this partition")
                .with_context("partition", key)
                .with_context("backfill", &request.of));
        }
    }
    Ok(())
}

/// The merges into a table that come back before an older one can.
#[derive(Default)]
struct Newer<'a> {
    last: Option<&'a WrittenPartition>,
    task: Option<TaskId>,
    /// Why none of the older ones can come back.
    stopped: Option<String>,
}

impl<'a> Newer<'a> {
    /// Why a merge cannot come back, and what that means for those before it.
    fn before(&mut self, w: &'a WrittenPartition, chosen: bool) -> Option<String> {
        let reason = match (&self.stopped, chosen) {
            (Some(stopped), _) => Some(stopped.clone()),
            (None, true) => refusal(w, self.last),
            (None, false) => Some(String::new()),
        };
        if reason.is_some() && self.stopped.is_none() {
            let what = if chosen { "cannot be taken back" } else { "is not to be taken back" };
            self.stopped = Some(format!(
                "run `{}` has merged {} into the same rows since, and {what}",
                w.run, w.partition
            ));
        }
        self.last = Some(w);
        reason
    }
}

/// Why a partition cannot come back once what was merged after it has.
fn refusal(w: &WrittenPartition, newer: Option<&WrittenPartition>) -> Option<String> {
    match newer {
        None if w.current != w.run => {
            return Some(format!(
                "run `{}` has replaced it since; taking back `{}` would overwrite that",
                w.current, w.run
            ));
        }
        None if w.output.as_ref() != Some(&w.head) => {
            return Some(format!("it was changed outside of any run since `{}`", w.run));
        }
        Some(newer) if w.output.is_none() || w.output != newer.base => {
            return Some(format!(
                "it was changed after `{}` and before {} was merged",
                w.run, newer.partition
            ));
        }
        _ => {}
    }
    w.kept.is_none().then(|| "the rows it replaced were not kept".to_owned())
}

fn restore(
    id: TaskId,
    catalog: &Catalog,
    w: &WrittenPartition,
    scope: Scope,
    after: Option<TaskId>,
) -> Result<Task> {
    let partitions = scope.partitions().into_iter().map(|key| (key, w.head.clone())).collect();
    let (logic, fingerprint) = w.previous.clone().unwrap_or_default();
    let kept = w.kept.clone().ok_or_else(|| Error::internal("a restore of what was not kept"))?;
    Ok(Task {
        id,
        job: w.job.clone(),
        logic: w.logic.clone(),
        table: w.table.clone(),
        interval: catalog.unit(catalog.job(&w.job)?)?.interval(&w.partition),
        units: vec![w.partition.clone()],
        scope,
        action: Action::Restore { undo: w.first.clone(), kept, logic, fingerprint },
        base: Base::new(w.table_head.clone(), partitions),
        parameters: BTreeMap::new(),
        after: after.into_iter().collect(),
    })
}

fn as_backfill(
    request: &RollbackRequest,
    jobs: BTreeMap<JobName, LogicVersion>,
    tasks: &[Task],
    refused: &[Refused],
) -> Request {
    let partitions =
        tasks.iter().flat_map(|t| t.units.clone()).chain(refused.iter().filter_map(|r| r.partition.clone()));
    let mut as_backfill = Request::new(
        request.id.clone(),
        Selection::Keys(partitions.collect()),
        &request.reason,
        request.requester.clone(),
    )
    .with_mode(Mode::Direct);
    as_backfill.jobs = jobs;
    as_backfill
}

/// The scope that a written partition's head has to be asked for.
pub fn scope_of(catalog: &Catalog, job: &JobName, partition: &PartitionKey) -> Result<Scope> {
    catalog.scope(catalog.job(job)?, std::slice::from_ref(partition))
}
