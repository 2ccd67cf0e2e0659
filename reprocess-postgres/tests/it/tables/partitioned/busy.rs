//! Swaps while others use the table.

use std::time::Duration;

use reprocess_core::domain::slice::Base;
use reprocess_core::ports::staged::StagedReader;
use reprocess_core::ports::writer::{CommitEntry, CommitOutcome, Intent, PartitionWriter, Staged};
use reprocess_postgres::{PostgresConfig, PostgresTable};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::task::JoinHandle;

use super::super::support::*;
use super::{ONE, TWO, oid, one, swapping, texts_of};

/// A connection in a transaction, after a statement.
async fn open_transaction(f: &Fixture, begin: &str, statement: &str) -> PgConnection {
    let mut other = f.other().await;
    let sql = format!("SET search_path = public; BEGIN ISOLATION LEVEL {begin}; {statement}");
    other.execute(AssertSqlSafe(sql)).await.unwrap();
    other
}

/// How many rows a connection sees of a statement.
async fn sees(connection: &mut PgConnection, rows: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(format!("SELECT count(*) FROM public.{rows}")))
        .fetch_one(connection)
        .await
        .unwrap()
}

/// A transaction whose snapshot shows that all of now was over: one that is taken while a transaction of before is open,
/// in any database of the server, looks as old as that.
async fn begun_after_all_of_now(f: &Fixture) -> PgConnection {
    let mut other = f.other().await;
    let now: String =
        sqlx::query_scalar("SELECT pg_current_xact_id()::text").fetch_one(&mut other).await.unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
        let after = "SELECT pg_snapshot_xmin(pg_current_snapshot()) > $1::xid8";
        if sqlx::query_scalar(after).bind(&now).fetch_one(&mut other).await.unwrap() {
            return other;
        }
        other.execute("ROLLBACK").await.unwrap();
        assert!(tokio::time::Instant::now() < deadline, "an older transaction is still open");
    }
}

fn committing(table: &PostgresTable, entry: CommitEntry, base: &Base) -> JoinHandle<CommitOutcome> {
    let (table, base) = (table.clone(), base.clone());
    tokio::spawn(async move { commit(&table, &[entry], &base, true).await.unwrap() })
}

/// Until a statement selects true.
async fn until(f: &Fixture, condition: &str) {
    let mut look = f.other().await;
    let condition = format!("SELECT {condition}");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !sqlx::query_scalar::<_, bool>(AssertSqlSafe(condition.clone())).fetch_one(&mut look).await.unwrap()
    {
        assert!(tokio::time::Instant::now() < deadline, "never came: {condition}");
        tokio::task::yield_now().await;
    }
    look.close().await.unwrap();
}

async fn staged(f: &Fixture) -> (Staged, Base) {
    let base = f.table.head(&days(&[ONE])).await.unwrap();
    let staged = f.stage("r2", &days(&[ONE]), Intent::Replace, &[(ONE, "FR", 1, 9, 0)]).await.unwrap();
    (staged, base)
}

