//! What staging refuses, and what becomes of columns.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use super::*;
use crate::ports::writer::Query;

async fn refused(table: &MemoryTable, request: &StageRequest, rows: RecordBatch) -> String {
    let error = table.stage(request, stream_of(rows)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(!error.is_retryable());
    assert_eq!(PartitionWriter::staged(table).unwrap().open(&request.id).await.unwrap(), None);
    error.to_string()
}

#[tokio::test]
async fn a_stray_row_is_refused_naming_its_partition() {
    let table = table_with(&[(TUE, Some("FR"), 1, 10)]).await;
    let rows = batch(&[(MON, Some("FR"), 1, 1), (TUE, Some("a/b"), 2, 2), (TUE, Some("a/b"), 3, 3)]);
    let error = refused(&table, &request("r1", &scope(&day(MON)), Intent::Replace), rows).await;
    assert!(
        error.contains("2 rows lie outside the scope, in partition day=2026-10-06/country=a%2Fb (2)"),
        "{error}"
    );
    assert!(error.contains("table sales"), "{error}");
    assert_eq!(all(&table).await, ["2026-10-06/FR/1/10"]);
}

#[tokio::test]
async fn a_scope_over_columns_that_are_no_dimensions_is_refused() {
    let table = table().await;
    let request = request("r1", &scope(&PartitionKey::of("id", 1)), Intent::Replace);
    assert!(refused(&table, &request, batch(&[])).await.contains("`id` is no dimension"));
}

#[tokio::test]
async fn null_and_repeated_merge_keys_are_refused_naming_them() {
    let table = table().await;
    let merge = |keys: &[&str]| MergeKeys {
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        newer: None,
        delete_vanished: None,
    };
    let check = async |keys: &[&str], rows: &[Row], expected: &str| {
        let request = request("r1", &scope(&day(MON)), Intent::Merge(merge(keys)));
        let error = refused(&table, &request, batch(rows)).await;
        assert!(error.contains(expected), "{error}");
    };
    let rows = [(MON, Some("FR"), 7, 1), (MON, None, 7, 2), (MON, None, 8, 3), (MON, Some("DE"), 7, 4)];
    check(&["id"], &rows, "1 merge key is repeated: id=7 (3 rows)").await;
    check(&["country"], &rows, "merge key `country` is NULL in 2 rows (first row 1").await;
    let twice = [(MON, Some("FR"), 7, 1), (MON, Some("FR"), 7, 2)];
    check(&["country", "id"], &twice, "country=FR/id=7 (2 rows)").await;
    check(&["nope"], &twice, "`nope`").await;
    check(&[], &twice, "columns that identify a row").await;
}

#[tokio::test]
async fn columns_may_stand_in_another_order_but_names_types_and_nulls_must_fit() {
    let fields = vec![
        Field::new("day", DataType::Date32, true),
        Field::new("country", DataType::Utf8, true),
        Field::new("id", DataType::Int64, false),
        Field::new("amount", DataType::Int64, true),
    ];
    let table = MemoryTable::new(TableSpec::new(
        TABLE,
        Partitioning::unpartitioned().with_key("country", ValueKind::Text),
    ));
    table.create(&Arc::new(Schema::new(fields))).await.unwrap();
    let request = request("r1", &scope(&PartitionKey::of("country", "FR")), Intent::Replace);
    let rows = batch(&[(MON, Some("FR"), 1, 10)]);
    let turned = rows.project(&[3, 2, 1, 0]).unwrap();
    let staged = table.stage(&request, stream_of(turned)).await.unwrap();
    committed(&table, &apply(staged)).await;
    assert_eq!(all(&table).await, ["2026-10-05/FR/1/10"]);

    let request = StageRequest { id: StagedId { attempt: 2, ..request.id.clone() }, ..request };
    let error = refused(&table, &request, rows.project(&[0, 1, 2]).unwrap()).await;
    assert!(error.contains("`amount` is missing"), "{error}");
    let with = |name: &str, array: ArrayRef| {
        let mut columns: Vec<(&str, ArrayRef)> =
            ["day", "country", "id", "amount"].into_iter().zip(rows.columns().iter().cloned()).collect();
        columns.retain(|(known, _)| *known != name);
        columns.push((name, array));
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true))).unwrap()
    };
    let error = refused(&table, &request, with("tax", Arc::new(Int64Array::from(vec![1])))).await;
    assert!(error.contains("`tax` is no column of it"), "{error}");
    let error = refused(&table, &request, with("amount", Arc::new(StringArray::from(vec!["10"])))).await;
    assert!(error.contains("`amount` is Utf8, not Int64"), "{error}");
    let error = refused(&table, &request, with("id", Arc::new(Int64Array::from(vec![None])))).await;
    assert!(error.contains("column `id` takes no NULL, and is NULL in 1 of 1 rows"), "{error}");
}

