//! Commits that the ledger is told of late.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;

use super::shop::{Shop, day, fix, worker};
use crate::conformance::faults::{Fault, FaultyLedger, FaultyTable, Fuse};
use crate::domain::request::WhenLeased;
use crate::domain::scope::Scope;
use crate::engine::RunRequest;
use crate::ports::ledger::{BackfillState, LedgerReader, RunLedger, TaskState};
use crate::ports::writer::PartitionWriter;

/// A run dies after a call, another one runs over its partition, then the first is started again.
async fn check(n: i64) -> bool {
    let shop = Shop::new();
    shop.scheduled("revenue", 2, 2).await;
    let fuse = Fuse::new(n, Fault::DiesAfter);
    let ledger = Arc::new(FaultyLedger { inner: shop.ledger.clone(), fuse: fuse.clone() });
    let table = Arc::new(FaultyTable::new(Arc::new(shop.revenue.clone()), fuse.clone()));
    let first = RunRequest::scheduled("first", "revenue", day(2)).with_logic("v2");
    let (dying, w1) = (shop.engine_over(ledger, table), worker("w1"));
    tokio::select! {
        done = dying.run(&first, &w1) => drop(done.unwrap()),
        () = fuse.died() => {}
    }
    let second = RunRequest::scheduled("second", "revenue", day(2)).with_logic("v1");
    let _ = shop.engine().run(&second, &worker("w2")).await.unwrap();
    let _ = shop.engine().run(&first, &worker("w1")).await.unwrap();
    let head = shop.revenue.head(&Scope::key(day(2)).unwrap()).await.unwrap();
    let current = shop.ledger.current(&"revenue".into(), &[day(2)]).await.unwrap().remove(0).unwrap();
    let (run, output) = (current.record.run, current.record.output_partition);
    assert_eq!(output.as_ref(), head.partitions.get(&day(2)), "call {n}: {run}");
    !fuse.is_whole()
}

/// A worker dies after a call, and the backfill is stopped before another takes its task. What it has committed is in the
/// ledger once the backfill is closed.
async fn check_stopped(n: i64) -> bool {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 2).await;
    let request = fix(1, 2).with_concurrency(1);
    let plan = shop.approved(&shop.engine(), &request).await;
    let fuse = Fuse::new(n, Fault::DiesAfter);
    let ledger = Arc::new(FaultyLedger { inner: shop.ledger.clone(), fuse: fuse.clone() });
    let table = Arc::new(FaultyTable::new(Arc::new(shop.revenue.clone()), fuse.clone()));
    let (dying, w1) = (shop.engine_over(ledger, table), worker("w1"));
    let id = plan.request.id.clone();
    tokio::select! {
        done = dying.execute(&id, &w1, |_| {}) => drop(done.unwrap()),
        () = fuse.died() => {}
    }
    let engine = shop.engine();
    if engine.backfill(&id).await.unwrap().state == BackfillState::Running {
        engine.cancel(&id, &"eve".into(), "enough").await.unwrap();
    }
    let _ = engine.close(&id, &"eve".into(), false).await.unwrap();
    for d in [1, 2] {
        let head = shop.revenue.head(&Scope::key(day(d)).unwrap()).await.unwrap();
        let current = shop.ledger.current(&"revenue".into(), &[day(d)]).await.unwrap().remove(0).unwrap();
        let output = current.record.output_partition;
        assert_eq!(output.as_ref(), head.partitions.get(&day(d)), "call {n}: {}", current.record.run);
    }
    !fuse.is_whole()
}

#[tokio::test]
async fn what_a_stopped_worker_has_committed_is_recorded_when_the_backfill_is_closed() {
    let mut n = 0;
    while check_stopped(n).await {
        n += 1;
    }
    assert!(n > 12, "only {n} calls: the faults did not reach the engine");
}

/// A worker dies after a call, under a request that leaves to others what they hold; another one takes over.
async fn check_taken_over(n: i64, policy: WhenLeased) -> bool {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 2).await;
    let request = fix(1, 2).with_concurrency(1).with_when_leased(policy);
    let plan = shop.approved(&shop.engine(), &request).await;
    let fuse = Fuse::new(n, Fault::DiesAfter);
    let ledger = Arc::new(FaultyLedger { inner: shop.ledger.clone(), fuse: fuse.clone() });
    let table = Arc::new(FaultyTable::new(Arc::new(shop.revenue.clone()), fuse.clone()));
    let (dying, w1) = (shop.engine_over(ledger, table), worker("w1"));
    let id = plan.request.id.clone();
    tokio::select! {
        done = dying.execute(&id, &w1, |_| {}) => drop(done.unwrap()),
        () = fuse.died() => {}
    }
    // The lease was prolonged after the claim, and outlives it; but by less than its time, whatever became of the clock.
    for task in shop.ledger.tasks(&id).await.unwrap().iter().filter(|t| t.state == TaskState::Claimed) {
        let scope = &plan.task(task.id).unwrap().scope;
        let holder = worker(&format!("w1/{}/{}", plan.run(), task.id));
        let later = task.started_at.unwrap() + TimeDelta::seconds(2);
        let ttl = Duration::from_secs(3);
        let held = shop.ledger.acquire(&"revenue".into(), scope, &holder, ttl, later).await.unwrap();
        assert!(held.is_some(), "call {n}");
    }
    let done = shop.engine().execute(&id, &worker("w2"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Published, "{policy:?}, call {n}: {:?}", done.tasks);
    for d in [1, 2] {
        let current = shop.ledger.current(&"revenue".into(), &[day(d)]).await.unwrap().remove(0).unwrap();
        assert_eq!(
            current.record.run,
            plan.run(),
            "{policy:?}, call {n}: what died held it, and no other run"
        );
    }
    !fuse.is_whole()
}

#[tokio::test]
async fn what_a_dead_worker_held_is_not_left_to_it() {
    for policy in [WhenLeased::Skip, WhenLeased::Fail, WhenLeased::Wait] {
        let mut n = 0;
        while check_taken_over(n, policy).await {
            n += 1;
        }
        assert!(n > 12, "only {n} calls: the faults did not reach the engine");
    }
}

#[tokio::test]
async fn a_run_that_was_superseded_before_the_ledger_knew_of_it_never_becomes_current() {
    let mut n = 0;
    while check(n).await {
        n += 1;
    }
    assert!(n > 8, "only {n} calls: the faults did not reach the engine");
}
