//! What a correction reaches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::facts::Existing;
use super::{Downstream, Task};
use crate::domain::ids::{JobName, TableId};
use crate::domain::job::{Catalog, Exposure, JobSpec};
use crate::domain::lineage;
use crate::domain::partition::PartitionKey;
use crate::error::Result;

/// Partitions that change, and the tasks that already compute some.
#[derive(Debug, Default)]
pub struct Changed {
    tables: BTreeMap<TableId, BTreeSet<PartitionKey>>,
    planned: Arc<Planned>,
}

/// Units that a plan computes, by their jobs.
pub type Planned = BTreeMap<JobName, BTreeSet<PartitionKey>>;

/// The units that a plan's tasks compute.
pub fn planned(tasks: &[Task]) -> Planned {
    let mut planned = Planned::new();
    for task in tasks {
        planned.entry(task.job.clone()).or_default().extend(task.units.iter().cloned());
    }
    planned
}

impl Changed {
    /// Adds partitions of a table that change.
    pub fn add(&mut self, table: &TableId, partitions: impl IntoIterator<Item = PartitionKey>) {
        self.tables.entry(table.clone()).or_default().extend(partitions);
    }

    /// Nothing yet; the planned units are computed anyway, so they are not downstream.
    pub fn beside(planned: Arc<Planned>) -> Self {
        Self { tables: BTreeMap::new(), planned }
    }

    /// What all tasks of a plan change and compute.
    pub fn of(tasks: &[Task]) -> Self {
        let mut changed = Self::beside(Arc::new(planned(tasks)));
        for task in tasks {
            changed.add(&task.table, task.scope.partitions());
        }
        changed
    }
}

/// What reads the changed partitions, directly or through others.
#[derive(Debug, Default)]
pub struct Reached {
    /// Partitions in dependency order, each once, with all its causes.
    pub partitions: Vec<Downstream>,
    /// Their jobs.
    pub jobs: BTreeSet<JobName>,
    /// Planned units that read what changes, by their table. Nothing is reached through them, since they are computed.
    pub planned: BTreeSet<(JobName, TableId, PartitionKey)>,
    /// What consumes the changed tables and theirs.
    pub exposures: Vec<Exposure>,
}

/// Walks the jobs in dependency order. Only partitions that exist are reached: what was never computed cannot be wrong. Of
/// jobs that run outside of this library nobody knows what exists, so that all their partitions are reached.
pub fn reach(catalog: &Catalog, changed: &Changed, existing: &Existing) -> Result<Reached> {
    let mut tables = changed.tables.clone();
    let mut reached = Reached::default();
    for job in lineage::dependency_order(catalog)? {
        let causes = causes(catalog, job, &tables, changed, existing, &mut reached.planned)?;
        if causes.is_empty() {
            continue;
        }
        reached.jobs.insert(job.name.clone());
        let unit = catalog.unit(job)?;
        let mut found: Vec<_> = causes.into_iter().collect();
        found.sort_by_cached_key(|(partition, _)| (unit.interval(partition), partition.clone()));
        for (partition, causes) in found {
            tables.entry(job.output.clone()).or_default().insert(partition.clone());
            reached.partitions.push(Downstream {
                job: job.name.clone(),
                table: job.output.clone(),
                partition,
                causes: causes.into_iter().collect(),
            });
        }
    }
    reached.exposures = catalog
        .exposures()
        .iter()
        .filter(|e| e.tables.iter().any(|t| tables.contains_key(t)))
        .cloned()
        .collect();
    Ok(reached)
}

type Causes = BTreeMap<PartitionKey, BTreeSet<(TableId, PartitionKey)>>;

fn causes(
    catalog: &Catalog,
    job: &JobSpec,
    tables: &BTreeMap<TableId, BTreeSet<PartitionKey>>,
    changed: &Changed,
    existing: &Existing,
    planned: &mut BTreeSet<(JobName, TableId, PartitionKey)>,
) -> Result<Causes> {
    let none = BTreeSet::new();
    let own = existing.get(&job.output).unwrap_or(&none);
    let computed = changed.planned.get(&job.name).unwrap_or(&none);
    let mut causes = Causes::new();
    for input in &job.inputs {
        let mut queue: Vec<_> = tables.get(&input.table).into_iter().flatten().cloned().collect();
        // A job that reads itself is reached by its own partitions, one after the other.
        if input.table == job.output {
            queue.extend(causes.keys().cloned());
        }
        let mut seen: BTreeSet<_> = queue.iter().cloned().collect();
        while let Some(cause) = queue.pop() {
            for unit in lineage::affected(catalog, job, input, &cause, own)? {
                if !job.external && !is_computed(&unit, own) {
                    continue;
                }
                if computed.contains(&unit) {
                    planned.insert((job.name.clone(), job.output.clone(), unit));
                    continue;
                }
                causes.entry(unit.clone()).or_default().insert((input.table.clone(), cause.clone()));
                if input.table == job.output && seen.insert(unit.clone()) {
                    queue.push(unit);
                }
            }
        }
    }
    Ok(causes)
}

/// Whether a run has computed the unit: by itself, with all keys of its period, or with the whole table.
fn is_computed(unit: &PartitionKey, existing: &BTreeSet<PartitionKey>) -> bool {
    if existing.contains(unit) {
        return true;
    }
    let mut above = PartitionKey::whole();
    let mut prefixes = vec![above.clone()];
    for (column, value) in unit.bound() {
        above = above.and(column, value.clone());
        prefixes.push(above.clone());
    }
    let single = unit.bound().map(|(column, value)| PartitionKey::of(column, value.clone()));
    prefixes.into_iter().chain(single).any(|key| existing.contains(&key))
}

/// Owners to tell, each once.
pub(super) fn owners<'a>(
    catalog: &Catalog,
    jobs: impl Iterator<Item = &'a JobName>,
    reached: &'a BTreeSet<JobName>,
    exposures: &[Exposure],
) -> Result<Vec<String>> {
    let mut owners = BTreeSet::new();
    for job in jobs.chain(reached) {
        owners.insert(catalog.job(job)?.owner.clone());
    }
    owners.extend(exposures.iter().map(|e| e.owner.clone()));
    Ok(owners.into_iter().collect())
}
