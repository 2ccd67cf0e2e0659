//! Orders and refunds: revenue of three days, corrected for two of them, twice.
//!
//! Four orders, one of them refunded. Logic v1 adds up all of them; v2 leaves out what was refunded. The same backfill a
//! second time finds nothing to do: neither the table nor the ledger grows.

use std::path::Path;
use std::sync::Arc;

use chrono::NaiveDate;
use reprocess::arrow::schema::{DataType, Field, Schema};
use reprocess::domain::ids::WorkerId;
use reprocess::domain::interval::Grain;
use reprocess::domain::job::{JobSpec, TableSpec, Window};
use reprocess::domain::partition::{PartitionKey, Partitioning};
use reprocess::domain::request::{Mode, Request, Selection};
use reprocess::engine::{Engine, Host, Job, RunRequest, Submission};
use reprocess::ports::writer::PartitionWriter;
use reprocess::sqlite::{SqliteDatabase, SqliteLedger, SqliteSource, SqliteTable};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ORDERS: &str = "
    CREATE TABLE orders (id INTEGER PRIMARY KEY, day DATE NOT NULL, cents INTEGER NOT NULL, status TEXT NOT NULL);
    INSERT INTO orders (day, cents, status) VALUES
        ('2026-10-01', 10000, 'paid'), ('2026-10-01', 5000, 'refunded'),
        ('2026-10-02', 7000, 'paid'), ('2026-10-03', 3000, 'paid');";

const V1: &str = "
    SELECT :date AS day, printf('%d.%02d', sum(cents) / 100, sum(cents) % 100) AS revenue, 'v1' AS logic_version
    FROM orders HAVING count(*) > 0";

const V2: &str = "
    SELECT :date AS day, printf('%d.%02d', sum(cents) / 100, sum(cents) % 100) AS revenue, 'v2' AS logic_version
    FROM orders WHERE status <> :left_out HAVING count(*) > 0";

async fn engine(db: &Path) -> Result<Engine> {
    let db = SqliteDatabase::open(db).await?;
    let daily = Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
    let (orders, revenue) = (TableSpec::new("orders", daily.clone()), TableSpec::new("revenue", daily));
    let table = SqliteTable::new(db.clone(), revenue.clone());
    let columns = vec![
        Field::new("day", DataType::Date32, false),
        Field::new("revenue", DataType::Decimal128(12, 2), false),
        Field::new("logic_version", DataType::Utf8, false),
    ];
    table.create(&Arc::new(Schema::new(columns))).await?;
    let mut host = Host::new("orders example");
    host.add_source(orders.clone(), Arc::new(SqliteSource::append_only(db.clone(), orders, "id")))?;
    host.add_table(revenue, Arc::new(table))?;
    let job = JobSpec::new("revenue", "finance@example.org", "revenue")
        .with_input("orders", "orders", Window::Same)
        .with_parameter("left_out", "refunded");
    host.add_job(Job::new(job).transform_sql("v1", V1).transform_sql("v2", V2))?;
    Ok(Engine::new(host, Arc::new(SqliteLedger::open(db).await?)))
}

/// Runs v1 for three days and the backfill of two days twice, and answers the lines of the table and the number of rows
/// that the ledger has for the backfill.
pub(crate) async fn correct_twice(db: &Path) -> Result<(Vec<String>, usize)> {
    let mut connection = SqliteConnectOptions::new().filename(db).create_if_missing(true).connect().await?;
    sqlx::raw_sql(ORDERS).execute(&mut connection).await?;
    let engine = engine(db).await?;
    let worker = WorkerId::from("example");
    let day = |d| NaiveDate::from_ymd_opt(2026, 10, d).ok_or("no such day");
    for d in 1..=3 {
        let unit = PartitionKey::of("day", day(d)?);
        let run = RunRequest::scheduled(format!("revenue-{d}"), "revenue", unit).with_logic("v1");
        println!("{} with v1: {:?}", day(d)?, engine.run(&run, &worker).await?);
    }
    let range = Selection::Range { first: day(1)?.into(), last: day(2)?.into() };
    let request = Request::new("refunds", range, "refunded orders are no revenue", "analyst")
        .with_job("revenue", "v2")
        .with_mode(Mode::Direct);
    for time in ["first", "second"] {
        let plan = engine.plan(&request).await?;
        let submitted = engine.submit(&plan, &request.requester).await?;
        if submitted == Submission::New {
            engine.approve(&request.id, &plan.digest(), &request.requester, "").await?;
            let execution = engine.execute(&request.id, &worker, |_| {}).await?;
            println!("{time} time: {} days ran, the backfill is {}", execution.tasks.len(), execution.state);
        } else {
            println!("{time} time: {submitted:?}, {} days are skipped", plan.skipped.len());
        }
    }
    let lines = table(&mut connection).await?;
    connection.close().await?;
    Ok((lines, engine.ledger().changes(&request.id).await?.len()))
}

async fn table(connection: &mut SqliteConnection) -> Result<Vec<String>> {
    let select = "SELECT day || ' ' || revenue || ' ' || logic_version FROM revenue ORDER BY day";
    Ok(sqlx::query_scalar(select).fetch_all(connection).await?)
}

#[tokio::main]
async fn main() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (lines, ledger_rows) = correct_twice(&dir.path().join("orders.db")).await?;
    println!("\n{}\n\nrows of the ledger for the backfill: {ledger_rows}", lines.join("\n"));
    let expected = ["2026-10-01 100.00 v2", "2026-10-02 70.00 v2", "2026-10-03 30.00 v1"];
    match lines == expected && ledger_rows == 2 {
        true => Ok(()),
        false => Err("the table or the ledger is not as it should be".into()),
    }
}
