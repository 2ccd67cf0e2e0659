//! First step of planning: which facts are needed.

use std::collections::BTreeMap;

use super::facts::{Existing, Needs};
use super::select;
use crate::domain::ids::JobName;
use crate::domain::job::{Catalog, JobSpec};
use crate::domain::lineage;
use crate::domain::partition::PartitionKey;
use crate::domain::plan::Widened;
use crate::domain::request::{Inputs, Request};
use crate::domain::scope::Scope;
use crate::error::{Error, Result};

/// Lists the partitions, slices and bases that facts are needed for. `existing` are the partitions computed so far.
///
/// # Errors
/// `Invalid` or `NotFound` where the request itself is wrong: no or unknown jobs, an empty or reversed range, a key
/// that does not fit, a reason that is missing.
pub fn expand(request: &Request, catalog: &Catalog, existing: &Existing) -> Result<Needs> {
    needs(&Workload::of(request, catalog, existing)?, request, catalog)
}

/// As [`expand`], for a single run of the schedule.
pub fn expand_run(request: &Request, catalog: &Catalog) -> Result<Needs> {
    needs(&Workload::of(request, catalog, &Existing::new())?, request, catalog)
}

fn needs(work: &Workload<'_>, request: &Request, catalog: &Catalog) -> Result<Needs> {
    let mut needs = Needs::default();
    if let Inputs::Recorded { by } = &request.inputs {
        needs.recorded = Some(by.clone());
    }
    let mut scopes = BTreeMap::new();
    for job in &work.jobs {
        let groups = work.groups.get(&job.name).into_iter().flatten();
        for group in groups {
            scopes.entry(job.output.clone()).or_insert_with(Vec::new).push(catalog.scope(job, group)?);
            for input in &job.inputs {
                if let Some(slice) = lineage::slice(catalog, job, input, group)? {
                    needs.slices.entry(input.table.clone()).or_default().insert(slice);
                }
            }
            needs.units.entry(job.name.clone()).or_default().extend(group.iter().cloned());
        }
    }
    let one = |(table, scopes): (_, Vec<Scope>)| Some((table, Scope::union_of(&scopes)?));
    needs.bases = scopes.into_iter().filter_map(one).collect();
    Ok(needs)
}

/// The jobs of a request in dependency order, and their units as groups that become tasks. Both steps of planning
/// start from it, so they see the same work.
pub(super) struct Workload<'a> {
    pub(super) jobs: Vec<&'a JobSpec>,
    pub(super) groups: BTreeMap<JobName, Vec<Vec<PartitionKey>>>,
    pub(super) widened: Vec<Widened>,
}

impl<'a> Workload<'a> {
    pub(super) fn of(request: &Request, catalog: &'a Catalog, existing: &Existing) -> Result<Self> {
        check(request, catalog)?;
        let order = lineage::dependency_order(catalog)?;
        let jobs: Vec<_> = order.into_iter().filter(|job| request.jobs.contains_key(&job.name)).collect();
        let mut groups = BTreeMap::new();
        let mut widened = Vec::new();
        for job in &jobs {
            let selected = select::units(request, catalog, job, existing)?;
            widened.extend(selected.widened);
            let size = match job.reads_itself() {
                true => 1,
                false => request.partitions_per_commit.min(job.partitions_per_commit),
            };
            groups.insert(job.name.clone(), select::groups(catalog.unit(job)?, selected.units, size));
        }
        Ok(Self { jobs, groups, widened })
    }
}

fn check(request: &Request, catalog: &Catalog) -> Result<()> {
    let refuse = |text: &str| Error::invalid(text).with_context("backfill", &request.id);
    if request.id.as_str().is_empty() {
        return Err(Error::invalid("a backfill needs a name"));
    }
    if request.jobs.is_empty() {
        return Err(refuse("the request names no job"));
    }
    if request.reason.trim().is_empty() {
        return Err(refuse("a backfill needs a reason")
            .with_advice("say what was wrong; it is recorded with every row"));
    }
    if request.concurrency == 0 || request.partitions_per_commit == 0 {
        return Err(refuse("concurrency and partitions per commit are at least 1"));
    }
    for job in request.jobs.keys() {
        catalog.job(job)?;
    }
    for expected in &request.expectations {
        if let Some(job) = expected.job.as_ref().filter(|job| !request.jobs.contains_key(job)) {
            return Err(refuse(&format!(
                "an expectation is about job `{job}`, which the request does not run"
            )));
        }
    }
    Ok(())
}
