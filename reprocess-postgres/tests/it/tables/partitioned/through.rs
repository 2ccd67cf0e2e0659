//! What is written and read through the table.

use reprocess_core::ErrorKind;
use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Slice;
use reprocess_core::domain::value::Value;
use reprocess_core::ports::reader::PinnedInput;
use reprocess_core::ports::staged::StagedReader;
use reprocess_core::ports::writer::{Change, CommitEntry, Intent, Op, PartitionWriter, Query, Rows};

use super::super::support::*;
use super::{ONE, TWO, partitioned, partitioned_by};

#[tokio::test]
async fn rows_are_replaced_merged_read_and_restored_as_in_a_plain_table() {
    let f = partitioned().await;
    let both = days(&[ONE, TWO]);
    f.replace("r1", &both, &[(ONE, "FR", 1, 1, 0), (ONE, "DE", 2, 2, 0), (TWO, "FR", 3, 3, 0)]).await;
    let pinned = pin(&f.table, Slice::All).await.unwrap();
    assert_eq!(read(&f.table, &pinned).await.unwrap().len(), 3);
    let second = f.replace("r2", &days(&[ONE]), &[(ONE, "FR", 1, 9, 0)]).await;
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/9/0", "2026-10-02/FR/3/3/0"]);
    assert_eq!(refused(read(&f.table, &pinned).await, &["changed"]).kind(), ErrorKind::PinBroken);
    assert_eq!((f.version(day(ONE)).await.as_str(), f.version(day(TWO)).await.as_str()), ("2", "1"));
    // A key of the table has to hold the column of its partitions.
    f.sql("ALTER TABLE sales ALTER day SET NOT NULL, ALTER id SET NOT NULL, ADD UNIQUE (day, id)").await;
    let table = f.table.clone();
    table.adopt().await.unwrap();
    let keys = reprocess_core::ports::writer::MergeKeys { keys: vec!["day".into(), "id".into()], ..by_id() };
    f.write("r3", &both, Intent::Merge(keys), &[(TWO, "FR", 3, 4, 0), (TWO, "FR", 5, 5, 0)]).await;
    let merged = ["2026-10-01/FR/1/9/0", "2026-10-02/FR/3/4/0", "2026-10-02/FR/5/5/0"];
    assert_eq!(f.rows().await, merged);
    let base = f.table.head(&days(&[ONE])).await.unwrap();
    let back = CommitEntry {
        scope: days(&[ONE]),
        change: Change::Restore(second.kept.unwrap()),
        stamp: stamp("back", &days(&[ONE]), Op::Restore),
        attempt: 1,
        finish: finish(),
    };
    committed(commit(&f.table, &[back], &base, true).await.unwrap());
    assert_eq!(f.rows().await[..2], ["2026-10-01/DE/2/2/0", "2026-10-01/FR/1/1/0"]);
    let staged = f.stage("r4", &days(&[TWO]), Intent::Replace, &[(TWO, "FR", 3, 7, 0)]).await.unwrap();
    let pinned = pin(&f.table, Slice::All).await.unwrap();
    let (_, stream) = f.table.read_overlaid(&[staged], &pinned).await.unwrap();
    assert_eq!(texts(stream).await.unwrap()[2..], ["2026-10-02/FR/3/7/0"]);
}

