//! What only a database has: reopening, the commit's own transaction, tables that are no ledger.

use std::sync::Arc;

use reprocess_core::ErrorKind;
use reprocess_core::domain::plan::TaskId;
use reprocess_core::ports::ledger::{BackfillState, LedgerReader, RunLedger, TaskFinish, TaskState};
use reprocess_core::ports::writer::CommitEntry;
use reprocess_postgres::{PostgresConfig, PostgresLedger};
use sqlx::Connection;

use super::fixtures::*;
use crate::server::TestDatabase;
use BackfillState::{Cancelled, Running};

#[tokio::test]
async fn a_ledger_is_the_same_after_it_was_opened_again() {
    let database = TestDatabase::fresh().await;
    let ledger = open(&database).await;
    run(&ledger, &plan("fix", &days(3), &[&[], &[0], &[]])).await;
    let claimed = claim(&ledger, "w1", 1, 10).await.remove(0);
    finished(&ledger, record("r1", &day(1))).await;
    let fence =
        ledger.acquire(&TABLE.into(), &scope(&day(1)), &"a".into(), TTL, at(0)).await.unwrap().unwrap();
    let state = async |ledger: &PostgresLedger| {
        (
            ledger.backfills(&[]).await.unwrap(),
            ledger.tasks(&"fix".into()).await.unwrap(),
            ledger.run(&"r1".into()).await.unwrap(),
        )
    };
    let before = state(&ledger).await;
    ledger.database().close().await;
    drop(ledger);

    let ledger = open(&database).await;
    assert_eq!(state(&ledger).await, before);
    assert!(ledger.renew_claim(&claimed, TTL, at(20)).await.unwrap());
    assert!(ledger.is_current(&fence).await.unwrap());
    let next =
        ledger.acquire(&TABLE.into(), &scope(&day(2)), &"a".into(), TTL, at(0)).await.unwrap().unwrap();
    assert!(next.token > fence.token);
}

#[tokio::test]
async fn a_ledger_of_a_newer_version_is_refused() {
    let database = TestDatabase::fresh().await;
    open(&database).await;
    database.execute("UPDATE reprocess.schema_version SET version = 99 WHERE component = 'ledger'").await;
    let error = PostgresLedger::open(database.connect().await).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("99"), "{error}");
    assert!(error.advice().is_some());
}

#[tokio::test]
async fn a_record_that_nobody_of_us_wrote_gives_an_error_that_says_so() {
    let database = TestDatabase::fresh().await;
    let ledger = open(&database).await;
    finished(&ledger, record("r1", &day(1))).await;
    database.execute("UPDATE reprocess.run SET record = '{}'").await;
    let error = ledger.run(&"r1".into()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.advice().is_some());
}

#[tokio::test]
async fn the_tables_take_no_state_that_cannot_be() {
    let database = TestDatabase::fresh().await;
    let ledger = open(&database).await;
    run(&ledger, &plan("fix", &days(2), &[&[], &[0]])).await;
    finished(&ledger, record("r1", &day(1))).await;
    let mut raw = database.raw().await;
    for (sql, constraint) in [
        ("UPDATE reprocess.backfill SET state = 'paused'", "backfill_state_check"),
        (
            "INSERT INTO reprocess.backfill SELECT id, 2, state, concurrency, plan, plan_digest, submitted_by, \
          submitted_at, changed_at, note FROM reprocess.backfill",
            "backfill_open",
        ),
        ("UPDATE reprocess.task SET state = 'claimed'", "task_check"),
        ("UPDATE reprocess.task SET state = 'claimed', expires_at = now()", "task_check1"),
        ("UPDATE reprocess.task SET state = 'staged'", "task_check2"),
        ("UPDATE reprocess.task SET waiting = -1", "task_waiting_check"),
        ("UPDATE reprocess.task SET queued_at = 'infinity'", "instant_check"),
        ("INSERT INTO reprocess.task_after VALUES ('fix', 1, 1, 1)", "task_after_check"),
        ("UPDATE reprocess.run SET status = 'failed'", "run_check"),
        ("UPDATE reprocess.run SET record = 'no json'", "invalid input syntax for type json"),
        (
            "INSERT INTO reprocess.run SELECT position + 1, '{}', shape, partition, key, table_id, job, run, backfill, \
          triggered_by, status, is_current, changes, logic, fingerprint, queued_at, started_at, finished_at, \
          commit_order, record FROM reprocess.run",
            "run_current",
        ),
        ("INSERT INTO reprocess.ledger (position) VALUES (1)", "ledger_pkey"),
    ] {
        let error = sqlx::raw_sql(sql).execute(&mut raw).await.unwrap_err().to_string();
        assert!(error.contains(constraint), "{sql}: {error}");
    }
    raw.close().await.unwrap();
}

