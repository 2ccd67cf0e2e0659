use std::collections::BTreeSet;

use super::facts::{CurrentRun, Existing, Facts, KnownBackfill, Offer, RecordedInputs, Registered};
use super::*;
use crate::domain::ids::{PartitionVersion, TableVersion};
use crate::domain::interval::Grain;
use crate::domain::job::{Catalog, Exposure, JobSpec, MergeSpec, TableSpec, Window, WriteMode};
use crate::domain::partition::Partitioning;
use crate::domain::request::{Inputs, Mode, Order, Selection};
use crate::domain::value::{Value, ValueKind};

const ZONE: chrono_tz::Tz = chrono_tz::America::New_York;

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn date(text: &str) -> Value {
    Value::Date(text.parse().unwrap())
}

fn day(d: u32) -> PartitionKey {
    PartitionKey::of("day", date(&format!("2013-03-{d:02}")))
}

fn week(d: &str) -> PartitionKey {
    PartitionKey::of("week", date(d))
}

fn days() -> Partitioning {
    Partitioning::unpartitioned().with_time("day", Grain::Day, ZONE)
}

/// flights → daily (v1, v2) → weekly by `covering`, → trailing by the last three days.
pub(super) fn catalog() -> Catalog {
    let mut catalog = Catalog::new();
    catalog
        .add_table(TableSpec::new("flights", Partitioning::unpartitioned().with_time("at", Grain::Day, ZONE)))
        .unwrap();
    catalog.add_table(TableSpec::new("daily", days().with_key("carrier", ValueKind::Text))).unwrap();
    catalog
        .add_table(TableSpec::new(
            "weekly",
            Partitioning::unpartitioned().with_time("week", Grain::Week, ZONE),
        ))
        .unwrap();
    catalog.add_table(TableSpec::new("trend", days())).unwrap();
    catalog.add_table(TableSpec::new("balance", days())).unwrap();
    let daily = JobSpec::new("daily", "ops", "daily").with_input("flights", "flights", Window::Same);
    catalog.add_job(daily).unwrap();
    catalog
        .add_job(JobSpec::new("weekly", "bi", "weekly").with_input("daily", "daily", Window::Covering))
        .unwrap();
    catalog
        .add_job(JobSpec::new("trend", "bi", "trend").with_input("daily", "daily", Window::Trailing(3)))
        .unwrap();
    let balance = JobSpec::new("balance", "finance", "balance")
        .with_input("flights", "flights", Window::Same)
        .with_input("yesterday", "balance", Window::PreviousOutput);
    catalog.add_job(balance).unwrap();
    let board = Exposure { name: "board".into(), owner: "ceo".into(), tables: vec!["weekly".into()] };
    catalog.add_exposure(board);
    catalog
}

pub(super) fn range(first: u32, last: u32) -> Selection {
    let of = |d| date(&format!("2013-03-{d:02}"));
    Selection::Range { first: of(first), last: of(last) }
}

pub(super) fn request(selection: Selection) -> Request {
    Request::new("fix", selection, "cancelled flights were counted", "ann").with_job("daily", "v2")
}

/// Facts in which everything is at version 1 and nothing has run.
pub(super) fn facts(request: &Request, catalog: &Catalog, existing: Existing) -> Facts {
    let needs = expand(request, catalog, &existing).unwrap();
    let mut facts = Facts { existing, ..Facts::default() };
    let one = || PartitionVersion::new("1");
    for (table, slices) in needs.slices {
        facts.pins.insert(table.clone(), TableVersion::new("1"));
        facts.slices.insert(table, slices.into_iter().map(|slice| (slice, one())).collect());
    }
    for (table, scopes) in needs.bases {
        let partitions = scopes.iter().flat_map(Scope::partitions).map(|key| (key, one())).collect();
        facts.bases.insert(table.clone(), Base::new(TableVersion::new("1"), partitions));
        let all = Offer {
            merge: true,
            replace_dynamic: true,
            query: true,
            restore: true,
            schema_change: true,
            shadow: true,
        };
        facts.offers.insert(table, all);
    }
    for job in catalog.jobs() {
        let versions = [("v1".into(), None), ("v2".into(), None)].into();
        facts.registered.insert(job.name.clone(), Registered { versions, current: Some("v1".into()) });
        facts.outputs.insert(job.output.clone(), TableVersion::new("7"));
    }
    facts
}

