use reprocess_core::domain::interval::{Grain, Interval};
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::slice::TimeSlice;
use reprocess_core::domain::value::Value;
use sqlx::{AssertSqlSafe, Row, raw_sql};

use super::*;
use crate::server::TestDatabase;
use crate::sql::set;

/// Two rows an hour for some years, in no order.
const READINGS: &str = "
    CREATE TABLE readings (n bigint NOT NULL, at timestamptz NOT NULL, added xid8 NOT NULL DEFAULT pg_current_xact_id());
    INSERT INTO readings SELECT n, '2024-01-01 00:00:00+00'::timestamptz + n * 7919 % 40009 * interval '30 minutes'
    FROM generate_series(1, 40000) AS n;
    CREATE INDEX by_time ON readings (at)";

/// How the server would read a day of the source.
async fn plan(source: &PostgresSource, day: &Slice) -> String {
    let version = source.current().await.unwrap();
    let mut tx = source.database.begin_read().await.unwrap();
    let found = source.find(&mut tx).await.unwrap();
    let (text, values) = source.select(&found, &version, day).unwrap().copied().unwrap();
    set(&mut tx, values, "explain").await.unwrap();
    let lines = raw_sql(AssertSqlSafe(format!("EXPLAIN {text}"))).fetch_all(&mut *tx).await.unwrap();
    tx.rollback().await.unwrap();
    lines.iter().map(|line| line.get::<String, _>(0) + "\n").collect()
}

#[tokio::test]
async fn a_day_is_read_by_the_index_of_its_time() {
    let database = TestDatabase::fresh().await;
    database.execute(READINGS).await;
    database.execute("ANALYZE readings").await;
    let db = database.connect().await;
    let partitioning = Partitioning::unpartitioned().with_time("at", Grain::Day, chrono_tz::Europe::Paris);
    let date = Value::Date("2026-01-15".parse().unwrap());
    let interval = partitioning.interval(&PartitionKey::of("at", date.clone())).unwrap();
    let day = Slice::Time(TimeSlice {
        column: "at".into(),
        first: date.clone(),
        last: date,
        interval: Interval::new(interval.start(), interval.end()).unwrap(),
        only: PartitionKey::whole(),
    });
    let spec = TableSpec::new("readings", partitioning);
    for source in [
        PostgresSource::append_only(db.clone(), spec.clone(), "added"),
        PostgresSource::high_water_mark(db.clone(), spec.clone(), "n"),
        PostgresSource::mutable(db.clone(), spec.clone()),
    ] {
        let plan = plan(&source.unwrap(), &day).await;
        let by_time = plan.contains("by_time") && plan.contains("(at >= ") && plan.contains("(at < ");
        assert!(by_time && !plan.contains("Seq Scan"), "{plan}");
    }
}
