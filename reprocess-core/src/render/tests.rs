//! What a person sees, as snapshots.

use std::collections::BTreeMap;

use insta::assert_snapshot;

use super::SHOWN;
use super::fixtures::{at, date, day, finding, no_findings, plan, profile, result, row, task};
use crate::domain::diff::{Diff, Distribution, RowDiff};
use crate::domain::ids::RunId;
use crate::domain::job::Exposure;
use crate::domain::partition::PartitionKey;
use crate::domain::plan::{Action, Refused, SkipReason, Skipped, TaskId, Widened};
use crate::domain::request::{Mode, WhenMoved};
use crate::domain::scope::Scope;
use crate::domain::slice::Kept;
use crate::domain::validate::{Decision, Expectation, Severity};
use crate::engine::{Explanation, Review, StagedOutput, Status};
use crate::ports::delivery::{Delivery, DeliveryOrigin, DeliveryRecord, DeliveryState};
use crate::ports::ledger::{
    Approval, BackfillRecord, BackfillState, Outdated, Progress, RunStatus, StalePartition, TaskRecord,
    TaskState, Trigger,
};
use crate::ports::writer::{Op, StagedId, StampId};

#[test]
fn a_plan_reads_well() {
    let mut full = plan();
    full.skipped = vec![
        Skipped {
            job: "daily_departures".into(),
            partition: day(10),
            reason: SkipReason::RolledBack { by: RunId::from("fix-cancelled.rollback-1.1") },
        },
        Skipped { job: "daily_departures".into(), partition: day(25), reason: SkipReason::LiveWindow },
        Skipped { job: "daily_departures".into(), partition: day(26), reason: SkipReason::LiveWindow },
    ];
    full.refused = (1..=2)
        .map(|d| Refused {
            job: "daily_departures".into(),
            partition: Some(day(d)),
            reason: "input `flights` can be read until 2013-04-01, and the plan may run until 2013-04-03; rebuild it \
                     from a raw archive, or split the range"
                .to_owned(),
        })
        .collect();
    full.widened = vec![Widened {
        job: "daily_departures".into(),
        text: "reads flights of `flights`: the last 7 periods".into(),
    }];
    full.exposures = vec![Exposure {
        name: "departures dashboard".into(),
        owner: "planning@example.org".into(),
        tables: vec!["daily_departures".into(), "weekly_departures".into()],
    }];
    full.warnings =
        vec!["2 tasks cover time that is not over yet; what arrives later is not in it".to_owned()];
    full.request = full
        .request
        .with_expectation(Expectation::RowCountUnchanged)
        .with_expectation(Expectation::TotalOnlyFalls { column: "departures".to_owned() })
        .with_parameter("minimum", 1);
    assert_snapshot!("plan", super::plan(&full, SHOWN));
}

#[test]
fn a_plan_with_long_lists_is_cut_and_says_so() {
    let mut scattered = plan();
    scattered.tasks = (0..6).map(|i| task(i, 4 + 2 * i)).collect();
    scattered.request.mode = Mode::Direct;
    scattered.request.when_moved = WhenMoved::Overwrite;
    assert_snapshot!("plan_cut", super::plan(&scattered, 2));
}

#[test]
fn a_rollback_says_what_comes_back() {
    let mut rollback = plan();
    rollback.rolls_back = Some("fix-cancelled".into());
    rollback.tasks.truncate(2);
    rollback.downstream.clear();
    for task in &mut rollback.tasks {
        task.action = Action::Restore {
            undo: "fix-cancelled.1".into(),
            kept: Kept(serde_json::Value::Null),
            logic: Some("v1".into()),
            fingerprint: None,
        };
    }
    assert_snapshot!("plan_rollback", super::plan(&rollback, SHOWN));
    rollback.tasks.clear();
    assert!(super::plan(&rollback, SHOWN).contains("Runs: nothing"));
}

