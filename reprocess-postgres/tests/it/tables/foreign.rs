//! Writes by connections that know nothing of reprocess.

use reprocess_core::ErrorKind;
use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_core::ports::writer::{CommitOutcome, Intent, PartitionWriter};
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
    assert_eq!(f.version(day("2026-10-02")).await.as_str(), "1.1");
    assert_eq!(f.version(day("2026-10-02").and("country", "l'été")).await.as_str(), "1.1");
    assert_eq!(f.version(day("2026-10-02").and("country", "FR")).await.as_str(), "1");
    // An update moves where the row was and where it is.
    f.sql("UPDATE sales SET day = '2026-10-03' WHERE id = 3").await;
    assert_eq!(f.version(day("2026-10-02")).await.as_str(), "1.2");
    assert_eq!(f.version(day("2026-10-03")).await.as_str(), "0.1");
    f.sql("DELETE FROM sales WHERE id = 1").await;
    assert_eq!(f.version(day("2026-10-01")).await.as_str(), "1.1");
    // Our own commit moves nothing else.
    f.replace("r2", &days(&["2026-10-05"]), &[]).await;
    assert_eq!(f.version(day("2026-10-01")).await.as_str(), "1.1");
    assert_eq!(f.version(day("2026-10-02").and("country", "FR")).await.as_str(), "1");
    assert_eq!(
        f.version(PartitionKey::of("day", reprocess_core::domain::value::Value::Null)).await.as_str(),
        "0"
    );
    assert_eq!(f.version(PartitionKey::whole()).await.as_str(), "2.4");
    // Everything at once, without a condition.
    f.sql("DELETE FROM sales").await;
    assert_eq!(f.version(day("2026-10-02")).await.as_str(), "1.3");
    f.sql("TRUNCATE sales").await;
    assert_eq!(f.version(day("2026-10-02")).await.as_str(), "1.4");
    assert_eq!(f.version(day("1999-01-01")).await.as_str(), "0.1");
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
    let down = table_of(&f.db, "down", by_day_and_country()).await;
    down.create(&columns()).await.unwrap();
    f.sql(
        "CREATE FUNCTION copy() RETURNS trigger LANGUAGE plpgsql AS
         'BEGIN INSERT INTO public.down VALUES (new.*); RETURN NULL; END';
         CREATE TRIGGER copy AFTER INSERT ON sales FOR EACH ROW EXECUTE FUNCTION copy()",
    )
    .await;
    f.replace("r1", &days(&["2026-10-01"]), &[("2026-10-01", "FR", 1, 1, 0)]).await;
    let head = down.head(&days(&["2026-10-01", "2026-10-02"])).await.unwrap();
    assert_eq!(head.partitions.values().map(|v| v.as_str()).collect::<Vec<_>>(), ["0.1", "0"]);
    assert_eq!(f.version(day("2026-10-01")).await.as_str(), "1");
}

#[tokio::test]
async fn a_value_that_no_partition_has_moves_everything() {
    let f = fixture().await;
    f.sql("INSERT INTO sales VALUES ('infinity', 'FR', 3, 3, 0)").await;
    assert_eq!(f.version(day("1999-01-01")).await.as_str(), "0.1");
    let error =
        refused(read(&f.table, &pin(&f.table, Slice::All).await.unwrap()).await, &["day", "infinity"]);
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn foreign_instants_move_the_periods_of_the_zone_they_lie_in() {
    let f = fixture().await;
    let kolkata = Partitioning::unpartitioned().with_time("at", Grain::Day, chrono_tz::Asia::Kolkata);
    let table = table_of(&f.db, "events", kolkata).await;
    let at = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    table.create(&Arc::new(Schema::new(vec![Field::new("at", at, true)]))).await.unwrap();
    let version = async |text: &str| {
        let key = PartitionKey::of("at", date(text));
        table.head(&scope(key.clone())).await.unwrap().partitions[&key].as_str().to_owned()
    };
    // 18:29:59 UTC is still the first of October in Kolkata, 18:30 is the second.
    f.sql("INSERT INTO events VALUES ('2026-10-01 18:29:59.5+00')").await;
    assert_eq!((version("2026-10-01").await.as_str(), version("2026-10-02").await.as_str()), ("0.1", "0"));
    f.sql("INSERT INTO events VALUES ('2026-10-01 18:30:00+00')").await;
    assert_eq!((version("2026-10-01").await.as_str(), version("2026-10-02").await.as_str()), ("0.1", "0.1"));
    f.sql("INSERT INTO events VALUES ('1969-12-31 23:59:59+00')").await;
    assert_eq!((version("1970-01-01").await.as_str(), version("1969-12-31").await.as_str()), ("0.1", "0"));
    f.sql("INSERT INTO events VALUES (NULL)").await;
    assert_eq!(version("1970-01-01").await, "0.1");
    f.sql("INSERT INTO events VALUES ('infinity')").await;
    assert_eq!(version("1970-01-01").await, "0.2");
}
