//! Commands of an external scheduler.

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::args::{CatchUpArgs, RunArgs, RunOptions};
use super::console::Invocation;
use super::exit::Exit;
use super::{request, signals};
use crate::domain::ids::{JobName, RunId};
use crate::domain::interval::Interval;
use crate::domain::partition::PartitionKey;
use crate::engine::{RunOutcome, RunRequest, UnitRun};
use crate::error::{Error, Result};
use crate::ports::ledger::Trigger;

#[derive(Serialize)]
struct Ran<'a> {
    job: &'a JobName,
    units: Vec<Unit<'a>>,
}

#[derive(Serialize)]
struct Unit<'a> {
    partition: &'a PartitionKey,
    run: &'a RunId,
    outcome: &'static str,
    /// Why it was skipped, or how it failed.
    note: Option<String>,
}

impl<'a> From<&'a UnitRun> for Unit<'a> {
    fn from(ended: &'a UnitRun) -> Self {
        let (outcome, note) = match &ended.outcome {
            Ok(RunOutcome::Committed) => ("committed", None),
            Ok(RunOutcome::Skipped(why)) => ("skipped", Some(why.clone())),
            Err(error) => ("failed", Some(error.to_string())),
        };
        Self { partition: &ended.unit, run: &ended.run, outcome, note }
    }
}

pub(super) async fn run(s: &mut Invocation<'_>, args: RunArgs) -> Result<Exit> {
    let job = JobName::new(args.job);
    let units = match (&args.interval, &args.partition) {
        (Some(text), _) => s.engine.units_of(&job, &interval(s, &job, text)?)?,
        (None, Some(text)) => vec![key(s, &job, text)?],
        (None, None) => vec![whole(s, &job)?],
    };
    units_run(s, &job, args.run.map(RunId::new).as_ref(), &args.options, &units).await
}

pub(super) async fn catch_up(s: &mut Invocation<'_>, args: CatchUpArgs) -> Result<Exit> {
    let job = JobName::new(args.job);
    let from = args.from.map(|text| key(s, &job, &text)).transpose()?;
    let until = instant(s, &job, &args.until)?;
    let units = s.engine.missing(&job, from.as_ref(), until).await?;
    units_run(s, &job, None, &args.options, &units).await
}

async fn units_run(
    s: &mut Invocation<'_>,
    job: &JobName,
    run: Option<&RunId>,
    options: &RunOptions,
    units: &[PartitionKey],
) -> Result<Exit> {
    let mut request = RunRequest::scheduled("", job.clone(), PartitionKey::whole())
        .with_when_leased(options.when_leased.into());
    request.logic = options.logic.as_deref().map(Into::into);
    request.force = options.force;
    request.keep_replaced = options.keep;
    if options.manual {
        request.trigger = Trigger::Manual;
        request.deliver = false;
        request.requester = s.by.clone();
    }
    if let Some(reason) = &options.reason {
        request.reason.clone_from(reason);
    }
    let ended = signals::heeded(s, s.engine.run_units(&request, run, units, &s.worker)).await?;
    let document = Ran { job, units: ended.iter().map(Unit::from).collect() };
    s.show(&document, |_| {
        let line = |unit: &Unit<'_>| {
            let note = unit.note.as_ref().map_or_else(String::new, |note| format!(": {note}"));
            format!("{job} {}: {}{note}\n", unit.partition, unit.outcome)
        };
        match document.units.is_empty() {
            true => "Nothing to run\n".to_owned(),
            false => document.units.iter().map(line).collect(),
        }
    })?;
    let failed = ended.iter().find_map(|unit| unit.outcome.as_ref().err());
    Ok(failed.map_or(Exit::Done, Exit::from))
}

/// The one unit of a job whose table has no partitions.
fn whole(s: &Invocation<'_>, job: &JobName) -> Result<PartitionKey> {
    let catalog = s.engine.host().catalog();
    match catalog.unit(catalog.job(job)?)?.dimensions().is_empty() {
        true => Ok(PartitionKey::whole()),
        false => Err(Error::invalid("nothing says what is to be run")
            .with_context("job", job)
            .with_advice("say --interval START/END or --partition KEY")),
    }
}

fn key(s: &Invocation<'_>, job: &JobName, text: &str) -> Result<PartitionKey> {
    let catalog = s.engine.host().catalog();
    request::key(text, &[catalog.unit(catalog.job(job)?)?])
}

/// `START/END`, as ISO 8601 writes intervals.
fn interval(s: &Invocation<'_>, job: &JobName, text: &str) -> Result<Interval> {
    let refuse = || {
        Error::invalid(format!("`{text}` is no interval"))
            .with_advice("write it as 2026-10-05T00:00:00Z/2026-10-06T00:00:00Z or 2026-10-05/2026-10-06")
    };
    let (start, end) = text.split_once('/').ok_or_else(refuse)?;
    let (start, end) = (instant(s, job, start)?, instant(s, job, end)?);
    Interval::new(start, end).ok_or_else(refuse)
}

/// An instant, or a date for its first instant in the job's zone.
fn instant(s: &Invocation<'_>, job: &JobName, text: &str) -> Result<DateTime<Utc>> {
    let catalog = s.engine.host().catalog();
    let unit = catalog.unit(catalog.job(job)?)?;
    let zone = unit.time().map_or(chrono_tz::UTC, |(_, calendar)| calendar.zone);
    request::instant(text, zone, "the job's zone")
}
