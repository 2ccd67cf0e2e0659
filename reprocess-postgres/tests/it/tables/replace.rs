//! Replacing partitions, versions, conflicts and stamps.

use reprocess_core::ErrorKind;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::value::Value;
use reprocess_core::ports::writer::{CommitOutcome, Found, Intent, Moved, MovedBy, Op, PartitionWriter};

use super::support::*;

#[tokio::test]
async fn a_replaced_scope_holds_exactly_the_rows_and_others_stay() {
    let f = fixture().await;
    f.replace(
        "r1",
        &days(&["2026-10-01", "2026-10-02"]),
        &[("2026-10-01", "FR", 1, 10, 0), ("2026-10-01", "DE", 2, 20, 0), ("2026-10-02", "FR", 3, 30, 0)],
    )
    .await;
    // The new logic no longer produces DE: it disappears, since the key of the day covers it.
    let commit = f.replace("r2", &days(&["2026-10-01"]), &[("2026-10-01", "FR", 1, 11, 0)]).await;
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/11/0", "2026-10-02/FR/3/30/0"]);
    assert_eq!(commit.version.as_str(), "2");
    assert_eq!(commit.attempts, [(stamp("r2", &days(&["2026-10-01"]), Op::Replace), 1)]);
    assert!(!commit.recorded);
    // Without rows the partition is empty.
    f.replace("r3", &days(&["2026-10-02"]), &[]).await;
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/11/0"]);
    f.replace("r4", &Scope::whole_table(), &[]).await;
    assert!(f.rows().await.is_empty());
}

#[tokio::test]
async fn partitions_whose_values_are_odd_are_replaced_like_others() {
    let f = fixture().await;
    let odd = ["NULL", "", "a/b", "%", "l'été \"x\"", "__HIVE_DEFAULT_PARTITION__", "day=2026-10-01", "ж;--"];
    let all: Vec<Row<'_>> = (0..).zip(odd).map(|(id, country)| ("2026-10-01", country, id, 1, 0)).collect();
    f.replace("r0", &days(&["2026-10-01"]), &all).await;
    for (id, country) in (0_i64..).zip(odd) {
        let value = if country == "NULL" { Value::Null } else { Value::from(country) };
        let key = day("2026-10-01").and("country", value);
        let untouched: Vec<_> =
            f.rows().await.into_iter().filter(|row| !row.contains(&format!("/{id}/"))).collect();
        f.replace(&format!("r{country}"), &scope(key), &[("2026-10-01", country, id, 2, 0)]).await;
        let rows = f.rows().await;
        assert_eq!(rows.len(), odd.len(), "{country}");
        assert!(untouched.iter().all(|row| rows.contains(row)), "{country}");
        assert!(rows.iter().any(|row| row.ends_with(&format!("/{id}/2/0"))), "{country}: {rows:?}");
    }
    // The partition without a day.
    let nowhere = PartitionKey::of("day", Value::Null);
    f.replace("null day", &scope(nowhere.clone()), &[("NULL", "FR", 9, 1, 0)]).await;
    f.replace("null day again", &scope(nowhere), &[("NULL", "FR", 10, 1, 0)]).await;
    assert_eq!(f.rows().await.iter().filter(|row| row.starts_with("NULL")).count(), 1);
}

#[tokio::test]
async fn versions_move_with_what_overlaps_and_with_nothing_else() {
    let f = fixture().await;
    let french = || day("2026-10-01").and("country", "FR");
    f.replace("r1", &scope(french()), &[]).await;
    f.replace("r2", &days(&["2026-10-02"]), &[]).await;
    for (key, version) in [
        (french(), "1"),
        (day("2026-10-01"), "1"),
        (day("2026-10-01").and("country", "DE"), "0"),
        (day("2026-10-02"), "2"),
        (day("2026-10-02").and("country", "FR"), "2"),
        (PartitionKey::of("country", "FR"), "2"),
        (PartitionKey::of("country", "DE"), "2"),
        (day("2026-10-03"), "0"),
        (PartitionKey::whole(), "2"),
        (PartitionKey::of("day", Value::Null), "0"),
    ] {
        assert_eq!(f.version(key.clone()).await.as_str(), version, "{key}");
    }
    // A key over all days, then one of a country whose text begins like another.
    f.replace("r3", &scope(PartitionKey::of("country", "F")), &[]).await;
    for (key, version) in [
        (french(), "1"),
        (day("2026-10-01").and("country", "F"), "3"),
        (day("2026-10-01"), "3"),
        (PartitionKey::of("country", "FR"), "2"),
    ] {
        assert_eq!(f.version(key.clone()).await.as_str(), version, "{key}");
    }
}

