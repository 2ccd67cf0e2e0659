//! Writes by connections that know nothing of reprocess.

use reprocess_core::ErrorKind;
use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_core::ports::writer::{CommitOutcome, Intent, PartitionWriter};
use reprocess_sqlite::SqliteTable;
use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, TimeUnit};

use super::support::*;

#[tokio::test]
async fn foreign_rows_move_the_versions_of_their_partitions_only() {
    let f = fixture().await;
    f.replace(
        "r1",
        &days(&["2026-10-01", "2026-10-02"]),
        &[("2026-10-01", "FR", 1, 1, 0), ("2026-10-02", "FR", 2, 2, 0)],
    )
    .await;
    let first = f.version(day("2026-10-01")).await;
    f.sql("INSERT INTO sales VALUES ('2026-10-02', 'l''été', 3, 3, 0)").await;
    assert_eq!(f.version(day("2026-10-01")).await, first);
    assert_eq!(f.version(day("2026-10-02")).await.as_str(), "2");
    assert_eq!(f.version(day("2026-10-02").and("country", "l'été")).await.as_str(), "2");
    assert_eq!(f.version(day("2026-10-02").and("country", "FR")).await.as_str(), "1");
    // An update moves where the row was and where it is.
    f.sql("UPDATE sales SET day = '2026-10-03' WHERE id = 3").await;
    assert_eq!(f.version(day("2026-10-02")).await.as_str(), "3");
    assert_eq!(f.version(day("2026-10-03")).await.as_str(), "3");
    f.sql("DELETE FROM sales WHERE id = 1").await;
    assert_eq!(f.version(day("2026-10-01")).await.as_str(), "4");
    // Our own commit folds the log and moves nothing else.
    f.replace("r2", &days(&["2026-10-05"]), &[]).await;
    assert_eq!(f.version(day("2026-10-01")).await.as_str(), "4");
    assert_eq!(f.version(day("2026-10-02").and("country", "FR")).await.as_str(), "1");
    assert_eq!(
        f.version(PartitionKey::of("day", reprocess_core::domain::value::Value::Null)).await.as_str(),
        "0"
    );
    assert_eq!(f.version(PartitionKey::whole()).await.as_str(), "5");
    // Everything at once, without a condition.
    f.sql("DELETE FROM sales").await;
    assert_ne!(f.version(day("2026-10-02")).await.as_str(), "3");
}

#[tokio::test]
async fn a_commit_conflicts_with_foreign_rows_and_a_pin_breaks() {
    let f = fixture().await;
    let one = days(&["2026-10-01"]);
    f.replace("r1", &one, &[("2026-10-01", "FR", 1, 1, 0)]).await;
    let base = f.table.head(&one).await.unwrap();
    let slice = |text| Slice::Partitions(BTreeSet::from([day(text)]));
    let (touched, other) = (
        pin(&f.table, slice("2026-10-01")).await.unwrap(),
        pin(&f.table, slice("2026-10-02")).await.unwrap(),
    );
    let staged = f.stage("r2", &one, Intent::Replace, &[]).await.unwrap();
    f.sql("UPDATE sales SET amount = 7").await;
    let outcome = commit(&f.table, &[apply(&staged)], &base, false).await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Conflicted { .. }), "{outcome:?}");
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/7/0"]);
    assert_eq!(refused(read(&f.table, &touched).await, &["changed"]).kind(), ErrorKind::PinBroken);
    assert_eq!(refused(f.table.hold(&[touched]).await, &["changed"]).kind(), ErrorKind::PinBroken);
    assert!(read(&f.table, &other).await.unwrap().is_empty());
    f.table.hold(&[other]).await.unwrap();
}

#[tokio::test]
async fn what_a_trigger_of_the_user_writes_to_another_table_is_foreign_there() {
    let f = fixture().await;
    let down = SqliteTable::new(f.db.clone(), TableSpec::new("down", by_day_and_country()));
    down.create(&columns()).await.unwrap();
    f.sql(
        "CREATE TRIGGER copy AFTER INSERT ON sales BEGIN
           INSERT INTO down VALUES (new.day, new.country, new.id, new.amount, new.rev); END",
    )
    .await;
    f.replace("r1", &days(&["2026-10-01"]), &[("2026-10-01", "FR", 1, 1, 0)]).await;
    let head = down.head(&days(&["2026-10-01", "2026-10-02"])).await.unwrap();
    assert_eq!(head.partitions.values().map(|v| v.as_str()).collect::<Vec<_>>(), ["1", "0"]);
    assert_eq!(f.version(day("2026-10-01")).await.as_str(), "1");
}

#[tokio::test]
async fn a_value_that_no_partition_has_moves_everything() {
    let f = fixture().await;
    f.sql("INSERT INTO sales VALUES (x'00', 'FR', 3, 3, 0)").await;
    assert_eq!(f.version(day("1999-01-01")).await.as_str(), "1");
    let error = refused(read(&f.table, &pin(&f.table, Slice::All).await.unwrap()).await, &["day", "1 bytes"]);
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn foreign_instants_move_the_periods_of_the_zone_they_lie_in() {
    let f = fixture().await;
    let kolkata = Partitioning::unpartitioned().with_time("at", Grain::Day, chrono_tz::Asia::Kolkata);
    let table = SqliteTable::new(f.db.clone(), TableSpec::new("events", kolkata));
    let at = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    table.create(&Arc::new(Schema::new(vec![Field::new("at", at, true)]))).await.unwrap();
    let version = async |text: &str| {
        let key = PartitionKey::of("at", date(text));
        table.head(&scope(key.clone())).await.unwrap().partitions[&key].as_str().to_owned()
    };
    // 18:29:59 UTC is still the first of October in Kolkata, 18:30 is the second.
    let micros = |text: &str| text.parse::<chrono::DateTime<chrono::Utc>>().unwrap().timestamp_micros();
    f.sql(&format!("INSERT INTO events VALUES ({})", micros("2026-10-01T18:29:59.5Z"))).await;
    assert_eq!((version("2026-10-01").await.as_str(), version("2026-10-02").await.as_str()), ("1", "0"));
    f.sql(&format!("INSERT INTO events VALUES ({})", micros("2026-10-01T18:30:00Z"))).await;
    assert_eq!((version("2026-10-01").await.as_str(), version("2026-10-02").await.as_str()), ("1", "2"));
    f.sql(&format!("INSERT INTO events VALUES ({})", micros("1969-12-31T23:59:59Z"))).await;
    assert_eq!(version("1970-01-01").await, "3");
    f.sql("INSERT INTO events VALUES (NULL)").await;
    assert_eq!(version("1970-01-01").await, "3");
    f.sql("INSERT INTO events VALUES ('soon')").await;
    assert_eq!(version("1970-01-01").await, "5");
}
