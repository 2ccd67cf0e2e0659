//! What only a file has: several handles, reopening, the commit's own transaction, files that are no ledger.

use reprocess_core::ErrorKind;
use reprocess_core::domain::plan::TaskId;
use reprocess_core::ports::ledger::{
    BackfillState, Leave, LedgerReader, RunLedger, Submitted, TaskFinish, TaskState,
};
use reprocess_core::ports::writer::CommitEntry;
use reprocess_sqlite::{SqliteDatabase, SqliteLedger};
use sqlx::{Connection, SqliteConnection};

use super::fixtures::*;
use BackfillState::{Cancelled, Running};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_two_overlapping_plans_submitted_at_once_one_is_filed() {
    let folder = tempfile::tempdir().unwrap();
    let ledgers = [open(&folder).await, open(&folder).await];
    for round in 0..10 {
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
        assert_eq!(filed, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn workers_of_several_handles_claim_each_task_once_and_never_more_than_the_cap() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(&folder).await;
    run(&first, &plan("fix", &days(20), &[])).await;
    let mut workers = Vec::new();
    for worker in 0..6 {
        let ledger = open(&folder).await;
        workers.push(tokio::spawn(async move {
            let mut done = Vec::new();
            loop {
                let claims = claim(&ledger, &format!("w{worker}"), 9, 10).await;
                let states = states(&ledger).await;
                assert!(
                    states.iter().filter(|state| **state == TaskState::Claimed).count() <= 2,
                    "{states:?}"
                );
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
    for worker in workers {
        done.extend(worker.await.unwrap());
    }
    done.sort();
    assert_eq!(done, (0..20).map(TaskId).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_leases_taken_at_once_one_is_given_and_tokens_are_never_given_twice() {
    let folder = tempfile::tempdir().unwrap();
    let mut racing = Vec::new();
    for holder in 0..6 {
        let ledger = open(&folder).await;
        racing.push(tokio::spawn(async move {
            let mut given = Vec::new();
            for turn in 1..=5 {
                let scope =
                    if holder % 2 == 0 { scope(&day(turn)) } else { scope(&day(turn).and("country", "FR")) };
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
            assert_ne!(fence.token, other.token);
        }
    }
    assert_eq!(given.len(), 5);
}

#[tokio::test]
async fn a_ledger_is_the_same_after_it_was_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(&folder).await;
    run(&ledger, &plan("fix", &days(3), &[&[], &[0], &[]])).await;
    let claimed = claim(&ledger, "w1", 1, 10).await.remove(0);
    finished(&ledger, record("r1", &day(1))).await;
    let fence =
        ledger.acquire(&TABLE.into(), &scope(&day(1)), &"a".into(), TTL, at(0)).await.unwrap().unwrap();
    let before = (
        ledger.backfills(&[]).await.unwrap(),
        ledger.tasks(&"fix".into()).await.unwrap(),
        ledger.run(&"r1".into()).await.unwrap(),
    );
    ledger.database().close().await;
    drop(ledger);

    let ledger = open(&folder).await;
    let after = (
        ledger.backfills(&[]).await.unwrap(),
        ledger.tasks(&"fix".into()).await.unwrap(),
        ledger.run(&"r1".into()).await.unwrap(),
    );
    assert_eq!(before, after);
    assert!(ledger.renew_claim(&claimed, TTL, at(20)).await.unwrap());
    assert!(ledger.is_current(&fence).await.unwrap());
    let next =
        ledger.acquire(&TABLE.into(), &scope(&day(2)), &"a".into(), TTL, at(0)).await.unwrap().unwrap();
    assert!(next.token > fence.token);
}

#[tokio::test]
async fn a_ledger_of_a_newer_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    open(&folder).await.database().close().await;
    let file = folder.path().join("ledger.db");
    let mut raw = SqliteConnection::connect(&format!("sqlite://{}", file.display())).await.unwrap();
    sqlx::query("UPDATE reprocess_meta SET version = 99 WHERE component = 'ledger'")
        .execute(&mut raw)
        .await
        .unwrap();
    raw.close().await.unwrap();
    let db = SqliteDatabase::open(&file).await.unwrap();
    let error = SqliteLedger::open(db).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("99"), "{error}");
    assert!(error.advice().is_some());
}

#[tokio::test]
async fn a_file_that_is_no_database_or_was_damaged_gives_an_error_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ledger.db");
    std::fs::write(&file, "this is a letter and no database, however often it is opened".repeat(99)).unwrap();
    let error = SqliteDatabase::open(&file).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);

    let other = tempfile::tempdir().unwrap();
    let ledger = open(&other).await;
    finished(&ledger, record("r1", &day(1))).await;
    ledger.database().close().await;
    let file = other.path().join("ledger.db");
    let mut raw = SqliteConnection::connect(&format!("sqlite://{}", file.display())).await.unwrap();
    sqlx::query("UPDATE reprocess_run SET record = '{}'").execute(&mut raw).await.unwrap();
    let refused = sqlx::query("UPDATE reprocess_run SET record = 'no json'").execute(&mut raw).await;
    assert!(refused.is_err(), "the tables do not take it");
    raw.close().await.unwrap();
    let error = open(&other).await.run(&"r1".into()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.advice().is_some());
}

#[tokio::test]
async fn a_commit_and_its_row_are_one_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(&folder).await;
    let told = entry(finish(vec![record("r1", &day(1))]), 1);
    let done = commit("1", &told, 1);
    let mut raw = raw(&folder).await;
    let mut tx = raw.begin().await.unwrap();
    ledger.finish_in(&mut tx, &done, std::slice::from_ref(&told)).await.unwrap();
    assert_eq!(ledger.position().await.unwrap(), 0, "nobody sees it yet");
    tx.rollback().await.unwrap();
    assert_eq!(ledger.run(&"r1".into()).await.unwrap(), []);
    let mut tx = raw.begin().await.unwrap();
    ledger.finish_in(&mut tx, &done, &[told]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(ledger.position().await.unwrap(), 1);
}

async fn raw(folder: &tempfile::TempDir) -> SqliteConnection {
    let file = folder.path().join("ledger.db");
    SqliteConnection::connect(&format!("sqlite://{}", file.display())).await.unwrap()
}

#[tokio::test]
async fn a_commit_whose_claim_has_passed_on_is_refused_in_its_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(&folder).await;
    run(&ledger, &plan("fix", &days(2), &[])).await;
    let mut raw = raw(&folder).await;
    let told = |task: u32, attempt: u32| -> CommitEntry {
        let task = Some(("fix".into(), 1, TaskId(task)));
        entry(TaskFinish { task, ..finish(vec![record("fix.1", &day(1))]) }, attempt)
    };
    let mut check = async |told: CommitEntry, words: Option<&str>| {
        let mut tx = raw.begin().await.unwrap();
        let answer = ledger.finish_in(&mut tx, &commit("1", &told, told.attempt), &[told]).await;
        match words {
            None => {
                answer.unwrap();
                tx.commit().await.unwrap();
            }
            Some(words) => {
                let error = answer.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::State);
                assert!(error.message().contains(words), "{error}");
                tx.rollback().await.unwrap();
            }
        }
    };
    assert_eq!(claim(&ledger, "w1", 2, 10).await.len(), 2);
    assert_eq!(claim(&ledger, "w2", 1, 70).await[0].attempt, 2);
    check(told(0, 1), Some("the claim has passed")).await;
    check(told(0, 2), None).await;
    check(told(0, 1), None).await;
    assert_eq!(states(&ledger).await, [TaskState::Committed, TaskState::Claimed]);
    move_to(&ledger, "fix", Running, Cancelled, 80).await;
    check(told(1, 1), Some("cancelled")).await;
    let mut again = plan("fix", &days(1), &[]);
    again.generation = 2;
    submit(&ledger, &again).await;
    check(told(1, 1), Some("generation 2")).await;
}

#[tokio::test]
async fn a_fence_is_checked_in_the_transaction_of_the_commit() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(&folder).await;
    let take = async |holder: &str, now: i64| {
        let given = ledger.acquire(&TABLE.into(), &scope(&day(1)), &holder.into(), TTL, at(now)).await;
        given.unwrap().unwrap()
    };
    let first = take("a", 0).await;
    let second = take("b", 60).await;
    let mut raw = raw(&folder).await;
    let mut tx = raw.begin().await.unwrap();
    assert!(!ledger.fence_is_current_in(&mut tx, &first).await.unwrap());
    assert!(ledger.fence_is_current_in(&mut tx, &second).await.unwrap());
}
