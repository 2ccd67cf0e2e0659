//! Laws of downstream tasks, and of how backfills are worked on.

use std::collections::BTreeMap;

use crate::ErrorKind;
use crate::domain::plan::{Action, Plan, TaskId};
use crate::domain::request::Mode;
use crate::ports::ledger::{Adjustment, BackfillState, Leave, RunLedger, StateChange, TaskState, Transition};

use super::fixtures::*;
use crate::conformance::Fixture;
use BackfillState::{AwaitingReview, Closed, Done, Failed, Propagating, Published, Publishing, Running};

/// Days 1 and 2, and downstream of them days 3 and 4: of both, and of day 2 alone.
fn carried(mode: Mode) -> Plan {
    let mut plan = plan("fix", &days(4), &[&[], &[], &[0, 1], &[1]]);
    for task in plan.tasks.iter_mut().skip(2) {
        task.action = Action::Propagate { inputs: BTreeMap::new() };
    }
    plan.request.mode = mode;
    plan
}

/// Claims and stages the first two tasks of a shadow, which waits for its review since `at(20)`.
async fn in_review(ledger: &dyn RunLedger) {
    run(ledger, &carried(Mode::Shadow)).await;
    let claims = claim(ledger, "w1", 9, 10).await;
    assert_eq!(numbers(&claims), [0, 1]);
    for claim in &claims {
        assert!(ledger.leave(claim, Leave::Staged(Box::new(result())), at(11)).await.unwrap());
    }
    assert_eq!(claim(ledger, "w1", 9, 12).await, [], "what is staged is not in production");
    move_to(ledger, "fix", Running, AwaitingReview, 20).await;
}

async fn publish(ledger: &dyn RunLedger) {
    move_to(ledger, "fix", AwaitingReview, Publishing, 21).await;
    assert_eq!(claim(ledger, "w1", 9, 22).await, []);
    move_to(ledger, "fix", Publishing, Published, 30).await;
    assert_eq!(claim(ledger, "w1", 9, 31).await, []);
    move_to(ledger, "fix", Published, Propagating, 40).await;
}

/// "Propagation starts downstream tasks as all their causes are published" (DESIGN 6).
pub(in crate::conformance) async fn downstream_tasks_of_a_shadow_wait_for_its_publication(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    in_review(ledger).await;
    publish(ledger).await;
    let claims = claim(ledger, "w1", 9, 41).await;
    assert_eq!((numbers(&claims), claims[0].queued_at), (vec![2, 3], at(40)));
    // One that failed is tried again, the other is not.
    assert!(ledger.leave(&claims[0], Leave::Skipped { note: "as before".into() }, at(42)).await.unwrap());
    let failed = Leave::Failed { note: "no".into(), records: Vec::new() };
    assert!(ledger.leave(&claims[1], failed, at(43)).await.unwrap());
    move_to(ledger, "fix", Propagating, Failed, 44).await;
    move_to(ledger, "fix", Failed, Running, 45).await;
    assert_eq!(claim(ledger, "w1", 9, 46).await, [], "it is a shadow's still");
    move_to(ledger, "fix", Running, Published, 47).await;
    move_to(ledger, "fix", Published, Propagating, 48).await;
    assert_eq!(numbers(&claim(ledger, "w1", 9, 49).await), [3]);
}

/// In direct mode what a task waits for is in production as soon as it is committed.
pub(in crate::conformance) async fn downstream_tasks_run_beside_others_where_each_commits_at_once(
    f: &dyn Fixture,
) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    run(ledger, &carried(Mode::Direct)).await;
    let claims = claim(ledger, "w1", 9, 10).await;
    assert_eq!(numbers(&claims), [0, 1]);
    assert!(ledger.leave(&claims[1], Leave::Skipped { note: "as before".into() }, at(20)).await.unwrap());
    let next = claim(ledger, "w1", 9, 21).await;
    assert_eq!((numbers(&next), next[0].queued_at), (vec![3], at(20)), "the other waits for both");
}

/// "Discarding one staged partition of a shadow leaves the others" (DESIGN 6).
pub(in crate::conformance) async fn what_was_discarded_holds_up_no_downstream_task(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    in_review(ledger).await;
    let discard = StateChange { note: Some("closed".into()), ..change(AwaitingReview, AwaitingReview) };
    let answer = ledger.discard_staged(&"fix".into(), &[TaskId(0)], &discard, at(20)).await.unwrap();
    assert_eq!(answer, Transition::Done);
    publish(ledger).await;
    assert_eq!(numbers(&claim(ledger, "w1", 9, 41).await), [2, 3]);
}

/// Publication leaves downstream tasks open; closing gives them up.
pub(in crate::conformance) async fn closing_gives_up_what_is_left_downstream(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    in_review(ledger).await;
    publish(ledger).await;
    let claims = claim(ledger, "w1", 1, 41).await;
    use TaskState::{Cancelled, Claimed, Pending, Staged};
    assert_eq!(states(ledger).await, [Staged, Staged, Claimed, Pending]);
    move_to(ledger, "fix", Propagating, Closed, 42).await;
    assert_eq!(states(ledger).await, [Cancelled; 4]);
    assert!(!ledger.renew_claim(&claims[0], TTL, at(43)).await.unwrap());
    let error = ledger.transition(&"fix".into(), &change(Closed, Done), at(44)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::State);
}

/// "Pause and resume of a backfill, changing its concurrency while it runs".
pub(in crate::conformance) async fn a_pause_and_another_cap_hold_for_every_worker(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    let id = "fix".into();
    let adjust = async |what| ledger.adjust(&id, what, &me()).await.unwrap();
    run(ledger, &plan("fix", &days(6), &[])).await;
    let first = claim(ledger, "w1", 1, 10).await;
    adjust(Adjustment::Pause).await;
    assert_eq!(claim(ledger, "w2", 9, 11).await, []);
    let record = ledger.backfill(&id).await.unwrap().unwrap();
    assert_eq!((record.paused_by, record.concurrency, record.changed_at), (Some(me()), 2, at(2)));
    assert!(ledger.renew_claim(&first[0], TTL, at(12)).await.unwrap(), "what runs goes on");
    adjust(Adjustment::Concurrency(3.try_into().unwrap())).await;
    assert_eq!(claim(ledger, "w2", 9, 13).await, [], "it is paused still");
    adjust(Adjustment::Resume).await;
    assert_eq!(numbers(&claim(ledger, "w2", 9, 14).await), [1, 2]);
    adjust(Adjustment::Concurrency(1.try_into().unwrap())).await;
    assert!(ledger.leave(&first[0], Leave::Skipped { note: "as before".into() }, at(15)).await.unwrap());
    assert_eq!(claim(ledger, "w2", 9, 16).await, [], "two run, and one may");
    let record = ledger.backfill(&id).await.unwrap().unwrap();
    assert_eq!((record.paused_by, record.concurrency), (None, 1));
    let error = ledger.adjust(&"none".into(), Adjustment::Pause, &me()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}
