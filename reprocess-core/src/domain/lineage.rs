//! What a task reads, and which tasks read what changed: windows and their inverse.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::toposort;
use petgraph::graphmap::DiGraphMap;

use super::ids::{JobName, TableId};
use super::interval::{Calendar, Interval};
use super::job::{Catalog, InputSpec, JobSpec, Window, WriteMode};
use super::partition::{Dimension, PartitionKey, Partitioning};
use super::slice::{AsOfSlice, Slice, TimeSlice};
use super::value::Value;
use crate::error::{Error, Result};

/// Refuses a job that could never run, with the reason. What only a re-run makes unsafe (append) is refused by the
/// planner, so that such a job can still be declared for lineage.
pub(super) fn check_job(catalog: &Catalog, job: &JobSpec) -> Result<()> {
    let output = catalog.table(&job.output)?;
    let unit = catalog.unit(job)?;
    unit.validate()?;
    if job.unit.is_some() && !matches!(job.write, WriteMode::Merge(_)) {
        return Err(Error::invalid("only a merge job has a unit other than a partition of its output"));
    }
    for column in &job.keyed_by {
        let known = unit.dimensions().iter().any(|d| d.column() == column);
        if !known || unit.time().is_some_and(|(time, _)| time == column) {
            return Err(Error::invalid(format!("`{column}` is no key dimension of the job's unit")));
        }
    }
    for (i, input) in job.inputs.iter().enumerate() {
        if job.inputs[..i].iter().any(|other| other.name == input.name) {
            return Err(Error::invalid(format!("input `{}` is declared twice", input.name)));
        }
        check_input(catalog, job, unit, input).map_err(|e| e.with_context("input", &input.name))?;
    }
    for matching in &job.matching_totals {
        if !job.inputs.iter().any(|input| input.name == matching.input) {
            return Err(Error::invalid(format!(
                "a total is to agree with that of `{}`, which is no input",
                matching.input
            )));
        }
    }
    if let WriteMode::Merge(merge) = &job.write
        && merge.keys.is_empty()
    {
        return Err(
            Error::invalid("a merge needs the columns that identify a row").with_context("table", &output.id)
        );
    }
    Ok(())
}

fn check_input(catalog: &Catalog, job: &JobSpec, unit: &Partitioning, input: &InputSpec) -> Result<()> {
    let table = catalog.table(&input.table)?;
    let (own, other) = (unit.time().map(|(_, c)| c), table.partitioning.time().map(|(_, c)| c));
    let itself = input.table == job.output;
    match &input.window {
        Window::PreviousOutput if !itself => {
            Err(Error::invalid("`previous_output` reads the job's own output, and this is another table"))
        }
        Window::PreviousOutput if own.is_none() => Err(Error::invalid(
            "`previous_output` needs a time dimension: without one there is no partition before",
        )),
        Window::PreviousOutput => Ok(()),
        _ if itself => Err(Error::invalid("a job must not read the partition that it writes").with_advice(
            "a re-run would read its own result; read `previous_output`, or split the job in two",
        )),
        Window::AsOf { to: None, entity, .. } if entity.is_empty() => {
            Err(Error::invalid("`as_of` without a `to` column needs the columns that name the entity"))
        }
        Window::AsOf { .. } if own.is_none() => {
            Err(Error::invalid("`as_of` needs a date, and the job's unit has no time dimension"))
        }
        Window::AsOf { .. } | Window::All => Ok(()),
        Window::Trailing(0) => {
            Err(Error::invalid("`trailing` counts the task's own period, so it is at least 1"))
        }
        Window::Same if unit.time().is_none() && table.partitioning == *unit => Ok(()),
        _ if own.is_none() || other.is_none() => {
            Err(Error::invalid("the window needs a time dimension in the input and in the job's unit")
                .with_advice("read such an input with `all` or `as_of`"))
        }
        Window::Same if own != other => {
            Err(Error::invalid("`same` needs the same grain and zone on both sides")
                .with_advice("read an input of another grain or zone with `covering`"))
        }
        _ => Ok(()),
    }
}

/// What a task over `units` (one key, or several with coarsening) reads of an input. `None` where there is nothing to
/// read: the partition before the first one that can be represented.
pub fn slice(
    catalog: &Catalog,
    job: &JobSpec,
    input: &InputSpec,
    units: &[PartitionKey],
) -> Result<Option<Slice>> {
    let unit = catalog.unit(job)?;
    let table = &catalog.table(&input.table)?.partitioning;
    let intervals: Option<Vec<Interval>> = units.iter().map(|k| unit.interval(k)).collect();
    let hull = intervals.and_then(|i| i.into_iter().reduce(|a, b| a.hull(&b)));
    let slice = match (&input.window, hull) {
        (Window::All, _) => Some(Slice::All),
        (Window::AsOf { from, to, entity }, Some(hull)) => Some(Slice::AsOf(AsOfSlice {
            from: from.clone(),
            to: to.clone(),
            entity: entity.clone(),
            date: first_date(unit, units, &hull),
            instant: hull.start(),
        })),
        (_, None) if units.iter().all(PartitionKey::is_whole) => Some(Slice::All),
        (_, None) => Some(Slice::Partitions(units.iter().map(|k| rename_time(unit, table, k)).collect())),
        (window, Some(hull)) => time_slice(job, unit, table, window, &hull, units),
    };
    Ok(slice)
}

