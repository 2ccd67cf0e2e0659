use chrono::NaiveDate;
use proptest::prelude::*;

use super::*;

fn table() -> Partitioning {
    Partitioning::unpartitioned()
        .with_time("day", Grain::Day, chrono_tz::America::New_York)
        .with_key("country", ValueKind::Text)
        .with_key("shard", ValueKind::Integer)
}

fn day(text: &str) -> Value {
    Value::Date(text.parse().unwrap())
}

#[test]
fn odd_texts_keep_their_form() {
    let table = Partitioning::unpartitioned().with_key("c", ValueKind::Text);
    let cases = [
        (Value::Null, "c=__HIVE_DEFAULT_PARTITION__"),
        (Value::from(""), "c="),
        (Value::from("a/b"), "c=a%2Fb"),
        (Value::from("%"), "c=%25"),
        (Value::from("k=v"), "c=k%3Dv"),
        (Value::from("été"), "c=%C3%A9t%C3%A9"),
        (Value::from(HIVE_NULL), "c=%5F_HIVE_DEFAULT_PARTITION__"),
    ];
    for (value, text) in cases {
        let key = PartitionKey::of("c", value);
        assert_eq!(key.to_string(), text);
        assert_eq!(table.parse_key(text).unwrap(), key);
    }
}

#[test]
fn a_key_is_put_into_the_declared_order() {
    let key = PartitionKey::of("country", "FR").and("day", day("2026-10-01"));
    assert_eq!(table().check_key(&key).unwrap().to_string(), "day=2026-10-01/country=FR");
}

#[test]
fn a_wrong_key_is_refused_with_the_reason() {
    let refusals = [
        (
            "planet=Mars",
            "`planet` is no dimension of the table (partition planet=Mars); its dimensions are: day, country, shard",
        ),
        ("shard=x", "`x` is no integer for `shard` (partition shard=x); see the table's partitioning"),
        (
            "day=2026-02-30",
            "`2026-02-30` is no date for `day` (partition day=2026-02-30); write a date as 2026-10-01",
        ),
        ("country=a/country=b", "`country` is bound twice (partition country=a/country=b)"),
        ("2026-10-01", "`2026-10-01` is not of the form column=value (partition 2026-10-01)"),
    ];
    for (text, message) in refusals {
        assert_eq!(table().parse_key(text).unwrap_err().to_string(), message);
    }
    let weeks = Partitioning::unpartitioned().with_time("week", Grain::Week, chrono_tz::UTC);
    assert_eq!(
        weeks.parse_key("2026-10-01").unwrap_err().to_string(),
        "no week in UTC begins at `2026-10-01` (partition week=2026-10-01)"
    );
}

#[test]
fn a_key_that_leaves_columns_open_covers_those_below_it() {
    let all = PartitionKey::of("day", day("2026-10-01"));
    let france = all.clone().and("country", "FR");
    let other = PartitionKey::of("day", day("2026-10-02")).and("country", "FR");
    assert!(all.covers(&france) && !france.covers(&all));
    assert!(all.overlaps(&france) && france.overlaps(&all));
    assert!(!all.overlaps(&other));
    assert!(PartitionKey::of("country", "FR").overlaps(&all), "a country and a day meet in one partition");
    assert!(PartitionKey::whole().covers(&other));
}

fn any_value(kind: ValueKind) -> BoxedStrategy<Value> {
    match kind {
        ValueKind::Boolean => any::<bool>().prop_map(Value::Boolean).boxed(),
        ValueKind::Integer => any::<i64>().prop_map(Value::Integer).boxed(),
        ValueKind::Text => any::<String>().prop_map(Value::Text).boxed(),
        ValueKind::Date => (-700_000..700_000_i32)
            .prop_map(|d| Value::Date(NaiveDate::from_num_days_from_ce_opt(d).unwrap()))
            .boxed(),
        ValueKind::Timestamp => (-60_000_000_000_000_000..200_000_000_000_000_000_i64)
            .prop_map(|t| Value::Timestamp(chrono::DateTime::from_timestamp_micros(t).unwrap()))
            .boxed(),
    }
}

proptest! {
    #[test]
    fn every_key_round_trips_through_text_and_json(
        (kind, value) in prop_oneof![
            Just(ValueKind::Boolean), Just(ValueKind::Integer), Just(ValueKind::Text), Just(ValueKind::Date), Just(ValueKind::Timestamp)
        ].prop_flat_map(|kind| (Just(kind), prop_oneof![9 => any_value(kind), 1 => Just(Value::Null)])),
        column in any::<String>(),
    ) {
        let key = PartitionKey::of(column.clone(), value);
        let table = Partitioning::unpartitioned().with_key(column, kind);
        prop_assert_eq!(&table.parse_key(&key.to_string()).unwrap(), &key);
        let json = serde_json::to_string(&key).unwrap();
        prop_assert_eq!(&serde_json::from_str::<PartitionKey>(&json).unwrap(), &key);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        let _ = table().parse_key(&text);
    }

    #[test]
    fn what_looks_like_a_key_is_refused_or_reads_back(
        text in "((day|country|shard|hour|week|%64ay|x)=([0-9T:Z+-]{0,21}|[+-]?[0-9]{4,6}-[0-9]{2}-[0-9]{2}|%[0-9A-F]{2}|\\PC{0,5})/?){0,4}",
        grain in prop::sample::select(vec![Grain::Hour, Grain::Day, Grain::Week, Grain::Year]),
        zone in prop::sample::select(&chrono_tz::TZ_VARIANTS[..]),
    ) {
        let by_time = Partitioning::unpartitioned().with_time("hour", grain, zone);
        for table in [table(), by_time] {
            if let Ok(key) = table.parse_key(&text) {
                prop_assert_eq!(&table.parse_key(&key.to_string()).unwrap(), &key);
                let _ = table.interval(&key);
            }
        }
    }
}
