//! Laws of restoring what commits replaced.

use std::collections::BTreeMap;

use super::fixture::Fixture;
use super::world::*;
use crate::ErrorKind;
use crate::domain::scope::Scope;
use crate::domain::slice::Kept;
use crate::domain::value::Value;
use crate::ports::writer::{Commit, CommitOutcome, CommitRequest, Intent, MergeKeys};

fn kept(commit: Commit) -> Kept {
    commit.kept.expect("the replaced rows were asked to be kept")
}

/// "Can be rolled back for just those partitions" (DESIGN 1, "contained").
pub(super) async fn a_restore_brings_back_the_partitions_asked_for_and_no_others(f: &dyn Fixture) {
    let w =
        World::with(f, &[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20), (WED, Some("FR"), 3, 30)]).await;
    let both = days(&[MON, TUE]);
    let replaced = kept(w.replace("fix", &both, &[(MON, Some("DE"), 1, 11), (TUE, Some("FR"), 2, 21)]).await);
    w.replace("daily", &days(&[WED]), &[(WED, Some("FR"), 3, 31)]).await;
    w.committed(&restore("undo", &days(&[MON]), &replaced)).await;
    let expected = [(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 21), (WED, Some("FR"), 3, 31)];
    assert_eq!(w.rows().await, lines(&expected));
    w.committed(&restore("undo", &days(&[TUE]), &replaced)).await;
    assert_eq!(w.rows().await, lines(&[expected[0], (TUE, Some("FR"), 2, 20), expected[2]]));
}

/// What was empty before is empty again.
pub(super) async fn a_partition_that_was_empty_is_empty_again(f: &dyn Fixture) {
    let w = World::with(f, &[(TUE, Some("FR"), 2, 20)]).await;
    let replaced = kept(w.replace("fix", &days(&[MON]), &[(MON, Some("FR"), 1, 10)]).await);
    w.committed(&restore("undo", &days(&[MON]), &replaced)).await;
    assert_eq!(w.rows().await, lines(&[(TUE, Some("FR"), 2, 20)]));
}

/// "Rollback is a run of its own": it can be taken back like any other (DESIGN 6).
pub(super) async fn a_restore_can_be_taken_back(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10)]).await;
    let monday = days(&[MON]);
    let replaced = kept(w.replace("fix", &monday, &[(MON, Some("DE"), 2, 20)]).await);
    let undone = kept(w.committed(&restore("undo", &monday, &replaced)).await);
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 1, 10)]));
    w.committed(&restore("redo", &monday, &undone)).await;
    assert_eq!(w.rows().await, lines(&[(MON, Some("DE"), 2, 20)]));
}

/// A restore has a base and a stamp: what moved since is not overwritten, and the same again writes nothing (DESIGN 6).
pub(super) async fn a_restore_has_a_base_and_a_stamp_like_any_commit(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10)]).await;
    let monday = days(&[MON]);
    let replaced = kept(w.replace("fix", &monday, &[]).await);
    let base = w.head(&monday).await;
    w.replace("daily", &monday, &[(MON, Some("FR"), 1, 12)]).await;
    let entry = restore("undo", &monday, &replaced);
    conflicts(&w.commit(std::slice::from_ref(&entry), &base).await, &[day(MON)]);
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 1, 12)]));
    let first = w.committed(&entry).await;
    w.replace("daily again", &monday, &[]).await;
    let base = w.head(&monday).await;
    let again = w.commit(std::slice::from_ref(&entry), &base).await;
    assert_eq!(again, CommitOutcome::AlreadyCommitted(first));
    assert!(w.rows().await.is_empty());
}

/// Rows are kept where that was asked for; what was freed is gone, and freeing it again does nothing
/// (`PartitionWriter::forget`).
pub(super) async fn rows_are_kept_where_asked_for_and_until_forgotten(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10)]).await;
    let monday = days(&[MON]);
    let entries = [w.entry("r1", &monday, &[]).await];
    let base = w.head(&monday).await;
    let request = CommitRequest {
        entries: &entries,
        base: &base,
        since: &base,
        fence: None,
        keep: false,
        ledger: None,
    };
    assert_eq!(done(w.writer().commit(request).await.unwrap()).kept, None);
    let replaced = kept(w.replace("r2", &monday, &[(MON, Some("FR"), 1, 11)]).await);
    w.writer().forget(&replaced).await.unwrap();
    w.writer().forget(&replaced).await.unwrap();
    let base = w.head(&monday).await;
    let late = w.try_commit(&[restore("undo", &monday, &replaced)], &base).await;
    refused(late, ErrorKind::State, &["kept"]);
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 1, 11)]));
}

/// A commit of many entries is taken back entry by entry, or as one.
pub(super) async fn a_commit_of_several_entries_comes_back_apart_or_together(f: &dyn Fixture) {
    let given = [(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)];
    let w = World::with(f, &given).await;
    let both = days(&[MON, TUE]);
    let base = w.head(&both).await;
    let first = w.entry("r1", &days(&[MON]), &[]).await;
    let second = w.entry("r1", &days(&[TUE]), &[(TUE, Some("DE"), 9, 90)]).await;
    let replaced = kept(done(w.commit(&[first, second], &base).await));
    w.committed(&restore("one", &days(&[TUE]), &replaced)).await;
    assert_eq!(w.rows().await, lines(&given[1..]));
    w.committed(&restore("both", &both, &replaced)).await;
    assert_eq!(w.rows().await, lines(&given));
}

/// A merge is taken back row by row, the deleted ones included.
pub(super) async fn a_merge_is_taken_back(f: &dyn Fixture) {
    let given = [(MON, Some("FR"), 1, 10), (MON, Some("FR"), 2, 20), (MON, Some("DE"), 3, 30)];
    let w = World::with(f, &given).await;
    let all = Scope::whole_table();
    let owner = BTreeMap::from([("country".to_owned(), Value::from("FR"))]);
    let merge = Intent::Merge(MergeKeys { delete_vanished: Some(owner), ..by_id() });
    let merged = [(MON, Some("FR"), 1, 11), (TUE, Some("FR"), 4, 40)];
    let replaced = kept(w.write("fix", &all, merge, &merged).await);
    assert_eq!(w.rows().await, lines(&[merged[0], given[2], merged[1]]));
    let undone = kept(w.committed(&restore("undo", &all, &replaced)).await);
    assert_eq!(w.rows().await, lines(&given));
    w.committed(&restore("redo", &all, &undone)).await;
    assert_eq!(w.rows().await, lines(&[merged[0], given[2], merged[1]]));
}
