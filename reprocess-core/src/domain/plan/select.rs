//! From a selection to the units of a job.

use std::collections::BTreeSet;

use super::Widened;
use super::facts::Existing;
use crate::domain::interval::{Calendar, Grain, Interval};
use crate::domain::job::{Catalog, JobSpec};
use crate::domain::lineage;
use crate::domain::partition::{PartitionKey, Partitioning};
use crate::domain::request::{Request, Selection};
use crate::domain::value::Value;
use crate::error::{Error, Result};

/// The units of one job that a request selects, oldest first.
#[derive(Debug)]
pub(super) struct Selected {
    pub(super) units: Vec<PartitionKey>,
    pub(super) widened: Vec<Widened>,
}

/// The time that a range names, by the finest calendar of the request's jobs that knows both ends.
pub(super) fn range(request: &Request, catalog: &Catalog) -> Result<Option<Interval>> {
    let Selection::Range { first, last } = &request.selection else { return Ok(None) };
    let mut calendars = Vec::new();
    for name in request.jobs.keys() {
        let unit = catalog.unit(catalog.job(name)?)?;
        calendars.extend(unit.time().map(|(_, calendar)| *calendar));
    }
    calendars.sort_by_key(|c| c.grain);
    for calendar in &calendars {
        if let (Some(a), Some(b)) = (calendar.interval(first), calendar.interval(last)) {
            return match a.start() <= b.start() {
                true => Ok(Some(a.hull(&b))),
                false => Err(Error::invalid(format!("the range ends before it begins: {first} to {last}"))
                    .with_context("backfill", &request.id)
                    .with_advice("name the first partition, then the last; both are included")),
            };
        }
    }
    let known =
        calendars.first().map_or("no job of the request has a time dimension".to_owned(), |calendar| {
            let wrong = if calendar.interval(first).is_none() { first } else { last };
            format!("no {calendar} begins at `{wrong}`")
        });
    Err(Error::invalid(known).with_context("backfill", &request.id))
}

/// The units that the request selects of a job.
pub(super) fn units(
    request: &Request,
    catalog: &Catalog,
    job: &JobSpec,
    existing: &Existing,
) -> Result<Selected> {
    let unit = catalog.unit(job)?;
    let mut selected = match &request.selection {
        Selection::Range { first, last } => in_range(request, catalog, job, unit, (first, last))?,
        Selection::Keys(keys) => by_keys(job, unit, keys)?,
        Selection::WholeTable => Selected { units: vec![PartitionKey::whole()], widened: Vec::new() },
    };
    if selected.units.is_empty() {
        return Err(Error::invalid("the selection names no partition")
            .with_context("job", &job.name)
            .with_context("backfill", &request.id));
    }
    if job.depends_on_order() {
        follow_order(job, unit, &mut selected, existing);
    }
    for input in &job.inputs {
        if lineage::widens(catalog, job, input)? {
            selected.widened.push(Widened {
                job: job.name.clone(),
                text: format!("reads {} of `{}`: {}", input.name, input.table, input.window),
            });
        }
    }
    Ok(selected)
}

fn in_range(
    request: &Request,
    catalog: &Catalog,
    job: &JobSpec,
    unit: &Partitioning,
    (first, last): (&Value, &Value),
) -> Result<Selected> {
    let interval = range(request, catalog)?.ok_or_else(|| Error::internal("a range without an interval"))?;
    let Some((column, calendar)) = unit.time() else {
        let text = "has no time dimension, so the whole table is rebuilt".to_owned();
        let widened = vec![Widened { job: job.name.clone(), text }];
        return Ok(Selected { units: vec![PartitionKey::whole()], widened });
    };
    let units: Vec<_> = calendar.keys_in(&interval).map(|value| PartitionKey::of(column, value)).collect();
    let mut widened = Vec::new();
    let covered =
        units.first().and_then(|k| unit.interval(k)).zip(units.last().and_then(|k| unit.interval(k)));
    if covered.is_some_and(|(a, b)| a.hull(&b) != interval)
        && let (Some(from), Some(to)) = (units.first(), units.last())
    {
        let text =
            format!("{first} to {last} is rounded outward to {from} to {to}, since it runs by {calendar}");
        widened.push(Widened { job: job.name.clone(), text });
    }
    Ok(Selected { units, widened })
}

