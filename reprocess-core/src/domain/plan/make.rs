//! Second step of planning: from facts to the plan.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Duration, Utc};

use super::downstream::{self, Changed};
use super::expand::Workload;
use super::facts::{Existing, Facts};
use super::propagate;
use super::refuse;
use super::{Action, PLAN_FORMAT, Plan, PlannedInput, Refused, SkipReason, Skipped, Task, TaskId};
use crate::domain::fingerprint::{Definition, Fingerprint, Work};
use crate::domain::ids::{JobName, LogicVersion, PartitionVersion, TableId};
use crate::domain::interval::Interval;
use crate::domain::job::{Catalog, JobSpec};
use crate::domain::lineage;
use crate::domain::partition::PartitionKey;
use crate::domain::request::{Inputs, Order, Request};
use crate::domain::scope::Scope;
use crate::domain::slice::{Base, Pin, Slice};
use crate::error::{Error, Result};

/// Makes the plan. The same arguments give the same bytes.
///
/// Every partition of the selection appears once: in a task, as skipped or as refused.
///
/// # Errors
/// As [`expand`](super::expand); also `Internal` where `facts` lack something that `expand` asked for.
pub fn plan(request: &Request, catalog: &Catalog, facts: &Facts, as_of: DateTime<Utc>) -> Result<Plan> {
    let work = Workload::of(request, catalog, &facts.existing)?;
    make(work, request, catalog, facts, as_of, Purpose::Backfill)
}

/// Makes the plan of a single run of the schedule: its partitions are the live window, so that is not left out, and
/// later intervals of a merge without order are not its business.
pub fn plan_run(request: &Request, catalog: &Catalog, facts: &Facts, as_of: DateTime<Utc>) -> Result<Plan> {
    let work = Workload::of(request, catalog, &Existing::new())?;
    make(work, request, catalog, facts, as_of, Purpose::Run)
}

/// What a plan is made for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Backfill,
    Run,
}

fn make(
    work: Workload<'_>,
    request: &Request,
    catalog: &Catalog,
    facts: &Facts,
    as_of: DateTime<Utc>,
    purpose: Purpose,
) -> Result<Plan> {
    let mut planner = Planner {
        request,
        catalog,
        facts,
        as_of,
        purpose,
        out: Parts::default(),
        producers: BTreeMap::new(),
    };
    for job in &work.jobs {
        let logic = &request.jobs[&job.name];
        let refusals = refuse::job(request, catalog, facts, job, logic)?;
        if refusals.is_empty() {
            planner.job(job, logic, &work.groups[&job.name])?;
        } else {
            let refused = |reason| Refused { job: job.name.clone(), partition: None, reason };
            planner.out.refused.extend(refusals.into_iter().map(refused));
        }
    }
    let parts = refuse::unreadable(request, facts, planner.out, as_of);
    let changed = Changed::of(&parts.tasks);
    let reached = downstream::reach(catalog, &changed, &facts.existing)?;
    let mut warnings = warnings(request, catalog, &parts.tasks, as_of)?;
    let downstream = if request.propagate { reached.partitions } else { Vec::new() };
    let estimate = super::cost::of(request, facts, &parts.tasks, &downstream);
    let propagated = propagate::with_downstream(catalog, facts, &downstream, parts.tasks, as_of)?;
    warnings.extend(propagated.warnings);
    if !request.propagate && !reached.jobs.is_empty() {
        let jobs: Vec<_> = reached.jobs.iter().map(JobName::as_str).collect();
        warnings.push(format!("left as they are, though they read what changes: {}", jobs.join(", ")));
    }
    let mut widened = work.widened;
    widened.sort();
    widened.dedup();
    let owners = downstream::owners(catalog, request.jobs.keys(), &reached.jobs, &reached.exposures)?;
    Ok(Plan {
        format: PLAN_FORMAT,
        request: request.clone(),
        rolls_back: None,
        generation: facts.backfill.map_or(1, |b| if b.open { b.generation } else { b.generation + 1 }),
        as_of,
        position: facts.position,
        tasks: propagated.tasks,
        skipped: parts.skipped,
        refused: parts.refused,
        downstream,
        exposures: reached.exposures,
        owners,
        widened,
        warnings,
        estimate,
    })
}

