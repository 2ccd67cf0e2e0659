use std::sync::Arc;

use arrow_array::types::{Date32Type, Int8Type, Int32Type};
use arrow_array::*;
use arrow_buffer::i256;
use arrow_cast::cast;
use arrow_schema::{DataType, Field, IntervalUnit, Schema, TimeUnit};
use proptest::prelude::*;

use super::*;
use crate::domain::decimal::Decimal;
use crate::domain::interval::{Calendar, Grain};
use crate::domain::partition::{PartitionKey, Partitioning};
use crate::domain::scope::Scope;
use crate::domain::value::{Value, ValueKind};

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let fields: Vec<_> = columns.iter().map(|(n, a)| Field::new(*n, a.data_type().clone(), true)).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.into_iter().map(|(_, a)| a).collect())
        .unwrap()
}

fn array(array: impl Array + 'static) -> ArrayRef {
    Arc::new(array)
}

fn encoded(array: &ArrayRef, row: usize) -> Vec<u8> {
    let mut buffer = Vec::new();
    Column::new("c", array).unwrap().cell(row).encode(&mut buffer);
    buffer
}

fn at(text: &str) -> i64 {
    text.parse::<chrono::DateTime<chrono::Utc>>().unwrap().timestamp_micros()
}

fn date(text: &str) -> Value {
    Value::Date(text.parse().unwrap())
}

fn days(text: &str) -> i32 {
    Date32Type::from_naive_date(text.parse().unwrap())
}

/// Every pair of arrays holds the same values, in bytes, order and text.
fn check_same(arrays: &[ArrayRef]) {
    for pair in arrays.windows(2) {
        let (a, b) = (Column::new("c", &pair[0]).unwrap(), Column::new("c", &pair[1]).unwrap());
        let types = format!("{} and {}", pair[0].data_type(), pair[1].data_type());
        assert_eq!(pair[0].len(), pair[1].len(), "{types}");
        for row in 0..pair[0].len() {
            assert_eq!(a.cell(row), b.cell(row), "{types}, row {row}");
            assert_eq!(encoded(&pair[0], row), encoded(&pair[1], row), "{types}, row {row}");
            assert_eq!(a.cell(row).value(), b.cell(row).value(), "{types}, row {row}");
        }
    }
}

#[test]
fn width_and_scale_of_a_number_do_not_matter() {
    let numbers = array(Int64Array::from(vec![Some(0), Some(7), Some(120), None]));
    let mut same = vec![numbers.clone()];
    for to in [
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::UInt8,
        DataType::UInt16,
        DataType::UInt32,
        DataType::UInt64,
        DataType::Decimal32(9, 4),
        DataType::Decimal64(18, 1),
        DataType::Decimal128(20, 5),
        DataType::Decimal256(60, 30),
        DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Int64)),
    ] {
        same.push(cast(&numbers, &to).unwrap());
    }
    check_same(&same);
    let hundreds = array(Decimal128Array::from(vec![3, -4]).with_precision_and_scale(5, -2).unwrap());
    check_same(&[hundreds, array(Int32Array::from(vec![300, -400]))]);
}

/// Digests that ledgers keep are made of these bytes.
#[test]
fn bytes_of_numbers_are_scale_length_sign_and_what_is_not_sign_at_any_width() {
    let powers = (0..255_u32).map(|bits| i256::ONE << u8::try_from(bits).unwrap());
    let near = powers.flat_map(|power| [power, power.wrapping_sub(i256::ONE), power.wrapping_add(i256::ONE)]);
    for number in near.flat_map(|number| [number, number.wrapping_neg()]) {
        let negative = number < i256::ZERO;
        let sign = if negative { 0xff } else { 0 };
        let rest: Vec<u8> = number.to_be_bytes().into_iter().skip_while(|byte| *byte == sign).collect();
        let mut expected = vec![2, 0, u8::try_from(rest.len()).unwrap(), sign];
        expected.extend(rest);
        let mut found = Vec::new();
        Cell::Decimal(Decimal::new(number, 0)).encode(&mut found);
        assert_eq!(found, expected, "{number}");
    }
}

