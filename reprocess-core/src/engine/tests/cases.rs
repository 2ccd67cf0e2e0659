//! Cases that are easy to get wrong: found by looking for trouble.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::shop::{Shop, contents, day, days, fix, orders, revenues, worker};
use crate::conformance::faults::{Fault, FaultyTable, Fuse};
use crate::domain::ids::BackfillId;
use crate::domain::job::MergeSpec;
use crate::domain::plan::RollbackRequest;
use crate::domain::request::{Expected, Mode, Request, Selection, WhenLeased};
use crate::domain::scope::Scope;
use crate::domain::validate::{Expectation, Severity};
use crate::engine::{Publication, RunOutcome, RunRequest};
use crate::ports::clock::Clock;
use crate::ports::ledger::{
    BackfillState, LedgerReader, RunLedger, StateChange, TaskFinish, TaskState, Transition,
};
use crate::ports::reader::SnapshotReader;

fn balances(rows: &[(u32, i64)]) -> arrow_array::RecordBatch {
    use arrow_array::{ArrayRef, Date32Array, Int64Array, RecordBatch};
    let epoch = chrono::NaiveDate::from_ymd_opt(1970, 1, 1).unwrap();
    let number = |d: u32| i32::try_from((super::shop::date(d) - epoch).num_days()).unwrap();
    let columns: [(&str, ArrayRef); 2] = [
        ("day", Arc::new(rows.iter().map(|r| Some(number(r.0))).collect::<Date32Array>())),
        ("cents", Arc::new(rows.iter().map(|r| Some(r.1)).collect::<Int64Array>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
}

/// French revenue by day.
fn revenue_rows(rows: &[(u32, i64)]) -> arrow_array::RecordBatch {
    use arrow_array::{ArrayRef, Date32Array, Int64Array, RecordBatch, StringArray};
    let epoch = chrono::NaiveDate::from_ymd_opt(1970, 1, 1).unwrap();
    let number = |d: u32| i32::try_from((super::shop::date(d) - epoch).num_days()).unwrap();
    let columns: [(&str, ArrayRef); 3] = [
        ("day", Arc::new(rows.iter().map(|r| Some(number(r.0))).collect::<Date32Array>())),
        ("country", Arc::new(rows.iter().map(|_| Some("FR")).collect::<StringArray>())),
        ("cents", Arc::new(rows.iter().map(|r| Some(r.1)).collect::<Int64Array>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
}

fn rollback(id: &str, partitions: Option<&[u32]>) -> RollbackRequest {
    RollbackRequest {
        id: id.into(),
        of: "fix".into(),
        partitions: partitions.map(|days| days.iter().map(|d| day(*d)).collect()),
        reason: "it was wrong".into(),
        requester: "ann".into(),
    }
}

async fn roll_back(shop: &Shop, request: &RollbackRequest) -> BackfillState {
    let engine = shop.engine();
    let plan = engine.plan_rollback(request).await.unwrap();
    let _ = engine.submit(&plan, &"ann".into()).await.unwrap();
    engine.approve(&plan.request.id, &plan.digest(), &"bob".into(), "").await.unwrap();
    engine.execute(&plan.request.id, &worker("w1"), |_| {}).await.unwrap().state
}

#[tokio::test]
async fn what_is_staged_again_after_half_a_publication_reads_what_was_published() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    shop.scheduled("balance", 1, 3).await;
    let request = fix(1, 3).with_mode(Mode::Shadow).with_job("balance", "v1");
    let _ = shop.backfill(&request).await;
    shop.accept("fix").await;
    let engine = shop.engine();
    shop.balance.replace_unmanaged(&Scope::key(day(1)).unwrap(), &balances(&[(1, 5)])).unwrap();
    let published = engine.publish(&"fix".into(), &"ann".into(), &worker("w1")).await.unwrap();
    assert!(matches!(published, Publication::Stale { .. }));
    assert_eq!(revenues(&shop).await, ["01 FR 10000", "02 FR 7000", "03 FR 3000"]);
    let done = engine.execute(&"fix".into(), &worker("w1"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::AwaitingReview, "{:?}", done.tasks);
    shop.accept("fix").await;
    let published = engine.publish(&"fix".into(), &"ann".into(), &worker("w1")).await.unwrap();
    assert_eq!(published, Publication::Published);
    assert_eq!(contents(&shop.balance).await, ["10000 2026-10-01", "17000 2026-10-02", "20000 2026-10-03"]);
}

#[tokio::test]
async fn later_intervals_of_a_merge_without_order_are_merged_again_though_unchanged() {
    let shop = Shop::new();
    let engine = shop.engine_merging(MergeSpec::by(["country"]));
    for d in 1..=5 {
        let run = RunRequest::scheduled(format!("customers-{d}"), "customers", day(d));
        let _ = engine.run(&run, &worker("schedule")).await.unwrap();
    }
    assert_eq!(contents(&shop.customers).await, ["1000 FR 7", "900 DE 4"]);
    shop.orders.append_unmanaged(&orders(&[(3, 9, "FR", 1, false)])).unwrap();
    let request = Request::new("late", days(3, 3), "late rows", "ann")
        .with_job("customers", "v1")
        .with_mode(Mode::Direct);
    let plan = engine.plan(&request).await.unwrap();
    let _ = engine.submit(&plan, &"ann".into()).await.unwrap();
    engine.approve(&plan.request.id, &plan.digest(), &"bob".into(), "").await.unwrap();
    let done = engine.execute(&"late".into(), &worker("w1"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Published);
    assert_eq!(contents(&shop.customers).await, ["1000 FR 7", "900 DE 4"], "day 5 has the last word");
}

#[tokio::test]
async fn rows_that_no_run_has_written_are_not_said_to_be_one_s_when_they_come_back() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 1).await;
    shop.revenue.replace_unmanaged(&Scope::key(day(1)).unwrap(), &revenue_rows(&[(1, 1)])).unwrap();
    let _ = shop.backfill(&fix(1, 1)).await;
    assert_eq!(roll_back(&shop, &rollback("back", None)).await, BackfillState::Published);
    assert_eq!(revenues(&shop).await, ["01 FR 1"]);
    let next = RunRequest::scheduled("next", "revenue", day(1));
    assert_eq!(shop.engine().run(&next, &worker("w")).await.unwrap(), RunOutcome::Committed);
    assert_eq!(revenues(&shop).await, ["01 FR 15000"]);
}

#[tokio::test]
async fn a_backfill_that_ran_twice_is_taken_back_to_what_was_before_it() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 1).await;
    let _ = shop.backfill(&fix(1, 1)).await;
    shop.orders.append_unmanaged(&orders(&[(1, 9, "FR", 1, false)])).unwrap();
    let _ = shop.backfill(&fix(1, 1)).await;
    assert_eq!(revenues(&shop).await, ["01 FR 10001"]);
    assert_eq!(roll_back(&shop, &rollback("back", None)).await, BackfillState::Published);
    assert_eq!(revenues(&shop).await, ["01 FR 15000"]);
}

#[tokio::test]
async fn a_rollback_of_two_tables_records_what_came_back_in_each() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 1).await;
    shop.scheduled("balance", 2, 2).await;
    let _ = shop.backfill(&fix(1, 1).with_job("balance", "v1")).await;
    assert_eq!(contents(&shop.balance).await, ["0 2026-10-02", "10000 2026-10-01"]);
    assert_eq!(roll_back(&shop, &rollback("back", None)).await, BackfillState::Done);
    assert_eq!(contents(&shop.balance).await, ["0 2026-10-02"], "the first balance of the day goes again");
    let mut after: Vec<_> = shop.ledger.run(&"back.1".into()).await.unwrap();
    after.sort_by(|a, b| a.record.table.cmp(&b.record.table));
    let after: Vec<_> =
        after.iter().map(|r| (r.record.table.as_str(), r.record.after.as_ref().unwrap().rows)).collect();
    // The second is what carries over from the first, which is gone.
    assert_eq!(after, [("balance", 0), ("balance", 1), ("revenue", 1)]);
}

#[tokio::test]
async fn a_rollback_needs_no_code_of_what_it_takes_back() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 1).await;
    let _ = shop.backfill(&fix(1, 1)).await;
    let engine = shop.engine_without_code();
    let plan = engine.plan_rollback(&rollback("back", None)).await.unwrap();
    let _ = engine.submit(&plan, &"ann".into()).await.unwrap();
    engine.approve(&plan.request.id, &plan.digest(), &"bob".into(), "").await.unwrap();
    let done = engine.execute(&plan.request.id, &worker("w1"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Published);
    assert_eq!(revenues(&shop).await, ["01 FR 15000"]);
}

