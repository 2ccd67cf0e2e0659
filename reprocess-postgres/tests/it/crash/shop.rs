//! Days of orders, and their sum per day and country, in one database with the ledger.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Int64Type};
use arrow_array::{ArrayRef, Date32Array, Int64Array, RecordBatch, StringArray};
use chrono::{Days, NaiveDate};
use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::job::{JobSpec, TableSpec, Window};
use reprocess_core::domain::partition::Partitioning;
use reprocess_core::domain::request::{Mode, Request, Selection};
use reprocess_core::domain::value::{Value, ValueKind};
use reprocess_core::engine::{Engine, Host, Job, Settings};
use reprocess_core::ports::ledger::{LedgerReader, RunLedger};
use reprocess_core::ports::transform::{HostError, TaskContext};
use reprocess_core::ports::writer::Rows;
use reprocess_postgres::{PostgresConfig, PostgresDatabase, PostgresLedger, PostgresTable};
use sqlx::{Connection, Executor, PgConnection};

/// How long a lease lasts, in milliseconds.
pub(super) const LEASE_MS: u64 = 600;

pub(super) struct Shop {
    pub(super) database: PostgresDatabase,
    pub(super) ledger: Arc<PostgresLedger>,
    pub(super) engine: Engine,
}

fn date(d: u64) -> NaiveDate {
    NaiveDate::from_ymd_opt(2026, 8, 1).unwrap().checked_add_days(Days::new(d)).unwrap()
}

fn by_day() -> Partitioning {
    Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC)
}

/// Two orders a day in France, one every third day in Germany.
pub(super) async fn create(address: &str, days: u64) {
    let mut raw = PgConnection::connect(address).await.unwrap();
    raw.execute("CREATE TABLE orders (day date, country text, cents bigint)").await.unwrap();
    let insert = "INSERT INTO orders
        SELECT '2026-08-01'::date + d, o.country, o.cents FROM generate_series(0, $1 - 1) AS d,
        LATERAL (VALUES ('FR', 100 + d), ('FR', 7), ('DE', 1000 + d)) AS o (country, cents)
        WHERE o.country = 'FR' OR d % 3 = 0";
    sqlx::query(insert).bind(i32::try_from(days).unwrap()).execute(&mut raw).await.unwrap();
    raw.close().await.unwrap();
    let database = PostgresDatabase::connect(address).await.unwrap();
    let orders = PostgresTable::open(database.clone(), TableSpec::new("orders", by_day())).await.unwrap();
    orders.adopt().await.unwrap();
    PostgresLedger::open(database.clone()).await.unwrap();
    database.close().await;
}

/// What the table must hold, worked out without the library.
pub(super) fn expected(days: u64) -> Vec<String> {
    let of_day = |d: u64| {
        let german = d.is_multiple_of(3).then(|| format!("{} DE {}", date(d), 1000 + d));
        german.into_iter().chain([format!("{} FR {}", date(d), 107 + d)])
    };
    (0..days).flat_map(of_day).collect()
}

/// Opens it; one day takes a task so long.
pub(super) async fn open(address: &str, takes_ms: u64) -> Shop {
    open_with(address, takes_ms, LEASE_MS, u32::MAX).await
}

/// How many tasks a process of [`open_patient`] runs at a time.
pub(super) const SLOTS: u32 = 2;

/// Opens it with leases that a process does not lose, however busy the machine is.
pub(super) async fn open_patient(address: &str) -> Shop {
    open_with(address, 0, 5_000, SLOTS).await
}

async fn open_with(address: &str, takes_ms: u64, lease_ttl_ms: u64, tasks: u32) -> Shop {
    let config = PostgresConfig::new().with_idle_timeout_ms(1_500).with_lock_timeout_ms(10_000);
    let database = config.with_connect_timeout_ms(10_000).connect(address).await.unwrap();
    let ledger = Arc::new(PostgresLedger::open(database.clone()).await.unwrap());
    let orders = TableSpec::new("orders", by_day());
    let revenue = TableSpec::new("revenue", by_day().with_key("country", ValueKind::Text));
    let source = PostgresTable::open(database.clone(), orders.clone()).await.unwrap();
    let table = PostgresTable::open(database.clone(), revenue.clone()).await.unwrap();
    let mut host = Host::new("test");
    host.add_source(orders, Arc::new(source)).unwrap();
    host.add_table(revenue, Arc::new(table)).unwrap();
    let job = JobSpec::new("revenue", "ops", "revenue").with_input("orders", "orders", Window::Same);
    host.add_job(Job::new(job).transform_with("v1", takes_ms, revenue_of)).unwrap();
    let mut settings = Settings::default();
    settings.lease_ttl_ms = lease_ttl_ms;
    settings.tasks = tasks;
    settings.poll_ms = 20;
    settings.backoff_min_ms = 10;
    settings.backoff_max_ms = 500;
    settings.attempts = 12;
    let engine = Engine::new(host, Arc::clone(&ledger) as Arc<dyn RunLedger>).with_settings(settings);
    Shop { database, ledger, engine }
}