#[tokio::test]
async fn a_commit_and_its_row_are_one_transaction() {
    let database = TestDatabase::fresh().await;
    let ledger = open(&database).await;
    let told = entry(finish(vec![record("r1", &day(1))]), 1);
    let done = commit("1", &told, 1);
    let mut raw = database.raw().await;
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

#[tokio::test]
async fn a_transaction_of_a_stricter_level_is_refused() {
    let database = TestDatabase::fresh().await;
    let ledger = open(&database).await;
    let told = entry(finish(vec![record("r1", &day(1))]), 1);
    let mut raw = database.raw().await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let begin = sqlx::AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
        let mut tx = raw.begin_with(begin).await.unwrap();
        let answer = ledger.finish_in(&mut tx, &commit("1", &told, 1), std::slice::from_ref(&told)).await;
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(&level.to_lowercase()), "{error}");
        tx.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn a_commit_whose_claim_has_passed_on_is_refused_in_its_transaction() {
    let database = TestDatabase::fresh().await;
    let ledger = open(&database).await;
    run(&ledger, &plan("fix", &days(2), &[])).await;
    let mut raw = database.raw().await;
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
    let database = TestDatabase::fresh().await;
    let ledger = open(&database).await;
    let take = async |holder: &str, now: i64| {
        let given = ledger.acquire(&TABLE.into(), &scope(&day(1)), &holder.into(), TTL, at(now)).await;
        given.unwrap()
    };
    let first = take("a", 0).await.unwrap();
    let second = take("b", 60).await.unwrap();
    let mut raw = database.raw().await;
    let mut tx = raw.begin().await.unwrap();
    assert!(!ledger.fence_is_current_in(&mut tx, &first).await.unwrap());
    assert!(ledger.fence_is_current_in(&mut tx, &second).await.unwrap());
    // Meanwhile it can be prolonged, and nobody takes it over: what was checked stays true until the commit.
    assert!(ledger.renew(&second, TTL, at(61)).await.unwrap());
    ledger.release(&second).await.unwrap();
    assert_eq!(take("c", 999).await, None);
    tx.commit().await.unwrap();
    assert!(take("c", 999).await.is_some());
}

#[tokio::test]
async fn a_task_whose_commit_is_on_its_way_is_claimed_by_nobody() {
    let database = TestDatabase::fresh().await;
    let ledger = open(&database).await;
    run(&ledger, &plan("fix", &days(2), &[])).await;
    let late = claim(&ledger, "w1", 1, 10).await.remove(0);
    let task = Some(("fix".into(), 1, late.task));
    let told = entry(TaskFinish { task, ..finish(vec![record("fix.1", &day(1))]) }, 1);
    let mut raw = database.raw().await;
    let mut tx = raw.begin().await.unwrap();
    ledger.finish_in(&mut tx, &commit("1", &told, 1), &[told]).await.unwrap();
    let others = claim(&ledger, "w2", 9, 1_000).await;
    assert_eq!(others.iter().map(|claim| claim.task).collect::<Vec<_>>(), [TaskId(1)]);
    tx.commit().await.unwrap();
    assert_eq!(states(&ledger).await, [TaskState::Committed, TaskState::Claimed]);
}

#[tokio::test]
async fn ids_with_nul_are_refused_by_name_and_notes_are_told_without() {
    let database = TestDatabase::fresh().await;
    let ledger = open(&database).await;
    let error = ledger.submit(&plan("a\0b", &days(1), &[]), &me(), at(0)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains(r"a\0b"), "{error}");
    run(&ledger, &plan("fix", &days(1), &[])).await;
    let mut change = change(Running, Cancelled);
    change.note = Some("bad\0bytes".into());
    let _ = ledger.transition(&"fix".into(), &change, at(3)).await.unwrap();
    let told = ledger.backfill(&"fix".into()).await.unwrap().unwrap().note;
    assert_eq!(told.as_deref(), Some("bad\u{2400}bytes"));
    let mut failed = record("r1", &day(1));
    failed.error = Some("bad\0bytes".into());
    ledger.record_failed(&[failed]).await.unwrap();
    let told = ledger.run(&"r1".into()).await.unwrap().remove(0).record.error;
    assert_eq!(told.as_deref(), Some("bad\0bytes"));
}

#[tokio::test]
async fn a_ledger_may_be_in_a_schema_of_another_name() {
    let database = TestDatabase::fresh().await;
    let config = PostgresConfig::new().with_schema("Pipelines_2");
    let ledger = PostgresLedger::open(config.connect(database.address()).await.unwrap()).await.unwrap();
    let ledger: Arc<dyn RunLedger> = Arc::new(ledger.with_clock_of_callers());
    run(&*ledger, &plan("fix", &days(2), &[&[], &[0]])).await;
    let first = claim(&*ledger, "w1", 9, 10).await.remove(0);
    let task = Some(("fix".into(), 1, first.task));
    let told = entry(TaskFinish { task, ..finish(vec![record("fix.1", &day(1))]) }, 1);
    ledger.finish(&commit("1", &told, 1), &[told]).await.unwrap();
    assert_eq!(claim(&*ledger, "w1", 9, 20).await[0].task, TaskId(1));
    assert!(open(&database).await.backfills(&[]).await.unwrap().is_empty());
}
