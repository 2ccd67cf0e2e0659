//! How long things take; prints, asserts nothing. Run with `--ignored --nocapture` and `--release`.
#![allow(clippy::disallowed_methods, reason = "measures")]

use std::time::Instant;

use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::staged::StagedReader;
use reprocess_core::ports::writer::{Intent, MergeKeys, PartitionWriter};
use reprocess_sqlite::{SqliteDatabase, SqliteTable};
use sqlx::Executor;

use super::support::*;

#[tokio::test]
#[ignore = "prints times, asserts nothing"]
async fn partitions_of_a_hundred_thousand_rows() {
    let folder = tempfile::TempDir::new().unwrap();
    let db = SqliteDatabase::open(folder.path().join("big.db")).await.unwrap();
    let spec = reprocess_core::domain::job::TableSpec::new("sales", by_day_and_country());
    let f = Fixture { folder, table: SqliteTable::new(db.clone(), spec), db };
    f.table.create(&columns()).await.unwrap();
    let rows = |d: &'static str, from: i64, rev: i64| -> Vec<Row<'static>> {
        (from..from + 100_000)
            .map(|id| (d, ["FR", "DE", "ES"][usize::try_from(id % 3).unwrap()], id, id * 7, rev))
            .collect()
    };
    let mut clock = Instant::now();
    let mut lap = |what: &str| {
        println!("{what}: {:?}", clock.elapsed());
        clock = Instant::now();
    };
    let dates: Vec<String> =
        (0..20).map(|n| (date("2026-01-01") + chrono::Days::new(n)).to_string()).collect();
    for (n, d) in (0_i64..).zip(&dates) {
        let d: &'static str = Box::leak(d.clone().into_boxed_str());
        f.replace(&format!("r{n}"), &days(&[d]), &rows(d, n * 100_000, 0)).await;
    }
    lap("20 partitions of 100,000 rows, staged and committed");
    let one = days(&["2026-01-05"]);
    let base = f.table.head(&one).await.unwrap();
    let staged = f.stage("again", &one, Intent::Replace, &rows("2026-01-05", 400_000, 1)).await.unwrap();
    lap("stage one");
    f.table.profile_after(&staged, &Default::default()).await.unwrap();
    lap("profile after");
    committed(commit(&f.table, &[apply(&staged)], &base, false).await.unwrap());
    lap("commit one");
    read(&f.table, &pin(&f.table, Slice::Partitions([day("2026-01-05")].into())).await.unwrap())
        .await
        .unwrap();
    lap("read one");
    let mut other = f.other().await;
    other.execute("UPDATE sales SET amount = 1 WHERE day = '2026-01-07'").await.unwrap();
    lap("100,000 rows changed by others");
    let by = Intent::Merge(MergeKeys { newer: Some("rev".into()), ..by_id() });
    let all = Scope::whole_table();
    let base = f.table.head(&all).await.unwrap();
    let staged = f.stage("merge", &all, by.clone(), &rows("2026-01-09", 800_000, 2)).await.unwrap();
    lap("stage a merge");
    committed(commit(&f.table, &[apply(&staged)], &base, true).await.unwrap());
    lap("commit a merge of 100,000 into 2,000,000 rows, with an index made");
    let base = f.table.head(&all).await.unwrap();
    let staged = f.stage("merge2", &all, by, &rows("2026-01-09", 750_000, 2)).await.unwrap();
    lap("stage a merge");
    committed(commit(&f.table, &[apply(&staged)], &base, true).await.unwrap());
    lap("commit a merge, half of it unchanged");
}
