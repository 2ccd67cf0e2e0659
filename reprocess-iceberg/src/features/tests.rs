use arrow_schema::Field;
use iceberg::spec::{
    DataContentType, ListType, NestedField, NullOrder, PartitionSpec, PrimitiveType, Schema as Columns,
    SortDirection, SortField, SortOrder, Type,
};
use reprocess_core::domain::partition::Partitioning;

use super::*;
use crate::view::fixtures::{data, deletes, empty, metadata, named, schema};

fn with(version: FormatVersion, properties: &[(&str, &str)]) -> View {
    let made = metadata(version, schema(&[("id", PrimitiveType::Long)]), &[("id", Transform::Identity)]);
    let properties = properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let made = made.into_builder(None).set_properties(properties.collect()).unwrap().build().unwrap();
    empty(&Partitioning::unpartitioned(), made.metadata)
}

fn refused(result: Result<()>, words: &[&str]) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.advice().is_some());
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

#[test]
fn tables_are_written_unless_they_ask_for_what_is_not_done_here() {
    for version in [FormatVersion::V1, FormatVersion::V2, FormatVersion::V3] {
        check_write(&with(version, &[("write.format.default", "Parquet")]), false).unwrap();
    }
    check_write(&with(FormatVersion::V2, &[]), true).unwrap();
    refused(check_write(&with(FormatVersion::V3, &[]), true), &["version 3", "merge"]);
    refused(check_write(&with(FormatVersion::V2, &[("write.format.default", "orc")]), false), &["orc"]);
    refused(check_write(&with(FormatVersion::V3, &[("encryption.key-id", "k")]), false), &["encrypted"]);
    let absent =
        View::absent(&reprocess_core::domain::job::TableSpec::new("t", Partitioning::unpartitioned()));
    assert_eq!(check_write(&absent, false).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn columns_that_cannot_be_compared_are_named() {
    let element = NestedField::list_element(2, Type::Primitive(PrimitiveType::Long), false);
    let nested = NestedField::optional(1, "tags", Type::List(ListType::new(element.into())));
    for field in [nested, NestedField::optional(1, "tags", Type::Primitive(PrimitiveType::Time))] {
        let columns = Columns::builder().with_fields([field.into()]).build().unwrap();
        let view = empty(&Partitioning::unpartitioned(), metadata(FormatVersion::V2, columns, &[]));
        refused(check_write(&view, false), &["`tags`", "cannot be compared"]);
    }
}

#[test]
fn branches_and_tags_need_the_second_format() {
    refused(check_refs(&with(FormatVersion::V1, &[])), &["version 1", "upgrade"]);
    check_refs(&with(FormatVersion::V2, &[])).unwrap();
    check_refs(&with(FormatVersion::V3, &[])).unwrap();
}

fn file(change: impl FnOnce(&mut iceberg::spec::DataFileBuilder), deleting: bool) -> File {
    let (columns, by) = (schema(&[("id", PrimitiveType::Long)]), PartitionSpec::unpartition_spec());
    let plain = named(data("plain", []).build().unwrap(), &by, &columns, 1);
    let mut odd = match deleting {
        true => deletes(DataContentType::PositionDeletes, "odd", []),
        false => data("odd", []),
    };
    change(&mut odd);
    let odd = named(odd.build().unwrap(), &by, &columns, 1);
    match deleting {
        true => File { entry: plain, deletes: vec![odd] },
        false => File { entry: odd, deletes: Vec::new() },
    }
}

#[test]
fn files_that_are_not_understood_are_named() {
    check_read([&file(|_| {}, false), &file(|_| {}, true)]).unwrap();
    let format = |format| {
        move |file: &mut iceberg::spec::DataFileBuilder| {
            file.file_format(format);
        }
    };
    refused(check_read([&file(format(DataFileFormat::Orc), false)]), &["orc", "file odd"]);
    refused(check_read([&file(format(DataFileFormat::Avro), true)]), &["avro", "file odd"]);
    refused(check_read([&file(format(DataFileFormat::Puffin), true)]), &["deletion vectors", "file odd"]);
    let locked = |file: &mut iceberg::spec::DataFileBuilder| {
        file.key_metadata(Some(vec![1]));
    };
    let locked = file(locked, false);
    refused(check_read([&locked]), &["encrypted", "file odd"]);
}

fn columns(fields: &[(&str, DataType)]) -> Schema {
    Schema::new(fields.iter().map(|(name, of)| Field::new(*name, of.clone(), true)).collect::<Vec<_>>())
}

#[test]
fn nanoseconds_need_the_third_format() {
    let fine = DataType::Timestamp(TimeUnit::Nanosecond, None);
    let after = columns(&[("id", DataType::Int64), ("at", fine)]);
    refused(check_new(&with(FormatVersion::V2, &[]), &after), &["`at`", "nanoseconds"]);
    check_new(&with(FormatVersion::V3, &[]), &after).unwrap();
}

#[test]
fn what_a_table_is_partitioned_or_sorted_by_stays_in_its_columns() {
    let view = with(FormatVersion::V2, &[]);
    check_new(&view, &columns(&[("new", DataType::Utf8), ("id", DataType::Int64)])).unwrap();
    for after in [columns(&[("new", DataType::Utf8)]), columns(&[("id", DataType::Utf8)])] {
        let error = check_new(&view, &after).unwrap_err();
        assert!(error.to_string().contains("partitioned by `id`"), "{error}");
    }
    let made = metadata(FormatVersion::V2, schema(&[("id", PrimitiveType::Long)]), &[]);
    let by_id = SortField::builder()
        .source_id(1)
        .transform(Transform::Identity)
        .direction(SortDirection::Ascending)
        .null_order(NullOrder::First)
        .build();
    let order = SortOrder::builder().with_order_id(1).with_sort_field(by_id).build_unbound().unwrap();
    let builder = made.into_builder(None).add_sort_order(order).unwrap().set_default_sort_order(-1).unwrap();
    let view = empty(&Partitioning::unpartitioned(), builder.build().unwrap().metadata);
    let error = check_new(&view, &columns(&[("new", DataType::Utf8)])).unwrap_err();
    assert!(error.to_string().contains("sorted by `id`"), "{error}");
}
