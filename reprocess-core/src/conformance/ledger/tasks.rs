//! Laws of backfills, tasks and leases.

use crate::ErrorKind;
use crate::domain::plan::TaskId;
use crate::domain::scope::Scope;
use crate::ports::delivery::DeliveryState;
use crate::ports::ledger::{
    Approval, BackfillState, Leave, Overlap, RunStatus, StateChange, Submitted, TaskState, Transition,
};

use super::fixtures::*;
use crate::conformance::Fixture;
use BackfillState::{
    Approved, AwaitingReview, Cancelled, Failed, Planned, Published, Publishing, Running, Stale,
};

pub(in crate::conformance) async fn a_plan_is_filed_once_and_in_the_next_generation(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    let mut first = plan("fix", &days(2), &[]);
    first.generation = 2;
    let answer = ledger.submit(&first, &me(), at(0)).await.unwrap();
    assert_eq!(answer, Submitted::OtherGeneration { next: 1 });
    first.generation = 1;
    submit(ledger, &first).await;
    assert_eq!(ledger.submit(&first, &me(), at(1)).await.unwrap(), Submitted::Already(Planned));
    let mut other = plan("fix", &days(3), &[]);
    let answer = Submitted::OtherPlan { state: Planned, digest: first.digest() };
    assert_eq!(ledger.submit(&other, &me(), at(2)).await.unwrap(), answer);
    let record = ledger.backfill(&"fix".into()).await.unwrap().unwrap();
    assert_eq!((record.submitted_by, record.submitted_at, record.state), (me(), at(0), Planned));
    assert_eq!((record.plan_digest, record.plan), (first.digest(), first));
    move_to(ledger, "fix", Planned, Cancelled, 3).await;
    let answer = ledger.submit(&other, &me(), at(4)).await.unwrap();
    assert_eq!(answer, Submitted::OtherGeneration { next: 2 });
    other.generation = 2;
    submit(ledger, &other).await;
    let open = ledger.backfills(&[Planned, Running]).await.unwrap();
    assert_eq!(open.iter().map(|b| b.plan.generation).collect::<Vec<_>>(), [2]);
    assert_eq!(ledger.backfills(&[Cancelled]).await.unwrap(), []);
    assert_eq!(ledger.tasks(&"fix".into()).await.unwrap().len(), 3);
    assert_eq!(ledger.backfill(&"none".into()).await.unwrap(), None);
}

pub(in crate::conformance) async fn overlapping_backfills_are_named_until_they_let_go(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    let french = day(1).and("country", "FR");
    submit(ledger, &plan("first", std::slice::from_ref(&french), &[])).await;
    submit(ledger, &plan("german", &[day(1).and("country", "DE")], &[])).await;
    let second = plan("second", &days(2), &[]);
    let Submitted::Overlaps(found) = ledger.submit(&second, &me(), at(1)).await.unwrap() else { panic!() };
    let of_first =
        Overlap { backfill: "first".into(), state: Planned, table: TABLE.into(), partition: french };
    assert_eq!((found.len(), &found[0]), (2, &of_first));
    assert_eq!(ledger.backfill(&"second".into()).await.unwrap(), None, "nothing was filed");
    move_to(ledger, "first", Planned, Cancelled, 2).await;
    move_to(ledger, "german", Planned, Cancelled, 2).await;
    submit(ledger, &second).await;
}

