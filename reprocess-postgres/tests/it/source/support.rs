//! A table of events that others write.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use chrono::NaiveDate;
use futures::TryStreamExt;
use reprocess_core::domain::interval::{Grain, Interval};
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::rows::Column;
use reprocess_core::domain::slice::{Pin, Slice, TimeSlice};
use reprocess_core::domain::value::Value;
use reprocess_core::ports::reader::{RowStream, SnapshotReader};
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_postgres::{PostgresConfig, PostgresDatabase, PostgresSource};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use crate::server::TestDatabase;

/// Events around 1 October 2026, two of them on the day.
pub(super) const EVENTS: &str = "
    CREATE TABLE events (n bigint PRIMARY KEY, at timestamptz NOT NULL, name text,
                         added xid8 NOT NULL DEFAULT pg_current_xact_id());
    INSERT INTO events VALUES
    (1, '2026-09-30 23:59:59.999999+00', 'before'), (2, '2026-10-01 00:00:00+00', 'first'),
    (3, '2026-10-01 23:59:59.999999+00', 'last'), (4, '2026-10-02 00:00:00+00', 'after')";

pub(super) struct Fixture {
    pub(super) database: TestDatabase,
    pub(super) db: PostgresDatabase,
}

pub(super) async fn fixture(sql: &str) -> Fixture {
    let database = TestDatabase::fresh().await;
    // Small batches, so that every test crosses a border between two.
    let db = database.connect_as(PostgresConfig::new().with_batch_rows(2)).await;
    let f = Fixture { database, db };
    f.sql(sql).await;
    f
}

impl Fixture {
    /// Runs statements as somebody who knows nothing of reprocess.
    pub(super) async fn sql(&self, sql: &str) {
        self.database.execute(&format!("SET search_path = public; {sql}")).await;
    }

    pub(super) async fn other(&self) -> PgConnection {
        self.database.raw().await
    }

    /// The first column of a query, as text.
    pub(super) async fn column(&self, sql: &str) -> Vec<String> {
        let mut raw = self.other().await;
        let rows = sqlx::query(AssertSqlSafe(sql.to_owned())).fetch_all(&mut raw).await.unwrap();
        raw.close().await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    pub(super) fn append_only(&self) -> PostgresSource {
        PostgresSource::append_only(self.db.clone(), events(), "added").unwrap().with_columns(columns())
    }

    pub(super) fn up_to_mark(&self) -> PostgresSource {
        PostgresSource::high_water_mark(self.db.clone(), events(), "n").unwrap().with_columns(columns())
    }

    pub(super) fn mutable(&self) -> PostgresSource {
        PostgresSource::mutable(self.db.clone(), events()).unwrap().with_columns(columns())
    }
}

pub(super) fn events() -> TableSpec {
    TableSpec::new("events", Partitioning::unpartitioned().with_time("at", Grain::Day, chrono_tz::UTC))
}

/// Without the column of transactions, whose numbers differ from run to run.
pub(super) fn columns() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("n", DataType::Int64, false),
        Field::new("at", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), false),
        Field::new("name", DataType::Utf8, true),
    ]))
}

pub(super) fn date(text: &str) -> NaiveDate {
    text.parse().unwrap()
}

/// The days from the first to the last, of the table of events.
pub(super) fn days(first: &str, last: &str) -> Slice {
    let partitioning = events().partitioning;
    let interval = |text| partitioning.interval(&PartitionKey::of("at", date(text))).unwrap();
    Slice::Time(TimeSlice {
        column: "at".into(),
        first: Value::Date(date(first)),
        last: Value::Date(date(last)),
        interval: Interval::new(interval(first).start(), interval(last).end()).unwrap(),
        only: PartitionKey::whole(),
    })
}

/// 1 October 2026.
pub(super) fn the_day() -> Slice {
    days("2026-10-01", "2026-10-01")
}

pub(super) async fn pin(reader: &dyn SnapshotReader, slice: Slice) -> Result<Pin> {
    let version = reader.current().await?;
    let content = reader.slice_versions(&version, std::slice::from_ref(&slice)).await?.remove(0);
    Ok(Pin { table: reader.table().clone(), version, slice, content })
}

/// The rows of a pin as sorted text.
pub(super) async fn read(reader: &dyn SnapshotReader, pin: &Pin) -> Result<Vec<String>> {
    let (_, stream) = reader.read(pin).await?;
    texts(stream).await
}

/// The first column of the rows of a pin.
pub(super) async fn numbers(reader: &dyn SnapshotReader, pin: &Pin) -> Vec<i64> {
    let rows = read(reader, pin).await.unwrap();
    let mut numbers: Vec<i64> =
        rows.iter().map(|row| row.split('/').next().unwrap().parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

pub(super) async fn texts(stream: RowStream) -> Result<Vec<String>> {
    let batches: Vec<RecordBatch> = stream.try_collect().await?;
    let mut texts = Vec::new();
    for batch in &batches {
        let schema = batch.schema();
        let columns: Vec<_> = schema
            .fields()
            .iter()
            .zip(batch.columns())
            .map(|(field, array)| Column::new(field.name(), array).unwrap())
            .collect();
        for row in 0..batch.num_rows() {
            texts.push(columns.iter().map(|c| c.cell(row).to_string()).collect::<Vec<_>>().join("/"));
        }
    }
    texts.sort();
    Ok(texts)
}

pub(super) fn refused<T>(result: Result<T>, kind: ErrorKind, words: &[&str]) -> Error {
    let Err(error) = result else { panic!("not refused") };
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{error} does not say {word}");
    }
    error
}

/// The pin can be neither read nor held, and says why.
pub(super) async fn broken(reader: &dyn SnapshotReader, pin: &Pin, word: &str) {
    refused(read(reader, pin).await, ErrorKind::PinBroken, &[word]);
    refused(reader.hold(std::slice::from_ref(pin)).await, ErrorKind::PinBroken, &[word]);
}
