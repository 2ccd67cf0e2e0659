//! Corrections carried downstream: revenue → balance, which carries over from day to day.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use super::shop::*;
use crate::conformance::faults::{Fault, FaultyLedger, FaultyTable, Fuse};
use crate::domain::ids::BackfillId;
use crate::domain::plan::{RollbackRequest, TaskId};
use crate::domain::request::{Mode, Request};
use crate::engine::Publication;
use crate::error::Result;
use crate::ports::delivery::{Answer, Delivery, DeliverySink};
use crate::ports::ledger::{BackfillState, LedgerReader, RunStatus, TaskState};
use crate::ports::writer::PartitionWriter;
use TaskState::{Blocked, Committed, Failed, Skipped};

/// The balances at the end of days 1 to 5 as v1 and v2 of the revenue have them. v2 leaves out 5,000 of day 1 and 900 of
/// day 2.
const OLD: [i64; 5] = [15_000, 22_900, 25_900, 27_900, 28_900];
const NEW: [i64; 5] = [10_000, 17_000, 20_000, 22_000, 23_000];

async fn balances(shop: &Shop) -> Vec<i64> {
    let mut lines = contents(&shop.balance).await;
    lines.sort_by_key(|line| line.split(' ').next_back().unwrap().to_owned());
    lines.iter().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect()
}

async fn five_days() -> Shop {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 5).await;
    shop.scheduled("balance", 1, 5).await;
    assert_eq!(balances(&shop).await, OLD);
    shop
}

fn spread(first: u32, last: u32, mode: Mode) -> Request {
    Request::new("fix", days(first, last), "refunds were counted", "ann")
        .with_job("revenue", "v2")
        .with_mode(mode)
}

/// What the run of the backfill has committed, in order.
async fn rows(shop: &Shop, run: &str) -> Vec<String> {
    let rows = shop.ledger.run(&run.into()).await.unwrap().into_iter().map(|row| row.record);
    let committed = rows.filter(|record| record.status == RunStatus::Committed);
    committed.map(|r| format!("{} {} {}", r.table, r.partition, r.trigger)).collect()
}

fn states(done: &crate::engine::Execution) -> Vec<TaskState> {
    done.tasks.iter().map(|task| task.state).collect()
}

