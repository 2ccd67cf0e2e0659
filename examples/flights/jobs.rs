//! What the host declares: its tables, its jobs with every version of their logic, and what consumes them.

use std::path::Path;
use std::sync::Arc;

use chrono_tz::America::New_York;
use reprocess::arrow::schema::{DataType, Field, Schema, SchemaRef};
use reprocess::domain::ids::TableId;
use reprocess::domain::interval::Grain;
use reprocess::domain::job::{Exposure, JobSpec, TableSpec, Window};
use reprocess::domain::partition::Partitioning;
use reprocess::domain::profile::ProfileSpec;
use reprocess::engine::{Engine, Host, Job};
use reprocess::ports::writer::PartitionWriter;
use reprocess::sqlite::{SqliteDatabase, SqliteLedger, SqliteSource, SqliteTable};

use super::Result;

pub(crate) const DAILY: &str = "daily_departures";
pub(crate) const WEEKLY: &str = "weekly_departures";

/// Counts cancelled flights as departures.
const DAILY_V1: &str = "
    SELECT :date AS day, carrier, count(*) AS scheduled, count(*) AS departures
    FROM flights GROUP BY carrier";

/// A flight without a departure time never left.
const DAILY_V2: &str = "
    SELECT :date AS day, carrier, count(*) AS scheduled, count(dep_time) AS departures
    FROM flights GROUP BY carrier";

const WEEKLY_V1: &str = "
    SELECT :date AS week, carrier, sum(scheduled) AS scheduled, sum(departures) AS departures
    FROM daily GROUP BY carrier";

/// The engine over a database file; tables and ledger are in it.
pub(crate) async fn engine(db: &Path) -> Result<Engine> {
    let db = SqliteDatabase::open(db).await?;
    let ledger = SqliteLedger::open(db.clone()).await?;
    let mut host = Host::new(concat!("flights ", env!("CARGO_PKG_VERSION")));
    let flights = TableSpec::new("flights", by("time_hour", Grain::Day));
    host.add_source(flights.clone(), Arc::new(SqliteSource::append_only(db.clone(), flights, "id")))?;
    add_output(&mut host, &db, TableSpec::new(DAILY, by("day", Grain::Day))).await?;
    add_output(&mut host, &db, TableSpec::new(WEEKLY, by("week", Grain::Week))).await?;
    let daily = JobSpec::new(DAILY, "operations@example.org", DAILY)
        .with_input("flights", "flights", Window::Same)
        .with_profile(ProfileSpec::new().with_keys(["day", "carrier"]));
    host.add_job(Job::new(daily).transform_sql("v1", DAILY_V1).transform_sql("v2", DAILY_V2))?;
    let weekly = JobSpec::new(WEEKLY, "planning@example.org", WEEKLY)
        .with_input("daily", DAILY, Window::Covering)
        .with_profile(ProfileSpec::new().with_keys(["week", "carrier"]));
    host.add_job(Job::new(weekly).transform_sql("v1", WEEKLY_V1))?;
    host.add_exposure(Exposure {
        name: "punctuality dashboard".to_owned(),
        owner: "board@example.org".to_owned(),
        tables: vec![TableId::from(WEEKLY)],
    });
    Ok(Engine::new(host, Arc::new(ledger)))
}

/// Periods of New York's calendar, where 10 March 2013 had 23 hours.
fn by(column: &str, grain: Grain) -> Partitioning {
    Partitioning::unpartitioned().with_time(column, grain, New_York)
}

async fn add_output(host: &mut Host, db: &SqliteDatabase, spec: TableSpec) -> Result<()> {
    let table = SqliteTable::new(db.clone(), spec.clone());
    let (time, _) = spec.partitioning.time().ok_or("the table has a time dimension")?;
    table.create(&columns(time)).await?;
    host.add_table(spec, Arc::new(table))?;
    Ok(())
}

fn columns(time: &str) -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new(time, DataType::Date32, false),
        Field::new("carrier", DataType::Utf8, false),
        Field::new("scheduled", DataType::Int64, false),
        Field::new("departures", DataType::Int64, false),
    ]))
}
