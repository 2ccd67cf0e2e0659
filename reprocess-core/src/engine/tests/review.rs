use std::sync::atomic::Ordering;

use super::shop::{Shop, contents, day, days, fix, orders, revenues, worker};
use crate::domain::ids::{Actor, BackfillId};
use crate::domain::partition::PartitionKey;
use crate::domain::plan::TaskId;
use crate::domain::request::{Expected, Mode, Request};
use crate::domain::validate::{Decision, Expectation, Prediction, Severity, Tolerance};
use crate::engine::{Publication, RunRequest};
use crate::ports::delivery::DeliveryState;
use crate::ports::ledger::{BackfillState, DeliveryFilter, LedgerReader, TaskState};
use crate::ports::writer::PartitionWriter;

/// The predicted change of `cents` per day, in shadow mode.
fn shadow(first: u32, last: u32, by: &[(u32, i64)]) -> Request {
    let by = by.iter().map(|(d, cents)| (day(*d), (*cents).into())).collect();
    fix(first, last).with_mode(Mode::Shadow).with_expectation(Expectation::TotalChanges {
        column: "cents".into(),
        by: Prediction::PerPartition(by),
        tolerance: Tolerance::default(),
    })
}

#[tokio::test]
async fn a_shadow_changes_nothing_until_it_is_approved_and_published() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    let before = revenues(&shop).await;
    let done = shop.backfill(&shadow(1, 3, &[(1, -5000), (2, -900)])).await;
    assert_eq!(done.state, BackfillState::AwaitingReview);
    assert_eq!(revenues(&shop).await, before);
    let engine = shop.engine();
    let review = engine.review(&"fix".into()).await.unwrap();
    // Day 2 loses a row, which nobody predicted; day 1 and 3 are as predicted.
    let decisions: Vec<_> =
        review.outputs.iter().map(|o| o.result.verdict.as_ref().unwrap().decision).collect();
    assert_eq!(decisions, [Decision::Approve, Decision::Review, Decision::Approve]);
    let error = engine.publish(&"fix".into(), &"ann".into(), &worker("w1")).await.unwrap_err();
    assert!(error.message().starts_with("the staged outputs are not approved"));
    shop.accept("fix").await;
    let published = engine.publish(&"fix".into(), &"ann".into(), &worker("w1")).await.unwrap();
    assert_eq!(published, Publication::Published);
    assert_eq!(revenues(&shop).await, ["01 FR 10000", "02 FR 7000", "03 FR 3000"]);
    assert_eq!(shop.ledger.changes(&"fix".into()).await.unwrap().len(), 3);
    assert_eq!(
        engine.publish(&"fix".into(), &"ann".into(), &worker("w1")).await.unwrap(),
        Publication::Published
    );
}

#[tokio::test]
async fn a_day_that_moved_under_the_shadow_is_staged_again_and_only_that() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    let _ = shop.backfill(&shadow(1, 3, &[])).await;
    shop.accept("fix").await;
    // A late order of day 2, and the daily run that brings it in.
    shop.orders.append_unmanaged(&orders(&[(2, 8, "FR", 11, false)])).unwrap();
    let late = RunRequest::scheduled("late-2", "revenue", day(2));
    let engine = shop.engine();
    let _ = engine.run(&late, &worker("schedule")).await.unwrap();
    let before = revenues(&shop).await;
    let Publication::Stale { moved, tasks } =
        engine.publish(&"fix".into(), &"ann".into(), &worker("w1")).await.unwrap()
    else {
        panic!("nothing newer may be overwritten");
    };
    assert_eq!(moved.iter().map(|m| m.partition.clone()).collect::<Vec<_>>(), [day(2)]);
    assert_eq!(tasks.iter().map(|t| t.0).collect::<Vec<_>>(), [1]);
    assert_eq!(revenues(&shop).await, before);
    let computed = shop.switches.computed.load(Ordering::SeqCst);
    let done = engine.execute(&"fix".into(), &worker("w2"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::AwaitingReview);
    assert_eq!(shop.switches.computed.load(Ordering::SeqCst), computed + 1);
    let error = engine.publish(&"fix".into(), &"ann".into(), &worker("w1")).await.unwrap_err();
    assert!(
        error.message().starts_with("the staged outputs are not approved"),
        "the approval was for other outputs"
    );
    shop.accept("fix").await;
    assert_eq!(
        engine.publish(&"fix".into(), &"ann".into(), &worker("w1")).await.unwrap(),
        Publication::Published
    );
    assert_eq!(revenues(&shop).await, ["01 FR 10000", "02 FR 7011", "03 FR 3000"]);
}

#[tokio::test]
async fn a_broken_expectation_of_that_severity_aborts_by_itself() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    let before = revenues(&shop).await;
    let request = fix(1, 3).with_mode(Mode::Shadow).with_expected(Expected {
        job: None,
        expectation: Expectation::TotalUnchanged { column: "cents".into(), tolerance: Tolerance::default() },
        severity: Severity::Abort,
    });
    let done = shop.backfill(&request).await;
    assert_eq!(done.state, BackfillState::Aborted);
    assert_eq!(revenues(&shop).await, before);
    assert!(done.tasks.iter().all(|t| t.state == TaskState::Cancelled), "{:?}", done.tasks);
    // In direct mode the task fails before its commit.
    let mut direct = request.with_mode(Mode::Direct);
    direct.id = "direct".into();
    let done = shop.backfill(&direct).await;
    assert_eq!(done.state, BackfillState::Failed);
    assert_eq!(revenues(&shop).await[0], "01 FR 15000");
}

