use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use reprocess_core::ErrorKind;

use crate::config::{PostgresConfig, PostgresDatabase};
use crate::server::TestDatabase;
use crate::sql::Statement;

/// One connection, so that who comes next gets the same one, if it was given back.
async fn narrow(database: &TestDatabase) -> PostgresDatabase {
    PostgresConfig::new().with_connections(1).connect(database.address()).await.unwrap()
}

async fn insert(db: &PostgresDatabase, number: i64) {
    let mut tx = db.begin().await.unwrap();
    Statement::new("INSERT INTO public.seen VALUES ($1)")
        .bind(number)
        .execute(&mut tx, "insert")
        .await
        .unwrap();
    tx.commit().await.unwrap();
}

async fn seen(db: &PostgresDatabase) -> Vec<i64> {
    let mut tx = db.begin_read().await.unwrap();
    let rows: Vec<(i64,)> =
        Statement::new("SELECT number FROM public.seen ORDER BY 1").all(&mut tx, "look").await.unwrap();
    rows.into_iter().map(|(number,)| number).collect()
}

/// Whether it ended before it was polled so often, and dropped.
async fn ended_within<T>(polls: usize, future: impl Future<Output = T>) -> bool {
    let (mut future, mut left) = (pin!(future), polls);
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        future.as_mut().poll(context).map(|_| true)
    })
    .await
}

#[tokio::test]
async fn a_begin_that_is_dropped_at_any_await_leaves_the_next_transaction_whole() {
    let database = TestDatabase::fresh().await;
    database.execute("CREATE TABLE seen (number bigint)").await;
    let db = narrow(&database).await;
    let mut number = 0;
    for polls in 0.. {
        let ended = ended_within(polls, db.begin()).await;
        number += 1;
        insert(&db, number).await;
        let written = seen(&narrow(&database).await).await;
        assert_eq!(written.last(), Some(&number), "dropped after {polls} polls: another sees no row");
        if ended {
            return;
        }
    }
}

#[tokio::test]
async fn a_transaction_that_is_dropped_at_any_await_writes_nothing_or_all() {
    let database = TestDatabase::fresh().await;
    database.execute("CREATE TABLE seen (number bigint)").await;
    let db = database.connect().await;
    for polls in 0.. {
        let ended = ended_within(polls, async {
            let mut tx = db.begin().await.unwrap();
            for number in [1, 2] {
                let insert = Statement::new("INSERT INTO public.seen VALUES ($1)").bind(number);
                insert.execute(&mut tx, "insert").await.unwrap();
            }
            tx.commit().await.unwrap();
        })
        .await;
        let mut tx = db.begin().await.unwrap();
        let locked = Statement::new("LOCK TABLE public.seen").execute(&mut tx, "lock").await;
        locked.expect("nobody holds a lock");
        tx.commit().await.unwrap();
        assert_eq!(seen(&db).await.len() % 2, 0, "half was written");
        if ended {
            return;
        }
    }
}

#[tokio::test]
async fn a_commit_after_an_error_that_was_not_minded_is_an_error() {
    let database = TestDatabase::fresh().await;
    let db = database.connect().await;
    let mut tx = db.begin().await.unwrap();
    let error = Statement::new("SELECT 1 / 0").execute(&mut tx, "divide").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(tx.commit().await.is_err());
}

