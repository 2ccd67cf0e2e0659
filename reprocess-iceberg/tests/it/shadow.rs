//! Shadows: what their branches show, and how they become main's.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use reprocess_core::ErrorKind;
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::writer::{
    CommitOutcome, Intent, MergeKeys, MovedBy, PartitionWriter, StageRequest, Staged, StagedId, Visibility,
};
use reprocess_iceberg::iceberg::spec::{MAIN_BRANCH, Snapshot, SnapshotReference, SnapshotRetention};

use crate::raw::summary;
use crate::support::*;

const BRANCH: &str = "reprocess-fix";
const WED: &str = "2026-10-07";
const GIVEN: [Row<'static>; 3] = [(MON, None, 1, 10), (TUE, None, 2, 20), (WED, None, 3, 30)];

async fn shadow(sales: &Sales, text: &str, attempt: u32, rows: &[Row<'_>]) -> Staged {
    let scope = days(&[text]);
    let request = request(&sales.table, "fix.1", &scope, Intent::Replace).await;
    let id = StagedId { attempt, ..request.id };
    let request = StageRequest { id, visibility: Visibility::Shadow("fix".into()), ..request };
    sales.table.stage(&request, batch(rows).into()).await.unwrap()
}

/// Rows with amounts, in the days of those that are given.
fn amounts(amounts: [i64; 3]) -> Vec<String> {
    let rows: Vec<Row<'_>> =
        GIVEN.iter().zip(amounts).map(|(row, amount)| (row.0, None, row.2, amount)).collect();
    texts(&rows)
}

async fn shown(sales: &Sales) -> Vec<String> {
    sales.raw().rows_of(Some(BRANCH)).await
}

async fn has_branch(sales: &Sales) -> bool {
    sales.raw().refs().await.contains(&BRANCH.to_owned())
}

/// Ids of all snapshots of the table.
async fn snapshots(sales: &Sales) -> Vec<i64> {
    let metadata = sales.raw().metadata().await;
    let mut ids: Vec<_> = metadata.snapshots().map(|snapshot| snapshot.snapshot_id()).collect();
    ids.sort_unstable();
    ids
}

#[tokio::test]
async fn a_publication_goes_forward_where_main_has_not_moved() {
    let sales = Sales::with(&GIVEN).await;
    let monday = shadow(&sales, MON, 1, &[(MON, None, 1, 11)]).await;
    let tuesday = shadow(&sales, TUE, 1, &[(TUE, None, 2, 21)]).await;
    assert_eq!(shown(&sales).await, amounts([11, 21, 30]));
    assert_eq!(sales.rows().await, amounts([10, 20, 30]));
    let head = sales.raw().metadata().await.snapshot_for_ref(BRANCH).unwrap().snapshot_id();
    let base = sales.table.head(&days(&[MON, TUE])).await.unwrap();
    let commit = done(commit(&sales.table, &[apply(&monday), apply(&tuesday)], &base).await.unwrap());
    assert_eq!(sales.rows().await, amounts([11, 21, 30]));
    assert_eq!(commit.partitions.partitions, sales.table.head(&days(&[MON, TUE])).await.unwrap().partitions);
    let history = sales.raw().history().await;
    assert_eq!(history[0].parent_snapshot_id(), Some(head), "what was audited is what is published");
    let says = summary(&history[0]);
    assert_eq!(says["published-wap-id"], "fix");
    assert_eq!(says["source-snapshot-id"], head.to_string());
    assert_eq!(summary(&history[1])["wap.id"], "fix");
    assert!(!has_branch(&sales).await);
}

#[tokio::test]
async fn what_main_has_not_yet_is_put_onto_what_it_has() {
    let sales = Sales::with(&GIVEN).await;
    let monday = shadow(&sales, MON, 1, &[(MON, None, 1, 11)]).await;
    let base = sales.table.head(&days(&[MON])).await.unwrap();
    let before = snapshots(&sales).await;
    sales.replace("daily", &days(&[TUE]), &[(TUE, None, 2, 22)]).await;
    let files = crate::races::data_files(&sales);
    done(commit(&sales.table, &[apply(&monday)], &base).await.unwrap());
    assert_eq!(crate::races::data_files(&sales), files, "nothing is copied");
    assert_eq!(sales.rows().await, amounts([11, 22, 30]));
    assert_eq!(sales.raw().history().await.len(), 3, "given, daily and the publication");
    assert!(!has_branch(&sales).await);
    let after = snapshots(&sales).await;
    assert_eq!(
        before.iter().filter(|id| !after.contains(id)).count(),
        1,
        "an expiry never sees the branch's own"
    );
}

#[tokio::test]
async fn what_moved_beneath_a_shadow_is_not_overwritten() {
    let sales = Sales::with(&GIVEN).await;
    let base = sales.table.head(&days(&[MON])).await.unwrap();
    let monday = shadow(&sales, MON, 1, &[(MON, None, 1, 11)]).await;
    sales.raw().append(&batch(&[(MON, None, 9, 90)])).await;
    let outcome = commit(&sales.table, &[apply(&monday)], &base).await.unwrap();
    let CommitOutcome::Conflicted { moved } = outcome else { panic!("no conflict: {outcome:?}") };
    assert_eq!((&moved[0].partition, moved[0].by), (&day(MON), MovedBy::Content));
    assert!(has_branch(&sales).await, "it can still be looked at");
}

#[tokio::test]
async fn of_a_part_that_is_published_the_rest_stays_on_the_branch() {
    let sales = Sales::with(&GIVEN).await;
    let monday = shadow(&sales, MON, 1, &[(MON, None, 1, 11)]).await;
    let tuesday = shadow(&sales, TUE, 1, &[(TUE, None, 2, 21)]).await;
    sales.replace("daily", &days(&[WED]), &[(WED, None, 3, 33)]).await;
    let base = sales.table.head(&days(&[MON, TUE])).await.unwrap();
    done(commit(&sales.table, &[apply(&monday)], &base).await.unwrap());
    assert_eq!(sales.rows().await, amounts([11, 20, 33]));
    assert_eq!(shown(&sales).await, amounts([11, 21, 33]), "on main as it is now");
    done(commit(&sales.table, &[apply(&tuesday)], &base).await.unwrap());
    assert_eq!(sales.rows().await, amounts([11, 21, 33]));
    assert!(!has_branch(&sales).await);
}

#[tokio::test]
async fn a_set_that_is_discarded_or_staged_again_is_shown_no_longer() {
    let sales = Sales::with(&GIVEN).await;
    let monday = shadow(&sales, MON, 1, &[(MON, None, 1, 11)]).await;
    let tuesday = shadow(&sales, TUE, 1, &[(TUE, None, 2, 21)]).await;
    sales.table.discard(&monday.id).await.unwrap();
    assert_eq!(shown(&sales).await, amounts([10, 21, 30]));
    let again = shadow(&sales, TUE, 2, &[(TUE, None, 2, 22)]).await;
    assert_eq!(shown(&sales).await, amounts([10, 22, 30]));
    let before = snapshots(&sales).await;
    assert_eq!(before.len(), 2, "what the branch showed before is gone: {before:?}");
    sales.table.discard(&tuesday.id).await.unwrap();
    assert_eq!(shown(&sales).await, amounts([10, 22, 30]), "it was not shown any more");
    sales.table.discard(&again.id).await.unwrap();
    assert!(!has_branch(&sales).await);
    assert_eq!(snapshots(&sales).await.len(), 1);
    assert_eq!(sales.rows().await, amounts([10, 20, 30]));
}

#[tokio::test]
async fn a_snapshot_of_the_branch_that_somebody_tagged_stays() {
    let sales = Sales::with(&GIVEN).await;
    let monday = shadow(&sales, MON, 1, &[(MON, None, 1, 11)]).await;
    sales
        .raw()
        .change(|builder| {
            let id =
                builder.clone().build().unwrap().metadata.snapshot_for_ref(BRANCH).unwrap().snapshot_id();
            let tag = SnapshotRetention::Tag { max_ref_age_ms: None };
            builder.set_ref("audited", SnapshotReference::new(id, tag)).unwrap()
        })
        .await;
    shadow(&sales, MON, 2, &[(MON, None, 1, 12)]).await;
    assert_eq!(sales.raw().rows_of(Some("audited")).await, amounts([11, 20, 30]));
    assert_eq!(shown(&sales).await, amounts([12, 20, 30]));
    sales.table.discard(&monday.id).await.unwrap();
}

#[tokio::test]
async fn what_others_commit_to_the_branch_is_theirs() {
    let sales = Sales::with(&GIVEN).await;
    let monday = shadow(&sales, MON, 1, &[(MON, None, 1, 11)]).await;
    let raw = sales.raw();
    // Somebody goes on from the branch with the files of main.
    let mut foreign = raw.history().await[0].as_ref().clone();
    raw.change(|builder| {
        let metadata = builder.clone().build().unwrap().metadata;
        let head = metadata.snapshot_for_ref(BRANCH).unwrap().snapshot_id();
        let json = serde_json::to_value(&metadata).unwrap();
        let main =
            json["snapshots"].as_array().unwrap().iter().find(|s| s["snapshot-id"] == foreign.snapshot_id());
        let list = main.unwrap()["manifest-list"].as_str().unwrap().to_owned();
        foreign = Snapshot::builder()
            .with_snapshot_id(77)
            .with_parent_snapshot_id(Some(head))
            .with_sequence_number(metadata.next_sequence_number())
            .with_timestamp_ms(metadata.last_updated_ms())
            .with_manifest_list(list)
            .with_summary(foreign.summary().clone())
            .with_schema_id(0)
            .build();
        builder.set_branch_snapshot(foreign.clone(), BRANCH).unwrap()
    })
    .await;
    let base = sales.table.head(&days(&[MON])).await.unwrap();
    done(commit(&sales.table, &[apply(&monday)], &base).await.unwrap());
    assert_eq!(sales.rows().await, amounts([11, 20, 30]), "the notes say what is staged");
    assert!(has_branch(&sales).await, "their work is not removed");
}

#[tokio::test]
async fn a_merge_waits_on_the_branch_and_is_shown_again_when_it_is_computed_again() {
    let sales = Sales::with(&GIVEN).await;
    let scope = days(&[MON]);
    let by_id = MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: None };
    let request = StageRequest {
        visibility: Visibility::Shadow("fix".into()),
        ..request(&sales.table, "fix.1", &scope, Intent::Merge(by_id)).await
    };
    let rows = batch(&[(MON, None, 1, 11), (MON, None, 5, 50)]);
    let staged = sales.table.stage(&request, rows.into()).await.unwrap();
    let mut expected = amounts([11, 20, 30]);
    expected.extend(texts(&[(MON, None, 5, 50)]));
    expected.sort();
    assert_eq!(shown(&sales).await, expected);
    sales.replace("daily", &scope, &[(MON, None, 1, 10), (MON, None, 6, 60)]).await;
    let onto = sales.table.head(&scope).await.unwrap();
    let staged = sales.table.rebase(&staged, &onto).await.unwrap();
    expected.extend(texts(&[(MON, None, 6, 60)]));
    expected.sort();
    assert_eq!(shown(&sales).await, expected);
    done(commit(&sales.table, &[apply(&staged)], &onto).await.unwrap());
    assert_eq!(sales.rows().await, expected);
    assert!(!has_branch(&sales).await);
}

fn taxed(rows: &[Row<'_>], tax: i64) -> RecordBatch {
    let mut fields: Vec<_> = columns().fields().iter().map(|field| field.as_ref().clone()).collect();
    fields.push(Field::new("tax", DataType::Int64, true));
    let mut arrays: Vec<ArrayRef> = batch(rows).columns().to_vec();
    arrays.push(Arc::new(Int64Array::from(vec![tax; rows.len()])));
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

/// Two sets bring the same column: it is one, and production has it with the publication.
#[tokio::test]
async fn a_column_of_a_shadow_is_on_the_branch_alone() {
    for main_moves in [false, true] {
        let sales = Sales::with(&GIVEN).await;
        let mut entries = Vec::new();
        for (text, id) in [(MON, 1), (TUE, 2)] {
            let scope = days(&[text]);
            let request = StageRequest {
                visibility: Visibility::Shadow("fix".into()),
                schema: SchemaPolicy::AddNullable,
                ..request(&sales.table, "fix.1", &scope, Intent::Replace).await
            };
            let rows = taxed(&[(text, None, id, 5)], id);
            entries.push(apply(&sales.table.stage(&request, rows.into()).await.unwrap()));
        }
        assert_eq!(sales.table.schema().await.unwrap(), Some(columns()));
        assert_eq!(sales.rows().await, amounts([10, 20, 30]));
        let after = [
            "2026-10-05/NULL/1/5/1".to_owned(),
            "2026-10-06/NULL/2/5/2".to_owned(),
            "2026-10-07/NULL/3/30/NULL".to_owned(),
        ];
        assert_eq!(shown(&sales).await, after);
        if main_moves {
            sales.replace("daily", &days(&[WED]), &[(WED, None, 3, 30)]).await;
        }
        let base = sales.table.head(&days(&[MON, TUE])).await.unwrap();
        done(commit(&sales.table, &entries, &base).await.unwrap());
        assert_eq!(sales.rows().await, after);
        let ids = sales.raw().metadata().await.current_schema().as_struct().fields().len();
        assert_eq!(ids, 5);
    }
}

#[tokio::test]
async fn a_shadow_of_a_new_table_becomes_its_first_rows() {
    let sales = Sales::new().await;
    let monday = shadow(&sales, MON, 1, &[(MON, None, 1, 11)]).await;
    assert_eq!(shown(&sales).await, texts(&[(MON, None, 1, 11)]));
    assert!(sales.raw().metadata().await.snapshot_for_ref(MAIN_BRANCH).is_none());
    let base = sales.table.head(&days(&[MON])).await.unwrap();
    done(commit(&sales.table, &[apply(&monday)], &base).await.unwrap());
    assert_eq!(sales.rows().await, texts(&[(MON, None, 1, 11)]));
    assert!(!has_branch(&sales).await);
}

/// What attempts left that ended in the middle is removed, and nothing that anything needs.
#[tokio::test]
async fn orphans_are_removed_and_nothing_else() {
    let sales = Sales::with(&GIVEN).await;
    let kept = sales.replace("fix", &days(&[MON]), &[(MON, None, 1, 11)]).await;
    assert!(kept.kept.is_some());
    sales.raw().append(&batch(&[(TUE, None, 8, 80)])).await;
    shadow(&sales, TUE, 1, &[(TUE, None, 2, 21)]).await;
    let by_id = MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: None };
    let merge = request(&sales.table, "waits", &days(&[WED]), Intent::Merge(by_id)).await;
    sales.table.stage(&merge, batch(&[(WED, None, 3, 31)]).into()).await.unwrap();
    let before = walk(sales.folder());
    let location = sales.table.location().await.unwrap().unwrap();
    let orphans = [
        format!("{location}/data/day=2026-10-05/reprocess-{}/00000.parquet", "0".repeat(32)),
        format!("{location}/metadata/77-0123456789abcdef-m0.avro"),
        format!("{location}/metadata/snap-77-1-0123456789abcdef.avro"),
    ];
    let others = [format!("{location}/data/by-hand.parquet"), format!("{location}/metadata/7-m0.avro")];
    for path in orphans.iter().chain(&others) {
        std::fs::create_dir_all(std::path::Path::new(path).parent().unwrap()).unwrap();
        std::fs::write(path, "left").unwrap();
    }
    let nothing = sales.table.remove_orphans(chrono::Duration::hours(1), false).await.unwrap();
    assert_eq!(nothing, [""; 0], "they may be of an attempt that goes on");
    let none = chrono::Duration::zero();
    assert_eq!(sales.table.remove_orphans(none, true).await.unwrap(), orphans);
    assert_eq!(sales.table.remove_orphans(none, false).await.unwrap(), orphans);
    let mut after = walk(sales.folder());
    after.retain(|path| !others.contains(path));
    assert_eq!(after.len(), before.len());
    assert_eq!(shown(&sales).await.len(), 3 + 1 - 1);
    let scope = Scope::whole_table();
    let late = request(&sales.table, "late", &scope, Intent::Replace).await;
    assert_eq!(sales.table.discard(&late.id).await.map_err(|e| e.kind()), Ok::<(), ErrorKind>(()));
}