fn time_slice(
    job: &JobSpec,
    unit: &Partitioning,
    table: &Partitioning,
    window: &Window,
    hull: &Interval,
    units: &[PartitionKey],
) -> Option<Slice> {
    let (column, calendar) = table.time()?;
    let (own_first, own_last) = periods(unit, calendar, hull, units)?;
    let (first, last) = match window {
        Window::Trailing(n) => (calendar.step(&own_first, 1 - i64::from(*n))?, own_last),
        Window::Between { before, after } => {
            (calendar.step(&own_first, -i64::from(*before))?, calendar.step(&own_last, i64::from(*after))?)
        }
        Window::PreviousOutput => {
            let before = calendar.step(&own_first, -1)?;
            (before.clone(), before)
        }
        _ => (own_first, own_last),
    };
    let interval = match (&first, &last) {
        (a, b) if a == b => calendar.interval(a)?,
        (a, b) => calendar.interval(a)?.hull(&calendar.interval(b)?),
    };
    let keyed = job
        .keyed_by
        .iter()
        .map(String::as_str)
        .filter(|c| table.dimensions().iter().any(|d| d.column() == *c));
    let only = match units {
        [unit] => unit.only(keyed),
        _ => PartitionKey::whole(),
    };
    Some(Slice::Time(TimeSlice { column: column.to_owned(), first, last, interval, only }))
}

/// The first and the last period of a calendar that share time with the units.
fn periods(
    unit: &Partitioning,
    calendar: &Calendar,
    hull: &Interval,
    units: &[PartitionKey],
) -> Option<(Value, Value)> {
    match unit.time() {
        // The units' own periods, which need not be looked up in the zone.
        Some((column, own)) if own == calendar => {
            let values = || units.iter().filter_map(|key| key.get(column));
            Some((values().min()?.clone(), values().max()?.clone()))
        }
        _ => Some((calendar.key_at(hull.start())?, calendar.keys_in(hull).last()?)),
    }
}

fn first_date(unit: &Partitioning, units: &[PartitionKey], hull: &Interval) -> chrono::NaiveDate {
    let time = unit.time();
    let dates = units.iter().filter_map(|k| match time.and_then(|(column, _)| k.get(column)) {
        Some(Value::Date(date)) => Some(*date),
        _ => None,
    });
    let zone = time.map_or(chrono_tz::UTC, |(_, calendar)| calendar.zone);
    dates.min().unwrap_or_else(|| hull.start().with_timezone(&zone).date_naive())
}

/// The key with its time column named as in the other table.
fn rename_time(unit: &Partitioning, table: &Partitioning, key: &PartitionKey) -> PartitionKey {
    key.bound().fold(PartitionKey::whole(), |renamed, (column, value)| {
        let column = match (unit.time(), table.time()) {
            (Some((own, _)), Some((other, _))) if own == column => other,
            _ => column,
        };
        renamed.and(column, value.clone())
    })
}

/// Whether the window reads more than the task's own period, so that the plan should show it as a widening.
pub fn widens(catalog: &Catalog, job: &JobSpec, input: &InputSpec) -> Result<bool> {
    let own = catalog.unit(job)?.time().map(|(_, c)| *c);
    let other = catalog.table(&input.table)?.partitioning.time().map(|(_, c)| *c);
    Ok(match input.window {
        Window::Same | Window::PreviousOutput | Window::AsOf { .. } => false,
        Window::Trailing(n) => n > 1 || own != other,
        Window::Between { before, after } => before + after > 0 || own != other,
        Window::Covering => own != other,
        Window::All => true,
    })
}

/// The units of a job whose slice of `input` a change of the given partition can change, oldest first. `existing` are
/// the units that have been computed so far; windows without bounds in time reach all of them.
pub fn affected(
    catalog: &Catalog,
    job: &JobSpec,
    input: &InputSpec,
    changed: &PartitionKey,
    existing: &BTreeSet<PartitionKey>,
) -> Result<BTreeSet<PartitionKey>> {
    let unit = catalog.unit(job)?;
    let table = &catalog.table(&input.table)?.partitioning;
    let candidates = match (unit.time(), table.time(), table.interval(changed)) {
        (Some((column, own)), Some((_, other)), Some(interval)) => {
            match reach(other, &input.window, &interval) {
                Some(hull) => {
                    let periods: BTreeSet<_> =
                        own.keys_in(&hull).map(|v| PartitionKey::of(column, v)).collect();
                    let keyed = below(unit, job, &periods, existing);
                    periods.iter().chain(keyed).cloned().collect()
                }
                None => existing.clone(),
            }
        }
        _ if unit.time().is_none() && unit.dimensions().is_empty() => BTreeSet::from([PartitionKey::whole()]),
        _ => existing.clone(),
    };
    let mut affected = BTreeSet::new();
    for candidate in candidates {
        let reads = slice(catalog, job, input, std::slice::from_ref(&candidate))?;
        if reads.is_some_and(|s| s.may_hold(table, changed)) {
            affected.insert(candidate);
        }
    }
    Ok(affected)
}

