//! A plan: what it does, what it leaves out, what follows, what it costs.

use std::collections::BTreeMap;

use super::spans::{self, Span};
use super::text::{Page, count, cut, grouped, instant};
use crate::domain::ids::{JobName, LogicVersion};
use crate::domain::plan::{Action, Downstream, Plan, Task};
use crate::domain::request::{
    Expected, Inputs, Mode, Order, Request, SchemaPolicy, Selection, WhenLeased, WhenMoved,
};
use crate::domain::validate::Severity;

/// The plan, with up to `shown` lines of each list.
pub fn plan(plan: &Plan, shown: usize) -> String {
    let mut page = header(plan);
    runs(&mut page, plan, shown);
    reads(&mut page, plan, shown);
    skipped(&mut page, plan, shown);
    refused(&mut page, plan, shown);
    list(&mut page, "Widened", shown, plan.widened.iter().map(|w| format!("{}: {}", w.job, w.text)));
    downstream(&mut page, plan, shown);
    let exposures = plan.exposures.iter().map(|e| {
        let tables: Vec<_> = e.tables.iter().map(ToString::to_string).collect();
        format!("{} ({}) consumes {}", e.name, e.owner, tables.join(", "))
    });
    list(&mut page, "Exposures", shown, exposures);
    if !plan.owners.is_empty() {
        page.section("To notify");
        page.item(plan.owners.join(", "));
    }
    list(&mut page, "Warnings", shown, plan.warnings.iter().cloned());
    if plan.rolls_back.is_none() {
        page.section("Cost");
        plan.estimate.to_string().lines().for_each(|line| page.item(line));
    }
    page.finish()
}

fn header(plan: &Plan) -> Page {
    let request = &plan.request;
    let mut page = Page::new(match &plan.rolls_back {
        Some(of) => format!("Plan of rollback `{}`, which takes back backfill `{of}`", request.id),
        None => format!("Plan of backfill `{}`", request.id),
    });
    page.field("digest", plan.digest());
    let again = if plan.generation > 1 { ", opened again" } else { "" };
    page.field("run", format!("{} (generation {}{again})", plan.run(), plan.generation));
    let job = |(job, logic): (&JobName, &LogicVersion)| match plan.rolls_back {
        Some(_) => job.to_string(),
        None => format!("{job} {logic}"),
    };
    let jobs: Vec<_> = request.jobs.iter().map(job).collect();
    page.field(if jobs.len() == 1 { "job" } else { "jobs" }, jobs.join(", "));
    page.field("selection", selection(&request.selection));
    page.field("why", &request.reason);
    page.field("asked by", format!("{}, planned {}", request.requester, instant(plan.as_of)));
    page.field(
        "mode",
        match request.mode {
            Mode::Direct => "direct: each task commits as it ends",
            Mode::Shadow => "shadow: outputs wait for a review, then one publication commits them",
        },
    );
    page.field("policy", policies(request).join("; "));
    for expected in &request.expectations {
        page.field("expects", expectation(expected));
    }
    for (name, value) in &request.parameters {
        page.field("parameter", format!("{name} = {value}"));
    }
    page
}

fn selection(selection: &Selection) -> String {
    match selection {
        Selection::Range { first, last } => format!("{first} to {last}, both included"),
        Selection::Keys(keys) => spans::line(keys, 5),
        Selection::WholeTable => "the whole table".to_owned(),
    }
}

fn policies(request: &Request) -> Vec<String> {
    let mut all = vec![format!("{} at a time", count_tasks(request.concurrency))];
    let mut add = |told: bool, text: &str| {
        if told {
            all.push(text.to_owned());
        }
    };
    add(request.order == Order::OldestFirst, "oldest first");
    add(request.force, "also what is unchanged or was rolled back");
    add(request.when_moved == WhenMoved::Overwrite, "overwrites what moved");
    add(request.when_leased == WhenLeased::Skip, "skips what another run holds");
    add(request.when_leased == WhenLeased::Fail, "fails where another run holds a partition");
    add(request.schema == SchemaPolicy::AddNullable, "adds columns");
    add(request.schema == SchemaPolicy::Rebuild, "rebuilds with other columns");
    add(request.keep_replaced, "keeps what it replaces");
    add(!request.keep_replaced, "does not keep what it replaces");
    add(request.deliver, "releases deliveries");
    add(!request.deliver, "holds deliveries back");
    if let Some(grain) = request.commit_by {
        all.push(format!("the partitions of one {grain} in one commit"));
    } else if request.partitions_per_commit > 1 {
        all.push(format!("up to {} partitions in one commit", request.partitions_per_commit));
    }
    if let Inputs::Recorded { by } = &request.inputs {
        all.push(format!("reads exactly what run {by} recorded"));
    }
    all
}

fn count_tasks(n: u32) -> String {
    count(usize::try_from(n).unwrap_or(usize::MAX), "task")
}

fn expectation(expected: &Expected) -> String {
    let of = expected.job.as_ref().map_or_else(String::new, |job| format!("{job}: "));
    let or = match expected.severity {
        Severity::Review => "or a person looks",
        Severity::Abort => "or it stops",
    };
    format!("{of}{}, {or}", expected.expectation)
}

