//! First step of planning: which facts are needed.

use std::collections::BTreeMap;

use super::facts::{Existing, Needs};
use super::select;
use crate::domain::ids::{JobName, TableId};
use crate::domain::job::{Catalog, JobSpec, WriteMode};
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
    let mut written = BTreeMap::<_, Vec<(&JobSpec, Scope)>>::new();
    for job in &work.jobs {
        let groups = work.groups.get(&job.name).into_iter().flatten();
        let mut scopes = Vec::new();
        for group in groups {
            scopes.push(catalog.scope(job, group)?);
            for input in &job.inputs {
                if let Some(slice) = lineage::slice(catalog, job, input, group)? {
                    needs.slices.entry(input.table.clone()).or_default().insert(slice);
                }
            }
            needs.units.entry(job.name.clone()).or_default().extend(group.iter().cloned());
        }
        if let Some(scope) = Scope::union_of(&scopes) {
            written.entry(job.output.clone()).or_default().push((*job, scope));
        }
    }
    for (table, jobs) in written {
        check_apart(&table, &jobs)?;
        let (whole, keys): (Vec<_>, Vec<_>) =
            jobs.iter().map(|(_, scope)| scope).partition(|scope| scope.is_whole_table());
        let scopes = [Scope::union_of(whole), Scope::union_of(keys)];
        needs.bases.insert(table, scopes.into_iter().flatten().collect());
    }
    Ok(needs)
}

/// Refuses jobs that replace what another job of the request writes: which of them had the last word would be chance.
fn check_apart(table: &TableId, jobs: &[(&JobSpec, Scope)]) -> Result<()> {
    let merges = |job: &JobSpec| matches!(job.write, WriteMode::Merge(_));
    for (n, (one, scope)) in jobs.iter().enumerate() {
        for (other, theirs) in &jobs[n + 1..] {
            if !(merges(one) && merges(other)) && scope.overlaps(theirs) {
                return Err(Error::invalid(format!(
                    "the jobs `{}` and `{}` write the same partitions",
                    one.name, other.name
                ))
                .with_context("table", table)
                .with_advice("ask for one of them, or for partitions in which they do not meet"));
            }
        }
    }
    Ok(())
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
            let size = match request.commit_by {
                _ if job.reads_itself() => 1,
                Some(_) => job.partitions_per_commit,
                None => request.partitions_per_commit.min(job.partitions_per_commit),
            };
            let unit = catalog.unit(job)?;
            groups.insert(job.name.clone(), select::groups(unit, selected.units, size, request.commit_by));
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