fn review_of_three_days() -> Review {
    let output = |task: u32, d: u32, result| StagedOutput {
        task: TaskId(task),
        table: "daily_departures".into(),
        scope: Scope::key(day(d)).unwrap(),
        result,
    };
    Review {
        backfill: "fix-cancelled".into(),
        digest: "0123456789abcdef".to_owned(),
        decision: Decision::Review,
        outputs: vec![
            output(0, 4, result(4, "917", ("917", "891"), no_findings())),
            output(1, 5, result(5, "1003", ("1003", "998"), no_findings())),
            output(
                2,
                6,
                result(
                    6,
                    "902",
                    ("902", "1000"),
                    finding(6, Severity::Review, "the total of `departures` rises"),
                ),
            ),
        ],
    }
}

#[test]
fn a_review_shows_every_partition_before_and_after() {
    let mut review = review_of_three_days();
    assert_snapshot!("review", super::review(&review, SHOWN));
    assert_snapshot!("review_cut", super::review(&review, 1));
    // A first run has nothing before it, and one without expectations is not judged.
    review.outputs.truncate(1);
    review.outputs[0].result.before = vec![profile(day(4), 0, &[])];
    review.outputs[0].result.verdict = None;
    assert_snapshot!("review_new", super::review(&review, SHOWN));
    review.outputs.clear();
    assert!(super::review(&review, SHOWN).contains("Nothing is staged"));
}

#[test]
fn ledger_rows_are_a_table() {
    let mut failed = row(9, "daily-2013-03-05", "v1", 5);
    failed.record.status = RunStatus::Failed;
    failed.record.trigger = Trigger::Scheduled;
    failed.record.approval = None;
    failed.record.after = None;
    failed.record.error = Some("the transform failed (job daily_departures): no such file".to_owned());
    let rows = [row(7, "fix-cancelled.1", "v2", 4), failed];
    assert_snapshot!("ledger", super::ledger(&rows, SHOWN));
    assert_snapshot!("ledger_cut", super::ledger(&rows, 1));
    assert_eq!(super::ledger(&[], SHOWN), "Ledger: 0 rows\n");
}

#[test]
fn an_explanation_names_logic_inputs_and_people() {
    let mut explained = Explanation {
        table: "daily_departures".into(),
        partition: day(4),
        current: Some(row(7, "fix-cancelled.1", "v2", 4)),
        as_left: Some(true),
        stale: vec![StalePartition {
            job: "daily_departures".into(),
            table: "daily_departures".into(),
            partition: day(4),
            because: "flights-fix.1".into(),
            position: 12,
        }],
        history: vec![row(7, "fix-cancelled.1", "v2", 4), row(2, "daily-2013-03-04", "v1", 4)],
    };
    assert_snapshot!("explanation", super::explanation(&explained, SHOWN));
    explained.current = None;
    explained.as_left = None;
    explained.stale.clear();
    explained.history.clear();
    assert_snapshot!("explanation_empty", super::explanation(&explained, SHOWN));
}

fn status_in(state: BackfillState) -> Status {
    let mut record = BackfillRecord::new(plan(), "fedcba9876543210", "ada".into(), at(1));
    record.state = state;
    record.changed_at = at(9);
    record.approvals = vec![Approval {
        by: "grace".into(),
        at: at(2),
        digest: "fedcba9876543210".into(),
        comment: "go".into(),
    }];
    let tasks: Vec<_> = (0..20)
        .map(|i| {
            let mut task = TaskRecord::new(TaskId(i), at(1));
            task.state = match i {
                0..=11 => TaskState::Committed,
                12 => TaskState::Failed,
                13 | 14 => TaskState::Claimed,
                _ => TaskState::Pending,
            };
            if i == 12 {
                task.note = Some("the transform failed: no such column".to_owned());
            }
            task
        })
        .collect();
    Status { backfill: record, tasks, progress: Progress::default(), ends_at: Some(at(20)) }
}

