use std::sync::Arc;

use iceberg::spec::{
    DataContentType, DataFile, DataFileBuilder, DataFileFormat, Literal, NestedField, PartitionSpec,
    PrimitiveType, Struct, Transform, Type,
};

use super::*;

fn columns() -> Schema {
    let field = |id, name: &str, of| Arc::new(NestedField::optional(id, name, Type::Primitive(of)));
    let fields = [
        field(1, "flag", PrimitiveType::Boolean),
        field(2, "count", PrimitiveType::Int),
        field(3, "id", PrimitiveType::Long),
        field(4, "share", PrimitiveType::Double),
        field(5, "total", PrimitiveType::Decimal { precision: 12, scale: 2 }),
        field(6, "day", PrimitiveType::Date),
        field(7, "at", PrimitiveType::Timestamptz),
        field(8, "name", PrimitiveType::String),
        field(9, "token", PrimitiveType::Uuid),
        field(10, "raw", PrimitiveType::Binary),
        field(11, "code", PrimitiveType::Fixed(2)),
    ];
    Schema::builder().with_fields(fields).build().unwrap()
}

fn partition(columns: &Schema) -> StructType {
    let mut spec = PartitionSpec::builder(columns.clone()).with_spec_id(3);
    for (name, transform) in [
        ("day", Transform::Identity),
        ("at", Transform::Hour),
        ("name", Transform::Identity),
        ("share", Transform::Identity),
        ("total", Transform::Identity),
        ("token", Transform::Identity),
        ("raw", Transform::Truncate(4)),
        ("code", Transform::Identity),
    ] {
        spec = spec.add_partition_field(name, format!("{name}_{transform}"), transform).unwrap();
    }
    spec.build().unwrap().partition_type(columns).unwrap()
}

fn file(share: f64) -> DataFile {
    let values = [
        Some(Literal::date(20_000)),
        Some(Literal::int(480_000)),
        None,
        Some(Literal::double(share)),
        Some(Literal::decimal(-1_250)),
        Some(Literal::uuid_from_str("f79c3e09-677c-4bbd-a479-3f349cb785e7").unwrap()),
        Some(Literal::binary([0, 255, 7])),
        Some(Literal::fixed([1, 2])),
    ];
    let lower = [
        (1, Datum::bool(false)),
        (2, Datum::int(-5)),
        (3, Datum::long(i64::MIN)),
        (4, Datum::double(-0.0)),
        (5, Datum::decimal_with_precision("-12.50".parse().unwrap(), 12).unwrap()),
        (6, Datum::date(20_000)),
        (7, Datum::timestamptz_micros(-1)),
        (8, Datum::string("Ärger\u{0}\"")),
        (9, Datum::uuid_from_str("f79c3e09-677c-4bbd-a479-3f349cb785e7").unwrap()),
        (10, Datum::binary([0, 200])),
        (11, Datum::fixed([1, 2])),
    ];
    let upper = [(3, Datum::long(i64::MAX)), (4, Datum::double(f64::INFINITY))];
    DataFileBuilder::default()
        .content(DataContentType::Data)
        .file_path("/lake/orders/data/day=2024-10-04/reprocess-1/00000.parquet".to_owned())
        .file_format(DataFileFormat::Parquet)
        .partition(values.into_iter().collect::<Struct>())
        .partition_spec_id(3)
        .record_count(1_000)
        .file_size_in_bytes(123_456)
        .column_sizes([(3, 77)].into())
        .value_counts([(3, 1_000), (4, 1_000)].into())
        .null_value_counts([(3, 0), (4, 10)].into())
        .nan_value_counts([(4, 1)].into())
        .lower_bounds(lower.into())
        .upper_bounds(upper.into())
        .split_offsets(Some(vec![4, 100_000]))
        .sort_order_id(0)
        .build()
        .unwrap()
}

#[test]
fn a_file_is_read_from_its_note_as_it_was_noted() {
    let columns = columns();
    let partition = partition(&columns);
    let file = file(0.25);
    let filed = Filed::new(&file, &partition, &columns, 3).unwrap();
    // Through a document, as it is kept.
    let text = serde_json::to_string(&filed).unwrap();
    let filed: Filed = serde_json::from_str(&text).unwrap();
    assert_eq!(filed.read(&partition, &columns, 3).unwrap(), file);
    assert_eq!((filed.path.as_str(), filed.size_bytes), (file.file_path(), 123_456));
}

#[test]
fn a_partition_that_a_note_cannot_hold_is_refused() {
    let columns = columns();
    let partition = partition(&columns);
    for share in [f64::NAN, f64::NEG_INFINITY] {
        let error = Filed::new(&file(share), &partition, &columns, 3).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}

#[test]
fn the_note_of_a_set_is_one_document_with_what_it_is_of() {
    let columns = columns();
    let partition = partition(&columns);
    let filed = |file: &DataFile| Filed::new(file, &partition, &columns, 3).unwrap();
    let merged = Merged {
        incoming: vec![filed(&file(0.5))],
        removes: vec!["/lake/orders/data/a.parquet".to_owned()],
        on: vec![(PartitionKey::of("day", 7), "v".into())],
    };
    let content = Content {
        spec_id: 3,
        columns: columns.clone(),
        added: vec![filed(&file(0.25))],
        merged: Some(merged),
        since: Some(i64::MAX),
    };
    #[derive(Serialize, Deserialize)]
    struct Document {
        of: String,
        #[serde(flatten)]
        content: Content,
    }
    let text = serde_json::to_string(&Document { of: "orders".into(), content: content.clone() }).unwrap();
    let Document { content: read, .. } = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), serde_json::to_value(&content).unwrap());
    assert!(read.removes("/lake/orders/data/a.parquet") && !read.removes("/lake/orders/data/b.parquet"));
    assert_eq!(read.places().len(), 2);
    let file = read.added[0].read(&partition, read.columns(), read.spec_id()).unwrap();
    assert_eq!(file, self::file(0.25));
}
