use iceberg::spec::{ListType, MapType, StructType};

use super::*;

fn optional(id: i32, name: &str, of: PrimitiveType) -> NestedFieldRef {
    NestedField::optional(id, name, Type::Primitive(of)).into()
}

fn schema(fields: Vec<NestedFieldRef>) -> Schema {
    Schema::builder().with_schema_id(3).with_fields(fields).build().unwrap()
}

fn instants(unit: TimeUnit, zone: Option<&str>) -> DataType {
    DataType::Timestamp(unit, zone.map(Into::into))
}

#[test]
fn every_type_of_iceberg_has_one_of_arrow_without_field_ids() {
    let micros = TimeUnit::Microsecond;
    for (of, data_type) in [
        (PrimitiveType::Boolean, DataType::Boolean),
        (PrimitiveType::Int, DataType::Int32),
        (PrimitiveType::Long, DataType::Int64),
        (PrimitiveType::Float, DataType::Float32),
        (PrimitiveType::Double, DataType::Float64),
        (PrimitiveType::Decimal { precision: 9, scale: 2 }, DataType::Decimal128(9, 2)),
        (PrimitiveType::Date, DataType::Date32),
        (PrimitiveType::Time, DataType::Time64(micros)),
        (PrimitiveType::Timestamp, instants(micros, None)),
        (PrimitiveType::Timestamptz, instants(micros, Some("UTC"))),
        (PrimitiveType::TimestampNs, instants(TimeUnit::Nanosecond, None)),
        (PrimitiveType::TimestamptzNs, instants(TimeUnit::Nanosecond, Some("UTC"))),
        (PrimitiveType::String, DataType::Utf8),
        (PrimitiveType::Uuid, DataType::FixedSizeBinary(16)),
        (PrimitiveType::Fixed(7), DataType::FixedSizeBinary(7)),
        (PrimitiveType::Binary, DataType::Binary),
    ] {
        let found = to_arrow(&schema(vec![optional(1, "a", of)])).unwrap();
        assert_eq!(found.fields()[0].as_ref(), &Field::new("a", data_type, true));
    }
}

#[test]
fn nested_columns_have_their_names_and_no_field_ids() {
    let long = || Type::Primitive(PrimitiveType::Long);
    let text = || Type::Primitive(PrimitiveType::String);
    let list = Type::List(ListType::new(NestedField::list_element(4, long(), true).into()));
    let map = Type::Map(MapType::new(
        NestedField::map_key_element(5, text()).into(),
        NestedField::map_value_element(6, long(), false).into(),
    ));
    let both = StructType::new(vec![NestedField::required(7, "x", long()).into()]);
    let known = schema(vec![
        NestedField::optional(1, "l", list).into(),
        NestedField::optional(2, "m", map).into(),
        NestedField::required(3, "s", Type::Struct(both)).into(),
    ]);
    let x = Field::new("x", DataType::Int64, false);
    let pair = Fields::from(vec![
        Field::new("key", DataType::Utf8, false),
        Field::new("value", DataType::Int64, true),
    ]);
    let pair = Field::new("key_value", DataType::Struct(pair), false);
    let element = Field::new("element", DataType::Int64, false);
    assert_eq!(
        *to_arrow(&known).unwrap(),
        ArrowSchema::new(vec![
            Field::new("l", DataType::List(Arc::new(element)), true),
            Field::new("m", DataType::Map(Arc::new(pair), false), true),
            Field::new("s", DataType::Struct(Fields::from(vec![x])), false),
        ])
    );
}

