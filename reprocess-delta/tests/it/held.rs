//! Versions that expire by file, pins that are held, and what commits kept.

use chrono::Duration;
use reprocess_core::ErrorKind;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::reader::{Availability, SnapshotReader};
use reprocess_core::ports::writer::{Change, CommitRequest, Found, Intent, Op, PartitionWriter, StampId};

use reprocess_delta::deltalake;

use crate::support::*;

/// A vacuum takes the files of versions that nobody holds, and the pins of those break; a pin that is held stays, until it
/// is released and the next vacuum came.
#[tokio::test]
async fn a_held_pin_outlives_a_vacuum_and_others_break() {
    let sales = Sales::with(&[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let held = sales.pin(Slice::Partitions([day(MON)].into())).await;
    sales.table.hold(std::slice::from_ref(&held)).await.unwrap();
    sales.replace("r1", &days(&[MON]), &[(MON, Some("FR"), 1, 11)]).await;
    let lost = sales.pin(Slice::All).await;
    let commit = sales.replace("r2", &Scope::whole_table(), &[]).await;
    sales.table.forget(&commit.kept.unwrap()).await.unwrap();
    // What the first replace kept is freed too, so that only the pin holds it.
    let versions = sales.table.needed_versions().await.unwrap();
    assert!(versions.contains(&held.version.as_str().parse().unwrap()), "{versions:?}");
    let until = sales.table.availability(&lost.version).await.unwrap();
    assert!(
        matches!(until, Availability::Readable { until: Some(_) }),
        "a week after it was removed: {until:?}"
    );

    let removed = sales.table.vacuum(Duration::zero(), false).await.unwrap();
    assert_eq!(removed.len(), 1, "the file of the replaced Monday: {removed:?}");
    assert_eq!(sales.table.availability(&lost.version).await.unwrap(), Availability::Expired);
    assert_eq!(sales.read(&lost).await.unwrap_err().kind(), ErrorKind::PinBroken);
    assert_eq!(sales.read(&held).await.unwrap(), ["2026-10-05/FR/1/10"]);

    sales.table.release(std::slice::from_ref(&held)).await.unwrap();
    // What the first commits kept is still needed; the pin alone is not.
    for version in sales.table.needed_versions().await.unwrap() {
        let folder = sales.path().join("_reprocess/kept").join(version.to_string());
        std::fs::remove_dir_all(folder).unwrap();
    }
    sales.table.vacuum(Duration::zero(), false).await.unwrap();
    let error = sales.read(&held).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PinBroken);
    assert!(error.to_string().contains("files of the pinned version are gone"), "{error}");
}

/// The last version is readable without an end, one that never was is none.
#[tokio::test]
async fn what_is_live_has_no_end() {
    let sales = Sales::with(&[(MON, Some("FR"), 1, 10)]).await;
    let now = sales.table.current().await.unwrap();
    assert_eq!(sales.table.availability(&now).await.unwrap(), Availability::Readable { until: None });
    // Another partition came: the files of the version are all still live.
    sales.replace("r1", &days(&[TUE]), &[(TUE, None, 2, 20)]).await;
    assert_eq!(sales.table.availability(&now).await.unwrap(), Availability::Readable { until: None });
    assert_eq!(sales.table.availability(&"999".into()).await.unwrap(), Availability::Expired);
}

/// What a commit replaced comes back after any vacuum of ours; after another tool's it says that it is gone.
#[tokio::test]
async fn what_is_kept_outlives_our_vacuum() {
    let sales = Sales::with(&[(MON, Some("FR"), 1, 10)]).await;
    let monday = days(&[MON]);
    let kept = sales.replace("fix", &monday, &[(MON, Some("DE"), 2, 20)]).await.kept.unwrap();
    sales.table.vacuum(Duration::zero(), false).await.unwrap();
    let restore = |run: &str| {
        let stamp = StampId { op: Op::Restore, ..stamp(run, &monday, &Intent::Replace) };
        entry(stamp, &monday, Change::Restore(kept.clone()))
    };
    let base = sales.table.head(&monday).await.unwrap();
    done(commit(&sales.table, &[restore("undo")], &base).await.unwrap());
    assert_eq!(sales.rows().await, texts(&[(MON, Some("FR"), 1, 10)]));

    sales.replace("again", &monday, &[]).await;
    let raw = sales.raw().await;
    raw.vacuum()
        .with_retention_period(Duration::zero())
        .with_enforce_retention_duration(false)
        .await
        .unwrap();
    let base = sales.table.head(&monday).await.unwrap();
    let error = commit(&sales.table, &[restore("late")], &base).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::State);
    assert!(error.to_string().contains("needed_versions"), "{error}");
    assert!(sales.rows().await.is_empty());
}

