//! Tables of others: pins of what grows and of what changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, TimeUnit};
use reprocess_core::ErrorKind;
use reprocess_core::domain::interval::{Grain, Interval};
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::slice::{AsOfSlice, Slice, TimeSlice};
use reprocess_core::domain::value::Value;
use reprocess_core::ports::reader::{Availability, SnapshotReader};
use reprocess_sqlite::SqliteSource;

use super::support::*;

const EVENTS: &str =
    "CREATE TABLE events (n INTEGER PRIMARY KEY, at DATETIME, amount DECIMAL(10,2), name VARCHAR(20));
    INSERT INTO events VALUES
    (1, '2026-10-01 22:30:00', 1.5, 'late'), (2, '2026-10-01T21:59:59.999Z', 2, 'early'),
    (3, '2026-10-02 10:00:00+12:00', 2.5, 'far'), (4, '2026-10-03', NULL, NULL)";

fn events() -> TableSpec {
    TableSpec::new(
        "events",
        Partitioning::unpartitioned().with_time("at", Grain::Day, chrono_tz::Europe::Paris),
    )
}

fn paris_day(first: &str, last: &str) -> Slice {
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

#[tokio::test]
async fn an_append_only_source_is_read_up_to_its_mark() {
    let f = fixture().await;
    f.sql(EVENTS).await;
    let source = SqliteSource::append_only(f.db.clone(), events(), "n");
    assert_eq!(source.current().await.unwrap().as_str(), "4");
    // The second of October in Paris begins at 22:00 UTC; texts are compared by what they mean.
    let second = pin(&source, paris_day("2026-10-02", "2026-10-02")).await.unwrap();
    let expected = ["1/2026-10-01T22:30:00Z/1.5/late", "3/2026-10-01T22:00:00Z/2.5/far"];
    assert_eq!(read(&source, &second).await.unwrap(), expected);
    source.hold(std::slice::from_ref(&second)).await.unwrap();
    f.sql("INSERT INTO events VALUES (5, '2026-10-02 00:00:00', 9, 'new')").await;
    assert_eq!(read(&source, &second).await.unwrap(), expected);
    assert_eq!(read(&source, &pin(&source, second.slice.clone()).await.unwrap()).await.unwrap().len(), 3);
    // A change elsewhere leaves the pin, one under it breaks it.
    f.sql("UPDATE events SET amount = 7 WHERE n = 2").await;
    assert_eq!(read(&source, &second).await.unwrap(), expected);
    f.sql("UPDATE events SET amount = 7 WHERE n = 3").await;
    assert_eq!(refused(read(&source, &second).await, &["changed"]).kind(), ErrorKind::PinBroken);
    assert_eq!(refused(source.hold(&[second]).await, &["changed"]).kind(), ErrorKind::PinBroken);
    assert_eq!(source.availability(&"4".into()).await.unwrap(), Availability::Readable { until: None });
    assert_eq!(source.availability(&"x".into()).await.unwrap(), Availability::Expired);
}

#[tokio::test]
async fn a_source_without_rows_has_columns_and_a_version() {
    let f = fixture().await;
    f.sql("CREATE TABLE log (mark TEXT NOT NULL, on_day DATE, yes BOOLEAN, bytes BLOB)").await;
    let spec = TableSpec::new("log", Partitioning::unpartitioned());
    let source = SqliteSource::append_only(f.db.clone(), spec.clone(), "mark");
    let empty = pin(&source, Slice::All).await.unwrap();
    f.sql("INSERT INTO log VALUES ('it''s', '2026-10-01', 1, x'0a')").await;
    let (schema, stream) = source.read(&empty).await.unwrap();
    let types: Vec<_> = schema.fields().iter().map(|f| (f.data_type().clone(), f.is_nullable())).collect();
    assert_eq!(
        types,
        [
            (DataType::Utf8, false),
            (DataType::Date32, true),
            (DataType::Boolean, true),
            (DataType::Binary, true)
        ]
    );
    assert!(texts(stream).await.unwrap().is_empty());
    assert_eq!(rows(&source).await, ["it's/2026-10-01/true/0x0a"]);
    let missing =
        SqliteSource::mutable(f.db.clone(), TableSpec::new("nowhere", Partitioning::unpartitioned()));
    assert_eq!(refused(pin(&missing, Slice::All).await, &["nowhere"]).kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_held_slice_stays_while_its_table_changes() {
    let f = fixture().await;
    f.sql(EVENTS).await;
    let source = SqliteSource::mutable(f.db.clone(), events());
    let second = pin(&source, paris_day("2026-10-02", "2026-10-02")).await.unwrap();
    let other = pin(&source, paris_day("2026-10-03", "2026-10-03")).await.unwrap();
    let before = read(&source, &second).await.unwrap();
    source.hold(std::slice::from_ref(&second)).await.unwrap();
    source.hold(std::slice::from_ref(&second)).await.unwrap();
    f.sql("UPDATE events SET name = 'other'").await;
    assert_eq!(read(&source, &second).await.unwrap(), before);
    assert_eq!(refused(read(&source, &other).await.map(drop), &[]).kind(), ErrorKind::PinBroken);
    assert_eq!(refused(source.hold(&[other]).await, &["changed"]).kind(), ErrorKind::PinBroken);
    source.release(std::slice::from_ref(&second)).await.unwrap();
    source.release(std::slice::from_ref(&second)).await.unwrap();
    assert_eq!(refused(read(&source, &second).await, &["changed"]).kind(), ErrorKind::PinBroken);
}

#[tokio::test]
async fn types_can_be_told_in_place_of_the_declared_ones() {
    let f = fixture().await;
    f.sql("CREATE TABLE epochs (at INTEGER, price REAL); INSERT INTO epochs VALUES (1790899200, 12.30)")
        .await;
    let day = Partitioning::unpartitioned().with_time("at", Grain::Day, chrono_tz::UTC);
    let schema = Schema::new(vec![
        Field::new("at", DataType::Timestamp(TimeUnit::Second, Some("UTC".into())), false),
        Field::new("price", DataType::Decimal128(10, 2), true),
    ]);
    let source =
        SqliteSource::mutable(f.db.clone(), TableSpec::new("epochs", day)).with_schema(Arc::new(schema));
    let slice = |text| Slice::Partitions(BTreeSet::from([PartitionKey::of("at", date(text))]));
    let pinned = pin(&source, slice("2026-10-02")).await.unwrap();
    assert_eq!(read(&source, &pinned).await.unwrap(), ["2026-10-02T00:00:00Z/12.30"]);
    let pinned = pin(&source, slice("2026-10-01")).await.unwrap();
    assert!(read(&source, &pinned).await.unwrap().is_empty());
    f.sql("INSERT INTO epochs VALUES (1790899201, 0.123)").await;
    let error = refused(pin(&source, Slice::All).await, &["price", "0.123"]);
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn reference_rows_are_those_effective_at_the_date() {
    let f = fixture().await;
    f.sql(
        "CREATE TABLE prices (sku TEXT, price INTEGER, valid_from DATE, valid_to DATE);
           INSERT INTO prices VALUES ('a', 1, '2026-01-01', '2026-06-01'), ('a', 2, '2026-06-01', NULL),
           ('b', 3, '2026-07-01', NULL), ('c', 4, NULL, NULL)",
    )
    .await;
    let source = SqliteSource::mutable(f.db.clone(), TableSpec::new("prices", Partitioning::unpartitioned()));
    let as_of = |text: &str, to: Option<&str>| {
        Slice::AsOf(AsOfSlice {
            from: "valid_from".into(),
            to: to.map(Into::into),
            entity: vec!["sku".into()],
            date: date(text),
            instant: date(text).and_hms_opt(0, 0, 0).unwrap().and_utc(),
        })
    };
    for (text, rows) in [
        ("2025-12-31", vec![]),
        ("2026-05-31", vec!["a/1/2026-01-01/2026-06-01"]),
        ("2026-06-01", vec!["a/2/2026-06-01/NULL"]),
        ("2026-07-01", vec!["a/2/2026-06-01/NULL", "b/3/2026-07-01/NULL"]),
    ] {
        for to in [Some("valid_to"), None] {
            let pinned = pin(&source, as_of(text, to)).await.unwrap();
            assert_eq!(read(&source, &pinned).await.unwrap(), rows, "{text} {to:?}");
        }
    }
}