#[tokio::test]
async fn a_query_is_not_supported_and_a_table_that_is_not_there_is_not_found() {
    let table = table().await;
    let query = Query { sql: "select 1".into(), params: BTreeMap::new(), inputs: BTreeMap::new() };
    let request = request("r1", &scope(&day(MON)), Intent::Replace);
    let error = table.stage(&request, Rows::Query(query)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let absent = MemoryTable::new(table.spec.clone());
    let error = absent.stage(&request, stream_of(batch(&[]))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let (base, profiles) =
        absent.profile(&request.scope, &ProfileSpec::new().with_totals(["amount"])).await.unwrap();
    assert_eq!((version(&base, &day(MON)).as_str(), profiles[0].rows), ("0", 0));
}

#[tokio::test]
async fn a_table_is_created_once_and_refuses_other_columns() {
    let table = table().await;
    table.create(&columns()).await.unwrap();
    assert_eq!(table.current().await.unwrap().as_str(), "1");
    let other: SchemaRef = Arc::new(columns().project(&[0, 1, 2]).unwrap());
    assert_eq!(table.create(&other).await.unwrap_err().kind(), ErrorKind::Invalid);
    let without_day: SchemaRef = Arc::new(columns().project(&[1, 2]).unwrap());
    assert!(MemoryTable::new(table.spec.clone()).create(&without_day).await.is_err());
}

/// One row with a further column.
fn taxed(row: Row, tax: i64) -> RecordBatch {
    let mut fields: Vec<_> = columns().fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new("tax", DataType::Int64, true)));
    let mut arrays = batch(&[row]).columns().to_vec();
    arrays.push(Arc::new(Int64Array::from(vec![tax])));
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

#[tokio::test]
async fn a_new_column_is_null_in_partitions_outside_the_range_and_does_not_move_them() {
    let table = table_with(&[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let before = table.head(&scope(&day(TUE))).await.unwrap();
    let staging = StageRequest {
        schema: SchemaPolicy::AddNullable,
        ..request("r1", &scope(&day(MON)), Intent::Replace)
    };
    let rows = taxed((MON, Some("FR"), 1, 10), 2);
    let wide = apply(table.stage(&staging, stream_of(rows.clone())).await.unwrap());
    let narrow = replace(&table, "r2", &scope(&day("2026-10-07")), &[]).await;
    committed(&table, &wide).await;
    assert_eq!(all(&table).await, ["2026-10-05/FR/1/10/2", "2026-10-06/FR/2/20/NULL"]);
    assert_eq!(table.head(&scope(&day(TUE))).await.unwrap().partitions, before.partitions);
    let base = table.head(&narrow.scope).await.unwrap();
    assert_eq!(commit_on(&table, &narrow, &base).await, CommitOutcome::SchemaChanged);
    let again = StageRequest {
        id: StagedId { stamp: request("r3", &staging.scope, Intent::Replace).id.stamp, attempt: 1 },
        ..staging
    };
    committed(&table, &apply(table.stage(&again, stream_of(rows)).await.unwrap())).await;
}

#[tokio::test]
async fn a_rebuild_changes_the_columns_of_the_whole_table_and_can_be_taken_back() {
    let table = table_with(&[(MON, Some("FR"), 1, 10)]).await;
    let rows = batch(&[(MON, Some("FR"), 1, 10)]).project(&[0, 1, 2]).unwrap();
    let rebuild = |scope: Scope| StageRequest {
        schema: SchemaPolicy::Rebuild,
        ..request("r1", &scope, Intent::Replace)
    };
    let error = refused(&table, &rebuild(scope(&day(MON))), rows.clone()).await;
    assert!(error.contains("only a replace of the whole table"), "{error}");
    let old = pin(&table, Slice::All).await;
    let staged = table.stage(&rebuild(Scope::whole_table()), stream_of(rows)).await.unwrap();
    let commit = committed(&table, &apply(staged)).await;
    assert_eq!(all(&table).await, ["2026-10-05/FR/1"]);
    assert_ne!(pin(&table, Slice::All).await.content, old.content, "the dropped column had values");
    assert_eq!(read(&table, &old).await.unwrap(), ["2026-10-05/FR/1/10"]);
    let kept = commit.kept.unwrap();
    let base = table.head(&scope(&day(MON))).await.unwrap();
    let part = restore("undo", &scope(&day(MON)), kept.clone());
    assert_eq!(commit_on(&table, &part, &base).await, CommitOutcome::SchemaChanged);
    committed(&table, &restore("undo", &Scope::whole_table(), kept)).await;
    assert_eq!(all(&table).await, ["2026-10-05/FR/1/10"]);
}