/// A set that a commit has claimed keeps its files when it is discarded: the commit may still be on its way.
#[tokio::test]
async fn files_of_a_set_that_is_being_committed_are_not_removed() {
    let sales = Sales::new().await;
    let scope = days(&[MON]);
    let staged =
        stage(&sales.table, "r1", &scope, Intent::Replace, batch(&[(MON, None, 1, 10)])).await.unwrap();
    let files = || walk(&sales.path()).into_iter().filter(|path| path.ends_with(".parquet")).count();
    let note = walk(&sales.path())
        .into_iter()
        .find(|path| path.ends_with(".json") && path.contains("staged"))
        .unwrap();
    std::fs::write(note.replace(".json", ".claimed"), "commit").unwrap();
    sales.table.discard(&staged.id).await.unwrap();
    assert_eq!(files(), 1);
    let base = sales.table.head(&scope).await.unwrap();
    let late = commit(&sales.table, &[apply(&staged)], &base).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::NotFound, "it is discarded all the same");

    let other =
        stage(&sales.table, "r2", &scope, Intent::Replace, batch(&[(MON, None, 2, 20)])).await.unwrap();
    sales.table.discard(&other.id).await.unwrap();
    assert_eq!(files(), 1, "nobody had claimed this one");
    assert_eq!(commit(&sales.table, &[apply(&other)], &base).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(sales.rows().await.is_empty());
}

fn walk(folder: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(walk(&path));
        } else {
            found.push(path.to_str().unwrap().to_owned());
        }
    }
    found
}

/// A staged file that was removed meanwhile is found before the commit: a version that names it could not be read.
#[tokio::test]
async fn a_staged_file_that_is_gone_is_not_committed() {
    let sales = Sales::new().await;
    let monday = days(&[MON]);
    let staged =
        stage(&sales.table, "r1", &monday, Intent::Replace, batch(&[(MON, None, 1, 10)])).await.unwrap();
    let raw = sales.raw().await;
    let (_, metrics) = raw
        .vacuum()
        .with_mode(deltalake::operations::vacuum::VacuumMode::Full)
        .with_retention_period(Duration::zero())
        .with_enforce_retention_duration(false)
        .await
        .unwrap();
    assert_eq!(metrics.files_deleted.len(), 1);
    let base = sales.table.head(&monday).await.unwrap();
    let error = commit(&sales.table, &[apply(&staged)], &base).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("stage them again"), "{error}");
    assert!(sales.rows().await.is_empty());
    assert_eq!(sales.table.staged().unwrap().open(&staged.id).await.unwrap(), None);
}

/// A log that was cleaned does not know its commits any more. It still tells which partitions were written since, and work
/// of which it cannot be told whether it is done is not done twice.
#[tokio::test]
async fn a_cleaned_log_does_not_claim_to_know() {
    let sales = Sales::with(&[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let (monday, tuesday) = (days(&[MON]), days(&[TUE]));
    let (since, beside) =
        (sales.table.head(&monday).await.unwrap(), sales.table.head(&tuesday).await.unwrap());
    sales.replace("r1", &monday, &[(MON, Some("FR"), 1, 11)]).await;
    deltalake::checkpoints::create_checkpoint(&sales.raw().await, None).await.unwrap();
    for version in 0..=2 {
        std::fs::remove_file(sales.path().join(format!("_delta_log/{version:020}.json"))).unwrap();
    }
    let table = sales.again();
    let find = async |scope: &Scope, since| {
        table.find_commit(&stamp("r1", scope, &Intent::Replace), scope, since).await.unwrap()
    };
    assert_eq!(find(&monday, &since).await, Found::HistoryExpired);
    assert_eq!(find(&tuesday, &beside).await, Found::No);
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
    assert!(error.to_string().contains("logRetentionDuration"), "{error}");
    assert_eq!(sales.rows().await, texts(&[(MON, Some("FR"), 1, 11), (TUE, Some("FR"), 2, 20)]));
}
