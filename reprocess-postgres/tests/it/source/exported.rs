//! Pins in an exported snapshot.

use std::time::Duration;

use reprocess_core::ErrorKind;
use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::reader::{Availability, SnapshotReader};
use reprocess_postgres::{ExportedSnapshot, PostgresConfig, PostgresSource};
use sqlx::Executor;

use super::support::*;
use crate::server::TestDatabase;

const READABLE: Availability = Availability::Readable { until: None };

fn source(f: &Fixture, snapshot: &ExportedSnapshot) -> PostgresSource {
    PostgresSource::in_snapshot(f.db.clone(), events(), snapshot).unwrap().with_columns(columns())
}

#[tokio::test]
async fn all_reads_are_of_the_moment_until_the_snapshot_ends() {
    let f = fixture(EVENTS).await;
    let snapshot = ExportedSnapshot::export(&f.db).await.unwrap();
    let source = source(&f, &snapshot);
    f.sql(
        "UPDATE events SET name = 'other'; DELETE FROM events WHERE n = 3;
           INSERT INTO events VALUES (5, '2026-10-01 12:00:00+00', 'new')",
    )
    .await;
    // The pin too is of that moment, and not of the one in which it is taken.
    // Behind a pooler the readers come to one connection and the snapshot to the other.
    let pinned = pin(&source, the_day()).await.unwrap();
    source.hold(std::slice::from_ref(&pinned)).await.unwrap();
    let rows = ["2/2026-10-01T00:00:00Z/first", "3/2026-10-01T23:59:59.999999Z/last"];
    assert_eq!(read(&source, &pinned).await.unwrap(), rows);
    f.sql("DELETE FROM events").await;
    f.other().await.execute("VACUUM events").await.unwrap();
    assert_eq!(read(&source, &pinned).await.unwrap(), rows);
    assert_eq!(source.availability(&pinned.version).await.unwrap(), READABLE);
    assert_eq!(
        source.availability(&"snapshot:00000001-00000001-1".into()).await.unwrap(),
        Availability::Expired
    );
    snapshot.end().await.unwrap();
    assert_eq!(source.availability(&pinned.version).await.unwrap(), Availability::Expired);
    broken(&source, &pinned, "snapshot has ended").await;
    refused(source.current().await, ErrorKind::PinBroken, &["snapshot has ended"]);
    let versions = source.slice_versions(&pinned.version, &[Slice::All]).await;
    refused(versions, ErrorKind::PinBroken, &["snapshot has ended"]);
}

#[tokio::test]
async fn a_snapshot_ends_as_it_is_dropped_or_its_connection_ends() {
    let f = fixture(EVENTS).await;
    let open = "SELECT pid::text FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in %'";
    let snapshot = ExportedSnapshot::export(&f.db).await.unwrap();
    let dropped = source(&f, &snapshot);
    drop(snapshot);
    while !f.column(open).await.is_empty() {
        tokio::task::yield_now().await;
    }
    let version = "snapshot:".into();
    assert_eq!(dropped.availability(&version).await.unwrap(), Availability::Expired);
    let snapshot = ExportedSnapshot::export(&f.db).await.unwrap();
    let killed = source(&f, &snapshot);
    let pinned = pin(&killed, the_day()).await.unwrap();
    let ends = "SELECT pg_terminate_backend(pid, 10000)::text FROM pg_stat_activity
                WHERE datname = current_database() AND state LIKE 'idle in %'";
    assert_eq!(f.column(ends).await, ["true"]);
    assert_eq!(killed.availability(&pinned.version).await.unwrap(), Availability::Expired);
    broken(&killed, &pinned, "snapshot has ended").await;
    refused(snapshot.end().await, ErrorKind::Unavailable, &[]);
}

#[tokio::test]
async fn a_snapshot_outlives_the_time_that_a_silent_client_has() {
    let f = fixture(EVENTS).await;
    let db = f.database.connect_as(PostgresConfig::new().with_idle_timeout_ms(300)).await;
    let snapshot = ExportedSnapshot::export(&db).await.unwrap();
    let source = PostgresSource::in_snapshot(db, events(), &snapshot).unwrap();
    let pinned = pin(&source, the_day()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert_eq!(source.availability(&pinned.version).await.unwrap(), READABLE);
    snapshot.end().await.unwrap();
}

#[tokio::test]
async fn a_partition_that_is_swapped_meanwhile_breaks_the_pin() {
    let f = fixture(
        "CREATE TABLE events (n bigint NOT NULL, at timestamptz NOT NULL, name text) PARTITION BY RANGE (at);
         CREATE TABLE october PARTITION OF events FOR VALUES FROM ('2026-10-01+00') TO ('2026-11-01+00');
         INSERT INTO events VALUES (1, '2026-10-01 12:00:00+00', 'old')",
    )
    .await;
    let snapshot = ExportedSnapshot::export(&f.db).await.unwrap();
    let source = source(&f, &snapshot);
    let pinned = pin(&source, the_day()).await.unwrap();
    assert_eq!(numbers(&source, &pinned).await, [1]);
    f.sql(
        "BEGIN; ALTER TABLE events DETACH PARTITION october;
           CREATE TABLE fresh PARTITION OF events FOR VALUES FROM ('2026-10-01+00') TO ('2026-11-01+00');
           INSERT INTO fresh VALUES (1, '2026-10-01 12:00:00+00', 'new'); COMMIT",
    )
    .await;
    broken(&source, &pinned, "rows have changed").await;
}

#[tokio::test]
async fn a_snapshot_is_of_one_database() {
    let f = fixture(EVENTS).await;
    let other = TestDatabase::fresh().await;
    let snapshot = ExportedSnapshot::export(&other.connect().await).await.unwrap();
    let source = PostgresSource::in_snapshot(f.db.clone(), events(), &snapshot);
    refused(source, ErrorKind::Invalid, &["another database", f.db.name()]);
    snapshot.end().await.unwrap();
}