#[tokio::test]
async fn a_transaction_is_what_it_says_whatever_the_role_was_given() {
    let database = TestDatabase::fresh().await;
    let role = database
        .role(
            "ALTER ROLE {role} SET default_transaction_isolation = 'serializable';
             ALTER ROLE {role} SET default_transaction_read_only = on;
             ALTER ROLE {role} SET synchronous_commit = off;
             ALTER ROLE {role} SET TimeZone = 'Asia/Kathmandu';
             ALTER ROLE {role} SET statement_timeout = 1",
        )
        .await;
    let db = PostgresConfig::new().with_lock_timeout_ms(1_500).connect(&role).await.unwrap();
    let shown = "SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only'),
        current_setting('synchronous_commit'), current_setting('TimeZone'), current_setting('statement_timeout'),
        current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout')";
    type Shown = (String, String, String, String, String, String, String);
    let mut tx = db.begin().await.unwrap();
    let settings: Shown = Statement::new(shown).one(&mut tx, "look").await.unwrap();
    tx.rollback().await.unwrap();
    let words = |(a, b, c, d, e, f, g): Shown| [a, b, c, d, e, f, g];
    assert_eq!(words(settings), ["read committed", "off", "on", "UTC", "1h", "1500ms", "20s"]);
    let mut tx = db.begin_read().await.unwrap();
    let settings: Shown = Statement::new(shown).one(&mut tx, "look").await.unwrap();
    assert_eq!(words(settings)[..2], ["repeatable read", "on"]);
}

#[tokio::test]
async fn a_lock_that_is_held_for_too_long_is_an_error_that_a_retry_can_mend() {
    let database = TestDatabase::fresh().await;
    database.execute("CREATE TABLE seen (number bigint)").await;
    let db = PostgresConfig::new().with_lock_timeout_ms(50).connect(database.address()).await.unwrap();
    let mut holder = db.begin().await.unwrap();
    Statement::new("LOCK TABLE public.seen").execute(&mut holder, "lock").await.unwrap();
    let mut other = db.begin().await.unwrap();
    let error = Statement::new("LOCK TABLE public.seen").execute(&mut other, "lock").await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
    assert!(error.to_string().contains("55P03"), "{error}");
}

#[tokio::test]
async fn a_connection_that_the_server_ends_is_an_error_that_a_retry_can_mend() {
    let database = TestDatabase::fresh().await;
    let db = narrow(&database).await;
    let mut tx = db.begin().await.unwrap();
    let (pid,): (i32,) = Statement::new("SELECT pg_backend_pid()").one(&mut tx, "look").await.unwrap();
    database.execute(&format!("SELECT pg_terminate_backend({pid}, 5000)")).await;
    let error = Statement::new("SELECT 1").execute(&mut tx, "go on").await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
    drop(tx);
    db.begin().await.unwrap().commit().await.unwrap();
}

#[test]
fn a_transaction_may_be_dropped_after_its_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let (database, tx) = first.block_on(async {
        let database = TestDatabase::fresh().await;
        database.execute("CREATE TABLE seen (number bigint)").await;
        let mut tx = database.connect().await.begin().await.unwrap();
        let insert = Statement::new("INSERT INTO public.seen VALUES (1)");
        insert.execute(&mut tx, "insert").await.unwrap();
        (database, tx)
    });
    drop(first);
    drop(tx);
    runtime().block_on(async {
        let db = database.connect().await;
        let mut tx = db.begin().await.unwrap();
        Statement::new("LOCK TABLE public.seen").execute(&mut tx, "lock").await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(seen(&db).await, [0_i64; 0]);
    });
}

#[tokio::test]
async fn a_statement_that_is_dropped_is_stopped_by_the_server() {
    let database = TestDatabase::fresh().await;
    let db = database.connect().await;
    let running = async |pattern: &str| {
        let mut tx = db.begin_read().await.unwrap();
        let count = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active' AND query LIKE $1";
        let (count,): (i64,) =
            Statement::new(count).bind(pattern).one(&mut tx, "look for statements").await.unwrap();
        tx.rollback().await.unwrap();
        count
    };
    let mut tx = db.begin().await.unwrap();
    let sleeping = tokio::spawn(async move {
        Statement::new("SELECT pg_sleep(600)").execute(&mut tx, "sleep").await.unwrap();
    });
    while running("SELECT pg_sleep%").await == 0 {
        tokio::task::yield_now().await;
    }
    sleeping.abort();
    while running("SELECT pg_sleep%").await > 0 {
        tokio::task::yield_now().await;
    }
}
