//! The downstream tasks of a plan.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use super::facts::Facts;
use super::make::live_from;
use super::{Action, Downstream, FollowedInput, Task, TaskId};
use crate::domain::ids::{JobName, LogicVersion, TableId, TableVersion};
use crate::domain::job::{Catalog, JobSpec, WriteMode};
use crate::domain::lineage;
use crate::domain::partition::PartitionKey;
use crate::domain::slice::Base;
use crate::error::{Error, Result};

/// Logic version under which tasks of jobs stand that run outside of this library.
pub(crate) const EXTERNAL: &str = "external";

/// What is done about what a correction reaches.
#[derive(Debug)]
pub(super) struct Propagated {
    /// All tasks of the plan: each downstream task stands as early as what it comes after allows, since workers take tasks in
    /// their order.
    pub(super) tasks: Vec<Task>,
    /// What is left as it is, and why.
    pub(super) warnings: Vec<String>,
}

/// Adds tasks for what is reached from `before`, which is given in dependency order: each unit once, whatever number of
/// partitions it is reached by.
pub(super) fn with_downstream(
    catalog: &Catalog,
    facts: &Facts,
    reached: &[Downstream],
    before: Vec<Task>,
    as_of: DateTime<Utc>,
) -> Result<Propagated> {
    let mut writers = Writers::default();
    for task in &before {
        task.scope.partitions().into_iter().for_each(|key| writers.add(&task.table, key, task.id));
    }
    let mut propagated = Propagated { tasks: before, warnings: Vec::new() };
    for of_job in reached.chunk_by(|a, b| a.job == b.job) {
        let job = catalog.job(&of_job[0].job)?;
        let logic = match how(facts, job) {
            Ok(logic) => logic,
            Err(why) => {
                propagated
                    .warnings
                    .push(format!("left as they are: partitions of {}, since {why}", job.name));
                continue;
            }
        };
        let live = live_from(catalog, job, as_of)?;
        let (mut in_live_window, mut last) = (0_usize, None);
        for (unit, causes) in units(catalog, facts, job, of_job)? {
            let interval = catalog.unit(job)?.interval(&unit);
            if live.zip(interval).is_some_and(|(live, interval)| interval.start() >= live) {
                in_live_window += 1;
                continue;
            }
            // What is outside has no record by which a period could be known to have been computed.
            if job.external && interval.is_some_and(|interval| interval.end() > as_of) {
                continue;
            }
            let mut after = writers.of(causes);
            after.extend(last.filter(|_| job.depends_on_order()));
            if after.is_empty() {
                continue;
            }
            let number = u32::try_from(propagated.tasks.len());
            let id = TaskId(number.map_err(|_| Error::invalid("the plan has too many tasks"))?);
            writers.add(&job.output, unit.clone(), id);
            last = Some(id);
            propagated.tasks.push(task(catalog, facts, job, &logic, unit, id, after)?);
        }
        if in_live_window > 0 {
            propagated.warnings.push(format!(
                "{}: partitions in the live window are left to the schedule: {in_live_window}",
                job.name
            ));
        }
    }
    propagated.tasks = early(propagated.tasks);
    Ok(propagated)
}

/// The tasks in an order in which each downstream one comes right after the last that it waits for, under new numbers.
fn early(tasks: Vec<Task>) -> Vec<Task> {
    let mut waiting: BTreeMap<TaskId, (usize, Task)> = BTreeMap::new();
    let mut followers: BTreeMap<TaskId, Vec<TaskId>> = BTreeMap::new();
    let mut next = Vec::with_capacity(tasks.len());
    for task in tasks {
        if task.is_downstream() {
            task.after.iter().for_each(|id| followers.entry(*id).or_default().push(task.id));
            waiting.insert(task.id, (task.after.len(), task));
        } else {
            next.push(task);
        }
    }
    let mut placed = Vec::with_capacity(next.len() + waiting.len());
    next.reverse();
    while let Some(task) = next.pop() {
        let mut ready = Vec::new();
        for id in followers.remove(&task.id).into_iter().flatten() {
            if let Entry::Occupied(mut follower) = waiting.entry(id) {
                follower.get_mut().0 -= 1;
                if follower.get().0 == 0 {
                    ready.push(follower.remove().1);
                }
            }
        }
        next.extend(ready.into_iter().rev());
        placed.push(task);
    }
    let numbers: BTreeMap<TaskId, TaskId> =
        placed.iter().map(|task| task.id).zip((0..).map(TaskId)).collect();
    let renumber = |ids: &mut Vec<TaskId>| {
        ids.iter_mut().for_each(|id| *id = numbers.get(id).copied().unwrap_or(*id));
        ids.sort();
    };
    for task in &mut placed {
        task.id = numbers.get(&task.id).copied().unwrap_or(task.id);
        renumber(&mut task.after);
        if let Action::Compute { inputs, .. } = &mut task.action {
            inputs.values_mut().for_each(|input| renumber(&mut input.produced_by));
        }
    }
    placed
}

