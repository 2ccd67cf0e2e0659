mod older;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, Date32Array, RecordBatch, TimestampMicrosecondArray};
use chrono::{DateTime, NaiveDate};
use chrono_tz::Tz;
use iceberg::spec::{Datum, FormatVersion, Literal, Struct};
use reprocess_core::domain::rows::partition_of_rows;
use reprocess_core::domain::value::ValueKind;

use super::*;
use crate::view::fixtures::{data, metadata, respecced, schema};

const GRAINS: [Grain; 6] = [Grain::Hour, Grain::Day, Grain::Week, Grain::Month, Grain::Quarter, Grain::Year];
/// UTC, clock changes at one and at midnight, half an hour, a date that was left out, and midnights that came twice.
const ZONES: [Tz; 6] = [
    Tz::UTC,
    Tz::Europe__Paris,
    Tz::America__Sao_Paulo,
    Tz::Asia__Kolkata,
    Tz::Pacific__Apia,
    Tz::America__Toronto,
];
const TRANSFORMS: [Transform; 5] =
    [Transform::Identity, Transform::Hour, Transform::Day, Transform::Month, Transform::Year];

fn by_time(grain: Grain, zone: Tz) -> Partitioning {
    Partitioning::unpartitioned().with_time("at", grain, zone)
}

fn micros(text: &str) -> i64 {
    text.parse::<DateTime<chrono::Utc>>().unwrap().timestamp_micros()
}

/// Instants around the epoch and around clock changes, and many others.
fn instants() -> Vec<i64> {
    let changes = [
        "1970-01-01T00:00:00Z",
        "1969-12-31T00:00:00Z",
        "1969-12-30T23:59:59.5Z",
        "1582-10-15T00:00:00Z",
        "1919-03-31T04:30:00Z",
        "1919-03-31T05:00:00Z",
        "2011-12-30T10:00:00Z",
        "2018-11-04T03:00:00Z",
        "2018-02-18T02:00:00Z",
        "2026-03-29T01:00:00Z",
        "2026-10-25T01:00:00Z",
        "2026-12-31T18:30:00Z",
        "2262-04-11T23:47:16Z",
    ];
    let near = changes.iter().flat_map(|text| [-1, 0, 1].map(|by| micros(text) + by));
    let many = (-400..800).map(|step: i64| step * 2_345_678_912_345);
    near.chain(many).collect()
}

fn column(of: &PrimitiveType, instants: &[i64]) -> ArrayRef {
    match of {
        PrimitiveType::Date => {
            let days = instants.iter().map(|at| i32::try_from(at.div_euclid(86_400_000_000)).unwrap());
            Arc::new(Date32Array::from_iter_values(days))
        }
        PrimitiveType::Timestamp => Arc::new(TimestampMicrosecondArray::from(instants.to_vec())),
        _ => Arc::new(TimestampMicrosecondArray::from(instants.to_vec()).with_timezone("UTC")),
    }
}

fn rows(column: ArrayRef) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable([("at", column, true)]).unwrap()
}

/// The partition value of an instant by the library; days, which it gets wrong before 1970, by hand.
fn transformed(of: &PrimitiveType, transform: Transform, at: i64) -> Literal {
    let day = i32::try_from(at.div_euclid(86_400_000_000)).unwrap();
    let datum = match of {
        PrimitiveType::Date => Datum::date(day),
        PrimitiveType::Timestamp => Datum::timestamp_micros(at),
        _ => Datum::timestamptz_micros(at),
    };
    match transform {
        Transform::Day => Literal::date(day),
        transform => {
            let function = iceberg::transform::create_transform_function(&transform).unwrap();
            function.transform_literal(&datum).unwrap().unwrap().into()
        }
    }
}

/// Whether each period of a transform lies in one of the dimension, said again in other words.
fn serves(of: &PrimitiveType, transform: Transform, grain: Grain, zone: Tz) -> bool {
    let length = |transform| match transform {
        Transform::Identity => 0,
        Transform::Hour => 1,
        Transform::Day => 24,
        Transform::Month => 24 * 28,
        _ => 24 * 365,
    };
    let lengths = BTreeMap::from([
        (Grain::Hour, 1),
        (Grain::Day, 24),
        (Grain::Week, 24 * 7),
        (Grain::Month, 24 * 28),
        (Grain::Quarter, 24 * 90),
        (Grain::Year, 24 * 365),
    ]);
    let local = *of == PrimitiveType::Date || grain == Grain::Hour || zone == Tz::UTC;
    let of_dates = *of != PrimitiveType::Date || (grain != Grain::Hour && transform != Transform::Hour);
    of_dates && length(transform) <= lengths[&grain] && (transform == Transform::Identity || local)
}

