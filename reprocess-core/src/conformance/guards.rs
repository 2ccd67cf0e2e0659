//! Laws of what staging refuses.

use std::sync::Arc;

use arrow_array::{ArrayRef, Date32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};

use super::fixture::Fixture;
use super::world::*;
use crate::ErrorKind;
use crate::domain::partition::PartitionKey;
use crate::domain::scope::Scope;
use crate::ports::writer::{Intent, MergeKeys, Query, Rows};

/// "Refuse rows outside the scope before the commit, naming them" (FIELD 3).
pub(super) async fn a_stray_row_is_refused_naming_its_partition(f: &dyn Fixture) {
    let w = World::with(f, &[(TUE, Some("FR"), 1, 10)]).await;
    let request = w.request("r1", &days(&[MON]), Intent::Replace).await;
    let rows = [(MON, Some("FR"), 1, 1), (TUE, Some("a/b"), 2, 2), (TUE, Some("a/b"), 3, 3)];
    w.refuses(&request, batch(&rows), &["day=2026-10-06", "a%2Fb"]).await;
    w.refuses(&request, batch(&[("", Some("FR"), 1, 1)]), &["day=__HIVE_DEFAULT_PARTITION__"]).await;
    let french = w.request("r2", &scope(in_country(day(MON), Some("FR"))), Intent::Replace).await;
    w.refuses(&french, batch(&[(MON, None, 1, 1)]), &["country="]).await;
}

/// A scope over a column that is no dimension would silently be another one.
pub(super) async fn a_scope_over_what_is_no_dimension_is_refused(f: &dyn Fixture) {
    let w = World::new(f).await;
    let id = PartitionKey::of("id", 1);
    let mut request = w.request("r1", &days(&[MON]), Intent::Replace).await;
    request.scope = scope(id.clone());
    refused(w.writer().stage(&request, batch(&[]).into()).await, ErrorKind::Invalid, &["id"]);
    refused(w.writer().head(&scope(id)).await, ErrorKind::Invalid, &["id"]);
    let text = PartitionKey::of("day", "monday");
    refused(w.writer().head(&scope(text)).await, ErrorKind::Invalid, &["day"]);
}

/// "A wrong schema [is] refused at staging, naming the offending values" (DESIGN 5).
pub(super) async fn other_columns_than_the_tables_are_refused_by_name(f: &dyn Fixture) {
    let w = World::new(f).await;
    let request = w.request("r1", &days(&[MON]), Intent::Replace).await;
    let rows = batch(&[(MON, Some("FR"), 1, 10)]);
    w.refuses(&request, rows.project(&[0, 1, 2]).unwrap(), &["amount"]).await;
    let with = |name: &str, array: ArrayRef| {
        let schema = rows.schema();
        let known = schema.fields().iter().zip(rows.columns()).filter(|(field, _)| field.name() != name);
        let mut columns: Vec<_> =
            known.map(|(f, array)| (f.name().clone(), Arc::clone(array), true)).collect();
        columns.push((name.to_owned(), array, true));
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    };
    w.refuses(&request, with("tax", Arc::new(Int64Array::from(vec![1]))), &["tax"]).await;
    w.refuses(&request, with("amount", Arc::new(StringArray::from(vec!["10"]))), &["amount", "Utf8"]).await;
}

/// A column that takes no NULL takes none.
pub(super) async fn null_is_refused_where_a_column_takes_none(f: &dyn Fixture) {
    let strict = |nullable| {
        let id = Field::new("id", DataType::Int64, nullable);
        Arc::new(Schema::new(vec![Field::new("day", DataType::Date32, true), id]))
    };
    let w = World::of(f, by_day(), &strict(false)).await;
    let rows = |id: Option<i64>| {
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(Date32Array::from(vec![days_since_epoch(MON)])),
            Arc::new(Int64Array::from(vec![id])),
        ];
        RecordBatch::try_new(strict(true), arrays).unwrap()
    };
    let request = w.request("r1", &days(&[MON]), Intent::Replace).await;
    w.refuses(&request, rows(None), &["id"]).await;
}

/// Columns are taken by name, in whatever order they come (FIELD 32).
pub(super) async fn columns_may_come_in_another_order(f: &dyn Fixture) {
    let w = World::new(f).await;
    let turned = batch(&[(MON, Some("FR"), 1, 10)]).project(&[3, 2, 1, 0]).unwrap();
    let staged = w.try_stage("r1", &days(&[MON]), Intent::Replace, turned).await.unwrap();
    w.committed(&apply(&staged)).await;
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 1, 10)]));
}