fn warnings(
    request: &Request,
    catalog: &Catalog,
    tasks: &[Task],
    as_of: DateTime<Utc>,
) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    let open = tasks.iter().filter(|t| t.interval.is_some_and(|i| i.end() > as_of)).count();
    if open > 0 {
        warnings
            .push(format!("{open} tasks cover time that is not over yet; what arrives later is not in it"));
    }
    if !request.keep_replaced {
        warnings.push("replaced rows are not kept, so this backfill cannot be rolled back".to_owned());
    }
    if request.deliver {
        warnings.push("deliveries are released: customers will see them".to_owned());
    }
    if request.when_moved == crate::domain::request::WhenMoved::Overwrite {
        warnings.push("partitions that move after planning are overwritten".to_owned());
    }
    for name in request.jobs.keys() {
        if catalog.job(name)?.reads_itself() && request.order == Order::Any {
            warnings.push(format!("{name} reads its own earlier partition, so its tasks run oldest first"));
        }
    }
    Ok(warnings)
}

/// What becomes of the partitions of a selection.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) tasks: Vec<Task>,
    pub(super) skipped: Vec<Skipped>,
    pub(super) refused: Vec<Refused>,
}

struct Planner<'a> {
    request: &'a Request,
    catalog: &'a Catalog,
    facts: &'a Facts,
    as_of: DateTime<Utc>,
    purpose: Purpose,
    out: Parts,
    /// Tasks by the table they write and the time of their units, to find who produces a slice.
    producers: BTreeMap<TableId, Producers>,
}

/// Tasks that write one table, by the start of their time; those without a time come first.
#[derive(Default)]
struct Producers {
    by_start: BTreeMap<Option<DateTime<Utc>>, Vec<Producer>>,
    longest: Duration,
}

type Producer = (Option<Interval>, TaskId);

impl Producers {
    fn add(&mut self, interval: Option<Interval>, id: TaskId) {
        if let Some(i) = interval {
            self.longest = self.longest.max(i.end() - i.start());
        }
        self.by_start.entry(interval.map(|i| i.start())).or_default().push((interval, id));
    }

    fn overlapping(&self, wanted: &Interval) -> impl Iterator<Item = TaskId> {
        let timeless = self.by_start.get(&None).into_iter().flatten();
        let from = wanted.start().checked_sub_signed(self.longest);
        let in_time = self.by_start.range(from..Some(wanted.end())).flat_map(|(_, tasks)| tasks);
        let wanted = *wanted;
        let overlaps = move |i: &Option<Interval>| i.is_none_or(|i| i.overlaps(&wanted));
        timeless.chain(in_time).filter(move |(i, _)| overlaps(i)).map(|(_, id)| *id)
    }
}

/// What one task over a group of units reads.
struct Reads {
    inputs: BTreeMap<String, PlannedInput>,
    fingerprint: Option<Fingerprint>,
}

