//! Restoring what commits replaced.

use reprocess_core::ErrorKind;
use reprocess_core::Result;
use reprocess_core::domain::partition::Partitioning;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Kept;
use reprocess_core::ports::writer::{
    Change, Commit, CommitEntry, CommitOutcome, Intent, MergeKeys, Op, PartitionWriter,
};

use super::support::*;

async fn restore(f: &Fixture, run: &str, scope: &Scope, kept: &Kept) -> Result<CommitOutcome> {
    let base = f.table.head(scope).await.unwrap();
    let entry = CommitEntry {
        scope: scope.clone(),
        change: Change::Restore(kept.clone()),
        stamp: stamp(run, scope, Op::Restore),
        attempt: 1,
        finish: finish(),
    };
    commit(&f.table, &[entry], &base, true).await
}

fn kept(commit: Commit) -> Kept {
    commit.kept.unwrap()
}

#[tokio::test]
async fn single_partitions_of_a_commit_come_back_and_again() {
    let f = fixture().await;
    let both = days(&["2026-10-01", "2026-10-02"]);
    f.replace(
        "r1",
        &both,
        &[("2026-10-01", "FR", 1, 1, 0), ("2026-10-01", "DE", 2, 2, 0), ("2026-10-02", "FR", 3, 3, 0)],
    )
    .await;
    let replaced = kept(f.replace("r2", &both, &[("2026-10-01", "FR", 1, 9, 0)]).await);
    let one = days(&["2026-10-01"]);
    let undone = kept(committed(restore(&f, "back", &one, &replaced).await.unwrap()));
    assert_eq!(f.rows().await, ["2026-10-01/DE/2/2/0", "2026-10-01/FR/1/1/0"]);
    let outcome = restore(&f, "back", &one, &replaced).await.unwrap();
    assert!(matches!(outcome, CommitOutcome::AlreadyCommitted(_)));
    // A restore is undone like any other commit.
    committed(restore(&f, "forth", &one, &undone).await.unwrap());
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/9/0"]);
    // Below the key that was replaced.
    let german = scope(day("2026-10-01").and("country", "DE"));
    committed(restore(&f, "german", &german, &replaced).await.unwrap());
    assert_eq!(f.rows().await, ["2026-10-01/DE/2/2/0", "2026-10-01/FR/1/9/0"]);
    let other = days(&["2026-10-03"]);
    refused(restore(&f, "other", &other, &replaced).await, &["did not replace", "2026-10-03"]);
    f.table.forget(&replaced).await.unwrap();
    f.table.forget(&replaced).await.unwrap();
    let error = refused(restore(&f, "late", &one, &replaced).await, &["no longer kept"]);
    assert_eq!(error.kind(), ErrorKind::State);
}

#[tokio::test]
async fn a_merge_is_undone_row_by_row() {
    let f = fixture_of(Partitioning::unpartitioned()).await;
    let all = Scope::whole_table();
    f.replace(
        "r1",
        &all,
        &[("2026-10-01", "FR", 1, 1, 0), ("2026-10-01", "FR", 2, 2, 0), ("2026-10-01", "DE", 3, 3, 0)],
    )
    .await;
    let merge = MergeKeys { delete_vanished: Some([("country".to_owned(), value("FR"))].into()), ..by_id() };
    let rows = [("2026-10-01", "FR", 1, 11, 0), ("2026-10-01", "FR", 4, 4, 0)];
    let merged = kept(f.write("r2", &all, Intent::Merge(merge), &rows).await);
    assert_eq!(f.rows().await, ["2026-10-01/DE/3/3/0", "2026-10-01/FR/1/11/0", "2026-10-01/FR/4/4/0"]);
    let undone = kept(committed(restore(&f, "back", &all, &merged).await.unwrap()));
    assert_eq!(f.rows().await, ["2026-10-01/DE/3/3/0", "2026-10-01/FR/1/1/0", "2026-10-01/FR/2/2/0"]);
    committed(restore(&f, "forth", &all, &undone).await.unwrap());
    assert_eq!(f.rows().await, ["2026-10-01/DE/3/3/0", "2026-10-01/FR/1/11/0", "2026-10-01/FR/4/4/0"]);
}