#[test]
fn layout_and_encoding_of_texts_and_bytes_do_not_matter() {
    let texts = array(StringArray::from(vec![
        Some("a"),
        None,
        Some(""),
        Some("a longer text than twelve bytes"),
        Some("a"),
    ]));
    let runs = RunArray::try_new(
        &PrimitiveArray::<Int32Type>::from(vec![1, 2, 3, 4, 5]),
        &StringArray::from(vec![
            Some("a"),
            None,
            Some(""),
            Some("a longer text than twelve bytes"),
            Some("a"),
        ]),
    );
    check_same(&[
        texts.clone(),
        cast(&texts, &DataType::LargeUtf8).unwrap(),
        cast(&texts, &DataType::Utf8View).unwrap(),
        cast(&texts, &DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8))).unwrap(),
        array(runs.unwrap()),
    ]);
    // A NULL of a dictionary may stand among its values.
    let nulls_in_values = DictionaryArray::<Int8Type>::new(
        Int8Array::from(vec![Some(0), Some(1), None]),
        array(StringArray::from(vec![Some("a"), None])),
    );
    check_same(&[array(nulls_in_values), array(StringArray::from(vec![Some("a"), None, None]))]);
    let bytes = array(BinaryArray::from(vec![Some(&b"ab"[..]), Some(&b"\0\xff"[..]), None]));
    check_same(&[
        bytes.clone(),
        cast(&bytes, &DataType::LargeBinary).unwrap(),
        cast(&bytes, &DataType::BinaryView).unwrap(),
        cast(&bytes, &DataType::FixedSizeBinary(2)).unwrap(),
    ]);
}

#[test]
fn unit_and_zone_of_a_time_do_not_matter() {
    let seconds = vec![Some(1_362_380_400), Some(-1), None];
    let scaled = |by: i64| seconds.iter().map(|s| s.map(|s| s * by)).collect::<Vec<_>>();
    check_same(&[
        array(TimestampSecondArray::from(seconds.clone())),
        array(TimestampMillisecondArray::from(scaled(1_000)).with_timezone("UTC")),
        array(TimestampMicrosecondArray::from(scaled(1_000_000)).with_timezone("America/New_York")),
        array(TimestampNanosecondArray::from(scaled(1_000_000_000)).with_timezone("+02:00")),
    ]);
    check_same(&[
        array(Date32Array::from(vec![Some(15768), Some(-1), None])),
        array(Date64Array::from(vec![Some(15768 * 86_400_000), Some(-86_400_000), None])),
    ]);
}

#[test]
fn width_of_a_float_does_not_matter() {
    let floats = vec![Some(0.5), Some(-0.0), Some(f32::INFINITY), Some(f32::NAN), None];
    let wide = floats.iter().map(|f| f.map(f64::from)).collect::<Vec<_>>();
    check_same(&[array(Float32Array::from(floats)), array(Float64Array::from(wide))]);
    let nans = array(Float64Array::from(vec![f64::NAN, -f64::NAN, f64::from_bits(0x7ff0_0000_0000_0001)]));
    assert_eq!(encoded(&nans, 0), encoded(&nans, 1));
    assert_eq!(encoded(&nans, 0), encoded(&nans, 2));
}

#[test]
fn values_of_different_kinds_differ_and_so_does_null() {
    let far = i64::MAX;
    let values = [
        array(NullArray::new(1)),
        array(BooleanArray::from(vec![false])),
        array(BooleanArray::from(vec![true])),
        array(Int64Array::from(vec![-1])),
        array(Int64Array::from(vec![0])),
        array(Decimal128Array::from(vec![1]).with_precision_and_scale(5, 2).unwrap()),
        array(Int64Array::from(vec![1])),
        array(Int64Array::from(vec![255])),
        array(Int64Array::from(vec![256])),
        array(UInt64Array::from(vec![u64::MAX])),
        array(Decimal256Array::from(vec![i256::MAX])),
        array(Float64Array::from(vec![-1.0])),
        array(Float64Array::from(vec![-0.0])),
        array(Float64Array::from(vec![0.0])),
        array(Float64Array::from(vec![f64::NAN])),
        array(StringArray::from(vec![""])),
        array(StringArray::from(vec!["NULL"])),
        array(BinaryArray::from(vec![&b""[..]])),
        array(BinaryArray::from(vec![&b"NULL"[..]])),
        array(Date32Array::from(vec![0])),
        array(Date32Array::from(vec![i32::MAX])),
        array(TimestampSecondArray::from(vec![0])),
        array(TimestampNanosecondArray::from(vec![1])),
        array(TimestampSecondArray::from(vec![far])),
    ];
    let columns: Vec<_> = values.iter().map(|v| Column::new("c", v).unwrap()).collect();
    for (i, a) in columns.iter().enumerate() {
        for (j, b) in columns.iter().enumerate() {
            let (a, b) = (a.cell(0), b.cell(0));
            assert_eq!(a.cmp(&b), i.cmp(&j), "the list above ascends: {a} and {b}");
            assert_eq!(encoded(&values[i], 0) == encoded(&values[j], 0), i == j, "{a} and {b}");
        }
    }
}