#[test]
fn layouts_of_the_same_values_are_kept_as_one_type() {
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::LargeUtf8));
    for (written, kept) in [
        (DataType::Int64, DataType::Int64),
        (DataType::Int16, DataType::Int32),
        (DataType::UInt32, DataType::Int64),
        (DataType::LargeUtf8, DataType::Utf8),
        (dictionary, DataType::Utf8),
        (DataType::BinaryView, DataType::Binary),
        (DataType::Date64, DataType::Date32),
        (DataType::Decimal64(9, 2), DataType::Decimal128(9, 2)),
        (instants(TimeUnit::Microsecond, Some("Europe/Paris")), instants(TimeUnit::Microsecond, Some("UTC"))),
        (instants(TimeUnit::Second, None), instants(TimeUnit::Microsecond, None)),
        (instants(TimeUnit::Nanosecond, None), instants(TimeUnit::Nanosecond, None)),
    ] {
        let found = kept_as(&Field::new("a", written, false)).unwrap();
        assert_eq!(found, Field::new("a", kept, false));
    }
}

#[test]
fn types_without_a_place_in_iceberg_are_refused_by_the_name_of_the_column() {
    let element = Arc::new(Field::new("item", DataType::Int64, true));
    for data_type in [
        DataType::UInt64,
        DataType::Float16,
        DataType::Null,
        DataType::Decimal256(50, 2),
        DataType::Decimal128(4, -2),
        DataType::List(element),
    ] {
        let error = kept_as(&Field::new("odd", data_type.clone(), true)).unwrap_err().to_string();
        assert!(error.contains("`odd`") && error.contains(&data_type.to_string()), "{error}");
    }
}

#[test]
fn columns_of_a_new_table_have_ids_from_one_and_take_no_null_where_none_is_said() {
    let columns = ArrowSchema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("note", DataType::Utf8, true),
    ]);
    let found = new_schema(&columns).unwrap();
    assert_eq!(
        found.as_struct().fields(),
        [
            NestedField::required(1, "id", Type::Primitive(PrimitiveType::Long)).into(),
            optional(2, "note", PrimitiveType::String),
        ]
    );
    assert_eq!(*to_arrow(&found).unwrap(), columns);
    let twice = ArrowSchema::new(vec![Field::new("a", DataType::Int64, true); 2]);
    assert_eq!(new_schema(&twice).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn known_columns_keep_their_ids_and_new_ones_come_after_the_last_that_was_ever_given() {
    let doc = NestedField::required(2, "id", Type::Primitive(PrimitiveType::Uuid)).with_doc("who");
    let known = Schema::builder()
        .with_schema_id(3)
        .with_fields(vec![optional(5, "note", PrimitiveType::String), doc.clone().into()])
        .with_identifier_field_ids([2])
        .build()
        .unwrap();
    let after = ArrowSchema::new(vec![
        Field::new("id", DataType::FixedSizeBinary(16), false),
        Field::new("new", DataType::Int64, true),
        Field::new("note", DataType::Utf8, true),
        Field::new("newer", DataType::Date32, true),
    ]);
    let found = extended(&known, 9, &after).unwrap();
    assert_eq!(
        found.as_struct().fields(),
        [
            doc.into(),
            optional(10, "new", PrimitiveType::Long),
            optional(5, "note", PrimitiveType::String),
            optional(11, "newer", PrimitiveType::Date),
        ]
    );
    assert_eq!(found.identifier_field_ids().collect::<Vec<_>>(), [2]);
    assert_eq!(*to_arrow(&found).unwrap(), after);
}

#[test]
fn a_column_of_another_type_is_a_new_one_unless_the_type_is_wider() {
    let known = schema(vec![
        optional(1, "wider", PrimitiveType::Int),
        optional(2, "other", PrimitiveType::Int),
        optional(3, "price", PrimitiveType::Decimal { precision: 9, scale: 2 }),
    ]);
    let after = ArrowSchema::new(vec![
        Field::new("wider", DataType::Int64, true),
        Field::new("other", DataType::Utf8, true),
        Field::new("price", DataType::Decimal128(12, 2), true),
    ]);
    let found = extended(&known, 3, &after).unwrap();
    assert_eq!(
        found.as_struct().fields(),
        [
            optional(1, "wider", PrimitiveType::Long),
            optional(4, "other", PrimitiveType::String),
            optional(3, "price", PrimitiveType::Decimal { precision: 12, scale: 2 }),
        ]
    );
}
