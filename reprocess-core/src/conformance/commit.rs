//! Laws of the atomic step: stamp, base, races.

use futures::future::join_all;

use super::fixture::Fixture;
use super::world::*;
use crate::domain::partition::PartitionKey;
use crate::domain::scope::Scope;
use crate::domain::slice::{Base, Slice};
use crate::ports::writer::{
    CommitEntry, CommitOutcome, CommitRequest, Found, Intent, StageRequest, Staged, StagedId,
};

/// "The same stamp again answers `AlreadyCommitted` with the first commit's version and writes nothing" (DESIGN 5; FIELD
/// 16, 17).
pub(super) async fn the_same_stamp_again_answers_the_first_commit_and_writes_nothing(f: &dyn Fixture) {
    let w = World::new(f).await;
    let monday = days(&[MON]);
    let base = w.head(&monday).await;
    let entry = w.entry("r1", &monday, &[(MON, Some("FR"), 1, 10)]).await;
    let first = w.committed(&entry).await;
    let head = w.head(&Scope::whole_table()).await;
    let again = w.commit(std::slice::from_ref(&entry), &base).await;
    assert_eq!(
        again,
        CommitOutcome::AlreadyCommitted(first.clone()),
        "the reply was lost, and it asks again"
    );
    assert_eq!(w.head(&Scope::whole_table()).await, head, "nothing was written");
    w.replace("other", &monday, &[]).await;
    let again = w.commit(std::slice::from_ref(&entry), &base).await;
    assert_eq!(again, CommitOutcome::AlreadyCommitted(first), "also where others have replaced it since");
    assert!(w.rows().await.is_empty());
}

/// "A retry never grows the ledger" nor the table: a later attempt at work that is done learns so (DESIGN 1; FIELD 16).
pub(super) async fn another_attempt_at_committed_work_writes_nothing(f: &dyn Fixture) {
    let w = World::new(f).await;
    let monday = days(&[MON]);
    let base = w.head(&monday).await;
    let first = w.committed(&w.entry("r1", &monday, &[(MON, Some("FR"), 1, 10)]).await).await;
    let request = w.request("r1", &monday, Intent::Replace).await;
    let request = StageRequest { id: StagedId { attempt: 2, ..request.id }, ..request };
    let second = w.writer().stage(&request, batch(&[(MON, Some("FR"), 1, 99)]).into()).await.unwrap();
    let again = w.commit(&[apply(&second)], &base).await;
    assert_eq!(again, CommitOutcome::AlreadyCommitted(first.clone()));
    assert_eq!(first.attempts, [(request.id.stamp, 1)]);
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 1, 10)]));
}

/// "Ask for the stamp first" (FIELD 16): whether work was committed is known, also to another process.
pub(super) async fn a_commit_is_found_by_its_stamp(f: &dyn Fixture) {
    let w = World::new(f).await;
    let monday = days(&[MON]);
    let since = w.head(&monday).await;
    let entry = w.entry("r1", &monday, &[(MON, Some("FR"), 1, 10)]).await;
    assert_eq!(w.writer().find_commit(&entry.stamp, &monday, &since).await.unwrap(), Found::No);
    let commit = w.committed(&entry).await;
    w.replace("other", &monday, &[]).await;
    let other = w.place.open(&w.spec).await;
    let found = other.writer.find_commit(&entry.stamp, &monday, &since).await.unwrap();
    assert_eq!(found, Found::Yes(commit));
    let mut next = entry.stamp.clone();
    next.generation = 2;
    let found = other.writer.find_commit(&next, &monday, &since).await.unwrap();
    assert_eq!(found, Found::No, "another generation is other work");
}

/// A commit says the versions that everybody sees afterwards (`Commit::partitions`).
pub(super) async fn a_commit_says_the_versions_that_are_there_afterwards(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10)]).await;
    let both = days(&[MON, WED]);
    let commit = w.replace("r1", &both, &[(MON, Some("DE"), 2, 20)]).await;
    let head = w.head(&both).await;
    assert_eq!(commit.partitions.partitions, head.partitions);
    assert_eq!(head.partitions.keys().cloned().collect::<Vec<_>>(), [day(MON), day(WED)]);
    assert_eq!(commit.version, w.reader().current().await.unwrap());
}

