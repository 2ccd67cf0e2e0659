//! Snapshots that expire, pins that are held, what commits kept, and staged files.

use reprocess_core::ErrorKind;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::reader::{Availability, SnapshotReader};
use reprocess_core::ports::writer::{
    Change, CommitEntry, CommitRequest, Found, Intent, Op, PartitionWriter, StampId,
};

use reprocess_core::domain::slice::Kept;

use crate::others;
use crate::races::data_files;
use crate::support::*;

fn restore(run: &str, scope: &Scope, kept: &Kept) -> CommitEntry {
    let stamp = StampId { op: Op::Restore, ..stamp(run, scope, &Intent::Replace) };
    entry(stamp, scope, Change::Restore(kept.clone()))
}

/// An expiry takes the snapshots that no tag and no branch needs, and the pins of those break; a pin that is held stays,
/// until it is released and the next expiry came.
#[tokio::test]
async fn a_held_pin_outlives_an_expiry_and_others_break() {
    let sales = Sales::with(&[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let held = sales.pin(Slice::Partitions([day(MON)].into())).await;
    let beside = sales.pin(Slice::Partitions([day(TUE)].into())).await;
    sales.table.hold(std::slice::from_ref(&held)).await.unwrap();
    sales.table.hold(std::slice::from_ref(&held)).await.unwrap();
    let first = sales.replace("r1", &days(&[MON]), &[(MON, Some("FR"), 1, 11)]).await;
    let lost = sales.pin(Slice::All).await;
    let second = sales.replace("r2", &Scope::whole_table(), &[]).await;
    for kept in [first.kept, second.kept] {
        sales.table.forget(&kept.unwrap()).await.unwrap();
    }
    assert_eq!(sales.raw().refs().await.len(), 2, "main and the tag of the pin");

    others::expire(&sales.raw()).await;
    assert_eq!(sales.table.availability(&lost.version).await.unwrap(), Availability::Expired);
    assert_eq!(sales.read(&lost).await.unwrap_err().kind(), ErrorKind::PinBroken);
    assert_eq!(sales.read(&held).await.unwrap(), ["2026-10-05/FR/1/10"]);
    assert_eq!(
        sales.table.availability(&held.version).await.unwrap(),
        Availability::Readable { until: None }
    );

    // Two pins share the snapshot: the tag goes with the last of them.
    sales.table.hold(std::slice::from_ref(&beside)).await.unwrap();
    sales.table.release(std::slice::from_ref(&held)).await.unwrap();
    others::expire(&sales.raw()).await;
    assert_eq!(sales.read(&beside).await.unwrap(), ["2026-10-06/FR/2/20"]);
    sales.table.release(std::slice::from_ref(&beside)).await.unwrap();
    sales.table.release(std::slice::from_ref(&beside)).await.unwrap();
    assert_eq!(sales.raw().refs().await, ["main"]);
    others::expire(&sales.raw()).await;
    let again = sales.again().await;
    assert_eq!(again.read(&held).await.err().unwrap().kind(), ErrorKind::PinBroken);
    assert_eq!(again.hold(std::slice::from_ref(&held)).await.unwrap_err().kind(), ErrorKind::PinBroken);
}

/// The newest snapshot is readable without an end, one that never was is none.
#[tokio::test]
async fn what_is_live_has_no_end() {
    let sales = Sales::with(&[(MON, Some("FR"), 1, 10)]).await;
    let now = sales.table.current().await.unwrap();
    assert_eq!(sales.table.availability(&now).await.unwrap(), Availability::Readable { until: None });
    assert_eq!(sales.table.availability(&"999".into()).await.unwrap(), Availability::Expired);
}

/// What a commit replaced comes back after any expiry, on paths that are new; once it is forgotten it does not.
#[tokio::test]
async fn what_is_kept_outlives_an_expiry() {
    let sales = Sales::with(&[(MON, Some("FR"), 1, 10), (TUE, None, 2, 20)]).await;
    let monday = days(&[MON]);
    let before = sales.raw().files().await;
    let kept = sales.replace("fix", &monday, &[(MON, Some("DE"), 2, 20)]).await.kept.unwrap();
    others::expire(&sales.raw()).await;
    let base = sales.table.head(&monday).await.unwrap();
    done(commit(&sales.table, &[restore("undo", &monday, &kept)], &base).await.unwrap());
    assert_eq!(sales.rows().await, texts(&[(MON, Some("FR"), 1, 10), (TUE, None, 2, 20)]));
    let after = sales.raw().files().await;
    assert_eq!(
        after.iter().filter(|file| before.contains(file)).count(),
        1,
        "Tuesday's file alone is an old one"
    );

    let kept = sales.replace("again", &monday, &[]).await.kept.unwrap();
    sales.table.forget(&kept).await.unwrap();
    sales.table.forget(&kept).await.unwrap();
    let base = sales.table.head(&monday).await.unwrap();
    let error = commit(&sales.table, &[restore("late", &monday, &kept)], &base).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::State);
    assert_eq!(sales.rows().await, texts(&[(TUE, None, 2, 20)]));
}

/// The files of a restored partition stay when the snapshots before it expire.
#[tokio::test]
async fn an_expiry_after_a_restore_removes_nothing_that_is_live() {
    let sales = Sales::with(&[(MON, Some("FR"), 1, 10)]).await;
    let monday = days(&[MON]);
    let kept = sales.replace("fix", &monday, &[(MON, Some("FR"), 1, 11)]).await.kept.unwrap();
    let base = sales.table.head(&monday).await.unwrap();
    let undone = done(commit(&sales.table, &[restore("undo", &monday, &kept)], &base).await.unwrap());
    for kept in [kept, undone.kept.unwrap()] {
        sales.table.forget(&kept).await.unwrap();
    }
    others::expire(&sales.raw()).await;
    assert_eq!(sales.rows().await, texts(&[(MON, Some("FR"), 1, 10)]));
    assert_eq!(sales.raw().history().await.len(), 1);
    assert_eq!(data_files(&sales), 1);
}

/// The whole table comes back by moving main; the same files are live, and the history says what was taken back.
#[tokio::test]
async fn a_whole_table_is_rolled_back_without_copies() {
    let sales = Sales::with(&[(MON, Some("FR"), 1, 10), (TUE, None, 2, 20)]).await;
    let (all, before) = (Scope::whole_table(), sales.raw().files().await);
    let since = sales.table.head(&all).await.unwrap();
    let kept = sales.replace("fix", &all, &[(MON, None, 3, 30)]).await.kept.unwrap();
    let base = sales.table.head(&all).await.unwrap();
    done(commit(&sales.table, &[restore("undo", &all, &kept)], &base).await.unwrap());
    assert_eq!(sales.rows().await, texts(&[(MON, Some("FR"), 1, 10), (TUE, None, 2, 20)]));
    assert_eq!(sales.raw().files().await, before);
    let found = sales.again().await.find_commit(&stamp("fix", &all, &Intent::Replace), &all, &since).await;
    assert!(matches!(found.unwrap(), Found::Yes(_)), "it was committed, whatever became of it");
}

/// A set that a commit has claimed keeps its files when it is discarded: the commit may still be on its way.
#[tokio::test]
async fn files_of_a_set_that_is_being_committed_are_not_removed() {
    let sales = Sales::new().await;
    let scope = days(&[MON]);
    let staged =
        stage(&sales.table, "r1", &scope, Intent::Replace, batch(&[(MON, None, 1, 10)])).await.unwrap();
    let note = walk(sales.folder())
        .into_iter()
        .find(|path| path.ends_with(".json") && path.contains("staged"))
        .unwrap();
    std::fs::write(note.replace(".json", ".claimed"), "commit").unwrap();
    sales.table.discard(&staged.id).await.unwrap();
    assert_eq!(data_files(&sales), 1);
    let base = sales.table.head(&scope).await.unwrap();
    let late = commit(&sales.table, &[apply(&staged)], &base).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::NotFound, "it is discarded all the same");

    let other =
        stage(&sales.table, "r2", &scope, Intent::Replace, batch(&[(MON, None, 2, 20)])).await.unwrap();
    sales.table.discard(&other.id).await.unwrap();
    assert_eq!(data_files(&sales), 1, "nobody had claimed this one");
    assert_eq!(commit(&sales.table, &[apply(&other)], &base).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(sales.rows().await.is_empty());
}

/// A staged file that was removed meanwhile is found before the commit: a snapshot that names it could not be read.
#[tokio::test]
async fn a_staged_file_that_is_gone_is_not_committed() {
    let sales = Sales::new().await;
    let monday = days(&[MON]);
    let staged =
        stage(&sales.table, "r1", &monday, Intent::Replace, batch(&[(MON, None, 1, 10)])).await.unwrap();
    let file = walk(sales.folder()).into_iter().find(|path| path.ends_with(".parquet")).unwrap();
    std::fs::remove_file(file).unwrap();
    let base = sales.table.head(&monday).await.unwrap();
    let error = commit(&sales.table, &[apply(&staged)], &base).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("stage them again"), "{error}");
    assert!(sales.rows().await.is_empty());
    assert_eq!(sales.table.staged().unwrap().open(&staged.id).await.unwrap(), None);
}

