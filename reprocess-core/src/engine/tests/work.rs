//! Workers: what they take up, and how they end.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use super::shop::*;
use crate::domain::ids::BackfillId;
use crate::engine::{Stop, TaskEvent};
use crate::ports::ledger::{BackfillState, LedgerReader, TaskState};
use TaskState::{Committed, Pending};

async fn state(shop: &Shop, id: &str) -> BackfillState {
    shop.ledger.backfill(&id.into()).await.unwrap().unwrap().state
}

async fn tasks(shop: &Shop, id: &str) -> Vec<TaskState> {
    shop.ledger.tasks(&id.into()).await.unwrap().iter().map(|task| task.state).collect()
}

#[tokio::test]
async fn a_worker_takes_up_what_is_approved_and_nothing_else() {
    let shop = Shop::new();
    let engine = shop.engine();
    for (id, first, last) in [("one", 1, 2), ("two", 3, 3)] {
        let mut request = fix(first, last);
        request.id = id.into();
        let _ = shop.approved(&engine, &request).await;
    }
    let mut request = fix(4, 4);
    request.id = "planned".into();
    let plan = engine.plan(&request).await.unwrap();
    let _ = engine.submit(&plan, &"ann".into()).await.unwrap();
    let seen = Mutex::new(Vec::new());
    let watch = |id: &BackfillId, event: TaskEvent| {
        if let TaskEvent::Left(task, state) = event {
            seen.lock().unwrap().push(format!("{id} {task} {state}"));
        }
    };
    engine.work(&worker("w1"), true, watch).await.unwrap();
    let mut seen = seen.into_inner().unwrap();
    seen.sort();
    assert_eq!(seen, ["one 0 committed", "one 1 committed", "two 0 committed"]);
    assert_eq!(state(&shop, "one").await, BackfillState::Published);
    assert_eq!(state(&shop, "planned").await, BackfillState::Planned);
}

#[tokio::test]
async fn what_fails_is_left_to_a_person_and_holds_up_no_other() {
    let shop = Shop::new();
    let engine = shop.engine();
    shop.switches.fails_on.store(1, Ordering::SeqCst);
    for (id, day) in [("bad", 1), ("good", 2)] {
        let mut request = fix(day, day);
        request.id = id.into();
        let _ = shop.approved(&engine, &request).await;
    }
    engine.work(&worker("w1"), true, |_, _| {}).await.unwrap();
    assert_eq!(state(&shop, "bad").await, BackfillState::Failed);
    assert_eq!(state(&shop, "good").await, BackfillState::Published);
}

#[tokio::test]
async fn a_host_without_the_code_leaves_a_backfill_to_others() {
    let shop = Shop::new();
    let _ = shop.approved(&shop.engine(), &fix(1, 2)).await;
    shop.engine_without_code().work(&worker("w1"), true, |_, _| {}).await.unwrap();
    assert_eq!(state(&shop, "fix").await, BackfillState::Approved);
}

#[tokio::test]
async fn no_task_of_a_paused_backfill_is_begun() {
    let shop = Shop::new();
    let (engine, id) = (shop.engine(), BackfillId::from("fix"));
    let _ = shop.approved(&engine, &fix(1, 3)).await;
    engine.pause(&id, &"ann".into()).await.unwrap();
    let done = engine.execute(&id, &worker("w1"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Running);
    assert_eq!(tasks(&shop, "fix").await, [Pending; 3]);
    engine.work(&worker("w1"), true, |_, _| {}).await.unwrap();
    assert_eq!(tasks(&shop, "fix").await, [Pending; 3]);
    engine.resume(&id, &"ann".into()).await.unwrap();
    engine.work(&worker("w1"), true, |_, _| {}).await.unwrap();
    assert_eq!(state(&shop, "fix").await, BackfillState::Published);
}

/// Most tasks that ran at a time, going by what a watcher is told.
async fn at_a_time(
    shop: &Shop,
    settings: impl Fn(crate::engine::Engine) -> crate::engine::Engine,
    cap: u32,
) -> usize {
    let (engine, id) = (settings(shop.engine()), BackfillId::from("fix"));
    let _ = shop.approved(&engine, &fix(1, 5).with_concurrency(2)).await;
    engine.set_concurrency(&id, cap.try_into().unwrap(), &"ann".into()).await.unwrap();
    let running = Mutex::new((0_usize, 0_usize));
    let watch = |event: TaskEvent| {
        let mut running = running.lock().unwrap();
        match event {
            TaskEvent::Started(_) => running.0 += 1,
            TaskEvent::Left(..) => running.0 -= 1,
        }
        running.1 = running.1.max(running.0);
    };
    let done = engine.execute(&id, &worker("w1"), watch).await.unwrap();
    assert_eq!(done.state, BackfillState::Published);
    running.into_inner().unwrap().1
}

#[tokio::test]
async fn as_many_tasks_run_as_was_set_and_as_the_process_takes() {
    assert_eq!(at_a_time(&Shop::new(), |engine| engine, 4).await, 4);
    assert_eq!(at_a_time(&Shop::new(), |engine| engine, 1).await, 1);
    let few = |engine: crate::engine::Engine| {
        let settings = crate::engine::Settings { tasks: 3, ..Default::default() };
        engine.with_settings(settings)
    };
    assert_eq!(at_a_time(&Shop::new(), few, 5).await, 3);
}

#[tokio::test]
async fn a_stop_lets_what_runs_come_to_its_end_and_begins_nothing() {
    let shop = Shop::new();
    let stop = Stop::new();
    let (engine, id) = (shop.engine().with_stop(stop.clone()), BackfillId::from("fix"));
    let _ = shop.approved(&engine, &fix(1, 3)).await;
    let watch = |event: TaskEvent| {
        if matches!(event, TaskEvent::Started(_)) {
            stop.finish();
        }
    };
    let done = engine.execute(&id, &worker("w1"), watch).await.unwrap();
    assert_eq!(done.state, BackfillState::Running);
    assert_eq!(tasks(&shop, "fix").await, [Committed, Pending, Pending]);
    engine.work(&worker("w1"), false, |_, _| {}).await.unwrap();
    assert_eq!(tasks(&shop, "fix").await, [Committed, Pending, Pending]);
    let done = shop.engine().execute(&id, &worker("w2"), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Published);
}

#[tokio::test]
async fn what_takes_too_long_is_left_to_others_at_once() {
    let shop = Shop::new();
    shop.switches.hangs_on.store(1, Ordering::SeqCst);
    let stop = Stop::new();
    let (engine, id) = (shop.engine().with_stop(stop.clone()), BackfillId::from("fix"));
    let _ = shop.approved(&engine, &fix(1, 1)).await;
    let watch = |event: TaskEvent| {
        if matches!(event, TaskEvent::Started(_)) {
            stop.finish();
            stop.release();
        }
    };
    let done = engine.execute(&id, &worker("w1"), watch).await.unwrap();
    assert_eq!(done.tasks[0].state, Pending);
    assert_eq!(done.tasks[0].note.as_deref(), Some("the worker was stopped"));
    shop.switches.hangs_on.store(0, Ordering::SeqCst);
    let done = shop.engine().execute(&id, &worker("w2"), |_| {}).await.unwrap();
    assert_eq!((done.state, done.tasks[0].attempt), (BackfillState::Published, 2));
}
