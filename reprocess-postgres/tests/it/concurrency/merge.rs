//! Merges at the same time: none waits in a circle, none doubles a row, none is mixed with another.

use reprocess_core::domain::partition::Partitioning;
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::writer::{Intent, MergeKeys, PartitionWriter};

use super::race::{Racer, race};
use crate::server::rounds;
use crate::tables::support::*;

const DAYS: [&str; 2] = ["2026-10-01", "2026-10-02"];
const KEYS: usize = 30;

/// Three orders of the same keys: rising, falling, and one without order.
fn in_order(which: u64) -> Vec<i64> {
    let rising = (0..KEYS).map(|id| i64::try_from(id).unwrap());
    match which % 3 {
        0 => rising.collect(),
        1 => rising.rev().collect(),
        _ => rising.map(|id| (id * 7 + i64::try_from(which).unwrap()) % 30).collect(),
    }
}

/// Ours, which has an index with the first merge; and one of others, which has its key.
async fn both_kinds(partitioning: Partitioning, key: &str) -> [Fixture; 2] {
    let ours = fixture_of(partitioning.clone()).await;
    let mut theirs = fixture_of(partitioning.clone()).await;
    theirs
        .sql(&format!(
            "CREATE TABLE theirs (day date, country text, id bigint, amount bigint, rev bigint, PRIMARY KEY ({key}))"
        ))
        .await;
    theirs.table = table_of(&theirs.db, "theirs", partitioning).await;
    theirs.table.adopt().await.unwrap();
    [ours, theirs]
}

async fn racer(f: &Fixture, run: &str, scope: &Scope, keys: MergeKeys, rows: &[Row<'_>]) -> Racer {
    let base = f.table.head(scope).await.unwrap();
    let staged = f.stage(run, scope, Intent::Merge(keys), rows).await.unwrap();
    Racer { table: f.table.clone(), staged, base }
}

fn texts_of(rows: impl Iterator<Item = (&'static str, i64, i64, i64)>) -> Vec<String> {
    let mut texts: Vec<_> =
        rows.map(|(day, id, amount, rev)| format!("{day}/FR/{id}/{amount}/{rev}")).collect();
    texts.sort();
    texts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_merges_of_the_same_keys_in_any_order_the_last_is_left() {
    let all = Scope::whole_table();
    for f in both_kinds(Partitioning::unpartitioned(), "id").await {
        let name = f.table.spec().id.as_str().to_owned();
        for number in 0..rounds(5) {
            let (mut racers, mut amounts) = (Vec::new(), Vec::new());
            for worker in 0..2 {
                let amount = i64::try_from(number * 2 + worker).unwrap();
                let rows: Vec<Row<'_>> = in_order(number + worker * (1 + number / 3))
                    .into_iter()
                    .map(|id| (DAYS[0], "FR", id, amount, 0))
                    .collect();
                racers.push(racer(&f, &format!("r{amount}"), &all, by_id(), &rows).await);
                amounts.push(amount);
            }
            let last = match race(&f.database, &name, racers).await.as_slice() {
                [0, 1] => amounts[1],
                [1, 0] => amounts[0],
                other => panic!("round {number}: conflicts {other:?}"),
            };
            let expected = texts_of(in_order(0).into_iter().map(|id| (DAYS[0], id, last, 0)));
            assert_eq!(f.rows().await, expected, "{name}, round {number}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_merges_with_a_newer_column_each_key_has_its_newest_row() {
    let all = Scope::whole_table();
    let newer = || MergeKeys { newer: Some("rev".into()), ..by_id() };
    for f in both_kinds(Partitioning::unpartitioned(), "id").await {
        let name = f.table.spec().id.as_str().to_owned();
        for number in 0..rounds(2) {
            let mut racers = Vec::new();
            for worker in 0..2 {
                // The first worker has the newer rows of even keys, the second those of odd ones.
                let rows: Vec<Row<'_>> = in_order(number + worker)
                    .into_iter()
                    .map(|id| {
                        let worker = i64::try_from(worker).unwrap();
                        let newer = i64::from(id % 2 == worker);
                        (DAYS[0], "FR", id, worker, i64::try_from(number).unwrap() * 2 + newer)
                    })
                    .collect();
                racers.push(racer(&f, &format!("r{}", number * 2 + worker), &all, newer(), &rows).await);
            }
            race(&f.database, &name, racers).await;
            let rev = i64::try_from(number * 2 + 1).unwrap();
            let expected = texts_of(in_order(0).into_iter().map(|id| (DAYS[0], id, id % 2, rev)));
            assert_eq!(f.rows().await, expected, "{name}, round {number}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn merges_of_two_partitions_land_beside_each_other() {
    let keys = || MergeKeys { keys: vec!["id".into(), "day".into()], ..by_id() };
    for f in both_kinds(by_day_and_country(), "id, day").await {
        let name = f.table.spec().id.as_str().to_owned();
        for number in 0..rounds(3) {
            let amount = i64::try_from(number).unwrap();
            let mut racers = Vec::new();
            for (worker, day) in (0..).zip(DAYS) {
                let rows: Vec<Row<'_>> =
                    in_order(number + worker).into_iter().map(|id| (day, "FR", id, amount, 0)).collect();
                racers.push(racer(&f, &format!("r{number}.{worker}"), &days(&[day]), keys(), &rows).await);
            }
            assert_eq!(race(&f.database, &name, racers).await, [0, 0], "{name}, round {number}");
            let keys = in_order(0).into_iter().flat_map(|id| DAYS.map(|day| (day, id, amount, 0)));
            assert_eq!(f.rows().await, texts_of(keys), "{name}, round {number}");
        }
    }
}
