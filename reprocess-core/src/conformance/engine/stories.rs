//! What the engine promises to people, over the tables of a backend.

use std::sync::Arc;

use futures::future::join_all;

use super::shop::{NEW, OLD, Shop, revenue};
use crate::conformance::fixture::Fixture;
use crate::conformance::world::*;
use crate::domain::plan::RollbackRequest;
use crate::domain::request::Mode;
use crate::engine::{Publication, RunOutcome, RunRequest};
use crate::ports::clock::SystemClock;
use crate::ports::delivery::DeliveryState;
use crate::ports::ledger::{BackfillState, TaskState};

/// "A backfill touches the planned partitions and nothing else"; "a retry never grows the ledger" (DESIGN 1; FIELD 18, 19).
pub(in crate::conformance) async fn a_backfill_replaces_the_planned_days_once(f: &dyn Fixture) {
    let shop = Shop::open(f, true, &[MON, TUE, WED]).await;
    assert_eq!(shop.rows().await, lines(&OLD));
    let request = shop.fix(MON, TUE, Mode::Direct);
    assert_eq!(shop.backfill(&request).await, BackfillState::Published);
    assert_eq!(shop.rows().await, lines(&NEW));
    let (position, computed) = (shop.ledger.position().await.unwrap(), shop.computed());
    assert_eq!(shop.execute(&request.id).await, BackfillState::Published);
    assert_eq!((shop.ledger.position().await.unwrap(), shop.computed()), (position, computed));
    let current = shop.ledger.current(&revenue().id, &[day(MON), day(WED)]).await.unwrap();
    let logic = current.into_iter().map(|row| row.unwrap().record.logic.unwrap().to_string());
    assert_eq!(logic.collect::<Vec<_>>(), ["v2", "v1"]);
}

/// The same run again is the same run, and what is unchanged is not run (DESIGN 6, step 2; FIELD 27).
pub(in crate::conformance) async fn what_is_unchanged_is_skipped_and_writes_no_row(f: &dyn Fixture) {
    let shop = Shop::open(f, true, &[MON]).await;
    let (position, computed) = (shop.ledger.position().await.unwrap(), shop.computed());
    for run in [format!("daily-{MON}"), "another".to_owned()] {
        let outcome = shop.schedule(&run, MON).await;
        assert!(run != "another" || matches!(outcome, RunOutcome::Skipped(_)), "{outcome:?}");
    }
    assert_eq!((shop.ledger.position().await.unwrap(), shop.computed()), (position, computed));
    shop.one_more((MON, Some("DE"), 7, 7)).await;
    assert_eq!(shop.schedule("late", MON).await, RunOutcome::Committed);
    assert_eq!(shop.rows().await, lines(&[OLD[0], (MON, Some("DE"), 1, 7)]));
}

/// "Never overwrites what moved since it was planned, never fights the daily run" (DESIGN 1, "contained"; FIELD 9).
pub(in crate::conformance) async fn a_day_that_moved_since_the_plan_is_left_alone(f: &dyn Fixture) {
    for leases in [true, false] {
        let shop = Shop::open(f, leases, &[MON, TUE]).await;
        let plan = shop.approved(&shop.fix(MON, TUE, Mode::Direct)).await;
        shop.one_more((MON, Some("FR"), 7, 7)).await;
        assert_eq!(shop.schedule("late", MON).await, RunOutcome::Committed);
        let done = shop.engine().await.execute(&plan.request.id, &"w1".into(), |_| {}).await.unwrap();
        let states: Vec<_> = done.tasks.iter().map(|task| task.state).collect();
        assert_eq!(states, [TaskState::Failed, TaskState::Committed], "{:?}", done.tasks);
        assert_eq!(shop.rows().await, lines(&[(MON, Some("FR"), 3, 157), NEW[1]]));
    }
}