#[tokio::test]
async fn a_rollback_that_failed_does_not_count_as_taken_back() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 2).await;
    let _ = shop.backfill(&fix(1, 2)).await;
    let engine = shop.engine();
    let plan = engine.plan_rollback(&rollback("first", Some(&[2]))).await.unwrap();
    let _ = engine.submit(&plan, &"ann".into()).await.unwrap();
    engine.approve(&plan.request.id, &plan.digest(), &"bob".into(), "").await.unwrap();
    shop.orders.append_unmanaged(&orders(&[(2, 9, "FR", 1, false)])).unwrap();
    let late = RunRequest::scheduled("late", "revenue", day(2)).with_logic("v2");
    let _ = engine.run(&late, &worker("schedule")).await.unwrap();
    let done = engine.execute(&plan.request.id, &worker("w1"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Failed);
    engine.cancel(&plan.request.id, &"ann".into(), "").await.unwrap();
    assert_eq!(roll_back(&shop, &rollback("second", Some(&[1]))).await, BackfillState::Published);
    assert_eq!(engine.backfill(&"fix".into()).await.unwrap().state, BackfillState::Published);
}

#[tokio::test]
async fn a_publication_that_another_process_has_given_up_sends_no_task_back() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    let done = shop.backfill(&fix(1, 3).with_mode(Mode::Shadow)).await;
    shop.accept("fix").await;
    let (id, now) = (BackfillId::from("fix"), shop.clock.now());
    let to =
        |from, to| StateChange { from, to, by: "ann".into(), approval: None, note: Some("moved".into()) };
    let publishing = to(BackfillState::AwaitingReview, BackfillState::Publishing);
    let _ = shop.ledger.transition(&id, &publishing, now).await.unwrap();
    let _ = shop
        .ledger
        .transition(&id, &to(BackfillState::Publishing, BackfillState::Published), now)
        .await
        .unwrap();
    let stale = to(BackfillState::Publishing, BackfillState::Stale);
    let answer = shop.ledger.restage(&id, &[done.tasks[1].id], &stale, now).await.unwrap();
    assert_eq!(answer, Transition::Elsewhere(BackfillState::Published));
    let states: Vec<_> = shop.ledger.tasks(&id).await.unwrap().iter().map(|t| t.state).collect();
    assert_eq!(states, [TaskState::Staged; 3], "nothing is pending");
}