#[test]
fn text_of_values_is_for_people() {
    let check = |values: ArrayRef, texts: &[Option<&str>]| {
        let column = Column::new("c", &values).unwrap();
        for (row, text) in texts.iter().enumerate() {
            assert_eq!(column.cell(row).text().as_deref(), *text);
        }
    };
    check(array(StringArray::from(vec![Some("NULL"), None])), &[Some("NULL"), None]);
    check(array(Decimal128Array::from(vec![-5]).with_precision_and_scale(5, 2).unwrap()), &[Some("-0.05")]);
    check(array(Float64Array::from(vec![0.1, 1.0, 1e300])), &[Some("0.1"), Some("1.0"), Some("1e300")]);
    check(array(BinaryArray::from(vec![&b"\x00\xfe"[..]])), &[Some("0x00fe")]);
    check(array(Date32Array::from(vec![15768, -1])), &[Some("2013-03-04"), Some("1969-12-31")]);
    check(array(TimestampMillisecondArray::from(vec![-1])), &[Some("1969-12-31T23:59:59.999Z")]);
    check(array(Date32Array::from(vec![i32::MAX])), &[Some("2147483647 days after 1970-01-01")]);
}

#[test]
fn unsupported_types_are_refused_by_name() {
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    for data_type in [
        DataType::Time32(TimeUnit::Second),
        DataType::Time64(TimeUnit::Nanosecond),
        DataType::Duration(TimeUnit::Second),
        DataType::Interval(IntervalUnit::DayTime),
        DataType::List(item.clone()),
        DataType::LargeList(item.clone()),
        DataType::FixedSizeList(item.clone(), 2),
        DataType::Struct(vec![item].into()),
        DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Time32(TimeUnit::Second))),
    ] {
        let error = Column::new("odd", &new_empty_array(&data_type)).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Invalid);
        assert!(error.to_string().contains(&format!("column `odd` has the type {data_type}")), "{error}");
    }
    let twice = batch(vec![("c", array(Int8Array::from(vec![1]))), ("c", array(Int8Array::from(vec![1])))]);
    assert_eq!(Columns::new(&twice).unwrap_err().to_string(), "column `c` stands twice in the rows");
    let too_large = array(Decimal128Array::from(vec![i128::MAX]).with_precision_and_scale(38, -60).unwrap());
    assert!(Column::new("c", &too_large).is_err());
}

fn encoded_row(columns: Vec<(&str, ArrayRef)>) -> Vec<u8> {
    let mut buffer = Vec::new();
    Columns::new(&batch(columns)).unwrap().encode(0, &mut buffer);
    buffer
}

#[test]
fn a_row_is_its_named_values() {
    let text = |t: &str| array(StringArray::from(vec![t]));
    let none = || array(Int32Array::from(vec![None]));
    let row = encoded_row(vec![("a", text("x")), ("b", text("y"))]);
    assert_eq!(encoded_row(vec![("b", text("y")), ("a", text("x"))]), row, "order of columns");
    assert_eq!(
        encoded_row(vec![("a", text("x")), ("b", text("y")), ("new", none())]),
        row,
        "an empty column"
    );
    assert_ne!(encoded_row(vec![("a", text("y")), ("b", text("x"))]), row, "values changed places");
    assert_ne!(encoded_row(vec![("a", text("x")), ("c", text("y"))]), row, "another name");
    assert_ne!(encoded_row(vec![("a", text("x"))]), row, "a value is NULL");
    let bytes = |b: &'static [u8]| array(BinaryArray::from(vec![b]));
    let forged = encoded_row(vec![("a", bytes(b"pb\xff\x05q"))]);
    assert_ne!(
        encoded_row(vec![("a", bytes(b"p")), ("b", bytes(b"q"))]),
        forged,
        "bytes that look like a column"
    );
}