/// "Several processes work on one backfill by claiming tasks" (DESIGN 6; FIELD 10, 15). With leases.
pub(in crate::conformance) async fn several_workers_share_a_backfill(f: &dyn Fixture) {
    together(f, true).await;
}

/// "The laws hold with leases switched off" (DESIGN 5).
pub(in crate::conformance) async fn several_workers_share_a_backfill_without_leases(f: &dyn Fixture) {
    together(f, false).await;
}

async fn together(f: &dyn Fixture, leases: bool) {
    let mut shop = Shop::open(f, leases, &[MON, TUE, WED]).await;
    shop.clock = Arc::new(SystemClock);
    let before = shop.computed();
    let plan = shop.approved(&shop.fix(MON, WED, Mode::Direct).with_concurrency(3).with_force()).await;
    let mut workers = Vec::new();
    for n in 0..4 {
        let (engine, id) = (shop.engine().await, plan.request.id.clone());
        workers.push(tokio::spawn(async move {
            engine.execute(&id, &format!("w{n}").as_str().into(), |_| {}).await.unwrap()
        }));
    }
    for worker in join_all(workers).await {
        assert_eq!(worker.unwrap().state, BackfillState::Published);
    }
    assert_eq!(shop.rows().await, lines(&NEW));
    assert_eq!(shop.changes().await.len(), 3);
    assert_eq!(shop.computed() - before, 3, "each day once");
}

/// "Lease on the scope … held by another: wait, skip or fail as the policy says" (DESIGN 6, step 1): runs of one day at once
/// leave what one of them would, and one row each at most.
pub(in crate::conformance) async fn racing_runs_of_one_day_leave_what_one_would(f: &dyn Fixture) {
    for leases in [true, false] {
        let mut shop = Shop::open(f, leases, &[]).await;
        shop.clock = Arc::new(SystemClock);
        let mut racers = Vec::new();
        for n in 0..3 {
            let engine = shop.engine().await;
            let run = RunRequest::scheduled(format!("r{n}"), "revenue", day(MON)).with_logic("v1");
            racers
                .push(tokio::spawn(async move { engine.run(&run, &format!("w{n}").as_str().into()).await }));
        }
        let outcomes: Vec<_> = join_all(racers).await.into_iter().map(Result::unwrap).collect();
        let committed = outcomes.iter().filter(|o| matches!(o, Ok(RunOutcome::Committed))).count();
        assert!(committed >= 1, "{outcomes:?}");
        assert_eq!(shop.rows().await, lines(&OLD[..1]), "leases: {leases}");
        let history = shop.ledger.history(&revenue().id, &day(MON), 9).await.unwrap();
        let status = crate::ports::ledger::RunStatus::Committed;
        let rows = history.iter().filter(|row| row.record.status == status).count();
        assert_eq!(rows, committed, "{outcomes:?}");
    }
}

/// "A backfill … suppresses side effects"; "sent at most once per confirmed key" (DESIGN 1, "contained").
pub(in crate::conformance) async fn nothing_is_sent_until_it_is_released_by_name(f: &dyn Fixture) {
    let shop = Shop::open(f, true, &[]).await;
    assert_eq!(shop.backfill(&shop.fix(MON, TUE, Mode::Direct)).await, BackfillState::Published);
    assert_eq!(shop.deliveries(DeliveryState::Released).await, [""; 0]);
    assert_eq!(shop.deliveries(DeliveryState::Suppressed).await, ["receipt-1", "receipt-3"]);
    let engine = shop.engine().await;
    let release = async || engine.release_deliveries(&["receipt-3".to_owned()], &"bob".into()).await.unwrap();
    assert_eq!((release().await, release().await), (1, 0));
    assert_eq!(shop.deliveries(DeliveryState::Released).await, ["receipt-3"]);
}