/// "NULL or duplicate merge keys are refused at staging, naming the offending values" (DESIGN 5; FIELD 36, 37).
pub(super) async fn null_and_repeated_merge_keys_are_refused_naming_them(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 7, 0)]).await;
    let by = |keys: &[&str]| MergeKeys { keys: keys.iter().map(|k| (*k).to_owned()).collect(), ..by_id() };
    let rows = [(MON, Some("FR"), 7, 1), (MON, None, 7, 2), (MON, None, 8, 3), (MON, Some("DE"), 7, 4)];
    let check = async |keys: &[&str], rows: &[Row], words: &[&str]| {
        let request = w.request("r1", &days(&[MON]), Intent::Merge(by(keys))).await;
        w.refuses(&request, batch(rows), words).await;
    };
    check(&["id"], &rows, &["id", "7"]).await;
    check(&["country"], &rows, &["country", "NULL"]).await;
    let twice = [(MON, Some("FR"), 7, 1), (MON, Some("FR"), 7, 2)];
    check(&["country", "id"], &twice, &["country", "FR", "id", "7"]).await;
    check(&["nope"], &twice, &["nope"]).await;
    check(&[], &twice, &["columns that identify a row"]).await;
}

/// "False positives above 8,192 rows; or silently duplicates: name the keys, test at 100k rows and more" (FIELD 36).
pub(super) async fn merge_keys_are_compared_over_a_hundred_thousand_rows_in_many_batches(f: &dyn Fixture) {
    let w = World::new(f).await;
    let request = w.request("r1", &days(&[MON]), Intent::Merge(by_id())).await;
    let row = |id: i64| -> Row { (MON, Some("FR"), id, 1) };
    let batches = |from: i64| -> Vec<RecordBatch> {
        let ids =
            (0..13_i64).map(|n| (n * 8_192..(n + 1) * 8_192).map(|id| row(id + from)).collect::<Vec<_>>());
        ids.map(|rows| batch(&rows)).collect()
    };
    let mut repeated = batches(0);
    repeated.push(batch(&[row(3)]));
    refused(w.writer().stage(&request, stream_of(repeated)).await, ErrorKind::Invalid, &["id", "3"]);
    let staged = w.writer().stage(&request, stream_of(batches(0))).await.unwrap();
    w.committed(&apply(&staged)).await;
    let again = w.request("r2", &days(&[MON]), Intent::Merge(by_id())).await;
    let staged = w.writer().stage(&again, stream_of(batches(8_192))).await.unwrap();
    w.committed(&apply(&staged)).await;
    let (_, profiles) = w.writer().profile(&days(&[MON]), &request.profile).await.unwrap();
    assert_eq!(profiles[0].rows, 14 * 8_192);
}

/// What is not offered is refused by its name, not done in another way.
pub(super) async fn what_is_not_offered_is_refused(f: &dyn Fixture) {
    let w = World::new(f).await;
    let offered = w.writer().capabilities();
    if !offered.query {
        let query = Query { sql: "SELECT 1".into(), params: [].into(), inputs: [].into() };
        let request = w.request("query", &days(&[MON]), Intent::Replace).await;
        refused(w.writer().stage(&request, Rows::Query(query)).await, ErrorKind::Unsupported, &[]);
    }
    for (given, intent) in
        [(offered.merge, Intent::Merge(by_id())), (offered.replace_dynamic, Intent::ReplaceDynamic)]
    {
        if !given {
            let staged = w.try_stage("other", &days(&[MON]), intent, batch(&[])).await;
            refused(staged, ErrorKind::Unsupported, &[]);
        }
    }
    assert_eq!(w.writer().staged().is_some(), offered.shadow);
}

/// "Does nothing where it exists with these columns; refuses where it has others" (`PartitionWriter::create`).
pub(super) async fn a_table_is_created_once_and_with_its_dimensions(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10)]).await;
    let head = w.head(&Scope::whole_table()).await;
    w.writer().create(&columns()).await.unwrap();
    assert_eq!(w.head(&Scope::whole_table()).await.partitions, head.partitions);
    assert_eq!(w.writer().schema().await.unwrap(), Some(columns()));
    let narrower = Arc::new(columns().project(&[0, 1, 2]).unwrap());
    refused(w.writer().create(&narrower).await, ErrorKind::Invalid, &[]);
    assert_eq!(w.rows().await.len(), 1);
    let absent = World::absent(f, by_day()).await;
    let without_day = Arc::new(columns().project(&[1, 2]).unwrap());
    refused(absent.writer().create(&without_day).await, ErrorKind::Invalid, &["day"]);
    assert_eq!(absent.writer().schema().await.unwrap(), None);
}
