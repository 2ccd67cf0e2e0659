//! The published numbers, read with plain SQL from the file, and held against what the story expects.

use std::fmt::{Debug, Display};
use std::path::Path;

use chrono::NaiveDate;
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;

use super::Result;

/// Flights of the days 4 to 24 March, counted outside of this program.
pub(crate) const SCHEDULED: i64 = 19_648;
/// Those of them that were cancelled.
pub(crate) const CANCELLED: i64 = 727;
/// Airlines.
pub(crate) const CARRIERS: usize = 15;

/// One published day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Day {
    pub(crate) day: NaiveDate,
    pub(crate) carriers: i64,
    pub(crate) scheduled: i64,
    pub(crate) departures: i64,
}

/// The published days from the first to the last, both included.
pub(crate) async fn days(db: &Path, first: NaiveDate, last: NaiveDate) -> Result<Vec<Day>> {
    let mut connection = SqliteConnectOptions::new().filename(db).read_only(true).connect().await?;
    let rows: Vec<(String, i64, i64, i64)> = sqlx::query_as(
        "SELECT day, count(*), sum(scheduled), sum(departures) FROM daily_departures
         WHERE day BETWEEN ? AND ? GROUP BY day ORDER BY day",
    )
    .bind(first.to_string())
    .bind(last.to_string())
    .fetch_all(&mut connection)
    .await?;
    let day = |(day, carriers, scheduled, departures): (String, i64, i64, i64)| {
        Ok(Day { day: day.parse()?, carriers, scheduled, departures })
    };
    rows.into_iter().map(day).collect()
}

/// Scheduled flights and departures of each airline over some days.
pub(crate) async fn carriers(
    db: &Path,
    first: NaiveDate,
    last: NaiveDate,
) -> Result<Vec<(String, i64, i64)>> {
    let mut connection = SqliteConnectOptions::new().filename(db).read_only(true).connect().await?;
    let rows = sqlx::query_as(
        "SELECT carrier, sum(scheduled), sum(departures) FROM daily_departures
         WHERE day BETWEEN ? AND ? GROUP BY carrier ORDER BY sum(scheduled) DESC",
    );
    Ok(rows.bind(first.to_string()).bind(last.to_string()).fetch_all(&mut connection).await?)
}

/// Scheduled flights and departures of some days together.
pub(crate) fn sums(days: &[Day]) -> (i64, i64) {
    (days.iter().map(|d| d.scheduled).sum(), days.iter().map(|d| d.departures).sum())
}

/// An error where a number is not what the story says.
#[allow(clippy::needless_pass_by_value, reason = "callers compare what they have just computed")]
pub(crate) fn ensure<T: PartialEq + Debug>(what: &str, found: T, expected: T) -> Result<()> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{what}: found {found:?}, expected {expected:?}").into()),
    }
}

/// `19648` as `19,648`.
pub(crate) fn grouped(number: impl Display) -> String {
    let text = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in text.chars().enumerate() {
        if place > 0 && (text.len() - place).is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