pub(super) fn planned(request: &Request, catalog: &Catalog, existing: Existing) -> Plan {
    plan(request, catalog, &facts(request, catalog, existing), at("2013-04-01T00:00:00Z")).unwrap()
}

fn units(plan: &Plan) -> Vec<PartitionKey> {
    plan.tasks.iter().flat_map(|t| t.units.clone()).collect()
}

fn refusal(request: &Request, catalog: &Catalog) -> String {
    expand(request, catalog, &Existing::new()).unwrap_err().to_string()
}

#[test]
fn a_range_includes_its_first_and_last_partition() {
    let catalog = catalog();
    assert_eq!(
        units(&planned(&request(range(9, 11)), &catalog, Existing::new())),
        [day(9), day(10), day(11)]
    );
    assert_eq!(units(&planned(&request(range(9, 9)), &catalog, Existing::new())), [day(9)]);
    let plan = planned(&request(range(10, 10)), &catalog, Existing::new());
    let interval = plan.tasks[0].interval.unwrap();
    assert_eq!((interval.start(), interval.end()), (at("2013-03-10T05:00:00Z"), at("2013-03-11T04:00:00Z")));
}

#[test]
fn a_wrong_request_is_refused_with_the_reason() {
    let catalog = catalog();
    let reversed = request(range(11, 9));
    assert_eq!(
        refusal(&reversed, &catalog),
        "the range ends before it begins: 2013-03-11 to 2013-03-09 (backfill fix); name the first partition, then the \
         last; both are included"
    );
    let unknown = request(range(9, 9)).with_job("hourly", "v1");
    assert_eq!(
        refusal(&unknown, &catalog),
        "job `hourly` is not declared; declared jobs: balance, daily, trend, weekly"
    );
    let outside = request(Selection::Keys([PartitionKey::of("planet", "Mars")].into()));
    assert_eq!(
        refusal(&outside, &catalog),
        "`planet` is no dimension of the table (partition planet=Mars, job daily); its dimensions are: day, carrier"
    );
    let timeless = request(Selection::Keys([PartitionKey::of("carrier", "AA")].into()));
    assert!(
        refusal(&timeless, &catalog)
            .starts_with("the key does not bind the time dimension (partition carrier=AA")
    );
    let mut mute = request(range(9, 9));
    mute.reason = " ".into();
    assert!(refusal(&mute, &catalog).starts_with("a backfill needs a reason"));
    assert!(
        refusal(&request(Selection::Keys(BTreeSet::new())), &catalog)
            .starts_with("the selection names no partition")
    );
}

#[test]
fn jobs_that_replace_what_another_writes_are_refused_and_merges_are_not() {
    let mut catalog = catalog();
    let again = JobSpec::new("by_hand", "ops", "daily").with_input("flights", "flights", Window::Same);
    catalog.add_job(again).unwrap();
    assert_eq!(
        refusal(&request(range(9, 11)).with_job("by_hand", "v1"), &catalog),
        "the jobs `daily` and `by_hand` write the same partitions (table daily); ask for one of them, or for \
         partitions in which they do not meet"
    );
    let weeks = Partitioning::unpartitioned().with_time("week", Grain::Week, ZONE);
    let merge = || WriteMode::Merge(MergeSpec::by(["id"]).newer("changed_at"));
    catalog.add_table(TableSpec::new("prices", days())).unwrap();
    catalog.add_job(JobSpec::new("daily_prices", "ops", "prices").with_write(merge())).unwrap();
    let weekly = JobSpec::new("weekly_prices", "ops", "prices").with_unit(weeks).with_write(merge());
    catalog.add_job(weekly).unwrap();
    let both = Request::new("fix", range(11, 12), "a wrong rate", "ann")
        .with_job("daily_prices", "v1")
        .with_job("weekly_prices", "v1");
    let plan = planned(&both, &catalog, Existing::new());
    let scopes: Vec<_> = plan.tasks.iter().map(|task| task.scope.to_string()).collect();
    assert_eq!(scopes, ["the whole table", "day=2013-03-11", "day=2013-03-12"]);
    let bases: Vec<_> = plan.tasks.iter().map(|task| task.base.partitions.len()).collect();
    assert_eq!(bases, [1, 1, 1]);
}

