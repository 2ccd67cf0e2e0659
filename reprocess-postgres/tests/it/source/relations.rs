//! What is no plain table.

use arrow_schema::{DataType, Field, Schema};
use reprocess_core::ErrorKind;
use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::Partitioning;
use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_postgres::{ExportedSnapshot, PostgresSource};

use super::support::*;

/// The slice of the day, held while the rows below change; then again in a snapshot.
async fn check(f: &Fixture, spec: TableSpec, change: &str) {
    let all = |source: PostgresSource| source.with_columns(columns());
    let source = all(PostgresSource::mutable(f.db.clone(), spec.clone()).unwrap());
    let snapshot = ExportedSnapshot::export(&f.db).await.unwrap();
    let moment = all(PostgresSource::in_snapshot(f.db.clone(), spec.clone(), &snapshot).unwrap());
    let held = pin(&source, the_day()).await.unwrap();
    let seen = pin(&moment, the_day()).await.unwrap();
    assert_eq!(held.content, seen.content, "{}", spec.id);
    source.hold(std::slice::from_ref(&held)).await.unwrap();
    f.sql(change).await;
    assert_eq!(numbers(&source, &held).await, [2, 3], "{}", spec.id);
    assert_eq!(numbers(&moment, &seen).await, [2, 3], "{}", spec.id);
    source.release(std::slice::from_ref(&held)).await.unwrap();
    broken(&source, &held, "rows have changed").await;
    snapshot.end().await.unwrap();
}

fn named(id: &str) -> TableSpec {
    TableSpec::new(id, events().partitioning)
}

#[tokio::test]
async fn views_are_sources() {
    let f = fixture(EVENTS).await;
    f.sql("CREATE SCHEMA \"Fin ance\"; CREATE VIEW \"Fin ance\".\"Seen\" AS SELECT n, name, at, added FROM events")
        .await;
    check(&f, named("Fin ance.Seen"), "UPDATE events SET name = 'other'").await;
    let source = PostgresSource::append_only(f.db.clone(), named("Seen"), "added").unwrap();
    let source = source.with_schema("Fin ance").unwrap();
    refused(source.current().await, ErrorKind::Invalid, &["Seen", "only tables of this server"]);
}

#[tokio::test]
async fn partitioned_tables_are_sources() {
    let f = fixture(
        "CREATE TABLE events (n bigint, at timestamptz NOT NULL, name text) PARTITION BY RANGE (at);
         CREATE TABLE before PARTITION OF events FOR VALUES FROM (MINVALUE) TO ('2026-10-01 12:00:00+00');
         CREATE TABLE after PARTITION OF events FOR VALUES FROM ('2026-10-01 12:00:00+00') TO (MAXVALUE);
         INSERT INTO events VALUES (1, '2026-09-30 23:59:59+00'), (2, '2026-10-01 00:00:00+00'),
         (3, '2026-10-01 23:59:59+00'), (4, '2026-10-02 00:00:00+00')",
    )
    .await;
    check(&f, events(), "DELETE FROM events WHERE n = 3").await;
}

#[tokio::test]
async fn foreign_tables_are_sources() {
    let f = fixture(EVENTS).await;
    let wrapper = "SELECT name::text FROM pg_available_extensions WHERE name = 'postgres_fdw'";
    if f.column(wrapper).await.is_empty() {
        eprintln!("the server comes without postgres_fdw");
        return;
    }
    let port = f.column("SELECT current_setting('port')").await.remove(0);
    let socket = f.column("SELECT current_setting('unix_socket_directories')").await.remove(0);
    let name = f.database.name();
    let (user, password) = f.database.owner();
    f.sql(&format!(
        "CREATE EXTENSION postgres_fdw;
         CREATE SERVER loop FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '{socket}', port '{port}', dbname '{name}');
         CREATE USER MAPPING FOR CURRENT_USER SERVER loop OPTIONS (user '{user}', password '{password}');
         CREATE FOREIGN TABLE far (n bigint, at timestamptz, name text, added xid8) SERVER loop OPTIONS (table_name 'events')"
    ))
    .await;
    // The other server has a snapshot of its own for each of our transactions: what has changed there is noticed.
    let source = PostgresSource::mutable(f.db.clone(), named("far")).unwrap().with_columns(columns());
    let held = pin(&source, the_day()).await.unwrap();
    source.hold(std::slice::from_ref(&held)).await.unwrap();
    f.sql("UPDATE events SET name = 'other'").await;
    assert_eq!(numbers(&source, &held).await, [2, 3]);
    source.release(std::slice::from_ref(&held)).await.unwrap();
    broken(&source, &held, "rows have changed").await;
    let source = PostgresSource::append_only(f.db.clone(), named("far"), "added").unwrap();
    refused(source.current().await, ErrorKind::Invalid, &["far", "only tables of this server"]);
}

#[tokio::test]
async fn columns_can_be_left_out_and_typed_otherwise() {
    let f = fixture(
        "CREATE TABLE counts (day date NOT NULL, n bigint NOT NULL, noise text, cost money,
                              twice bigint GENERATED ALWAYS AS (n * 2) STORED);
         INSERT INTO counts VALUES ('2026-10-01', 7, 'a', 1)",
    )
    .await;
    let by_day = Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
    let source = || PostgresSource::mutable(f.db.clone(), TableSpec::new("counts", by_day.clone())).unwrap();
    let field = |name: &str, data_type| Field::new(name, data_type, true);
    let read_as = |fields: Vec<Field>| source().with_columns(Schema::new(fields).into());
    let fields =
        vec![field("day", DataType::Date32), field("n", DataType::UInt32), field("twice", DataType::Int64)];
    let typed = read_as(fields);
    let pinned = pin(&typed, Slice::All).await.unwrap();
    f.sql("UPDATE counts SET noise = 'b', cost = 2").await;
    assert_eq!(read(&typed, &pinned).await.unwrap(), ["2026-10-01/7/14"]);
    refused(pin(&source(), Slice::All).await, ErrorKind::Invalid, &["cost", "money", "table counts"]);
    for (fields, word) in [
        (vec![field("day", DataType::Date32), field("none", DataType::Int64)], "`none`"),
        (vec![field("day", DataType::Date32), field("n", DataType::Utf8)], "bigint"),
        (vec![field("n", DataType::Int64)], "`day`"),
    ] {
        refused(pin(&read_as(fields), Slice::All).await, ErrorKind::Invalid, &[word]);
    }
    let missing = PostgresSource::mutable(f.db.clone(), named("nowhere")).unwrap();
    refused(missing.current().await, ErrorKind::NotFound, &["nowhere"]);
    assert!(PostgresSource::mutable(f.db.clone(), named("a.b.c")).is_err());
}