/// Which tasks change a partition.
#[derive(Default)]
struct Writers(BTreeMap<(TableId, PartitionKey), Vec<TaskId>>);

impl Writers {
    fn add(&mut self, table: &TableId, key: PartitionKey, task: TaskId) {
        self.0.entry((table.clone(), key)).or_default().push(task);
    }

    fn of(&self, causes: &[(TableId, PartitionKey)]) -> BTreeSet<TaskId> {
        causes.iter().filter_map(|cause| self.0.get(cause)).flatten().copied().collect()
    }
}

/// The logic version that a job is run with, or why it is not.
fn how(facts: &Facts, job: &JobSpec) -> Result<LogicVersion, &'static str> {
    if job.external {
        return Ok(LogicVersion::from(EXTERNAL));
    }
    if job.write == WriteMode::Append {
        return Err("it appends, so that running it again would double its rows");
    }
    let current = facts.registered.get(&job.name).and_then(|registered| registered.current.clone());
    current.ok_or("no logic version of it is registered")
}

type Causes<'a> = &'a [(TableId, PartitionKey)];

/// The units of a job with their causes, oldest first. Rows without a declared order mean that every later interval is
/// merged again too.
fn units<'a>(
    catalog: &Catalog,
    facts: &Facts,
    job: &JobSpec,
    reached: &'a [Downstream],
) -> Result<Vec<(PartitionKey, Causes<'a>)>> {
    let mut units: BTreeMap<_, Causes<'a>> =
        reached.iter().map(|d| (d.partition.clone(), d.causes.as_slice())).collect();
    let unit = catalog.unit(job)?;
    if job.depends_on_order() {
        let start = |key: &PartitionKey| unit.interval(key).map(|interval| interval.start());
        let first = units.keys().filter_map(start).min();
        let existing = facts.existing.get(&job.output).into_iter().flatten();
        for later in existing.filter(|key| first.is_some() && start(key) > first) {
            units.entry(later.clone()).or_default();
        }
    }
    let mut units: Vec<_> = units.into_iter().collect();
    units.sort_by_cached_key(|(key, _)| (unit.interval(key), key.clone()));
    Ok(units)
}

fn task(
    catalog: &Catalog,
    facts: &Facts,
    job: &JobSpec,
    logic: &LogicVersion,
    unit: PartitionKey,
    id: TaskId,
    after: BTreeSet<TaskId>,
) -> Result<Task> {
    let units = vec![unit];
    let mut inputs = BTreeMap::new();
    for input in &job.inputs {
        if let Some(slice) = lineage::slice(catalog, job, input, &units)? {
            inputs.insert(input.name.clone(), FollowedInput { table: input.table.clone(), slice });
        }
    }
    // What it replaces is seen when it runs; the version says from where on a commit of it is looked for.
    let version = match job.external {
        true => TableVersion::new(EXTERNAL),
        false => facts.outputs.get(&job.output).cloned().ok_or_else(|| missing(&job.name))?,
    };
    Ok(Task {
        id,
        job: job.name.clone(),
        logic: logic.clone(),
        table: job.output.clone(),
        interval: catalog.unit(job)?.interval(&units[0]),
        scope: catalog.scope(job, &units)?,
        units,
        action: if job.external { Action::Trigger } else { Action::Propagate { inputs } },
        base: Base::new(version, BTreeMap::new()),
        parameters: job.parameters.clone(),
        after: after.into_iter().collect(),
    })
}

fn missing(job: &JobName) -> Error {
    Error::internal("a fact is missing: no version of a downstream output").with_context("job", job)
}