/// "A shadow is a set of staged outputs waiting for review": production does not change until it is published, and then
/// in one commit (DESIGN 2; FIELD 35).
pub(in crate::conformance) async fn a_shadow_changes_nothing_until_it_is_approved_and_published(
    f: &dyn Fixture,
) {
    let shop = Shop::open(f, true, &[MON, TUE, WED]).await;
    let request = shop.fix(MON, TUE, Mode::Shadow);
    assert_eq!(shop.backfill(&request).await, BackfillState::AwaitingReview);
    assert_eq!(shop.rows().await, lines(&OLD));
    let engine = shop.engine().await;
    assert!(engine.publish(&request.id, &"ann".into(), &"w1".into()).await.is_err(), "nobody approved it");
    shop.accept(&request.id).await;
    let published = engine.publish(&request.id, &"ann".into(), &"w1".into()).await.unwrap();
    assert_eq!(published, Publication::Published);
    assert_eq!(shop.rows().await, lines(&NEW));
    assert_eq!(shop.changes().await.len(), 2);
}

/// "Stale (production moved under the shadow: only those partitions are staged again)" (DESIGN 6; FIELD 9).
pub(in crate::conformance) async fn what_moved_under_a_shadow_is_staged_again_and_only_that(f: &dyn Fixture) {
    for leases in [true, false] {
        let shop = Shop::open(f, leases, &[MON, TUE]).await;
        let request = shop.fix(MON, TUE, Mode::Shadow);
        assert_eq!(shop.backfill(&request).await, BackfillState::AwaitingReview);
        shop.accept(&request.id).await;
        shop.one_more((TUE, Some("FR"), 7, 7)).await;
        assert_eq!(shop.schedule("late", TUE).await, RunOutcome::Committed);
        let before = shop.rows().await;
        let engine = shop.engine().await;
        let publish = async || engine.publish(&request.id, &"ann".into(), &"w1".into()).await;
        let Publication::Stale { moved, .. } = publish().await.unwrap() else {
            panic!("nothing newer may be overwritten");
        };
        assert_eq!(moved.into_iter().map(|m| m.partition).collect::<Vec<_>>(), [day(TUE)]);
        assert_eq!(shop.rows().await, before);
        let computed = shop.computed();
        assert_eq!(shop.execute(&request.id).await, BackfillState::AwaitingReview);
        assert_eq!(shop.computed(), computed + 1);
        assert!(publish().await.is_err(), "the approval was for other outputs");
        shop.accept(&request.id).await;
        assert_eq!(publish().await.unwrap(), Publication::Published);
        assert_eq!(shop.rows().await, lines(&[NEW[0], (TUE, Some("FR"), 2, 77)]));
    }
}

/// "Can be rolled back for just those partitions"; "rollback is a run of its own", with the logic that is back (DESIGN 1, 6).
pub(in crate::conformance) async fn a_rollback_brings_back_just_the_chosen_day(f: &dyn Fixture) {
    let shop = Shop::open(f, true, &[MON, TUE, WED]).await;
    assert_eq!(shop.backfill(&shop.fix(MON, WED, Mode::Direct)).await, BackfillState::Published);
    let back = RollbackRequest {
        id: "back".into(),
        of: "fix".into(),
        partitions: Some([day(TUE)].into()),
        reason: "finance had closed the day".into(),
        requester: "ann".into(),
    };
    let engine = shop.engine().await;
    let plan = engine.plan_rollback(&back).await.unwrap();
    let _ = engine.submit(&plan, &"ann".into()).await.unwrap();
    engine.approve(&plan.request.id, &plan.digest(), &"bob".into(), "").await.unwrap();
    assert_eq!(shop.execute(&plan.request.id).await, BackfillState::Published);
    assert_eq!(shop.rows().await, lines(&[NEW[0], OLD[1], OLD[2], NEW[2]]));
    let row = shop.ledger.current(&revenue().id, &[day(TUE)]).await.unwrap().remove(0).unwrap();
    assert_eq!(row.record.logic.unwrap().as_str(), "v1");
}
