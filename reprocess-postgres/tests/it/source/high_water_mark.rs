//! Pins up to a mark.

use reprocess_core::ErrorKind;
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::Partitioning;
use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::reader::{Availability, SnapshotReader};
use reprocess_postgres::PostgresSource;

use super::support::*;

fn source(f: &Fixture, table: &str, column: &str) -> PostgresSource {
    let spec = TableSpec::new(table, Partitioning::unpartitioned());
    PostgresSource::high_water_mark(f.db.clone(), spec, column).unwrap()
}

#[tokio::test]
async fn a_pin_reads_up_to_its_mark() {
    let f = fixture(EVENTS).await;
    let source = f.up_to_mark();
    assert_eq!(source.current().await.unwrap().as_str(), "mark:4");
    let first = pin(&source, the_day()).await.unwrap();
    f.sql("INSERT INTO events VALUES (5, '2026-10-01 12:00:00+00', 'new')").await;
    source.hold(std::slice::from_ref(&first)).await.unwrap();
    assert_eq!(numbers(&source, &first).await, [2, 3]);
    assert_eq!(numbers(&source, &pin(&source, the_day()).await.unwrap()).await, [2, 3, 5]);
    f.sql("UPDATE events SET name = 'other' WHERE n = 3").await;
    broken(&source, &first, "rows have changed").await;
    let readable = Availability::Readable { until: None };
    assert_eq!(source.availability(&"mark:4".into()).await.unwrap(), readable);
    assert_eq!(source.availability(&"4".into()).await.unwrap(), Availability::Expired);
}

#[tokio::test]
async fn condition_15_rows_with_a_mark_equal_to_the_largest_are_not_missed() {
    let f = fixture(
        "CREATE TABLE log (at timestamptz NOT NULL, n bigint NOT NULL);
         INSERT INTO log VALUES ('2026-10-01 10:00:00.123456+00', 1), ('2026-10-01 10:00:00.123456+00', 2)",
    )
    .await;
    let source = source(&f, "log", "at");
    let first = pin(&source, Slice::All).await.unwrap();
    assert_eq!(first.version.as_str(), "mark:2026-10-01 10:00:00.123456+00");
    assert_eq!(read(&source, &first).await.unwrap().len(), 2, "the rows at the mark are read");
    f.sql(
        "INSERT INTO log VALUES ('2026-10-01 10:00:00.123456+00', 3), ('2026-10-01 10:00:00.123457+00', 4)",
    )
    .await;
    broken(&source, &first, "rows have changed").await;
    let second = pin(&source, Slice::All).await.unwrap();
    assert_eq!(read(&source, &second).await.unwrap().len(), 4, "each row once");
}

#[tokio::test]
async fn a_row_that_is_committed_late_below_the_mark_breaks_the_pin_and_is_read_by_the_next() {
    let f = fixture(EVENTS).await;
    let source = f.up_to_mark();
    f.sql("INSERT INTO events VALUES (11, '2026-10-01 02:00:00+00', 'prompt')").await;
    let first = pin(&source, the_day()).await.unwrap();
    f.sql("INSERT INTO events VALUES (10, '2026-10-01 01:00:00+00', 'late')").await;
    broken(&source, &first, "rows have changed").await;
    assert_eq!(numbers(&source, &pin(&source, the_day()).await.unwrap()).await, [2, 3, 10, 11]);
}

#[tokio::test]
async fn marks_may_be_numbers_days_instants_texts_and_uuids() {
    let f = fixture(
        "CREATE DOMAIN positive AS integer CHECK (VALUE > 0);
         CREATE TABLE marks (i smallint NOT NULL, p positive NOT NULL, d numeric(20,3) NOT NULL, day date NOT NULL,
                             at timestamp NOT NULL, t text NOT NULL, u uuid NOT NULL)",
    )
    .await;
    let columns = ["i", "p", "d", "day", "at", "t", "u"];
    let mut empty = Vec::new();
    for column in columns {
        empty.push(pin(&source(&f, "marks", column), Slice::All).await.unwrap());
        assert_eq!(empty.last().unwrap().version.as_str(), "mark");
    }
    let row = |n: u32| {
        format!(
            "INSERT INTO marks VALUES ({n}, {n}, {n}.001, 'epoch'::date + {n}, 'epoch'::timestamp + {n} * interval '1 us',
             'it''s {n}', '00000000-0000-0000-0000-00000000000{n}')"
        )
    };
    f.sql(&format!("{}; {}", row(1), row(2))).await;
    let texts = ["2", "2", "2.001", "1970-01-03", "1970-01-01 00:00:00.000002", "it's 2"];
    let texts = texts.into_iter().chain(["00000000-0000-0000-0000-000000000002"]);
    let mut two = Vec::new();
    for (column, text) in columns.into_iter().zip(texts) {
        let pin = pin(&source(&f, "marks", column), Slice::All).await.unwrap();
        assert_eq!(pin.version.as_str(), format!("mark:{text}"));
        two.push(pin);
    }
    f.sql(&row(3)).await;
    for ((column, empty), two) in columns.into_iter().zip(empty).zip(two) {
        assert!(read(&source(&f, "marks", column), &empty).await.unwrap().is_empty(), "{column}");
        assert_eq!(read(&source(&f, "marks", column), &two).await.unwrap().len(), 2, "{column}");
    }
}

#[tokio::test]
async fn what_does_not_grow_is_refused() {
    let f = fixture(EVENTS).await;
    f.sql("ALTER TABLE events ADD COLUMN f float8, ADD COLUMN ok boolean, ADD COLUMN seq bigint").await;
    for (column, word) in
        [("f", "double precision"), ("ok", "boolean"), ("added", "append_only"), ("no", "no column")]
    {
        refused(source(&f, "events", column).current().await, ErrorKind::Invalid, &[word]);
    }
    // Rows without a mark would be lost.
    let source = PostgresSource::high_water_mark(f.db.clone(), events(), "seq").unwrap();
    refused(pin(&source, the_day()).await, ErrorKind::Corrupt, &["no mark", "seq"]);
    f.sql("UPDATE events SET seq = n").await;
    let all = pin(&source, the_day()).await.unwrap();
    assert_eq!(numbers(&source, &all).await, [2, 3]);
}
