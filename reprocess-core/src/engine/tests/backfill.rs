use std::sync::atomic::Ordering;

use super::shop::{Shop, contents, day, days, fix, orders, revenue_table, revenues, worker};
use crate::domain::ids::BackfillId;
use crate::domain::plan::{RollbackRequest, SkipReason};
use crate::domain::request::{Inputs, Mode, Order, Request};
use crate::engine::Submission;
use crate::error::ErrorKind;
use crate::ports::clock::Clock;
use crate::ports::delivery::DeliveryState;
use crate::ports::ledger::{BackfillState, DeliveryFilter, LedgerReader, TaskState};

#[tokio::test]
async fn a_backfill_replaces_the_planned_days_and_no_other() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    assert_eq!(revenues(&shop).await, ["01 FR 15000", "02 DE 900", "02 FR 7000", "03 FR 3000"]);
    let done = shop.backfill(&fix(1, 2)).await;
    assert_eq!(done.state, BackfillState::Published);
    // Germany is gone from day 2, since the new logic no longer produces it.
    assert_eq!(revenues(&shop).await, ["01 FR 10000", "02 FR 7000", "03 FR 3000"]);
    let rows = shop.ledger.changes(&"fix".into()).await.unwrap();
    assert_eq!(rows.len(), 2);
    let first = &rows[0].record;
    assert_eq!((first.before.as_ref().unwrap().rows, first.after.as_ref().unwrap().rows), (1, 1));
    assert_eq!(first.before.as_ref().unwrap().totals["cents"].to_string(), "15000");
    assert_eq!(first.after.as_ref().unwrap().totals["cents"].to_string(), "10000");
    assert_eq!(first.approval.as_ref().unwrap().by.as_str(), "bob");
}

#[tokio::test]
async fn a_retry_changes_nothing_and_never_grows_the_ledger() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    let _ = shop.backfill(&fix(1, 2)).await;
    let rows = shop.rows_in_ledger().await;
    let engine = shop.engine();
    let again = engine.plan(&fix(1, 2)).await.unwrap();
    assert!(again.is_empty());
    assert_eq!(again.skipped.len(), 2);
    assert_eq!(engine.submit(&again, &"ann".into()).await.unwrap(), Submission::NothingToDo);
    assert_eq!(shop.rows_in_ledger().await, rows);
    assert_eq!(shop.switches.computed.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn several_days_in_one_commit_are_one_row_each() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 5).await;
    let done = shop.backfill(&fix(1, 5).with_partitions_per_commit(3)).await;
    assert_eq!(done.tasks.len(), 2);
    assert_eq!(
        revenues(&shop).await,
        ["01 FR 10000", "02 FR 7000", "03 FR 3000", "04 FR 2000", "05 FR 1000"]
    );
    let rows = shop.ledger.changes(&"fix".into()).await.unwrap();
    assert_eq!(
        rows.iter().map(|r| r.record.partition.clone()).collect::<Vec<_>>(),
        (1..=5).map(day).collect::<Vec<_>>()
    );
    let second = &rows[1].record;
    assert_eq!(second.after.as_ref().unwrap().totals["cents"].to_string(), "7000");
    let again = shop.engine().plan(&fix(1, 5).with_partitions_per_commit(3)).await.unwrap();
    assert!(again.is_empty());
}

