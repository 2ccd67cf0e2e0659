//! Laws of staged sets before they are committed.

use super::fixture::Fixture;
use super::world::*;
use crate::ErrorKind;
use crate::domain::decimal::Decimal;
use crate::domain::diff::DiffSpec;
use crate::domain::profile::{ProfileSpec, Total};
use crate::domain::scope::Scope;
use crate::domain::slice::{Pin, Slice};
use crate::ports::writer::{Intent, StageRequest, Staged, StagedId};

async fn overlaid(w: &World, staged: &[Staged], pin: &Pin) -> crate::Result<Vec<String>> {
    texts(w.staged().read_overlaid(staged, pin).await?.1).await
}

/// "Staged: written durably, guarded and profiled, but not visible in production" (DESIGN 2; FIELD 35).
pub(super) async fn staged_rows_are_not_visible(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10)]).await;
    let (head, pin) = (w.head(&Scope::whole_table()).await, w.pin(Slice::All).await);
    w.stage("r1", &days(&[MON]), Intent::Replace, &[(MON, Some("DE"), 2, 20)]).await;
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 1, 10)]));
    assert_eq!(w.head(&Scope::whole_table()).await.partitions, head.partitions);
    assert_eq!(w.read(&pin).await.unwrap(), lines(&[(MON, Some("FR"), 1, 10)]));
}

/// One profile for each key of the scope, of the staged rows; "after a replace this is the profile of production"
/// (`Staged::profiles`).
pub(super) async fn a_staged_set_is_profiled_as_production_will_be(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10)]).await;
    let both = days(&[MON, TUE]);
    let rows = [(MON, Some("FR"), 1, 11), (MON, None, 2, 20)];
    let spec = ProfileSpec::new().with_totals(["amount"]).with_keys(["id"]);
    let request = StageRequest { profile: spec.clone(), ..w.request("r1", &both, Intent::Replace).await };
    let staged = w.writer().stage(&request, batch(&rows).into()).await.unwrap();
    assert_eq!(staged.rows(), 2);
    let of: Vec<_> = staged.profiles.iter().map(|p| (p.partition.clone(), p.rows)).collect();
    assert_eq!(of, [(day(MON), 2), (day(TUE), 0)]);
    assert_eq!(staged.profiles[0].totals["amount"], Total::Exact(Decimal::from(31)));
    assert_eq!(staged.profiles[0].nulls["country"], 1);
    let commit = w.committed(&apply(&staged)).await;
    let (base, after) = w.writer().profile(&both, &spec).await.unwrap();
    assert_eq!(base.partitions, commit.partitions.partitions);
    let digests = |profiles: &[crate::domain::profile::Profile]| {
        let digest = |p: &crate::domain::profile::Profile| (p.rows, p.content.clone(), p.keys.clone());
        profiles.iter().map(digest).collect::<Vec<_>>()
    };
    assert_eq!(digests(&after), digests(&staged.profiles));
}

/// "A process that dies between any two steps leaves work that another completes without recomputing what is staged"
/// (DESIGN 6).
pub(super) async fn a_staged_set_outlives_the_process_that_staged_it(f: &dyn Fixture) {
    let mut w = World::new(f).await;
    let staged = w.stage("r1", &days(&[MON]), Intent::Replace, &[(MON, Some("FR"), 1, 10)]).await;
    let base = w.head(&staged.scope).await;
    w.table = w.place.open(&w.spec).await;
    if w.writer().capabilities().shadow {
        assert_eq!(w.staged().open(&staged.id).await.unwrap().as_ref(), Some(&staged));
    }
    // It travels through the ledger as JSON.
    let written = serde_json::to_string(&staged).unwrap();
    let read: Staged = serde_json::from_str(&written).unwrap();
    assert_eq!(read, staged);
    done(w.commit(&[apply(&read)], &base).await);
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 1, 10)]));
}

/// "List and re-open by id": of one run, in the order of ids; what is gone is not there (`StagedReader`).
pub(super) async fn staged_sets_are_found_by_run_and_id(f: &dyn Fixture) {
    let w = World::new(f).await;
    let monday = w.stage("r1", &days(&[MON]), Intent::Replace, &[(MON, Some("FR"), 1, 10)]).await;
    let tuesday = w.stage("r1", &days(&[TUE]), Intent::Replace, &[]).await;
    w.stage("r2", &days(&[MON]), Intent::Replace, &[]).await;
    let mut ids = vec![monday.id.clone(), tuesday.id.clone()];
    ids.sort();
    assert_eq!(w.staged().list(&"r1".into()).await.unwrap(), ids);
    assert_eq!(w.staged().list(&"r3".into()).await.unwrap(), []);
    assert_eq!(w.staged().open(&tuesday.id).await.unwrap().as_ref(), Some(&tuesday));
    let never = StagedId { attempt: 9, ..tuesday.id.clone() };
    assert_eq!(w.staged().open(&never).await.unwrap(), None);
    w.committed(&apply(&monday)).await;
    assert_eq!(w.staged().list(&"r1".into()).await.unwrap(), [tuesday.id]);
    assert_eq!(w.staged().open(&monday.id).await.unwrap(), None, "what is committed is staged no more");
}