#[test]
fn what_is_unchanged_rolled_back_or_live_is_skipped_with_the_reason() {
    let mut catalog = Catalog::new();
    for table in self::catalog().tables() {
        catalog.add_table(table.clone()).unwrap();
    }
    let daily = JobSpec::new("daily", "ops", "daily")
        .with_input("flights", "flights", Window::Same)
        .with_live_window(2);
    catalog.add_job(daily).unwrap();
    let request = request(range(27, 31));
    let first = planned(&request, &catalog, Existing::new());
    let fingerprint =
        |key: &PartitionKey| match &first.tasks.iter().find(|t| t.units[0] == *key).unwrap().action {
            Action::Compute { fingerprint, .. } => fingerprint.clone(),
            other => panic!("{other:?} is none of a backfill's own"),
        };
    let run = |output: &str, fingerprint| CurrentRun {
        position: 1,
        run: "fix.1".into(),
        fingerprint,
        output: Some(PartitionVersion::new(output)),
        rolled_back: None,
    };
    let mut facts = facts(&request, &catalog, Existing::new());
    let current = facts.current.entry("daily".into()).or_default();
    current.insert(day(27), run("1", fingerprint(&day(27))));
    // The table moved since that run, so the same fingerprint proves nothing.
    current.insert(day(28), run("0", fingerprint(&day(28))));
    current.insert(day(29), CurrentRun { rolled_back: Some("fix".into()), ..run("1", None) });
    // 1 April 00:00 UTC is still 31 March in New York, so 30 and 31 are the live window.
    let plan = plan(&request, &catalog, &facts, at("2013-04-01T00:00:00Z")).unwrap();
    assert_eq!(units(&plan), [day(28)]);
    let reasons: Vec<_> = plan.skipped.iter().map(|s| (s.partition.clone(), s.reason.to_string())).collect();
    let expected = [
        (day(27), "unchanged since run fix.1"),
        (day(29), "rolled back by run fix.1"),
        (day(30), "in the live window"),
        (day(31), "in the live window"),
    ];
    assert_eq!(reasons, expected.map(|(key, text)| (key, text.to_owned())));
    let forced = super::plan(&request.with_force(), &catalog, &facts, at("2013-04-01T00:00:00Z")).unwrap();
    assert_eq!(units(&forced), [day(27), day(28), day(29)]);
}

#[test]
fn what_cannot_run_is_refused_with_every_reason() {
    let mut catalog = Catalog::new();
    for table in self::catalog().tables() {
        catalog.add_table(table.clone()).unwrap();
    }
    let appends = JobSpec::new("daily", "ops", "daily").with_write(WriteMode::Append);
    catalog.add_job(appends).unwrap();
    let mut request = request(range(9, 9));
    request.jobs.insert("daily".into(), "v3".into());
    let mut facts = facts(&request, &catalog, Existing::new());
    facts.offers.get_mut(&TableId::from("daily")).unwrap().shadow = false;
    let plan = plan(&request, &catalog, &facts, at("2013-04-01T00:00:00Z")).unwrap();
    let reasons: Vec<_> = plan.refused.iter().map(|r| r.reason.as_str()).collect();
    assert_eq!(
        reasons,
        [
            "it appends, so running it again would double its rows; replace its partitions or merge by key instead",
            "logic version `v3` is not registered; the host has: v1, v2",
            "the backend of table `daily` has no shadow: use mode direct",
        ]
    );
    assert!(plan.tasks.is_empty());
}

#[test]
fn a_job_that_reads_the_partition_it_writes_cannot_be_declared() {
    let mut catalog = catalog();
    let own = JobSpec::new("loop", "ops", "daily").with_input("daily", "daily", Window::Same);
    assert_eq!(
        catalog.add_job(own).unwrap_err().to_string(),
        "a job must not read the partition that it writes (input daily, job loop); a re-run would read its own result; \
         read `previous_output`, or split the job in two"
    );
}

#[test]
fn inputs_that_expire_before_the_plan_ends_refuse_it() {
    let catalog = catalog();
    let request = request(range(9, 10));
    let mut facts = facts(&request, &catalog, Existing::new());
    facts.readable_until.insert("flights".into(), Some(at("2013-04-01T00:10:00Z")));
    let sample = crate::domain::estimate::Sample::new(600_000, 1);
    let as_of = at("2013-04-01T00:00:00Z");
    assert_eq!(plan(&request, &catalog, &facts, as_of).unwrap().tasks.len(), 2, "no history, so no time");
    facts.history.add("daily".into(), day(1), sample);
    let plan = plan(&request, &catalog, &facts, as_of).unwrap();
    assert_eq!((plan.tasks.len(), plan.refused.len()), (0, 2));
    assert_eq!(
        plan.refused[0].reason,
        "input `flights` can be read until 2013-04-01 00:10:00 UTC, and the plan may run until 2013-04-01 00:20:00 UTC; \
         rebuild it from a raw archive, or split the range"
    );
}