#[test]
fn a_file_is_placed_where_core_puts_its_rows_for_every_type_transform_grain_and_zone() {
    let instants = instants();
    for of in [PrimitiveType::Date, PrimitiveType::Timestamp, PrimitiveType::Timestamptz] {
        let batch = rows(column(&of, &instants));
        for transform in TRANSFORMS {
            if of == PrimitiveType::Date && transform == Transform::Hour {
                continue;
            }
            let made = metadata(FormatVersion::V2, schema(&[("at", of.clone())]), &[("at", transform)]);
            let values: Vec<_> = instants.iter().map(|at| transformed(&of, transform, *at)).collect();
            for (grain, zone) in GRAINS.iter().flat_map(|grain| ZONES.map(|zone| (*grain, zone))) {
                let dimensions = by_time(grain, zone);
                let said = format!("{of} {transform} {grain} {zone}");
                let found = Partitions::new(&dimensions, &made);
                assert_eq!(found.is_ok(), serves(&of, transform, grain, zone), "{said}: {:?}", found.err());
                let Ok(partitions) = found else { continue };
                let keys = partition_of_rows(&dimensions, &batch).unwrap();
                for ((at, value), key) in instants.iter().zip(&values).zip(keys) {
                    let file = data("f", [Some(value.clone())]).build().unwrap();
                    let placed = partitions.place(partitions.spec(), made.current_schema(), &file).unwrap();
                    assert_eq!(placed, Placed::In(key), "{said} {at}");
                }
            }
        }
    }
}

#[test]
fn keys_are_values_of_their_columns_and_null_is_one() {
    let columns = [
        ("flag", PrimitiveType::Boolean, ValueKind::Boolean, Literal::bool(true), Value::Boolean(true)),
        ("small", PrimitiveType::Int, ValueKind::Integer, Literal::int(-7), Value::Integer(-7)),
        (
            "large",
            PrimitiveType::Long,
            ValueKind::Integer,
            Literal::long(1_i64 << 40),
            Value::Integer(1 << 40),
        ),
        ("text", PrimitiveType::String, ValueKind::Text, Literal::string("a/b"), Value::from("a/b")),
        (
            "day",
            PrimitiveType::Date,
            ValueKind::Date,
            Literal::date(-1),
            Value::Date("1969-12-31".parse().unwrap()),
        ),
        (
            "at",
            PrimitiveType::Timestamp,
            ValueKind::Timestamp,
            Literal::timestamp(-1),
            Value::Timestamp("1969-12-31T23:59:59.999999Z".parse().unwrap()),
        ),
    ];
    let known: Vec<_> = columns.iter().map(|(name, of, ..)| (*name, of.clone())).collect();
    let by: Vec<_> = columns.iter().map(|(name, ..)| (*name, Transform::Identity)).collect();
    let made = metadata(FormatVersion::V2, schema(&known), &by);
    let dimensions = columns
        .iter()
        .fold(Partitioning::unpartitioned(), |all, (name, _, kind, ..)| all.with_key(*name, *kind));
    let partitions = Partitions::new(&dimensions, &made).unwrap();
    let place = |values: Vec<Option<Literal>>| {
        let file = data("f", values).build().unwrap();
        partitions.place(partitions.spec(), made.current_schema(), &file).unwrap()
    };
    let values: Vec<_> = columns.iter().map(|(.., literal, _)| Some(literal.clone())).collect();
    let key =
        columns.iter().fold(PartitionKey::whole(), |key, (name, .., value)| key.and(*name, value.clone()));
    assert_eq!(place(values), Placed::In(key));
    let none = columns.iter().fold(PartitionKey::whole(), |key, (name, ..)| key.and(*name, Value::Null));
    assert_eq!(place(vec![None; 6]), Placed::In(none));
}

#[test]
fn further_fields_only_divide_further_and_void_ones_tell_nothing() {
    let columns = schema(&[("day", PrimitiveType::Date), ("id", PrimitiveType::Long)]);
    let by = [("day", Transform::Identity), ("id", Transform::Bucket(4)), ("day", Transform::Void)];
    let made = metadata(FormatVersion::V2, columns, &by);
    let dimensions = Partitioning::unpartitioned().with_time("day", Grain::Day, Tz::UTC);
    let partitions = Partitions::new(&dimensions, &made).unwrap();
    let file = data("f", [Some(Literal::date(0)), Some(Literal::int(3)), None]).build().unwrap();
    let key = PartitionKey::of("day", Value::Date(NaiveDate::default()));
    let placed = partitions.place(partitions.spec(), made.current_schema(), &file).unwrap();
    assert_eq!(placed, Placed::In(key));

    let dropped = respecced(made, &[("day", Transform::Void), ("id", Transform::Identity)]);
    let error = Partitions::new(&dimensions, &dropped).unwrap_err();
    assert!(error.to_string().contains("not partitioned by the dimension `day`"), "{error}");
}