/// Same rows, and a handle that waits as long as it is said.
async fn with_timeout(f: &Fixture, milliseconds: u64) -> PostgresTable {
    let config = PostgresConfig::new().with_swap_timeout_ms(milliseconds);
    let db = config.connect(f.database.address()).await.unwrap();
    table_of(&db, "sales", by_day_and_country()).await.with_swap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swap_waits_for_snapshots_from_before_the_rows_and_nobody_sees_an_empty_partition() {
    let f = swapping().await;
    // Of another table, so that it has no lock of this one.
    let mut old = open_transaction(&f, "REPEATABLE READ", "SELECT count(*) FROM pg_class").await;
    let (staged, base) = staged(&f).await;
    let mut new = begun_after_all_of_now(&f).await;
    let before = oid(&f, "sales_1").await;
    // However slow the machine is, it is not the deadline that ends the wait.
    let table = with_timeout(&f, 600_000).await;
    let going = committing(&table, apply(&staged), &base);
    // All is ready but for the one that began before.
    let ready = "EXISTS (SELECT 1 FROM pg_constraint JOIN pg_class AS c ON c.oid = conrelid
                 WHERE contype = 'f' AND convalidated AND relname ~ '^stage_')";
    until(&f, ready).await;
    for _ in 0..300 {
        assert_eq!(sees(&mut old, "sales_2").await, 1);
        assert!(!going.is_finished());
    }
    assert_eq!(oid(&f, "sales_1").await, before);
    assert_eq!(sees(&mut old, "sales_1").await, 2, "the rows of its moment");
    old.execute("COMMIT").await.unwrap();
    committed(going.await.unwrap());
    assert_ne!(oid(&f, "sales_1").await, before);
    assert_eq!(sees(&mut new, "sales WHERE day = '2026-10-01'").await, 1, "the new rows, and never none");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_never_ends_has_the_rows_inserted_and_keeps_what_it_sees() {
    let f = swapping().await;
    let mut old = open_transaction(&f, "REPEATABLE READ", "SELECT count(*) FROM countries").await;
    let (staged, base) = staged(&f).await;
    let before = oid(&f, "sales_1").await;
    let table = with_timeout(&f, 50).await;
    committed(commit(&table, &[apply(&staged)], &base, true).await.unwrap());
    assert_eq!(oid(&f, "sales_1").await, before);
    assert_eq!(f.rows().await[0], "2026-10-01/FR/1/9/0");
    assert_eq!(sees(&mut old, "sales WHERE day = '2026-10-01'").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_reader_of_another_partition_makes_no_queue() {
    let f = swapping().await;
    let (staged, base) = staged(&f).await;
    let before = oid(&f, "sales_1").await;
    // In READ COMMITTED: what is in the way is its lock alone.
    let mut long =
        open_transaction(&f, "READ COMMITTED", "SELECT * FROM sales WHERE day = '2026-10-02'").await;
    let going = committing(&f.table, apply(&staged), &base);
    let waits = "EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock' AND relation = 'public.sales'::regclass)";
    until(&f, waits).await;
    // Another reader waits behind it for a moment at the most: it is answered while the long one is still there.
    let mut reader = f.other().await;
    let answered =
        tokio::time::timeout(Duration::from_secs(20), sees(&mut reader, "sales WHERE day = '2026-10-02'"));
    assert_eq!(answered.await.unwrap(), 1);
    assert!(!going.is_finished());
    // The swap comes back.
    until(&f, waits).await;
    assert_eq!(oid(&f, "sales_1").await, before);
    long.execute("COMMIT").await.unwrap();
    committed(going.await.unwrap());
    assert_ne!(oid(&f, "sales_1").await, before);
    assert_eq!(f.rows().await[0], "2026-10-01/FR/1/9/0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_table_is_always_in_use_the_rows_are_inserted() {
    let f = swapping().await;
    let (staged, base) = staged(&f).await;
    let before = oid(&f, "sales_1").await;
    let mut long =
        open_transaction(&f, "READ COMMITTED", "SELECT * FROM sales WHERE day = '2026-10-02'").await;
    let table = with_timeout(&f, 100).await;
    committed(commit(&table, &[apply(&staged)], &base, true).await.unwrap());
    assert_eq!(oid(&f, "sales_1").await, before);
    assert_eq!(f.rows().await[0], "2026-10-01/FR/1/9/0");
    long.execute("COMMIT").await.unwrap();
}

/// The rename swap of the notes loses what is written between the build and the exchange.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_write_to_the_old_partition_after_the_rows_were_staged_is_a_conflict_and_not_lost() {
    let f = swapping().await;
    let (staged, base) = staged(&f).await;
    f.sql("INSERT INTO sales_1 VALUES ('2026-10-01', 'FR', 50, 50, 0)").await;
    let outcome = commit(&f.table, &[apply(&staged)], &base, true).await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Conflicted { .. }), "{outcome:?}");
    assert_eq!(f.rows().await.len(), 4);
    // One that is under way as the swap wants its locks.
    let base = f.table.head(&days(&[ONE])).await.unwrap();
    let mut other =
        open_transaction(&f, "READ COMMITTED", "INSERT INTO sales_1 VALUES ('2026-10-01', 'DE', 51, 51, 0)")
            .await;
    let going = committing(&f.table, apply(&staged), &base);
    until(&f, "EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock')").await;
    other.execute("COMMIT").await.unwrap();
    let outcome = going.await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Conflicted { .. }), "{outcome:?}");
    assert_eq!(f.rows().await.len(), 5);
    // One that waits for the swap writes to what is the partition then.
    let base = f.table.head(&days(&[ONE])).await.unwrap();
    committed(commit(&f.table, &[apply(&staged)], &base, true).await.unwrap());
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/9/0", "2026-10-02/FR/3/3/0"]);
}