impl Planner<'_> {
    fn job(&mut self, job: &JobSpec, logic: &LogicVersion, groups: &[Vec<PartitionKey>]) -> Result<()> {
        // A run of the schedule is about its own partitions.
        let live = match self.purpose {
            Purpose::Backfill => live_from(self.catalog, job, self.as_of)?,
            Purpose::Run => None,
        };
        let mut before: Option<TaskId> = None;
        let ordered = self.request.order == Order::OldestFirst || job.depends_on_order();
        for group in groups {
            // Rows without a declared order: what comes after an interval that is merged again has to follow it.
            let follows = before.is_some() && job.depends_on_order();
            let units = self.leave_out(job, group, live.filter(|_| !follows))?;
            if units.is_empty() {
                continue;
            }
            let reads = match self.reads(job, logic, &units)? {
                Ok(reads) => reads,
                Err(reason) => {
                    let refused = |unit| Refused {
                        job: job.name.clone(),
                        partition: Some(unit),
                        reason: reason.clone(),
                    };
                    self.out.refused.extend(units.into_iter().map(refused));
                    continue;
                }
            };
            let unchanged = self.unchanged(job, &units, reads.fingerprint.as_ref())?;
            if let Some(since) = unchanged.filter(|_| !follows) {
                let skipped = |partition| Skipped {
                    job: job.name.clone(),
                    partition,
                    reason: SkipReason::Unchanged { since: since.clone() },
                };
                self.out.skipped.extend(units.into_iter().map(skipped));
                continue;
            }
            before = Some(self.task(job, logic, units, reads, before.filter(|_| ordered))?);
        }
        Ok(())
    }

    /// The units of a group without those in the live window and those that were rolled back.
    fn leave_out(
        &mut self,
        job: &JobSpec,
        group: &[PartitionKey],
        live: Option<DateTime<Utc>>,
    ) -> Result<Vec<PartitionKey>> {
        let unit = self.catalog.unit(job)?;
        let current = self.facts.current.get(&job.name);
        let mut units = Vec::new();
        for key in group {
            let in_live_window =
                live.zip(unit.interval(key)).is_some_and(|(live, interval)| interval.start() >= live);
            let rolled_back = current
                .and_then(|current| current.get(key))
                .filter(|run| run.rolled_back.as_ref() == Some(&self.request.id) && !self.request.force);
            let reason = match (in_live_window, rolled_back) {
                (true, _) => SkipReason::LiveWindow,
                (_, Some(run)) => SkipReason::RolledBack { by: run.run.clone() },
                _ => {
                    units.push(key.clone());
                    continue;
                }
            };
            self.out.skipped.push(Skipped { job: job.name.clone(), partition: key.clone(), reason });
        }
        Ok(units)
    }

    /// What the task reads, or why it cannot.
    fn reads(
        &self,
        job: &JobSpec,
        logic: &LogicVersion,
        units: &[PartitionKey],
    ) -> Result<Result<Reads, String>> {
        let recorded = match &self.request.inputs {
            Inputs::Current => None,
            Inputs::Recorded { by } => match refuse::recorded(self.facts, job, units, by) {
                Ok(pins) => Some(pins),
                Err(reason) => return Ok(Err(reason)),
            },
        };
        let mut inputs = BTreeMap::new();
        for input in &job.inputs {
            let planned = match &recorded {
                Some(pins) => match pins.get(&input.name) {
                    Some(pin) => PlannedInput { pin: Box::new(pin.clone()), produced_by: Vec::new() },
                    None => continue,
                },
                None => match lineage::slice(self.catalog, job, input, units)? {
                    Some(slice) => PlannedInput {
                        produced_by: self.produced_by(&input.table, &slice)?,
                        pin: Box::new(self.pin(&input.table, slice)?),
                    },
                    None => continue,
                },
            };
            inputs.insert(input.name.clone(), planned);
        }
        let known = inputs.values().all(|input| input.produced_by.is_empty());
        let fingerprint = match known {
            true => {
                let settled = units.first().and_then(|u| self.facts.settled.get(&job.name)?.get(u));
                let version = |(name, input): (&String, &PlannedInput)| {
                    let known = settled.and_then(|versions| versions.get(name));
                    (name.clone(), known.unwrap_or(&input.pin.content).clone())
                };
                let versions = inputs.iter().map(version).collect();
                Some(self.fingerprint(job, logic, units, &versions)?)
            }
            false => None,
        };
        Ok(Ok(Reads { inputs, fingerprint }))
    }

    fn pin(&self, table: &TableId, slice: Slice) -> Result<Pin> {
        let missing =
            || Error::internal("a fact is missing: no version of an input").with_context("table", table);
        let version = self.facts.pins.get(table).ok_or_else(missing)?.clone();
        let content =
            self.facts.slices.get(table).and_then(|slices| slices.get(&slice)).ok_or_else(missing)?.clone();
        Ok(Pin { table: table.clone(), version, slice, content })
    }

    fn produced_by(&self, table: &TableId, slice: &Slice) -> Result<Vec<TaskId>> {
        let Some(tasks) = self.producers.get(table) else { return Ok(Vec::new()) };
        let partitioning = &self.catalog.table(table)?.partitioning;
        let candidates: Vec<TaskId> = match slice {
            Slice::Time(time) => tasks.overlapping(&time.interval).collect(),
            _ => tasks.by_start.values().flatten().map(|(_, id)| *id).collect(),
        };
        let holds = |id: &TaskId| {
            let task = usize::try_from(id.0).ok().and_then(|i| self.out.tasks.get(i));
            task.is_some_and(|t| t.scope.partitions().iter().any(|k| slice.may_hold(partitioning, k)))
        };
        let mut ids: Vec<_> = candidates.into_iter().filter(holds).collect();
        ids.sort();
        ids.dedup();
        Ok(ids)
    }

    fn fingerprint(
        &self,
        job: &JobSpec,
        logic: &LogicVersion,
        units: &[PartitionKey],
        inputs: &BTreeMap<String, PartitionVersion>,
    ) -> Result<Fingerprint> {
        let sql = self
            .facts
            .registered
            .get(&job.name)
            .and_then(|r| r.versions.get(logic))
            .and_then(|s| s.as_deref());
        let parameters = parameters(self.request, job);
        Fingerprint::of(&Work {
            job: Definition::of(job, self.catalog.unit(job)?),
            logic,
            sql,
            units,
            parameters: &parameters,
            inputs,
        })
    }

    /// The run since which nothing changed, where that is so for every unit.
    fn unchanged(
        &self,
        job: &JobSpec,
        units: &[PartitionKey],
        fingerprint: Option<&Fingerprint>,
    ) -> Result<Option<crate::domain::ids::RunId>> {
        let (Some(fingerprint), false) = (fingerprint, self.request.force) else { return Ok(None) };
        let Some(current) = self.facts.current.get(&job.name) else { return Ok(None) };
        let merges = matches!(job.write, crate::domain::job::WriteMode::Merge(_));
        let base = self.facts.bases.get(&job.output);
        let mut since = None;
        for unit in units {
            let Some(run) = current.get(unit) else { return Ok(None) };
            let head = base.and_then(|b| b.partitions.get(unit));
            // Intervals that share a scope have no versions of their own; other runs may have merged since.
            let lost_before = self.facts.lost_before.get(&job.output).copied().unwrap_or(0);
            let in_place = match head {
                Some(head) => run.output.as_ref() == Some(head),
                None => merges && run.position > lost_before,
            };
            if run.fingerprint.as_ref() != Some(fingerprint) || !in_place {
                return Ok(None);
            }
            since.get_or_insert_with(|| run.run.clone());
        }
        Ok(since)
    }

    fn task(
        &mut self,
        job: &JobSpec,
        logic: &LogicVersion,
        units: Vec<PartitionKey>,
        reads: Reads,
        before: Option<TaskId>,
    ) -> Result<TaskId> {
        let number = u32::try_from(self.out.tasks.len()).map_err(|_| {
            Error::invalid("the plan has too many tasks").with_advice("select a shorter range")
        })?;
        let id = TaskId(number);
        let unit = self.catalog.unit(job)?;
        let interval = units.iter().map(|k| unit.interval(k)).reduce(|a, b| Some(a?.hull(&b?))).flatten();
        let scope = self.catalog.scope(job, &units)?;
        let base = self.base(&job.output, &scope)?;
        let mut after: BTreeSet<_> =
            reads.inputs.values().flat_map(|input| input.produced_by.iter().copied()).collect();
        after.extend(before);
        self.producers.entry(job.output.clone()).or_default().add(interval, id);
        self.out.tasks.push(Task {
            id,
            job: job.name.clone(),
            logic: logic.clone(),
            table: job.output.clone(),
            units,
            interval,
            scope,
            action: Action::Compute { inputs: reads.inputs, fingerprint: reads.fingerprint },
            base,
            parameters: parameters(self.request, job),
            after: after.into_iter().collect(),
        });
        Ok(id)
    }

    fn base(&self, table: &TableId, scope: &Scope) -> Result<Base> {
        let missing =
            || Error::internal("a fact is missing: no base of an output").with_context("table", table);
        let base = self.facts.bases.get(table).ok_or_else(missing)?;
        let mut partitions = BTreeMap::new();
        for key in scope.partitions() {
            partitions.insert(key.clone(), base.partitions.get(&key).ok_or_else(missing)?.clone());
        }
        Ok(Base::new(base.table.clone(), partitions))
    }
}

/// The time from which partitions belong to the schedule.
pub(super) fn live_from(
    catalog: &Catalog,
    job: &JobSpec,
    as_of: DateTime<Utc>,
) -> Result<Option<DateTime<Utc>>> {
    let Some((_, calendar)) = catalog.unit(job)?.time().filter(|_| job.live_window > 0) else {
        return Ok(None);
    };
    let first = calendar.key_at(as_of).and_then(|now| calendar.step(&now, 1 - i64::from(job.live_window)));
    Ok(first.and_then(|key| calendar.interval(&key)).map(|i| i.start()))
}

fn parameters(request: &Request, job: &JobSpec) -> BTreeMap<String, serde_json::Value> {
    let mut parameters = job.parameters.clone();
    parameters.extend(request.parameters.clone());
    parameters
}