#[tokio::test]
async fn rows_in_the_same_place_of_two_partitions_are_told_apart_by_a_merge() {
    let f = partitioned_by(
        "RANGE (day); ALTER TABLE sales ALTER day SET NOT NULL, ALTER id SET NOT NULL, ADD UNIQUE (day, id);
         CREATE TABLE sales_1 PARTITION OF sales FOR VALUES FROM ('2026-10-01') TO ('2026-10-02');
         CREATE TABLE sales_2 PARTITION OF sales FOR VALUES FROM ('2026-10-02') TO ('2026-10-03')",
    )
    .await;
    let both = days(&[ONE, TWO]);
    f.replace("r1", &both, &[(ONE, "FR", 1, 1, 0), (TWO, "FR", 1, 2, 0)]).await;
    let keys =
        || reprocess_core::ports::writer::MergeKeys { keys: vec!["day".into(), "id".into()], ..by_id() };
    let merged = f.write("r2", &both, Intent::Merge(keys()), &[(ONE, "FR", 1, 5, 0)]).await;
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/5/0", "2026-10-02/FR/1/2/0"]);
    // The other way round, and of both only what the owner wrote and no longer has.
    let owner = Some([("country".to_owned(), value("FR"))].into());
    let keys = reprocess_core::ports::writer::MergeKeys { delete_vanished: owner, ..keys() };
    f.write("r3", &both, Intent::Merge(keys), &[(TWO, "FR", 1, 7, 0)]).await;
    assert_eq!(f.rows().await, ["2026-10-02/FR/1/7/0"]);
    let back = CommitEntry {
        scope: both.clone(),
        change: Change::Restore(merged.kept.unwrap()),
        stamp: stamp("back", &both, Op::Restore),
        attempt: 1,
        finish: finish(),
    };
    let base = f.table.head(&both).await.unwrap();
    committed(commit(&f.table, &[back], &base, true).await.unwrap());
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/1/0", "2026-10-02/FR/1/7/0"]);
}

#[tokio::test]
async fn a_query_reads_partitioned_inputs_with_a_new_handle() {
    let f = partitioned().await;
    f.replace("r1", &days(&[ONE]), &[(ONE, "FR", 1, 1, 0)]).await;
    let target = table_of(&f.db, "down", by_day_and_country()).await;
    target.create(&columns()).await.unwrap();
    // As another process has it, which has not looked at the table yet.
    let source = table_of(&f.db, "sales", by_day_and_country()).await;
    let pin = pin(&f.table, Slice::All).await.unwrap();
    let input = PinnedInput { pin, reader: std::sync::Arc::new(source), staged: vec![], writer: None };
    let rows = Rows::Query(Query {
        sql: "SELECT * FROM sales".into(),
        params: [].into(),
        inputs: [("sales".to_owned(), input)].into(),
    });
    let base = target.head(&days(&[ONE])).await.unwrap();
    let staged = target.stage(&request("q", &days(&[ONE]), Intent::Replace), rows).await.unwrap();
    committed(commit(&target, &[apply(&staged)], &base, true).await.unwrap());
    assert_eq!(rows_of(&target).await, ["2026-10-01/FR/1/1/0"]);
}

async fn rows_of(table: &reprocess_postgres::PostgresTable) -> Vec<String> {
    rows(table).await
}

/// See <https://github.com/pgpartman/pg_partman/issues/287>.
#[tokio::test]
async fn rows_of_a_default_partition_are_replaced_like_others() {
    let f = partitioned_by(
        "LIST (country); CREATE TABLE french PARTITION OF sales FOR VALUES IN ('FR');
         CREATE TABLE others PARTITION OF sales DEFAULT",
    )
    .await;
    let german = scope(PartitionKey::of("day", date(ONE)).and("country", "DE"));
    f.replace("r1", &days(&[ONE]), &[(ONE, "FR", 1, 1, 0), (ONE, "DE", 2, 2, 0), (ONE, "NULL", 3, 3, 0)])
        .await;
    f.replace("r2", &german, &[(ONE, "DE", 2, 5, 0)]).await;
    assert_eq!(f.rows().await, ["2026-10-01/DE/2/5/0", "2026-10-01/FR/1/1/0", "2026-10-01/NULL/3/3/0"]);
    // Rows that the default partition holds are moved to one of their own, as its owner does it.
    f.sql(
        "BEGIN; CREATE TABLE german (LIKE sales);
         WITH moved AS (DELETE FROM others WHERE country = 'DE' RETURNING *) INSERT INTO german SELECT * FROM moved;
         ALTER TABLE sales ATTACH PARTITION german FOR VALUES IN ('DE'); COMMIT",
    )
    .await;
    let base = f.table.head(&german).await.unwrap();
    assert_ne!(base.partitions[&day(ONE).and("country", "DE")].as_str(), "2");
    f.replace("r3", &german, &[(ONE, "DE", 2, 6, 0)]).await;
    assert_eq!(f.rows().await[0], "2026-10-01/DE/2/6/0");
    f.replace("r4", &days(&[ONE]), &[]).await;
    assert!(f.rows().await.is_empty());
}