#[tokio::test]
async fn a_partition_that_moved_conflicts_also_when_it_was_empty() {
    let f = fixture().await;
    let both = days(&["2026-10-01", "2026-10-02"]);
    let base = f.table.head(&both).await.unwrap();
    let staged = f.stage("late", &both, Intent::Replace, &[("2026-10-01", "FR", 1, 1, 0)]).await.unwrap();
    // Another run writes nothing into an empty partition, below a key of the scope.
    f.replace("other", &scope(day("2026-10-02").and("country", "FR")), &[]).await;
    let outcome = commit(&f.table, &[apply(&staged)], &base, false).await.unwrap();
    let now = f.version(day("2026-10-02")).await;
    let moved = vec![Moved { partition: day("2026-10-02"), by: MovedBy::Content, now }];
    assert_eq!(outcome, CommitOutcome::Conflicted { moved });
    assert!(f.rows().await.is_empty());
    // The staged set is still there and lands on a base taken anew.
    let base = f.table.head(&both).await.unwrap();
    let staged = f.table.rebase(&staged, &base).await.unwrap();
    committed(commit(&f.table, &[apply(&staged)], &base, false).await.unwrap());
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/1/0"]);
}

#[tokio::test]
async fn the_same_stamp_again_writes_nothing() {
    let f = fixture().await;
    let (one, two) = (days(&["2026-10-01"]), days(&["2026-10-02"]));
    let base = f.table.head(&one.union(&two)).await.unwrap();
    let first = f.stage("run", &one, Intent::Replace, &[("2026-10-01", "FR", 1, 1, 0)]).await.unwrap();
    assert_eq!(f.table.find_commit(&first.id.stamp, &one, &base).await.unwrap(), Found::No);
    let done = committed(commit(&f.table, &[apply(&first)], &base, false).await.unwrap());
    assert_eq!(f.table.find_commit(&first.id.stamp, &one, &base).await.unwrap(), Found::Yes(done.clone()));
    // Even after another run has replaced the partition.
    f.replace("other", &one, &[]).await;
    let again = f.stage("run", &one, Intent::Replace, &[("2026-10-01", "FR", 1, 2, 0)]).await.unwrap();
    let outcome = commit(&f.table, &[apply(&again)], &base, false).await.unwrap();
    assert_eq!(outcome, CommitOutcome::AlreadyCommitted(done.clone()));
    assert!(f.rows().await.is_empty());
    // Together with work that is not done, only that is done.
    let second = f.stage("run", &two, Intent::Replace, &[("2026-10-02", "FR", 2, 2, 0)]).await.unwrap();
    let outcome = commit(&f.table, &[apply(&again), apply(&second)], &base, false).await.unwrap();
    let both = committed(outcome);
    assert_eq!(both.attempts, [(first.id.stamp.clone(), 1), (second.id.stamp.clone(), 1)]);
    assert_eq!(f.rows().await, ["2026-10-02/FR/2/2/0"]);
    assert_eq!(f.table.find_commit(&first.id.stamp, &one, &base).await.unwrap(), Found::Yes(done));
}

