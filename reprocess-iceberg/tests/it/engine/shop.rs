//! Sixty days of orders, and their sum per day and country.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
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
use reprocess_core::ports::writer::{PartitionWriter, Rows};
use reprocess_iceberg::{IcebergCatalog, IcebergTable};
use reprocess_sqlite::{SqliteConfig, SqliteDatabase, SqliteLedger};

use crate::raw::{Raw, summary};

pub(super) const DAYS: u64 = 60;

pub(super) fn date(d: u64) -> NaiveDate {
    NaiveDate::from_ymd_opt(2026, 8, 1).unwrap().checked_add_days(Days::new(d)).unwrap()
}

/// How a process works: where it counts what it computes, how long one day takes it, and how long its leases last.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    pub(super) computed: PathBuf,
    pub(super) takes_ms: u64,
    pub(super) lease_ttl_ms: u64,
}

pub(super) struct Shop {
    pub(super) database: SqliteDatabase,
    pub(super) ledger: Arc<SqliteLedger>,
    pub(super) engine: Engine,
}

fn by_day() -> Partitioning {
    Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC)
}

async fn table(folder: &Path, spec: &TableSpec) -> IcebergTable {
    let database = SqliteDatabase::open(folder.join("shop.db")).await.unwrap();
    let warehouse = folder.join("warehouse");
    let catalog = IcebergCatalog::sqlite(&database, "shop", warehouse.to_str().unwrap()).await.unwrap();
    IcebergTable::open(&catalog, &format!("shop.{}", spec.id), spec.clone()).unwrap()
}

fn raw(folder: &Path, name: &str) -> Raw {
    Raw::in_file(&folder.join("shop.db"), &format!("shop.{name}"))
}

fn orders() -> TableSpec {
    TableSpec::new("orders", by_day())
}

/// Makes the folder with its orders: two a day in France, one every third day in Germany.
pub(super) async fn create(folder: &Path) {
    let (mut days, mut countries, mut cents) = (Vec::new(), Vec::new(), Vec::new());
    for d in 0..DAYS {
        for (country, amount) in [("FR", 100 + d), ("FR", 7), ("DE", 1000 + d)] {
            if country == "DE" && d % 3 != 0 {
                continue;
            }
            days.push(Date32Type::from_naive_date(date(d)));
            countries.push(country);
            cents.push(i64::try_from(amount).unwrap());
        }
    }
    let columns: [(&str, ArrayRef); 3] = [
        ("day", Arc::new(Date32Array::from(days))),
        ("country", Arc::new(StringArray::from(countries))),
        ("cents", Arc::new(Int64Array::from(cents))),
    ];
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap();
    table(folder, &orders()).await.create(&batch.schema()).await.unwrap();
    raw(folder, "orders").append(&batch).await;
}

/// What the table must hold, worked out without the library.
pub(super) fn expected() -> Vec<String> {
    let mut lines = Vec::new();
    for d in 0..DAYS {
        if d % 3 == 0 {
            lines.push(format!("{} DE {}", date(d), 1000 + d));
        }
        lines.push(format!("{} FR {}", date(d), 107 + d));
    }
    lines
}

pub(super) async fn open(folder: &Path, pace: Pace) -> Shop {
    let database = SqliteConfig::new().open(folder.join("shop.db")).await.unwrap();
    let ledger = Arc::new(SqliteLedger::open(database.clone()).await.unwrap());
    let orders = orders();
    let revenue = TableSpec::new("revenue", by_day().with_key("country", ValueKind::Text));
    let mut host = Host::new("test");
    host.add_source(orders.clone(), Arc::new(table(folder, &orders).await)).unwrap();
    host.add_table(revenue.clone(), Arc::new(table(folder, &revenue).await)).unwrap();
    let job = JobSpec::new("revenue", "ops", "revenue").with_input("orders", "orders", Window::Same);
    host.add_job(Job::new(job).transform_with("v1", pace.clone(), revenue_of)).unwrap();
    let mut settings = Settings::default();
    settings.lease_ttl_ms = pace.lease_ttl_ms;
    settings.poll_ms = 10;
    settings.backoff_min_ms = 5;
    let engine = Engine::new(host, ledger.clone() as Arc<dyn RunLedger>).with_settings(settings);
    Shop { database, ledger, engine }
}

pub(super) fn request() -> Request {
    let selection = Selection::Range { first: Value::Date(date(0)), last: Value::Date(date(DAYS - 1)) };
    Request::new("fix", selection, "first load", "ann")
        .with_job("revenue", "v1")
        .with_mode(Mode::Direct)
        .with_concurrency(3)
}

/// Submits and approves the backfill of all days.
pub(super) async fn start(shop: &Shop) {
    let plan = shop.engine.plan(&request()).await.unwrap();
    let _ = shop.engine.submit(&plan, &"ann".into()).await.unwrap();
    shop.engine.approve(&plan.request.id, &plan.digest(), &"bob".into(), "").await.unwrap();
}

async fn revenue_of(pace: Pace, task: TaskContext) -> Result<Rows, HostError> {
    let mut count = std::fs::OpenOptions::new().create(true).append(true).open(&pace.computed)?;
    writeln!(count, "{}", task.date().ok_or("a day")?)?;
    tokio::time::sleep(Duration::from_millis(pace.takes_ms)).await;
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

/// The table as `day country cents`, as the library underneath shows it.
pub(super) async fn contents(folder: &Path) -> Vec<String> {
    raw(folder, "revenue").rows().await.into_iter().map(|row| row.replace('/', " ")).collect()
}

/// The ledger rows of the backfill: by partition, how many rows it has and their content digest.
pub(super) async fn recorded(shop: &Shop) -> BTreeMap<String, String> {
    let rows = shop.ledger.changes(&"fix".into()).await.unwrap();
    let line = |row: &reprocess_core::ports::ledger::LedgerRow| {
        let after = row.record.after.as_ref().unwrap();
        (
            row.record.partition.to_string(),
            format!("{:?} {} {}", row.record.status, after.rows, after.content.value),
        )
    };
    rows.iter().map(line).collect()
}

/// The partitions that the snapshots of the table say they made, one for each snapshot.
pub(super) async fn committed(folder: &Path) -> Vec<String> {
    let mut made = Vec::new();
    for snapshot in raw(folder, "revenue").history().await {
        let record: serde_json::Value = serde_json::from_str(&summary(&snapshot)["reprocess"]).unwrap();
        for entry in record["entries"].as_array().unwrap() {
            let key: reprocess_core::domain::partition::PartitionKey =
                serde_json::from_value(entry["made_by"][0]["partition"].clone()).unwrap();
            made.push(key.to_string());
        }
    }
    made.sort();
    made
}