fn runs(page: &mut Page, plan: &Plan, shown: usize) {
    if plan.tasks.is_empty() {
        page.section("Runs: nothing");
        return;
    }
    page.section(format!("Runs: {}", count(plan.tasks.len(), "task")));
    let groups = grouped(plan.tasks.iter().map(|task| (what(task), task)));
    let lines = groups.into_iter().flat_map(|(what, tasks)| {
        let spans = tasks.iter().filter_map(|t| Span::of_units(&t.units, t.interval)).collect();
        let ranges = spans::join(spans);
        ranges.into_iter().map(move |span| format!("{what}: {}", span.text()))
    });
    page.items(shown, lines);
    let ordered = plan.tasks.iter().filter(|t| !t.after.is_empty()).count();
    if ordered > 0 {
        page.item(format!("{} waiting for others of the plan", count(ordered, "task")));
    }
}

fn what(task: &Task) -> String {
    let table = match task.table.as_str() == task.job.as_str() {
        true => String::new(),
        false => format!(" → {}", task.table),
    };
    match &task.action {
        Action::Compute { .. } => format!("{} {}{table}", task.job, task.logic),
        Action::Propagate { .. } => format!("{} {}{table}, downstream", task.job, task.logic),
        Action::Trigger => format!("{}{table}, downstream, run outside of this library", task.job),
        Action::Restore { undo, logic, .. } => {
            let logic =
                logic.as_ref().map_or_else(|| "what was there before".to_owned(), ToString::to_string);
            format!("{}{table}: brings back {logic}, undoing run {undo}", task.job)
        }
    }
}

fn reads(page: &mut Page, plan: &Plan, shown: usize) {
    let mut pinned = BTreeMap::new();
    for task in &plan.tasks {
        let Action::Compute { inputs, .. } = &task.action else { continue };
        for (name, input) in inputs {
            let place = (&task.job, name, &input.pin.table, &input.pin.version);
            *pinned.entry(place).or_insert(false) |= !input.produced_by.is_empty();
        }
    }
    let lines = pinned.into_iter().map(|((job, name, table, version), produced)| {
        let by_name = if name == table.as_str() { String::new() } else { format!(" as `{name}`") };
        let own = if produced { ", and what this plan writes to it" } else { "" };
        format!("{job} reads {table}{by_name} at version {}{own}", cut(version.as_str(), 40))
    });
    list(page, "Inputs", shown, lines);
}

fn skipped(page: &mut Page, plan: &Plan, shown: usize) {
    if plan.skipped.is_empty() {
        return;
    }
    page.section(format!("Skipped: {}", count(plan.skipped.len(), "partition")));
    let groups = grouped(plan.skipped.iter().map(|s| ((&s.job, s.reason.to_string()), &s.partition)));
    let lines = groups.into_iter().flat_map(|((job, reason), keys)| {
        spans::of_keys(keys).into_iter().map(move |span| format!("{job}: {}: {reason}", span.text()))
    });
    page.items(shown, lines);
}

fn refused(page: &mut Page, plan: &Plan, shown: usize) {
    if plan.refused.is_empty() {
        return;
    }
    page.section("Refused: the plan cannot be submitted");
    let groups = grouped(plan.refused.iter().map(|r| ((&r.job, &r.reason), r.partition.as_ref())));
    let lines = groups.into_iter().flat_map(|((job, reason), keys)| {
        let keys: Vec<_> = keys.into_iter().flatten().collect();
        match keys.is_empty() {
            true => vec![format!("{job}: {reason}")],
            false => {
                let spans = spans::of_keys(keys).into_iter();
                spans.map(|span| format!("{job}: {}: {reason}", span.text())).collect()
            }
        }
    });
    page.items(shown, lines);
}

fn downstream(page: &mut Page, plan: &Plan, shown: usize) {
    if plan.downstream.is_empty() {
        return;
    }
    page.section(format!("Downstream: {}", count(plan.downstream.len(), "partition")));
    let groups = grouped(plan.downstream.iter().map(|d| (&d.job, d)));
    let lines = groups.into_iter().flat_map(|(job, all)| {
        let spans = spans::of_keys(all.iter().map(|d| &d.partition));
        let causes = count(causes(&all), "changed partition");
        let last = spans.len().saturating_sub(1);
        spans.into_iter().enumerate().map(move |(place, span)| match place == last {
            true => format!("{job}: {}, because of {causes}", span.text()),
            false => format!("{job}: {}", span.text()),
        })
    });
    page.items(shown, lines);
}

fn causes(all: &[&Downstream]) -> usize {
    let causes: std::collections::BTreeSet<_> = all.iter().flat_map(|d| &d.causes).collect();
    causes.len()
}

fn list(page: &mut Page, heading: &str, shown: usize, lines: impl Iterator<Item = String>) {
    let mut lines = lines.peekable();
    if lines.peek().is_some() {
        page.section(heading);
        page.items(shown, lines);
    }
}
