//! What cannot run, and why.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use super::facts::Facts;
use super::make::Parts;
use super::{Action, Refused, Task, cost};
use crate::domain::ids::{LogicVersion, RunId};
use crate::domain::job::{Catalog, JobSpec, WriteMode};
use crate::domain::partition::PartitionKey;
use crate::domain::request::{Mode, Request, SchemaPolicy, Selection};
use crate::domain::slice::Pin;
use crate::error::Result;

/// Why a job cannot run at all; every reason, not the first only.
pub(super) fn job(
    request: &Request,
    catalog: &Catalog,
    facts: &Facts,
    job: &JobSpec,
    logic: &LogicVersion,
) -> Result<Vec<String>> {
    let mut reasons = Vec::new();
    reasons.extend(write_mode(job));
    let registered = facts.registered.get(&job.name);
    let version = registered.and_then(|r| r.versions.get(logic));
    if version.is_none() {
        let known: Vec<_> =
            registered.iter().flat_map(|r| r.versions.keys()).map(LogicVersion::as_str).collect();
        reasons.push(format!(
            "logic version `{logic}` is not registered; the host has: {}",
            if known.is_empty() { "none".to_owned() } else { known.join(", ") }
        ));
    }
    let offer = facts.offers.get(&job.output).copied().unwrap_or_default();
    let mut needs = |needed: bool, offered: bool, text: &str| {
        if needed && !offered {
            reasons.push(format!("the backend of table `{}` {text}", job.output));
        }
    };
    needs(matches!(job.write, WriteMode::Merge(_)), offer.merge, "does not merge");
    needs(job.write == WriteMode::ReplaceDynamic, offer.replace_dynamic, "does not replace dynamically");
    needs(request.mode == Mode::Shadow, offer.shadow, "has no shadow: use mode direct");
    needs(request.keep_replaced, offer.restore, "cannot keep replaced rows: ask for a backfill without them");
    needs(request.schema != SchemaPolicy::Refuse, offer.schema_change, "does not change columns");
    needs(version.is_some_and(Option::is_some), offer.query, "does not run SQL transforms");
    let whole = request.selection == Selection::WholeTable
        || catalog.table(&job.output)?.partitioning.dimensions().is_empty();
    if request.schema == SchemaPolicy::Rebuild && !whole {
        reasons.push("a rebuild with other columns needs the whole table as its selection".to_owned());
    }
    if request.selection == Selection::WholeTable && job.reads_itself() {
        reasons.push(
            "it reads its own earlier partition, so it cannot be rebuilt as a whole: select a range"
                .to_owned(),
        );
    }
    let merge_over_whole =
        matches!(job.write, WriteMode::Merge(_)) && request.selection == Selection::WholeTable;
    if merge_over_whole && catalog.unit(job)?.time().is_some() {
        reasons.push("a merge job runs by its intervals: select a range of them".to_owned());
    }
    Ok(reasons)
}

fn write_mode(job: &JobSpec) -> Option<String> {
    (job.write == WriteMode::Append).then(|| {
        "it appends, so running it again would double its rows; replace its partitions or merge by key instead".to_owned()
    })
}

/// The pins that a run recorded for the units, or why they cannot be read again.
pub(super) fn recorded(
    facts: &Facts,
    job: &JobSpec,
    units: &[PartitionKey],
    by: &RunId,
) -> Result<BTreeMap<String, Pin>, String> {
    let mut pins: Option<BTreeMap<String, Pin>> = None;
    for unit in units {
        let Some(inputs) = facts.recorded.get(&(job.name.clone(), unit.clone())) else {
            return Err(format!("run `{by}` recorded no inputs for {unit}"));
        };
        if let Some(table) = inputs.expired.first() {
            return Err(format!("the version of `{table}` that run `{by}` read can no longer be read"));
        }
        match &pins {
            Some(first) if *first != inputs.pins => {
                return Err(format!(
                    "run `{by}` read other inputs for {unit}: replay one partition per commit"
                ));
            }
            _ => pins = Some(inputs.pins.clone()),
        }
    }
    pins.ok_or_else(|| format!("run `{by}` recorded no inputs"))
}

/// Refuses every task where an input of one will not be readable until the plan ends: a part of a backfill that fails
/// half-way is worth less than a clear answer now.
pub(super) fn unreadable(request: &Request, facts: &Facts, mut parts: Parts, as_of: DateTime<Utc>) -> Parts {
    if facts.readable_until.values().all(Option::is_none) {
        return parts;
    }
    let ends = as_of.checked_add_signed(cost::longest(request, facts, &parts.tasks)).unwrap_or(as_of);
    let too_short = |task: &Task| match &task.action {
        Action::Compute { inputs, .. } => inputs.values().find_map(|input| {
            let until = facts.readable_until.get(&input.pin.table).copied().flatten()?;
            (until <= ends).then(|| (input.pin.table.clone(), until))
        }),
        Action::Propagate { .. } | Action::Trigger | Action::Restore { .. } => None,
    };
    let Some((table, until)) = parts.tasks.iter().find_map(too_short) else { return parts };
    let reason = format!(
        "input `{table}` can be read until {until}, and the plan may run until {ends}; rebuild it from a raw archive, or \
         split the range"
    );
    for task in std::mem::take(&mut parts.tasks) {
        let refused = |unit| Refused { job: task.job.clone(), partition: Some(unit), reason: reason.clone() };
        parts.refused.extend(task.units.into_iter().map(refused));
    }
    parts
}
