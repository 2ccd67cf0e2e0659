//! Two processes start the same interval at once, one by schedule and one as a backfill: the partition holds the rows of one
//! run, and the ledger says of which.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use chrono::{Days, NaiveDate};
use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::job::{JobSpec, TableSpec, Window};
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::request::{Mode, Request, Selection};
use reprocess_core::engine::{Engine, Host, Job, RunRequest, Settings};
use reprocess_postgres::{PostgresDatabase, PostgresLedger, PostgresTable};
use sqlx::{Connection, Executor, PgConnection};

use crate::server::TestDatabase;

/// Tells the process which database it works in; without it its test does nothing.
const ADDRESS: &str = "REPROCESS_TEST_INTERVAL_ADDRESS";

/// Tells the process whether it is the scheduler.
const SCHEDULES: &str = "REPROCESS_TEST_INTERVAL_SCHEDULES";

const DAYS: u32 = 200;

const SQL: &str = "
    SELECT :date AS day, sum(cents)::bigint AS cents, :run AS run_id FROM orders HAVING count(*) > 0";

fn date(n: u32) -> NaiveDate {
    NaiveDate::from_ymd_opt(2026, 1, 1).unwrap() + Days::new(n.into())
}

fn key(n: u32) -> PartitionKey {
    PartitionKey::of("day", date(n))
}

fn by_day() -> Partitioning {
    Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC)
}

async fn open(address: &str) -> (Engine, PostgresDatabase) {
    let database = PostgresDatabase::connect(address).await.unwrap();
    let (orders, totals) = (TableSpec::new("orders", by_day()), TableSpec::new("totals", by_day()));
    let mut host = Host::new("test");
    let source = PostgresTable::open(database.clone(), orders.clone()).await.unwrap();
    host.add_source(orders, Arc::new(source)).unwrap();
    let table = PostgresTable::open(database.clone(), totals.clone()).await.unwrap();
    host.add_table(totals, Arc::new(table)).unwrap();
    let job = JobSpec::new("totals", "ops", "totals").with_input("orders", "orders", Window::Same);
    host.add_job(Job::new(job).transform_sql("v1", SQL)).unwrap();
    let ledger = PostgresLedger::open(database.clone()).await.unwrap();
    let mut settings = Settings::default();
    settings.poll_ms = 2;
    (Engine::new(host, Arc::new(ledger)).with_settings(settings), database)
}

/// Longest wait of one process for the other, which may be gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until both processes have come so far.
async fn meet(raw: &mut PgConnection, round: u32) {
    tokio::time::timeout(PATIENCE, both_are_at(raw, round))
        .await
        .expect("the other process has not come so far");
}

async fn both_are_at(raw: &mut PgConnection, round: u32) {
    let round = i32::try_from(round).unwrap();
    sqlx::query("INSERT INTO meeting VALUES ($1)").bind(round).execute(&mut *raw).await.unwrap();
    loop {
        let here: i64 = sqlx::query_scalar("SELECT count(*) FROM meeting WHERE round = $1")
            .bind(round)
            .fetch_one(&mut *raw)
            .await
            .unwrap();
        if here == 2 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_process_that_starts_interval_after_interval() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let schedules = std::env::var(SCHEDULES).is_ok();
    let (engine, _database) = open(&address).await;
    let mut raw = PgConnection::connect(&address).await.unwrap();
    for n in 0..DAYS {
        if schedules {
            meet(&mut raw, n).await;
            let run = RunRequest::scheduled(format!("run-{n}"), "totals", key(n)).with_force();
            let _ = engine.run(&run, &"schedule".into()).await.unwrap();
            continue;
        }
        let selection = Selection::Keys([key(n)].into());
        let request = Request::new(format!("fix-{n}").as_str(), selection, "a late order", "ann")
            .with_job("totals", "v1")
            .with_mode(Mode::Direct)
            .with_force();
        let plan = engine.plan(&request).await.unwrap();
        let _ = engine.submit(&plan, &"ann".into()).await.unwrap();
        engine.approve(&request.id, &plan.digest(), &"bob".into(), "").await.unwrap();
        meet(&mut raw, n).await;
        // Where the schedule was first the backfill says that the day has moved, and leaves it.
        let _ = engine.execute(&request.id, &"backfill".into(), |_| {}).await.unwrap();
    }
}

fn spawn(address: &str, schedules: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "concurrency::interval::a_process_that_starts_interval_after_interval",
            "--nocapture",
        ])
        .env(ADDRESS, address)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if schedules {
        command.env(SCHEDULES, "1");
    }
    command.spawn().unwrap()
}

#[tokio::test]
async fn of_a_run_and_a_backfill_at_once_the_partition_holds_one_and_the_ledger_says_which() {
    let database = TestDatabase::fresh().await;
    let mut raw = PgConnection::connect(database.address()).await.unwrap();
    raw.execute("CREATE TABLE meeting (round integer); CREATE TABLE orders (day date, cents bigint)")
        .await
        .unwrap();
    let insert = "INSERT INTO orders
        SELECT '2026-01-01'::date + d, c FROM generate_series(0, $1 - 1) AS d, (VALUES (100), (7)) AS o (c)";
    sqlx::query(insert).bind(i32::try_from(DAYS).unwrap()).execute(&mut raw).await.unwrap();
    let (engine, handle) = open(database.address()).await;
    let orders = PostgresTable::open(handle.clone(), TableSpec::new("orders", by_day())).await.unwrap();
    orders.adopt().await.unwrap();
    let processes = [spawn(database.address(), true), spawn(database.address(), false)];
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
    let rows: Vec<(NaiveDate, i64, String)> =
        sqlx::query_as("SELECT day, cents, run_id FROM totals ORDER BY day")
            .fetch_all(&mut raw)
            .await
            .unwrap();
    assert_eq!(rows.len(), usize::try_from(DAYS).unwrap(), "one row a day");
    let mut of_backfills = 0;
    for (n, (day, cents, run)) in (0..DAYS).zip(rows) {
        assert_eq!((day, cents), (date(n), 107));
        let current = engine.ledger().current(&"totals".into(), &[key(n)]).await.unwrap().remove(0).unwrap();
        assert_eq!(current.record.run.as_str(), run, "{day}");
        of_backfills += u32::from(run.starts_with("fix-"));
    }
    println!("{of_backfills} of {DAYS} days hold what the backfill wrote");
}
