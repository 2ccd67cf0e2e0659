use super::*;
use crate::domain::partition::PartitionKey;
use crate::domain::slice::Base;
use crate::memory::fixtures::*;
use crate::ports::ledger::{
    Approval, BackfillState, LedgerReader, LedgerRow, Overlap, RunRecord, RunStatus, TaskState,
};
use crate::ports::writer::Change as WriterChange;
use BackfillState::{Approved, Cancelled, Failed, Planned, Published, Running};

const TTL: Duration = Duration::from_secs(60);

#[path = "commits_tests.rs"]
mod commits;

fn days(count: u32) -> Vec<PartitionKey> {
    (1..=count).map(|d| day(&format!("2026-10-{d:02}"))).collect()
}

async fn move_to(ledger: &MemoryLedger, id: &str, from: BackfillState, to: BackfillState, now: i64) {
    let done = ledger.transition(&id.into(), &change(from, to), at(now)).await.unwrap();
    assert_eq!(done, Transition::Done);
}

/// A ledger in which the plan runs since `at(2)`.
async fn running(plan: &Plan) -> MemoryLedger {
    let ledger = MemoryLedger::new();
    assert_eq!(ledger.submit(plan, &me(), at(0)).await.unwrap(), Submitted::New);
    let id = plan.request.id.as_str();
    move_to(&ledger, id, Planned, Approved, 1).await;
    move_to(&ledger, id, Approved, Running, 2).await;
    ledger
}

async fn claim(ledger: &MemoryLedger, worker: &str, limit: u32, now: i64) -> Vec<Claim> {
    let can_run = [(JobName::from(JOB), LogicVersion::from("v2"))];
    ledger.claim(&"fix".into(), &worker.into(), &can_run, limit, TTL, at(now)).await.unwrap()
}

fn numbers(claims: &[Claim]) -> Vec<u32> {
    claims.iter().map(|claim| claim.task.0).collect()
}

async fn states(ledger: &MemoryLedger) -> Vec<TaskState> {
    ledger.tasks(&"fix".into()).await.unwrap().iter().map(|task| task.state).collect()
}

fn result() -> TaskResult {
    TaskResult::new(Base::new("0".into(), std::collections::BTreeMap::new()), 0)
}

#[tokio::test]
async fn the_same_plan_again_is_already_there_and_another_one_is_refused_while_it_is_open() {
    let ledger = MemoryLedger::new();
    let first = plan("fix", &days(2), &[]);
    assert_eq!(ledger.submit(&first, &me(), at(0)).await.unwrap(), Submitted::New);
    assert_eq!(ledger.submit(&first, &me(), at(1)).await.unwrap(), Submitted::Already(Planned));
    let other = plan("fix", &days(3), &[]);
    let answer = Submitted::OtherPlan { state: Planned, digest: first.digest() };
    assert_eq!(ledger.submit(&other, &me(), at(2)).await.unwrap(), answer);
    let record = ledger.backfill(&"fix".into()).await.unwrap().unwrap();
    assert_eq!((record.submitted_at, record.plan), (at(0), first));
}

#[tokio::test]
async fn a_backfill_opens_again_only_with_the_next_generation() {
    let ledger = MemoryLedger::new();
    let mut plan = plan("fix", &days(1), &[]);
    plan.generation = 2;
    let answer = ledger.submit(&plan, &me(), at(0)).await.unwrap();
    assert_eq!(answer, Submitted::OtherGeneration { next: 1 });
    plan.generation = 1;
    assert_eq!(ledger.submit(&plan, &me(), at(0)).await.unwrap(), Submitted::New);
    move_to(&ledger, "fix", Planned, Cancelled, 1).await;
    plan.as_of = at(5);
    let answer = ledger.submit(&plan, &me(), at(5)).await.unwrap();
    assert_eq!(answer, Submitted::OtherGeneration { next: 2 });
    plan.generation = 2;
    assert_eq!(ledger.submit(&plan, &me(), at(5)).await.unwrap(), Submitted::New);
    let backfills = ledger.backfills(&[]).await.unwrap();
    assert_eq!(backfills.iter().map(|b| b.plan.generation).collect::<Vec<_>>(), [2]);
}