#[tokio::test]
async fn partitions_below_partitions_and_by_hash_are_written_through_the_table() {
    let f = partitioned_by(
        "RANGE (day);
         CREATE TABLE october PARTITION OF sales FOR VALUES FROM ('2026-10-01') TO ('2026-11-01') PARTITION BY HASH (id);
         CREATE TABLE october_0 PARTITION OF october FOR VALUES WITH (modulus 2, remainder 0);
         CREATE TABLE october_1 PARTITION OF october FOR VALUES WITH (modulus 2, remainder 1)",
    )
    .await;
    f.replace("r1", &days(&[ONE, TWO]), &[(ONE, "FR", 1, 1, 0), (ONE, "FR", 2, 2, 0), (TWO, "FR", 3, 3, 0)])
        .await;
    for (place, table) in ["sales", "october", "october_0"].into_iter().enumerate() {
        f.sql(&format!("UPDATE {table} SET amount = amount + 1 WHERE day = '2026-10-01'")).await;
        let touched = f.version(day(ONE)).await;
        let expected = format!("1.{}", place + 1);
        assert!(table == "october_0" || touched.as_str() == expected, "{table}: {touched}");
        assert_eq!(f.version(day(TWO)).await.as_str(), "1", "{table}");
    }
    f.replace("r2", &days(&[ONE]), &[(ONE, "FR", 4, 4, 0)]).await;
    assert_eq!(f.rows().await, ["2026-10-01/FR/4/4/0", "2026-10-02/FR/3/3/0"]);
}

#[tokio::test]
async fn what_cannot_be_adopted_is_named() {
    let f = partitioned().await;
    f.sql(
        "CREATE TABLE plain (day date, country text); CREATE TABLE heir () INHERITS (plain); CREATE VIEW seen AS TABLE sales;
         CREATE EXTENSION postgres_fdw; CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw;
         CREATE TABLE mixed (day date, country text) PARTITION BY LIST (country);
         CREATE FOREIGN TABLE far_away PARTITION OF mixed FOR VALUES IN ('FR') SERVER far",
    )
    .await;
    let check = async |name: &str, words: &[&str]| {
        let table = table_of(&f.db, name, by_day_and_country()).await;
        assert_eq!(refused(table.adopt().await, words).kind(), ErrorKind::Unsupported);
    };
    check("sales_1", &["partition", "above"]).await;
    check("heir", &["heir"]).await;
    check("plain", &["heirs"]).await;
    check("seen", &["views"]).await;
    check("mixed", &["`far_away`"]).await;
    // Rows of others that go with those of a partition are looked for at every partition.
    f.sql(
        "ALTER TABLE sales_2 ADD PRIMARY KEY (id);
         CREATE TABLE lines (sale bigint REFERENCES sales_2 ON DELETE CASCADE)",
    )
    .await;
    let base = f.table.head(&days(&[TWO])).await.unwrap();
    let staged = f.stage("r2", &days(&[TWO]), Intent::Replace, &[]).await.unwrap();
    refused(commit(&f.table, &[apply(&staged)], &base, false).await, &["lines", "lines_sale_fkey"]);
}

#[tokio::test]
async fn keys_that_no_partition_takes_are_refused_and_change_nothing() {
    let f = partitioned().await;
    f.replace("r1", &days(&[ONE]), &[(ONE, "FR", 1, 1, 0)]).await;
    let late = days(&["2026-10-09"]);
    let base = f.table.head(&late).await.unwrap();
    let staged = f.stage("r2", &late, Intent::Replace, &[("2026-10-09", "FR", 1, 1, 0)]).await.unwrap();
    let error = refused(commit(&f.table, &[apply(&staged)], &base, false).await, &["partition"]);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let none = scope(PartitionKey::of("day", Value::Null));
    f.replace("r3", &none, &[]).await;
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/1/0"]);
    f.replace("r4", &Scope::whole_table(), &[(TWO, "FR", 1, 1, 0)]).await;
    assert_eq!(f.rows().await, ["2026-10-02/FR/1/1/0"]);
    let by_month = Partitioning::unpartitioned().with_time("day", Grain::Month, chrono_tz::UTC);
    let table = table_of(&f.db, "sales", by_month).await;
    refused(table.head(&Scope::whole_table()).await, &["another partitioning"]);
}
