//! From the words of the command line to a request.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, NaiveDate, Utc};

use super::args::PlanArgs;
use crate::domain::ids::{Actor, JobName, LogicVersion, RunId};
use crate::domain::interval::{Calendar, Grain};
use crate::domain::job::Catalog;
use crate::domain::lineage;
use crate::domain::partition::{PartitionKey, Partitioning};
use crate::domain::request::{Expected, Inputs, Request, Selection};
use crate::domain::validate::{Expectation, Severity};
use crate::domain::value::{Value, ValueKind};
use crate::engine::{Engine, Host};
use crate::error::{Error, Result};

/// The request that the arguments make.
pub(super) async fn request(engine: &Engine, args: &PlanArgs, by: &Actor) -> Result<Request> {
    let host = engine.host();
    // What a report names is run with the logic of the schedule, unless another is named.
    let by_report = args.stale || args.outdated || args.corrected;
    let jobs = jobs(host, &args.jobs, args.logic.as_deref(), by_report)?;
    let units = units(host.catalog(), jobs.keys())?;
    let selection = match by_report {
        true => reported(engine, args, &jobs).await?,
        false => selection(args, &units)?,
    };
    let id = args.id.as_deref().map(str::trim).filter(|id| !id.is_empty()).ok_or_else(|| {
        Error::invalid("the backfill has no name")
            .with_advice("name it with --id; the same name again is the same backfill")
    })?;
    let reason =
        args.reason.as_deref().map(str::trim).filter(|reason| !reason.is_empty()).ok_or_else(|| {
            Error::invalid("no reason is given")
                .with_advice("say why with --reason; it is recorded with every row")
        })?;
    let mut request = Request::new(id, selection, reason, by.clone())
        .with_mode(args.mode.into())
        .with_order(args.order.into())
        .with_concurrency(args.concurrency)
        .with_schema(args.schema.into())
        .with_partitions_per_commit(args.partitions_per_commit)
        .with_when_moved(args.when_moved.into())
        .with_when_leased(args.when_leased.into());
    request.jobs = jobs;
    request.commit_by = args.commit_by.map(Into::into);
    request.force = args.force;
    request.propagate = !args.no_propagate;
    request.deliver = args.deliver;
    request.keep_replaced = !args.no_keep;
    if let Some(run) = &args.inputs_of {
        request.inputs = Inputs::Recorded { by: RunId::from(run.as_str()) };
    }
    for text in &args.param {
        let (name, value) = parameter(text)?;
        request.parameters.insert(name, value);
    }
    for text in &args.expect {
        request.expectations.extend(expectations(text)?);
    }
    Ok(request)
}

/// The partitions of the jobs that are stale, on outdated logic, or computed from what a source has corrected.
async fn reported(
    engine: &Engine,
    args: &PlanArgs,
    jobs: &BTreeMap<JobName, LogicVersion>,
) -> Result<Selection> {
    let mut keys = BTreeSet::new();
    if args.stale {
        let stale = engine.ledger().stale().await?.into_iter();
        keys.extend(stale.filter(|s| jobs.contains_key(&s.job)).map(|s| s.partition));
    }
    if args.outdated {
        let outdated = engine.outdated().await?.into_iter();
        keys.extend(outdated.filter(|o| jobs.contains_key(&o.job)).map(|o| o.partition));
    }
    if args.corrected {
        let named: Vec<_> = jobs.keys().cloned().collect();
        keys.extend(engine.corrections(&named).await?.into_iter().map(|c| c.partition));
    }
    match keys.is_empty() {
        true => Err(Error::invalid("the report names no partition of these jobs")
            .with_advice("see the commands stale, outdated and corrections")),
        false => Ok(Selection::Keys(keys)),
    }
}