#[tokio::test]
async fn what_reads_a_corrected_day_is_computed_once_in_order() {
    for tasks in [1, 3] {
        let shop = five_days().await;
        let done = shop.backfill(&spread(1, 2, Mode::Direct).with_concurrency(tasks)).await;
        assert_eq!(done.state, BackfillState::Done);
        assert_eq!(balances(&shop).await, NEW);
        let mut rows = rows(&shop, "fix.1").await;
        let balance = |rows: &[String]| {
            rows.iter().filter(|row| row.starts_with("balance")).cloned().collect::<Vec<_>>()
        };
        let expected: Vec<_> = (1..=5).map(|d| format!("balance day=2026-10-0{d} propagated")).collect();
        assert_eq!(balance(&rows), expected);
        if tasks == 1 {
            let order = ["revenue day=2026-10-01 backfill", "balance day=2026-10-01 propagated"];
            assert_eq!(rows[..2], order, "not after the whole range");
        }
        rows.retain(|row| row.starts_with("revenue"));
        assert_eq!(rows, ["revenue day=2026-10-01 backfill", "revenue day=2026-10-02 backfill"]);
        assert_eq!(shop.ledger.stale().await.unwrap(), []);
        assert!(shop.engine().plan(&spread(1, 2, Mode::Direct)).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn nothing_is_computed_downstream_of_what_came_out_the_same() {
    // Days 3 to 5 have no refunds.
    let shop = five_days().await;
    let done = shop.backfill(&spread(3, 5, Mode::Direct)).await;
    assert_eq!(done.state, BackfillState::Done);
    assert_eq!(states(&done), [Committed, Skipped, Committed, Skipped, Committed, Skipped]);
    let note = done.tasks[1].note.as_deref();
    assert_eq!(note, Some("what it reads came out as before, or another run has computed it since"));
    // Day 2 has one, which the balances of days 2 to 5 follow.
    let shop = five_days().await;
    let done = shop.backfill(&spread(2, 5, Mode::Direct)).await;
    assert_eq!(states(&done), [Committed; 8]);
    assert_eq!(balances(&shop).await, [15_000, 22_000, 25_000, 27_000, 28_000]);
}

#[tokio::test]
async fn a_shadow_is_carried_on_once_it_is_published() {
    let shop = five_days().await;
    let done = shop.backfill(&spread(1, 2, Mode::Shadow)).await;
    assert_eq!(done.state, BackfillState::AwaitingReview);
    assert_eq!(balances(&shop).await, OLD);
    shop.accept("fix").await;
    let (engine, id) = (shop.engine(), BackfillId::from("fix"));
    let publish = async || engine.publish(&id, &"ann".into(), &worker("w1")).await.unwrap();
    assert_eq!(publish().await, Publication::Published);
    assert_eq!(engine.backfill(&id).await.unwrap().state, BackfillState::Propagating);
    assert_eq!(publish().await, Publication::Published, "said again");
    assert_eq!(balances(&shop).await, OLD);
    let done = engine.execute(&id, &worker("w1"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Done);
    assert_eq!(balances(&shop).await, NEW);
}

#[tokio::test]
async fn what_a_reviewer_left_out_is_not_carried_on() {
    let shop = five_days().await;
    let _ = shop.backfill(&spread(1, 2, Mode::Shadow)).await;
    let (engine, id) = (shop.engine(), BackfillId::from("fix"));
    let _ = engine.discard_staged(&id, &[TaskId(0)], &"bob".into(), "day 1 is closed").await.unwrap();
    shop.accept("fix").await;
    assert_eq!(engine.publish(&id, &"ann".into(), &worker("w1")).await.unwrap(), Publication::Published);
    let done = engine.execute(&id, &worker("w1"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Done);
    // Days 1 and 2, each with its balance, and the balances that follow.
    let left_out = [TaskState::Cancelled, Skipped, Committed, Committed, Committed, Committed, Committed];
    assert_eq!(states(&done), left_out);
    assert_eq!(balances(&shop).await, [15_000, 22_000, 25_000, 27_000, 28_000]);
}

#[tokio::test]
async fn a_failure_stops_what_is_below_it_and_a_retry_goes_on() {
    use std::sync::atomic::Ordering;
    let shop = five_days().await;
    shop.switches.fails_on.store(2, Ordering::SeqCst);
    let done = shop.backfill(&spread(1, 2, Mode::Direct)).await;
    assert_eq!(done.state, BackfillState::Failed);
    assert_eq!(states(&done), [Committed, Committed, Failed, Blocked, Blocked, Blocked, Blocked]);
    shop.switches.fails_on.store(0, Ordering::SeqCst);
    let done = shop.engine().execute(&"fix".into(), &worker("w2"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Done);
    assert_eq!(balances(&shop).await, NEW);
}

#[tokio::test]
async fn a_downstream_failure_leaves_the_publication_and_a_retry_goes_on_from_there() {
    let shop = five_days().await;
    shop.switches.balance_fails_on.store(4, std::sync::atomic::Ordering::SeqCst);
    let _ = shop.backfill(&spread(1, 2, Mode::Shadow)).await;
    shop.accept("fix").await;
    let (engine, id) = (shop.engine(), BackfillId::from("fix"));
    assert_eq!(engine.publish(&id, &"ann".into(), &worker("w1")).await.unwrap(), Publication::Published);
    let done = engine.execute(&id, &worker("w1"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Failed);
    assert_eq!(balances(&shop).await, [NEW[0], NEW[1], NEW[2], OLD[3], OLD[4]]);
    shop.switches.balance_fails_on.store(0, std::sync::atomic::Ordering::SeqCst);
    let done = engine.execute(&id, &worker("w1"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Done);
    assert_eq!(balances(&shop).await, NEW);
    assert_eq!(rows(&shop, "fix.1").await.len(), 7, "each once");
}

#[tokio::test]
async fn what_the_schedule_computed_meanwhile_is_left_alone() {
    let shop = five_days().await;
    let _ = shop.backfill(&spread(1, 2, Mode::Shadow)).await;
    shop.accept("fix").await;
    let (engine, id) = (shop.engine(), BackfillId::from("fix"));
    assert_eq!(engine.publish(&id, &"ann".into(), &worker("w1")).await.unwrap(), Publication::Published);
    let run = crate::engine::RunRequest::scheduled("late", "balance", day(1));
    let _ = engine.run(&run, &worker("schedule")).await.unwrap();
    let done = engine.execute(&id, &worker("w1"), |_| {}).await.unwrap();
    assert_eq!(states(&done)[1..], [Skipped, Committed, Committed, Committed, Committed, Committed]);
    assert_eq!(balances(&shop).await, NEW);
}

#[tokio::test]
async fn closing_a_backfill_gives_up_what_is_left_downstream_and_says_what_is_stale() {
    let shop = five_days().await;
    let _ = shop.backfill(&spread(1, 2, Mode::Shadow)).await;
    shop.accept("fix").await;
    let (engine, id) = (shop.engine(), BackfillId::from("fix"));
    assert_eq!(engine.publish(&id, &"ann".into(), &worker("w1")).await.unwrap(), Publication::Published);
    let closed = engine.close(&id, &"ann".into(), false).await.unwrap();
    assert_eq!(closed.stale.iter().map(|s| s.partition.clone()).collect::<Vec<_>>(), [day(1), day(2)]);
    let tasks = shop.ledger.tasks(&id).await.unwrap();
    assert_eq!(tasks.iter().filter(|t| t.state == TaskState::Cancelled).count(), 5);
    assert_eq!(balances(&shop).await, OLD);
}

#[tokio::test]
async fn a_rollback_is_carried_on_too() {
    let shop = five_days().await;
    let _ = shop.backfill(&spread(1, 2, Mode::Direct)).await;
    assert_eq!(balances(&shop).await, NEW);
    let engine = shop.engine();
    let back = RollbackRequest {
        id: "back".into(),
        of: "fix".into(),
        partitions: None,
        reason: "finance had closed the month".into(),
        requester: "ann".into(),
    };
    let plan = engine.plan_rollback(&back).await.unwrap();
    assert_eq!(
        plan.tasks.iter().filter(|task| !task.is_downstream()).count(),
        2,
        "what was carried on is not restored"
    );
    let _ = engine.submit(&plan, &"ann".into()).await.unwrap();
    engine.approve(&plan.request.id, &plan.digest(), &"bob".into(), "").await.unwrap();
    let done = engine.execute(&plan.request.id, &worker("w1"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Done);
    assert_eq!(balances(&shop).await, OLD);
    assert_eq!(engine.backfill(&"fix".into()).await.unwrap().state, BackfillState::RolledBack);
}

/// A process dies, or loses a reply, at each call in turn, and another goes on.
#[tokio::test]
async fn what_is_carried_on_survives_a_death_at_any_call() {
    let (mut rows_of_clean, clean) = (Vec::new(), five_days().await);
    for (mode, fault) in [
        (Mode::Direct, Fault::DiesBefore),
        (Mode::Direct, Fault::DiesAfter),
        (Mode::Direct, Fault::LosesReply),
        (Mode::Shadow, Fault::DiesAfter),
    ] {
        for n in 0.. {
            let shop = five_days().await;
            let (engine, id) = (shop.engine(), BackfillId::from("fix"));
            let _ = shop.approved(&engine, &spread(1, 2, mode)).await;
            if mode == Mode::Shadow {
                let _ = engine.execute(&id, &worker("w0"), |_| {}).await.unwrap();
                shop.accept("fix").await;
            }
            let fuse = Fuse::new(n, fault);
            let ledger = Arc::new(FaultyLedger { inner: shop.ledger.clone(), fuse: Arc::clone(&fuse) });
            let writer: Arc<dyn PartitionWriter> = Arc::new(shop.balance.clone());
            let writer = Arc::new(FaultyTable::new(writer, Arc::clone(&fuse)));
            let faulty = shop.engine_with_balance(ledger, writer);
            let (by, w1) = ("ann".into(), worker("w1"));
            let work = async {
                if mode == Mode::Shadow {
                    let _ = faulty.publish(&id, &by, &w1).await?;
                }
                faulty.execute(&id, &w1, |_| {}).await
            };
            tokio::select! {
                biased;
                () = fuse.died() => {}
                done = work => {
                    let _ = done.unwrap();
                }
            }
            shop.clock.advance(std::time::Duration::from_secs(10));
            if mode == Mode::Shadow {
                let _ = engine.publish(&id, &by, &worker("w2")).await.unwrap();
            }
            let done = engine.execute(&id, &worker("w2"), |_| {}).await.unwrap();
            assert_eq!(done.state, BackfillState::Done, "{mode:?} {fault:?} at call {n}");
            assert_eq!(balances(&shop).await, NEW, "{mode:?} {fault:?} at call {n}");
            let mut found = rows(&shop, "fix.1").await;
            found.sort();
            if rows_of_clean.is_empty() {
                let _ = clean.backfill(&spread(1, 2, Mode::Direct)).await;
                rows_of_clean = rows(&clean, "fix.1").await;
                rows_of_clean.sort();
            }
            assert_eq!(found, rows_of_clean, "{mode:?} {fault:?} at call {n}");
            assert_eq!(shop.ledger.stale().await.unwrap(), [], "{mode:?} {fault:?} at call {n}");
            if fuse.is_whole() {
                assert!(n > 20, "only {n} calls");
                break;
            }
        }
    }
}

/// Notes what it is told to start, and answers as it is told.
#[derive(Debug, Default)]
struct Outside {
    started: Mutex<Vec<String>>,
    refuses: std::sync::atomic::AtomicBool,
}

#[async_trait]
impl DeliverySink for Outside {
    fn channel(&self) -> &str {
        "dbt"
    }

    async fn send(&self, start: &Delivery) -> Result<Answer> {
        if self.refuses.load(std::sync::atomic::Ordering::SeqCst) {
            return Ok(Answer::Refused { why: "1 of 3 models failed".to_owned() });
        }
        let told = &start.payload;
        let day = &told["partition"]["day"]["date"];
        let line = format!("{} {day} {}", told["job"], told["data_interval_end"]);
        self.started.lock().unwrap().push(line.replace('"', ""));
        Ok(Answer::Accepted { note: Some("3 models".to_owned()) })
    }
}

#[tokio::test]
async fn a_job_outside_is_started_for_what_changed_and_for_nothing_else() {
    let mut shop = five_days().await;
    let outside = Arc::new(Outside::default());
    shop.outside = Some(outside.clone());
    outside.refuses.store(true, std::sync::atomic::Ordering::SeqCst);
    // Days 2 and 3: only the second has a refund.
    let done = shop.backfill(&spread(2, 3, Mode::Direct)).await;
    assert_eq!(done.state, BackfillState::Failed);
    let failed: Vec<_> = done.in_state(Failed).filter_map(|task| task.note.clone()).collect();
    assert_eq!(failed.len(), 1);
    assert!(
        failed[0].contains("the job outside failed") && failed[0].contains("1 of 3 models failed"),
        "{failed:?}"
    );
    outside.refuses.store(false, std::sync::atomic::Ordering::SeqCst);
    let done = shop.engine().execute(&"fix".into(), &worker("w2"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Done);
    assert_eq!(*outside.started.lock().unwrap(), ["report 2026-10-02 2026-10-03T00:00:00Z"]);
    let notes: Vec<_> = done.in_state(Skipped).filter_map(|task| task.note.clone()).collect();
    assert!(notes.contains(&"run outside of this library: 3 models".to_owned()), "{notes:?}");
}