#[tokio::test]
async fn a_failing_day_leaves_the_others_alone_and_is_all_that_runs_again() {
    let shop = Shop::new();
    shop.switches.fails_on.store(2, Ordering::SeqCst);
    let done = shop.backfill(&fix(1, 3).with_concurrency(2)).await;
    assert_eq!(done.state, BackfillState::Failed);
    let states: Vec<_> = done.tasks.iter().map(|t| t.state).collect();
    assert_eq!(states, [TaskState::Committed, TaskState::Failed, TaskState::Committed]);
    assert_eq!(
        done.tasks[1].note.as_deref(),
        Some("the transform failed (job revenue, partition day=2026-10-02, run fix.1): the logic is broken")
    );
    assert_eq!(revenues(&shop).await, ["01 FR 10000", "03 FR 3000"]);
    shop.switches.fails_on.store(0, Ordering::SeqCst);
    let computed = shop.switches.computed.load(Ordering::SeqCst);
    let done = shop.engine().execute(&"fix".into(), &worker("w2"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Published);
    assert_eq!(shop.switches.computed.load(Ordering::SeqCst), computed + 1);
    assert_eq!(revenues(&shop).await, ["01 FR 10000", "02 FR 7000", "03 FR 3000"]);
    assert_eq!(shop.ledger.changes(&"fix".into()).await.unwrap().len(), 3);
}

#[tokio::test]
async fn in_order_a_failure_blocks_what_comes_after_and_says_so() {
    let shop = Shop::new();
    shop.switches.fails_on.store(2, Ordering::SeqCst);
    let done = shop.backfill(&fix(1, 4).with_order(Order::OldestFirst)).await;
    let states: Vec<_> = done.tasks.iter().map(|t| t.state).collect();
    use TaskState::{Blocked, Committed, Failed};
    assert_eq!(states, [Committed, Failed, Blocked, Blocked]);
    assert!(done.tasks[3].note.is_some());
}

#[tokio::test]
async fn only_what_a_retry_can_help_is_retried() {
    let shop = Shop::new();
    shop.switches.transient.store(4, Ordering::SeqCst);
    assert_eq!(shop.backfill(&fix(1, 1)).await.state, BackfillState::Published);
    let shop = Shop::new();
    shop.switches.transient.store(25, Ordering::SeqCst);
    let done = shop.backfill(&fix(1, 1)).await;
    assert_eq!(done.state, BackfillState::Failed, "five claims with five tries, and no more");
    let shop = Shop::new();
    shop.switches.fails_on.store(99, Ordering::SeqCst);
    let done = shop.backfill(&fix(1, 1)).await;
    let note = done.tasks[0].note.clone().unwrap();
    assert!(
        note.starts_with("the transform panicked: out of cheese (job revenue, partition day=2026-10-01"),
        "{note}"
    );
}

#[tokio::test]
async fn storage_that_was_away_for_a_while_fails_no_task() {
    let shop = Shop::new();
    shop.switches.transient.store(7, Ordering::SeqCst);
    let done = shop.backfill(&fix(1, 2)).await;
    assert_eq!(done.state, BackfillState::Published);
    assert_eq!(done.tasks.iter().map(|t| t.attempt).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(shop.ledger.changes(&"fix".into()).await.unwrap().len(), 2, "no row tells of a failure");
    let waited = shop.clock.now() - "2026-10-10T00:00:00Z".parse::<chrono::DateTime<chrono::Utc>>().unwrap();
    assert!(waited > chrono::TimeDelta::milliseconds(1500 + 500), "{waited}");
}

#[tokio::test]
async fn overlapping_backfills_are_refused_by_name() {
    let shop = Shop::new();
    let engine = shop.engine();
    let _ = shop.approved(&engine, &fix(1, 2)).await;
    let mut other = fix(2, 3);
    other.id = BackfillId::from("other");
    let plan = engine.plan(&other).await.unwrap();
    let error = engine.submit(&plan, &"ann".into()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::State);
    assert_eq!(
        error.message(),
        "other backfills hold partitions of this one: `fix` (approved) holds day=2026-10-02 of revenue"
    );
    engine.cancel(&"fix".into(), &"ann".into(), "not needed").await.unwrap();
    assert_eq!(engine.submit(&plan, &"ann".into()).await.unwrap(), Submission::New);
}

#[tokio::test]
async fn an_approval_is_for_what_was_seen() {
    let shop = Shop::new();
    let engine = shop.engine();
    let plan = engine.plan(&fix(1, 2)).await.unwrap();
    let _ = engine.submit(&plan, &"ann".into()).await.unwrap();
    let error = engine.approve(&"fix".into(), "0123", &"bob".into(), "").await.unwrap_err();
    assert!(error.message().starts_with("the approval is for 0123"));
    let error = engine.execute(&"fix".into(), &worker("w1"), |_| {}).await.unwrap_err();
    assert!(error.to_string().contains("approve the plan first"), "{error}");
}

#[tokio::test]
async fn a_rollback_brings_back_just_the_chosen_day() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    let _ = shop.backfill(&fix(1, 3)).await;
    let engine = shop.engine();
    let back = |id: &str, d| RollbackRequest {
        id: id.into(),
        of: "fix".into(),
        partitions: Some([day(d)].into()),
        reason: "finance had closed the day".into(),
        requester: "ann".into(),
    };
    let plan = engine.plan_rollback(&back("fix.rollback-1", 2)).await.unwrap();
    let _ = engine.submit(&plan, &"ann".into()).await.unwrap();
    engine.approve(&plan.request.id, &plan.digest(), &"bob".into(), "").await.unwrap();
    let done = engine.execute(&plan.request.id, &worker("w1"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Published, "{:?}", done.tasks);
    assert_eq!(revenues(&shop).await, ["01 FR 10000", "02 DE 900", "02 FR 7000", "03 FR 3000"]);
    let row = shop.ledger.current(&revenue_table(), &[day(2)]).await.unwrap().remove(0).unwrap();
    assert_eq!(row.record.logic.unwrap().as_str(), "v1");
    // The same backfill lists the day as rolled back, and runs it again only where it is forced.
    let again = engine.plan(&fix(1, 3)).await.unwrap();
    assert!(again.is_empty());
    let reason = &again.skipped.iter().find(|s| s.partition == day(2)).unwrap().reason;
    assert_eq!(*reason, SkipReason::RolledBack { by: "fix.rollback-1.1".into() });
    let forced = fix(2, 2).with_force();
    let done = shop.backfill(&forced).await;
    assert_eq!(done.state, BackfillState::Published);
    assert_eq!(revenues(&shop).await, ["01 FR 10000", "02 FR 7000", "03 FR 3000"]);
}

#[tokio::test]
async fn a_rollback_never_overwrites_what_came_later() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    let _ = shop.backfill(&fix(1, 2)).await;
    shop.orders.append_unmanaged(&orders(&[(1, 8, "FR", 1, false)])).unwrap();
    let late = crate::engine::RunRequest::scheduled("late-1", "revenue", day(1)).with_logic("v2");
    let _ = shop.engine().run(&late, &worker("schedule")).await.unwrap();
    let request = RollbackRequest {
        id: "back".into(),
        of: "fix".into(),
        partitions: None,
        reason: "wrong".into(),
        requester: "ann".into(),
    };
    let plan = shop.engine().plan_rollback(&request).await.unwrap();
    assert_eq!(plan.tasks.len(), 1);
    assert_eq!(
        plan.refused[0].reason,
        "run `late-1` has replaced it since; taking back `fix.1` would overwrite that"
    );
    let error = shop.engine().submit(&plan, &"ann".into()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_day_that_moves_between_plan_and_commit_is_left_alone() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 2).await;
    let engine = shop.engine();
    let _ = shop.approved(&engine, &fix(1, 2)).await;
    shop.orders.append_unmanaged(&orders(&[(1, 8, "FR", 1, false)])).unwrap();
    let late = crate::engine::RunRequest::scheduled("late-1", "revenue", day(1));
    let _ = engine.run(&late, &worker("schedule")).await.unwrap();
    let done = engine.execute(&"fix".into(), &worker("w1"), |_| {}).await.unwrap();
    assert_eq!(
        done.tasks.iter().map(|t| t.state).collect::<Vec<_>>(),
        [TaskState::Failed, TaskState::Committed]
    );
    assert!(
        done.tasks[0].note.as_ref().unwrap().starts_with("production moved since the plan: day=2026-10-01")
    );
    assert_eq!(revenues(&shop).await, ["01 FR 15001", "02 FR 7000"]);
}

#[tokio::test]
async fn merges_give_the_same_table_in_any_order_of_days() {
    for order in [[1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [3, 5, 1, 4, 2]] {
        let shop = Shop::new();
        for d in order {
            shop.scheduled("customers", d, d).await;
        }
        let again = Request::new("again", days(3, 3), "late rows", "ann")
            .with_job("customers", "v1")
            .with_mode(Mode::Direct)
            .with_force();
        assert_eq!(shop.backfill(&again).await.state, BackfillState::Published);
        // Cents, country, id.
        assert_eq!(contents(&shop.customers).await, ["1000 FR 7", "900 DE 4"], "{order:?}");
    }
}

#[tokio::test]
async fn a_replay_reads_what_was_recorded_and_says_so() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 1).await;
    let before = shop.ledger.current(&revenue_table(), &[day(1)]).await.unwrap().remove(0).unwrap().record;
    shop.orders.append_unmanaged(&orders(&[(1, 8, "FR", 1, false)])).unwrap();
    let _ = shop.backfill(&fix(1, 1)).await;
    let mut replay = Request::new("replay", days(1, 1), "audit", "ann")
        .with_job("revenue", "v1")
        .with_mode(Mode::Direct)
        .with_inputs(Inputs::Recorded { by: "revenue-1".into() });
    assert_eq!(shop.backfill(&replay).await.state, BackfillState::Published);
    let after = shop.ledger.current(&revenue_table(), &[day(1)]).await.unwrap().remove(0).unwrap().record;
    assert_eq!(after.after.unwrap().content, before.after.unwrap().content);
    assert_eq!(after.replays.unwrap().as_str(), "revenue-1");
    replay.id = "current".into();
    let _ = shop.backfill(&replay.with_inputs(Inputs::Current)).await;
    assert_eq!(revenues(&shop).await, ["01 FR 15001"]);
}

