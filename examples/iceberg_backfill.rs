//! Departures from New York in March 2013 in Iceberg tables: a correction of three weeks, reviewed on a branch that every
//! engine can read, published without copying, and one day of it taken back. Catalog and ledger are one SQLite file, in
//! which data and ledger change together; all is in `target/iceberg`, and it starts anew each time.
//!
//! `cargo run --features iceberg --example iceberg_backfill`

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use chrono::{Datelike, NaiveDate};
use futures::TryStreamExt;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use reprocess::arrow::array::cast::AsArray;
use reprocess::arrow::array::types::{Date32Type, Int64Type};
use reprocess::arrow::array::{ArrayRef, Date32Array, Int64Array, RecordBatch, StringArray};
use reprocess::arrow::schema::{DataType, Field, Schema, SchemaRef};
use reprocess::domain::ids::WorkerId;
use reprocess::domain::interval::Grain;
use reprocess::domain::job::{JobSpec, TableSpec, Window};
use reprocess::domain::partition::{PartitionKey, Partitioning};
use reprocess::domain::plan::RollbackRequest;
use reprocess::domain::profile::ProfileSpec;
use reprocess::domain::request::{Mode, Request, Selection};
use reprocess::domain::scope::Scope;
use reprocess::domain::slice::{Pin, Slice};
use reprocess::engine::{Engine, Host, Job};
use reprocess::iceberg::{IcebergCatalog, IcebergTable};
use reprocess::ports::reader::SnapshotReader;
use reprocess::ports::verbs::{WriteId, WriteVerbs};
use reprocess::ports::writer::{PartitionWriter, Rows};
use reprocess::render;
use reprocess::sqlite::{SqliteDatabase, SqliteLedger};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const FLIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/flights/data/flights-2013-03.parquet");
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/iceberg");

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

/// The airport's own program fills its table, which has a column of local days. It uses the library without a plan.
async fn airport(table: &IcebergTable) -> Result<()> {
    let file = ParquetRecordBatchReaderBuilder::try_new(File::open(FLIGHTS)?)?.build()?;
    let rows = file.map(|batch| flights(&batch?)).collect::<Result<Vec<_>>>()?;
    let schema = rows.first().ok_or("there are no flights")?.schema();
    let load = WriteId::new("march", "airport");
    let _ = table.replace(&load, Scope::whole_table(), Rows::batches(schema, rows)).await?;
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

async fn engine() -> Result<(Engine, IcebergTable)> {
    std::fs::create_dir_all(FOLDER)?;
    let db = SqliteDatabase::open(Path::new(FOLDER).join("catalog.db")).await?;
    let catalog = IcebergCatalog::sqlite(&db, "airport", &format!("{FOLDER}/warehouse")).await?;
    let (flights, daily) = (TableSpec::new("flights", by_day()), TableSpec::new("daily", by_day()));
    let source = IcebergTable::open(&catalog, "newyork.flights", flights.clone())?;
    airport(&source).await?;
    let output = IcebergTable::open(&catalog, "newyork.daily", daily.clone())?;
    output.create(&departures()).await?;
    let mut host = Host::new("iceberg example");
    host.add_source(flights, Arc::new(source))?;
    host.add_table(daily, Arc::new(output.clone()))?;
    let job = JobSpec::new("daily", "operations@example.org", "daily")
        .with_input("flights", "flights", Window::Same)
        .with_profile(ProfileSpec::new().with_keys(["day", "carrier"]));
    host.add_job(Job::new(job).transform_sql("v1", V1).transform_sql("v2", V2))?;
    Ok((Engine::new(host, Arc::new(SqliteLedger::open(db).await?)), output))
}

/// Totals of the first three weeks, as a reader of the table sees them now.
async fn totals(daily: &IcebergTable) -> Result<(i64, i64)> {
    let (version, slice) = (daily.current().await?, Slice::All);
    let content = daily.slice_versions(&version, std::slice::from_ref(&slice)).await?.remove(0);
    let pin = Pin { table: daily.spec().id.clone(), version, slice, content };
    let (_, mut rows) = daily.read(&pin).await?;
    let (mut scheduled, mut departures) = (0, 0);
    while let Some(batch) = rows.try_next().await? {
        let column = |name: &str| batch.column_by_name(name).ok_or_else(|| format!("no column {name}"));
        let (days, last) =
            (column("day")?.as_primitive::<Date32Type>(), Date32Type::from_naive_date(march(21)));
        let (all, left) = (
            column("scheduled")?.as_primitive::<Int64Type>(),
            column("departures")?.as_primitive::<Int64Type>(),
        );
        for row in (0..batch.num_rows()).filter(|row| days.value(*row) <= last) {
            scheduled += all.value(row);
            departures += left.value(row);
        }
    }
    Ok((scheduled, departures))
}

#[tokio::main]
async fn main() -> Result<()> {
    if Path::new(FOLDER).exists() {
        std::fs::remove_dir_all(FOLDER)?;
    }
    let ((engine, daily), worker) = (engine().await?, WorkerId::from("example"));
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
        totals(&daily).await?
    );
    let loaded = totals(&daily).await?;

    // The correction, as a shadow: the branch `reprocess-cancelled` has it, and main does not.
    let fix = Request::new("cancelled", days(1, 21), "cancelled flights are no departures", "analyst")
        .with_job("daily", "v2");
    let plan = engine.plan(&fix).await?;
    let _ = engine.submit(&plan, &fix.requester).await?;
    engine.approve(&fix.id, &plan.digest(), &fix.requester, "").await?;
    let _ = engine.execute(&fix.id, &worker, |_| {}).await?;
    let review = engine.review(&fix.id).await?;
    println!("{}", render::review(&review, 3));
    let unseen = totals(&daily).await?;
    engine.approve(&fix.id, &review.digest, &"reviewer".into(), "as predicted").await?;
    println!(
        "Published: {:?}, in one change of the catalog.",
        engine.publish(&fix.id, &"reviewer".into(), &worker).await?
    );
    let published = totals(&daily).await?;

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
    let restored = totals(&daily).await?;
    println!(
        "Totals of three weeks: loaded {loaded:?}, published {published:?}, with 8 March as it was {restored:?}."
    );

    // Of 19,635 flights of the three weeks 736 were cancelled, 180 of them on 8 March.
    match [loaded, unseen, published, restored] {
        [(19_635, 19_635), (19_635, 19_635), (19_635, 18_899), (19_635, 19_079)] => Ok(()),
        other => Err(format!("the totals are not as they should be: {other:?}").into()),
    }
}
