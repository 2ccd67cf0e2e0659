//! Pins of what changes in place, with and without a copy.

use reprocess_core::ErrorKind;
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::Partitioning;
use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::reader::{Availability, SnapshotReader};
use reprocess_postgres::PostgresSource;

use super::support::*;

const COPIES: &str = "SELECT concat_ws(' ', relname, relpersistence) FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = 'reprocess'
    WHERE relkind = 'r' AND relname ~ '^source_held_' ORDER BY 1";

#[tokio::test]
async fn a_held_slice_stays_while_its_table_changes() {
    let f = fixture(EVENTS).await;
    let source = f.mutable();
    let held = pin(&source, the_day()).await.unwrap();
    let other = pin(&source, days("2026-10-02", "2026-10-02")).await.unwrap();
    let before = read(&source, &held).await.unwrap();
    source.hold(std::slice::from_ref(&held)).await.unwrap();
    source.hold(std::slice::from_ref(&held)).await.unwrap();
    assert_eq!(f.column(COPIES).await, ["source_held_1 p"], "one copy, and one that a crash does not empty");
    f.sql("UPDATE events SET name = 'other'").await;
    assert_eq!(read(&source, &held).await.unwrap(), before);
    broken(&source, &other, "rows have changed").await;
    assert_eq!(f.column(COPIES).await, ["source_held_1 p"], "what could not be held leaves nothing behind");
    f.sql("DROP TABLE events").await;
    assert_eq!(read(&source, &held).await.unwrap(), before, "not even the table is needed");
    source.release(std::slice::from_ref(&held)).await.unwrap();
    assert!(f.column(COPIES).await.is_empty());
    source.release(std::slice::from_ref(&held)).await.unwrap();
    refused(read(&source, &held).await, ErrorKind::NotFound, &["events"]);
}

#[tokio::test]
async fn without_a_copy_a_change_breaks_the_pin() {
    let f = fixture(EVENTS).await;
    let source = f.mutable();
    let pinned = pin(&source, the_day()).await.unwrap();
    source.release(std::slice::from_ref(&pinned)).await.unwrap();
    assert!(f.column("SELECT 'there' WHERE to_regnamespace('reprocess') IS NOT NULL").await.is_empty());
    f.sql("INSERT INTO events VALUES (5, '2026-10-03 00:00:00+00', 'elsewhere')").await;
    assert_eq!(numbers(&source, &pinned).await, [2, 3]);
    f.sql("INSERT INTO events VALUES (6, '2026-10-01 00:00:01+00', 'here')").await;
    broken(&source, &pinned, "rows have changed").await;
    f.sql("DELETE FROM events WHERE n = 6; ALTER TABLE events ALTER COLUMN n TYPE numeric(20,0)").await;
    let all = PostgresSource::mutable(f.db.clone(), events()).unwrap();
    broken(&all, &pinned, "columns have changed").await;
    assert_eq!(source.availability(&"live".into()).await.unwrap(), Availability::Readable { until: None });
    assert_eq!(source.availability(&"other".into()).await.unwrap(), Availability::Expired);
}

#[tokio::test]
async fn condition_23_what_changes_between_a_pin_and_its_copy_is_noticed() {
    let f = fixture(EVENTS).await;
    let source = f.mutable();
    let pinned = pin(&source, the_day()).await.unwrap();
    // Two rows swap a value: count and values of each column are as before.
    f.sql("UPDATE events SET name = CASE n WHEN 2 THEN 'last' ELSE 'first' END WHERE n IN (2, 3)").await;
    refused(source.hold(&[pinned]).await, ErrorKind::PinBroken, &["rows have changed"]);
    assert!(f.column(COPIES).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn those_who_hold_at_the_same_time_make_one_copy() {
    let f = fixture(EVENTS).await;
    let pinned = pin(&f.mutable(), the_day()).await.unwrap();
    let holding: Vec<_> = (0..8)
        .map(|_| {
            let (source, pinned) = (f.mutable(), pinned.clone());
            tokio::spawn(async move { source.hold(&[pinned]).await })
        })
        .collect();
    for holds in holding {
        holds.await.unwrap().unwrap();
    }
    assert_eq!(f.column(COPIES).await.len(), 1);
    f.sql("TRUNCATE events").await;
    assert_eq!(numbers(&f.mutable(), &pinned).await, [2, 3]);
}

#[tokio::test]
async fn a_copy_is_exact_and_needs_no_type_of_others() {
    let f = fixture(
        "CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE DOMAIN code AS varchar(5) CHECK (VALUE <> '');
         CREATE TABLE things (n bigint, m mood, c code, pad char(5), price numeric(10,2), any_number numeric, f real,
             z float8, j jsonb, s json, span interval, list integer[], id uuid, raw bytea, at timestamptz(3),
             local timestamp, day date, part point, double_n bigint GENERATED ALWAYS AS (n * 2) STORED);
         INSERT INTO things VALUES (1, 'glad', 'a', 'pad', 1.50, 1.500, 0.1, '-0', '{\"a\": 1.0}', '{ \"a\":1}', '1 mon 30 days',
             '{1,NULL}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '\\x00ff', '2026-10-01 12:00:00.123+02',
             '2026-10-01 12:00:00.123456', '0044-03-15 BC', '(1,2)');
         INSERT INTO things (n) VALUES (NULL)",
    )
    .await;
    let spec = TableSpec::new("things", Partitioning::unpartitioned());
    let source = PostgresSource::mutable(f.db.clone(), spec).unwrap();
    let pinned = pin(&source, Slice::All).await.unwrap();
    let (schema, stream) = source.read(&pinned).await.unwrap();
    let before = texts(stream).await.unwrap();
    source.hold(std::slice::from_ref(&pinned)).await.unwrap();
    f.sql("DROP TABLE things; DROP TYPE mood; DROP DOMAIN code").await;
    let (held_schema, stream) = source.read(&pinned).await.unwrap();
    assert_eq!(held_schema, schema);
    assert_eq!(texts(stream).await.unwrap(), before);
    assert!(
        before.iter().any(|row| row.starts_with("1/glad/a/pad/1.50/1.500/") && row.ends_with("/(1,2)/2")),
        "{before:?}"
    );
}