#[tokio::test]
async fn a_dynamic_replace_gives_back_only_what_it_took() {
    let f = fixture().await;
    let both = days(&["2026-10-01", "2026-10-02"]);
    f.replace("r1", &both, &[("2026-10-01", "FR", 1, 1, 0), ("2026-10-02", "FR", 2, 2, 0)]).await;
    let dynamic = kept(f.write("r2", &both, Intent::ReplaceDynamic, &[("2026-10-02", "FR", 2, 3, 0)]).await);
    f.replace("r3", &days(&["2026-10-01"]), &[("2026-10-01", "FR", 1, 5, 0)]).await;
    committed(restore(&f, "back", &both, &dynamic).await.unwrap());
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/5/0", "2026-10-02/FR/2/2/0"]);
}

#[tokio::test]
async fn a_commit_of_several_entries_comes_back_as_one() {
    let f = fixture().await;
    let (one, two) = (days(&["2026-10-01"]), days(&["2026-10-02"]));
    let both = one.union(&two);
    f.replace("r1", &both, &[("2026-10-01", "FR", 1, 1, 0), ("2026-10-02", "FR", 2, 2, 0)]).await;
    let base = f.table.head(&both).await.unwrap();
    let first = f.stage("r2", &one, Intent::Replace, &[]).await.unwrap();
    let second = f.stage("r2", &two, Intent::Replace, &[("2026-10-02", "DE", 9, 9, 0)]).await.unwrap();
    let published = commit(&f.table, &[apply(&first), apply(&second)], &base, true).await.unwrap();
    let published = kept(committed(published));
    assert_eq!(f.rows().await, ["2026-10-02/DE/9/9/0"]);
    let undone = kept(committed(restore(&f, "back", &both, &published).await.unwrap()));
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/1/0", "2026-10-02/FR/2/2/0"]);
    committed(restore(&f, "forth", &both, &undone).await.unwrap());
    assert_eq!(f.rows().await, ["2026-10-02/DE/9/9/0"]);
}

#[tokio::test]
async fn rows_that_were_kept_for_long_go_with_a_later_commit() {
    const DAY: std::time::Duration = std::time::Duration::from_secs(86_400);
    let mut f = fixture().await;
    f.table = f.table.clone().with_kept_for(30 * DAY);
    let (one, two) = (days(&["2026-10-01"]), days(&["2026-10-02"]));
    f.replace("r1", &one, &[("2026-10-01", "FR", 1, 1, 0)]).await;
    let old = kept(f.replace("r2", &one, &[("2026-10-01", "FR", 1, 2, 0)]).await);
    let recent = kept(f.replace("r3", &one, &[("2026-10-01", "FR", 1, 3, 0)]).await);
    let number = |kept: &Kept| kept.0["kept"].to_string();
    for (kept, age) in [(&old, "30 days 1 second"), (&recent, "29 days 23 hours")] {
        let kept = number(kept);
        f.sql(&format!(
            "UPDATE reprocess.table_kept SET kept_at = kept_at - interval '{age}' WHERE kept = {kept}"
        ))
        .await;
    }
    f.replace("r4", &two, &[]).await;
    refused(restore(&f, "late", &one, &old).await, &["no longer kept"]);
    committed(restore(&f, "back", &one, &recent).await.unwrap());
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/2/0"]);
}

#[tokio::test]
async fn rows_are_not_freed_while_they_are_restored() {
    let f = fixture().await;
    let one = days(&["2026-10-01"]);
    f.replace("r1", &one, &[("2026-10-01", "FR", 1, 1, 0)]).await;
    let replaced = kept(f.replace("r2", &one, &[("2026-10-01", "FR", 1, 2, 0)]).await);
    // Another holds the row that the restore deletes, so that it stops after it has found what was kept.
    let mut other = f.other().await;
    sqlx::raw_sql("BEGIN; SELECT 1 FROM public.sales FOR UPDATE").execute(&mut other).await.unwrap();
    let release = async {
        f.until_waiting(1).await;
        let forgetting = tokio::spawn({
            let (table, replaced) = (f.table.clone(), replaced.clone());
            async move { table.forget(&replaced).await }
        });
        f.until_waiting(2).await;
        sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
        forgetting.await.unwrap().unwrap();
    };
    let (outcome, ()) = tokio::join!(restore(&f, "back", &one, &replaced), release);
    committed(outcome.unwrap());
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/1/0"]);
}