/// Where snapshots since the plan have expired it cannot be told whether work is done, and it is not done twice.
#[tokio::test]
async fn a_history_that_expired_does_not_claim_to_know() {
    let sales = Sales::with(&[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let monday = days(&[MON]);
    let since = sales.table.head(&monday).await.unwrap();
    let kept = sales.replace("r1", &monday, &[(MON, Some("FR"), 1, 11)]).await.kept.unwrap();
    sales.table.forget(&kept).await.unwrap();
    let kept = sales.replace("r2", &days(&[TUE]), &[]).await.kept.unwrap();
    sales.table.forget(&kept).await.unwrap();
    others::expire(&sales.raw()).await;
    let table = sales.again().await;
    let r1 = stamp("r1", &monday, &Intent::Replace);
    assert_eq!(table.find_commit(&r1, &monday, &since).await.unwrap(), Found::HistoryExpired);
    let staged = stage(&table, "r1", &monday, Intent::Replace, batch(&[(MON, None, 9, 90)])).await.unwrap();
    let now = table.head(&monday).await.unwrap();
    let entries = [apply(&staged)];
    let request = CommitRequest {
        entries: &entries,
        base: &now,
        since: &since,
        fence: None,
        keep: false,
        ledger: None,
    };
    let error = table.commit(request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::State);
    assert_eq!(sales.rows().await, texts(&[(MON, Some("FR"), 1, 11)]));
}
