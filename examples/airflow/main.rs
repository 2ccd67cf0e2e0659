//! The host behind an Airflow DAG: revenue and refunds of each day in PostgreSQL, and dbt downstream of them.
//!
//! Airflow says when, with `run JOB --interval START/END --run ID`; this program is the command line over the jobs. What the
//! schedule publishes has dbt build the models downstream over the same interval, and so has a correction, as a task of its
//! plan. `README.md` beside this file says how to run all of it.
//!
//! `DATABASE_URL=postgres://user:password@host/database cargo run --features postgres,sinks --example airflow -- --help`

use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use reprocess::arrow::schema::{DataType, Field, Schema};
use reprocess::domain::ids::TableId;
use reprocess::domain::interval::Grain;
use reprocess::domain::job::{JobSpec, TableSpec, Window};
use reprocess::domain::partition::Partitioning;
use reprocess::engine::{Engine, Host, Job, Settings};
use reprocess::ports::delivery::{Answer, Delivery, DeliverySink, Known};
use reprocess::ports::notify::{EVENTS, Event, NOTICES};
use reprocess::ports::writer::PartitionWriter;
use reprocess::postgres::{PostgresDatabase, PostgresLedger, PostgresSource, PostgresTable};
use reprocess::sinks::{CommandSink, LogSink};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ORDERS: &str = "shop.orders";
const REVENUE: &str = "shop.daily_revenue";
const REFUNDS: &str = "shop.daily_refunds";
/// What dbt builds.
const NET_REVENUE: &str = "reports.net_revenue";

/// A sum has one row also for a day without orders, so that downstream, where rows are merged, no old one is left over.
const SUM: &str = "
    SELECT :date AS day, coalesce(sum(amount), 0)::numeric(12,2) AS amount
    FROM orders WHERE refunded = :refunded";

/// dbt takes times without a zone, as UTC; and two of it in one project overwrite each other's files, so that one waits for
/// the other.
const DBT_BUILD: &str = r#"
    exec flock --no-fork "${DBT_PROJECT_DIR:-.}" \
        dbt --no-use-colors build --select net_revenue+ --event-time-start "${1%Z}" --event-time-end "${2%Z}""#;

fn dbt_build() -> CommandSink {
    CommandSink::new(EVENTS, "sh")
        .with_args(["-c", DBT_BUILD, "dbt"])
        .with_args(["{/data_interval_start}", "{/data_interval_end}"])
}

/// Has dbt build what is downstream of a partition that the schedule published. Of a correction dbt is told by its plan,
/// which waits for it and fails with it.
#[derive(Debug)]
struct Published(CommandSink);

#[async_trait]
impl DeliverySink for Published {
    fn channel(&self) -> &str {
        EVENTS
    }

    async fn send(&self, delivery: &Delivery) -> reprocess::Result<Answer> {
        match serde_json::from_value::<Event>(delivery.payload.clone()) {
            Err(e) => Ok(Answer::Refused { why: e.to_string() }),
            Ok(event) if event.backfill.is_none() && event.table == TableId::from(REVENUE) => {
                self.0.send(delivery).await
            }
            Ok(_) => Ok(Answer::Accepted { note: Some("nothing to build".to_owned()) }),
        }
    }

    /// An interval may be built twice.
    async fn ask(&self, _delivery: &Delivery) -> reprocess::Result<Known> {
        Ok(Known::NotReceived)
    }
}

async fn engine(address: &str) -> Result<Engine> {
    let db = PostgresDatabase::connect(address).await?;
    let mut host = Host::new(concat!("airflow example ", env!("CARGO_PKG_VERSION")));
    let orders = spec(ORDERS);
    host.add_source(orders.clone(), Arc::new(PostgresSource::mutable(db.clone(), orders)?))?;
    add_sum(&mut host, &db, "daily_revenue", REVENUE, false).await?;
    add_sum(&mut host, &db, "daily_refunds", REFUNDS, true).await?;
    host.declare_table(spec(NET_REVENUE))?;
    let reports = JobSpec::new("net_revenue", "reports@example.org", NET_REVENUE);
    host.add_external(reports.with_input("revenue", REVENUE, Window::Same), Arc::new(dbt_build()))?;
    host.add_sink(Arc::new(Published(dbt_build())))?;
    host.add_sink(Arc::new(LogSink::new(NOTICES)))?;
    let mut settings = Settings::default();
    // A build may take a quarter of an hour, and as long again to wait for others.
    settings.send_ttl_ms = 60 * 60_000;
    Ok(Engine::new(host, Arc::new(PostgresLedger::open(db).await?)).with_settings(settings))
}

/// Days in UTC, as Airflow's intervals and dbt's batches are.
fn spec(table: &str) -> TableSpec {
    TableSpec::new(table, Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC))
}

async fn add_sum(
    host: &mut Host,
    db: &PostgresDatabase,
    job: &str,
    output: &str,
    refunded: bool,
) -> Result<()> {
    let table = PostgresTable::open(db.clone(), spec(output)).await?;
    let columns = vec![
        Field::new("day", DataType::Date32, false),
        Field::new("amount", DataType::Decimal128(12, 2), false),
    ];
    table.create(&Arc::new(Schema::new(columns))).await?;
    host.add_table(spec(output), Arc::new(table))?;
    let job = JobSpec::new(job, "finance@example.org", output)
        .with_input("orders", ORDERS, Window::Same)
        .with_parameter("refunded", refunded);
    host.add_job(Job::new(job).transform_sql("v1", SUM))?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    // On stderr, which is the log of the task in Airflow.
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let address = std::env::var("DATABASE_URL").map_err(|_| "DATABASE_URL is not set".into());
    let engine = match address {
        Ok(address) => engine(&address).await,
        Err(error) => Err(error),
    };
    match engine {
        Ok(engine) => reprocess::cli::run(&engine, std::env::args_os()).await,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
