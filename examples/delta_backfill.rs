//! Departures from New York in March 2013 in Delta tables: a correction of three weeks, reviewed as a shadow, published
//! without copying, and one day of it taken back. Data and ledger are in `target/delta`; it starts anew each time.
//!
//! `cargo run --features delta --example delta_backfill`

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use chrono::{Datelike, NaiveDate};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use reprocess::arrow::array::cast::AsArray;
use reprocess::arrow::array::types::{Date32Type, Int64Type};
use reprocess::arrow::array::{ArrayRef, Date32Array, Int64Array, RecordBatch, StringArray};
use reprocess::arrow::schema::{DataType, Field, Schema, SchemaRef};
use reprocess::delta::deltalake::datafusion::prelude::SessionContext;
use reprocess::delta::{DeltaTable, deltalake};
use reprocess::domain::ids::WorkerId;
use reprocess::domain::interval::Grain;
use reprocess::domain::job::{JobSpec, TableSpec, Window};
use reprocess::domain::partition::{PartitionKey, Partitioning};
use reprocess::domain::plan::RollbackRequest;
use reprocess::domain::profile::ProfileSpec;
use reprocess::domain::request::{Mode, Request, Selection};
use reprocess::engine::{Engine, Host, Job};
use reprocess::ports::writer::PartitionWriter;
use reprocess::render;
use reprocess::sqlite::{SqliteDatabase, SqliteLedger};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const FLIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/flights/data/flights-2013-03.parquet");
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/delta");

/// Counts cancelled flights as departures.
const V1: &str = "
    SELECT :date AS day, carrier, count(*) AS scheduled, count(*) AS departures
    FROM flights GROUP BY carrier";

/// A flight without a departure time never left.
const V2: &str = "
    SELECT :date AS day, carrier, count(*) AS scheduled, count(dep_time) AS departures
    FROM flights GROUP BY carrier";

fn by_day() -> Partitioning {
    Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::America::New_York)
}

fn location(name: &str) -> String {
    format!("{FOLDER}/{name}")
}

/// The airport's own program appends the flights of a month to its table, which has a column of local days.
async fn airport(table: &DeltaTable) -> Result<()> {
    let file = ParquetRecordBatchReaderBuilder::try_new(File::open(FLIGHTS)?)?.build()?;
    let rows = file.map(|batch| flights(&batch?)).collect::<Result<Vec<_>>>()?;
    table.create(&rows.first().ok_or("there are no flights")?.schema()).await?;
    let url = deltalake::ensure_table_uri(location("flights"))?;
    deltalake::open_table(url).await?.write(rows).await?;
    Ok(())
}

fn flights(batch: &RecordBatch) -> Result<RecordBatch> {
    let column = |name: &str| batch.column_by_name(name).ok_or_else(|| format!("no column {name}"));
    let day_of_month = column("day")?.as_primitive::<Int64Type>();
    let days = day_of_month
        .values()
        .iter()
        .map(|day| Some(Date32Type::from_naive_date(march(u32::try_from(*day).ok()?))));
    let columns: [(&str, ArrayRef); 4] = [
        ("day", Arc::new(days.collect::<Date32Array>())),
        ("carrier", Arc::new(column("carrier")?.as_string::<i64>().iter().collect::<StringArray>())),
        ("flight", Arc::clone(column("flight")?)),
        (
            "dep_time",
            Arc::new(column("dep_time")?.as_primitive::<Int64Type>().iter().collect::<Int64Array>()),
        ),
    ];
    Ok(RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)))?)
}

fn march(day: u32) -> NaiveDate {
    NaiveDate::default()
        .with_year(2013)
        .and_then(|d| d.with_month(3))
        .and_then(|d| d.with_day(day))
        .unwrap_or_default()
}

fn departures() -> SchemaRef {
    let column = |name: &str, of: DataType| Field::new(name, of, true);
    Arc::new(Schema::new(vec![
        column("day", DataType::Date32),
        column("carrier", DataType::Utf8),
        column("scheduled", DataType::Int64),
        column("departures", DataType::Int64),
    ]))
}