#[test]
fn a_key_below_the_unit_is_widened_and_shown() {
    let catalog = catalog();
    let plan =
        planned(&request(Selection::Keys([day(9).and("carrier", "AA")].into())), &catalog, Existing::new());
    assert_eq!(units(&plan), [day(9)]);
    assert_eq!(
        plan.widened[0].text,
        "day=2013-03-09/carrier=AA is widened to day=2013-03-09: a task of this job covers every key of its period"
    );
}

#[test]
fn a_coarser_job_of_the_request_is_rounded_outward_and_shown() {
    let catalog = catalog();
    let request = request(range(6, 12)).with_job("weekly", "v1");
    let plan = planned(&request, &catalog, Existing::new());
    let weeks: Vec<_> = plan.tasks.iter().filter(|t| t.job.as_str() == "weekly").collect();
    assert_eq!(
        weeks.iter().map(|t| t.units[0].clone()).collect::<Vec<_>>(),
        [week("2013-03-04"), week("2013-03-11")]
    );
    // Monday 4 to Sunday 10 holds days 6 to 10, the tasks 0 to 4; Monday 11 on holds 11 and 12.
    assert_eq!(weeks[0].after, [0, 1, 2, 3, 4].map(TaskId));
    assert_eq!(weeks[1].after, [5, 6].map(TaskId));
    assert!(plan.widened.iter().any(|w| w.text
        == "2013-03-06 to 2013-03-12 is rounded outward to week=2013-03-04 to week=2013-03-11, since it runs by week in \
            America/New_York"));
}

#[test]
fn many_causes_make_one_downstream_task() {
    let catalog = catalog();
    let weekly = ["2013-03-04", "2013-03-11", "2013-03-18"].map(week);
    let existing =
        Existing::from([("weekly".into(), weekly.into()), ("trend".into(), (1..=31).map(day).collect())]);
    let plan = planned(&request(range(6, 12)), &catalog, existing.clone());
    let weeks: Vec<_> = plan.downstream.iter().filter(|d| d.job.as_str() == "weekly").collect();
    let found: Vec<_> = weeks.iter().map(|d| (d.partition.clone(), d.causes.len())).collect();
    assert_eq!(found, [(week("2013-03-04"), 5), (week("2013-03-11"), 2)]);
    // The last three days of day d are d-2 to d, so days 6 to 12 reach 6 to 14.
    let trend: Vec<_> =
        plan.downstream.iter().filter(|d| d.job.as_str() == "trend").map(|d| d.partition.clone()).collect();
    assert_eq!(trend, (6..=14).map(day).collect::<Vec<_>>());
    assert_eq!(plan.exposures.len(), 1);
    assert_eq!(plan.owners, ["bi", "ceo", "ops"]);
    let alone = planned(&request(range(6, 12)).without_propagation(), &catalog, existing);
    assert!(alone.downstream.is_empty());
    assert_eq!(alone.warnings, ["left as they are, though they read what changes: trend, weekly"]);
}

#[test]
fn a_job_that_reads_itself_runs_in_order_and_reaches_what_comes_later() {
    let catalog = catalog();
    let mut request = request(range(9, 11));
    request.jobs = [("balance".into(), "v2".into())].into();
    let existing = Existing::from([("balance".into(), (1..=14).map(day).collect())]);
    let plan = planned(&request, &catalog, existing);
    let produced = |task: &Task| match &task.action {
        Action::Compute { inputs, fingerprint } => {
            (inputs["yesterday"].produced_by.clone(), fingerprint.is_some())
        }
        other => panic!("{other:?} reads nothing that is pinned"),
    };
    let found: Vec<_> = plan.tasks.iter().take(3).map(produced).collect();
    assert_eq!(found, [(vec![], true), (vec![TaskId(0)], false), (vec![TaskId(1)], false)]);
    assert_eq!(plan.tasks[2].after, [TaskId(1)]);
    let later: Vec<_> = plan.downstream.iter().map(|d| d.partition.clone()).collect();
    assert_eq!(later, [day(12), day(13), day(14)]);
}

