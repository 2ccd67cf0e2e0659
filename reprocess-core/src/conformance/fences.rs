//! Laws of commits that hold a lease, and of the ledger that a commit is told to.

use std::sync::Arc;
use std::time::Duration;

use super::fixture::Fixture;
use super::ledger::fixtures as filed;
use super::world::*;
use crate::ErrorKind;
use crate::domain::scope::Scope;
use crate::domain::slice::Base;
use crate::ports::ledger::{Fence, RunLedger, TaskFinish};
use crate::ports::writer::{CommitEntry, CommitOutcome, CommitRequest, Intent, StageRequest, StagedId};

const TTL: Duration = Duration::from_secs(60);

async fn take(w: &World, ledger: &dyn RunLedger, scope: &Scope, holder: &str, now: i64) -> Fence {
    let fence = ledger.acquire(&w.spec.id, scope, &holder.into(), TTL, filed::at(now)).await.unwrap();
    fence.expect("the lease is free")
}

async fn commit(
    w: &World,
    ledger: &dyn RunLedger,
    fence: Option<&Fence>,
    entry: &CommitEntry,
    base: &Base,
) -> crate::Result<CommitOutcome> {
    let entries = std::slice::from_ref(entry);
    let request = CommitRequest { entries, base, since: base, fence, keep: false, ledger: Some(ledger) };
    w.writer().commit(request).await
}

/// "Time-limited permission to try a write, with a fencing token that only grows": a worker that slept beyond its lease
/// is refused, the one that took it commits (DESIGN 2, 5; FIELD 10).
pub(super) async fn a_lease_that_passed_on_is_fenced_and_the_new_one_commits(f: &dyn Fixture) {
    let w = World::new(f).await;
    let (ledger, monday) = (w.place.ledger().await, days(&[MON]));
    let old = take(&w, &*ledger, &monday, "a", 0).await;
    let new = take(&w, &*ledger, &monday, "b", 60).await;
    let base = w.head(&monday).await;
    let entry = w.entry("r1", &monday, &[(MON, Some("FR"), 1, 10)]).await;
    assert_eq!(commit(&w, &*ledger, Some(&old), &entry, &base).await.unwrap(), CommitOutcome::Fenced);
    assert!(w.rows().await.is_empty());
    done(commit(&w, &*ledger, Some(&new), &entry, &base).await.unwrap());
    assert_eq!(w.rows().await.len(), 1);
}

/// "Where several apply: already committed, then conflicted, then fenced" (`CommitOutcome`).
pub(super) async fn what_is_done_is_said_before_what_moved_and_that_before_a_fence(f: &dyn Fixture) {
    let w = World::new(f).await;
    let (ledger, monday) = (w.place.ledger().await, days(&[MON]));
    let old = take(&w, &*ledger, &monday, "a", 0).await;
    let new = take(&w, &*ledger, &monday, "b", 60).await;
    let base = w.head(&monday).await;
    let entry = w.entry("r1", &monday, &[(MON, Some("FR"), 1, 10)]).await;
    let first = done(commit(&w, &*ledger, Some(&new), &entry, &base).await.unwrap());
    let again = commit(&w, &*ledger, Some(&old), &entry, &base).await.unwrap();
    assert_eq!(again, CommitOutcome::AlreadyCommitted(first));
    let other = w.entry("r2", &monday, &[]).await;
    conflicts(&commit(&w, &*ledger, Some(&old), &other, &base).await.unwrap(), &[day(MON)]);
}

/// "Lease expiry decides who may try, never correctness: the laws hold with leases switched off" (DESIGN 5).
pub(super) async fn without_a_lease_the_base_guards(f: &dyn Fixture) {
    let w = World::new(f).await;
    let (ledger, monday) = (w.place.ledger().await, days(&[MON]));
    let _held = take(&w, &*ledger, &monday, "a", 0).await;
    let base = w.head(&monday).await;
    let entry = w.entry("r1", &monday, &[(MON, Some("FR"), 1, 10)]).await;
    done(commit(&w, &*ledger, None, &entry, &base).await.unwrap());
    let late = w.entry("r2", &monday, &[]).await;
    conflicts(&commit(&w, &*ledger, None, &late, &base).await.unwrap(), &[day(MON)]);
    assert_eq!(w.rows().await.len(), 1);
}

