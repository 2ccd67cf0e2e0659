//! Laws of merging by key.

use std::collections::BTreeMap;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};

use super::fixture::Fixture;
use super::world::*;
use crate::domain::job::TableSpec;
use crate::domain::partition::Partitioning;
use crate::domain::scope::Scope;
use crate::domain::slice::Slice;
use crate::domain::value::Value;
use crate::ports::writer::{Intent, MergeKeys};

/// `amount` is the column by which a row is newer.
fn newest() -> Intent {
    Intent::Merge(MergeKeys { newer: Some("amount".into()), ..by_id() })
}

fn plain() -> Intent {
    Intent::Merge(by_id())
}

/// "A declared `newer` column (older never overwrites newer) makes the order of re-runs irrelevant" (DESIGN 5).
pub(super) async fn with_a_newer_column_every_order_gives_the_same_table(f: &dyn Fixture) {
    let batches: [&[Row]; 3] = [
        &[(MON, Some("FR"), 1, 1), (MON, Some("FR"), 2, 5), (MON, None, 4, 0)],
        &[(MON, Some("DE"), 1, 3), (TUE, Some("FR"), 3, 1), (MON, Some("FR"), 2, 4)],
        &[(TUE, Some("FR"), 1, 2), (TUE, Some("DE"), 3, 9), (MON, Some("FR"), 4, 7)],
    ];
    let expected =
        [(MON, Some("DE"), 1, 3), (MON, Some("FR"), 2, 5), (MON, Some("FR"), 4, 7), (TUE, Some("DE"), 3, 9)];
    let mut w = World::new(f).await;
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        w.spec = TableSpec::new(format!("sales{order:?}"), by_day_and_country());
        w.table = w.place.open(&w.spec).await;
        w.writer().create(&columns()).await.unwrap();
        for (turn, number) in order.iter().chain(&order).enumerate() {
            w.write(&format!("r{turn}"), &Scope::whole_table(), newest(), batches[*number]).await;
        }
        assert_eq!(w.rows().await, lines(&expected), "{order:?}");
    }
}

/// "An older or equally old row never overwrites"; a row without an age is older than all else (`MergeKeys::newer`).
pub(super) async fn an_older_or_equally_old_row_never_overwrites(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10), (MON, Some("FR"), 2, 20)]).await;
    let rows = [(MON, Some("DE"), 1, 9), (MON, Some("DE"), 2, 20), (MON, Some("DE"), 3, 0)];
    w.write("r1", &days(&[MON]), newest(), &rows).await;
    let expected = [(MON, Some("FR"), 1, 10), (MON, Some("FR"), 2, 20), (MON, Some("DE"), 3, 0)];
    assert_eq!(w.rows().await, lines(&expected));

    let aged = |rows: &[(i64, Option<i64>)]| {
        let columns: [(&str, ArrayRef); 2] = [
            ("id", std::sync::Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.0)))),
            ("amount", std::sync::Arc::new(rows.iter().map(|r| r.1).collect::<Int64Array>())),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
    };
    let w = World::of(f, Partitioning::unpartitioned(), &aged(&[]).schema()).await;
    for (run, rows) in [("r1", [(1, None), (2, Some(5))]), ("r2", [(1, Some(-9)), (2, None)])] {
        let staged = w.try_stage(run, &Scope::whole_table(), newest(), aged(&rows)).await.unwrap();
        w.committed(&apply(&staged)).await;
    }
    assert_eq!(w.rows().await, ["1/-9", "2/5"]);
}

/// Without a `newer` column the last merge wins, and the same merge again changes nothing (DESIGN 1, "idempotent").
pub(super) async fn without_a_newer_column_the_last_merge_wins(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10), (MON, Some("FR"), 2, 20)]).await;
    let rows = [(MON, Some("DE"), 1, 5), (TUE, None, 3, 0)];
    for run in ["r1", "r2"] {
        w.write(run, &Scope::whole_table(), plain(), &rows).await;
        assert_eq!(w.rows().await, lines(&[rows[0], (MON, Some("FR"), 2, 20), rows[1]]), "{run}");
    }
}