/// See <https://github.com/duckdb/dbt-duckdb/issues/533>.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_of_rows_beside_a_swap_of_the_same_partition_is_not_doubled() {
    let f = swapping().await;
    let plain = table_of(&f.db, "sales", by_day_and_country()).await;
    for round in 0..10 {
        let base = f.table.head(&days(&[ONE])).await.unwrap();
        let rows = [(ONE, "FR", 1, 100 + round, 0), (ONE, "FR", 2, 2, 0)];
        let first = f.stage(&format!("swap {round}"), &days(&[ONE]), Intent::Replace, &rows).await.unwrap();
        let rows = of(batch(&[(ONE, "DE", 7, 200 + round, 0)]));
        let second = plain
            .stage(&request(&format!("rows {round}"), &days(&[ONE]), Intent::Replace), rows)
            .await
            .unwrap();
        let (a, b) = (committing(&f.table, apply(&first), &base), committing(&plain, apply(&second), &base));
        let (a, b) = (a.await.unwrap(), b.await.unwrap());
        let won = |outcome: &CommitOutcome| matches!(outcome, CommitOutcome::Committed(_));
        assert!(won(&a) != won(&b), "{a:?} {b:?}");
        let expected = if won(&a) { 2 } else { 1 };
        assert_eq!(one(&f, "SELECT count(*) FROM sales WHERE day = '2026-10-01'").await, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_every_statement_see_a_whole_partition_while_it_is_swapped() {
    let f = swapping().await;
    let mut reader = f.other().await;
    let reading = tokio::spawn(async move {
        let mut seen = Vec::new();
        loop {
            let (rows, runs): (i64, i64) = sqlx::query_as(
                "SELECT count(*), count(DISTINCT rev) FROM public.sales WHERE day = '2026-10-02'",
            )
            .fetch_one(&mut reader)
            .await
            .unwrap();
            seen.push((rows, runs));
            let stop: bool = sqlx::query_scalar("SELECT to_regclass('public.stop') IS NOT NULL")
                .fetch_one(&mut reader)
                .await
                .unwrap();
            if stop {
                return seen;
            }
        }
    });
    let before = oid(&f, "sales_2").await;
    for run in 1..=12 {
        let rows: Vec<Row<'_>> = (0..5).map(|id| (TWO, "FR", id, 1, run)).collect();
        f.replace(&format!("run {run}"), &days(&[TWO]), &rows).await;
    }
    assert_ne!(oid(&f, "sales_2").await, before);
    f.sql("CREATE TABLE stop ()").await;
    let seen = reading.await.unwrap();
    assert!(seen.iter().all(|seen| *seen == (5, 1) || *seen == (1, 1)), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_ends_anywhere_leaves_the_table_whole() {
    let f = swapping().await;
    let (staged, base) = staged(&f).await;
    let whole = f.rows().await;
    let before = oid(&f, "sales_1").await;
    let mut polls = 1;
    let committed_after = loop {
        // The future is dropped after so many polls.
        let entry = apply(&staged);
        let entries = [entry];
        let mut going = Box::pin(commit(&f.table, &entries, &base, true));
        let mut left = polls;
        let ended = std::future::poll_fn(|context| match going.as_mut().poll(context) {
            std::task::Poll::Ready(outcome) => std::task::Poll::Ready(Some(outcome)),
            std::task::Poll::Pending if left == 0 => std::task::Poll::Ready(None),
            std::task::Poll::Pending => {
                left -= 1;
                std::task::Poll::Pending
            }
        })
        .await;
        drop(going);
        match ended {
            Some(outcome) => break outcome.unwrap(),
            None if oid(&f, "sales_1").await != before => {
                break commit(&f.table, &entries, &base, true).await.unwrap();
            }
            None => assert_eq!(f.rows().await, whole, "after {polls} polls"),
        }
        polls += 1 + polls / 12;
    };
    assert!(polls > 20, "{polls}");
    assert!(matches!(committed_after, CommitOutcome::Committed(_) | CommitOutcome::AlreadyCommitted(_)));
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/9/0", "2026-10-02/FR/3/3/0"]);
    // What was left goes with what is staged next.
    f.replace("r3", &days(&[TWO]), &[]).await;
    assert_eq!(texts_of(&f, "SELECT relname::text FROM pg_class WHERE relname ~ '^stage_'").await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_is_ended_in_a_swap_leaves_the_table_whole() {
    let f = swapping().await;
    let (staged, base) = staged(&f).await;
    let before = oid(&f, "sales_1").await;
    let mut long =
        open_transaction(&f, "READ COMMITTED", "SELECT * FROM sales WHERE day = '2026-10-02'").await;
    let (table, entry) = (f.table.clone(), apply(&staged));
    let moved = base.clone();
    let going = tokio::spawn(async move { commit(&table, &[entry], &moved, true).await });
    let waiting = "SELECT pid FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock' AND relation = 'public.sales'::regclass";
    until(&f, &format!("EXISTS ({waiting})")).await;
    while !going.is_finished() {
        f.sql(&format!("SELECT pg_terminate_backend(pid) FROM ({waiting}) AS w")).await;
    }
    refused(going.await.unwrap(), &["57P01"]);
    long.execute("COMMIT").await.unwrap();
    assert_eq!(f.rows().await.len(), 3);
    assert_eq!(f.table.open(&staged.id).await.unwrap(), Some(staged.clone()));
    committed(commit(&f.table, &[apply(&staged)], &base, true).await.unwrap());
    assert_ne!(oid(&f, "sales_1").await, before);
}