/// "Discard: idempotent"; "discarding one staged partition of a shadow leaves the others" (DESIGN 5, 6).
pub(super) async fn a_discarded_set_cannot_be_committed_and_others_can(f: &dyn Fixture) {
    let w = World::new(f).await;
    let monday = w.entry("r1", &days(&[MON]), &[(MON, Some("FR"), 1, 10)]).await;
    let tuesday = w.stage("r1", &days(&[TUE]), Intent::Replace, &[(TUE, Some("FR"), 2, 20)]).await;
    w.writer().discard(&tuesday.id).await.unwrap();
    w.writer().discard(&tuesday.id).await.unwrap();
    if w.writer().capabilities().shadow {
        assert_eq!(w.staged().open(&tuesday.id).await.unwrap(), None);
    }
    let base = w.head(&tuesday.scope).await;
    refused(w.try_commit(&[apply(&tuesday)], &base).await, ErrorKind::NotFound, &[]);
    w.committed(&monday).await;
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 1, 10)]));
}

/// "Refuses what is committed": production does not lose its rows (`PartitionWriter::discard`; FIELD 17).
pub(super) async fn what_is_committed_cannot_be_discarded(f: &dyn Fixture) {
    let w = World::new(f).await;
    let staged = w.stage("r1", &days(&[MON]), Intent::Replace, &[(MON, Some("FR"), 1, 10)]).await;
    w.committed(&apply(&staged)).await;
    refused(w.writer().discard(&staged.id).await, ErrorKind::State, &["committed"]);
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 1, 10)]));
}

/// "Staging an id again replaces what was staged" (`PartitionWriter`).
pub(super) async fn staging_an_id_again_replaces_what_was_staged(f: &dyn Fixture) {
    let w = World::new(f).await;
    let monday = days(&[MON]);
    w.stage("r1", &monday, Intent::Replace, &[(MON, Some("FR"), 1, 1), (MON, Some("FR"), 2, 2)]).await;
    let second = w.stage("r1", &monday, Intent::Replace, &[(MON, Some("FR"), 3, 3)]).await;
    w.committed(&apply(&second)).await;
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 3, 3)]));
}

/// "An approval binds to the digest … of the staged outputs that the reviewer saw": other rows under the same id are not
/// committed by it, and equal rows have an equal digest (DESIGN 6).
pub(super) async fn a_digest_is_of_the_rows_and_binds_the_commit(f: &dyn Fixture) {
    let w = World::new(f).await;
    let monday = days(&[MON]);
    let rows = [(MON, Some("FR"), 1, 1), (MON, Some("FR"), 2, 2)];
    let seen = w.stage("r1", &monday, Intent::Replace, &rows).await;
    let turned = w.stage("r1", &monday, Intent::Replace, &[rows[1], rows[0]]).await;
    assert_eq!(turned.digest, seen.digest);
    let other = w.stage("r1", &monday, Intent::Replace, &[(MON, Some("FR"), 1, 9)]).await;
    assert_ne!(other.digest, seen.digest);
    let base = w.head(&monday).await;
    assert!(w.try_commit(&[apply(&seen)], &base).await.is_err(), "other rows than those that were seen");
    assert!(w.rows().await.is_empty());
}

/// The overlay shows the table "as it would be with the staged sets committed" (`StagedReader::read_overlaid`).
pub(super) async fn the_overlay_shows_what_the_commit_leaves(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20), ("", None, 8, 80)]).await;
    let pin = w.pin(Slice::All).await;
    let monday = w.stage("r1", &days(&[MON]), Intent::Replace, &[(MON, Some("DE"), 3, 30)]).await;
    let tuesday = w.stage("r1", &days(&[TUE]), Intent::Replace, &[]).await;
    let shadow = [monday, tuesday];
    assert_eq!(overlaid(&w, &[], &pin).await.unwrap(), w.rows().await);
    let shown = overlaid(&w, &shadow, &pin).await.unwrap();
    assert_eq!(shown, lines(&[(MON, Some("DE"), 3, 30), ("", None, 8, 80)]));
    let one = w.pin(Slice::Partitions([day(TUE)].into())).await;
    assert!(overlaid(&w, &shadow, &one).await.unwrap().is_empty());
    let base = w.head(&days(&[MON, TUE])).await;
    done(w.commit(&shadow.each_ref().map(apply), &base).await);
    assert_eq!(w.rows().await, shown);
}