#[tokio::test]
async fn a_publication_that_cannot_succeed_does_not_hold_its_partitions_for_ever() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 1).await;
    let done = shop.backfill(&fix(1, 1).with_mode(Mode::Shadow)).await;
    shop.accept("fix").await;
    use crate::ports::writer::PartitionWriter;
    let staged = done.tasks[0].result.clone().unwrap().staged.unwrap();
    shop.revenue.discard(&staged.id).await.unwrap();
    let engine = shop.engine();
    let _ = engine.publish(&"fix".into(), &"ann".into(), &worker("w1")).await.unwrap_err();
    engine.cancel(&"fix".into(), &"ann".into(), "what was staged is gone").await.unwrap();
}

#[tokio::test]
async fn a_whole_table_is_rebuilt_by_name() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    shop.scheduled("balance", 1, 3).await;
    let mut request = fix(1, 1);
    request.selection = Selection::WholeTable;
    request.propagate = true;
    let plan = shop.engine().plan(&request).await.unwrap();
    assert!(plan.tasks[0].scope.is_whole_table());
    assert_eq!(plan.downstream.len(), 3);
    // What reads its own partition before would read all that it writes.
    let carry = Request::new("carry", Selection::WholeTable, "first load", "ann").with_job("balance", "v1");
    assert_eq!(
        shop.engine().plan(&carry).await.unwrap().refused[0].reason,
        "it reads its own earlier partition, so it cannot be rebuilt as a whole: select a range"
    );
}