async fn engine() -> Result<Engine> {
    let (flights, daily) = (TableSpec::new("flights", by_day()), TableSpec::new("daily", by_day()));
    let source = DeltaTable::open(&location("flights"), flights.clone())?;
    airport(&source).await?;
    let output = DeltaTable::open(&location("daily"), daily.clone())?;
    output.create(&departures()).await?;
    let mut host = Host::new("delta example");
    host.add_source(flights, Arc::new(source))?;
    host.add_table(daily, Arc::new(output))?;
    let job = JobSpec::new("daily", "operations@example.org", "daily")
        .with_input("flights", "flights", Window::Same)
        .with_profile(ProfileSpec::new().with_keys(["day", "carrier"]));
    host.add_job(Job::new(job).transform_sql("v1", V1).transform_sql("v2", V2))?;
    let ledger = SqliteDatabase::open(Path::new(FOLDER).join("ledger.db")).await?;
    Ok(Engine::new(host, Arc::new(SqliteLedger::open(ledger).await?)))
}

/// Totals of the first three weeks, as any reader of Delta sees them.
async fn totals() -> Result<(i64, i64)> {
    let session = SessionContext::new();
    let table = deltalake::open_table(deltalake::ensure_table_uri(location("daily"))?).await?;
    session.register_table("daily", table.table_provider().await?)?;
    let sql = "SELECT sum(scheduled), sum(departures) FROM daily WHERE day <= DATE '2013-03-21'";
    let rows = session.sql(sql).await?.collect().await?;
    let total = |column: usize| Some(rows.first()?.column(column).as_primitive::<Int64Type>().value(0));
    Ok((total(0).ok_or("no rows")?, total(1).ok_or("no rows")?))
}

#[tokio::main]
async fn main() -> Result<()> {
    if Path::new(FOLDER).exists() {
        std::fs::remove_dir_all(FOLDER)?;
    }
    let (engine, worker) = (engine().await?, WorkerId::from("example"));
    let days = |first, last| Selection::Range { first: march(first).into(), last: march(last).into() };

    let first = Request::new("first-load", days(1, 31), "the table is new", "analyst")
        .with_job("daily", "v1")
        .with_mode(Mode::Direct);
    let plan = engine.plan(&first).await?;
    let _ = engine.submit(&plan, &first.requester).await?;
    engine.approve(&first.id, &plan.digest(), &first.requester, "").await?;
    let done = engine.execute(&first.id, &worker, |_| {}).await?;
    println!(
        "Loaded with v1: the backfill is {}, totals of three weeks {:?}.\n",
        done.state,
        totals().await?
    );
    let loaded = totals().await?;

    // The correction, as a shadow: its files wait beside the table, and no version names them.
    let fix = Request::new("cancelled", days(1, 21), "cancelled flights are no departures", "analyst")
        .with_job("daily", "v2");
    let plan = engine.plan(&fix).await?;
    let _ = engine.submit(&plan, &fix.requester).await?;
    engine.approve(&fix.id, &plan.digest(), &fix.requester, "").await?;
    let _ = engine.execute(&fix.id, &worker, |_| {}).await?;
    let review = engine.review(&fix.id).await?;
    println!("{}", render::review(&review, 3));
    let unseen = totals().await?;
    engine.approve(&fix.id, &review.digest, &"reviewer".into(), "as predicted").await?;
    println!(
        "Published: {:?}, in one version of the table.",
        engine.publish(&fix.id, &"reviewer".into(), &worker).await?
    );
    let published = totals().await?;

    let eighth = PartitionKey::of("day", march(8));
    let undo = RollbackRequest {
        id: "cancelled.rollback".into(),
        of: fix.id.clone(),
        partitions: Some([eighth.clone()].into()),
        reason: "the snow of 8 March is looked at again".to_owned(),
        requester: "analyst".into(),
    };
    let plan = engine.plan_rollback(&undo).await?;
    let _ = engine.submit(&plan, &undo.requester).await?;
    engine.approve(&undo.id, &plan.digest(), &undo.requester, "").await?;
    let _ = engine.execute(&undo.id, &worker, |_| {}).await?;
    println!("\n{}", render::explanation(&engine.explain(&"daily".into(), &eighth).await?, 3));
    let restored = totals().await?;
    println!(
        "Totals of three weeks: loaded {loaded:?}, published {published:?}, with 8 March as it was {restored:?}."
    );

    // Of 19,635 flights of the three weeks 736 were cancelled, 180 of them on 8 March.
    match [loaded, unseen, published, restored] {
        [(19_635, 19_635), (19_635, 19_635), (19_635, 18_899), (19_635, 19_079)] => Ok(()),
        other => Err(format!("the totals are not as they should be: {other:?}").into()),
    }
}
