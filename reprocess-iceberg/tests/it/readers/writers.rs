//! Others write our tables, and go on doing so.

use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_core::ports::writer::{CommitOutcome, Intent, PartitionWriter};
use serde_json::json;

use super::{Others, given};
use crate::support::*;

/// PyIceberg appends to and overwrites what we wrote, and we replace what it wrote.
#[tokio::test]
async fn we_and_others_take_turns() {
    let sales = Sales::with(&[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let Some(mut others) = Others::of(&sales.raw()) else { return };
    others.ask(&json!({ "do": "append", "rows": given(&[(MON, Some("FR"), 3, 30), (TUE, None, 4, 40)]) }));
    others.ask(&json!({ "do": "overwrite", "rows": given(&[(TUE, Some("FR"), 5, 50)]) }));
    let rows =
        [(MON, Some("FR"), 1, 10), (MON, Some("FR"), 3, 30), (TUE, None, 4, 40), (TUE, Some("FR"), 5, 50)];
    others.check(&sales, &texts(&rows), "theirs").await;
    let ours = sales.pin(Slice::All).await;
    assert_eq!(sales.read(&ours).await.unwrap(), texts(&rows));
    sales.replace("r1", &days(&[MON]), &[(MON, None, 6, 60)]).await;
    others.check(&sales, &texts(&[(MON, None, 6, 60), rows[2], rows[3]]), "ours").await;
    others.ask(&json!({ "do": "delete", "where": "country IS NULL" }));
    others.check(&sales, &texts(&[rows[3]]), "theirs again").await;
    sales.replace("r2", &Scope::whole_table(), &[]).await;
    others.check(&sales, &[], "nothing").await;
    others.ask(&json!({ "do": "append", "rows": given(&[rows[0]]) }));
    others.check(&sales, &texts(&[rows[0]]), "a first row").await;
}

/// What they change in a partition is a conflict there and nowhere else.
#[tokio::test]
async fn their_changes_are_conflicts_where_they_touch() {
    for (touched, do_what) in [(MON, "append"), (MON, "overwrite"), (TUE, "append"), (TUE, "overwrite")] {
        let sales = Sales::with(&[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
        let Some(mut others) = Others::of(&sales.raw()) else { return };
        let monday = days(&[MON]);
        let base = sales.table.head(&monday).await.unwrap();
        let rows = batch(&[(MON, Some("FR"), 1, 11)]);
        let staged = stage(&sales.table, "slow", &monday, Intent::Replace, rows).await.unwrap();
        others.ask(&json!({ "do": do_what, "rows": given(&[(touched, Some("FR"), 9, 90)]) }));
        let outcome = commit(&sales.table, &[apply(&staged)], &base).await.unwrap();
        let conflicts = matches!(outcome, CommitOutcome::Conflicted { .. });
        assert_eq!(conflicts, touched == MON, "{do_what} into {touched}: {outcome:?}");
    }
}

/// Columns that they rename, drop, add and widen are read by id, in pins of before with the names of before.
#[tokio::test]
async fn columns_that_they_change_are_read_by_id() {
    let sales = Sales::with(&[(MON, Some("FR"), 1, 10)]).await;
    let before = sales.pin(Slice::All).await;
    let Some(mut others) = Others::of(&sales.raw()) else { return };
    others.ask(&json!({ "do": "rename column", "column": "amount", "to": "cents" }));
    others.ask(&json!({ "do": "add column", "column": "amount" }));
    let table = sales.again().await;
    let schema = table.schema().await.unwrap().unwrap();
    let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["day", "country", "id", "cents", "amount"]);
    assert_eq!(table.profile(&days(&[MON]), &Default::default()).await.unwrap().1[0].rows, 1);
    assert_eq!(sales.read(&before).await.unwrap(), ["2026-10-05/FR/1/10"]);
    let now = sales.pin(Slice::All).await;
    assert_ne!(now.version, before.version, "the columns of a pin are those of its version");
    let (schema, _) = table.read(&now).await.unwrap();
    assert_eq!(schema.fields().len(), 5);
    assert_eq!(sales.read(&now).await.unwrap(), ["2026-10-05/FR/1/10/NULL"]);
    others.ask(&json!({ "do": "drop column", "column": "amount" }));
    sales.replace_with_columns(&["day", "country", "id", "cents"], &[(MON, Some("FR"), 2, 20)]).await;
    assert_eq!(others.rows(None, "after a drop"), ["2026-10-05/FR/2/20"]);
}

/// Files of a spec of before are replaced where it is clear that they lie in the scope.
#[tokio::test]
async fn files_of_an_older_spec_are_replaced_or_refused_by_name() {
    let sales = Sales::with(&[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let Some(mut others) = Others::of(&sales.raw()) else { return };
    others.ask(&json!({ "do": "add partition field", "column": "id", "field": "id_bucket" }));
    sales.replace("r1", &days(&[MON]), &[(MON, Some("FR"), 1, 11), (MON, Some("FR"), 7, 70)]).await;
    let rows = [(MON, Some("FR"), 1, 11), (MON, Some("FR"), 7, 70), (TUE, Some("FR"), 2, 20)];
    others.check(&sales, &texts(&rows), "a file of the older spec went").await;
    let specs: Vec<_> = sales.raw().metadata().await.partition_specs_iter().map(|s| s.spec_id()).collect();
    assert_eq!(specs.len(), 2);
    sales.replace("r2", &days(&[TUE]), &[]).await;
    others.check(&sales, &texts(&rows[..2]), "the other one went").await;
}