#[tokio::test]
async fn a_change_of_an_input_that_was_pinned_before_it_stays_unseen() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    shop.scheduled("balance", 1, 3).await;
    let engine = shop.engine();
    let _ = shop.approved(&engine, &fix(2, 3).with_job("balance", "v1")).await;
    shop.orders.append_unmanaged(&orders(&[(1, 9, "FR", 1, false)])).unwrap();
    for job in ["revenue", "balance"] {
        let late = RunRequest::scheduled(format!("{job}-late"), job, day(1));
        let _ = engine.run(&late, &worker("schedule")).await.unwrap();
    }
    let done = engine.execute(&"fix".into(), &worker("w1"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Published);
    // Day 2 carries the balance of day 1 that the plan had pinned.
    assert_eq!(contents(&shop.balance).await, ["15001 2026-10-01", "22000 2026-10-02", "25000 2026-10-03"]);
    let stale: Vec<_> = shop.ledger.stale().await.unwrap().into_iter().map(|s| s.partition).collect();
    assert!(stale.contains(&day(2)), "{stale:?}");
}

#[tokio::test]
async fn rows_that_come_back_and_inputs_that_were_recorded_have_seen_nothing_new() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 1).await;
    let mut carry = Request::new("fix", days(1, 1), "first load", "ann").with_job("balance", "v1");
    carry.mode = Mode::Direct;
    let _ = shop.backfill(&carry).await;
    let _ = shop.backfill(&Request { id: "correct".into(), ..fix(1, 1) }).await;
    let stale =
        async || shop.ledger.stale().await.unwrap().into_iter().map(|s| s.partition).collect::<Vec<_>>();
    assert_eq!(stale().await, [day(1)]);
    let recorded = crate::domain::request::Inputs::Recorded { by: "fix.1".into() };
    let replay = Request { id: "replay".into(), ..carry.with_inputs(recorded).with_force() };
    assert_eq!(shop.backfill(&replay).await.state, BackfillState::Published);
    assert_eq!(stale().await, [day(1)]);
    let taken_back = RollbackRequest { of: "replay".into(), ..rollback("back", None) };
    assert_eq!(roll_back(&shop, &taken_back).await, BackfillState::Published);
    assert_eq!(stale().await, [day(1)]);
}

