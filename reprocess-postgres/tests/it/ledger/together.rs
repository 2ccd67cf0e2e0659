//! Many machines at once, each with connections of its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use reprocess_core::domain::ids::BackfillId;
use reprocess_core::domain::plan::TaskId;
use reprocess_core::ports::ledger::{
    BackfillState, Leave, LedgerReader, RunLedger, Submitted, TaskFinish, TaskState, Transition,
};

use reprocess_postgres::PostgresLedger;
use tokio::sync::Barrier;

use super::fixtures::*;
use crate::server::TestDatabase;
use BackfillState::{Approved, Cancelled, Planned, Running};

/// So many handles that have been used, and where those who use them wait for each other.
async fn machines<const N: usize>(database: &TestDatabase) -> ([PostgresLedger; N], Arc<Barrier>) {
    let mut ledgers = Vec::new();
    for _ in 0..N {
        ledgers.push(open(database).await);
    }
    (ledgers.try_into().unwrap(), Arc::new(Barrier::new(N)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_two_overlapping_plans_submitted_at_once_one_is_filed() {
    let database = TestDatabase::fresh().await;
    let ledgers = [open(&database).await, open(&database).await];
    for round in 0..25 {
        let mut racing = Vec::new();
        for (place, ledger) in ledgers.iter().enumerate() {
            let (ledger, plan) =
                (ledger.clone(), plan(&format!("fix{round}-{place}"), &[day(round + 1)], &[]));
            racing.push(tokio::spawn(async move { ledger.submit(&plan, &me(), at(0)).await.unwrap() }));
        }
        let mut filed = 0;
        for answer in racing {
            match answer.await.unwrap() {
                Submitted::New => filed += 1,
                Submitted::Overlaps(overlaps) => assert_eq!(overlaps.len(), 1),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(filed, 1, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_changes_of_one_state_at_once_one_is_made() {
    let database = TestDatabase::fresh().await;
    let ledgers = [open(&database).await, open(&database).await];
    for round in 0..10 {
        let id: BackfillId = format!("fix{round}").into();
        submit(&ledgers[0], &plan(id.as_str(), &[day(round + 1)], &[])).await;
        let mut racing = Vec::new();
        for (ledger, to) in ledgers.iter().zip([Approved, Cancelled]) {
            let (ledger, id) = (ledger.clone(), id.clone());
            racing.push(tokio::spawn(async move {
                (to, ledger.transition(&id, &change(Planned, to), at(1)).await.unwrap())
            }));
        }
        let mut made = Vec::new();
        for answer in racing {
            match answer.await.unwrap() {
                (to, Transition::Done) => made.push(to),
                (to, Transition::Elsewhere(state)) => assert_ne!(state, to),
            }
        }
        assert_eq!(made.len(), 1);
        assert_eq!(ledgers[0].backfill(&id).await.unwrap().unwrap().state, made[0]);
    }
}

/// So many workers share a backfill of so many tasks, each taking up to so many; never more are claimed than the cap.
async fn shared(workers: usize, tasks: u32, cap: usize, at_a_time: u32) {
    let database = TestDatabase::fresh().await;
    let first = open(&database).await;
    let keys: Vec<_> = (0..tasks).map(|task| day(1).and("part", i64::from(task))).collect();
    let mut plan = plan("fix", &keys, &[]);
    plan.request.concurrency = cap.try_into().unwrap();
    run(&first, &plan).await;
    let mut working = Vec::new();
    for worker in 0..workers {
        let ledger = open(&database).await;
        working.push(tokio::spawn(async move {
            let mut done = Vec::new();
            loop {
                let claims = claim(&ledger, &format!("w{worker}"), at_a_time, 10).await;
                let states = states(&ledger).await;
                let claimed = states.iter().filter(|state| **state == TaskState::Claimed).count();
                assert!(claimed <= cap, "{claimed} are claimed");
                if claims.is_empty() && !states.contains(&TaskState::Pending) {
                    return done;
                }
                for claim in claims {
                    assert_eq!(claim.attempt, 1);
                    assert!(ledger.leave(&claim, Leave::Staged(Box::new(result())), at(11)).await.unwrap());
                    done.push(claim.task);
                }
                tokio::task::yield_now().await;
            }
        }));
    }
    let mut done = Vec::new();
    for worker in working {
        done.extend(worker.await.unwrap());
    }
    done.sort();
    assert_eq!(done, (0..tasks).map(TaskId).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_workers_claim_each_of_two_hundred_tasks_once() {
    shared(8, 200, 16, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn workers_never_claim_more_than_the_cap() {
    shared(6, 20, 2, 9).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_leases_taken_at_once_on_overlapping_scopes_one_is_given() {
    let database = TestDatabase::fresh().await;
    let (ledgers, start) = machines::<4>(&database).await;
    let mut racing = Vec::new();
    for (holder, ledger) in ledgers.into_iter().enumerate() {
        let start = Arc::clone(&start);
        racing.push(tokio::spawn(async move {
            let mut given = Vec::new();
            for turn in 1..=50_i64 {
                start.wait().await;
                let turn = day(1).and("turn", turn);
                let scope = if holder % 2 == 0 { scope(&turn) } else { scope(&turn.and("country", "FR")) };
                let holder = format!("h{holder}").as_str().into();
                given.extend(ledger.acquire(&TABLE.into(), &scope, &holder, TTL, at(0)).await.unwrap());
            }
            given
        }));
    }
    let mut given = Vec::new();
    for holder in racing {
        given.extend(holder.await.unwrap());
    }
    for (place, fence) in given.iter().enumerate() {
        for other in &given[..place] {
            assert!(!fence.scope.overlaps(&other.scope), "{fence:?} {other:?}");
        }
    }
    assert_eq!(given.len(), 50);
    assert_eq!(given.iter().map(|fence| fence.token).collect::<BTreeSet<_>>().len(), 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn positions_become_visible_in_their_order() {
    let database = TestDatabase::fresh().await;
    let reader = open(&database).await;
    let mut writing = Vec::new();
    for writer in 0..6_i64 {
        let ledger = open(&database).await;
        writing.push(tokio::spawn(async move {
            for turn in 0..10_i64 {
                let key = day(1).and("writer", writer).and("turn", turn);
                finished(&ledger, record(&format!("r{writer}"), &key)).await;
            }
        }));
    }
    let mut seen = 0;
    while seen < 60 {
        let position = reader.position().await.unwrap();
        let rows = reader.history(&TABLE.into(), &Default::default(), 100).await.unwrap();
        let mut positions: Vec<_> = rows.iter().map(|row| row.position).collect();
        positions.reverse();
        let complete: Vec<u64> = (1..=positions.last().copied().unwrap_or(0)).collect();
        assert_eq!(positions, complete, "one is missing below a later one");
        assert!(position <= positions.len().try_into().unwrap() && position >= seen);
        seen = position;
    }
    for writer in writing {
        writer.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_one_commit_told_by_many_at_once_one_row_is_left() {
    let database = TestDatabase::fresh().await;
    let (ledgers, start) = machines::<4>(&database).await;
    let reader = ledgers[0].clone();
    let telling = ledgers.map(|ledger| {
        let start = Arc::clone(&start);
        tokio::spawn(async move {
            for round in 1..=20 {
                start.wait().await;
                finished(&ledger, record(&format!("r{round}"), &day(1))).await;
                start.wait().await;
                assert_eq!(ledger.position().await.unwrap(), round);
            }
        })
    });
    for one in telling {
        one.await.unwrap();
    }
    assert_eq!(reader.history(&TABLE.into(), &day(1), 99).await.unwrap().len(), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_events_with_one_key_that_are_committed_at_once_one_is_sent() {
    let database = TestDatabase::fresh().await;
    let (ledgers, start) = machines::<8>(&database).await;
    let ledger = ledgers[0].clone();
    let mut ending = Vec::new();
    for (number, ledger) in ledgers.into_iter().enumerate() {
        let start = Arc::clone(&start);
        ending.push(tokio::spawn(async move {
            let told = entry(
                TaskFinish { deliver: true, ..finish(vec![record(&format!("r{number}"), &day(1))]) },
                1,
            );
            let staged = reprocess_core::ports::writer::StagedId { stamp: told.stamp.clone(), attempt: 1 };
            ledger.prepare_deliveries(&staged, None, &[mail("invoice 7")], at(1)).await.unwrap();
            start.wait().await;
            ledger.finish(&commit("1", &told, 1), &[told]).await.unwrap();
        }));
    }
    for one in ending {
        one.await.unwrap();
    }
    let states = ledger.deliveries(&Default::default()).await.unwrap();
    let sent = states.iter().filter(|d| d.state == reprocess_core::ports::delivery::DeliveryState::Released);
    assert_eq!((states.len(), sent.count()), (8, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stop_and_ends_of_tasks_at_once_wait_for_each_other_and_never_for_good() {
    let database = TestDatabase::fresh().await;
    let first = open(&database).await;
    for round in 0..10 {
        let id = format!("fix{round}");
        let keys: Vec<_> = (0..6_i64).map(|part| day(round + 1).and("part", part)).collect();
        // Two tasks before each of the others, so that their ends meet at the same rows.
        let mut filed = plan(&id, &keys, &[&[], &[], &[0, 1], &[0, 1], &[0, 1], &[0, 1]]);
        filed.request.concurrency = 6;
        run(&first, &filed).await;
        let claims = first.claim(&id.as_str().into(), &"w".into(), &can_run(), 9, TTL, at(10)).await.unwrap();
        assert_eq!(claims.len(), 2);
        let mut racing = Vec::new();
        for (place, claim) in claims.into_iter().enumerate() {
            let ledger = open(&database).await;
            let run = format!("{id}.1");
            racing.push(tokio::spawn(async move {
                if place == 0 {
                    let _ = ledger.leave(&claim, Leave::Staged(Box::new(result())), at(11)).await.unwrap();
                } else {
                    let task = Some((claim.backfill.clone(), 1, claim.task));
                    let told = entry(TaskFinish { task, ..finish(vec![record(&run, &day(1))]) }, 1);
                    ledger.finish(&commit("1", &told, 1), &[told]).await.unwrap();
                }
            }));
        }
        let (ledger, stopped) = (open(&database).await, BackfillId::from(id.as_str()));
        racing.push(tokio::spawn(async move {
            let _ = ledger.transition(&stopped, &change(Running, Cancelled), at(12)).await.unwrap();
        }));
        for one in racing {
            one.await.unwrap();
        }
        let tasks = first.tasks(&id.as_str().into()).await.unwrap();
        assert_eq!(tasks[1].state, TaskState::Committed);
        assert!(tasks[2..].iter().all(|task| task.state == TaskState::Cancelled));
    }
}