#[tokio::test]
async fn what_was_built_from_a_corrected_day_is_stale_until_it_runs_again() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    shop.scheduled("balance", 1, 3).await;
    assert_eq!(contents(&shop.balance).await, ["15000 2026-10-01", "22900 2026-10-02", "25900 2026-10-03"]);
    let _ = shop.backfill(&fix(2, 2)).await;
    let closed = shop.engine().close(&"fix".into(), &"ann".into(), false).await.unwrap();
    let stale: Vec<_> = closed.stale.iter().map(|s| s.partition.clone()).collect();
    assert_eq!(stale, [day(2), day(3)]);
    let mut balance = Request::new("carry", days(2, 3), "revenue was corrected", "ann");
    balance.jobs.insert("balance".into(), "v1".into());
    let _ = shop.backfill(&balance.with_mode(Mode::Direct)).await;
    assert_eq!(contents(&shop.balance).await, ["15000 2026-10-01", "22000 2026-10-02", "25000 2026-10-03"]);
    assert_eq!(shop.ledger.stale().await.unwrap(), []);
}

#[tokio::test]
async fn a_backfill_sends_nothing_until_it_is_released_by_name() {
    let shop = Shop::new();
    shop.scheduled("revenue", 3, 3).await;
    let _ = shop.backfill(&fix(3, 4).with_force()).await;
    let of = |state| DeliveryFilter { state: Some(state), ..DeliveryFilter::default() };
    let keys = |records: Vec<crate::ports::delivery::DeliveryRecord>| {
        records.into_iter().map(|r| r.delivery.key).collect::<Vec<_>>()
    };
    let released = keys(shop.ledger.deliveries(&of(DeliveryState::Released)).await.unwrap());
    assert_eq!(released, ["receipt-5"], "by the scheduled run");
    let suppressed = keys(shop.ledger.deliveries(&of(DeliveryState::Suppressed)).await.unwrap());
    assert!(suppressed.contains(&"receipt-6".to_owned()), "{suppressed:?}");
    let now = shop.clock.now();
    use crate::ports::ledger::RunLedger;
    let sent = shop
        .ledger
        .release_deliveries(&["receipt-5".into(), "receipt-6".into()], &"ann".into(), now)
        .await
        .unwrap();
    assert_eq!(sent, 1, "the receipt of order 5 went out before");
}