#[test]
fn a_status_tells_what_is_done_and_left() {
    assert_snapshot!("status", super::status(&status_in(BackfillState::Running), SHOWN));
    let mut failed = status_in(BackfillState::Failed);
    failed.backfill.note = Some("1 tasks failed, 0 are blocked by them".to_owned());
    failed.ends_at = None;
    let text = super::status(&failed, SHOWN);
    assert!(text.starts_with("Backfill `fix-cancelled` is failed\n"), "{text}");
    let records = [status_in(BackfillState::AwaitingReview).backfill, failed.backfill];
    assert_snapshot!("backfills", super::backfills(&records, SHOWN));
    assert!(super::backfills(&records, 1).ends_with("… and 1 more\n"));
    assert_eq!(super::backfills(&[], SHOWN), "0 backfills\n");
}

#[test]
fn a_diff_shows_counts_distributions_and_samples() {
    let text = |pairs: &[(&str, Option<&str>)]| -> BTreeMap<String, Option<String>> {
        pairs.iter().map(|(c, v)| ((*c).to_owned(), v.map(str::to_owned))).collect()
    };
    let carrier = |c| text(&[("carrier", Some(c))]);
    let mut diff =
        Diff { partition: day(4), keyed: true, added: 1, removed: 1, changed: 5, ..Diff::default() };
    diff.unchanged = 8;
    diff.columns = BTreeMap::from([("departures".to_owned(), 5), ("scheduled".to_owned(), 0)]);
    let distribution = Distribution {
        rows: 5,
        min: -9.0,
        p01: -9.0,
        p50: -2.5,
        p99: -1.0,
        max: -1.0,
        sum: Some((-17).into()),
    };
    diff.distributions = BTreeMap::from([("departures".to_owned(), distribution)]);
    let departures = |n| text(&[("departures", n)]);
    diff.samples = vec![
        RowDiff { key: carrier("AA"), before: None, after: Some(departures(Some("3"))) },
        RowDiff { key: carrier("B6"), before: Some(departures(Some("9"))), after: None },
        RowDiff { key: carrier("UA"), before: Some(departures(None)), after: Some(departures(Some("7"))) },
    ];
    assert_snapshot!("diff", super::diff(&[diff, Diff::default()], SHOWN));
    assert_eq!(super::diff(&[], SHOWN), "no partition\n");
}

#[test]
fn what_needs_somebody_is_told_in_ranges() {
    let outdated: Vec<_> = (1..=3)
        .map(|d| Outdated {
            job: "daily_departures".into(),
            table: "daily_departures".into(),
            partition: day(d),
            logic: Some("v1".into()),
            run: "daily".into(),
        })
        .collect();
    let stale: Vec<_> = [4, 11, 18]
        .into_iter()
        .map(|d| StalePartition {
            job: "weekly_departures".into(),
            table: "weekly_departures".into(),
            partition: PartitionKey::of("week", date(d)),
            because: "fix-cancelled.1".into(),
            position: 40,
        })
        .collect();
    let stamp = StampId {
        run: "fix-cancelled.1".into(),
        job: "daily_departures".into(),
        op: Op::Replace,
        scope_digest: "s".to_owned(),
        generation: 1,
    };
    let delivery = Delivery {
        key: "report/2013-03-04".to_owned(),
        channel: "mail".to_owned(),
        payload: serde_json::json!({"to": "ops@example.org"}),
    };
    let staged = StagedId { stamp, attempt: 1 };
    let origin = DeliveryOrigin::of_set(&staged, Some(&"fix-cancelled".into()));
    let delivery = DeliveryRecord::new(1, &origin, delivery, DeliveryState::Suppressed, at(8));
    let text = [
        super::outdated(&outdated, SHOWN),
        super::stale(&stale, SHOWN),
        super::deliveries(&[delivery], SHOWN),
        super::outdated(&[], SHOWN),
        super::stale(&[], SHOWN),
        super::deliveries(&[], SHOWN),
    ];
    assert_snapshot!("partitions", text.join("\n"));
}