#[tokio::test]
async fn a_refused_plan_holds_no_pins_and_an_ended_one_leaves_those_of_others() {
    let shop = Shop::new();
    let engine = shop.engine();
    let _ = shop.approved(&engine, &fix(1, 2)).await;
    let mut other = fix(2, 3);
    other.id = "other".into();
    let plan = engine.plan(&other).await.unwrap();
    let _ = engine.submit(&plan, &"ann".into()).await.unwrap_err();
    let mut merge = Request::new("merge", days(1, 5), "first load", "ann").with_job("customers", "v1");
    merge.id = "merge".into();
    let _ = shop.approved(&engine, &merge).await;
    engine.cancel(&"merge".into(), &"ann".into(), "not needed").await.unwrap();
    // The orders change, and what is not held expires.
    let version =
        shop.orders.append_unmanaged(&orders(&[(1, 9, "FR", 1, false), (3, 10, "FR", 1, false)])).unwrap();
    shop.orders.expire_before(&version).unwrap();
    let done = engine.execute(&"fix".into(), &worker("w1"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Published, "{:?}", done.tasks);
    let pin = |plan: &crate::domain::plan::Plan, d: u32| {
        let task = plan.tasks.iter().find(|t| t.units == [day(d)]).unwrap();
        let crate::domain::plan::Action::Compute { inputs, .. } = &task.action else { panic!() };
        inputs["orders"].pin.as_ref().clone()
    };
    assert!(shop.orders.read(&pin(&plan, 3)).await.is_err(), "the pin of the refused plan is still held");
}

#[tokio::test]
async fn two_runs_of_one_worker_exclude_each_other() {
    let shop = Shop::new();
    let fuse = Fuse::new(4, Fault::DiesBefore);
    let table = Arc::new(FaultyTable::new(Arc::new(shop.revenue.clone()), fuse.clone()));
    let faulty = shop.engine_over(shop.ledger.clone(), table);
    let run = |id: &str| RunRequest::scheduled(id, "revenue", day(1)).with_when_leased(WhenLeased::Skip);
    let (first, other, one) = (run("a"), run("b"), worker("one"));
    let slow = faulty.run(&first, &one);
    tokio::pin!(slow);
    tokio::select! {
        _ = &mut slow => panic!("the first run should still be at work"),
        () = fuse.died() => {}
    }
    let outcome = shop.engine().run(&other, &one).await.unwrap();
    assert_eq!(outcome, RunOutcome::Skipped("another run holds the partition".into()));
    // The same run again, after the process was started anew, need not wait.
    assert_eq!(shop.engine().run(&first, &one).await.unwrap(), RunOutcome::Committed);
}

#[tokio::test]
async fn a_direct_merge_is_checked_by_what_the_table_holds_before_and_after() {
    let shop = Shop::new();
    shop.scheduled("customers", 1, 5).await;
    let again = Request::new("again", days(5, 5), "late rows", "ann")
        .with_job("customers", "v1")
        .with_mode(Mode::Direct)
        .with_force()
        .with_expected(Expected {
            job: None,
            expectation: Expectation::RowCountUnchanged,
            severity: Severity::Abort,
        });
    let done = shop.backfill(&again).await;
    assert_eq!(done.state, BackfillState::Published, "{:?}", done.tasks);
}

#[tokio::test]
async fn a_run_whose_claim_has_passed_on_gives_up_instead_of_trying_for_ever() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 1).await;
    let _ = shop.backfill(&fix(1, 1)).await;
    let engine = shop.engine();
    let plan = engine.plan_rollback(&rollback("back", None)).await.unwrap();
    let _ = engine.submit(&plan, &"ann".into()).await.unwrap();
    engine.approve(&plan.request.id, &plan.digest(), &"bob".into(), "").await.unwrap();
    let ttl = Duration::from_secs(3);
    let claim = async |name: &str| {
        let now = shop.clock.now();
        let can_run = [("revenue".into(), "v2".into())];
        let claims = shop.ledger.claim(&"back".into(), &worker(name), &can_run, 1, ttl, now).await;
        claims.unwrap().remove(0)
    };
    let record = async || engine.backfill(&"back".into()).await.unwrap();
    let to = StateChange {
        from: BackfillState::Approved,
        to: BackfillState::Running,
        by: "w".into(),
        approval: None,
        note: None,
    };
    let _ = shop.ledger.transition(&"back".into(), &to, shop.clock.now()).await.unwrap();
    let first = claim("one").await;
    shop.clock.advance(ttl * 2);
    let second = claim("two").await;
    let record = record().await;
    let origin = crate::engine::execute::origin(&record, &plan.tasks[0], &first.worker);
    let beside = engine.beside(&plan).await.unwrap();
    let at = |claim| crate::engine::record::Attempt {
        plan: &plan,
        task: &plan.tasks[0],
        origin: &origin,
        claim: Some(claim),
        beside: &beside,
        queued_at: first.queued_at,
        started_at: first.started_at,
    };
    use crate::engine::task::TaskEnd;
    let end = engine.run_task(&at(&first), Default::default()).await.unwrap();
    assert!(matches!(end, TaskEnd::Lost), "{end:?}");
    let end = engine.run_task(&at(&second), Default::default()).await.unwrap();
    assert!(matches!(end, TaskEnd::Committed), "{end:?}");
}

