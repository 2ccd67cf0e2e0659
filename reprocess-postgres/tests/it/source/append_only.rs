//! Pins by the transactions that had ended.

use futures::StreamExt;
use reprocess_core::ErrorKind;
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::Partitioning;
use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::reader::{Availability, SnapshotReader};
use reprocess_postgres::PostgresSource;
use sqlx::Executor;

use super::support::*;

#[tokio::test]
async fn condition_13_a_row_that_is_committed_late_with_an_earlier_timestamp_is_of_the_next_version() {
    let f = fixture(EVENTS).await;
    let source = f.append_only();
    let mut late = f.other().await;
    late.execute("BEGIN; INSERT INTO events VALUES (10, '2026-10-01 01:00:00+00', 'late')").await.unwrap();
    f.sql("INSERT INTO events VALUES (11, '2026-10-01 02:00:00+00', 'prompt')").await;
    let first = pin(&source, the_day()).await.unwrap();
    assert_eq!(numbers(&source, &first).await, [2, 3, 11]);
    late.execute("COMMIT").await.unwrap();
    source.hold(std::slice::from_ref(&first)).await.unwrap();
    assert_eq!(numbers(&source, &first).await, [2, 3, 11], "the first pin reads what it read");
    let second = pin(&source, the_day()).await.unwrap();
    assert_ne!(first.content, second.content);
    assert_eq!(numbers(&source, &second).await, [2, 3, 10, 11], "the late row once");
    assert_eq!(numbers(&source, &first).await, [2, 3, 11]);
}

#[tokio::test]
async fn condition_14_rows_of_a_long_transaction_below_the_cursor_are_not_missed() {
    let f = fixture(EVENTS).await;
    let source = f.append_only();
    // The long one has the smallest number of all and outlives ten others, of which one gives up.
    let mut long = f.other().await;
    long.execute("BEGIN; INSERT INTO events VALUES (100, '2026-10-01 05:00:00+00', 'long')").await.unwrap();
    let mut pins = Vec::new();
    for n in 101..=110 {
        let end = if n == 105 { "ROLLBACK" } else { "COMMIT" };
        f.sql(&format!("BEGIN; INSERT INTO events VALUES ({n}, '2026-10-01 06:00:00+00', 'short'); {end}"))
            .await;
        pins.push((n, pin(&source, the_day()).await.unwrap()));
    }
    // Rows of a part of a transaction that is given up are none of it.
    long.execute(
        "SAVEPOINT s; INSERT INTO events VALUES (200, '2026-10-01 05:00:00+00', 'undone'); ROLLBACK TO s;
         SAVEPOINT t; INSERT INTO events VALUES (201, '2026-10-01 05:00:00+00', 'nested'); RELEASE t; COMMIT",
    )
    .await
    .unwrap();
    let shorts = |last: i64| (101..=last).filter(|n| *n != 105);
    for (n, pin) in &pins {
        assert_eq!(numbers(&source, pin).await, [2, 3].into_iter().chain(shorts(*n)).collect::<Vec<_>>());
    }
    let now = pin(&source, the_day()).await.unwrap();
    let all = [2, 3, 100].into_iter().chain(shorts(110)).chain([201]);
    assert_eq!(numbers(&source, &now).await, all.collect::<Vec<_>>());
}

#[tokio::test]
async fn condition_23_what_changes_while_a_pin_is_read_is_of_the_next_one() {
    let f = fixture(EVENTS).await;
    let source = f.append_only();
    let version = source.current().await.unwrap();
    // Between the version and the look at its slices, and again while the rows are read.
    f.sql("INSERT INTO events VALUES (10, '2026-10-01 12:00:00+00', 'between')").await;
    let content = source.slice_versions(&version, &[the_day()]).await.unwrap().remove(0);
    let first =
        reprocess_core::domain::slice::Pin { table: "events".into(), version, slice: the_day(), content };
    let (_, mut stream) = source.read(&first).await.unwrap();
    let mut rows = stream.next().await.unwrap().unwrap().num_rows();
    f.sql("INSERT INTO events VALUES (11, '2026-10-01 12:00:00+00', 'during')").await;
    while let Some(batch) = stream.next().await {
        rows += batch.unwrap().num_rows();
    }
    assert_eq!(rows, 2);
    assert_eq!(numbers(&source, &first).await, [2, 3]);
    let next = pin(&source, the_day()).await.unwrap();
    assert_eq!(numbers(&source, &next).await, [2, 3, 10, 11]);
}