/// The jobs that are named, each with its logic version; where none is named, that of the schedule, if it may be.
pub(super) fn jobs(
    host: &Host,
    names: &[String],
    logic: Option<&str>,
    as_scheduled: bool,
) -> Result<BTreeMap<JobName, LogicVersion>> {
    let catalog = host.catalog();
    if names.is_empty() {
        let known: Vec<_> = catalog.jobs().map(|j| j.name.as_str()).collect();
        return Err(
            Error::invalid("no job is named").with_advice(format!("declared jobs: {}", known.join(", ")))
        );
    }
    let mut jobs = BTreeMap::new();
    let mut beside = BTreeSet::new();
    let mut used = false;
    for text in names {
        let (text, upstream, downstream) = selector(catalog, text);
        let whole = JobName::from(text);
        // A job's own name may hold an `@`.
        let (name, version) = match (catalog.job(&whole), text.rsplit_once('@')) {
            (Err(_), Some((name, version))) => (JobName::from(name), Some(version)),
            _ => (whole, None),
        };
        catalog.job(&name)?;
        used |= version.is_none();
        let scheduled = host.current_logic(&name).ok().filter(|_| as_scheduled).map(LogicVersion::as_str);
        let version = version.or(logic).or(scheduled).filter(|v| !v.is_empty());
        let version = version.ok_or_else(|| no_logic(host, &name))?;
        if downstream {
            beside.extend(lineage::downstream_jobs(catalog, [&name])?.into_iter().cloned());
        }
        if upstream {
            beside.extend(lineage::upstream_jobs(catalog, [&name])?.into_iter().cloned());
        }
        if jobs.insert(name, LogicVersion::from(version)).is_some() {
            return Err(Error::invalid("the job is named twice").with_context("job", text));
        }
    }
    for name in beside {
        if !jobs.contains_key(&name) && !catalog.job(&name)?.external {
            let logic = host.current_logic(&name)?.clone();
            jobs.insert(name, logic);
        }
    }
    match logic {
        Some(logic) if !used => Err(Error::invalid(format!(
            "--logic {logic} is of no use, since every job names its logic version"
        ))),
        _ => Ok(jobs),
    }
}

/// What is named, and whether all jobs upstream and downstream of it are meant too. A job's own name may hold a `+`.
fn selector<'a>(catalog: &Catalog, text: &'a str) -> (&'a str, bool, bool) {
    if catalog.job(&JobName::from(text)).is_ok() {
        return (text, false, false);
    }
    let (rest, upstream) = text.strip_prefix('+').map_or((text, false), |rest| (rest, true));
    let (rest, downstream) = rest.strip_suffix('+').map_or((rest, false), |rest| (rest, true));
    (rest, upstream, downstream)
}

fn no_logic(host: &Host, name: &JobName) -> Error {
    let job = host.jobs().find(|job| job.spec.name == *name);
    let known: Vec<_> =
        job.into_iter().flat_map(|job| job.versions.keys()).map(LogicVersion::as_str).collect();
    Error::invalid("no logic version is named")
        .with_context("job", name)
        .with_advice(format!("say --logic V or {name}@V; the host has: {}", known.join(", ")))
}

/// What one task of each job is responsible for.
fn units<'a>(
    catalog: &'a Catalog,
    jobs: impl IntoIterator<Item = &'a JobName>,
) -> Result<Vec<&'a Partitioning>> {
    jobs.into_iter().map(|name| catalog.unit(catalog.job(name)?)).collect()
}

pub(super) fn selection(args: &PlanArgs, units: &[&Partitioning]) -> Result<Selection> {
    match (&args.from, &args.to) {
        (Some(from), Some(to)) => range(from, to, units),
        _ if args.whole_table => Ok(Selection::WholeTable),
        _ if !args.partition.is_empty() => {
            let keys = args.partition.iter().map(|text| key(text, units)).collect::<Result<BTreeSet<_>>>()?;
            Ok(Selection::Keys(keys))
        }
        _ => Err(Error::invalid("no partition is selected")
            .with_advice("say --from KEY --to KEY, --partition KEY..., or --whole-table")),
    }
}

/// An instant, or a date for its first instant in a zone.
pub(super) fn instant(text: &str, zone: chrono_tz::Tz, zone_name: &str) -> Result<DateTime<Utc>> {
    if let Ok(instant) = DateTime::parse_from_rfc3339(text) {
        return Ok(instant.to_utc());
    }
    let day = |date: NaiveDate| Calendar::new(Grain::Day, zone).interval(&Value::Date(date));
    text.parse().ok().and_then(day).map(|day| day.start()).ok_or_else(|| {
        Error::invalid(format!("`{text}` is no time")).with_advice(format!(
            "write it as 2026-10-05T00:00:00Z, or as 2026-10-05 for midnight in {zone_name}"
        ))
    })
}

