//! What the engine itself costs: a transform that does nothing over 730 days, against as many bare transactions of the same
//! durability: `cargo bench --features postgres --bench overhead`.
//!
//! It starts a PostgreSQL server of its own, unless `BENCH_POSTGRES` is the address of one. What is compared runs by turns;
//! medians of the ratios are told.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "measures, and a bench that cannot go on has failed"
)]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{Days, NaiveDate};
use reprocess::arrow::schema::{DataType, Field, Schema, SchemaRef};
use reprocess::domain::interval::Grain;
use reprocess::domain::job::{JobSpec, TableSpec};
use reprocess::domain::partition::Partitioning;
use reprocess::domain::request::{Mode, Request, Selection};
use reprocess::engine::{Engine, Host, Job};
use reprocess::ports::ledger::{BackfillState, RunLedger};
use reprocess::ports::writer::{PartitionWriter, Rows};
use reprocess::postgres::{PostgresDatabase, PostgresLedger, PostgresTable};
use reprocess::sqlite::{SqliteDatabase, SqliteLedger, SqliteTable};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, PgConnection};
use support::median;
use support::server::Server;
use tokio::runtime::Runtime;

const DAYS: u32 = 730;

fn main() {
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let turns = std::env::var("TURNS").map_or(5, |turns| turns.parse().unwrap());
    let server = Server::start();
    Runtime::new().unwrap().block_on(async {
        let mut sqlite = Vec::new();
        for _ in 0..turns {
            let folder = tempfile::tempdir().unwrap();
            let bare = bare_sqlite(&folder.path().join("bare.db")).await;
            sqlite.push(ratio("SQLite", ours_in_sqlite(&folder.path().join("ours.db")).await, bare));
        }
        println!("SQLite: median ratio {:.2}", median(sqlite));
        let mut postgres = Vec::new();
        for turn in 0..turns {
            let address = server.database(&format!("overhead_{turn}")).await;
            let bare = bare_postgres(&address).await;
            postgres.push(ratio("PostgreSQL", ours_in_postgres(&address).await, bare));
        }
        println!("PostgreSQL: median ratio {:.2}", median(postgres));
    });
}

fn ratio(of: &str, ours: Duration, bare: Duration) -> f64 {
    let ratio = ours.as_secs_f64() / bare.as_secs_f64();
    println!("{of}: {DAYS} tasks {ours:?}, {DAYS} bare transactions {bare:?}: {ratio:.2}");
    ratio
}

fn columns() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("day", DataType::Date32, true)]))
}

fn spec() -> TableSpec {
    TableSpec::new("nothing", Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC))
}

/// Plans and approves, then takes the time of the work alone.
async fn work(mut host: Host, ledger: Arc<dyn RunLedger>) -> Duration {
    let job = JobSpec::new("nothing", "nobody", "nothing");
    let empty = |(), _| async { Ok(Rows::batches(columns(), Vec::new())) };
    host.add_job(Job::new(job).transform_with("v1", (), empty)).unwrap();
    let engine = Engine::new(host, ledger);
    let first = NaiveDate::from_ymd_opt(2024, 1, 1).unwrap();
    let last = first + Days::new(u64::from(DAYS) - 1);
    let range = Selection::Range { first: first.into(), last: last.into() };
    let request = Request::new("all", range, "a bench", "nobody")
        .with_job("nothing", "v1")
        .with_mode(Mode::Direct)
        .with_concurrency(4)
        .without_kept_rows();
    let plan = engine.plan(&request).await.unwrap();
    let _ = engine.submit(&plan, &"nobody".into()).await.unwrap();
    engine.approve(&request.id, &plan.digest(), &"nobody".into(), "").await.unwrap();
    let start = Instant::now();
    let done = engine.execute(&request.id, &"bench".into(), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Published);
    start.elapsed()
}

async fn ours_in_sqlite(path: &std::path::Path) -> Duration {
    let db = SqliteDatabase::open(path).await.unwrap();
    let table = SqliteTable::new(db.clone(), spec());
    table.create(&columns()).await.unwrap();
    let mut host = Host::new("bench");
    host.add_table(spec(), Arc::new(table)).unwrap();
    work(host, Arc::new(SqliteLedger::open(db).await.unwrap())).await
}

async fn bare_sqlite(path: &std::path::Path) -> Duration {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    let mut connection = options.connect().await.unwrap();
    sqlx::raw_sql("CREATE TABLE bare (day INTEGER)").execute(&mut connection).await.unwrap();
    let start = Instant::now();
    for day in 0..DAYS {
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.unwrap();
        sqlx::query("INSERT INTO bare VALUES (?)").bind(day).execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
    }
    start.elapsed()
}

async fn ours_in_postgres(address: &str) -> Duration {
    let db = PostgresDatabase::connect(address).await.unwrap();
    let table = PostgresTable::open(db.clone(), spec()).await.unwrap();
    table.create(&columns()).await.unwrap();
    let mut host = Host::new("bench");
    host.add_table(spec(), Arc::new(table)).unwrap();
    work(host, Arc::new(PostgresLedger::open(db).await.unwrap())).await
}

async fn bare_postgres(address: &str) -> Duration {
    let mut connection = PgConnection::connect(address).await.unwrap();
    sqlx::raw_sql("CREATE TABLE bare (day bigint)").execute(&mut connection).await.unwrap();
    let start = Instant::now();
    for day in 0..DAYS {
        let mut tx = connection.begin().await.unwrap();
        sqlx::query("INSERT INTO bare VALUES ($1)").bind(i64::from(day)).execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
    }
    start.elapsed()
}
