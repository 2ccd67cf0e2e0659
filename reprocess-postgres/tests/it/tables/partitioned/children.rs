//! What others do to the partitions, and to their rows.

use reprocess_core::ErrorKind;
use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_core::ports::writer::{CommitOutcome, Intent, PartitionWriter};

use super::super::support::*;
use super::{ONE, TWO, partitioned};

const THREE: &str = "2026-10-03";
const FOUR: &str = "2026-10-04";

async fn versions(f: &Fixture) -> Vec<String> {
    let head = f.table.head(&days(&[ONE, TWO, THREE, FOUR])).await.unwrap();
    head.partitions.values().map(|version| version.as_str().to_owned()).collect()
}

#[tokio::test]
async fn statements_that_name_the_table_or_a_partition_are_counted_once() {
    let f = partitioned().await;
    f.sql("INSERT INTO sales VALUES ('2026-10-01', 'FR', 1, 1, 0)").await;
    assert_eq!(versions(&f).await, ["0.1", "0", "0", "0"]);
    f.sql("INSERT INTO sales_1 VALUES ('2026-10-01', 'FR', 2, 2, 0)").await;
    assert_eq!(versions(&f).await, ["0.2", "0", "0", "0"]);
    // A row that moves to another partition.
    f.sql("UPDATE sales SET day = '2026-10-02' WHERE id = 1").await;
    assert_eq!(versions(&f).await, ["0.3", "0.1", "0", "0"]);
    f.sql("UPDATE sales_2 SET amount = 7").await;
    f.sql("DELETE FROM sales_1").await;
    assert_eq!(versions(&f).await, ["0.4", "0.2", "0", "0"]);
    f.sql("TRUNCATE sales_2").await;
    assert_eq!(versions(&f).await, ["0.5", "0.3", "0.1", "0.1"]);
    f.replace("r1", &days(&[ONE]), &[(ONE, "FR", 1, 1, 0)]).await;
    assert_eq!(versions(&f).await, ["1.5", "0.3", "0.1", "0.1"]);
}

#[tokio::test]
async fn a_partition_that_comes_empty_changes_nothing_and_is_watched_from_then_on() {
    let f = partitioned().await;
    let pinned = pin(&f.table, Slice::All).await.unwrap();
    f.sql("CREATE TABLE sales_4 PARTITION OF sales FOR VALUES FROM ('2026-10-04') TO ('2026-10-05')").await;
    assert_eq!(versions(&f).await, ["0", "0", "0", "0"]);
    assert!(read(&f.table, &pinned).await.unwrap().is_empty());
    f.sql("INSERT INTO sales_4 VALUES ('2026-10-04', 'FR', 1, 1, 0)").await;
    assert_eq!(versions(&f).await, ["0", "0", "0", "0.1"]);
    f.replace("r1", &days(&[FOUR]), &[(FOUR, "FR", 9, 9, 0)]).await;
    assert_eq!(f.rows().await, ["2026-10-04/FR/9/9/0"]);
}

#[tokio::test]
async fn a_partition_that_comes_with_rows_or_goes_moves_its_keys_only() {
    let f = partitioned().await;
    f.replace("r1", &days(&[ONE, TWO]), &[(ONE, "FR", 1, 1, 0), (TWO, "FR", 2, 2, 0)]).await;
    let (gone, stays) =
        (pin(&f.table, of_day(ONE)).await.unwrap(), pin(&f.table, of_day(TWO)).await.unwrap());
    f.sql("ALTER TABLE sales DETACH PARTITION sales_1").await;
    // A pin is looked at first.
    assert_eq!(refused(read(&f.table, &gone).await, &["changed"]).kind(), ErrorKind::PinBroken);
    assert_eq!(read(&f.table, &stays).await.unwrap(), ["2026-10-02/FR/2/2/0"]);
    assert_eq!(versions(&f).await, ["2", "1", "0", "0"]);
    // Written to while it was away, where nothing watches for us.
    f.sql(
        "UPDATE sales_1 SET amount = 8;
         ALTER TABLE sales ATTACH PARTITION sales_1 FOR VALUES FROM ('2026-10-01') TO ('2026-10-02')",
    )
    .await;
    let version = f.table.current().await.unwrap();
    assert_ne!(version.as_str(), "2");
    assert_eq!(f.rows().await[0], "2026-10-01/FR/1/8/0");
    let head = versions(&f).await;
    assert!(head[0].starts_with("3") && head[1..] == ["1", "0", "0"], "{head:?}");
    f.sql("DROP TABLE sales_2").await;
    assert_eq!(f.version(day(TWO)).await.as_str(), "4");
}

