//! Every state that we bring a table into.

use std::sync::Arc;

use arrow_array::{Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Kept;
use reprocess_core::domain::value::Value;
use reprocess_core::ports::writer::{
    Change, CommitEntry, CommitOutcome, Intent, MergeKeys, Op, PartitionWriter, StageRequest, Staged,
    StampId, Visibility,
};

use super::Others;
use crate::races::data_files;
use crate::support::*;

const BRANCH: &str = "reprocess-fix";

fn restore(run: &str, scope: &Scope, kept: Kept) -> CommitEntry {
    let stamp = StampId { op: Op::Restore, ..stamp(run, scope, &Intent::Replace) };
    entry(stamp, scope, Change::Restore(kept))
}

async fn shadow(sales: &Sales, run: &str, text: &str, rows: &[Row<'_>]) -> Staged {
    let scope = days(&[text]);
    let request = StageRequest {
        visibility: Visibility::Shadow("fix".into()),
        ..request(&sales.table, run, &scope, Intent::Replace).await
    };
    sales.table.stage(&request, batch(rows).into()).await.unwrap()
}

#[tokio::test]
async fn every_state_is_read_by_others() {
    let given = [
        (MON, Some("FR"), 1, 10),
        (MON, Some("l'été 100%"), 2, 20),
        (TUE, Some("FR"), 3, 30),
        ("", None, 4, 40),
    ];
    let sales = Sales::with(&given).await;
    let Some(mut others) = Others::of(&sales.raw()) else { return };
    others.check(&sales, &texts(&given), "given").await;

    sales.replace("empty", &days(&[TUE]), &[]).await;
    others.check(&sales, &texts(&[given[0], given[1], given[3]]), "an empty replace").await;

    let by_id = MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: None };
    let owner = [("country".to_owned(), Value::from("FR"))].into();
    let merge = Intent::Merge(MergeKeys { delete_vanished: Some(owner), ..by_id });
    let rows = [(MON, Some("l'été 100%"), 2, 21), (TUE, Some("DE"), 5, 50)];
    let merged = sales.write("merge", &Scope::whole_table(), merge, batch(&rows)).await;
    let after_merge = texts(&[rows[0], rows[1], given[3]]);
    others.check(&sales, &after_merge, "a merge").await;

    // A shadow of two days that waits is seen on its branch, and not on main.
    let mut entries = Vec::new();
    for (text, id) in [(MON, 8), (TUE, 9)] {
        entries.push(apply(&shadow(&sales, "shadow", text, &[(text, Some("IT"), id, 1)]).await));
    }
    others.check(&sales, &after_merge, "a shadow waits").await;
    let published = texts(&[(MON, Some("IT"), 8, 1), (TUE, Some("IT"), 9, 1), given[3]]);
    assert_eq!(others.rows(Some(BRANCH), "the branch"), published);
    let base = sales.table.head(&days(&[MON, TUE])).await.unwrap();
    let files = data_files(&sales);
    done(commit(&sales.table, &entries, &base).await.unwrap());
    assert_eq!(data_files(&sales), files, "nothing is copied");
    others.check(&sales, &published, "a publication").await;
    assert!(!sales.raw().refs().await.contains(&BRANCH.to_owned()), "the branch goes with the publication");

    let monday = days(&[MON]);
    let undo = restore("undo", &monday, merged.kept.unwrap());
    let base = sales.table.head(&monday).await.unwrap();
    done(commit(&sales.table, &[undo], &base).await.unwrap());
    let restored = texts(&[given[0], given[1], (TUE, Some("IT"), 9, 1), given[3]]);
    others.check(&sales, &restored, "Monday restored as it was before the merge").await;

    let all = Scope::whole_table();
    let kept = sales.replace("all", &all, &[(MON, None, 77, 1)]).await.kept.unwrap();
    others.check(&sales, &texts(&[(MON, None, 77, 1)]), "another table").await;
    let base = sales.table.head(&all).await.unwrap();
    done(commit(&sales.table, &[restore("back", &all, kept)], &base).await.unwrap());
    others.check(&sales, &restored, "rolled back").await;
}

/// Main moves elsewhere while a shadow waits: it is published onto what is there, without copies; where main moved in a
/// day of the shadow it is refused, and the others of a new plan go on.
#[tokio::test]
async fn a_shadow_is_published_after_main_has_moved() {
    let sales = Sales::with(&[(MON, None, 1, 10), (TUE, None, 2, 20)]).await;
    let Some(mut others) = Others::of(&sales.raw()) else { return };
    let monday = days(&[MON]);
    let staged = shadow(&sales, "shadow", MON, &[(MON, None, 1, 11)]).await;
    let base = sales.table.head(&monday).await.unwrap();
    sales.replace("daily", &days(&[TUE]), &[(TUE, None, 2, 22)]).await;
    assert_eq!(others.rows(Some(BRANCH), "the branch"), texts(&[(MON, None, 1, 11), (TUE, None, 2, 20)]));
    let files = data_files(&sales);
    done(commit(&sales.table, &[apply(&staged)], &base).await.unwrap());
    assert_eq!(data_files(&sales), files);
    others.check(&sales, &texts(&[(MON, None, 1, 11), (TUE, None, 2, 22)]), "published elsewhere").await;

    let late = shadow(&sales, "late", MON, &[(MON, None, 1, 12)]).await;
    let base = sales.table.head(&monday).await.unwrap();
    others.ask(&serde_json::json!({ "do": "append", "rows": super::given(&[(MON, None, 5, 50)]) }));
    let outcome = commit(&sales.table, &[apply(&late)], &base).await.unwrap();
    let CommitOutcome::Conflicted { moved } = outcome else { panic!("no conflict: {outcome:?}") };
    assert_eq!(moved[0].partition, day(MON));
    sales.table.discard(&late.id).await.unwrap();
    assert!(!sales.raw().refs().await.contains(&BRANCH.to_owned()), "the branch goes with its last set");
}

/// One set of a shadow is discarded, another staged again: the branch shows what waits, and nothing else.
#[tokio::test]
async fn the_branch_shows_what_waits() {
    let sales = Sales::with(&[(MON, None, 1, 10), (TUE, None, 2, 20)]).await;
    let Some(mut others) = Others::of(&sales.raw()) else { return };
    let monday = shadow(&sales, "shadow", MON, &[(MON, None, 1, 11)]).await;
    shadow(&sales, "shadow", TUE, &[(TUE, None, 2, 21)]).await;
    let rows = |monday, tuesday| texts(&[(MON, None, 1, monday), (TUE, None, 2, tuesday)]);
    assert_eq!(others.rows(Some(BRANCH), "both"), rows(11, 21));
    sales.table.discard(&monday.id).await.unwrap();
    assert_eq!(others.rows(Some(BRANCH), "one was discarded"), rows(10, 21));
    shadow(&sales, "shadow", TUE, &[(TUE, None, 2, 22)]).await;
    assert_eq!(others.rows(Some(BRANCH), "the other was staged again"), rows(10, 22));
    others.check(&sales, &rows(10, 20), "main").await;
}

fn taxed(rows: &[Row<'_>], taxes: Vec<i64>) -> RecordBatch {
    let mut fields: Vec<_> = columns().fields().iter().map(|field| field.as_ref().clone()).collect();
    fields.push(Field::new("tax", DataType::Int64, true));
    let mut arrays = batch(rows).columns().to_vec();
    arrays.push(Arc::new(Int64Array::from(taxes)));
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

/// A column in the middle of a range: main has it with the publication, for all rows, and not before.
#[tokio::test]
async fn a_column_comes_with_the_publication() {
    let sales = Sales::with(&[(MON, None, 1, 10), (TUE, None, 2, 20)]).await;
    let Some(mut others) = Others::of(&sales.raw()) else { return };
    let mut entries = Vec::new();
    for (text, id) in [(MON, 1), (TUE, 2)] {
        let scope = days(&[text]);
        let request = StageRequest {
            visibility: Visibility::Shadow("fix".into()),
            schema: SchemaPolicy::AddNullable,
            ..request(&sales.table, "taxed", &scope, Intent::Replace).await
        };
        let rows = taxed(&[(text, None, id, 30)], vec![id]);
        entries.push(apply(&sales.table.stage(&request, rows.into()).await.unwrap()));
    }
    others.check(&sales, &texts(&[(MON, None, 1, 10), (TUE, None, 2, 20)]), "the column waits").await;
    assert_eq!(sales.table.schema().await.unwrap().unwrap().fields().len(), 4);
    let base = sales.table.head(&days(&[MON, TUE])).await.unwrap();
    done(commit(&sales.table, &entries[..1], &base).await.unwrap());
    let one = ["2026-10-05/NULL/1/30/1".to_owned(), "2026-10-06/NULL/2/20/NULL".to_owned()];
    others.check(&sales, &one, "one day has it").await;
    done(commit(&sales.table, &entries[1..], &base).await.unwrap());
    let both = ["2026-10-05/NULL/1/30/1".to_owned(), "2026-10-06/NULL/2/30/2".to_owned()];
    others.check(&sales, &both, "both days have it").await;
}

/// As the request says a column that comes in the middle of a range is refused, added, or the table is made anew with it.
#[tokio::test]
async fn other_columns_are_refused_added_or_rebuilt_as_asked() {
    let sales = Sales::with(&[(MON, None, 1, 10), (TUE, None, 2, 20)]).await;
    let Some(mut others) = Others::of(&sales.raw()) else { return };
    let all = Scope::whole_table();
    let rows = || taxed(&[(MON, None, 1, 11)], vec![5]);
    let refused = stage(&sales.table, "refused", &all, Intent::Replace, rows()).await.unwrap_err();
    assert!(refused.to_string().contains("tax"), "{refused}");
    let staged = async |policy, run: &str, rows: RecordBatch| {
        let request =
            StageRequest { schema: policy, ..request(&sales.table, run, &all, Intent::Replace).await };
        let staged = sales.table.stage(&request, rows.into()).await.unwrap();
        let base = sales.table.head(&all).await.unwrap();
        done(commit(&sales.table, &[apply(&staged)], &base).await.unwrap())
    };
    let kept = staged(SchemaPolicy::AddNullable, "added", rows()).await.kept.unwrap();
    others.check(&sales, &["2026-10-05/NULL/1/11/5".to_owned()], "added").await;
    let columns = rows().project(&[0, 1, 2, 4]).unwrap();
    staged(SchemaPolicy::Rebuild, "rebuilt", columns).await;
    others.check(&sales, &["2026-10-05/NULL/1/5".to_owned()], "rebuilt without a column").await;
    let base = sales.table.head(&all).await.unwrap();
    done(commit(&sales.table, &[restore("back", &all, kept)], &base).await.unwrap());
    others.check(&sales, &texts(&[(MON, None, 1, 10), (TUE, None, 2, 20)]), "as it was at first").await;
}

/// Two sets that bring a column each: whoever is second finds that its id is another's, and is told so.
#[tokio::test]
async fn an_id_that_another_column_took_is_noticed() {
    let sales = Sales::with(&[(MON, None, 1, 10)]).await;
    let monday = days(&[MON]);
    let request = StageRequest {
        schema: SchemaPolicy::AddNullable,
        ..request(&sales.table, "taxed", &monday, Intent::Replace).await
    };
    let staged = sales.table.stage(&request, taxed(&[(MON, None, 1, 11)], vec![5]).into()).await.unwrap();
    let base = sales.table.head(&monday).await.unwrap();
    let Some(mut others) = Others::of(&sales.raw()) else { return };
    others.ask(&serde_json::json!({ "do": "add column", "column": "note" }));
    let outcome = commit(&sales.table, &[apply(&staged)], &base).await.unwrap();
    assert_eq!(outcome, CommitOutcome::SchemaChanged);
}