/// "A partition that moved since answers `Conflicted`, never overwrites" (DESIGN 5; FIELD 9).
pub(super) async fn a_partition_that_moved_conflicts_and_is_not_overwritten(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let both = days(&[MON, TUE]);
    let base = w.head(&both).await;
    let entry = w.entry("slow", &both, &[]).await;
    w.replace("quick", &days(&[TUE]), &[(TUE, Some("FR"), 2, 21)]).await;
    let outcome = w.commit(std::slice::from_ref(&entry), &base).await;
    conflicts(&outcome, &[day(TUE)]);
    let CommitOutcome::Conflicted { moved } = &outcome else { panic!("it conflicted") };
    assert_eq!(Some(&moved[0].now), w.head(&both).await.partitions.get(&day(TUE)));
    conflicts(&w.commit(std::slice::from_ref(&entry), &base).await, &[day(TUE)]);
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 21)]));
    let found = w.writer().find_commit(&entry.stamp, &both, &base).await.unwrap();
    assert_eq!(found, Found::No, "a conflict is not a commit");
    w.committed(&entry).await;
    assert!(w.rows().await.is_empty(), "on a base that was taken anew the same staged set lands");
}

/// "Conflict is by partition, not by files … even when it was empty" (DESIGN 5; FIELD 11).
pub(super) async fn a_partition_that_was_empty_conflicts_too(f: &dyn Fixture) {
    let w = World::new(f).await;
    let monday = days(&[MON]);
    let base = w.head(&monday).await;
    let entry = w.entry("slow", &monday, &[(MON, Some("FR"), 1, 10)]).await;
    w.replace("quick", &monday, &[(MON, Some("DE"), 2, 20)]).await;
    conflicts(&w.commit(&[entry], &base).await, &[day(MON)]);
    assert_eq!(w.rows().await, lines(&[(MON, Some("DE"), 2, 20)]));
}

/// A key that binds only some dimensions moves with every partition below it, "also when a new one appears", and one
/// below moves with what was written above (`Base`).
pub(super) async fn a_key_moves_with_what_is_written_below_and_above_it(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let keys = [day(MON), in_country(day(MON), Some("DE")), in_country(day(MON), Some("FR")), day(TUE)];
    let scopes = keys.clone().map(scope);
    let mut bases = Vec::new();
    for scope in scopes.iter().chain([&Scope::whole_table()]) {
        bases.push(w.head(scope).await);
    }
    w.replace("below", &scopes[1], &[(MON, Some("DE"), 3, 30)]).await;
    let differs = async |scope: &Scope, base: &Base| w.head(scope).await.partitions != base.partitions;
    assert!(differs(&scopes[0], &bases[0]).await, "a country of the day appeared");
    assert!(differs(&scopes[1], &bases[1]).await);
    assert!(!differs(&scopes[2], &bases[2]).await, "the other country did not move");
    assert!(!differs(&scopes[3], &bases[3]).await, "nor did the other day");
    assert!(differs(&Scope::whole_table(), &bases[4]).await);
    w.replace("above", &scopes[0], &[]).await;
    assert!(differs(&scopes[2], &bases[2]).await, "it was replaced with the day");
    assert!(!differs(&scopes[3], &bases[3]).await);
}

/// "Two runs of the same interval … two overwrites of the same empty partition both succeed" (FIELD 10, 11): of writers
/// that race, one wins and the others learn it. Leases are off.
pub(super) async fn of_racing_commits_to_one_empty_partition_one_wins(f: &dyn Fixture) {
    let w = World::new(f).await;
    let monday = days(&[MON]);
    let base = w.head(&monday).await;
    let mut racers = Vec::new();
    for n in 0..6_i64 {
        racers.push((n, race(&w, &format!("r{n}"), &monday, &[(MON, Some("FR"), n, 1)], &base).await));
    }
    let mut winners = Vec::new();
    for (n, outcome) in join_all(racers.into_iter().map(|(n, racing)| async move { (n, racing.await) })).await
    {
        match outcome.unwrap() {
            CommitOutcome::Committed(_) => winners.push(n),
            outcome => conflicts(&outcome, &[day(MON)]),
        }
    }
    assert_eq!(winners.len(), 1, "{winners:?}");
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), winners[0], 1)]));
}

