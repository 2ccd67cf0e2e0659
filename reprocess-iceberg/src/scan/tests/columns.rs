//! Columns that changed since a file was written.

use std::sync::Arc;

use arrow_array::builder::{Int32Builder, MapBuilder, StringBuilder};
use arrow_array::{
    Array, ArrayRef, Date32Array, Decimal128Array, Float32Array, Float64Array, Int32Array, Int64Array,
    ListArray, StringArray, StructArray, TimestampNanosecondArray,
};
use arrow_schema::{DataType, Fields};
use datafusion::parquet::basic::Repetition;
use datafusion::parquet::basic::Type as PhysicalType;
use datafusion::parquet::data_type::{Int96, Int96Type};
use datafusion::parquet::file::writer::SerializedFileWriter;
use datafusion::parquet::schema::types::Type as ParquetType;
use iceberg::spec::{
    DEFAULT_SCHEMA_NAME_MAPPING, ListType, Literal, MapType, NestedField, PartitionSpec, PrimitiveType,
    Struct, StructType, Transform, Type,
};
use reprocess_core::ErrorKind;

use super::{About, Lake, LocalFile, field, live, optional, schema};

fn ints(values: &[i32]) -> ArrayRef {
    Arc::new(Int32Array::from(values.to_vec()))
}

fn text(values: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

#[tokio::test]
async fn columns_are_found_by_their_ids_whatever_their_names_and_places() {
    let lake = Lake::new(vec![
        optional(3, "total", PrimitiveType::Int),
        optional(1, "id", PrimitiveType::Int),
        // Of the same name as one that was dropped.
        optional(4, "old", PrimitiveType::Int),
        NestedField::required(5, "unit", Type::Primitive(PrimitiveType::String))
            .with_initial_default(Literal::string("EUR")),
    ]);
    let columns = [(1, "id", ints(&[1, 2])), (2, "old", ints(&[7, 7])), (3, "amount", ints(&[10, 20]))];
    let file = lake.write("a.parquet", &columns, &About::data());
    assert_eq!(lake.rows(&[live(&file, &[])]).await, ["10|1|NULL|EUR", "20|2|NULL|EUR"]);
    let some = lake.read(&[live(&file, &[])], |name| name == "id" || name == "old").await.unwrap();
    assert_eq!(some, ["1|NULL", "2|NULL"]);
}

#[tokio::test]
async fn columns_that_were_widened_are_read_as_they_are_now() {
    let lake = Lake::new(vec![
        optional(1, "id", PrimitiveType::Long),
        optional(2, "share", PrimitiveType::Double),
        optional(3, "total", PrimitiveType::Decimal { precision: 20, scale: 2 }),
        optional(4, "day", PrimitiveType::Timestamp),
        optional(5, "at", PrimitiveType::Timestamptz),
    ]);
    let total = Decimal128Array::from(vec![1250]).with_precision_and_scale(9, 2).unwrap();
    let columns: [(i32, &str, ArrayRef); 5] = [
        (1, "id", ints(&[1])),
        (2, "share", Arc::new(Float32Array::from(vec![0.5]))),
        (3, "total", Arc::new(total)),
        (4, "day", Arc::new(Date32Array::from(vec![1]))),
        (5, "at", Arc::new(TimestampNanosecondArray::from(vec![1_000_000_001]))),
    ];
    let file = lake.write("a.parquet", &columns, &About::data());
    let rows = lake.rows(&[live(&file, &[])]).await;
    assert_eq!(rows, ["1|0.5|12.50|1970-01-02T00:00:00|1970-01-01T00:00:01Z"]);
}

#[tokio::test]
async fn a_type_that_is_not_read_as_another_is_refused_by_name_and_never_null() {
    for (kept, array) in [
        (PrimitiveType::Int, text(&["1"])),
        (PrimitiveType::Int, Arc::new(Int64Array::from(vec![1])) as ArrayRef),
        (PrimitiveType::Float, Arc::new(Float64Array::from(vec![0.5]))),
        (PrimitiveType::String, ints(&[1])),
    ] {
        let lake = Lake::new(vec![optional(1, "id", kept)]);
        let file = lake.write("a.parquet", &[(1, "id", array)], &About::data());
        let error = lake.read(&[live(&file, &[])], |_| true).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("`id`"), "{error}");
    }
}