#[test]
fn floats_stand_behind_the_rest_of_a_row() {
    let float = |f: f64| ("a", array(Float64Array::from(vec![f])));
    let rows = [1.0, 1.0 + f64::EPSILON].map(|f| {
        let mut buffer = Vec::new();
        let columns = Columns::new(&batch(vec![float(f), ("b", array(Int8Array::from(vec![1])))])).unwrap();
        let floats_begin = columns.encode(0, &mut buffer);
        (buffer[..floats_begin].to_vec(), buffer)
    });
    assert_eq!(rows[0].0, rows[1].0);
    assert_ne!(rows[0].1, rows[1].1, "the last bit of a float belongs to the content");
    assert_eq!(rows[0].0, encoded_row(vec![("b", array(Int8Array::from(vec![1])))]));
}

#[test]
fn instants_belong_to_the_day_of_their_zone() {
    let partitioning = Partitioning::unpartitioned()
        .with_time("at", Grain::Day, chrono_tz::America::New_York)
        .with_key("origin", ValueKind::Text);
    let rows = batch(vec![
        (
            "at",
            array(TimestampMicrosecondArray::from(vec![
                Some(at("2013-03-10T04:59:59.999999Z")),
                Some(at("2013-03-10T05:00:00Z")),
                Some(at("2013-03-11T03:59:59Z")),
                Some(at("2013-03-11T04:00:00Z")),
                None,
            ])),
        ),
        ("origin", array(StringArray::from(vec![Some("JFK"), Some("JFK"), Some("JFK"), None, Some("")]))),
    ]);
    let key = |day: Value, origin: Value| PartitionKey::of("at", day).and("origin", origin);
    let jfk = || Value::from("JFK");
    assert_eq!(
        partition_of_rows(&partitioning, &rows).unwrap(),
        [
            key(date("2013-03-09"), jfk()),
            key(date("2013-03-10"), jfk()),
            key(date("2013-03-10"), jfk()),
            key(date("2013-03-11"), Value::Null),
            key(Value::Null, Value::from("")),
        ]
    );
    let runs = partition_runs(&partitioning, &rows).unwrap();
    assert_eq!(runs.into_iter().map(|(_, rows)| rows).collect::<Vec<_>>(), [0..1, 1..3, 3..4, 4..5]);
}

#[test]
fn local_dates_belong_to_the_period_that_holds_them() {
    let months = Partitioning::unpartitioned().with_time("d", Grain::Month, chrono_tz::Pacific::Apia);
    let march = days("2013-03-31");
    let rows = batch(vec![("d", array(Date32Array::from(vec![march, march + 1])))]);
    let expected = [PartitionKey::of("d", date("2013-03-01")), PartitionKey::of("d", date("2013-04-01"))];
    assert_eq!(partition_of_rows(&months, &rows).unwrap(), expected);
    let hours = Partitioning::unpartitioned().with_time("d", Grain::Hour, chrono_tz::UTC);
    assert!(
        partition_of_rows(&hours, &rows)
            .unwrap_err()
            .to_string()
            .starts_with("no hour can be told from the date `2013-03-31` in column `d`")
    );
    assert_eq!(
        partition_of_rows(&Partitioning::unpartitioned(), &rows).unwrap(),
        [PartitionKey::whole(), PartitionKey::whole()]
    );
}

#[test]
fn wrong_partition_columns_are_refused() {
    let rows = batch(vec![
        ("text", array(StringArray::from(vec!["a"]))),
        ("wide", array(UInt64Array::from(vec![u64::MAX]))),
        ("float", array(Float64Array::from(vec![1.0]))),
    ]);
    let check = |column: &str, kind: ValueKind, message: &str| {
        let partitioning = Partitioning::unpartitioned().with_key(column, kind);
        let error = partition_of_rows(&partitioning, &rows).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    };
    check("none", ValueKind::Text, "the rows have no column `none`; their columns are: text, wide, float");
    check("text", ValueKind::Integer, "column `text` is a dimension of type integer, not of the text `a`");
    check("wide", ValueKind::Integer, "column `wide` is a dimension of type integer, not of the decimal");
    assert!(column_values(&rows, "float").is_err());
    assert_eq!(column_values(&rows, "text").unwrap(), [Value::from("a")]);
}