/// "Within their scopes the pin's content is not compared": production may move below a shadow. Beside it the rows are
/// those of the pin, or it breaks (`StagedReader::read_overlaid`).
pub(super) async fn the_overlay_never_shows_other_rows_beside_the_staged_ones(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let planned = w.pin(Slice::Partitions([day(MON), day(TUE)].into())).await;
    let shadow = [w.stage("r1", &days(&[MON]), Intent::Replace, &[(MON, Some("DE"), 3, 30)]).await];
    let expected = lines(&[(MON, Some("DE"), 3, 30), (TUE, Some("FR"), 2, 20)]);
    w.replace("daily", &days(&[MON]), &[(MON, Some("FR"), 4, 40)]).await;
    assert_eq!(overlaid(&w, &shadow, &planned).await.unwrap(), expected, "only what is staged moved");
    w.replace("daily", &days(&[TUE]), &[(TUE, Some("FR"), 5, 50)]).await;
    match overlaid(&w, &shadow, &planned).await {
        Ok(shown) => assert_eq!(shown, expected),
        Err(error) => assert_eq!(error.kind(), ErrorKind::PinBroken, "{error}"),
    }
    let now = w.pin(planned.slice).await;
    let shown = overlaid(&w, &shadow, &now).await.unwrap();
    assert_eq!(shown, lines(&[(MON, Some("DE"), 3, 30), (TUE, Some("FR"), 5, 50)]));
}

/// "`profile_after`: production as it would be after the commit"; the difference is the one that the commit makes.
pub(super) async fn the_difference_and_the_profile_after_are_those_of_the_commit(f: &dyn Fixture) {
    let given = [(MON, Some("FR"), 1, 10), (MON, Some("FR"), 2, 20), (MON, Some("DE"), 3, 30)];
    let w = World::with(f, &given).await;
    let rows = [(MON, Some("FR"), 2, 25), (MON, Some("DE"), 3, 30), (MON, Some("FR"), 4, 40)];
    let staged = w.stage("r1", &days(&[MON, TUE]), Intent::Replace, &rows).await;
    let diffs = w.staged().diff(&staged, &DiffSpec::new(["id"])).await.unwrap();
    let counts: Vec<_> = diffs.iter().map(|d| (d.added, d.removed, d.changed, d.unchanged)).collect();
    assert_eq!(counts, [(1, 1, 1, 1), (0, 0, 0, 0)]);
    assert_eq!((&diffs[0].partition, &diffs[1].partition), (&day(MON), &day(TUE)));
    let spec = ProfileSpec::new().with_totals(["amount"]);
    let after = w.staged().profile_after(&staged, &spec).await.unwrap();
    assert_eq!((after[0].rows, after[0].totals["amount"]), (3, Total::Exact(Decimal::from(95))));
    w.committed(&apply(&staged)).await;
    assert_eq!(w.writer().profile(&staged.scope, &spec).await.unwrap().1, after);
}

/// "The diff is wrong when keys repeat or are NULL; crashes on empty tables" (FIELD 33).
pub(super) async fn a_difference_is_right_for_repeated_and_null_keys_and_empty_tables(f: &dyn Fixture) {
    let w = World::new(f).await;
    let monday = days(&[MON]);
    let rows = [(MON, Some("FR"), 1, 10), (MON, Some("FR"), 1, 10), (MON, None, 2, 20)];
    let counts = async |staged: &Staged, keys: &[&str]| {
        let diff = w.staged().diff(staged, &DiffSpec::new(keys.iter().copied())).await.unwrap().remove(0);
        (diff.added, diff.removed, diff.added + diff.unchanged + diff.changed)
    };
    let nothing = w.stage("r0", &monday, Intent::Replace, &[]).await;
    assert_eq!(counts(&nothing, &["id"]).await, (0, 0, 0));
    let first = w.stage("r1", &monday, Intent::Replace, &rows).await;
    assert_eq!(counts(&first, &["id"]).await, (3, 0, 3), "from an empty table");
    w.committed(&apply(&first)).await;
    let fewer = w.stage("r2", &monday, Intent::Replace, &rows[1..]).await;
    assert_eq!(counts(&fewer, &["id"]).await, (0, 1, 2), "one of two equal rows went");
    let same = w.stage("r3", &monday, Intent::Replace, &rows).await;
    assert_eq!(counts(&same, &["country"]).await, (0, 0, 3), "a key that is NULL");
    let all_gone = w.stage("r4", &monday, Intent::Replace, &[]).await;
    assert_eq!(counts(&all_gone, &["id"]).await, (0, 3, 0));
}