/// Submits and approves the backfill of all days, three at a time.
pub(super) async fn start(address: &str, days: u64) {
    start_with(address, days, 3).await;
}

pub(super) async fn start_with(address: &str, days: u64, at_a_time: u32) {
    let shop = open(address, 0).await;
    let selection = Selection::Range { first: Value::Date(date(0)), last: Value::Date(date(days - 1)) };
    let request = Request::new("fix", selection, "first load", "ann")
        .with_job("revenue", "v1")
        .with_mode(Mode::Direct)
        .with_concurrency(at_a_time);
    let plan = shop.engine.plan(&request).await.unwrap();
    let _ = shop.engine.submit(&plan, &"ann".into()).await.unwrap();
    shop.engine.approve(&plan.request.id, &plan.digest(), &"bob".into(), "").await.unwrap();
    shop.database.close().await;
}

async fn revenue_of(takes_ms: u64, task: TaskContext) -> Result<Rows, HostError> {
    tokio::time::sleep(Duration::from_millis(takes_ms)).await;
    let batch = task.collect("orders").await?;
    let mut sums = BTreeMap::<(i32, String), i64>::new();
    for row in 0..batch.num_rows() {
        let date = batch.column_by_name("day").ok_or("day")?.as_primitive::<Date32Type>().value(row);
        let country = batch.column_by_name("country").ok_or("country")?.as_string::<i32>().value(row);
        let cents = batch.column_by_name("cents").ok_or("cents")?.as_primitive::<Int64Type>().value(row);
        *sums.entry((date, country.to_owned())).or_default() += cents;
    }
    let columns: [(&str, ArrayRef); 3] = [
        ("day", Arc::new(sums.keys().map(|k| Some(k.0)).collect::<Date32Array>())),
        ("country", Arc::new(sums.keys().map(|k| Some(k.1.clone())).collect::<StringArray>())),
        ("cents", Arc::new(sums.values().copied().map(Some).collect::<Int64Array>())),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)))?;
    Ok(batch.into())
}

/// The table as `day country cents`, read by plain SQL.
pub(super) async fn contents(address: &str) -> Vec<String> {
    let sql = "SELECT concat_ws(' ', day, country, cents) FROM revenue ORDER BY day, country";
    let mut raw = PgConnection::connect(address).await.unwrap();
    let rows = sqlx::query_scalar(sql).fetch_all(&mut raw).await.unwrap();
    raw.close().await.unwrap();
    rows
}

/// The ledger rows of the backfill: partition, status, rows and content.
pub(super) async fn recorded(shop: &Shop) -> Vec<String> {
    let rows = shop.ledger.changes(&"fix".into()).await.unwrap();
    let mut lines: Vec<_> = rows
        .iter()
        .map(|row| {
            let after = row.record.after.as_ref().unwrap();
            format!("{} {:?} {} {}", row.record.partition, row.record.status, after.rows, after.content.value)
        })
        .collect();
    lines.sort();
    lines
}

/// Rows of the ledger, current ones and partitions that they are of; stamps; commits.
pub(super) async fn counts(address: &str) -> [i64; 5] {
    let sql = "SELECT ARRAY[count(*), count(*) FILTER (WHERE is_current), count(DISTINCT partition) FILTER (WHERE is_current),
                      (SELECT count(*) FROM reprocess.table_stamp), (SELECT seq FROM reprocess.table_seq JOIN
                       reprocess.table_registry USING (t) WHERE table_id = 'revenue')] FROM reprocess.run";
    let mut raw = PgConnection::connect(address).await.unwrap();
    let counts: Vec<i64> = sqlx::query_scalar(sql).fetch_one(&mut raw).await.unwrap();
    raw.close().await.unwrap();
    counts.try_into().unwrap()
}