#[tokio::test]
async fn a_planned_downstream_partition_is_stale_until_its_task_succeeds() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    shop.scheduled("balance", 1, 3).await;
    shop.switches.fails_on.store(1, Ordering::SeqCst);
    let request = fix(1, 3).with_job("balance", "v1");
    let done = shop.backfill(&request).await;
    assert_eq!(done.state, BackfillState::Failed);
    let engine = shop.engine();
    engine.cancel(&"fix".into(), &"ann".into(), "not today").await.unwrap();
    // Day 2 was corrected, and its balance was not.
    assert_eq!(revenues(&shop).await, ["01 FR 15000", "02 FR 7000", "03 FR 3000"]);
    let stale: Vec<_> = shop.ledger.stale().await.unwrap().into_iter().map(|s| s.partition).collect();
    assert_eq!(stale, [day(2)], "what day 2 of the balance reaches is left to the run that corrects it");
}

#[tokio::test]
async fn what_came_out_unchanged_is_stale_no_longer() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    shop.scheduled("balance", 1, 3).await;
    let run = "by-hand".into();
    let mut cause = crate::ports::writer::CommitEntry {
        scope: Scope::key(day(1)).unwrap(),
        change: crate::ports::writer::Change::Adopt,
        stamp: shop.ledger.run(&"revenue-1".into()).await.unwrap()[0].record.stamp.clone(),
        attempt: 1,
        finish: TaskFinish {
            records: vec![shop.ledger.run(&"revenue-1".into()).await.unwrap()[0].record.clone()],
            stale: vec![("balance".into(), "balance".into(), day(2))],
            ..TaskFinish::default()
        },
    };
    cause.stamp.run = run;
    cause.finish.records[0].stamp = cause.stamp.clone();
    cause.finish.records[0].table = "elsewhere".into();
    let head = crate::ports::writer::PartitionWriter::head(&shop.revenue, &cause.scope).await.unwrap();
    let commit = crate::ports::writer::Commit {
        version: head.table.clone(),
        partitions: head,
        attempts: Vec::new(),
        kept: None,
        recorded: false,
        order: 0,
    };
    shop.ledger.finish(&commit, &[cause]).await.unwrap();
    assert_eq!(shop.ledger.stale().await.unwrap().len(), 1);
    shop.scheduled("balance", 2, 2).await;
    let again = Request::new("again", days(2, 2), "to be sure", "ann").with_job("balance", "v1");
    let plan = shop.engine().plan(&again).await.unwrap();
    assert!(plan.is_empty());
    let _ = shop.engine().submit(&plan, &"ann".into()).await.unwrap();
    assert_eq!(shop.ledger.stale().await.unwrap(), []);
}

#[tokio::test]
async fn a_run_that_is_in_the_ledger_is_not_looked_for_in_the_table_s_history() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 1).await;
    shop.orders.append_unmanaged(&orders(&[(1, 9, "FR", 1, false)])).unwrap();
    for run in ["b", "c", "d"] {
        let next = RunRequest::scheduled(run, "revenue", day(2)).with_force();
        let _ = shop.engine().run(&next, &worker("w")).await.unwrap();
    }
    let version = shop.revenue.current().await.unwrap();
    shop.revenue.expire_before(&version).unwrap();
    let computed = shop.switches.computed.load(Ordering::SeqCst);
    let again = RunRequest::scheduled("revenue-1", "revenue", day(1));
    assert_eq!(shop.engine().run(&again, &worker("w")).await.unwrap(), RunOutcome::Committed);
    assert_eq!(revenues(&shop).await[0], "01 FR 15000", "it is the run that it was");
    assert_eq!(shop.switches.computed.load(Ordering::SeqCst), computed);
}

#[tokio::test]
async fn a_second_run_of_a_published_shadow_over_two_jobs_has_nothing_to_do() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    shop.scheduled("balance", 1, 3).await;
    let request = fix(1, 3).with_mode(Mode::Shadow).with_job("balance", "v1");
    let _ = shop.backfill(&request).await;
    shop.accept("fix").await;
    let _ = shop.engine().publish(&"fix".into(), &"ann".into(), &worker("w1")).await.unwrap();
    let again = shop.engine().plan(&request).await.unwrap();
    assert!(again.is_empty(), "{} tasks", again.tasks.len());
}

