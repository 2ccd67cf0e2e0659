use std::collections::BTreeSet;

use super::facts::{Existing, Facts};
use super::tests::{catalog, facts, planned, range, request};
use super::*;
use crate::domain::interval::Grain;
use crate::domain::job::{Catalog, JobSpec, MergeSpec, TableSpec, Window, WriteMode};
use crate::domain::partition::Partitioning;
use crate::domain::value::Value;

const ZONE: chrono_tz::Tz = chrono_tz::America::New_York;

fn day(d: u32) -> PartitionKey {
    PartitionKey::of("day", Value::Date(format!("2013-03-{d:02}").parse().unwrap()))
}

fn days(first: u32, last: u32) -> BTreeSet<PartitionKey> {
    (first..=last).map(day).collect()
}

fn week(d: u32) -> PartitionKey {
    PartitionKey::of("week", Value::Date(format!("2013-03-{d:02}").parse().unwrap()))
}

fn by_day() -> Partitioning {
    Partitioning::unpartitioned().with_time("day", Grain::Day, ZONE)
}

/// Downstream tasks of a job as `partition: what comes before it`.
fn after(plan: &Plan, job: &str) -> Vec<String> {
    let of_job = plan.tasks.iter().filter(|task| task.is_downstream() && task.job.as_str() == job);
    let name = |id: &TaskId| {
        let task = plan.task(*id).unwrap();
        let (_, value) = task.units[0].bound().next().unwrap();
        format!("{} {}", task.job, &value.to_string()[8..])
    };
    let line = |task: &Task| {
        let before: Vec<_> = task.after.iter().map(name).collect();
        format!("{}: {}", task.units[0], before.join(", "))
    };
    of_job.map(line).collect()
}

/// All tasks of a plan, in their order.
fn order(plan: &Plan) -> Vec<String> {
    let name = |task: &Task| format!("{} {}", task.job, task.units[0]);
    plan.tasks.iter().map(name).collect()
}

/// The tables of the usual catalog with other jobs.
fn with_jobs(jobs: impl IntoIterator<Item = JobSpec>) -> Catalog {
    let mut other = Catalog::new();
    for table in catalog().tables() {
        other.add_table(table.clone()).unwrap();
    }
    other.add_table(TableSpec::new("customers", Partitioning::unpartitioned())).unwrap();
    let daily = JobSpec::new("daily", "ops", "daily").with_input("flights", "flights", Window::Same);
    for job in [daily].into_iter().chain(jobs) {
        other.add_job(job).unwrap();
    }
    other
}

#[test]
fn each_downstream_partition_is_one_task_after_all_that_it_reads() {
    let existing =
        Existing::from([("weekly".into(), [week(4), week(11)].into()), ("trend".into(), days(1, 14))]);
    let plan = planned(&request(range(9, 12)), &catalog(), existing);
    // The trend reads three days, the week of the 4th ends on the 10th.
    let trend = [
        "day=2013-03-09: daily 09",
        "day=2013-03-10: daily 09, daily 10",
        "day=2013-03-11: daily 09, daily 10, daily 11",
        "day=2013-03-12: daily 10, daily 11, daily 12",
        "day=2013-03-13: daily 11, daily 12",
        "day=2013-03-14: daily 12",
    ];
    assert_eq!(after(&plan, "trend"), trend);
    let weeks = ["week=2013-03-04: daily 09, daily 10", "week=2013-03-11: daily 11, daily 12"];
    assert_eq!(after(&plan, "weekly"), weeks);
    // Each stands as early as it can.
    let order = order(&plan);
    assert_eq!(
        order[..4],
        ["daily day=2013-03-09", "trend day=2013-03-09", "daily day=2013-03-10", "trend day=2013-03-10"]
    );
    assert_eq!(order[4..6], ["weekly week=2013-03-04", "daily day=2013-03-11"]);
    assert_eq!(order.len(), 12);
    assert_eq!(plan.warnings, [""; 0]);
    let task = plan.tasks.iter().find(|task| task.job.as_str() == "weekly").unwrap();
    assert_eq!((task.logic.as_str(), task.base.table.as_str()), ("v1", "7"), "as the schedule runs it");
    let Action::Propagate { inputs } = &task.action else { panic!("{task:?}") };
    let read = &inputs["daily"];
    assert_eq!((read.table.as_str(), read.slice.to_string()), ("daily", "day=2013-03-04..2013-03-10".into()));
    assert!(plan.waits_for_publication(task) && plan.commits_at_once(task), "the request is for a shadow");
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(Plan::from_json(&text).unwrap(), plan);
}

