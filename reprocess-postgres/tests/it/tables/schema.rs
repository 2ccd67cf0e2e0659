//! Other columns than the table has.

use std::sync::Arc;

use arrow_array::{Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::staged::StagedReader;
use reprocess_core::ports::writer::{
    Change, CommitEntry, CommitOutcome, Intent, Op, PartitionWriter, Staged,
};

use super::support::*;

fn with_note(rows: &[Row<'_>]) -> RecordBatch {
    let plain = batch(rows);
    let mut fields: Vec<_> = plain.schema().fields().iter().map(|f| f.as_ref().clone()).collect();
    let mut arrays = plain.columns().to_vec();
    fields.push(Field::new("note", DataType::Utf8, false));
    arrays.push(Arc::new(StringArray::from(vec!["n"; rows.len()])));
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

async fn stage(f: &Fixture, run: &str, scope: &Scope, policy: SchemaPolicy, rows: RecordBatch) -> Staged {
    let mut request = request(run, scope, Intent::Replace);
    request.schema = policy;
    f.table.stage(&request, of(rows)).await.unwrap()
}

#[tokio::test]
async fn new_columns_are_added_and_null_elsewhere() {
    let f = fixture().await;
    let both = days(&["2026-10-01", "2026-10-02"]);
    f.replace("r1", &both, &[("2026-10-01", "FR", 1, 1, 0), ("2026-10-02", "FR", 2, 2, 0)]).await;
    let base = f.table.head(&both).await.unwrap();
    let plain = f.stage("plain", &days(&["2026-10-02"]), Intent::Replace, &[]).await.unwrap();
    let one = stage(
        &f,
        "r2",
        &days(&["2026-10-01"]),
        SchemaPolicy::AddNullable,
        with_note(&[("2026-10-01", "FR", 1, 3, 0)]),
    )
    .await;
    let two = stage(
        &f,
        "r2",
        &days(&["2026-10-02"]),
        SchemaPolicy::AddNullable,
        with_note(&[("2026-10-02", "FR", 2, 4, 0)]),
    )
    .await;
    // Staging changes nothing in production.
    assert_eq!(f.table.schema().await.unwrap().unwrap(), columns());
    committed(commit(&f.table, &[apply(&one)], &base, true).await.unwrap());
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/3/0/n", "2026-10-02/FR/2/2/0/NULL"]);
    let note = f.table.schema().await.unwrap().unwrap();
    assert!(note.field_with_name("note").unwrap().is_nullable());
    // Rows staged for the old columns no longer fit; those of the same backfill do.
    let outcome = commit(&f.table, &[apply(&plain)], &base, false).await.unwrap();
    assert_eq!(outcome, CommitOutcome::SchemaChanged);
    committed(commit(&f.table, &[apply(&two)], &base, false).await.unwrap());
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/3/0/n", "2026-10-02/FR/2/4/0/n"]);
    // Foreign writes are noticed as before.
    f.sql("UPDATE sales SET note = 'x' WHERE id = 1").await;
    assert_eq!(f.version(day("2026-10-01")).await.as_str(), "2.1");
}

#[tokio::test]
async fn a_rebuild_has_the_new_columns_and_a_restore_the_old() {
    let f = fixture().await;
    let all = Scope::whole_table();
    f.replace("r1", &all, &[("2026-10-01", "FR", 1, 1, 0)]).await;
    let base = f.table.head(&all).await.unwrap();
    let rows = batch(&[("2026-10-02", "FR", 2, 2, 0)]).project(&[2, 1, 0]).unwrap();
    let staged = stage(&f, "r2", &all, SchemaPolicy::Rebuild, rows.clone()).await;
    assert_eq!(f.table.diff(&staged, &Default::default()).await.unwrap()[0].added, 1);
    let done = committed(commit(&f.table, &[apply(&staged)], &base, true).await.unwrap());
    assert_eq!(f.rows().await, ["2026-10-02/FR/2"]);
    let now = f.table.schema().await.unwrap().unwrap();
    assert_eq!(now.fields().len(), 3, "the columns that stay keep their places");
    f.sql("UPDATE sales SET id = 3").await;
    assert_eq!(f.version(day("2026-10-02")).await.as_str(), "2.1");
    let base = f.table.head(&all).await.unwrap();
    let entry = CommitEntry {
        scope: all.clone(),
        change: Change::Restore(done.kept.unwrap()),
        stamp: stamp("back", &all, Op::Restore),
        attempt: 1,
        finish: finish(),
    };
    committed(commit(&f.table, &[entry], &base, true).await.unwrap());
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/1/0"]);
    assert_eq!(f.table.schema().await.unwrap().unwrap(), columns());
}

#[tokio::test]
async fn a_table_altered_by_others_takes_no_commit() {
    let f = fixture().await;
    let one = days(&["2026-10-01"]);
    let base = f.table.head(&one).await.unwrap();
    let staged = f.stage("r1", &one, Intent::Replace, &[("2026-10-01", "FR", 1, 1, 0)]).await.unwrap();
    f.sql("ALTER TABLE sales RENAME COLUMN amount TO total").await;
    let outcome = commit(&f.table, &[apply(&staged)], &base, false).await.unwrap();
    assert_eq!(outcome, CommitOutcome::SchemaChanged);
}

#[tokio::test]
async fn creating_again_does_nothing_and_other_columns_are_refused() {
    let f = fixture().await;
    f.table.create(&columns()).await.unwrap();
    let other = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true)]));
    refused(f.table.create(&other).await, &["other columns"]);
    f.sql("CREATE TABLE theirs (id INTEGER)").await;
    let theirs = table_of(&f.db, "theirs", Default::default()).await;
    refused(theirs.create(&other).await, &["did not make"]);
    // A table that is not there is made by its first commit, with the columns of the rows.
    let new = table_of(&f.db, "new", Default::default()).await;
    assert!(new.schema().await.unwrap().is_none());
    assert!(rows(&new).await.is_empty());
    let all = Scope::whole_table();
    let base = new.head(&all).await.unwrap();
    assert_eq!(new.profile(&all, &Default::default()).await.unwrap().1[0].rows, 0);
    let ids = RecordBatch::try_new(other, vec![Arc::new(Int64Array::from(vec![1]))]).unwrap();
    let staged = new.stage(&request("r1", &all, Intent::Replace), of(ids)).await.unwrap();
    committed(commit(&new, &[apply(&staged)], &base, true).await.unwrap());
    assert_eq!(rows(&new).await, ["1"]);
}
