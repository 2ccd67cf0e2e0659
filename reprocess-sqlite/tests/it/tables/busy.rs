//! Several handles and processes on one file, and disks that are full.

use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use reprocess_core::ErrorKind;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::ledger::{LedgerReader, RunLedger};
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_core::ports::staged::StagedReader;
use reprocess_core::ports::writer::{CommitOutcome, CommitRequest, Intent, PartitionWriter};
use reprocess_sqlite::{SqliteConfig, SqliteLedger, SqliteTable};
use sqlx::{ConnectOptions, Executor};

use super::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_of_two_handles_wait_for_each_other() {
    let f = fixture().await;
    let second = Fixture {
        folder: tempfile::TempDir::new().unwrap(),
        db: open(&f.folder).await,
        table: SqliteTable::new(open(&f.folder).await, f.table.spec().clone()),
    };
    let work = (0..24_u64).map(|n| {
        let f = if n % 2 == 0 { &f } else { &second };
        async move {
            let d = (date("2026-01-01") + chrono::Days::new(n)).to_string();
            f.replace(&format!("r{n}"), &days(&[&d]), &[(&d, "FR", 1, 1, 0), (&d, "DE", 2, 2, 0)]).await;
        }
    });
    join_all(work).await;
    assert_eq!(f.rows().await.len(), 48);
    assert_eq!(f.version(PartitionKey::whole()).await.as_str(), "24");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_writers_of_one_empty_partition_one_wins() {
    let f = fixture().await;
    let one = days(&["2026-10-01"]);
    let other = SqliteTable::new(open(&f.folder).await, f.table.spec().clone());
    let base = f.table.head(&one).await.unwrap();
    let attempts = (0..8_i64).map(|n| {
        let table = if n % 2 == 0 { f.table.clone() } else { other.clone() };
        let (one, base) = (one.clone(), base.clone());
        async move {
            let rows = of(batch(&[("2026-10-01", "FR", n, n, 0)]));
            let staged = table.stage(&request(&format!("r{n}"), &one, Intent::Replace), rows).await.unwrap();
            commit(&table, &[apply(&staged)], &base, false).await.unwrap()
        }
    });
    let outcomes = join_all(attempts).await;
    assert_eq!(outcomes.iter().filter(|o| matches!(o, CommitOutcome::Committed(_))).count(), 1);
    assert_eq!(outcomes.iter().filter(|o| matches!(o, CommitOutcome::Conflicted { .. })).count(), 7);
    assert_eq!(f.rows().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lock_of_another_is_waited_for_and_staging_does_not_need_it() {
    let f = fixture().await;
    // The busy timeout is shorter than the lock is held, so that waiting is tried again.
    let path = f.db.path().to_owned();
    let db = SqliteConfig::new().with_busy_timeout_ms(20).open(&path).await.unwrap();
    let table = SqliteTable::new(db, f.table.spec().clone());
    let one = days(&["2026-10-01"]);
    let base = table.head(&one).await.unwrap();
    let mut other = f.other().await;
    other.execute("BEGIN EXCLUSIVE; INSERT INTO sales VALUES ('2026-11-01', 'FR', 1, 1, 1)").await.unwrap();
    let request = request("r1", &one, Intent::Replace);
    let staged = table.stage(&request, of(batch(&[("2026-10-01", "FR", 1, 1, 0)])));
    let staged = tokio::time::timeout(Duration::from_secs(10), staged).await.unwrap().unwrap();
    let entries = [apply(&staged)];
    let committing = commit(&table, &entries, &base, false);
    let releasing = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        other.execute("COMMIT").await.unwrap();
    };
    let (outcome, ()) = tokio::join!(committing, releasing);
    committed(outcome.unwrap());
    assert_eq!(f.rows().await.len(), 2);
}

#[tokio::test]
async fn a_lock_that_is_never_released_is_an_error_worth_a_retry() {
    let f = fixture().await;
    let config = SqliteConfig::new().with_busy_timeout_ms(1).with_lock_timeout_ms(50);
    let table = SqliteTable::new(config.open(f.db.path()).await.unwrap(), f.table.spec().clone());
    let one = days(&["2026-10-01"]);
    let base = table.head(&one).await.unwrap();
    let staged = table.stage(&request("r1", &one, Intent::Replace), of(batch(&[]))).await.unwrap();
    let mut other = f.other().await;
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    let error = refused(commit(&table, &[apply(&staged)], &base, false).await, &["locked"]);
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_retryable());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stream_keeps_its_snapshot_while_others_write() {
    let f = fixture().await;
    let rows: Vec<Row<'_>> = (0..500).map(|id| ("2026-10-01", "FR", id, 1, 0)).collect();
    f.replace("r1", &days(&["2026-10-01"]), &rows).await;
    let pinned = pin(&f.table, Slice::All).await.unwrap();
    let (_, mut stream) = f.table.read(&pinned).await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!(first.num_rows(), 2);
    f.replace("r2", &days(&["2026-10-01"]), &[]).await;
    let mut read = first.num_rows();
    while let Some(batch) = stream.next().await {
        read += batch.unwrap().num_rows();
    }
    assert_eq!(read, 500);
    // A stream that nobody reads to its end frees its connection.
    for _ in 0..300 {
        let (_, stream) = f.table.read(&pin(&f.table, Slice::All).await.unwrap()).await.unwrap();
        drop(stream);
    }
}

#[tokio::test]
async fn a_full_disk_is_for_an_operator_and_changes_nothing() {
    let f = fixture().await;
    let one = days(&["2026-10-01"]);
    f.replace("r1", &one, &[("2026-10-01", "FR", 1, 1, 0)]).await;
    let text = "x".repeat(500_000);
    let base = f.table.head(&one).await.unwrap();
    let staged = f.stage("r2", &one, Intent::Replace, &[("2026-10-01", &text, 1, 1, 0)]).await.unwrap();
    let small = SqliteConfig::new().with_max_pages(100).open(f.db.path()).await.unwrap();
    let small = SqliteTable::new(small, f.table.spec().clone());
    let error = refused(commit(&small, &[apply(&staged)], &base, false).await, &["full"]);
    assert_eq!(error.kind(), ErrorKind::Storage);
    assert!(!error.is_retryable());
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/1/0"]);
    committed(commit(&f.table, &[apply(&staged)], &base, false).await.unwrap());
    assert_eq!(f.rows().await.len(), 1);
}

#[tokio::test]
async fn files_that_are_none_and_files_of_a_newer_library_are_refused() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("text.db");
    std::fs::write(&path, "this is not a database, whatever its name says".repeat(100)).unwrap();
    let error = refused(reprocess_sqlite::SqliteDatabase::open(&path).await, &["text.db"]);
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let f = fixture().await;
    f.sql("UPDATE reprocess_meta SET version = 1000").await;
    let error = refused(
        reprocess_sqlite::SqliteDatabase::open(f.db.path()).await,
        &["tables of version 1000", "newer release"],
    );
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let error = refused(
        reprocess_sqlite::SqliteDatabase::open(folder.path().join("no/folder.db")).await,
        &["folder.db"],
    );
    assert_eq!(error.kind(), ErrorKind::Storage);
}

#[tokio::test]
async fn staged_rows_survive_the_process() {
    let f = fixture().await;
    let one = days(&["2026-10-01"]);
    let base = f.table.head(&one).await.unwrap();
    let staged = f.stage("r1", &one, Intent::Replace, &[("2026-10-01", "FR", 1, 1, 0)]).await.unwrap();
    f.db.close().await;
    let table = SqliteTable::new(open(&f.folder).await, f.table.spec().clone());
    assert_eq!(table.list(&"r1".into()).await.unwrap(), std::slice::from_ref(&staged.id));
    let again = table.open(&staged.id).await.unwrap().unwrap();
    assert_eq!(again, staged);
    committed(commit(&table, &[apply(&again)], &base, false).await.unwrap());
    assert!(table.open(&staged.id).await.unwrap().is_none());
    // A process that died right after its commit left its rows behind; the next staging removes them.
    let path = format!("{}.staged", f.db.path().display());
    let mut staged_file = sqlx::sqlite::SqliteConnectOptions::new().filename(path).connect().await.unwrap();
    let stamp = serde_json::to_string(&staged.id.stamp).unwrap();
    sqlx::query("INSERT INTO manifest (n, table_id, stamp, attempt, run, complete, staged) VALUES (99, 'sales', ?, 1, 'r1', 1, ?)")
        .bind(stamp)
        .bind(serde_json::to_string(&staged).unwrap())
        .execute(&mut staged_file)
        .await
        .unwrap();
    assert!(table.open(&staged.id).await.unwrap().is_some());
    table.stage(&request("r2", &one, Intent::Replace), of(batch(&[]))).await.unwrap();
    assert!(table.open(&staged.id).await.unwrap().is_none());
}

#[tokio::test]
async fn a_ledger_in_the_file_decides_and_records_in_the_transaction() {
    let f = fixture().await;
    let ledger = SqliteLedger::open(f.db.clone()).await.unwrap();
    let one = days(&["2026-10-01"]);
    let base = f.table.head(&one).await.unwrap();
    let now = chrono::DateTime::UNIX_EPOCH;
    let ttl = Duration::from_secs(60);
    let id = f.table.spec().id.clone();
    let fence = ledger.acquire(&id, &one, &"w1".into(), ttl, now).await.unwrap().unwrap();
    let staged = f.stage("r1", &one, Intent::Replace, &[("2026-10-01", "FR", 1, 1, 0)]).await.unwrap();
    let commit_with = async |fence: &reprocess_core::ports::ledger::Fence| {
        let entries = [apply(&staged)];
        let request = CommitRequest {
            entries: &entries,
            base: &base,
            since: &base,
            fence: Some(fence),
            keep: false,
            ledger: Some(&ledger),
        };
        f.table.commit(request).await.unwrap()
    };
    // Another worker took the lease after it ran out.
    let later = ledger.acquire(&id, &one, &"w2".into(), ttl, now + ttl * 2).await.unwrap().unwrap();
    assert_eq!(commit_with(&fence).await, CommitOutcome::Fenced);
    assert!(f.rows().await.is_empty());
    let done = committed(commit_with(&later).await);
    assert!(done.recorded);
    assert_eq!(commit_with(&fence).await, CommitOutcome::AlreadyCommitted(done));
    assert_eq!(ledger.position().await.unwrap(), 0);
}