#[test]
fn what_reads_itself_follows_partition_by_partition() {
    let existing = Existing::from([("balance".into(), days(1, 12))]);
    let mut request = request(range(9, 10));
    request.jobs = [("balance".into(), "v2".into())].into();
    let plan = planned(&request, &catalog(), existing);
    assert_eq!(after(&plan, "balance"), ["day=2013-03-11: balance 10", "day=2013-03-12: balance 11"]);
}

#[test]
fn rows_without_an_order_are_merged_again_up_to_the_last() {
    let merge = |spec| {
        JobSpec::new("merged", "crm", "customers")
            .with_input("daily", "daily", Window::Same)
            .with_unit(by_day())
            .with_write(WriteMode::Merge(spec))
    };
    let existing = Existing::from([("customers".into(), days(1, 5))]);
    let plan = planned(&request(range(3, 3)), &with_jobs([merge(MergeSpec::by(["id"]))]), existing.clone());
    let again = ["day=2013-03-03: daily 03", "day=2013-03-04: merged 03", "day=2013-03-05: merged 04"];
    assert_eq!(after(&plan, "merged"), again);
    let ordered = with_jobs([merge(MergeSpec::by(["id"]).newer("at"))]);
    assert_eq!(
        after(&planned(&request(range(3, 3)), &ordered, existing), "merged"),
        ["day=2013-03-03: daily 03"]
    );
}

#[test]
fn what_cannot_or_must_not_be_run_is_said_and_what_lies_beyond_is_not_run() {
    let trend = || JobSpec::new("trend", "bi", "trend").with_input("daily", "daily", Window::Trailing(3));
    let balance = JobSpec::new("balance", "bi", "balance").with_input("trend", "trend", Window::Same);
    let existing = Existing::from([("trend".into(), days(1, 14)), ("balance".into(), days(1, 14))]);
    let as_of = "2013-03-14T12:00:00Z".parse().unwrap();
    let make = |job: JobSpec, change: fn(&mut Facts)| {
        let (request, catalog) = (request(range(12, 12)), with_jobs([job, balance.clone()]));
        let mut facts = facts(&request, &catalog, existing.clone());
        change(&mut facts);
        plan(&request, &catalog, &facts, as_of).unwrap()
    };
    // The 12th to the 14th are reached, and the last two days are the schedule's.
    let live = make(trend().with_live_window(2), |_| {});
    assert_eq!(live.warnings, ["trend: partitions in the live window are left to the schedule: 2"]);
    assert_eq!(after(&live, "trend"), ["day=2013-03-12: daily 12"]);
    assert_eq!(after(&live, "balance"), ["day=2013-03-12: trend 12"], "what reads them stays as they do");
    let no_code = make(trend(), |facts| {
        facts.registered.get_mut(&"trend".into()).unwrap().current = None;
    });
    assert_eq!(
        no_code.warnings,
        ["left as they are: partitions of trend, since no logic version of it is registered"]
    );
    assert_eq!(no_code.tasks.len(), 1);
    assert_eq!(no_code.downstream.len(), 6, "they are still named");
    let appends = make(trend().with_write(WriteMode::Append), |_| {});
    assert_eq!(
        appends.warnings,
        [
            "left as they are: partitions of trend, since it appends, so that running it again would double its rows"
        ]
    );
}

#[test]
fn a_job_outside_is_triggered_for_each_period_that_has_ended() {
    let weekly =
        JobSpec::new("weekly", "bi", "weekly").with_input("daily", "daily", Window::Covering).with_external();
    let board = JobSpec::new("trend", "bi", "trend").with_input("weekly", "weekly", Window::Covering);
    let catalog = with_jobs([weekly, board]);
    let existing = Existing::from([("trend".into(), days(10, 12))]);
    let request = request(range(9, 12));
    let facts = facts(&request, &catalog, existing);
    let plan = plan(&request, &catalog, &facts, "2013-03-13T12:00:00Z".parse().unwrap()).unwrap();
    assert_eq!(after(&plan, "weekly"), ["week=2013-03-04: daily 09, daily 10"], "the next week goes on");
    assert!(matches!(plan.tasks[2].action, Action::Trigger));
    // The 11th and 12th read a week that is not run, so that nothing has changed for them.
    assert_eq!(after(&plan, "trend"), ["day=2013-03-10: weekly 04"]);
}

#[test]
fn without_propagation_there_are_no_downstream_tasks() {
    let existing = Existing::from([("trend".into(), days(1, 14))]);
    let plan = planned(&request(range(9, 12)).without_propagation(), &catalog(), existing);
    assert!(!plan.propagates());
    assert_eq!(plan.warnings, ["left as they are, though they read what changes: trend"]);
}