#[tokio::test]
async fn a_row_that_is_changed_or_deleted_breaks_the_pins_that_read_it() {
    let f = fixture(EVENTS).await;
    let source = f.append_only();
    let the_first = pin(&source, the_day()).await.unwrap();
    let the_next = pin(&source, days("2026-10-02", "2026-10-02")).await.unwrap();
    let version = source.current().await.unwrap();
    f.sql("UPDATE events SET name = 'other' WHERE n = 2").await;
    broken(&source, &the_first, "rows have changed").await;
    assert_eq!(numbers(&source, &the_next).await, [4], "a change elsewhere leaves a pin whole");
    f.sql("UPDATE events SET name = 'first' WHERE n = 2").await;
    assert_eq!(numbers(&source, &the_first).await, [2, 3], "the same rows again");
    f.sql("DELETE FROM events WHERE n = 4").await;
    broken(&source, &the_next, "rows have changed").await;
    assert_eq!(source.availability(&version).await.unwrap(), Availability::Readable { until: None });
    for unknown in ["live", "", "1:2", "4000000000:4000000000:", "5:3:"] {
        assert_eq!(source.availability(&unknown.into()).await.unwrap(), Availability::Expired, "{unknown}");
    }
    let unknown = source.slice_versions(&"live".into(), &[Slice::All]).await;
    refused(unknown, ErrorKind::PinBroken, &["no version"]);
}

#[tokio::test]
async fn condition_16_a_number_of_32_bits_is_no_mark_of_a_transaction() {
    let f = fixture(EVENTS).await;
    f.sql(
        "ALTER TABLE events ADD COLUMN old xid NOT NULL DEFAULT '3', ADD COLUMN number bigint NOT NULL DEFAULT 1,
                            ADD COLUMN may_be_null xid8 DEFAULT pg_current_xact_id(),
                            ADD COLUMN by_hand xid8 NOT NULL DEFAULT '3'",
    )
    .await;
    for (column, words) in [
        ("xmin", ["32 bits", "xid8 NOT NULL DEFAULT"]),
        ("old", ["32 bits", "column old"]),
        ("number", ["not of the type xid8", "events"]),
        ("nowhere", ["no such column", "nowhere"]),
        ("may_be_null", ["may be NULL", "never be read"]),
        ("by_hand", ["default is not", "pg_current_xact_id()"]),
    ] {
        let source = PostgresSource::append_only(f.db.clone(), events(), column).unwrap();
        refused(source.current().await, ErrorKind::Invalid, &words);
    }
}

#[tokio::test]
async fn numbers_that_the_server_has_not_given_are_refused() {
    let f = fixture(EVENTS).await;
    let source = f.append_only();
    // As from the dump of a server that counted further.
    f.sql("INSERT INTO events VALUES (10, '2026-10-01 12:00:00+00', 'restored', '9000000000')").await;
    let error =
        refused(pin(&source, the_day()).await, ErrorKind::Corrupt, &["added", "dump of another server"]);
    assert!(error.to_string().contains("at=2026-10-01"), "{error}");
    // Its day alone.
    let next = pin(&source, days("2026-10-02", "2026-10-02")).await.unwrap();
    assert_eq!(numbers(&source, &next).await, [4]);
    f.sql("UPDATE events SET added = '3' WHERE n = 10").await;
    assert_eq!(numbers(&source, &pin(&source, the_day()).await.unwrap()).await, [2, 3, 10]);
}

#[tokio::test]
async fn every_partition_has_to_name_the_transactions() {
    let f = fixture(
        "CREATE TABLE log (n bigint NOT NULL, at date NOT NULL, added xid8 NOT NULL DEFAULT pg_current_xact_id())
             PARTITION BY RANGE (at);
         CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM ('2026-10-01') TO ('2026-10-02');
         INSERT INTO log VALUES (1, '2026-10-01')",
    )
    .await;
    let source = PostgresSource::append_only(
        f.db.clone(),
        TableSpec::new("log", Partitioning::unpartitioned()),
        "added",
    )
    .unwrap();
    let before = pin(&source, Slice::All).await.unwrap();
    f.sql(
        "CREATE TABLE log_2 PARTITION OF log FOR VALUES FROM ('2026-10-02') TO ('2026-10-03');
           INSERT INTO log VALUES (2, '2026-10-02')",
    )
    .await;
    assert_eq!(numbers(&source, &before).await, [1]);
    assert_eq!(numbers(&source, &pin(&source, Slice::All).await.unwrap()).await, [1, 2]);
    // Rows that are put into this one directly would say nothing.
    f.sql(
        "CREATE TABLE log_3 (n bigint NOT NULL, at date NOT NULL, added xid8 NOT NULL);
           ALTER TABLE log ATTACH PARTITION log_3 FOR VALUES FROM ('2026-10-03') TO ('2026-10-04')",
    )
    .await;
    refused(source.current().await, ErrorKind::Invalid, &["log_3", "default"]);
}