/// A key by the first of the partitionings that knows it.
pub(super) fn key(text: &str, units: &[&Partitioning]) -> Result<PartitionKey> {
    let mut first_error = None;
    for unit in units {
        match unit.parse_key(text) {
            Ok(key) => return Ok(key),
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    Err(first_error.unwrap_or_else(|| Error::invalid("there is no partitioning to read the key by")))
}

/// A range by the finest calendar that knows both ends.
fn range(from: &str, to: &str, units: &[&Partitioning]) -> Result<Selection> {
    let mut calendars: Vec<(&str, Calendar)> =
        units.iter().filter_map(|unit| unit.time()).map(|(column, calendar)| (column, *calendar)).collect();
    calendars.sort_by_key(|(_, calendar)| calendar.grain);
    let mut first_error = None;
    for (column, calendar) in &calendars {
        match (period(from, column, calendar), period(to, column, calendar)) {
            (Ok(first), Ok(last)) => return Ok(Selection::Range { first, last }),
            (Err(error), _) | (_, Err(error)) => {
                first_error.get_or_insert(error);
            }
        }
    }
    Err(first_error.unwrap_or_else(|| {
        Error::invalid("a range needs a time dimension, and no job of the request has one")
            .with_advice("say --partition KEY... or --whole-table")
    }))
}

/// A time value, bare or with its column.
fn period(text: &str, column: &str, calendar: &Calendar) -> Result<Value> {
    let bare = text.strip_prefix(column).and_then(|rest| rest.strip_prefix('=')).unwrap_or(text);
    let (kind, form) = match calendar.grain {
        Grain::Hour => (ValueKind::Timestamp, "2013-03-04T05:00:00Z"),
        _ => (ValueKind::Date, "2013-03-04"),
    };
    let value = Value::parse(kind, bare).ok_or_else(|| {
        Error::invalid(format!("`{text}` names no {}", calendar.grain)).with_advice(format!(
            "write it as {form}; there are no relative dates, so that the command says what it does"
        ))
    })?;
    if calendar.interval(&value).is_some() {
        return Ok(value);
    }
    let begins = match &value {
        Value::Date(date) => calendar.key_of_date(*date),
        Value::Timestamp(instant) => calendar.key_at(*instant),
        _ => None,
    };
    let error = Error::invalid(format!("no {calendar} begins at `{value}`"));
    Err(match begins.filter(|b| *b != value) {
        Some(begins) => error.with_advice(format!("the {} that holds it begins at {begins}", calendar.grain)),
        None => error,
    })
}

fn parameter(text: &str) -> Result<(String, serde_json::Value)> {
    let (name, json) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
        Error::invalid(format!("`{text}` is no parameter")).with_advice("write it as --param name=json")
    })?;
    let value = serde_json::from_str(json).map_err(|e| {
        Error::invalid(format!("the value of parameter `{name}` is no JSON"))
            .with_source(e)
            .with_advice("text needs its quotes: --param 'name=\"text\"'")
    })?;
    Ok((name.to_owned(), value))
}

/// One expectation or a list of them, as JSON or in a file.
fn expectations(text: &str) -> Result<Vec<Expected>> {
    let read;
    let json = match text.strip_prefix('@') {
        Some(path) => {
            read = std::fs::read_to_string(path)
                .map_err(|e| Error::invalid(format!("`{path}` cannot be read")).with_source(e))?;
            read.as_str()
        }
        None => text,
    };
    let refuse = |e: serde_json::Error| {
        Error::invalid("the text is no expectation").with_source(e).with_advice(
            "write it as \"row_count_unchanged\", or {\"total_only_falls\": {\"column\": \"sales\"}}, or with its \
             severity as {\"expectation\": …, \"severity\": \"abort\"}",
        )
    };
    match serde_json::from_str(json).map_err(refuse)? {
        serde_json::Value::Array(all) => all.into_iter().map(|one| expected(one).map_err(refuse)).collect(),
        one => Ok(vec![expected(one).map_err(refuse)?]),
    }
}

fn expected(json: serde_json::Value) -> Result<Expected, serde_json::Error> {
    if json.get("expectation").is_some() {
        return serde_json::from_value(json);
    }
    let expectation: Expectation = serde_json::from_value(json)?;
    Ok(Expected { job: None, expectation, severity: Severity::Review })
}
