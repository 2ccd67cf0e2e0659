//! Attempts that hang, or died, with rows of theirs staged.

use std::time::Duration;

use reprocess_core::ports::writer::{CommitOutcome, Intent, PartitionWriter, StageRequest, Staged};
use sqlx::{Executor, PgConnection};

use crate::tables::support::*;

const DAY: &str = "2026-10-01";

fn attempt(number: u32) -> StageRequest {
    let mut request = request("r1", &days(&[DAY]), Intent::Replace);
    request.id.attempt = number;
    request
}

async fn stage(f: &Fixture, number: u32, amount: i64) -> Staged {
    let rows = of(batch(&[(DAY, "FR", 1, amount, 0)]));
    f.table.stage(&attempt(number), rows).await.unwrap()
}

/// The tables of staged rows that are there, and the sets that are listed.
async fn left(f: &Fixture) -> (i64, i64) {
    let sql = "SELECT (SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'stage\\_%'),
                      (SELECT count(*) FROM reprocess.table_staged)";
    sqlx::query_as(sql).fetch_one(&mut f.other().await).await.unwrap()
}

async fn write(f: &Fixture, staged: &Staged) {
    let base = f.table.head(&staged.scope).await.unwrap();
    committed(commit(&f.table, &[apply(staged)], &base, true).await.unwrap());
}

#[tokio::test]
async fn what_attempts_that_died_had_staged_goes_with_the_commit_of_another() {
    let f = fixture().await;
    stage(&f, 1, 1).await;
    let second = stage(&f, 2, 2).await;
    assert_eq!(left(&f).await, (2, 2));
    write(&f, &second).await;
    assert_eq!(left(&f).await, (0, 0));
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/2/0"]);
}

/// A process that is stopped in its COPY is neither idle nor gone for the server, and keeps its locks.
#[tokio::test]
async fn an_attempt_that_hangs_in_its_copy_does_not_hold_up_the_next() {
    let f = fixture().await;
    stage(&f, 1, 1).await;
    let mut hanging: PgConnection = f.other().await;
    hanging
        .execute("UPDATE reprocess.table_staged SET complete = false, staged = NULL, row_count = NULL")
        .await
        .unwrap();
    hanging.execute("BEGIN").await.unwrap();
    let copy = hanging.copy_in_raw("COPY reprocess.stage_1 FROM STDIN").await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(10), async {
        let second = stage(&f, 2, 2).await;
        write(&f, &second).await;
    });
    next.await.unwrap();
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/2/0"]);
    assert_eq!(left(&f).await, (1, 0));
    copy.abort("it goes on after all").await.unwrap();
    hanging.execute("ROLLBACK").await.unwrap();
    f.replace("r2", &days(&[DAY]), &[]).await;
    assert_eq!(left(&f).await, (0, 0));
}

#[tokio::test]
async fn what_an_attempt_staged_beside_the_commit_of_another_goes_too() {
    let f = fixture().await;
    let (one, two) = (stage(&f, 1, 1).await, stage(&f, 2, 2).await);
    write(&f, &one).await;
    // The other was still being written then.
    f.sql(
        "INSERT INTO reprocess.table_staged (table_id, digest, stamp, attempt, run, complete, layout)
           SELECT 'sales', digest, stamp, 3, 'r1', false, '' FROM reprocess.table_stamp",
    )
    .await;
    let late = stage(&f, 2, 2).await;
    assert_eq!(late.digest, two.digest);
    assert_eq!(left(&f).await, (1, 2));
    let base = f.table.head(&late.scope).await.unwrap();
    let outcome = commit(&f.table, &[apply(&late)], &base, true).await.unwrap();
    assert!(matches!(outcome, CommitOutcome::AlreadyCommitted(_)));
    assert_eq!(left(&f).await, (0, 1));
    // One whose attempt died goes after a day.
    f.sql("UPDATE reprocess.table_staged SET begun_at = begun_at - interval '25 hours'").await;
    f.replace("r2", &days(&[DAY]), &[]).await;
    assert_eq!(left(&f).await, (0, 0));
}
