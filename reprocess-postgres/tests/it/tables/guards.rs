//! What staging refuses before anything is visible.

use std::sync::Arc;

use arrow_array::{Int32Array, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use futures::{StreamExt, stream};
use reprocess_core::Error;
use reprocess_core::ErrorKind;
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::staged::StagedReader;
use reprocess_core::ports::writer::{Intent, MergeKeys, PartitionWriter, Rows};

use super::support::*;

#[tokio::test]
async fn rows_outside_the_scope_are_named() {
    let f = fixture().await;
    let staged = f
        .stage(
            "run",
            &days(&["2026-10-01"]),
            Intent::Replace,
            &[("2026-10-01", "FR", 1, 1, 0), ("2026-10-01", "FR", 2, 1, 0), ("2026-10-02", "DE", 3, 1, 0)],
        )
        .await;
    let error = refused(staged, &["1 row", "day=2026-10-02/country=DE"]);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(f.table.list(&"run".into()).await.unwrap().is_empty());
}

#[tokio::test]
async fn null_and_repeated_merge_keys_are_named_with_their_number() {
    let f = fixture().await;
    let merge = |keys: &[&str]| {
        Intent::Merge(MergeKeys {
            keys: keys.iter().map(ToString::to_string).collect(),
            newer: None,
            delete_vanished: None,
        })
    };
    let rows: Vec<Row<'_>> =
        (0..7).flat_map(|id| [("2026-10-01", "FR", id, 1, 0), ("2026-10-01", "DE", id, 1, 0)]).collect();
    let all = Scope::whole_table();
    refused(f.stage("run", &all, merge(&["id"]), &rows).await, &["14 rows", "id=0 (2)", "and 2 more"]);
    let null =
        [("2026-10-01", "NULL", 1, 1, 0), ("2026-10-01", "NULL", 2, 1, 0), ("2026-10-01", "FR", 3, 1, 0)];
    refused(f.stage("run", &all, merge(&["country"]), &null).await, &["NULL", "2 rows", "country=NULL"]);
    f.stage("run", &all, merge(&["id", "country"]), &rows).await.unwrap();
    refused(f.stage("run", &all, merge(&["nothing"]), &rows).await, &["nothing"]);
    refused(f.stage("run", &all, merge(&[]), &rows).await, &["identify"]);
}

#[tokio::test]
async fn other_columns_and_types_are_refused() {
    let f = fixture().await;
    let staged = |schema: Schema, arrays: Vec<arrow_array::ArrayRef>| {
        let batch = RecordBatch::try_new(Arc::new(schema), arrays).unwrap();
        let request = request("run", &Scope::whole_table(), Intent::Replace);
        let table = f.table.clone();
        async move { table.stage(&request, of(batch)).await }
    };
    let id = |data_type| Field::new("id", data_type, true);
    refused(
        staged(Schema::new(vec![id(DataType::Int64)]), vec![Arc::new(Int64Array::from(vec![1]))]).await,
        &["day"],
    );
    let full = batch(&[("2026-10-01", "FR", 1, 1, 0)]);
    let mut fields: Vec<_> = full.schema().fields().iter().map(|f| f.as_ref().clone()).collect();
    let mut arrays = full.columns().to_vec();
    fields[2] = id(DataType::Int32);
    arrays[2] = Arc::new(Int32Array::from(vec![1]));
    refused(staged(Schema::new(fields.clone()), arrays.clone()).await, &["id", "Int32", "Int64"]);
    fields[2] = id(DataType::Int64);
    arrays[2] = Arc::new(Int64Array::from(vec![1]));
    fields.push(Field::new("extra", DataType::Int64, true));
    arrays.push(Arc::new(Int64Array::from(vec![1])));
    refused(staged(Schema::new(fields), arrays).await, &["extra"]);
    // The order of columns is no matter.
    let order: Vec<usize> = vec![4, 2, 0, 1, 3];
    let turned = full.project(&order).unwrap();
    f.table.stage(&request("turned", &Scope::whole_table(), Intent::Replace), of(turned)).await.unwrap();
}

#[tokio::test]
async fn a_stream_that_fails_half_way_leaves_nothing_behind() {
    let f = fixture().await;
    let rows = vec![
        Ok(batch(&[("2026-10-01", "FR", 1, 1, 0), ("2026-10-01", "FR", 2, 1, 0)])),
        Ok(batch(&[("2026-10-01", "FR", 3, 1, 0)])),
        Err(Error::new(ErrorKind::Transform, "the transform failed")),
    ];
    let rows = Rows::Stream { schema: columns(), stream: stream::iter(rows).boxed() };
    let request = request("run", &days(&["2026-10-01"]), Intent::Replace);
    refused(f.table.stage(&request, rows).await, &["the transform failed"]);
    assert!(f.table.open(&request.id).await.unwrap().is_none());
    // A later staging of the same id counts, and staging it again replaces it.
    f.table.stage(&request, of(batch(&[("2026-10-01", "FR", 1, 1, 0)]))).await.unwrap();
    let staged = f.table.stage(&request, of(batch(&[("2026-10-01", "FR", 1, 2, 0)]))).await.unwrap();
    assert_eq!(f.table.open(&request.id).await.unwrap(), Some(staged.clone()));
    assert_eq!(f.table.list(&"run".into()).await.unwrap(), std::slice::from_ref(&request.id));
    assert_eq!(staged.rows(), 1);
    f.table.discard(&request.id).await.unwrap();
    f.table.discard(&request.id).await.unwrap();
    assert!(f.table.open(&request.id).await.unwrap().is_none());
}

#[tokio::test]
async fn null_is_refused_where_the_column_takes_none() {
    let f = fixture().await;
    let strict = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
    let table = table_of(&f.db, "strict", Default::default()).await;
    table.create(&Arc::new(strict)).await.unwrap();
    let loose = Schema::new(vec![Field::new("id", DataType::Int64, true)]);
    let rows = |ids: Vec<Option<i64>>| {
        of(RecordBatch::try_new(Arc::new(loose.clone()), vec![Arc::new(Int64Array::from(ids))]).unwrap())
    };
    let mut request = request("run", &Scope::whole_table(), Intent::Replace);
    refused(table.stage(&request, rows(vec![Some(1), None])).await, &["id", "NULL"]);
    request.schema = SchemaPolicy::Rebuild;
    table.stage(&request, rows(vec![None])).await.unwrap();
    request.scope = days(&["2026-10-01"]);
    refused(f.table.stage(&request, of(batch(&[]))).await, &["whole table"]);
}