#[tokio::test]
async fn a_cumulative_shadow_reads_its_own_shadow_in_order_and_goes_on_after_a_failure() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 5).await;
    shop.scheduled("balance", 1, 5).await;
    let production = contents(&shop.balance).await;
    // Revenue and, on top of it, balance: day 3 of revenue fails.
    shop.switches.fails_on.store(3, Ordering::SeqCst);
    let request = fix(1, 5).with_mode(Mode::Shadow).with_job("balance", "v1").with_concurrency(4);
    let done = shop.backfill(&request).await;
    assert_eq!(done.state, BackfillState::Failed);
    let engine = shop.engine();
    let record = engine.backfill(&"fix".into()).await.unwrap();
    let state = |job: &str, d: u32| {
        let task = record.plan.tasks.iter().find(|t| t.job.as_str() == job && t.units == [day(d)]).unwrap();
        done.tasks[usize::try_from(task.id.0).unwrap()].state
    };
    use TaskState::{Blocked, Failed, Staged};
    assert_eq!([1, 2, 3, 4, 5].map(|d| state("revenue", d)), [Staged, Staged, Failed, Staged, Staged]);
    assert_eq!([1, 2, 3, 4, 5].map(|d| state("balance", d)), [Staged, Staged, Blocked, Blocked, Blocked]);
    shop.switches.fails_on.store(0, Ordering::SeqCst);
    let done = engine.execute(&"fix".into(), &worker("w2"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::AwaitingReview, "{:?}", done.tasks);
    assert_eq!(contents(&shop.balance).await, production);
    shop.accept("fix").await;
    assert_eq!(
        engine.publish(&"fix".into(), &"ann".into(), &worker("w1")).await.unwrap(),
        Publication::Published
    );
    let balance =
        ["10000 2026-10-01", "17000 2026-10-02", "20000 2026-10-03", "22000 2026-10-04", "23000 2026-10-05"];
    assert_eq!(contents(&shop.balance).await, balance);
    assert_eq!(shop.ledger.stale().await.unwrap(), []);
}

#[tokio::test]
async fn an_abort_leaves_production_and_frees_the_partitions() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 2).await;
    let before = revenues(&shop).await;
    let _ = shop.backfill(&shadow(1, 2, &[])).await;
    let engine = shop.engine();
    engine.abort(&"fix".into(), &"bob".into(), "the prediction was wrong").await.unwrap();
    assert_eq!(
        engine.backfill(&"fix".into()).await.unwrap().note.as_deref(),
        Some("the prediction was wrong")
    );
    assert_eq!(revenues(&shop).await, before);
    assert!(engine.publish(&"fix".into(), &"ann".into(), &worker("w1")).await.is_err());
    let again = engine.plan(&shadow(1, 2, &[])).await.unwrap();
    assert_eq!((again.generation, again.tasks.len()), (2, 2));
    let _ = engine.submit(&again, &"ann".into()).await.unwrap();
}

#[tokio::test]
async fn merges_of_a_shadow_are_published_one_after_the_other() {
    let shop = Shop::new();
    let request = Request::new("merge", days(1, 5), "first load", "ann").with_job("customers", "v1");
    let done = shop.backfill(&request).await;
    assert_eq!(done.state, BackfillState::AwaitingReview, "{:?}", done.tasks);
    shop.accept("merge").await;
    let published = shop.engine().publish(&"merge".into(), &"ann".into(), &worker("w1")).await.unwrap();
    assert_eq!(published, Publication::Published);
    assert_eq!(contents(&shop.customers).await, ["1000 FR 7", "900 DE 4"]);
    let _: Vec<PartitionKey> = shop.ledger.partitions(&"customers".into()).await.unwrap();
}

#[tokio::test]
async fn one_day_of_a_shadow_is_discarded_and_the_others_stay() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    let _ = shop.backfill(&shadow(1, 3, &[])).await;
    shop.accept("fix").await;
    let (engine, id, ann) = (shop.engine(), BackfillId::from("fix"), Actor::from("ann"));
    let before = engine.review(&id).await.unwrap();
    let staged = shop.ledger.tasks(&id).await.unwrap().remove(1).result.unwrap().staged.unwrap();
    let left = engine.discard_staged(&id, &[TaskId(1)], &ann, "day 2 is disputed").await.unwrap();
    assert_eq!(left.outputs.iter().map(|o| o.task).collect::<Vec<_>>(), [TaskId(0), TaskId(2)]);
    assert_ne!(left.digest, before.digest);
    let reader = shop.revenue.staged().unwrap();
    assert_eq!(reader.open(&staged.id).await.unwrap(), None);
    let filter = DeliveryFilter { state: Some(DeliveryState::Withdrawn), ..DeliveryFilter::default() };
    assert_eq!(shop.ledger.deliveries(&filter).await.unwrap().len(), 1);
    let error = engine.publish(&id, &ann, &worker("w1")).await.unwrap_err();
    assert!(error.message().starts_with("the staged outputs are not approved"), "{error}");
    let error = engine.discard_staged(&id, &[TaskId(1)], &ann, "again").await.unwrap_err();
    assert_eq!(error.message(), "the task has nothing staged");
    let error = engine.discard_staged(&id, &[TaskId(0), TaskId(2)], &ann, "all").await.unwrap_err();
    assert_eq!(error.message(), "nothing would be left to review");
    shop.accept("fix").await;
    let published = engine.publish(&id, &ann, &worker("w1")).await.unwrap();
    assert_eq!(published, Publication::Published);
    assert_eq!(revenues(&shop).await, ["01 FR 10000", "02 DE 900", "02 FR 7000", "03 FR 3000"]);
}
