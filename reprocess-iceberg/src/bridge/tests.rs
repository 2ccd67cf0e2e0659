//! Without files and sockets, so that they run under Miri too.

use std::sync::{Arc, Weak};

use arrow_array::builder::{ListBuilder, MapBuilder, StringBuilder, StringViewBuilder, UInt32Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, UInt8Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Decimal128Array, DictionaryArray, FixedSizeBinaryArray, Int64Array,
    NullArray, RecordBatch, RecordBatchOptions, StringArray, StructArray, TimestampMicrosecondArray,
    UInt8Array,
};
use arrow_schema::{DataType, Field, Fields, Schema};
use datafusion::arrow::buffer::{Buffer, ScalarBuffer};
use reprocess_core::ErrorKind;

use super::*;

fn numbers(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(values.iter().copied().collect::<Int64Array>())
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .unwrap()
}

/// Over and back.
fn check(batch: &RecordBatch) {
    let over = to_iceberg(batch).unwrap();
    assert_eq!(over.num_rows(), batch.num_rows());
    let back = from_iceberg(&over).unwrap();
    assert_eq!(&back, batch);
    assert_eq!(back.schema(), batch.schema());
}

fn address(array: &dyn Array, buffer: usize) -> usize {
    array.to_data().buffers()[buffer].as_ptr().addr()
}

fn address_58(array: &dyn arrow_array_58::Array, buffer: usize) -> usize {
    array.to_data().buffers()[buffer].as_ptr().addr()
}

#[test]
fn values_come_over_without_being_copied() {
    let names: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("ccc")]));
    let ours = batch(vec![("id", numbers(&[Some(1), None, Some(3)])), ("name", names)]);
    let theirs = to_iceberg(&ours).unwrap();
    let ids = theirs.column(0).as_any().downcast_ref::<arrow_array_58::Int64Array>().unwrap();
    assert_eq!(ids.iter().collect::<Vec<_>>(), [Some(1), None, Some(3)]);
    let names = theirs.column(1).as_any().downcast_ref::<arrow_array_58::StringArray>().unwrap();
    assert_eq!(names.iter().collect::<Vec<_>>(), [Some("a"), None, Some("ccc")]);

    assert_eq!(address(ours.column(0), 0), address_58(theirs.column(0), 0));
    assert_eq!(address(ours.column(1), 0), address_58(theirs.column(1), 0));
    assert_eq!(address(ours.column(1), 1), address_58(theirs.column(1), 1));
    let back = from_iceberg(&theirs).unwrap();
    assert_eq!(address(ours.column(0), 0), address(back.column(0), 0));
    assert_eq!(back, ours);
}

#[test]
fn every_kind_of_column_comes_over() {
    let decimals = Decimal128Array::from(vec![Some(12_345), None, Some(-1)]).with_precision_and_scale(9, 2);
    let moments = TimestampMicrosecondArray::from(vec![Some(0), Some(-1), None]).with_timezone("UTC");
    let fixed = FixedSizeBinaryArray::try_from_sparse_iter_with_size(
        [Some([1_u8; 16]), None, Some([2; 16])].into_iter(),
        16,
    );
    let dictionary: DictionaryArray<Int32Type> = [Some("x"), None, Some("x")].into_iter().collect();
    check(&batch(vec![
        ("flag", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]))),
        ("decimal", Arc::new(decimals.unwrap())),
        ("moment", Arc::new(moments)),
        ("fixed", Arc::new(fixed.unwrap())),
        ("dictionary", Arc::new(dictionary)),
        ("nothing", Arc::new(NullArray::new(3))),
        ("lists", lists()),
        ("maps", maps()),
        ("structs", structs()),
        ("views", views(3)),
    ]));
}

fn lists() -> ArrayRef {
    let mut lists = ListBuilder::new(ListBuilder::new(UInt32Builder::new()));
    lists.values().append_value([Some(1), None]);
    lists.values().append_null();
    lists.append(true);
    lists.append(false);
    lists.append(true);
    Arc::new(lists.finish())
}

fn maps() -> ArrayRef {
    let mut maps = MapBuilder::new(None, StringBuilder::new(), UInt32Builder::new());
    maps.keys().append_value("a");
    maps.values().append_value(1);
    maps.append(true).unwrap();
    maps.append(false).unwrap();
    maps.append(true).unwrap();
    Arc::new(maps.finish())
}

fn structs() -> ArrayRef {
    let inner = Field::new("inner", DataType::Int64, true)
        .with_metadata([("PARQUET:field_id".to_owned(), "7".to_owned())].into());
    let nulls = vec![true, false, true].into();
    let values = vec![numbers(&[Some(1), None, None])];
    Arc::new(StructArray::new(Fields::from(vec![inner]), values, Some(nulls)))
}

/// Short texts inside the views, long ones in blocks beside them.
fn views(rows: usize) -> ArrayRef {
    let mut views = StringViewBuilder::new().with_fixed_block_size(64);
    for row in 0..rows {
        match row % 3 {
            0 => views.append_value("short"),
            1 => views.append_null(),
            _ => views.append_value(format!("a text that is longer than twelve bytes, of row {row}")),
        }
    }
    Arc::new(views.finish())
}