#[tokio::test]
async fn what_was_computed_from_a_replaced_day_while_it_was_replaced_is_stale() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 1).await;
    let carry = Request::new("carry", days(1, 1), "first load", "ann").with_job("balance", "v1");
    let _ = shop.backfill(&carry).await;
    let _ = shop.backfill(&fix(1, 1)).await;
    shop.accept("carry").await;
    let _ = shop.engine().publish(&"carry".into(), &"ann".into(), &worker("w1")).await.unwrap();
    assert_eq!(contents(&shop.balance).await, ["15000 2026-10-01"]);
    let stale: Vec<_> = shop.ledger.stale().await.unwrap().into_iter().map(|s| s.partition).collect();
    assert_eq!(stale, [day(1)]);
}

#[tokio::test]
async fn rows_that_changed_while_files_were_rewritten_are_not_overwritten() {
    use crate::ports::writer::{CommitOutcome, Moved, MovedBy, PartitionWriter};
    for changed in [false, true] {
        let shop = Shop::new();
        shop.scheduled("revenue", 1, 1).await;
        let now = shop.revenue.head(&Scope::key(day(1)).unwrap()).await.unwrap().partitions[&day(1)].clone();
        let table = FaultyTable::new(Arc::new(shop.revenue.clone()), Fuse::new(i64::MAX, Fault::LosesReply));
        let moved = vec![Moved { partition: day(1), by: MovedBy::Layout, now }];
        table.answers.lock().unwrap().push(CommitOutcome::Conflicted { moved });
        let engine = shop.engine_over(shop.ledger.clone(), Arc::new(table));
        let _ = shop.approved(&engine, &fix(1, 1)).await;
        if changed {
            shop.revenue.replace_unmanaged(&Scope::key(day(1)).unwrap(), &revenue_rows(&[(1, 1)])).unwrap();
        }
        let done = engine.execute(&"fix".into(), &worker("w1"), |_| {}).await.unwrap();
        let (state, rows) = match changed {
            false => (BackfillState::Published, "01 FR 10000"),
            true => (BackfillState::Failed, "01 FR 1"),
        };
        assert_eq!((done.state, revenues(&shop).await), (state, vec![rows.to_owned()]));
    }
}

#[tokio::test]
async fn what_was_overwritten_is_recorded_as_it_was_and_not_as_it_was_staged_on() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 1).await;
    shop.scheduled("balance", 1, 1).await;
    let mut request = fix(1, 1).with_job("revenue", "v1").with_mode(Mode::Shadow).with_force();
    request.when_moved = crate::domain::request::WhenMoved::Overwrite;
    let _ = shop.backfill(&request).await;
    shop.accept("fix").await;
    shop.revenue.replace_unmanaged(&Scope::key(day(1)).unwrap(), &revenue_rows(&[(1, 1)])).unwrap();
    let published = shop.engine().publish(&"fix".into(), &"ann".into(), &worker("w1")).await.unwrap();
    assert_eq!(published, Publication::Published);
    let rows = shop.ledger.changes(&"fix".into()).await.unwrap();
    let cents = |profile: &Option<crate::domain::profile::Profile>| {
        profile.as_ref().unwrap().totals["cents"].to_string()
    };
    let record = &rows[0].record;
    assert_eq!((cents(&record.before), cents(&record.after)), ("1".to_owned(), "15000".to_owned()));
    let stale: Vec<_> = shop.ledger.stale().await.unwrap().into_iter().map(|s| s.partition).collect();
    assert_eq!(stale, [day(1)], "it may have been read with the rows that were there for a while");
}

