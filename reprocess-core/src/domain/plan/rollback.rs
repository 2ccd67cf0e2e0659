//! Planning a rollback: a run of its own that brings back what a backfill replaced, for just the chosen partitions.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::downstream::{self, Changed};
use super::facts::{Existing, KnownBackfill};
use super::{Action, PLAN_FORMAT, Plan, Refused, Task, TaskId};
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

/// Plans a rollback with its downstream partitions.
///
/// A partition that a later run replaced, that moved since, or whose rows were not kept is refused; nothing newer is
/// ever overwritten.
pub fn plan_rollback(
    request: &RollbackRequest,
    catalog: &Catalog,
    written: &[WrittenPartition],
    existing: &Existing,
    known: Option<KnownBackfill>,
    position: u64,
    as_of: DateTime<Utc>,
) -> Result<Plan> {
    check(request, written)?;
    let chosen = |w: &&WrittenPartition| request.partitions.as_ref().is_none_or(|p| p.contains(&w.partition));
    let mut tasks: Vec<Task> = Vec::new();
    let mut refused = Vec::new();
    for w in written.iter().filter(chosen) {
        let id =
            TaskId(u32::try_from(tasks.len()).map_err(|_| Error::invalid("the plan has too many tasks"))?);
        match task(id, catalog, w)? {
            Ok(task) => tasks.push(task),
            Err(reason) => {
                refused.push(Refused { job: w.job.clone(), partition: Some(w.partition.clone()), reason });
            }
        }
    }
    let changed = Changed::of(&tasks);
    let reached = downstream::reach(catalog, &changed, existing)?;
    let jobs: BTreeMap<_, _> = tasks.iter().map(|t| (t.job.clone(), t.logic.clone())).collect();
    let owners = downstream::owners(catalog, jobs.keys(), &reached.jobs, &reached.exposures)?;
    Ok(Plan {
        format: PLAN_FORMAT,
        request: as_backfill(request, jobs, &tasks, &refused),
        rolls_back: Some(request.of.clone()),
        generation: known.map_or(1, |b| if b.open { b.generation } else { b.generation + 1 }),
        as_of,
        position,
        estimate: Estimate::default(),
        tasks,
        skipped: Vec::new(),
        refused,
        downstream: reached.partitions,
        exposures: reached.exposures,
        owners,
        widened: Vec::new(),
        warnings: Vec::new(),
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

fn task(id: TaskId, catalog: &Catalog, w: &WrittenPartition) -> Result<Result<Task, String>> {
    if w.current != w.run {
        return Ok(Err(format!(
            "run `{}` has replaced it since; taking back `{}` would overwrite that",
            w.current, w.run
        )));
    }
    if w.output.as_ref() != Some(&w.head) {
        return Ok(Err(format!("it was changed outside of any run since `{}`", w.run)));
    }
    let Some(kept) = &w.kept else {
        return Ok(Err("the rows it replaced were not kept".to_owned()));
    };
    let job = catalog.job(&w.job)?;
    let units = vec![w.partition.clone()];
    let scope = catalog.scope(job, &units)?;
    let partitions = scope.partitions().into_iter().map(|key| (key, w.head.clone())).collect();
    let (logic, fingerprint) = w.previous.clone().unwrap_or_default();
    Ok(Ok(Task {
        id,
        job: w.job.clone(),
        logic: w.logic.clone(),
        table: w.table.clone(),
        interval: catalog.unit(job)?.interval(&w.partition),
        units,
        scope,
        action: Action::Restore { undo: w.first.clone(), kept: kept.clone(), logic, fingerprint },
        base: Base::new(w.table_head.clone(), partitions),
        parameters: BTreeMap::new(),
        after: Vec::new(),
    }))
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
