//! Leases and claims run out by the clock of the server, whatever the callers think the time is.

use std::time::Duration;

use reprocess_core::ports::ledger::{LedgerReader, RunLedger};
use sqlx::Connection;

use super::fixtures::*;
use crate::server::TestDatabase;

/// Far from now on either side.
const PAST: i64 = 0;
const FUTURE: i64 = 9_999_999_999;

#[tokio::test]
async fn a_lease_is_held_whatever_the_clock_of_another_machine_says() {
    let database = TestDatabase::fresh().await;
    let ledger = open_by_server(&database).await;
    let take = async |holder: &str, ttl: Duration, now: i64| {
        ledger.acquire(&TABLE.into(), &scope(&day(1)), &holder.into(), ttl, at(now)).await.unwrap()
    };
    let held = take("a", TTL, PAST).await.unwrap();
    assert_eq!(take("b", TTL, FUTURE).await, None, "a clock that is ahead takes nothing");
    assert!(ledger.renew(&held, Duration::ZERO, at(FUTURE)).await.unwrap());
    let next = take("b", TTL, PAST).await.expect("it ran out at once, also for a clock that is behind");
    assert!(!ledger.renew(&held, TTL, at(PAST)).await.unwrap());
    assert!(ledger.is_current(&next).await.unwrap());
}

#[tokio::test]
async fn a_claim_is_held_whatever_the_clock_of_another_machine_says() {
    let database = TestDatabase::fresh().await;
    let ledger = open_by_server(&database).await;
    run(&ledger, &plan("fix", &days(1), &[])).await;
    let held = claim(&ledger, "w1", 1, PAST).await.remove(0);
    assert_eq!(held.started_at, at(PAST));
    assert_eq!(claim(&ledger, "w2", 1, FUTURE).await, []);
    assert!(ledger.renew_claim(&held, Duration::ZERO, at(FUTURE)).await.unwrap());
    assert_eq!(claim(&ledger, "w2", 1, PAST).await[0].attempt, 2);
}

#[tokio::test]
async fn a_time_to_live_beyond_all_bounds_is_a_long_one() {
    let database = TestDatabase::fresh().await;
    let ledger = open_by_server(&database).await;
    let (table, scope) = (TABLE.into(), scope(&day(1)));
    let held = ledger.acquire(&table, &scope, &"a".into(), Duration::MAX, at(0)).await.unwrap();
    assert!(held.is_some());
    assert_eq!(ledger.acquire(&table, &scope, &"b".into(), TTL, at(FUTURE)).await.unwrap(), None);
}

#[tokio::test]
async fn a_lease_that_was_waited_for_counts_from_when_it_is_given() {
    let database = TestDatabase::fresh().await;
    let ledger = open_by_server(&database).await;
    ledger.acquire(&TABLE.into(), &scope(&day(2)), &"x".into(), TTL, at(0)).await.unwrap().unwrap();
    let mut raw = database.raw().await;
    let mut turn = raw.begin().await.unwrap();
    sqlx::raw_sql("SELECT pg_advisory_xact_lock(hashtextextended('reprocess lease reprocess sales', 0))")
        .execute(&mut *turn)
        .await
        .unwrap();
    let waiting = {
        let ledger = ledger.clone();
        tokio::spawn(async move {
            ledger.acquire(&TABLE.into(), &scope(&day(1)), &"a".into(), TTL, at(0)).await.unwrap().unwrap()
        })
    };
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    while sqlx::query_scalar::<_, i64>(waits).fetch_one(&mut *turn).await.unwrap() == 0 {
        tokio::task::yield_now().await;
    }
    let given_after: chrono::DateTime<chrono::Utc> =
        sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(&mut *turn).await.unwrap();
    turn.rollback().await.unwrap();
    waiting.await.unwrap();
    let (expires,): (chrono::DateTime<chrono::Utc>,) =
        sqlx::query_as("SELECT expires_at FROM reprocess.lease WHERE holder = 'a'")
            .fetch_one(&mut raw)
            .await
            .unwrap();
    assert!(expires >= given_after + TTL, "{expires} {given_after}");
    assert_eq!(ledger.position().await.unwrap(), 0);
}

#[tokio::test]
async fn the_time_is_that_of_the_server_unless_callers_tell_it() {
    let database = TestDatabase::fresh().await;
    let mut raw = database.raw().await;
    let mut now = async || -> chrono::DateTime<chrono::Utc> {
        sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(&mut raw).await.unwrap()
    };
    let before = now().await;
    let told = open_by_server(&database).await.time().await.unwrap().unwrap();
    assert!((before..=now().await).contains(&told), "{told}");
    assert_eq!(open(&database).await.time().await.unwrap(), None);
}
