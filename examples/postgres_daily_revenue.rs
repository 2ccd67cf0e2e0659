//! Orders and refunds in PostgreSQL: revenue of three days, corrected for two of them, twice.
//!
//! Four orders, one of them refunded. Logic v1 adds up all of them; v2 leaves out what was refunded. The table says in
//! each row which logic and which run made it; the ledger, in the same database, says the same of every table. The
//! same backfill a second time finds nothing to do: neither the table nor the ledger grows.
//!
//! `DATABASE_URL=postgres://user:password@host/database cargo run --features postgres --example postgres_daily_revenue`

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
use reprocess::postgres::{PostgresDatabase, PostgresLedger, PostgresSource, PostgresTable};
use sqlx::{Connection, PgConnection};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The shop's own table, in which an order's status changes: jobs read a copy of the days that they were planned for.
const ORDERS: &str = "
    CREATE SCHEMA shop;
    CREATE TABLE shop.orders (id bigint PRIMARY KEY, day date NOT NULL, amount numeric(12,2) NOT NULL, status text NOT NULL);
    INSERT INTO shop.orders VALUES
        (1, '2026-10-01', 100.00, 'paid'), (2, '2026-10-01', 50.00, 'refunded'),
        (3, '2026-10-02', 70.00, 'paid'), (4, '2026-10-03', 30.00, 'paid');";

const V1: &str = "
    SELECT :date AS day, sum(amount)::numeric(12,2) AS revenue, :logic AS logic_version, :run AS run_id
    FROM orders HAVING count(*) > 0";

const V2: &str = "
    SELECT :date AS day, sum(amount)::numeric(12,2) AS revenue, :logic AS logic_version, :run AS run_id
    FROM orders WHERE status <> :left_out HAVING count(*) > 0";

async fn engine(address: &str) -> Result<Engine> {
    let db = PostgresDatabase::connect(address).await?;
    let daily = Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
    let (orders, revenue) =
        (TableSpec::new("shop.orders", daily.clone()), TableSpec::new("shop.revenue", daily));
    let table = PostgresTable::open(db.clone(), revenue.clone()).await?;
    let columns = vec![
        Field::new("day", DataType::Date32, false),
        Field::new("revenue", DataType::Decimal128(12, 2), false),
        Field::new("logic_version", DataType::Utf8, false),
        Field::new("run_id", DataType::Utf8, false),
    ];
    table.create(&Arc::new(Schema::new(columns))).await?;
    let mut host = Host::new("orders example");
    host.add_source(orders.clone(), Arc::new(PostgresSource::mutable(db.clone(), orders)?))?;
    host.add_table(revenue, Arc::new(table))?;
    let job = JobSpec::new("revenue", "finance@example.org", "shop.revenue")
        .with_input("orders", "shop.orders", Window::Same)
        .with_parameter("left_out", "refunded");
    host.add_job(Job::new(job).transform_sql("v1", V1).transform_sql("v2", V2))?;
    Ok(Engine::new(host, Arc::new(PostgresLedger::open(db).await?)))
}

/// Runs v1 for three days and the backfill of two days twice, and answers the lines of the table and the number of rows
/// that the ledger has for the backfill.
pub(crate) async fn correct_twice(address: &str) -> Result<(Vec<String>, usize)> {
    let mut connection = PgConnection::connect(address).await?;
    sqlx::raw_sql(ORDERS).execute(&mut connection).await?;
    let engine = engine(address).await?;
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
    let select = "SELECT day || ' ' || revenue || ' ' || logic_version || ' by ' || run_id FROM shop.revenue ORDER BY day";
    let lines = sqlx::query_scalar(select).fetch_all(&mut connection).await?;
    connection.close().await?;
    Ok((lines, engine.ledger().changes(&request.id).await?.len()))
}

#[tokio::main]
async fn main() -> Result<()> {
    let address = std::env::var("DATABASE_URL").map_err(
        |_| "DATABASE_URL is not set: the address of a database, in which a schema `shop` is made",
    )?;
    let (lines, ledger_rows) = correct_twice(&address).await?;
    println!("\n{}\n\nrows of the ledger for the backfill: {ledger_rows}", lines.join("\n"));
    let expected = [
        "2026-10-01 100.00 v2 by refunds.1",
        "2026-10-02 70.00 v2 by refunds.1",
        "2026-10-03 30.00 v1 by revenue-3",
    ];
    match lines == expected && ledger_rows == 2 {
        true => Ok(()),
        false => Err("the table or the ledger is not as it should be".into()),
    }
}