#[tokio::test]
async fn fields_within_columns_are_found_by_their_ids_as_well() {
    let of =
        |fields: Vec<NestedField>| Type::Struct(StructType::new(fields.into_iter().map(Arc::new).collect()));
    let point = |first| {
        of(vec![
            optional(first + 1, "y", PrimitiveType::Int),
            optional(first, "x", PrimitiveType::Long),
            optional(first + 2, "z", PrimitiveType::Int),
        ])
    };
    let element = Arc::new(NestedField::list_element(20, point(21), false));
    let (key, value) = (
        NestedField::map_key_element(30, Type::Primitive(PrimitiveType::String)),
        NestedField::map_value_element(31, Type::Primitive(PrimitiveType::Long), false),
    );
    let lake = Lake::new(vec![
        NestedField::optional(1, "at", point(11)),
        NestedField::optional(2, "way", Type::List(ListType::new(element))),
        NestedField::optional(3, "counts", Type::Map(MapType::new(Arc::new(key), Arc::new(value)))),
    ]);
    let points = |first: i32| {
        let fields: Fields =
            vec![field(first, "x", DataType::Int32), field(first + 1, "y", DataType::Int32)].into();
        StructArray::try_new(fields, vec![ints(&[1, 2]), ints(&[10, 20])], None).unwrap()
    };
    let element = Arc::new(field(20, "element", points(21).data_type().clone()));
    let offsets = arrow_offsets(&[0, 0, 2]);
    let way = ListArray::try_new(element, offsets, Arc::new(points(21)), None).unwrap();
    let mut counts = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new())
        .with_keys_field(field(30, "keys", DataType::Utf8).with_nullable(false))
        .with_values_field(field(31, "values", DataType::Int32));
    counts.keys().append_value("a");
    counts.values().append_value(5);
    counts.append(true).unwrap();
    counts.append(true).unwrap();
    let columns: [(i32, &str, ArrayRef); 3] = [
        (1, "at", Arc::new(points(11))),
        (2, "way", Arc::new(way)),
        (3, "counts", Arc::new(counts.finish())),
    ];
    let file = lake.write("a.parquet", &columns, &About::data());
    let rows = lake.rows(&[live(&file, &[])]).await;
    let point = |x: i32| format!("{{y: {}, x: {x}, z: NULL}}", x * 10);
    assert_eq!(
        rows,
        [format!("{}|[]|{{a: 5}}", point(1)), format!("{}|[{}, {}]|{{}}", point(2), point(1), point(2))]
    );
}

fn arrow_offsets(ends: &[i32]) -> datafusion::arrow::buffer::OffsetBuffer<i32> {
    datafusion::arrow::buffer::OffsetBuffer::new(ends.to_vec().into())
}