#[tokio::test]
async fn several_entries_land_together_or_not_at_all() {
    let f = fixture().await;
    let (one, two) = (days(&["2026-10-01"]), days(&["2026-10-02"]));
    let base = f.table.head(&one.union(&two)).await.unwrap();
    let first = f.stage("run", &one, Intent::Replace, &[("2026-10-01", "FR", 1, 1, 0)]).await.unwrap();
    let second = f.stage("run", &two, Intent::Replace, &[("2026-10-02", "FR", 2, 2, 0)]).await.unwrap();
    f.table.discard(&second.id).await.unwrap();
    let error = refused(commit(&f.table, &[apply(&first), apply(&second)], &base, false).await, &["gone"]);
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(f.rows().await.is_empty());
    let second = f.stage("run", &two, Intent::Replace, &[("2026-10-02", "FR", 2, 2, 0)]).await.unwrap();
    let done = committed(commit(&f.table, &[apply(&first), apply(&second)], &base, false).await.unwrap());
    assert_eq!(done.partitions.partitions.len(), 2);
    let error = refused(f.table.discard(&first.id).await, &["committed"]);
    assert_eq!(error.kind(), ErrorKind::State);
}

#[tokio::test]
async fn requests_that_no_commit_can_honour_are_refused() {
    let f = fixture().await;
    let (one, french) = (days(&["2026-10-01"]), scope(day("2026-10-01").and("country", "FR")));
    let base = f.table.head(&one).await.unwrap();
    let first = f.stage("run", &one, Intent::Replace, &[]).await.unwrap();
    let second = f.stage("run", &french, Intent::Replace, &[]).await.unwrap();
    refused(commit(&f.table, &[], &base, false).await, &["without entries"]);
    refused(commit(&f.table, &[apply(&second)], &base, false).await, &["base", "country=FR"]);
    let wide = f.table.head(&one.union(&french)).await.unwrap();
    refused(commit(&f.table, &[apply(&first), apply(&second)], &wide, false).await, &["same partition"]);
}

#[tokio::test]
async fn the_dynamic_form_leaves_partitions_without_rows() {
    let f = fixture().await;
    let both = days(&["2026-10-01", "2026-10-02"]);
    f.replace("r1", &both, &[("2026-10-01", "FR", 1, 1, 0), ("2026-10-02", "FR", 2, 2, 0)]).await;
    f.write(
        "r2",
        &both,
        Intent::ReplaceDynamic,
        &[("2026-10-02", "FR", 2, 3, 0), ("2026-10-02", "DE", 3, 3, 0)],
    )
    .await;
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/1/0", "2026-10-02/DE/3/3/0", "2026-10-02/FR/2/3/0"]);
    assert_eq!(f.version(day("2026-10-01")).await.as_str(), "1");
    assert_eq!(f.version(day("2026-10-02")).await.as_str(), "2");
}

#[tokio::test]
async fn a_table_without_dimensions_is_replaced_as_a_whole() {
    let f = fixture_of(Partitioning::unpartitioned()).await;
    f.replace("r1", &Scope::whole_table(), &[("2026-10-01", "FR", 1, 1, 0)]).await;
    f.replace("r2", &Scope::whole_table(), &[("2026-10-01", "FR", 2, 1, 0)]).await;
    assert_eq!(f.rows().await, ["2026-10-01/FR/2/1/0"]);
    assert_eq!(f.version(PartitionKey::whole()).await.as_str(), "2");
}

#[tokio::test]
async fn a_scope_of_thousands_of_keys_is_one_statement() {
    let f = fixture().await;
    let start = date("2000-01-01");
    let every = |step: u64, n: u64| (0..n).map(move |i| start + chrono::Days::new(i * step));
    // Days that touch become one range; days apart and countries do not.
    let many = Scope::keys(every(1, 6000).map(|d| PartitionKey::of("day", d))).unwrap();
    f.replace("r1", &many, &[("2000-01-01", "FR", 1, 1, 0)]).await;
    let sparse =
        Scope::keys(every(2, 3000).map(|d| PartitionKey::of("day", d).and("country", "FR"))).unwrap();
    f.replace("r2", &sparse, &[("2000-01-03", "FR", 2, 1, 0)]).await;
    assert_eq!(f.rows().await, ["2000-01-03/FR/2/1/0"]);
    assert_eq!(f.version(day("2000-01-02")).await.as_str(), "1");
}
