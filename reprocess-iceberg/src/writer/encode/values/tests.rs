use arrow_array_58::{StringArray, TimestampNanosecondArray};
use chrono::Datelike;
use iceberg::spec::NestedField;

use super::*;

const DAY: i64 = 86_400_000_000;
const HOUR: i64 = 3_600_000_000;

fn ints(array: &ArrayRef) -> Vec<Option<i32>> {
    match array.data_type() {
        DataType::Date32 => array.as_primitive::<Date32Type>().iter().collect(),
        _ => array.as_primitive::<Int32Type>().iter().collect(),
    }
}

fn of_micros(transform: Transform, micros: &[i64]) -> Vec<i32> {
    let values: ArrayRef = Arc::new(TimestampMicrosecondArray::from(micros.to_vec()).with_timezone("+00:00"));
    ints(&transformed(&transform, &values).unwrap()).into_iter().map(Option::unwrap).collect()
}

fn of_nanos(transform: Transform, nanos: &[i64]) -> Vec<i32> {
    let values: ArrayRef = Arc::new(TimestampNanosecondArray::from(nanos.to_vec()));
    ints(&transformed(&transform, &values).unwrap()).into_iter().map(Option::unwrap).collect()
}

#[test]
fn periods_before_1970_are_numbered_downwards_to_the_last_microsecond() {
    let instants = [0, -1, -DAY, -DAY - 1, -DAY - 500_000, DAY - 1, DAY];
    assert_eq!(of_micros(Transform::Day, &instants), [0, -1, -1, -2, -2, 0, 1]);
    let instants = [0, -1, -HOUR, -HOUR - 500_000, HOUR - 1, HOUR];
    assert_eq!(of_micros(Transform::Hour, &instants), [0, -1, -1, -2, 0, 1]);
    // 1969-12-31, 1970-01-31, 1970-02-01 and 1968-12-31.
    let instants = [-1, 30 * DAY, 31 * DAY, -366 * DAY];
    assert_eq!(of_micros(Transform::Month, &instants), [-1, 0, 1, -13]);
    assert_eq!(of_micros(Transform::Year, &instants), [-1, 0, 0, -2]);
}

#[test]
fn nanoseconds_have_the_periods_and_buckets_of_their_microseconds() {
    let nanos = [0, -1, -DAY * 1_000 - 1, HOUR * 1_000];
    let micros = [0, -1, -DAY - 1, HOUR];
    for transform in
        [Transform::Hour, Transform::Day, Transform::Month, Transform::Year, Transform::Bucket(16)]
    {
        assert_eq!(of_nanos(transform, &nanos), of_micros(transform, &micros), "{transform}");
    }
}

#[test]
fn months_are_those_of_the_calendar() {
    for days in (-800_000..800_000).step_by(13) {
        let shown = shown(&Type::Primitive(PrimitiveType::Date), &PrimitiveLiteral::Int(days));
        let Value::Date(date) = shown else { panic!("{shown:?}") };
        let months = i64::from(date.year() - 1970) * 12 + i64::from(date.month0());
        assert_eq!(month_of(days.into()), months, "{date}");
    }
}

#[test]
fn buckets_are_those_of_the_specification() {
    let longs: ArrayRef = Arc::new(Int64Array::from(vec![Some(34), None]));
    // The hash of 34 is 2017239379.
    assert_eq!(ints(&transformed(&Transform::Bucket(100), &longs).unwrap()), [Some(79), None]);
    let dates: ArrayRef = Arc::new(Date32Array::from(vec![17_486]));
    // That of 2017-11-16 is -653330422, without its sign 1494153226.
    assert_eq!(ints(&transformed(&Transform::Bucket(100), &dates).unwrap()), [Some(26)]);
}

#[test]
fn integers_are_truncated_downwards_and_the_least_one_does_not_overflow() {
    let narrow: ArrayRef =
        Arc::new(Int32Array::from(vec![Some(1), Some(-1), Some(20), None, Some(i32::MIN)]));
    let found = ints(&transformed(&Transform::Truncate(10), &narrow).unwrap());
    // -2147483648 - 2, in 32 bits.
    assert_eq!(found, [Some(0), Some(-10), Some(20), None, Some(i32::MAX - 1)]);
    let wide: ArrayRef = Arc::new(Int64Array::from(vec![-11, 19, i64::MIN]));
    let found = transformed(&Transform::Truncate(10), &wide).unwrap();
    assert_eq!(found.as_primitive::<Int64Type>().values().to_vec(), [-20, 10, i64::MAX - 1]);
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["zürich", "ü"]));
    let found = transformed(&Transform::Truncate(2), &texts).unwrap();
    assert_eq!(found.as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["zü", "ü"]);
}