#[tokio::test]
async fn overlapping_backfills_are_named_until_they_let_go_of_their_partitions() {
    let ledger = MemoryLedger::new();
    let french = days(1)[0].clone().and("country", "FR");
    let first = plan("first", std::slice::from_ref(&french), &[]);
    assert_eq!(ledger.submit(&first, &me(), at(0)).await.unwrap(), Submitted::New);
    let second = plan("second", &days(2), &[]);
    let overlap =
        Overlap { backfill: "first".into(), state: Planned, table: TABLE.into(), partition: french.clone() };
    let answer = ledger.submit(&second, &me(), at(1)).await.unwrap();
    assert_eq!(answer, Submitted::Overlaps(vec![overlap]));
    assert!(ledger.backfill(&"second".into()).await.unwrap().is_none());
    let german = plan("german", &[days(1)[0].clone().and("country", "DE")], &[]);
    assert_eq!(ledger.submit(&german, &me(), at(1)).await.unwrap(), Submitted::New);
    move_to(&ledger, "first", Planned, Cancelled, 2).await;
    move_to(&ledger, "german", Planned, Cancelled, 2).await;
    assert_eq!(ledger.submit(&second, &me(), at(3)).await.unwrap(), Submitted::New);
}

#[tokio::test]
async fn a_state_changes_only_from_the_one_expected_and_along_allowed_ways() {
    let ledger = MemoryLedger::new();
    let _ = ledger.submit(&plan("fix", &days(1), &[]), &me(), at(0)).await.unwrap();
    let id = BackfillId::from("fix");
    let answer = ledger.transition(&id, &change(Approved, Running), at(1)).await.unwrap();
    assert_eq!(answer, Transition::Elsewhere(Planned));
    let error = ledger.transition(&id, &change(Planned, Published), at(1)).await.unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::State);
    let error = ledger.transition(&"none".into(), &change(Planned, Approved), at(1)).await.unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::NotFound);
    let approval = Approval { by: me(), at: at(1), digest: "d".into(), comment: "looks right".into() };
    let approve = StateChange { approval: Some(approval.clone()), ..change(Planned, Approved) };
    assert_eq!(ledger.transition(&id, &approve, at(1)).await.unwrap(), Transition::Done);
    let record = ledger.backfill(&id).await.unwrap().unwrap();
    assert_eq!((record.state, record.changed_at, record.approvals), (Approved, at(1), vec![approval]));
}

#[tokio::test]
async fn tasks_are_claimed_in_order_up_to_the_cap_over_all_workers() {
    let plan = plan("fix", &days(4), &[]);
    let ledger = MemoryLedger::new();
    let _ = ledger.submit(&plan, &me(), at(0)).await.unwrap();
    assert_eq!(claim(&ledger, "w1", 9, 0).await, [], "it does not run yet");
    move_to(&ledger, "fix", Planned, Approved, 1).await;
    move_to(&ledger, "fix", Approved, Running, 2).await;
    let first = claim(&ledger, "w1", 1, 10).await;
    assert_eq!(numbers(&first), [0]);
    assert_eq!((first[0].attempt, first[0].queued_at, first[0].started_at), (1, at(2), at(10)));
    assert_eq!(numbers(&claim(&ledger, "w2", 9, 11).await), [1], "the cap is 2");
    assert_eq!(claim(&ledger, "w3", 9, 12).await, []);
    let other_logic = [(JobName::from(JOB), LogicVersion::from("v1"))];
    assert!(ledger.leave(&first[0], Leave::Staged(Box::new(result())), at(13)).await.unwrap());
    let none = ledger.claim(&"fix".into(), &"w3".into(), &other_logic, 9, TTL, at(14)).await.unwrap();
    assert_eq!(none, []);
    assert_eq!(numbers(&claim(&ledger, "w3", 9, 14).await), [2]);
}