#[test]
fn a_merge_without_order_is_widened_to_every_later_interval() {
    let merge = |spec| {
        let mut catalog = Catalog::new();
        catalog.add_table(TableSpec::new("customers", Partitioning::unpartitioned())).unwrap();
        let job =
            JobSpec::new("daily", "crm", "customers").with_unit(days()).with_write(WriteMode::Merge(spec));
        catalog.add_job(job).unwrap();
        catalog
    };
    let existing = Existing::from([("customers".into(), (1..=5).map(day).collect())]);
    let unordered = planned(&request(range(3, 3)), &merge(MergeSpec::by(["id"])), existing.clone());
    assert_eq!(units(&unordered), [day(3), day(4), day(5)]);
    assert_eq!(unordered.tasks[2].after, [TaskId(1)]);
    assert_eq!(
        unordered.widened[0].text,
        "2 later intervals are merged again in order, since no `newer` column says which row wins"
    );
    let ordered = planned(&request(range(3, 3)), &merge(MergeSpec::by(["id"]).newer("changed_at")), existing);
    assert_eq!(units(&ordered), [day(3)]);
    assert!(ordered.tasks[0].scope.is_whole_table());
}

#[test]
fn several_partitions_make_one_commit_where_job_and_request_allow_it() {
    let mut catalog = Catalog::new();
    for table in self::catalog().tables() {
        catalog.add_table(table.clone()).unwrap();
    }
    let daily = JobSpec::new("daily", "ops", "daily")
        .with_input("flights", "flights", Window::Same)
        .with_partitions_per_commit(3);
    catalog.add_job(daily).unwrap();
    let plan = planned(&request(range(1, 7)).with_partitions_per_commit(30), &catalog, Existing::new());
    assert_eq!(plan.tasks.iter().map(|t| t.units.len()).collect::<Vec<_>>(), [3, 3, 1]);
    // A week begins on the 4th; the job allows three at a time.
    let weeks = request(range(1, 7)).with_commit_by(Grain::Week);
    let plan = planned(&weeks, &catalog, Existing::new());
    assert_eq!(plan.tasks.iter().map(|t| t.units.len()).collect::<Vec<_>>(), [3, 3, 1]);
    let plan = planned(&request(range(2, 7)).with_commit_by(Grain::Week), &catalog, Existing::new());
    assert_eq!(plan.tasks.iter().map(|t| t.units.len()).collect::<Vec<_>>(), [2, 3, 1]);
    let ordered = request(range(1, 7)).with_order(Order::OldestFirst);
    let plan = planned(&ordered, &catalog, Existing::new());
    assert_eq!(plan.tasks[6].after, [TaskId(5)]);
}

#[test]
fn a_replay_reads_what_the_run_recorded_or_is_refused() {
    let catalog = catalog();
    let replay = request(range(9, 10)).with_inputs(Inputs::Recorded { by: "fix.1".into() });
    let mut facts = facts(&replay, &catalog, Existing::new());
    let first = planned(&request(range(9, 10)), &catalog, Existing::new());
    let Action::Compute { inputs, .. } = &first.tasks[0].action else { panic!("a task that computes") };
    let mut pin = inputs["flights"].pin.as_ref().clone();
    pin.version = TableVersion::new("0");
    pin.content = PartitionVersion::new("0");
    let recorded = RecordedInputs { pins: [("flights".into(), pin.clone())].into(), expired: Vec::new() };
    facts.recorded.insert(("daily".into(), day(9)), recorded.clone());
    let expired = RecordedInputs { expired: vec!["flights".into()], ..recorded };
    facts.recorded.insert(("daily".into(), day(10)), expired);
    let plan = plan(&replay, &catalog, &facts, at("2013-04-01T00:00:00Z")).unwrap();
    let Action::Compute { inputs, .. } = &plan.tasks[0].action else { panic!("a task that computes") };
    assert_eq!(*inputs["flights"].pin, pin);
    assert_eq!(
        plan.refused[0].reason,
        "the version of `flights` that run `fix.1` read can no longer be read"
    );
}

#[test]
fn the_same_arguments_give_the_same_bytes_and_read_back_the_same() {
    let catalog = catalog();
    let request = request(range(4, 24)).with_mode(Mode::Direct).with_job("weekly", "v1");
    let json = || serde_json::to_string(&planned(&request, &catalog, Existing::new())).unwrap();
    assert_eq!(json(), json());
    let back = Plan::from_json(&json()).unwrap();
    assert_eq!(serde_json::to_string(&back).unwrap(), json());
    assert_eq!(back.run(), RunId::from("fix.1"));
}