/// "A commit acts on its scope": a row of the same key elsewhere is another row (DESIGN 5).
pub(super) async fn a_merge_acts_on_its_scope(f: &dyn Fixture) {
    let given = [(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 1, 30), ("", None, 1, 40)];
    let w = World::with(f, &given).await;
    let tuesday = w.head(&days(&[TUE])).await;
    w.write("r1", &days(&[MON]), plain(), &[(MON, Some("DE"), 1, 11)]).await;
    assert_eq!(w.rows().await, lines(&[(MON, Some("DE"), 1, 11), given[1], given[2]]));
    assert_eq!(w.head(&days(&[TUE])).await.partitions, tuesday.partitions);
}

/// "Rows of the scope whose key vanished are deleted on request", "bounded by an owner predicate" (DESIGN 4, 5).
pub(super) async fn vanished_keys_are_deleted_of_their_owner_and_in_the_scope_only(f: &dyn Fixture) {
    let given = [
        (MON, Some("FR"), 1, 10),
        (MON, Some("FR"), 2, 20),
        (MON, Some("DE"), 3, 30),
        (MON, None, 5, 50),
        (TUE, Some("FR"), 4, 40),
    ];
    let w = World::with(f, &given).await;
    w.write("kept", &days(&[MON]), plain(), &[]).await;
    assert_eq!(w.rows().await, lines(&given), "nobody asked for it");
    let owner = |value: Value| {
        let owner = BTreeMap::from([("country".to_owned(), value)]);
        Intent::Merge(MergeKeys { delete_vanished: Some(owner), ..by_id() })
    };
    w.write("french", &days(&[MON]), owner("FR".into()), &[(MON, Some("FR"), 2, 21)]).await;
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 2, 21), given[2], given[3], given[4]]));
    w.write("nobody's", &days(&[MON]), owner(Value::Null), &[]).await;
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 2, 21), given[2], given[4]]));
}

/// A merge that waited is computed on what is there at its commit, without running the transform again
/// (`PartitionWriter::rebase`).
pub(super) async fn a_merge_that_waited_is_computed_on_what_is_there(f: &dyn Fixture) {
    let (w, all) = (World::new(f).await, Scope::whole_table());
    let base = w.head(&all).await;
    let staged = w.stage("slow", &all, newest(), &[(MON, Some("FR"), 1, 1), (MON, Some("FR"), 2, 9)]).await;
    w.write("quick", &all, newest(), &[(MON, Some("FR"), 1, 5), (MON, Some("FR"), 3, 3)]).await;
    conflicts(&w.commit(&[apply(&staged)], &base).await, &[crate::domain::partition::PartitionKey::whole()]);
    let onto = w.head(&all).await;
    let rebased = w.writer().rebase(&staged, &onto).await.unwrap();
    done(w.commit(&[apply(&rebased)], &onto).await);
    let expected = [(MON, Some("FR"), 1, 5), (MON, Some("FR"), 2, 9), (MON, Some("FR"), 3, 3)];
    assert_eq!(w.rows().await, lines(&expected));
}

/// The overlay of a shadow that merges shows what its commit leaves.
pub(super) async fn the_overlay_of_a_merge_shows_what_its_commit_leaves(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10), (MON, Some("FR"), 2, 20)]).await;
    let pin = w.pin(Slice::All).await;
    let staged = w.stage("r1", &days(&[MON]), newest(), &[(MON, Some("DE"), 1, 11), (MON, None, 2, 5)]).await;
    let (_, stream) = w.staged().read_overlaid(std::slice::from_ref(&staged), &pin).await.unwrap();
    let shown = texts(stream).await.unwrap();
    assert_eq!(shown, lines(&[(MON, Some("DE"), 1, 11), (MON, Some("FR"), 2, 20)]));
    w.committed(&apply(&staged)).await;
    assert_eq!(w.rows().await, shown);
}