#[test]
fn rows_outside_the_scope_are_refused_by_name() {
    let partitioning = Partitioning::unpartitioned().with_time("d", Grain::Day, chrono_tz::UTC);
    let first = days("2013-03-01");
    let scope = Scope::key(PartitionKey::of("d", date("2013-03-01"))).unwrap();
    let check = |offsets: &[i32]| {
        let dates: Vec<_> = offsets.iter().map(|o| first + o).collect();
        check_rows(&partitioning, &scope, &batch(vec![("d", array(Date32Array::from(dates)))]))
    };
    check(&[0, 0]).unwrap();
    check(&[]).unwrap();
    assert_eq!(
        check(&[0, 2, 1, 2]).unwrap_err().to_string(),
        "3 rows lie outside the scope, in partition d=2013-03-02 (1), d=2013-03-03 (2) (scope d=2013-03-01); \
         restrict the output to the partitions of the task"
    );
    let many = check(&[1, 2, 3, 4, 5, 6, 7]).unwrap_err().to_string();
    assert!(many.contains("d=2013-03-06 (1), and 2 more") && !many.contains("d=2013-03-07"), "{many}");
    let stray = batch(vec![("d", array(Date32Array::from(vec![None, Some(first)])))]);
    assert!(check_rows(&partitioning, &scope, &stray).unwrap_err().to_string().contains("HIVE_DEFAULT"));
    check_rows(&partitioning, &Scope::whole_table(), &stray).unwrap();
}

proptest! {
    #[test]
    fn rows_are_equal_exactly_when_their_bytes_are(
        a in prop::collection::vec((prop::option::of("[ab\u{e9}]{0,3}"), prop::option::of("[ab]{0,3}"), prop::option::of(-2..2_i64)), 2)
    ) {
        let rows = batch(vec![
            ("t", array(StringArray::from_iter(a.iter().map(|r| r.0.clone())))),
            ("t2", array(StringArray::from_iter(a.iter().map(|r| r.1.clone())))),
            ("n", array(Int64Array::from_iter(a.iter().map(|r| r.2)))),
        ]);
        let columns = Columns::new(&rows).unwrap();
        let (mut x, mut y) = (Vec::new(), Vec::new());
        columns.encode(0, &mut x);
        columns.encode(1, &mut y);
        prop_assert_eq!(x == y, a[0] == a[1]);
    }

    #[test]
    fn runs_agree_with_the_calendar_row_by_row(
        // Around both clock changes of 2013 in New York, in any order.
        minutes in prop::collection::vec(prop_oneof![0..6000_i64, 338_000..344_000_i64], 0..60),
        hourly in any::<bool>(),
    ) {
        let grain = if hourly { Grain::Hour } else { Grain::Day };
        let calendar = Calendar::new(grain, chrono_tz::America::New_York);
        let partitioning = Partitioning::unpartitioned().with_time("at", grain, chrono_tz::America::New_York);
        let start = at("2013-03-09T00:00:00Z");
        let micros: Vec<_> = minutes.iter().map(|m| start + m * 60_000_000).collect();
        let rows = batch(vec![("at", array(TimestampMicrosecondArray::from(micros.clone())))]);
        let expected: Vec<_> = micros
            .iter()
            .map(|m| chrono::DateTime::from_timestamp_micros(*m).unwrap())
            .map(|t| PartitionKey::of("at", calendar.key_at(t).unwrap()))
            .collect();
        prop_assert_eq!(&partition_of_rows(&partitioning, &rows).unwrap(), &expected);
        let runs = partition_runs(&partitioning, &rows).unwrap();
        prop_assert!(runs.windows(2).all(|pair| pair[0].0 != pair[1].0 && pair[0].1.end == pair[1].1.start));
    }
}
