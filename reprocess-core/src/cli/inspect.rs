//! Commands that look for what is not as it should be, and at how jobs hang together.

use chrono::TimeDelta;
use serde::Serialize;

use super::args::{CheckArgs, PlanArgs};
use super::console::Invocation;
use super::exit::Exit;
use super::request;
use crate::domain::estimate::Estimate;
use crate::domain::ids::{JobName, TableId};
use crate::domain::job::{JobSpec, Window};
use crate::domain::lineage;
use crate::engine::{Correction, Determinism, Drift, Finding, FindingSeverity, Readiness, Reconciliation};
use crate::error::{Error, Result};
use crate::render;

#[derive(Serialize)]
struct Drifted<'a> {
    drift: &'a [Drift],
}

#[derive(Serialize)]
struct Corrected<'a> {
    corrections: &'a [Correction],
}

#[derive(Serialize)]
struct Reconcile<'a> {
    agrees: bool,
    reconciliations: &'a [Reconciliation],
}

#[derive(Serialize)]
struct Ready<'a> {
    readiness: &'a Readiness,
}

#[derive(Serialize)]
struct Examined<'a> {
    findings: &'a [Finding],
}

#[derive(Serialize)]
struct Estimated<'a> {
    estimate: &'a Estimate,
}

#[derive(Serialize)]
struct Checked<'a> {
    holds: bool,
    determinism: &'a Determinism,
}

#[derive(Serialize)]
struct Lineage<'a> {
    jobs: Vec<JobLine<'a>>,
}

/// A job and what is around it.
#[derive(Serialize)]
struct JobLine<'a> {
    job: &'a JobName,
    external: bool,
    inputs: Vec<InputLine<'a>>,
    output: &'a TableId,
    /// Jobs that write what it reads, directly or through others.
    upstream: Vec<&'a JobName>,
    /// Jobs that read what it writes, directly or through others.
    downstream: Vec<&'a JobName>,
    /// What outside consumes its table.
    exposures: Vec<&'a str>,
}

#[derive(Serialize)]
struct InputLine<'a> {
    table: &'a TableId,
    window: &'a Window,
}

/// Partitions whose rows are not those that the ledger recorded.
pub(super) async fn drift(s: &mut Invocation<'_>, tables: Vec<String>) -> Result<Exit> {
    let tables: Vec<_> = tables.into_iter().map(TableId::new).collect();
    let drift = s.engine.drift(&tables).await?;
    s.show(&Drifted { drift: &drift }, |lines| render::drift(&drift, lines))?;
    Ok(Exit::Done)
}

/// Partitions computed from what a source has corrected.
pub(super) async fn corrections(s: &mut Invocation<'_>, jobs: Vec<String>) -> Result<Exit> {
    let jobs: Vec<_> = jobs.into_iter().map(JobName::new).collect();
    let corrections = s.engine.corrections(&jobs).await?;
    s.show(&Corrected { corrections: &corrections }, |lines| render::corrections(&corrections, lines))?;
    Ok(Exit::Done)
}

/// Whether declared totals agree.
pub(super) async fn reconcile(s: &mut Invocation<'_>, jobs: Vec<String>) -> Result<Exit> {
    let jobs: Vec<_> = jobs.into_iter().map(JobName::new).collect();
    let all = s.engine.reconcile_declared(&jobs).await?;
    let agrees = all.iter().flat_map(|total| &total.partitions).all(|partition| partition.agrees);
    let document = Reconcile { agrees, reconciliations: &all };
    s.show(&document, |lines| render::reconciliations(&all, lines))?;
    Ok(if agrees { Exit::Done } else { Exit::Failed })
}

/// Partitions that were or will be ready too late.
pub(super) async fn readiness(s: &mut Invocation<'_>, since: Option<&str>) -> Result<Exit> {
    let since = match since {
        Some(text) => request::instant(text, chrono_tz::UTC, "UTC")?,
        None => s.engine.now() - TimeDelta::days(7),
    };
    let readiness = s.engine.readiness(since).await?;
    s.show(&Ready { readiness: &readiness }, |lines| render::readiness(&readiness, lines))?;
    Ok(Exit::Done)
}