#[tokio::test]
async fn a_claim_that_ran_out_passes_to_the_next_attempt_and_the_zombie_is_not_heard() {
    let ledger = running(&plan("fix", &days(1), &[])).await;
    let zombie = claim(&ledger, "w1", 1, 10).await.remove(0);
    assert!(ledger.note_staged(&zombie, &result()).await.unwrap());
    assert_eq!(claim(&ledger, "w2", 1, 69).await, [], "60 seconds from second 10");
    assert!(ledger.renew_claim(&zombie, TTL, at(69)).await.unwrap());
    assert_eq!(claim(&ledger, "w2", 1, 128).await, []);
    let second = claim(&ledger, "w2", 1, 129).await.remove(0);
    assert_eq!(second.attempt, 2);
    assert!(!ledger.renew_claim(&zombie, TTL, at(130)).await.unwrap());
    assert!(!ledger.note_staged(&zombie, &result()).await.unwrap());
    assert!(!ledger.leave(&zombie, Leave::Staged(Box::new(result())), at(130)).await.unwrap());
    let task = ledger.tasks(&"fix".into()).await.unwrap().remove(0);
    assert_eq!((task.state, task.attempt, task.worker), (TaskState::Claimed, 2, Some("w2".into())));
    assert_eq!(task.result, Some(result()), "what the first attempt staged is there to go on from");
    let task = ("fix".into(), 1, TaskId(0));
    assert!(!ledger.is_latest_attempt(&task, 1).unwrap());
    assert!(ledger.is_latest_attempt(&task, 2).unwrap());
}

#[tokio::test]
async fn a_task_waits_until_those_before_it_succeeded() {
    let ledger = running(&plan("fix", &days(3), &[&[], &[0], &[0, 1]])).await;
    let first = claim(&ledger, "w1", 9, 10).await;
    assert_eq!(numbers(&first), [0]);
    let skipped = Leave::Skipped { note: "unchanged".into() };
    assert!(ledger.leave(&first[0], skipped, at(20)).await.unwrap());
    let second = claim(&ledger, "w1", 9, 25).await;
    assert_eq!(numbers(&second), [1]);
    assert_eq!(second[0].queued_at, at(20), "it could run once the first had ended");
    let again = Leave::Pending { note: "busy".into() };
    assert!(ledger.leave(&second[0], again, at(30)).await.unwrap());
    let second = claim(&ledger, "w1", 9, 31).await;
    assert_eq!((numbers(&second), second[0].attempt), (vec![1], 2));
}

#[tokio::test]
async fn a_failure_blocks_all_that_waits_for_it_and_a_retry_opens_it_again() {
    let ledger = running(&plan("fix", &days(4), &[&[], &[0], &[1], &[]])).await;
    let claims = claim(&ledger, "w1", 9, 10).await;
    assert_eq!(numbers(&claims), [0, 3]);
    let failed =
        RunRecord { status: RunStatus::Failed, error: Some("no".into()), ..record("fix.1", &days(1)[0]) };
    let leave = Leave::Failed { note: "no".into(), records: vec![failed.clone()] };
    assert!(ledger.leave(&claims[0], leave, at(20)).await.unwrap());
    use TaskState::{Blocked, Claimed, Failed as FailedTask, Pending};
    assert_eq!(states(&ledger).await, [FailedTask, Blocked, Blocked, Claimed]);
    assert_eq!(ledger.run(&"fix.1".into()).await.unwrap(), [LedgerRow { position: 1, record: failed }]);
    move_to(&ledger, "fix", Running, Failed, 21).await;
    assert_eq!(claim(&ledger, "w1", 9, 22).await, []);
    move_to(&ledger, "fix", Failed, Running, 30).await;
    assert_eq!(states(&ledger).await, [Pending, Pending, Pending, Claimed]);
    let again = claim(&ledger, "w1", 9, 31).await;
    assert_eq!((numbers(&again), again[0].attempt, again[0].queued_at), (vec![0], 2, at(30)));
}

#[tokio::test]
async fn a_stop_cancels_what_is_open_and_nobody_can_leave_it_any_more() {
    let ledger = running(&plan("fix", &days(3), &[])).await;
    let claims = claim(&ledger, "w1", 2, 10).await;
    assert!(ledger.leave(&claims[0], Leave::Staged(Box::new(result())), at(11)).await.unwrap());
    move_to(&ledger, "fix", Running, Cancelled, 12).await;
    assert_eq!(states(&ledger).await, [TaskState::Cancelled; 3]);
    assert!(!ledger.leave(&claims[1], Leave::Staged(Box::new(result())), at(13)).await.unwrap());
    assert!(!ledger.renew_claim(&claims[1], TTL, at(13)).await.unwrap());
}