#[tokio::test]
async fn a_rollback_whose_day_moves_after_planning_leaves_it_alone_and_says_what_moved() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    let _ = shop.backfill(&fix(1, 2)).await;
    let request = RollbackRequest {
        id: "back".into(),
        of: "fix".into(),
        partitions: None,
        reason: "wrong".into(),
        requester: "ann".into(),
    };
    let engine = shop.engine();
    let plan = engine.plan_rollback(&request).await.unwrap();
    let _ = engine.submit(&plan, &"ann".into()).await.unwrap();
    engine.approve(&"back".into(), &plan.digest(), &"bob".into(), "").await.unwrap();
    shop.orders.append_unmanaged(&orders(&[(1, 8, "FR", 1, false)])).unwrap();
    let late = crate::engine::RunRequest::scheduled("late-1", "revenue", day(1)).with_logic("v2");
    let _ = engine.run(&late, &worker("schedule")).await.unwrap();
    let done = engine.execute(&"back".into(), &worker("w1"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Failed);
    let states: Vec<_> = done.tasks.iter().map(|t| t.state).collect();
    assert_eq!(states, [TaskState::Failed, TaskState::Committed]);
    assert!(
        done.tasks[0].note.as_ref().unwrap().starts_with("production moved since the plan: day=2026-10-01")
    );
    assert_eq!(revenues(&shop).await, ["01 FR 10001", "02 DE 900", "02 FR 7000", "03 FR 3000"]);
}
