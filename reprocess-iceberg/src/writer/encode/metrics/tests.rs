use iceberg::spec::{ListType, NestedFieldRef, NullOrder, SortDirection, SortField, StructType, Transform};

use super::*;

const TEXT: PrimitiveType = PrimitiveType::String;
const BYTES: PrimitiveType = PrimitiveType::Binary;

fn field(id: i32, name: &str, of: PrimitiveType) -> NestedFieldRef {
    NestedField::optional(id, name, Type::Primitive(of)).into()
}

fn schema(fields: Vec<NestedFieldRef>) -> Schema {
    Schema::builder().with_fields(fields).build().unwrap()
}

fn modes(properties: &Properties, schema: &Schema) -> Vec<Mode> {
    let found = Metrics::new(properties, schema, &SortOrder::unsorted_order());
    found.modes.into_values().collect()
}

#[test]
fn modes_are_those_of_iceberg_in_any_case() {
    for (text, mode) in [
        ("none", Some(Mode::None)),
        ("Counts", Some(Mode::Counts)),
        ("FULL", Some(Mode::Full)),
        ("truncate(4)", Some(Mode::Truncate(4))),
        ("Truncate( 16 )", Some(Mode::Truncate(16))),
        ("truncate(0)", None),
        ("truncate(-1)", None),
        ("truncate", None),
        ("some", None),
    ] {
        assert_eq!(Mode::parse(text), mode, "{text}");
    }
}

#[test]
fn a_column_has_its_own_mode_before_that_of_the_table_and_an_unknown_one_counts_as_that() {
    let two = schema(vec![field(1, "a", TEXT), field(2, "b", TEXT), field(3, "c", TEXT)]);
    assert_eq!(modes(&Properties::default(), &two), [Mode::Truncate(16); 3]);
    let asked = Properties::from([
        ("write.metadata.metrics.default", "counts"),
        ("write.metadata.metrics.column.b", "full"),
        ("write.metadata.metrics.column.c", "what"),
    ]);
    assert_eq!(modes(&asked, &two), [Mode::Counts, Mode::Full, Mode::Counts]);
}

#[test]
fn of_many_columns_the_first_hundred_have_metrics_where_the_table_says_nothing() {
    let fields = (1..=102).map(|id| field(id, &format!("c{id}"), PrimitiveType::Long)).collect();
    let many = schema(fields);
    let found = modes(&Properties::from([("write.metadata.metrics.column.c102", "counts")]), &many);
    assert_eq!(found[..100], [Mode::Truncate(16); 100]);
    assert_eq!(found[100..], [Mode::None, Mode::Counts]);
    let all = Properties::from([("write.metadata.metrics.default", "full")]);
    assert_eq!(modes(&all, &many), [Mode::Full; 102]);
    let few = Properties::from([("write.metadata.metrics.max-inferred-column-defaults", "1")]);
    assert_eq!(modes(&few, &many)[..2], [Mode::Truncate(16), Mode::None]);
}

#[test]
fn columns_that_a_table_is_sorted_by_have_bounds() {
    let two = schema(vec![field(1, "a", TEXT), field(2, "b", TEXT)]);
    let by = SortField::builder()
        .source_id(2)
        .transform(Transform::Identity)
        .direction(SortDirection::Ascending)
        .null_order(NullOrder::First)
        .build();
    let order = SortOrder::builder().with_order_id(1).with_sort_field(by).build_unbound().unwrap();
    let asked = Properties::from([("write.metadata.metrics.default", "none")]);
    let found = Metrics::new(&asked, &two, &order);
    assert_eq!(found.modes.into_values().collect::<Vec<_>>(), [Mode::None, Mode::Truncate(16)]);
}

#[test]
fn columns_within_columns_are_asked_for_by_their_full_names() {
    let list = Type::List(ListType::new(NestedField::list_element(3, Type::Primitive(TEXT), true).into()));
    let inner = Type::Struct(StructType::new(vec![field(4, "x", PrimitiveType::Long)]));
    let nested =
        schema(vec![NestedField::optional(1, "l", list).into(), NestedField::optional(2, "s", inner).into()]);
    let asked = Properties::from([("write.metadata.metrics.column.s.x", "none")]);
    let found = Metrics::new(&asked, &nested, &SortOrder::unsorted_order());
    let truncated = Mode::Truncate(16);
    assert_eq!(
        found.modes,
        BTreeMap::from([(1, truncated), (2, truncated), (3, truncated), (4, Mode::None)])
    );
    assert!(found.texts.is_empty());
}

fn ends(of: &PrimitiveType, value: &[u8], mode: Mode) -> (Vec<u8>, Option<Vec<u8>>) {
    (below(of, value, mode), above(of, value, mode))
}

fn of_text(value: &str, length: usize) -> (String, Option<String>) {
    let (below, above) = ends(&TEXT, value.as_bytes(), Mode::Truncate(length));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(below), above.map(text))
}

#[test]
fn short_values_are_their_own_bounds() {
    assert_eq!(of_text("", 3), (String::new(), Some(String::new())));
    assert_eq!(of_text("abc", 3), ("abc".into(), Some("abc".into())));
    assert_eq!(ends(&BYTES, &[255, 255], Mode::Truncate(2)), (vec![255, 255], Some(vec![255, 255])));
    assert_eq!(ends(&TEXT, &[b'x'; 50], Mode::Full), (vec![b'x'; 50], Some(vec![b'x'; 50])));
}

#[test]
fn long_texts_are_cut_after_whole_characters_and_rounded_up() {
    assert_eq!(of_text("abcd", 3), ("abc".into(), Some("abd".into())));
    // Characters count, not bytes.
    assert_eq!(of_text("zürich", 2), ("zü".into(), Some("zý".into())));
    // The next character after the last one before the surrogates is the first one behind them.
    assert_eq!(of_text("a\u{D7FF}b", 2), ("a\u{D7FF}".into(), Some("a\u{E000}".into())));
    // After the last character of all comes none, so that the one before it is raised.
    assert_eq!(of_text("a\u{10FFFF}b", 2), ("a\u{10FFFF}".into(), Some("b".into())));
    assert_eq!(of_text("\u{10FFFF}\u{10FFFF}b", 2), ("\u{10FFFF}\u{10FFFF}".into(), None));
}

#[test]
fn long_bytes_are_cut_and_rounded_up() {
    let cut = |value: &[u8]| ends(&BYTES, value, Mode::Truncate(2));
    assert_eq!(cut(&[1, 2, 3]), (vec![1, 2], Some(vec![1, 3])));
    assert_eq!(cut(&[1, 255, 3]), (vec![1, 255], Some(vec![2])));
    assert_eq!(cut(&[255, 255, 0]), (vec![255, 255], None));
}

#[test]
fn bounds_are_never_inside_the_values() {
    let values =
        ["", "a", "aaaa", "aaaaé", "\u{10FFFF}", "zzzzzzzz", "日本語テキスト", "a\u{D7FF}\u{D7FF}zz"];
    for value in values {
        for length in 1..6 {
            let (below, above) = of_text(value, length);
            assert!(below.as_str() <= value, "{value} {length}");
            assert!(above.is_none_or(|above| above.as_str() >= value), "{value} {length}");
        }
    }
}