#[tokio::test]
async fn rows_that_an_outside_writer_took_from_a_merged_table_come_back() {
    let shop = Shop::new();
    shop.scheduled("customers", 1, 5).await;
    let again = async |run: &str| {
        let run = RunRequest::scheduled(run, "customers", day(5));
        shop.engine().run(&run, &worker("schedule")).await.unwrap()
    };
    assert!(matches!(again("same").await, RunOutcome::Skipped(_)));
    let none = {
        use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
        let columns: [(&str, ArrayRef); 3] = [
            ("country", Arc::new(StringArray::from(Vec::<&str>::new()))),
            ("id", Arc::new(Int64Array::from(Vec::<i64>::new()))),
            ("cents", Arc::new(Int64Array::from(Vec::<i64>::new()))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
    };
    shop.customers.replace_unmanaged(&Scope::whole_table(), &none).unwrap();
    assert_eq!(again("after").await, RunOutcome::Committed);
    assert_eq!(contents(&shop.customers).await, ["1000 FR 7"]);
    assert!(matches!(again("then").await, RunOutcome::Skipped(_)));
    let request = Request::new("all", days(1, 5), "rows are missing", "ann")
        .with_job("customers", "v1")
        .with_mode(Mode::Direct);
    let done = shop.backfill(&request).await;
    assert_eq!(done.tasks.len(), 4, "day 5 is there since");
    assert_eq!(contents(&shop.customers).await, ["1000 FR 7", "900 DE 4"]);
    assert!(shop.engine().plan(&request).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_merge_of_several_intervals_can_be_taken_back() {
    for merge in [MergeSpec::by(["country"]).newer("id"), MergeSpec::by(["country"])] {
        let shop = Shop::new();
        let engine = shop.engine_merging(merge);
        for d in 1..=2 {
            let run = RunRequest::scheduled(format!("customers-{d}"), "customers", day(d));
            let _ = engine.run(&run, &worker("schedule")).await.unwrap();
        }
        let before = contents(&shop.customers).await;
        let request = Request::new("fix", days(1, 5), "all of it", "ann")
            .with_job("customers", "v1")
            .with_mode(Mode::Direct)
            .with_force();
        let _ = shop.approved(&engine, &request).await;
        let done = engine.execute(&"fix".into(), &worker("w1"), |_| {}).await.unwrap();
        assert_eq!(done.state, BackfillState::Published);
        assert_eq!(contents(&shop.customers).await, ["1000 FR 7", "900 DE 4"]);
        let last = engine.plan_rollback(&rollback("part", Some(&[5]))).await.unwrap();
        assert_eq!((last.refused, last.tasks.len()), (vec![], 1));
        let first = engine.plan_rollback(&rollback("part", Some(&[1]))).await.unwrap();
        assert_eq!(
            first.refused[0].reason,
            "run `fix.1` has merged day=2026-10-05 into the same rows since, and is not to be taken back"
        );
        let plan = engine.plan_rollback(&rollback("back", None)).await.unwrap();
        assert_eq!(plan.refused, []);
        let _ = engine.submit(&plan, &"ann".into()).await.unwrap();
        engine.approve(&"back".into(), &plan.digest(), &"bob".into(), "").await.unwrap();
        let done = engine.execute(&"back".into(), &worker("w1"), |_| {}).await.unwrap();
        assert_eq!(done.state, BackfillState::Published, "{:?}", done.tasks);
        assert_eq!(contents(&shop.customers).await, before);
        assert_eq!(engine.backfill(&"fix".into()).await.unwrap().state, BackfillState::RolledBack);
    }
}

#[tokio::test]
async fn merges_between_which_somebody_else_wrote_are_not_taken_back() {
    let shop = Shop::new();
    let request = Request::new("fix", days(1, 5), "all of it", "ann")
        .with_job("customers", "v1")
        .with_mode(Mode::Direct);
    let _ = shop.backfill(&request).await;
    let other = RunRequest::scheduled("other", "customers", day(3)).with_force();
    let _ = shop.engine().run(&other, &worker("schedule")).await.unwrap();
    let plan = shop.engine().plan_rollback(&rollback("back", None)).await.unwrap();
    assert!(plan.tasks.is_empty());
    assert_eq!(plan.refused.len(), 5);
    let reason = &plan.refused[0].reason;
    assert!(reason.starts_with("run `other` has replaced it since"), "{reason}");
}