/// A fence is permission for its table and scope only.
pub(super) async fn the_fence_of_another_scope_is_no_permission(f: &dyn Fixture) {
    let w = World::new(f).await;
    let (ledger, monday) = (w.place.ledger().await, days(&[MON]));
    let tuesday = take(&w, &*ledger, &days(&[TUE]), "a", 0).await;
    let elsewhere = ledger.acquire(&"other".into(), &monday, &"a".into(), TTL, filed::at(0)).await;
    let base = w.head(&monday).await;
    let entry = w.entry("r1", &monday, &[(MON, Some("FR"), 1, 10)]).await;
    for fence in [tuesday, elsewhere.unwrap().unwrap()] {
        refused(commit(&w, &*ledger, Some(&fence), &entry, &base).await, ErrorKind::Invalid, &["fence"]);
    }
    assert!(w.rows().await.is_empty());
}

/// "Writes data and ledger row in one transaction (`recorded: true`); else the engine calls `finish`" (DESIGN 5).
pub(super) async fn a_commit_says_whether_the_ledger_has_it(f: &dyn Fixture) {
    let w = World::new(f).await;
    let (ledger, monday) = (w.place.ledger().await, days(&[MON]));
    let base = w.head(&monday).await;
    let mut entry = w.entry("r1", &monday, &[(MON, Some("FR"), 1, 10)]).await;
    let mut record = filed::record("r1", &day(MON));
    record.stamp = entry.stamp.clone();
    entry.finish.records = vec![record];
    let first = done(commit(&w, &*ledger, None, &entry, &base).await.unwrap());
    let rows = ledger.run(&"r1".into()).await.unwrap();
    assert_eq!(first.recorded, rows.len() == 1, "{rows:?}");
    assert_eq!(first.recorded, w.writer().capabilities().ledger_in_commit);
    if first.recorded {
        assert_eq!(rows[0].record.output, Some(first.version.clone()));
        assert_eq!(rows[0].record.output_partition.as_ref(), first.partitions.partitions.get(&day(MON)));
    }
    ledger.finish(&first, std::slice::from_ref(&entry)).await.unwrap();
    assert_eq!(ledger.run(&"r1".into()).await.unwrap().len(), 1, "told again, it is still one row");
}

/// A ledger that lives elsewhere is only told what is true: the commit does not claim to be recorded there.
pub(super) async fn a_ledger_elsewhere_is_not_told_by_the_commit(f: &dyn Fixture) {
    let w = World::new(f).await;
    let (ledger, monday) = (crate::memory::MemoryLedger::new(), days(&[MON]));
    let base = w.head(&monday).await;
    let entry = w.entry("r1", &monday, &[]).await;
    assert!(!done(commit(&w, &ledger, None, &entry, &base).await.unwrap()).recorded);
}

/// "Only the staged set of the current claim can be committed" (DESIGN 5): a worker that was thought dead is refused
/// where data and ledger are one database, and learns of the other's commit everywhere.
pub(super) async fn a_worker_thought_dead_cannot_commit_over_the_one_that_went_on(f: &dyn Fixture) {
    let w = World::new(f).await;
    let (ledger, monday) = (w.place.ledger().await, days(&[MON]));
    filed::run(&*ledger, &filed::plan("fix", &[day(MON)], &[])).await;
    let base = w.head(&monday).await;
    let (zombie, second) = (attempt(&w, &ledger, 10).await, attempt(&w, &ledger, 70).await);
    if w.writer().capabilities().ledger_in_commit {
        let outcome = commit(&w, &*ledger, None, &zombie, &base).await.unwrap();
        assert_eq!(outcome, CommitOutcome::Fenced);
    }
    done(commit(&w, &*ledger, None, &second, &base).await.unwrap());
    let CommitOutcome::AlreadyCommitted(first) = commit(&w, &*ledger, None, &zombie, &base).await.unwrap()
    else {
        panic!("the work is done");
    };
    assert_eq!(first.attempts[0].1, 2);
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 2, 1)]));
}

/// Claims the one task of the backfill, and stages a row with the attempt's number.
async fn attempt(w: &World, ledger: &Arc<dyn RunLedger>, now: i64) -> CommitEntry {
    let claim = filed::claim(&**ledger, "w", 1, now).await.remove(0);
    let request = w.request("fix.1", &days(&[MON]), Intent::Replace).await;
    let request = StageRequest { id: StagedId { attempt: claim.attempt, ..request.id }, ..request };
    let rows = batch(&[(MON, Some("FR"), i64::from(claim.attempt), 1)]);
    let mut entry = apply(&w.writer().stage(&request, rows.into()).await.unwrap());
    let mut record = filed::record("fix.1", &day(MON));
    (record.stamp, record.attempt) = (entry.stamp.clone(), claim.attempt);
    entry.finish = TaskFinish { task: Some(("fix".into(), 1, claim.task)), ..filed::finish(vec![record]) };
    entry
}