#[tokio::test]
async fn what_a_table_is_partitioned_by_need_not_be_in_its_files() {
    let lake = Lake::new(vec![
        optional(1, "id", PrimitiveType::Int),
        optional(2, "day", PrimitiveType::Date),
        optional(3, "shop", PrimitiveType::Long),
        optional(4, "name", PrimitiveType::String),
        optional(5, "at", PrimitiveType::Timestamptz),
        optional(6, "uuid", PrimitiveType::Uuid),
    ]);
    // The shops were 32 bits wide then.
    let then = schema(vec![
        optional(2, "day", PrimitiveType::Date),
        optional(3, "shop", PrimitiveType::Int),
        optional(4, "name", PrimitiveType::String),
        optional(5, "at", PrimitiveType::Timestamptz),
        optional(6, "uuid", PrimitiveType::Uuid),
    ]);
    let mut spec = PartitionSpec::builder(Arc::clone(&then)).with_spec_id(1);
    for (name, transform) in [
        ("day", Transform::Identity),
        ("shop", Transform::Identity),
        ("name", Transform::Truncate(1)),
        ("at", Transform::Identity),
        ("uuid", Transform::Identity),
    ] {
        spec = spec.add_partition_field(name, format!("{name}_part"), transform).unwrap();
    }
    let values = [
        Some(Literal::date(1)),
        Some(Literal::int(7)),
        Some(Literal::string("A")),
        Some(Literal::timestamptz(1_000_000)),
        Some(Literal::uuid_from_str("00000000-0000-0000-0000-0000000000ff").unwrap()),
    ];
    let about = About {
        spec: Arc::new(spec.build().unwrap()),
        partition: values.into_iter().collect::<Struct>(),
        schema: Some(then),
        ..About::data()
    };
    let columns = [(1, "id", ints(&[1])), (4, "name", text(&["Ada"]))];
    let file = lake.write("a.parquet", &columns, &about);
    let uuid = "000000000000000000000000000000ff";
    let rows = lake.rows(&[live(&file, &[])]).await;
    assert_eq!(rows, [format!("1|1970-01-02|7|Ada|1970-01-01T00:00:01Z|{uuid}")]);
    // Nothing of the file is needed but how many rows it has.
    let days = lake.read(&[live(&file, &[])], |name| name == "day").await.unwrap();
    assert_eq!(days, ["1970-01-02"]);
}

#[tokio::test]
async fn files_that_were_not_written_for_iceberg_are_read_by_the_mapping_of_names_or_by_places() {
    let mapping = r#"[{"field-id": 2, "names": ["id", "number"]}, {"field-id": 1, "names": ["name"]}]"#;
    let mapped = Some((DEFAULT_SCHEMA_NAME_MAPPING, mapping));
    for (property, wanted) in [(mapped, "Ada|7"), (None, "7|Ada")] {
        let kinds = match property {
            Some(_) => [PrimitiveType::String, PrimitiveType::Int],
            None => [PrimitiveType::Int, PrimitiveType::String],
        };
        let [first, second] = kinds;
        let lake = Lake::with_property(vec![optional(1, "a", first), optional(2, "b", second)], property);
        let batch =
            arrow_array::RecordBatch::try_from_iter([("number", ints(&[7])), ("name", text(&["Ada"]))]);
        let file = lake.write_batch("a.parquet", &batch.unwrap(), &About::data());
        assert_eq!(lake.rows(&[live(&file, &[])]).await, [wanted]);
    }
}

#[tokio::test]
async fn instants_of_old_writers_are_read_beyond_the_range_of_nanoseconds() {
    let lake = Lake::new(vec![optional(1, "at", PrimitiveType::Timestamptz)]);
    let at = ParquetType::primitive_type_builder("at", PhysicalType::INT96)
        .with_repetition(Repetition::REQUIRED)
        .with_id(Some(1))
        .build()
        .unwrap();
    let root = ParquetType::group_type_builder("root").with_fields(vec![Arc::new(at)]).build().unwrap();
    let file = LocalFile::create(lake.path("a.parquet")).unwrap();
    let mut writer = SerializedFileWriter::new(file, Arc::new(root), Default::default()).unwrap();
    let mut rows = writer.next_row_group().unwrap();
    let mut column = rows.next_column().unwrap().unwrap();
    // Noon of the first day of the year 3000, as a Julian day.
    let mut at = Int96::new();
    let noon: u64 = 12 * 3_600 * 1_000_000_000;
    let half = |bits: u64| u32::try_from(bits).unwrap();
    at.set_data(half(noon & 0xffff_ffff), half(noon >> 32), 2_816_788);
    column.typed::<Int96Type>().write_batch(&[at], None, None).unwrap();
    column.close().unwrap();
    rows.close().unwrap();
    writer.close().unwrap();
    let file = lake.named("a.parquet", &About::data());
    assert_eq!(lake.rows(&[live(&file, &[])]).await, ["3000-01-01T12:00:00Z"]);
}