/// The existing units of some periods that bind more than the period.
fn below<'a>(
    unit: &Partitioning,
    job: &JobSpec,
    periods: &BTreeSet<PartitionKey>,
    existing: &'a BTreeSet<PartitionKey>,
) -> Vec<&'a PartitionKey> {
    let (Some(first), Some(last), false) = (periods.first(), periods.last(), job.keyed_by.is_empty()) else {
        return Vec::new();
    };
    let time = unit.time().map(|(column, _)| column);
    let of_period = |key: &&PartitionKey| periods.contains(&key.only(time));
    if unit.dimensions().first().map(Dimension::column) == time {
        // Keys are ordered by their first column first, so those of the periods stand together.
        let from = existing.range(first..);
        return from.take_while(|key| key.only(time) <= *last).filter(of_period).collect();
    }
    existing.iter().filter(of_period).collect()
}

/// The time in which units can lie that read an input's interval; `None` where the window has no bounds.
fn reach(input: &Calendar, window: &Window, changed: &Interval) -> Option<Interval> {
    let (back, forth) = match window {
        Window::Same | Window::Covering => (0, 0),
        Window::Trailing(n) => (0, i64::from(*n) - 1),
        Window::Between { before, after } => (i64::from(*after), i64::from(*before)),
        Window::PreviousOutput => (0, 1),
        Window::AsOf { .. } | Window::All => return None,
    };
    if (back, forth) == (0, 0) {
        return Some(*changed);
    }
    let first = input.step(&input.key_at(changed.start())?, -back)?;
    let last = input.step(&input.keys_in(changed).last()?, forth)?;
    Some(input.interval(&first)?.hull(&input.interval(&last)?))
}

/// The jobs in an order in which each comes after those whose output it reads.
pub fn dependency_order(catalog: &Catalog) -> Result<Vec<&JobSpec>> {
    let mut graph = DiGraphMap::<&str, ()>::new();
    let producers = producers(catalog);
    for job in catalog.jobs() {
        graph.add_node(job.name.as_str());
        for input in job.inputs.iter().filter(|i| i.table != job.output) {
            for producer in producers.get(&input.table).into_iter().flatten() {
                graph.add_edge(producer.as_str(), job.name.as_str(), ());
            }
        }
    }
    let order = toposort(&graph, None).map_err(|cycle| {
        Error::invalid("jobs read each other in a circle").with_context("job", cycle.node_id())
    })?;
    order.into_iter().map(|name| catalog.job(&JobName::from(name))).collect()
}

/// The named jobs and those that read their output, directly or through others.
pub fn downstream_jobs<'a>(
    catalog: &'a Catalog,
    from: impl IntoIterator<Item = &'a JobName>,
) -> Result<BTreeSet<&'a JobName>> {
    let mut jobs: BTreeSet<&JobName> = from.into_iter().collect();
    let mut tables = BTreeSet::new();
    for job in dependency_order(catalog)? {
        if jobs.contains(&job.name) || job.inputs.iter().any(|input| tables.contains(&input.table)) {
            jobs.insert(&job.name);
            tables.insert(&job.output);
        }
    }
    Ok(jobs)
}

/// The named jobs and those whose output they read, directly or through others.
pub fn upstream_jobs<'a>(
    catalog: &'a Catalog,
    of: impl IntoIterator<Item = &'a JobName>,
) -> Result<BTreeSet<&'a JobName>> {
    let mut jobs: BTreeSet<&JobName> = of.into_iter().collect();
    let mut tables = BTreeSet::new();
    for job in dependency_order(catalog)?.into_iter().rev() {
        if jobs.contains(&job.name) || tables.contains(&job.output) {
            jobs.insert(&job.name);
            tables.extend(job.inputs.iter().map(|input| &input.table));
        }
    }
    Ok(jobs)
}

/// Which jobs write each table.
pub fn producers(catalog: &Catalog) -> BTreeMap<&TableId, Vec<&JobName>> {
    let mut producers = BTreeMap::<_, Vec<_>>::new();
    for job in catalog.jobs() {
        producers.entry(&job.output).or_default().push(&job.name);
    }
    producers
}

#[cfg(test)]
#[path = "lineage_tests.rs"]
mod tests;
