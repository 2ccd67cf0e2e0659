//! Files of deletes that others wrote.

use iceberg::spec::ManifestContentType;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::writer::{CommitOutcome, Intent, MergeKeys, PartitionWriter};

use reprocess_iceberg::iceberg;

use super::Others;
use crate::others;
use crate::support::*;

fn five() -> Vec<Row<'static>> {
    (1..=5).map(|id| (MON, Some("FR"), id, id * 10)).collect()
}

async fn only_file(sales: &Sales) -> String {
    let files = sales.raw().files().await;
    let [file] = files.as_slice() else { panic!("one file: {files:?}") };
    file.clone()
}

/// They are applied when we read, and make the partition another one.
#[tokio::test]
async fn deletes_of_others_are_applied_and_move_the_partition() {
    let sales = Sales::with(&five()).await;
    let (before, monday) = (sales.pin(Slice::All).await, days(&[MON]));
    let base = sales.table.head(&monday).await.unwrap();
    let rows = batch(&[(MON, Some("FR"), 1, 11)]);
    let staged = stage(&sales.table, "slow", &monday, Intent::Replace, rows).await.unwrap();
    let file = only_file(&sales).await;
    others::delete_positions(&sales.raw(), &file, &[0, 3]).await;
    let left = texts(&[five()[1], five()[2], five()[4]]);
    let now = sales.pin(Slice::All).await;
    assert_ne!(now.content, before.content);
    assert_eq!(sales.read(&now).await.unwrap(), left);
    assert_eq!(sales.read(&before).await.unwrap(), texts(&five()), "the pin of before has all rows");
    assert_eq!(sales.rows().await, left);
    if let Some(mut others) = Others::of(&sales.raw()) {
        assert_eq!(others.rows(None, "positions"), left);
    }
    let outcome = commit(&sales.table, &[apply(&staged)], &base).await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Conflicted { .. }), "{outcome:?}");

    others::delete_ids(&sales.raw(), &file, &[2, 5, 99]).await;
    let now = sales.pin(Slice::All).await;
    assert_eq!(sales.read(&now).await.unwrap(), texts(&[five()[2]]));
    assert_eq!(sales.rows().await, texts(&[five()[2]]));
}

/// A row that comes after an equality delete is not deleted by it.
#[tokio::test]
async fn equality_deletes_apply_to_what_was_there_before_them() {
    let sales = Sales::with(&five()).await;
    others::delete_ids(&sales.raw(), &only_file(&sales).await, &[1, 2, 3, 4]).await;
    sales.raw().append(&batch(&[(MON, Some("FR"), 2, 99)])).await;
    let rows = texts(&[five()[4], (MON, Some("FR"), 2, 99)]);
    let pin = sales.pin(Slice::All).await;
    assert_eq!(sales.read(&pin).await.unwrap(), rows);
    assert_eq!(sales.rows().await, rows);
}

/// They leave with a replaced partition, and a merge writes the rows that are left.
#[tokio::test]
async fn a_replaced_partition_takes_its_deletes_along() {
    let sales = Sales::with(&five()).await;
    others::delete_positions(&sales.raw(), &only_file(&sales).await, &[0]).await;
    let by_id = MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: None };
    let rows = batch(&[(MON, Some("FR"), 3, 33), (MON, Some("FR"), 1, 11)]);
    sales.write("merge", &Scope::whole_table(), Intent::Merge(by_id), rows).await;
    let mut merged = five();
    merged[0].3 = 11;
    merged[2].3 = 33;
    assert_eq!(sales.rows().await, texts(&merged));
    others::delete_ids(&sales.raw(), &sales.raw().files().await[0], &[4]).await;
    sales.replace("r1", &days(&[MON]), &[(MON, Some("FR"), 4, 44)]).await;
    assert_eq!(sales.rows().await, texts(&[(MON, Some("FR"), 4, 44)]));
    assert_eq!(sales.raw().deletes().await, 0);
    assert!(!live_deletes(&sales).await, "no manifest names deletes any more");
}

/// What a commit replaced comes back without the rows that others had deleted.
#[tokio::test]
async fn a_restore_does_not_bring_deleted_rows_back() {
    use reprocess_core::ports::writer::{Change, Op, StampId};
    let sales = Sales::with(&five()).await;
    others::delete_positions(&sales.raw(), &only_file(&sales).await, &[1, 2]).await;
    let monday = days(&[MON]);
    let kept = sales.replace("fix", &monday, &[]).await.kept.unwrap();
    let stamp = StampId { op: Op::Restore, ..stamp("undo", &monday, &Intent::Replace) };
    let base = sales.table.head(&monday).await.unwrap();
    let undo = entry(stamp, &monday, Change::Restore(kept));
    done(commit(&sales.table, &[undo], &base).await.unwrap());
    assert_eq!(sales.rows().await, texts(&[five()[0], five()[3], five()[4]]));
}

async fn live_deletes(sales: &Sales) -> bool {
    let table = sales.raw().table().await;
    let list = table.manifest_list_reader(table.metadata().current_snapshot().unwrap()).load().await.unwrap();
    let mut manifests =
        list.entries().iter().filter(|manifest| manifest.content == ManifestContentType::Deletes);
    manifests.any(|manifest| manifest.has_added_files() || manifest.has_existing_files())
}
