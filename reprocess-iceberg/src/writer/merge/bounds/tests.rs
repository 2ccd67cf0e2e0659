use std::sync::Arc;

use iceberg::spec::{
    DataContentType, DataFile, DataFileBuilder, DataFileFormat, NestedField, PartitionSpec, Type,
};

use super::*;
use crate::view::Named;

fn schema() -> Schema {
    let field = |id, name: &str, of| Arc::new(NestedField::optional(id, name, Type::Primitive(of)));
    Schema::builder()
        .with_fields([field(1, "id", PrimitiveType::Long), field(2, "code", PrimitiveType::String)])
        .build()
        .unwrap()
}

fn file(path: &str, lower: Vec<(i32, Datum)>, upper: Vec<(i32, Datum)>) -> File {
    let file: DataFile = DataFileBuilder::default()
        .content(DataContentType::Data)
        .file_path(path.to_owned())
        .file_format(DataFileFormat::Parquet)
        .record_count(1)
        .file_size_in_bytes(1)
        .lower_bounds(lower.into_iter().collect())
        .upper_bounds(upper.into_iter().collect())
        .build()
        .unwrap();
    let entry = Named {
        file,
        manifest: "m".into(),
        spec: Arc::new(PartitionSpec::unpartition_spec()),
        schema: Arc::new(schema()),
        snapshot_id: 1,
        sequence_number: 1,
        file_sequence_number: Some(1),
        first_row_id: None,
    };
    File { entry: Arc::new(entry), deletes: Vec::new() }
}

fn ids(path: &str, from: i64, to: i64) -> File {
    file(path, vec![(1, Datum::long(from))], vec![(1, Datum::long(to))])
}

fn ends(key: &str, least: ScalarValue, most: ScalarValue) -> BTreeMap<String, (ScalarValue, ScalarValue)> {
    BTreeMap::from([(key.to_owned(), (least, most))])
}

fn found<'a>(files: &'a [File], ends: &BTreeMap<String, (ScalarValue, ScalarValue)>) -> Vec<&'a str> {
    candidates(files.iter().collect(), &schema(), ends).into_iter().map(File::path).collect()
}

#[test]
fn files_that_lie_wholly_beside_the_keys_are_passed_over() {
    let files = [ids("a", 0, 9), ids("b", 10, 19), ids("c", 20, 29), file("unknown", vec![], vec![])];
    let between = |least, most| ends("id", ScalarValue::Int64(Some(least)), ScalarValue::Int64(Some(most)));
    assert_eq!(found(&files, &between(10, 19)), ["b", "unknown"]);
    assert_eq!(found(&files, &between(9, 20)), ["a", "b", "c", "unknown"]);
    assert_eq!(found(&files, &between(30, 40)), ["unknown"]);
    assert_eq!(found(&files, &BTreeMap::new()).len(), 4);
}

#[test]
fn one_known_bound_is_enough_to_pass_over_a_file() {
    let files =
        [file("from", vec![(1, Datum::long(5))], vec![]), file("to", vec![], vec![(1, Datum::long(5))])];
    let only = |id| ends("id", ScalarValue::Int64(Some(id)), ScalarValue::Int64(Some(id)));
    assert_eq!(found(&files, &only(4)), ["to"]);
    assert_eq!(found(&files, &only(5)), ["from", "to"]);
    assert_eq!(found(&files, &only(6)), ["from"]);
}

#[test]
fn every_key_can_pass_over_a_file() {
    let both = |path: &str, id: i64, code: &str| {
        let bounds = vec![(1, Datum::long(id)), (2, Datum::string(code))];
        file(path, bounds.clone(), bounds)
    };
    let files = [both("a", 1, "x"), both("b", 1, "y"), both("c", 2, "x")];
    let text = |text: &str| ScalarValue::Utf8(Some(text.into()));
    let mut ends = ends("id", ScalarValue::Int64(Some(1)), ScalarValue::Int64(Some(1)));
    ends.insert("code".into(), (text("x"), text("x")));
    assert_eq!(found(&files, &ends), ["a"]);
}

#[test]
fn bounds_of_a_narrower_type_count_and_those_of_another_kind_do_not() {
    let narrow = file("narrow", vec![(1, Datum::int(5))], vec![(1, Datum::int(6))]);
    let texts = file("texts", vec![(1, Datum::string("5"))], vec![(1, Datum::string("6"))]);
    let files = [narrow, texts];
    let seven = ends("id", ScalarValue::Int64(Some(7)), ScalarValue::Int64(Some(7)));
    assert_eq!(found(&files, &seven), ["texts"]);
    let unknown = ends("other", ScalarValue::Int64(Some(7)), ScalarValue::Int64(Some(7)));
    assert_eq!(found(&files, &unknown).len(), 2);
}

#[test]
fn values_are_compared_as_rows_are() {
    let after = |a: ScalarValue, b: Datum| Bound::of(&a).unwrap().is_after(&Bound::of_datum(&b).unwrap());
    assert!(after(ScalarValue::Date32(Some(1)), Datum::date(0)));
    assert!(after(ScalarValue::Boolean(Some(true)), Datum::bool(false)));
    // Texts by their bytes, cut or not.
    assert!(after(ScalarValue::Utf8(Some("ä".into())), Datum::string("z")));
    assert!(!after(ScalarValue::Utf8(Some("abc".into())), Datum::string("abcdefgh")));
    // A microsecond is a thousand nanoseconds.
    let micros = |micros| ScalarValue::TimestampMicrosecond(Some(micros), Some("UTC".into()));
    assert!(after(micros(1), Datum::timestamptz_nanos(999)));
    assert!(!after(micros(1), Datum::timestamptz_nanos(1_000)));
    let cents = |unscaled, scale| ScalarValue::Decimal128(Some(unscaled), 9, scale);
    assert!(after(cents(276, 2), Datum::decimal_from_str("2.75").unwrap()));
    // Of other scales nothing is known.
    assert!(!after(cents(2_760, 3), Datum::decimal_from_str("2.75").unwrap()));
}

#[test]
fn floats_and_uuids_say_nothing() {
    assert_eq!(Bound::of(&ScalarValue::Float64(Some(1.0))), None);
    assert_eq!(Bound::of_datum(&Datum::double(1.0)), None);
    let uuid = "f0f0f0f0-f0f0-f0f0-f0f0-f0f0f0f0f0f0";
    assert_eq!(Bound::of_datum(&Datum::uuid_from_str(uuid).unwrap()), None);
    assert_eq!(Bound::of(&ScalarValue::Int64(None)), None);
}