fn by_keys(job: &JobSpec, unit: &Partitioning, keys: &BTreeSet<PartitionKey>) -> Result<Selected> {
    let time = unit.time().map(|(column, _)| column);
    // Without a time dimension the key dimensions are all there is to bind.
    let binds: Vec<&str> = match time {
        Some(time) => std::iter::once(time).chain(job.keyed_by.iter().map(String::as_str)).collect(),
        None => unit.dimensions().iter().map(|d| d.column()).collect(),
    };
    let mut units = BTreeSet::new();
    let mut widened = Vec::new();
    for key in keys {
        let key = unit.check_key(key).map_err(|e| e.with_context("job", &job.name))?;
        if time.is_some_and(|time| key.get(time).is_none()) {
            return Err(Error::invalid("the key does not bind the time dimension")
                .with_context("partition", &key)
                .with_context("job", &job.name)
                .with_advice("name the periods, or select the whole table"));
        }
        let bound = key.only(binds.iter().copied());
        if bound != key {
            let text =
                format!("{key} is widened to {bound}: a task of this job covers every key of its period");
            widened.push(Widened { job: job.name.clone(), text });
        }
        units.insert(bound);
    }
    // A task of one partition inside another of the same selection would compute it twice.
    let mut units = outermost(&units);
    units.sort_by_cached_key(|key| unit.interval(key));
    Ok(Selected { units, widened })
}

/// The keys that no other of the set covers.
fn outermost(keys: &BTreeSet<PartitionKey>) -> Vec<PartitionKey> {
    let shape = |key: &PartitionKey| key.bound().map(|(column, _)| column.to_owned()).collect::<Vec<_>>();
    let shapes: BTreeSet<_> = keys.iter().map(shape).collect();
    let is_inside = |key: &&PartitionKey| {
        shapes.iter().filter(|shape| shape.len() < key.bound().len()).any(|shape| {
            let above = key.only(shape.iter().map(String::as_str));
            above.bound().len() == shape.len() && keys.contains(&above)
        })
    };
    keys.iter().filter(|key| !is_inside(key)).cloned().collect()
}

/// Rows without a declared order mean that every later interval is merged again, in order.
fn follow_order(job: &JobSpec, unit: &Partitioning, selected: &mut Selected, existing: &Existing) {
    let Some(first) = selected.units.iter().filter_map(|k| unit.interval(k)).map(|i| i.start()).min() else {
        return;
    };
    let mut all: BTreeSet<_> = selected.units.iter().cloned().collect();
    let before = all.len();
    let later = existing.get(&job.output).into_iter().flatten();
    all.extend(later.filter(|k| unit.interval(k).is_some_and(|i| i.start() >= first)).cloned());
    if all.len() > before {
        let text = format!(
            "{} later intervals are merged again in order, since no `newer` column says which row wins",
            all.len() - before
        );
        selected.widened.push(Widened { job: job.name.clone(), text });
    }
    selected.units = all.into_iter().collect();
    selected.units.sort_by_cached_key(|key| unit.interval(key));
}

/// Splits units into tasks of at most `size` contiguous ones, and of one period where there is a grain.
pub(super) fn groups(
    unit: &Partitioning,
    units: Vec<PartitionKey>,
    size: u32,
    of_one: Option<Grain>,
) -> Vec<Vec<PartitionKey>> {
    let period = |key: &PartitionKey| {
        let calendar = Calendar::new(of_one?, unit.time()?.1.zone);
        calendar.key_at(unit.interval(key)?.start())
    };
    let size = usize::try_from(size).unwrap_or(usize::MAX).max(1);
    let mut groups: Vec<Vec<PartitionKey>> = Vec::new();
    for key in units {
        let joins = groups.last().is_some_and(|group| {
            let end = group.last().and_then(|k| unit.interval(k)).map(|i| i.end());
            let follows = end.is_some() && end == unit.interval(&key).map(|i| i.start());
            group.len() < size && follows && group.last().and_then(period) == period(&key)
        });
        match groups.last_mut() {
            Some(group) if joins => group.push(key),
            _ => groups.push(vec![key]),
        }
    }
    groups
}