#[tokio::test]
async fn restaging_makes_staged_tasks_pending_and_leaves_the_others() {
    let ledger = running(&plan("fix", &days(2), &[])).await;
    for claim in claim(&ledger, "w1", 2, 10).await {
        assert!(ledger.leave(&claim, Leave::Staged(Box::new(result())), at(11)).await.unwrap());
    }
    let id = "fix".into();
    let to = |from, to| StateChange { note: Some("production moved".into()), ..change(from, to) };
    let review = to(Running, BackfillState::AwaitingReview);
    assert_eq!(ledger.transition(&id, &review, at(12)).await.unwrap(), Transition::Done);
    let stale = to(BackfillState::AwaitingReview, BackfillState::Stale);
    assert_eq!(ledger.restage(&id, &[TaskId(1)], &stale, at(20)).await.unwrap(), Transition::Done);
    assert_eq!(states(&ledger).await, [TaskState::Staged, TaskState::Pending]);
    let task = ledger.tasks(&"fix".into()).await.unwrap().remove(1);
    assert_eq!((task.result, task.note.as_deref(), task.queued_at), (None, Some("production moved"), at(20)));
}

#[tokio::test]
async fn progress_counts_tasks_and_the_time_they_took() {
    let ledger = running(&plan("fix", &days(3), &[])).await;
    let claims = claim(&ledger, "w1", 2, 10).await;
    assert!(ledger.leave(&claims[0], Leave::Staged(Box::new(result())), at(14)).await.unwrap());
    assert!(ledger.leave(&claims[1], Leave::Pending { note: "busy".into() }, at(99)).await.unwrap());
    let progress = ledger.progress(&"fix".into()).await.unwrap();
    assert_eq!((progress.busy_ms, progress.timed), (4000, 1));
    assert_eq!(progress.tasks, [(TaskState::Pending, 2), (TaskState::Staged, 1)].into());
}

#[tokio::test]
async fn leases_exclude_each_other_where_their_scopes_overlap() {
    let ledger = MemoryLedger::new();
    let table = TableId::from(TABLE);
    let (today, tomorrow) = (days(2)[0].clone(), days(2)[1].clone());
    let french = scope(&today.clone().and("country", "FR"));
    let german = scope(&today.clone().and("country", "DE"));
    let take = async |scope: &Scope, holder: &str, now: i64| {
        ledger.acquire(&table, scope, &holder.into(), TTL, at(now)).await.unwrap()
    };
    let day_lease = take(&scope(&today), "a", 0).await.unwrap();
    assert_eq!(day_lease.token, 1);
    assert_eq!(take(&french, "b", 1).await, None, "the day covers the country");
    assert_eq!(take(&Scope::whole_table(), "b", 1).await, None);
    assert_eq!(take(&scope(&tomorrow), "b", 1).await.unwrap().token, 2);
    let elsewhere = ledger.acquire(&"other".into(), &french, &"b".into(), TTL, at(1)).await.unwrap().unwrap();
    assert_eq!(elsewhere.token, 3, "tokens grow over the whole ledger");
    ledger.release(&day_lease).await.unwrap();
    ledger.release(&day_lease).await.unwrap();
    let fence = take(&french, "b", 2).await.unwrap();
    assert_eq!(take(&scope(&today), "a", 3).await, None, "a country of the day is held");
    assert!(take(&german, "a", 3).await.is_some());
    assert!(!ledger.is_current(&day_lease).await.unwrap());
    assert!(ledger.is_current(&fence).await.unwrap());
}

#[tokio::test]
async fn a_lease_that_ran_out_is_free_and_the_old_fence_is_void_once_it_is_taken() {
    let ledger = MemoryLedger::new();
    let (table, scope) = (TableId::from(TABLE), scope(&days(1)[0]));
    let take = async |holder: &str, now: i64| {
        ledger.acquire(&table, &scope, &holder.into(), TTL, at(now)).await.unwrap()
    };
    let first = take("a", 0).await.unwrap();
    assert!(ledger.renew(&first, TTL, at(10)).await.unwrap());
    assert_eq!(take("b", 69).await, None);
    assert!(ledger.is_current(&first).await.unwrap(), "it ran out, and nobody took it");
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