fn of_day(text: &str) -> Slice {
    Slice::Partitions([day(text)].into())
}

#[tokio::test]
async fn a_commit_notices_another_partition_in_the_place_of_one() {
    let f = partitioned().await;
    let one = days(&[ONE]);
    f.replace("r1", &one, &[(ONE, "FR", 1, 1, 0)]).await;
    let base = f.table.head(&one).await.unwrap();
    let staged = f.stage("r2", &one, Intent::Replace, &[(ONE, "FR", 1, 2, 0)]).await.unwrap();
    f.sql(
        "BEGIN; CREATE TABLE other (LIKE sales); INSERT INTO other VALUES ('2026-10-01', 'FR', 5, 5, 0);
         ALTER TABLE sales DETACH PARTITION sales_1;
         ALTER TABLE sales ATTACH PARTITION other FOR VALUES FROM ('2026-10-01') TO ('2026-10-02');
         DROP TABLE sales_1; ALTER TABLE other RENAME TO sales_1; COMMIT",
    )
    .await;
    let outcome = commit(&f.table, &[apply(&staged)], &base, true).await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Conflicted { .. }), "{outcome:?}");
    assert_eq!(f.rows().await, ["2026-10-01/FR/5/5/0"]);
    let base = f.table.head(&one).await.unwrap();
    f.sql("INSERT INTO sales_1 VALUES ('2026-10-01', 'FR', 6, 6, 0)").await;
    let outcome = commit(&f.table, &[apply(&staged)], &base, true).await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Conflicted { .. }), "{outcome:?}");
    let base = f.table.head(&one).await.unwrap();
    committed(commit(&f.table, &[apply(&staged)], &base, true).await.unwrap());
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/2/0"]);
}

#[tokio::test]
async fn a_partition_of_another_shape_moves_the_whole_table() {
    let f = partitioned().await;
    f.replace("r1", &days(&[ONE]), &[(ONE, "FR", 1, 1, 0)]).await;
    f.sql(
        "CREATE TABLE rest (LIKE sales); INSERT INTO rest VALUES ('2027-01-01', 'FR', 7, 7, 0);
         ALTER TABLE sales ATTACH PARTITION rest DEFAULT",
    )
    .await;
    assert_eq!(versions(&f).await, ["2", "2", "2", "2"]);
    assert_eq!(f.rows().await.len(), 2);
}

#[tokio::test]
async fn a_reader_who_may_not_take_partitions_on_says_so() {
    let f = partitioned().await;
    let grants =
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}; GRANT USAGE ON SCHEMA reprocess TO {role};
                  GRANT ALL ON ALL TABLES IN SCHEMA reprocess TO {role}";
    let role = f.database.role(grants).await;
    let db = reprocess_postgres::PostgresDatabase::connect(&role).await.unwrap();
    let table = table_of(&db, "sales", by_day_and_country()).await;
    assert_eq!(table.head(&days(&[ONE])).await.unwrap().partitions[&day(ONE)].as_str(), "0");
    f.sql("CREATE TABLE sales_4 PARTITION OF sales FOR VALUES FROM ('2026-10-04') TO ('2026-10-05')").await;
    let error = refused(table.head(&days(&[ONE])).await, &["42501", "adopt the table again"]);
    assert_eq!(error.kind(), ErrorKind::Storage);
    f.table.head(&days(&[ONE])).await.unwrap();
    table.head(&days(&[ONE])).await.unwrap();
}