pub(in crate::conformance) async fn a_state_changes_only_from_the_one_expected_and_along_allowed_ways(
    f: &dyn Fixture,
) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    submit(ledger, &plan("fix", &days(1), &[])).await;
    let id = "fix".into();
    let answer = ledger.transition(&id, &change(Approved, Running), at(1)).await.unwrap();
    assert_eq!(answer, Transition::Elsewhere(Planned));
    let error = ledger.transition(&id, &change(Planned, Published), at(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::State);
    let error = ledger.transition(&"none".into(), &change(Planned, Approved), at(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let approval = Approval { by: me(), at: at(1), digest: "d".into(), comment: "looks right".into() };
    let approve = StateChange { approval: Some(approval.clone()), ..change(Planned, Approved) };
    assert_eq!(ledger.transition(&id, &approve, at(1)).await.unwrap(), Transition::Done);
    move_to(ledger, "fix", Approved, Running, 2).await;
    let fail = StateChange {
        note: Some("disk".into()),
        approval: Some(approval.clone()),
        ..change(Running, Failed)
    };
    assert_eq!(ledger.transition(&id, &fail, at(3)).await.unwrap(), Transition::Done);
    let record = ledger.backfill(&id).await.unwrap().unwrap();
    assert_eq!((record.state, record.changed_at, record.note), (Failed, at(3), Some("disk".into())));
    assert_eq!(record.approvals, [approval.clone(), approval]);
    move_to(ledger, "fix", Failed, Running, 4).await;
    assert_eq!(ledger.backfill(&id).await.unwrap().unwrap().note, None);
}

pub(in crate::conformance) async fn tasks_are_claimed_in_order_up_to_the_cap(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    submit(ledger, &plan("fix", &days(4), &[])).await;
    assert_eq!(claim(ledger, "w1", 9, 0).await, [], "it does not run yet");
    move_to(ledger, "fix", Planned, Approved, 1).await;
    move_to(ledger, "fix", Approved, Running, 2).await;
    let first = claim(ledger, "w1", 1, 10).await;
    assert_eq!(numbers(&first), [0]);
    assert_eq!((first[0].attempt, first[0].queued_at, first[0].started_at), (1, at(2), at(10)));
    assert_eq!(numbers(&claim(ledger, "w2", 9, 11).await), [1], "the cap is 2");
    assert_eq!(claim(ledger, "w3", 9, 12).await, []);
    assert!(ledger.leave(&first[0], Leave::Staged(Box::new(result())), at(13)).await.unwrap());
    let other = [(JOB.into(), "v1".into())];
    assert_eq!(ledger.claim(&"fix".into(), &"w3".into(), &other, 9, TTL, at(14)).await.unwrap(), []);
    assert_eq!(numbers(&claim(ledger, "w3", 9, 14).await), [2]);
    let error = ledger.claim(&"none".into(), &"w".into(), &other, 9, TTL, at(14)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

pub(in crate::conformance) async fn a_claim_that_ran_out_passes_to_the_next_attempt(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    run(ledger, &plan("fix", &days(1), &[])).await;
    let zombie = claim(ledger, "w1", 1, 10).await.remove(0);
    assert!(ledger.note_staged(&zombie, &result()).await.unwrap());
    assert!(ledger.renew_claim(&zombie, TTL, at(69)).await.unwrap());
    assert_eq!(claim(ledger, "w2", 1, 128).await, []);
    let second = claim(ledger, "w2", 1, 129).await.remove(0);
    assert_eq!((second.attempt, second.worker.as_str()), (2, "w2"));
    assert!(!ledger.renew_claim(&zombie, TTL, at(130)).await.unwrap());
    assert!(!ledger.note_staged(&zombie, &result()).await.unwrap());
    assert!(!ledger.leave(&zombie, Leave::Staged(Box::new(result())), at(130)).await.unwrap());
    let task = ledger.tasks(&"fix".into()).await.unwrap().remove(0);
    assert_eq!((task.state, task.attempt, task.worker), (TaskState::Claimed, 2, Some("w2".into())));
    assert_eq!(task.result, Some(result()), "what the first attempt staged is there to go on from");
}

pub(in crate::conformance) async fn a_task_waits_until_those_before_it_succeeded(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    run(ledger, &plan("fix", &days(3), &[&[], &[0], &[0, 1]])).await;
    let first = claim(ledger, "w1", 9, 10).await;
    assert_eq!(numbers(&first), [0]);
    assert!(ledger.leave(&first[0], Leave::Skipped { note: "unchanged".into() }, at(20)).await.unwrap());
    let second = claim(ledger, "w1", 9, 25).await;
    assert_eq!(numbers(&second), [1]);
    assert_eq!(second[0].queued_at, at(20), "it could run once the first had ended");
    assert!(ledger.leave(&second[0], Leave::Pending { note: "busy".into() }, at(30)).await.unwrap());
    let task = ledger.tasks(&"fix".into()).await.unwrap().remove(1);
    assert_eq!((task.state, task.note.as_deref()), (TaskState::Pending, Some("busy")));
    let second = claim(ledger, "w1", 9, 31).await;
    assert_eq!((numbers(&second), second[0].attempt), (vec![1], 2));
}

pub(in crate::conformance) async fn a_failure_blocks_all_that_waits_and_a_retry_opens_it_again(
    f: &dyn Fixture,
) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    run(ledger, &plan("fix", &days(4), &[&[], &[0], &[1], &[]])).await;
    let claims = claim(ledger, "w1", 9, 10).await;
    assert_eq!(numbers(&claims), [0, 3]);
    let mut failed = record("fix.1", &day(1));
    (failed.status, failed.error) = (RunStatus::Failed, Some("no".into()));
    let leave = Leave::Failed { note: "no".into(), records: vec![failed.clone()] };
    assert!(ledger.leave(&claims[0], leave, at(20)).await.unwrap());
    use TaskState::{Blocked, Claimed, Failed as FailedTask, Pending};
    assert_eq!(states(ledger).await, [FailedTask, Blocked, Blocked, Claimed]);
    assert_eq!(ledger.run(&"fix.1".into()).await.unwrap()[0].record, failed);
    move_to(ledger, "fix", Running, Failed, 21).await;
    assert_eq!(claim(ledger, "w1", 9, 22).await, []);
    move_to(ledger, "fix", Failed, Running, 30).await;
    assert_eq!(states(ledger).await, [Pending, Pending, Pending, Claimed]);
    let again = claim(ledger, "w1", 9, 31).await;
    assert_eq!((numbers(&again), again[0].attempt, again[0].queued_at), (vec![0], 2, at(30)));
    failed.error = Some("again".into());
    let leave = Leave::Failed { note: "again".into(), records: vec![failed.clone()] };
    assert!(ledger.leave(&again[0], leave, at(40)).await.unwrap());
    let rows = ledger.run(&"fix.1".into()).await.unwrap();
    assert_eq!(rows.iter().map(|r| (r.position, &r.record)).collect::<Vec<_>>(), [(1, &failed)]);
}

pub(in crate::conformance) async fn a_stop_cancels_what_is_open_and_withdraws_what_it_would_have_sent(
    f: &dyn Fixture,
) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    run(ledger, &plan("fix", &days(3), &[])).await;
    let claims = claim(ledger, "w1", 2, 10).await;
    let (fix, other) = ("fix".into(), "other".into());
    ledger.prepare_deliveries(&staged("fix.1", 1), Some(&fix), &[mail("a")], at(3)).await.unwrap();
    ledger.prepare_deliveries(&staged("o.1", 1), Some(&other), &[mail("a")], at(3)).await.unwrap();
    assert!(ledger.leave(&claims[0], Leave::Staged(Box::new(result())), at(11)).await.unwrap());
    move_to(ledger, "fix", Running, Cancelled, 12).await;
    assert_eq!(states(ledger).await, [TaskState::Cancelled; 3]);
    assert!(!ledger.leave(&claims[1], Leave::Staged(Box::new(result())), at(13)).await.unwrap());
    assert!(!ledger.renew_claim(&claims[1], TTL, at(13)).await.unwrap());
    assert_eq!(deliveries(ledger).await, [DeliveryState::Withdrawn, DeliveryState::Prepared]);
    finished(ledger, record("fix.1", &day(1))).await;
    assert_eq!(deliveries(ledger).await[0], DeliveryState::Suppressed, "its output came after all");
}

pub(in crate::conformance) async fn restaging_makes_staged_tasks_pending_again(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    run(ledger, &plan("fix", &days(2), &[&[], &[0]])).await;
    for (now, number) in [(10, 0), (12, 1)] {
        let claim = claim(ledger, "w1", 2, now).await.remove(0);
        assert_eq!(claim.task, TaskId(number));
        assert!(ledger.leave(&claim, Leave::Staged(Box::new(result())), at(now + 1)).await.unwrap());
    }
    let id = "fix".into();
    move_to(ledger, "fix", Running, AwaitingReview, 18).await;
    let tasks = [TaskId(0), TaskId(1), TaskId(7)];
    let stale = |from| StateChange { note: Some("moved".into()), ..change(from, Stale) };
    let answer = ledger.restage(&id, &tasks, &stale(Publishing), at(19)).await.unwrap();
    assert_eq!(answer, Transition::Elsewhere(AwaitingReview));
    assert_eq!(states(ledger).await, [TaskState::Staged; 2], "the state was another, so nothing changed");
    let answer = ledger.restage(&id, &tasks, &stale(AwaitingReview), at(20)).await.unwrap();
    assert_eq!(answer, Transition::Done);
    assert_eq!(states(ledger).await, [TaskState::Pending; 2]);
    assert_eq!(ledger.backfill(&id).await.unwrap().unwrap().state, Stale);
    let task = ledger.tasks(&id).await.unwrap().remove(1);
    assert_eq!((task.result, task.note.as_deref(), task.queued_at), (None, Some("moved"), at(20)));
    move_to(ledger, "fix", Stale, Running, 20).await;
    assert_eq!(numbers(&claim(ledger, "w1", 9, 21).await), [0], "the second waits for the first again");
}

pub(in crate::conformance) async fn discarding_cancels_staged_tasks_and_those_that_wait_for_them(
    f: &dyn Fixture,
) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    run(ledger, &plan("fix", &days(4), &[&[], &[0], &[1], &[]])).await;
    for now in [10, 12, 14, 16] {
        for claim in claim(ledger, "w1", 2, now).await {
            let mut result = result();
            if claim.task == TaskId(1) {
                ledger
                    .prepare_deliveries(&staged("fix.1", 1), Some(&"fix".into()), &[mail("a")], at(now))
                    .await
                    .unwrap();
                result.staged = Some(staged_set());
            }
            assert!(ledger.leave(&claim, Leave::Staged(Box::new(result)), at(now + 1)).await.unwrap());
        }
    }
    let id = "fix".into();
    let discard = StateChange { note: Some("wrong".into()), ..change(AwaitingReview, AwaitingReview) };
    let answer = ledger.discard_staged(&id, &[TaskId(1)], &discard, at(19)).await.unwrap();
    assert_eq!(answer, Transition::Elsewhere(Running));
    use TaskState::{Cancelled as Gone, Staged};
    assert_eq!(states(ledger).await, [Staged; 4]);
    move_to(ledger, "fix", Running, AwaitingReview, 20).await;
    let answer = ledger.discard_staged(&id, &[TaskId(1)], &discard, at(21)).await.unwrap();
    assert_eq!(answer, Transition::Done);
    assert_eq!(states(ledger).await, [Staged, Gone, Gone, Staged]);
    let task = ledger.tasks(&id).await.unwrap().remove(2);
    assert_eq!((task.result, task.note.as_deref()), (None, Some("wrong")));
    assert_eq!(deliveries(ledger).await, [DeliveryState::Withdrawn]);
}

pub(in crate::conformance) async fn progress_counts_tasks_and_the_time_they_took(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    run(ledger, &plan("fix", &days(3), &[])).await;
    let claims = claim(ledger, "w1", 2, 10).await;
    assert!(ledger.leave(&claims[0], Leave::Staged(Box::new(result())), at(14)).await.unwrap());
    assert!(ledger.leave(&claims[1], Leave::Pending { note: "busy".into() }, at(99)).await.unwrap());
    let progress = ledger.progress(&"fix".into()).await.unwrap();
    assert_eq!((progress.busy_ms, progress.timed), (4000, 1));
    assert_eq!(progress.tasks, [(TaskState::Pending, 2), (TaskState::Staged, 1)].into());
    assert_eq!(ledger.progress(&"none".into()).await.unwrap(), Default::default());
}

pub(in crate::conformance) async fn leases_exclude_each_other_where_their_scopes_overlap(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    let table = TABLE.into();
    let french = scope(&day(1).and("country", "FR"));
    let german = scope(&day(1).and("country", "DE"));
    let take = async |scope: &Scope, holder: &str, now: i64| {
        ledger.acquire(&table, scope, &holder.into(), TTL, at(now)).await.unwrap()
    };
    let of_day = take(&scope(&day(1)), "a", 0).await.unwrap();
    assert_eq!(take(&french, "b", 1).await, None, "the day covers the country");
    assert_eq!(take(&Scope::whole_table(), "b", 1).await, None);
    assert_eq!(take(&Scope::keys([day(2), day(1)]).unwrap(), "b", 1).await, None, "all or nothing");
    let next = take(&scope(&day(2)), "b", 1).await.unwrap();
    let elsewhere = ledger.acquire(&"other".into(), &french, &"b".into(), TTL, at(1)).await.unwrap().unwrap();
    assert!(of_day.token < next.token && next.token < elsewhere.token, "over the whole ledger");
    ledger.release(&of_day).await.unwrap();
    ledger.release(&of_day).await.unwrap();
    assert!(ledger.is_current(&of_day).await.unwrap(), "nobody took it since");
    let fence = take(&french, "b", 2).await.unwrap();
    assert_eq!(take(&scope(&day(1)), "a", 3).await, None, "a country of the day is held");
    assert!(take(&german, "a", 3).await.is_some());
    assert!(!ledger.is_current(&of_day).await.unwrap());
    assert!(ledger.is_current(&fence).await.unwrap());
}

pub(in crate::conformance) async fn a_lease_that_ran_out_is_free_and_its_fence_void_once_taken(
    f: &dyn Fixture,
) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    let (table, scope) = (TABLE.into(), scope(&day(1)));
    let take = async |holder: &str, now: i64| {
        ledger.acquire(&table, &scope, &holder.into(), TTL, at(now)).await.unwrap()
    };
    let first = take("a", 0).await.unwrap();
    assert!(ledger.renew(&first, TTL, at(10)).await.unwrap());
    assert_eq!(take("b", 69).await, None);
    assert!(ledger.is_current(&first).await.unwrap());
    let second = take("b", 70).await.unwrap();
    assert!(!ledger.renew(&first, TTL, at(71)).await.unwrap());
    assert!(!ledger.is_current(&first).await.unwrap());
    let again = take("b", 72).await.unwrap();
    assert!(again.token > second.token);
    assert!(!ledger.is_current(&second).await.unwrap(), "its holder took it again");
    assert!(!ledger.renew(&second, TTL, at(73)).await.unwrap());
    ledger.release(&second).await.unwrap();
    assert_eq!(take("a", 74).await, None, "releasing a void lease frees nothing");
}