/// "Writers of different partitions get spurious conflicts: both land" (FIELD 12).
pub(super) async fn racing_commits_to_different_partitions_all_land(f: &dyn Fixture) {
    let w = World::new(f).await;
    let mut racers = Vec::new();
    let mut expected = Vec::new();
    for (n, text) in (0..).zip([MON, TUE, WED, "2026-10-08", "2026-10-09"]) {
        let scope = days(&[text]);
        let base = w.head(&scope).await;
        racers.push(race(&w, &format!("r{n}"), &scope, &[(text, Some("FR"), n, 1)], &base).await);
        expected.push((text, Some("FR"), n, 1));
    }
    for outcome in join_all(racers).await {
        done(outcome.unwrap());
    }
    assert_eq!(w.rows().await, lines(&expected));
}

/// The same work by two workers at once is committed once (FIELD 10, 16).
pub(super) async fn of_racing_attempts_at_one_stamp_one_is_committed(f: &dyn Fixture) {
    let w = World::new(f).await;
    let monday = days(&[MON]);
    let base = w.head(&monday).await;
    let mut racers = Vec::new();
    for attempt in 1..=4_u32 {
        let request = w.request("r1", &monday, Intent::Replace).await;
        let request = StageRequest { id: StagedId { attempt, ..request.id }, ..request };
        let rows = batch(&[(MON, Some("FR"), i64::from(attempt), 1)]);
        let staged = w.writer().stage(&request, rows.into()).await.unwrap();
        racers.push(committing(&w, staged, base.clone()).await);
    }
    let outcomes: Vec<_> = join_all(racers).await.into_iter().map(Result::unwrap).collect();
    let committed = outcomes.iter().filter(|o| matches!(o, CommitOutcome::Committed(_))).count();
    let already = outcomes.iter().filter(|o| matches!(o, CommitOutcome::AlreadyCommitted(_))).count();
    assert_eq!((committed, already), (1, 3), "{outcomes:?}");
    assert_eq!(w.rows().await.len(), 1);
}

type Racing = tokio::task::JoinHandle<CommitOutcome>;

/// Stages, and commits in a task of its own.
async fn race(w: &World, run: &str, scope: &Scope, rows: &[Row], base: &Base) -> Racing {
    let staged = w.stage(run, scope, Intent::Replace, rows).await;
    committing(w, staged, base.clone()).await
}

async fn committing(w: &World, staged: Staged, base: Base) -> Racing {
    let table = w.place.open(&w.spec).await;
    tokio::spawn(async move {
        let entries = [apply(&staged)];
        let request = CommitRequest {
            entries: &entries,
            base: &base,
            since: &base,
            fence: None,
            keep: false,
            ledger: None,
        };
        table.writer.commit(request).await.unwrap()
    })
}

/// What writers that are not ours do is noticed: the partitions they touch have moved, and no others (FIELD 9; DESIGN 4,
/// "contained").
pub(super) async fn what_strangers_write_moves_the_partitions_they_touch(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let (monday, tuesday) = (days(&[MON]), days(&[TUE]));
    let bases = [w.head(&monday).await, w.head(&tuesday).await];
    let first = w.entry("r1", &monday, &[]).await;
    let second = w.entry("r2", &tuesday, &[]).await;
    let pins = [
        w.pin(Slice::Partitions([day(MON)].into())).await,
        w.pin(Slice::Partitions([day(TUE)].into())).await,
    ];
    w.place.write_as_stranger(&w.spec, &batch(&[(MON, Some("l'été"), 3, 30)])).await;
    let version = w.reader().current().await.unwrap();
    let slices = pins.clone().map(|pin| pin.slice);
    let contents = w.reader().slice_versions(&version, &slices).await.unwrap();
    assert_ne!(contents[0], pins[0].content);
    assert_eq!(contents[1], pins[1].content);
    conflicts(&w.commit(&[first], &bases[0]).await, &[day(MON)]);
    done(w.commit(&[second], &bases[1]).await);
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 1, 10), (MON, Some("l'été"), 3, 30)]));
}

/// "Is never refreshed by a backend" (`CommitRequest::base`): a base that lacks a key of the commit is no permission.
pub(super) async fn a_base_without_a_key_of_the_scope_is_refused(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10)]).await;
    let entry: CommitEntry = w.entry("r1", &days(&[MON, TUE]), &[]).await;
    for base in [w.head(&days(&[TUE])).await, w.head(&scope(PartitionKey::of("country", "FR"))).await] {
        let outcome = w.try_commit(std::slice::from_ref(&entry), &base).await;
        refused(outcome, crate::ErrorKind::Invalid, &["day=2026-10-05"]);
    }
    assert_eq!(w.rows().await.len(), 1);
}