/// What will go wrong.
pub(super) async fn doctor(s: &mut Invocation<'_>) -> Result<Exit> {
    let findings = s.engine.examine().await?;
    s.show(&Examined { findings: &findings }, |lines| render::findings(&findings, lines))?;
    let problem = findings.iter().any(|finding| finding.severity == FindingSeverity::Problem);
    Ok(if problem { Exit::Failed } else { Exit::Done })
}

/// What a backfill would cost.
pub(super) async fn estimate(s: &mut Invocation<'_>, args: &PlanArgs) -> Result<Exit> {
    let request = request::request(s.engine, args, &s.by).await?;
    let plan = s.engine.plan(&request).await?;
    s.show(&Estimated { estimate: &plan.estimate }, |_| format!("{}\n", plan.estimate))?;
    Ok(Exit::Done)
}

/// Whether a transform gives the same rows twice.
pub(super) async fn check(s: &mut Invocation<'_>, args: &CheckArgs) -> Result<Exit> {
    let jobs = request::jobs(s.engine.host(), std::slice::from_ref(&args.job), args.logic.as_deref(), false)?;
    let (job, logic) =
        jobs.first_key_value().ok_or_else(|| Error::invalid("a check is about one job, without a +"))?;
    let catalog = s.engine.host().catalog();
    let partitioning = catalog.unit(catalog.job(job)?)?;
    let unit = request::key(&args.partition, &[partitioning])?;
    if unit.is_whole() && !partitioning.dimensions().is_empty() {
        return Err(Error::invalid("no partition is named").with_context("job", job));
    }
    let found = s.engine.check_determinism(job, logic, &unit, &s.worker).await?;
    let document = Checked { holds: found.holds(), determinism: &found };
    s.show(&document, |_| format!("{job} {logic} {unit}: {found}\n"))?;
    Ok(if found.holds() { Exit::Done } else { Exit::Failed })
}

/// Who reads whom.
pub(super) fn lineage(s: &mut Invocation<'_>, job: Option<&str>) -> Result<Exit> {
    let catalog = s.engine.host().catalog();
    let order = match job {
        Some(name) => vec![catalog.job(&JobName::from(name))?],
        None => lineage::dependency_order(catalog)?,
    };
    let jobs = order.into_iter().map(|job| line(s, job)).collect::<Result<Vec<_>>>()?;
    let document = Lineage { jobs };
    s.show(&document, |_| document.jobs.iter().map(text).collect())?;
    Ok(Exit::Done)
}

fn line<'a>(s: &Invocation<'a>, job: &'a JobSpec) -> Result<JobLine<'a>> {
    let catalog = s.engine.host().catalog();
    let others = |jobs: std::collections::BTreeSet<&'a JobName>| {
        jobs.into_iter().filter(|name| **name != job.name).collect()
    };
    let exposures = catalog.exposures().iter().filter(|exposure| exposure.tables.contains(&job.output));
    Ok(JobLine {
        job: &job.name,
        external: job.external,
        inputs: job.inputs.iter().map(|i| InputLine { table: &i.table, window: &i.window }).collect(),
        output: &job.output,
        upstream: others(lineage::upstream_jobs(catalog, [&job.name])?),
        downstream: others(lineage::downstream_jobs(catalog, [&job.name])?),
        exposures: exposures.map(|exposure| exposure.name.as_str()).collect(),
    })
}

fn text(job: &JobLine<'_>) -> String {
    let names = |names: &[&JobName]| names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let outside = if job.external { ", outside of this library" } else { "" };
    let inputs: Vec<_> =
        job.inputs.iter().map(|input| format!("{} ({})", input.table, input.window)).collect();
    let mut text = format!("{}{outside}\n  reads       {}\n", job.job, inputs.join(", "));
    text.push_str(&format!("  writes      {}\n", job.output));
    for (name, list) in [
        ("upstream", names(&job.upstream)),
        ("downstream", names(&job.downstream)),
        ("exposures", job.exposures.join(", ")),
    ] {
        if !list.is_empty() {
            text.push_str(&format!("  {name:<11} {list}\n"));
        }
    }
    text
}