fn schema() -> Schema {
    let field = |id, name: &str, of| Arc::new(NestedField::optional(id, name, Type::Primitive(of)));
    Schema::builder()
        .with_fields([field(1, "id", PrimitiveType::Long), field(2, "country", PrimitiveType::String)])
        .build()
        .unwrap()
}

fn spec(transform: Transform) -> PartitionSpec {
    let name = if transform == Transform::Identity { "country" } else { "country_gone" };
    PartitionSpec::builder(schema())
        .add_partition_field("country", name, transform)
        .unwrap()
        .add_partition_field("id", "id_bucket", Transform::Bucket(100))
        .unwrap()
        .build()
        .unwrap()
}

fn rows(ids: Vec<Option<i64>>, countries: Vec<Option<&str>>) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from(ids));
    RecordBatch::try_from_iter_with_nullable([
        ("id", ids, true),
        ("country", Arc::new(StringArray::from(countries)), true),
    ])
    .unwrap()
}

fn text(value: &str) -> Option<PrimitiveLiteral> {
    Some(PrimitiveLiteral::String(value.into()))
}

#[test]
fn consecutive_rows_of_one_partition_are_one_run_and_null_is_a_value() {
    let values = Values::new(&spec(Transform::Identity), &schema()).unwrap();
    let rows = rows(
        vec![Some(34), Some(34), None, None, Some(34)],
        vec![Some("FR"), Some("FR"), Some("FR"), None, Some("FR")],
    );
    let bucket = || Some(PrimitiveLiteral::Int(79));
    assert_eq!(
        values.runs(&rows).unwrap(),
        [
            (Key(vec![text("FR"), bucket()]), 0..2),
            (Key(vec![text("FR"), None]), 2..3),
            (Key(vec![None, None]), 3..4),
            (Key(vec![text("FR"), bucket()]), 4..5),
        ]
    );
    assert!(values.runs(&rows.slice(0, 0)).unwrap().is_empty());
}

#[test]
fn a_field_that_was_dropped_from_a_spec_is_null_and_divides_nothing() {
    let values = Values::new(&spec(Transform::Void), &schema()).unwrap();
    let rows = rows(vec![Some(34), Some(34)], vec![Some("FR"), Some("DE")]);
    let found = values.runs(&rows).unwrap();
    assert_eq!(found, [(Key(vec![None, Some(PrimitiveLiteral::Int(79))]), 0..2)]);
    assert_eq!(values.folders(&found[0].0), ["country_gone=NULL", "id_bucket=79"]);
}

#[test]
fn without_fields_all_rows_lie_in_one_partition() {
    let values = Values::new(&PartitionSpec::unpartition_spec(), &schema()).unwrap();
    let rows = rows(vec![Some(1), Some(2)], vec![Some("FR"), Some("DE")]);
    assert_eq!(values.runs(&rows).unwrap(), [(Key(Vec::new()), 0..2)]);
    assert_eq!(Key(Vec::new()).values(), Struct::empty());
}

#[test]
fn columns_that_the_table_is_partitioned_by_have_to_be_there() {
    let id = NestedField::optional(1, "id", Type::Primitive(PrimitiveType::Long));
    let without = Schema::builder().with_fields([Arc::new(id)]).build().unwrap();
    let error = Values::new(&spec(Transform::Identity), &without).unwrap_err();
    assert!(error.to_string().contains("partitioned by a column that the rows do not have"), "{error}");
    assert!(error.to_string().contains("country"), "{error}");
}

#[test]
fn a_key_is_what_files_name_and_has_an_order() {
    let key = Key(vec![text("FR"), None]);
    assert_eq!(key.values(), Struct::from_iter([Some(Literal::string("FR")), None]));
    assert_eq!(Key::of(&key.values()), key);
    assert!(Key(vec![text("DE"), None]) < key);
    assert!(Key(vec![None, None]) < key);
}
