//! Laws of commits of several entries.

use super::fixture::Fixture;
use super::world::*;
use crate::ErrorKind;
use crate::domain::slice::Base;
use crate::ports::writer::{Change, CommitEntry, CommitOutcome, Found, Intent};

async fn two(w: &World, run: &str) -> ([CommitEntry; 2], Base) {
    let base = w.head(&days(&[MON, TUE])).await;
    let first = w.entry(run, &days(&[MON]), &[(MON, Some("FR"), 1, 11)]).await;
    let second = w.entry(run, &days(&[TUE]), &[(TUE, Some("FR"), 2, 21)]).await;
    ([first, second], base)
}

const GIVEN: [Row; 2] = [(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)];
const AFTER: [Row; 2] = [(MON, Some("FR"), 1, 11), (TUE, Some("FR"), 2, 21)];

/// "Publishing commits many": all of them are in production with one version (DESIGN 5).
pub(super) async fn entries_are_committed_together(f: &dyn Fixture) {
    let w = World::with(f, &GIVEN).await;
    let (entries, base) = two(&w, "r1").await;
    let commit = done(w.commit(&entries, &base).await);
    assert_eq!(w.rows().await, lines(&AFTER));
    assert_eq!(commit.attempts, entries.each_ref().map(|e| (e.stamp.clone(), 1)));
    assert_eq!(commit.partitions.partitions, w.head(&days(&[MON, TUE])).await.partitions);
    let again = w.commit(&entries, &base).await;
    assert_eq!(again, CommitOutcome::AlreadyCommitted(commit.clone()));
    for entry in &entries {
        let found = w.writer().find_commit(&entry.stamp, &entry.scope, &base).await.unwrap();
        assert_eq!(found, Found::Yes(commit.clone()));
    }
}

/// "Acts on the scopes of its entries, all or nothing": one that moved keeps the others back (DESIGN 5; FIELD 6).
pub(super) async fn one_entry_that_conflicts_keeps_all_back(f: &dyn Fixture) {
    let w = World::with(f, &GIVEN).await;
    let (entries, base) = two(&w, "r1").await;
    w.replace("quick", &days(&[TUE]), &[(TUE, Some("DE"), 3, 30)]).await;
    conflicts(&w.commit(&entries, &base).await, &[day(TUE)]);
    assert_eq!(w.rows().await, lines(&[GIVEN[0], (TUE, Some("DE"), 3, 30)]));
    for entry in &entries {
        let found = w.writer().find_commit(&entry.stamp, &entry.scope, &base).await.unwrap();
        assert_eq!(found, Found::No);
    }
    let base = w.head(&days(&[MON, TUE])).await;
    done(w.commit(&entries, &base).await);
    assert_eq!(w.rows().await, lines(&AFTER));
}

/// An entry whose staged set is gone is an error, and the others are not committed either.
pub(super) async fn one_entry_without_its_staged_set_keeps_all_back(f: &dyn Fixture) {
    let w = World::with(f, &GIVEN).await;
    let (entries, base) = two(&w, "r1").await;
    let Change::Apply(second) = &entries[1].change else { panic!("an entry of a replace") };
    w.writer().discard(&second.id).await.unwrap();
    refused(w.try_commit(&entries, &base).await, ErrorKind::NotFound, &[]);
    assert_eq!(w.rows().await, lines(&GIVEN));
    let found = w.writer().find_commit(&entries[0].stamp, &entries[0].scope, &base).await.unwrap();
    assert_eq!(found, Found::No);
}

/// Of entries of which some were committed before, the others are committed and the answer names every stamp
/// (`CommitRequest::entries`); what was committed is not written again.
pub(super) async fn of_entries_that_were_partly_committed_the_others_are(f: &dyn Fixture) {
    let w = World::with(f, &GIVEN).await;
    let (entries, base) = two(&w, "r1").await;
    let first = done(w.commit(&entries[..1], &base).await);
    w.replace("later", &days(&[MON]), &[(MON, Some("DE"), 9, 90)]).await;
    let commit = done(w.commit(&entries, &base).await);
    assert_eq!(w.rows().await, lines(&[(MON, Some("DE"), 9, 90), AFTER[1]]));
    assert_eq!(commit.attempts, entries.each_ref().map(|e| (e.stamp.clone(), 1)));
    let found = w.writer().find_commit(&entries[0].stamp, &entries[0].scope, &base).await.unwrap();
    assert_eq!(found, Found::Yes(first), "its own commit is still the one that is found");
    let found = w.writer().find_commit(&entries[1].stamp, &entries[1].scope, &base).await.unwrap();
    assert_eq!(found, Found::Yes(commit));
}

/// Entries that were committed one by one are committed, and what several commits kept is nobody's to restore as one.
pub(super) async fn entries_that_were_committed_apart_are_already_committed(f: &dyn Fixture) {
    let w = World::with(f, &GIVEN).await;
    let (entries, base) = two(&w, "r1").await;
    let _ = done(w.commit(&entries[..1], &base).await);
    let last = done(w.commit(&entries[1..], &base).await);
    let CommitOutcome::AlreadyCommitted(sum) = w.commit(&entries, &base).await else {
        panic!("they are all committed");
    };
    assert_eq!(sum.version, last.version);
    assert_eq!(sum.attempts, entries.each_ref().map(|e| (e.stamp.clone(), 1)));
    assert_eq!(sum.partitions.partitions.len(), 2);
    assert_eq!(sum.kept, None);
    assert_eq!(w.rows().await, lines(&AFTER));
}

/// "The scopes of the entries of one commit are disjoint" (`CommitEntry::scope`); and a commit has entries that change
/// something.
pub(super) async fn requests_that_mean_two_things_are_refused(f: &dyn Fixture) {
    let w = World::with(f, &GIVEN).await;
    let monday = w.entry("r1", &days(&[MON]), &[]).await;
    let french = w.entry("r1", &scope(in_country(day(MON), Some("FR"))), &[]).await;
    let base = w.head(&monday.scope.union(&french.scope)).await;
    let refuse = async |entries: &[CommitEntry]| {
        refused(w.try_commit(entries, &base).await, ErrorKind::Invalid, &[]);
        assert_eq!(w.rows().await, lines(&GIVEN));
    };
    refuse(&[monday.clone(), french.clone()]).await;
    refuse(&[monday.clone(), monday.clone()]).await;
    refuse(&[]).await;
    refuse(&[CommitEntry { change: Change::Adopt, ..monday.clone() }]).await;
    refuse(&[CommitEntry { change: french.change.clone(), ..monday.clone() }]).await;
    let other = stamp("other", &monday.scope, &Intent::Replace);
    refuse(&[CommitEntry { stamp: other, ..monday }]).await;
}