#[test]
fn tables_that_cannot_serve_the_dimensions_are_refused_with_advice() {
    let columns = || {
        schema(&[
            ("at", PrimitiveType::Timestamptz),
            ("day", PrimitiveType::Date),
            ("country", PrimitiveType::String),
            ("price", PrimitiveType::Double),
            ("fine", PrimitiveType::TimestamptzNs),
        ])
    };
    let key = |column: &str, kind| Partitioning::unpartitioned().with_key(column, kind);
    let time =
        |column: &str, grain| Partitioning::unpartitioned().with_time(column, grain, Tz::Europe__Paris);
    for (dimensions, by, words) in [
        (time("at", Grain::Day), ("at", Transform::Day), "in UTC cannot serve a day in Europe/Paris"),
        (time("at", Grain::Week), ("at", Transform::Hour), "partition by a column of local dates"),
        (time("at", Grain::Hour), ("at", Transform::Day), "no hour can be told from day(`at`)"),
        (
            time("day", Grain::Week),
            ("day", Transform::Month),
            "no week in Europe/Paris can be told from month(`day`)",
        ),
        (
            time("day", Grain::Hour),
            ("day", Transform::Identity),
            "no hour can be told from the column `day`, a date",
        ),
        (time("country", Grain::Day), ("country", Transform::Identity), "`country`, a text"),
        (time("day", Grain::Day), ("country", Transform::Identity), "not partitioned by the dimension `day`"),
        (
            key("country", ValueKind::Text),
            ("country", Transform::Truncate(2)),
            "not partitioned by the dimension",
        ),
        (
            key("country", ValueKind::Text),
            ("country", Transform::Bucket(2)),
            "could hold rows of several partitions",
        ),
        (key("at", ValueKind::Timestamp), ("at", Transform::Hour), "partition by `at` itself"),
        (
            key("country", ValueKind::Integer),
            ("country", Transform::Identity),
            "is a integer, and the column a text",
        ),
        (key("price", ValueKind::Integer), ("price", Transform::Identity), "`price` is double"),
        (key("fine", ValueKind::Timestamp), ("fine", Transform::Identity), "`fine` is timestamptz_ns"),
        (
            key("where", ValueKind::Text),
            ("country", Transform::Identity),
            "no column for the dimension `where`",
        ),
    ] {
        let made = metadata(FormatVersion::V3, columns(), &[by]);
        let error = Partitions::new(&dimensions, &made).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn a_new_table_is_partitioned_by_its_dimensions() {
    let columns = schema(&[
        ("at", PrimitiveType::Timestamptz),
        ("day", PrimitiveType::Date),
        ("country", PrimitiveType::String),
        ("day_month", PrimitiveType::Int),
    ]);
    let check = |dimensions: Partitioning, fields: &[(&str, i32, Transform)]| {
        let spec = spec_for(&dimensions, &columns).unwrap();
        let found: Vec<_> =
            spec.fields().iter().map(|f| (f.name.as_str(), f.source_id, f.transform)).collect();
        assert_eq!((found.as_slice(), spec.spec_id()), (fields, Some(0)));
    };
    let time = |column: &str, grain| Partitioning::unpartitioned().with_time(column, grain, Tz::UTC);
    check(Partitioning::unpartitioned(), &[]);
    let by_both = Partitioning::unpartitioned().with_key("country", ValueKind::Text);
    check(
        by_both.with_time("day", Grain::Day, Tz::Europe__Paris),
        &[("country", 3, Transform::Identity), ("day", 2, Transform::Identity)],
    );
    check(time("day", Grain::Week), &[("day", 2, Transform::Identity)]);
    check(time("day", Grain::Quarter), &[("day_month_", 2, Transform::Month)]);
    check(time("day", Grain::Year), &[("day_year", 2, Transform::Year)]);
    check(time("at", Grain::Hour), &[("at_hour", 1, Transform::Hour)]);
    check(time("at", Grain::Day), &[("at_day", 1, Transform::Day)]);
    let paris = Partitioning::unpartitioned().with_time("at", Grain::Day, Tz::Europe__Paris);
    let error = spec_for(&paris, &columns).unwrap_err();
    assert!(error.to_string().contains("partition by a column of local dates"), "{error}");
}

#[test]
fn a_table_without_dimensions_is_one_partition_whatever_divides_its_files() {
    let made =
        metadata(FormatVersion::V2, schema(&[("at", PrimitiveType::Date)]), &[("at", Transform::Month)]);
    let partitions = Partitions::new(&Partitioning::unpartitioned(), &made).unwrap();
    let file = data("f", [Some(Literal::int(0))]).build().unwrap();
    let placed = partitions.place(partitions.spec(), made.current_schema(), &file).unwrap();
    assert_eq!(placed, Placed::In(PartitionKey::whole()));
    assert_eq!(file.partition(), &Struct::from_iter([Some(Literal::int(0))]));
}
