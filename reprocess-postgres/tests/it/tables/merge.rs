//! Merging by key.

use std::collections::BTreeMap;

use reprocess_core::domain::partition::Partitioning;
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::writer::{Intent, MergeKeys};
use sqlx::Row as _;

use super::support::*;

fn newer() -> MergeKeys {
    MergeKeys { newer: Some("rev".into()), ..by_id() }
}

fn owned(country: &str) -> MergeKeys {
    MergeKeys { delete_vanished: Some(BTreeMap::from([("country".into(), value(country))])), ..by_id() }
}

#[tokio::test]
async fn rows_are_matched_by_key_and_others_stay() {
    let f = fixture_of(Partitioning::unpartitioned()).await;
    let all = Scope::whole_table();
    f.replace(
        "r1",
        &all,
        &[("2026-10-01", "FR", 1, 1, 0), ("2026-10-01", "FR", 2, 2, 0), ("2026-10-01", "DE", 3, 3, 0)],
    )
    .await;
    f.write(
        "r2",
        &all,
        Intent::Merge(by_id()),
        &[("2026-10-02", "FR", 2, 22, 0), ("2026-10-02", "FR", 4, 4, 0)],
    )
    .await;
    assert_eq!(
        f.rows().await,
        ["2026-10-01/DE/3/3/0", "2026-10-01/FR/1/1/0", "2026-10-02/FR/2/22/0", "2026-10-02/FR/4/4/0"]
    );
}

#[tokio::test]
async fn with_a_newer_column_every_order_gives_the_same_table() {
    let batches: [&[Row<'_>]; 3] = [
        &[("2026-10-01", "FR", 1, 10, 1), ("2026-10-01", "FR", 2, 10, 1)],
        &[("2026-10-02", "FR", 1, 20, 2), ("2026-10-02", "FR", 3, 20, 2)],
        &[("2026-10-03", "FR", 1, 30, 3), ("2026-10-03", "FR", 2, 30, 1)],
    ];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let f = fixture_of(Partitioning::unpartitioned()).await;
        for (turn, place) in order.iter().chain(&order).enumerate() {
            f.write(&format!("r{turn}"), &Scope::whole_table(), Intent::Merge(newer()), batches[*place])
                .await;
        }
        let rows = f.rows().await;
        assert!(rows.contains(&"2026-10-03/FR/1/30/3".to_owned()), "{order:?}");
        assert!(rows.contains(&"2026-10-02/FR/3/20/2".to_owned()), "{order:?}");
        // Equal revisions keep the row that was there first.
        let first = order.iter().position(|p| *p == 0) < order.iter().position(|p| *p == 2);
        assert!(
            rows.contains(&if first { "2026-10-01/FR/2/10/1" } else { "2026-10-03/FR/2/30/1" }.to_owned())
        );
        assert_eq!(rows.len(), 3);
    }
}

#[tokio::test]
async fn vanished_rows_go_only_where_scope_and_owner_agree() {
    let f = fixture().await;
    let both = days(&["2026-10-01", "2026-10-02"]);
    f.replace(
        "r1",
        &both,
        &[
            ("2026-10-01", "FR", 1, 1, 0),
            ("2026-10-01", "FR", 2, 2, 0),
            ("2026-10-01", "DE", 3, 3, 0),
            ("2026-10-02", "FR", 4, 4, 0),
        ],
    )
    .await;
    f.write("r2", &days(&["2026-10-01"]), Intent::Merge(owned("FR")), &[("2026-10-01", "FR", 1, 11, 0)])
        .await;
    // 2 vanished; 3 is of another owner, 4 outside of the scope.
    assert_eq!(f.rows().await, ["2026-10-01/DE/3/3/0", "2026-10-01/FR/1/11/0", "2026-10-02/FR/4/4/0"]);
    f.write("r3", &days(&["2026-10-01"]), Intent::Merge(owned("FR")), &[]).await;
    assert_eq!(f.rows().await, ["2026-10-01/DE/3/3/0", "2026-10-02/FR/4/4/0"]);
}

#[tokio::test]
async fn rows_outside_of_the_scope_are_neither_matched_nor_changed() {
    let f = fixture().await;
    f.replace("r1", &days(&["2026-10-01"]), &[("2026-10-01", "FR", 1, 1, 0)]).await;
    f.write("r2", &days(&["2026-10-02"]), Intent::Merge(by_id()), &[("2026-10-02", "FR", 1, 2, 0)]).await;
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/1/0", "2026-10-02/FR/1/2/0"]);
    assert_eq!(f.version(day("2026-10-01")).await.as_str(), "1");
}

#[tokio::test]
async fn rows_that_are_equal_already_are_not_rewritten() {
    let f = fixture_of(Partitioning::unpartitioned()).await;
    f.replace("r1", &Scope::whole_table(), &[("2026-10-01", "FR", 1, 1, 0), ("NULL", "NULL", 2, 2, 0)]).await;
    f.sql(
        "CREATE TABLE written (id bigint);
         CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS
         'BEGIN INSERT INTO public.written VALUES (new.id); RETURN NULL; END';
         CREATE TRIGGER watch AFTER UPDATE ON sales FOR EACH ROW EXECUTE FUNCTION watch()",
    )
    .await;
    let rows = [("2026-10-01", "FR", 1, 9, 0), ("NULL", "NULL", 2, 2, 0), ("2026-10-01", "FR", 3, 3, 0)];
    f.write("r2", &Scope::whole_table(), Intent::Merge(by_id()), &rows).await;
    let written = sqlx::query("SELECT id FROM public.written").fetch_all(&mut f.other().await).await.unwrap();
    assert_eq!(written.iter().map(|row| row.get::<i64, _>(0)).collect::<Vec<_>>(), [1]);
    assert_eq!(f.rows().await.len(), 3);
}

#[tokio::test]
async fn a_null_revision_is_older_than_every_other() {
    let f = fixture_of(Partitioning::unpartitioned()).await;
    f.replace("r1", &Scope::whole_table(), &[("2026-10-01", "FR", 1, 1, 5), ("2026-10-01", "FR", 2, 1, 5)])
        .await;
    f.sql("UPDATE sales SET rev = NULL WHERE id = 1").await;
    let rows = [("2026-10-01", "FR", 1, 2, 0), ("2026-10-01", "FR", 2, 2, 5)];
    f.write("r2", &Scope::whole_table(), Intent::Merge(newer()), &rows).await;
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/2/0", "2026-10-01/FR/2/1/5"]);
}
