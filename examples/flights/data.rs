//! The source: flights of March 2013, from a Parquet file into a SQLite table to which rows are only added.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use chrono::NaiveDate;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use reprocess::arrow::array::cast::AsArray;
use reprocess::arrow::array::types::{Int64Type, TimestampMicrosecondType};
use reprocess::arrow::array::{Array, RecordBatch};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};

use super::Result;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/flights/data/flights-2013-03.parquet");

/// The table as an airport system would fill it: a row for each scheduled flight, numbered as it arrives.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS flights (
    id INTEGER PRIMARY KEY,
    time_hour TIMESTAMP NOT NULL,
    carrier TEXT NOT NULL,
    flight INTEGER NOT NULL,
    origin TEXT NOT NULL,
    dest TEXT NOT NULL,
    sched_dep_time INTEGER NOT NULL,
    dep_time INTEGER
)";

/// One scheduled flight.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    /// Local day, as the file has it.
    pub(crate) day: NaiveDate,
    /// Local hour.
    hour: i64,
    /// The scheduled hour in microseconds of UTC.
    time_hour: i64,
    pub(crate) carrier: String,
    number: i64,
    origin: String,
    pub(crate) dest: String,
    sched_dep_time: i64,
    /// Empty where the flight was cancelled.
    pub(crate) dep_time: Option<i64>,
}

impl Flight {
    /// The evening of 25 March reaches the table late.
    fn is_late(&self) -> bool {
        self.day == super::day(25) && self.hour >= 20
    }
}

/// Every flight of the file, in its order.
pub(crate) fn flights() -> Result<Vec<Flight>> {
    let mut flights = Vec::new();
    for batch in ParquetRecordBatchReaderBuilder::try_new(File::open(FILE)?)?.build()? {
        flights.extend(rows(&batch?)?);
    }
    Ok(flights)
}

fn rows(batch: &RecordBatch) -> Result<Vec<Flight>> {
    let column = |name: &str| batch.column_by_name(name).ok_or_else(|| format!("no column {name}"));
    let number = |name: &str| Ok::<_, String>(column(name)?.as_primitive::<Int64Type>());
    let text = |name: &str| Ok::<_, String>(column(name)?.as_string::<i64>());
    let (year, month, day, hour) = (number("year")?, number("month")?, number("day")?, number("hour")?);
    let (scheduled, departed, flight) = (number("sched_dep_time")?, number("dep_time")?, number("flight")?);
    let (carrier, origin, dest) = (text("carrier")?, text("origin")?, text("dest")?);
    let time_hour = column("time_hour")?.as_primitive::<TimestampMicrosecondType>();
    let row = |i: usize| {
        let date = (i32::try_from(year.value(i)), u32::try_from(month.value(i)), u32::try_from(day.value(i)));
        let day = match date {
            (Ok(year), Ok(month), Ok(day)) => NaiveDate::from_ymd_opt(year, month, day),
            _ => None,
        };
        Ok(Flight {
            day: day.ok_or("a flight without a day")?,
            hour: hour.value(i),
            time_hour: time_hour.value(i),
            carrier: carrier.value(i).to_owned(),
            number: flight.value(i),
            origin: origin.value(i).to_owned(),
            dest: dest.value(i).to_owned(),
            sched_dep_time: scheduled.value(i),
            dep_time: departed.is_valid(i).then(|| departed.value(i)),
        })
    };
    (0..batch.num_rows()).map(row).collect()
}

/// How many flights of each local day were cancelled: counted here, from the file, so that the prediction does not rest
/// on the SQL that it is to check.
pub(crate) fn cancelled(flights: &[Flight]) -> BTreeMap<NaiveDate, i64> {
    let mut cancelled = BTreeMap::new();
    for flight in flights {
        *cancelled.entry(flight.day).or_insert(0) += i64::from(flight.dep_time.is_none());
    }
    cancelled
}

/// Fills the table with what has arrived: everything, or everything but the late evening. Answers how many rows are new.
pub(crate) async fn load(db: &Path, flights: &[Flight], with_late: bool) -> Result<usize> {
    let options = SqliteConnectOptions::new().filename(db).create_if_missing(true);
    let mut connection = options.busy_timeout(std::time::Duration::from_secs(60)).connect().await?;
    sqlx::query(TABLE).execute(&mut connection).await?;
    sqlx::query("CREATE INDEX IF NOT EXISTS flights_by_hour ON flights (time_hour)")
        .execute(&mut connection)
        .await?;
    let there: i64 = sqlx::query_scalar("SELECT count(*) FROM flights").fetch_one(&mut connection).await?;
    let (late, in_time): (Vec<_>, Vec<_>) = flights.iter().partition(|flight| flight.is_late());
    let arrived = in_time.iter().chain(late.iter().filter(|_| with_late));
    let new: Vec<_> = arrived.skip(usize::try_from(there)?).copied().collect();
    add(&mut connection, &new).await?;
    connection.close().await?;
    Ok(new.len())
}

async fn add(connection: &mut SqliteConnection, flights: &[&Flight]) -> Result<()> {
    let mut tx = connection.begin().await?;
    let insert = "INSERT INTO flights (time_hour, carrier, flight, origin, dest, sched_dep_time, dep_time)
                  VALUES (?, ?, ?, ?, ?, ?, ?)";
    for flight in flights {
        sqlx::query(insert)
            .bind(flight.time_hour)
            .bind(&flight.carrier)
            .bind(flight.number)
            .bind(&flight.origin)
            .bind(&flight.dest)
            .bind(flight.sched_dep_time)
            .bind(flight.dep_time)
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await?;
    Ok(())
}