#[test]
fn a_plan_of_a_newer_form_or_with_tasks_out_of_order_is_refused() {
    let catalog = catalog();
    let plan = planned(&request(range(9, 10)), &catalog, Existing::new());
    let newer = serde_json::to_string(&Plan { format: PLAN_FORMAT + 1, ..plan.clone() }).unwrap();
    assert_eq!(Plan::from_json(&newer).unwrap_err().kind(), ErrorKind::Corrupt);
    let mut twisted = plan;
    twisted.tasks.swap(0, 1);
    let twisted = serde_json::to_string(&twisted).unwrap();
    assert_eq!(
        Plan::from_json(&twisted).unwrap_err().to_string(),
        "task 0 of the plan does not fit the others"
    );
    assert!(Plan::from_json("{").is_err());
}

#[test]
fn a_backfill_that_ended_opens_a_new_generation() {
    let catalog = catalog();
    let request = request(range(9, 9));
    let mut facts = facts(&request, &catalog, Existing::new());
    let generation =
        |facts: &Facts| plan(&request, &catalog, facts, at("2013-04-01T00:00:00Z")).unwrap().generation;
    assert_eq!(generation(&facts), 1);
    facts.backfill = Some(KnownBackfill { generation: 1, open: true });
    assert_eq!(generation(&facts), 1);
    facts.backfill = Some(KnownBackfill { generation: 1, open: false });
    assert_eq!(generation(&facts), 2);
}

#[test]
fn a_correction_reaches_what_was_computed_by_key_or_with_the_whole_table() {
    let mut catalog = catalog();
    let by_carrier = || days().with_key("carrier", ValueKind::Text);
    catalog.add_table(TableSpec::new("delays", by_carrier())).unwrap();
    let delays = JobSpec::new("delays", "bi", "delays")
        .with_input("daily", "daily", Window::Same)
        .with_keyed_by(["carrier"]);
    catalog.add_job(delays).unwrap();
    let reached = |job: &str, existing: &[PartitionKey]| {
        let mut changed = downstream::Changed::default();
        changed.add(&"daily".into(), [day(5)]);
        let existing = Existing::from([(job.into(), existing.iter().cloned().collect())]);
        let reached = downstream::reach(&catalog, &changed, &existing).unwrap();
        reached.partitions.into_iter().map(|d| d.partition).collect::<Vec<_>>()
    };
    let ua = |d| day(d).and("carrier", "UA");
    assert_eq!(reached("delays", &[ua(4), ua(5), day(6)]), [ua(5)]);
    assert_eq!(reached("delays", &[day(5)]), [day(5)]);
    assert_eq!(reached("trend", &[PartitionKey::whole()]), [day(5), day(6), day(7)]);
}

#[test]
fn two_years_of_days_are_estimated_as_a_hand_worked_them_out() {
    let catalog = catalog();
    let two_years = Selection::Range { first: date("2011-01-01"), last: date("2012-12-30") };
    let request = request(two_years).with_concurrency(20);
    let mut facts = facts(&request, &catalog, Existing::new());
    let sample = crate::domain::estimate::Sample::new(5 * 60_000, 1_000_000)
        .with_read_bytes(2_700_000_000)
        .with_written_bytes(2_700_000_000);
    facts.history.add("daily".into(), day(1), sample);
    let plan = plan(&request, &catalog, &facts, at("2013-04-01T00:00:00Z")).unwrap();
    assert_eq!(plan.tasks.len(), 730);
    // 37 waves of 20 tasks at 5 minutes; 730 times 2.7 GB are 1.971 TB.
    assert_eq!(
        plan.estimate.to_string(),
        "tasks: 730, 20 at a time\nwall time: about 3 h 5 min\nrows: 730000000\nread: 2.0 TB\nwrite: 2.0 TB\n\
         shadow storage: 2.0 TB"
    );
}

#[test]
fn a_plan_as_it_is_stored() {
    let catalog = catalog();
    let request = request(range(9, 10)).with_job("weekly", "v1").with_parameter("rate", 2);
    let existing = Existing::from([("trend".into(), (9..=12).map(day).collect())]);
    let plan = planned(&request, &catalog, existing);
    insta::assert_snapshot!(serde_json::to_string_pretty(&plan).unwrap());
}