#[test]
fn a_slice_comes_over_as_the_rows_that_it_shows() {
    let flags = (0..200).map(|row| (row % 5 != 0).then_some(row % 2 == 0)).collect::<BooleanArray>();
    let texts = (0..200).map(|row| (row % 7 != 0).then(|| row.to_string())).collect::<StringArray>();
    let ids = (0..200_i64).map(|row| (row % 3 != 0).then_some(row)).collect::<Int64Array>();
    let list = ListBuilder::new(UInt32Builder::new());
    let lists = (0..200).fold(list, |mut lists, row| {
        lists.append_value((0..row % 4).map(Some));
        lists
    });
    let whole = batch(vec![
        ("id", Arc::new(ids)),
        ("flag", Arc::new(flags)),
        ("text", Arc::new(texts)),
        ("list", Arc::new({ lists }.finish())),
        ("view", views(200)),
    ]);
    for (start, rows) in [(0, 200), (13, 101), (64, 64), (199, 1), (200, 0)] {
        check(&whole.slice(start, rows));
        let theirs = to_iceberg(&whole).unwrap().slice(start, rows);
        assert_eq!(from_iceberg(&theirs).unwrap(), whole.slice(start, rows));
    }
}

#[test]
fn a_batch_without_columns_keeps_its_rows() {
    let options = RecordBatchOptions::new().with_row_count(Some(5));
    let ours = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options).unwrap();
    assert_eq!(to_iceberg(&ours).unwrap().num_rows(), 5);
    check(&ours);
}

#[test]
fn a_batch_without_rows_keeps_its_columns() {
    check(&RecordBatch::new_empty(
        batch(vec![("id", numbers(&[])), ("lists", lists().slice(0, 0))]).schema(),
    ));
    check(&batch(vec![("view", views(0)), ("maps", maps().slice(0, 0)), ("structs", structs().slice(0, 0))]));
}

#[test]
fn metadata_of_schema_and_columns_stays() {
    let field = |name: &str, id: &str| {
        Field::new(name, DataType::Int64, false)
            .with_metadata([("PARQUET:field_id".to_owned(), id.to_owned())].into())
    };
    let nested = Field::new_struct("nested", vec![field("a", "4")], true);
    let metadata = [("made by".to_owned(), "häns".to_owned())];
    let schema = Schema::new_with_metadata(vec![field("id", "1"), nested], metadata.into());
    let theirs = schema_to_iceberg(&schema).unwrap();
    assert_eq!(theirs.metadata["made by"], "häns");
    assert_eq!(theirs.field(0).metadata()["PARQUET:field_id"], "1");
    assert!(!theirs.field(0).is_nullable());
    assert_eq!(schema_from_iceberg(&theirs).unwrap(), schema);
    check(&RecordBatch::new_empty(Arc::new(schema)));
}

#[test]
fn a_name_that_the_interface_cannot_carry_is_refused() {
    let inner = Field::new("a\0b", DataType::Int64, true);
    let schema = Schema::new(vec![Field::new_struct("outer", vec![inner], true)]);
    let refused = schema_to_iceberg(&schema).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains(r"a\u{0}b"), "{refused}");

    let inner = arrow_schema_58::Field::new("a\0b", arrow_schema_58::DataType::Int64, true);
    let refused = schema_from_iceberg(&arrow_schema_58::Schema::new(vec![inner])).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

/// A column over bytes of somebody who sees when the last one lets go of them.
fn watched(values: &[u8]) -> (RecordBatch, Weak<[u8]>) {
    let owner: Arc<[u8]> = values.into();
    let seen = Arc::downgrade(&owner);
    let bytes = Buffer::from(bytes::Bytes::from_owner(owner));
    let values = UInt8Array::new(ScalarBuffer::from(bytes), None);
    (batch(vec![("id", Arc::new(values))]), seen)
}

#[test]
fn bytes_live_until_the_last_side_lets_go_whichever_it_is() {
    let (ours, seen) = watched(&[1, 2, 3]);
    let theirs = to_iceberg(&ours).unwrap();
    drop(ours);
    assert_eq!(seen.strong_count(), 1);
    let values = theirs.column(0).as_any().downcast_ref::<arrow_array_58::UInt8Array>().unwrap();
    assert_eq!(values.values(), &[1, 2, 3]);

    // Back again, while what is between goes away.
    let back = from_iceberg(&theirs).unwrap();
    drop(theirs);
    assert_eq!(back.column(0).as_primitive::<UInt8Type>().values(), &[1, 2, 3]);
    let one = back.column(0).slice(1, 1);
    drop(back);
    assert_eq!(one.as_primitive::<UInt8Type>().values(), &[2]);
    assert_eq!(seen.strong_count(), 1);
    drop(one);
    assert_eq!(seen.strong_count(), 0);
}

#[test]
fn bytes_are_let_go_of_where_the_other_side_drops_first_or_on_another_thread() {
    let (ours, seen) = watched(&[1, 2, 3]);
    let theirs = to_iceberg(&ours).unwrap();
    let again = to_iceberg(&ours).unwrap();
    drop(theirs);
    assert_eq!(ours.column(0).as_primitive::<UInt8Type>().values(), &[1, 2, 3]);
    drop(ours);
    assert_eq!(seen.strong_count(), 1);
    std::thread::spawn(move || drop(again)).join().unwrap();
    assert_eq!(seen.strong_count(), 0);
}

#[test]
fn a_column_outlives_the_batch_that_it_came_with() {
    let (ours, seen) = watched(&[4, 5]);
    let both = batch(vec![("id", Arc::clone(ours.column(0))), ("lists", lists().slice(0, 2))]);
    let theirs = to_iceberg(&both).unwrap();
    drop((ours, both));
    let column = Arc::clone(theirs.column(0));
    drop(theirs);
    assert_eq!(seen.strong_count(), 1);
    drop(column);
    assert_eq!(seen.strong_count(), 0);
}
