use chrono_tz::Europe::Paris;
use chrono_tz::UTC;
use reprocess_core::domain::interval::Grain;

use super::*;

fn by(grain: Grain, zone: chrono_tz::Tz) -> Partitioning {
    Partitioning::unpartitioned().with_time("at", grain, zone).with_key("country", ValueKind::Text)
}

fn at(text: &str) -> PartitionKey {
    PartitionKey::of("at", text.parse::<NaiveDate>().unwrap())
}

#[test]
fn bounds_are_read_as_the_server_writes_them() {
    let range = |a: &str, b: &str| Some(Bounds::Range(a.to_owned(), b.to_owned()));
    assert_eq!(
        Bounds::parse("FOR VALUES FROM ('2026-10-01') TO ('2026-10-02')"),
        range("2026-10-01", "2026-10-02")
    );
    assert_eq!(Bounds::parse("FOR VALUES FROM (1) TO ('-5')"), range("1", "-5"));
    assert_eq!(Bounds::parse("FOR VALUES FROM (') TO (''') TO ('x')"), range(") TO ('", "x"));
    let list = Bounds::List(vec![Some("l'été, 'x')".to_owned()), None, Some("7".to_owned())]);
    assert_eq!(Bounds::parse("FOR VALUES IN ('l''été, ''x'')', NULL, 7)"), Some(list));
    for text in [
        "DEFAULT",
        "FOR VALUES WITH (modulus 4, remainder 0)",
        "FOR VALUES FROM (MINVALUE) TO ('2026-10-02')",
        "FOR VALUES FROM ('a', 1) TO ('b', 2)",
        "FOR VALUES FROM (NULL) TO (1)",
        "FOR VALUES IN ('a",
        "FOR VALUES IN ()",
    ] {
        assert_eq!(Bounds::parse(text), None, "{text}");
    }
}

#[test]
fn a_child_names_the_keys_that_it_may_hold() {
    let named = |partitioning: &Partitioning, column: &str, bounds: &str| {
        keys(partitioning, Some(column), bounds)
            .map(|keys| keys.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let days = named(&by(Grain::Day, UTC), "at", "FOR VALUES FROM ('2026-10-30') TO ('2026-11-02')");
    assert_eq!(days.unwrap(), ["at=2026-10-30", "at=2026-10-31", "at=2026-11-01"]);
    let month = named(&by(Grain::Month, UTC), "at", "FOR VALUES FROM ('2026-10-30') TO ('2026-11-01')");
    assert_eq!(month.unwrap(), ["at=2026-10-01"]);
    // Half past eleven in the evening in Paris to half past midnight.
    let night = "FOR VALUES FROM ('2026-10-01 21:30:00+00') TO ('2026-10-01 22:30:00+00')";
    assert_eq!(named(&by(Grain::Day, Paris), "at", night).unwrap(), ["at=2026-10-01", "at=2026-10-02"]);
    let two = named(&by(Grain::Day, UTC), "country", "FOR VALUES IN ('FR', NULL)");
    assert_eq!(two.unwrap().len(), 2);
    for (column, bounds) in [
        ("at", "FOR VALUES FROM ('1900-01-01') TO ('2026-11-02')"),
        ("country", "FOR VALUES FROM ('A') TO ('B')"),
        ("id", "FOR VALUES IN (1)"),
        ("at", "DEFAULT"),
    ] {
        assert_eq!(named(&by(Grain::Day, UTC), column, bounds), None, "{bounds}");
    }
    assert_eq!(keys(&by(Grain::Day, UTC), None, "FOR VALUES IN (1)"), None);
}

#[test]
fn a_child_is_exclusive_where_its_bounds_are_those_of_the_key() {
    let check = |exact: bool, grain: Grain, zone, key: &PartitionKey, column: &str, bounds: &str| {
        assert_eq!(is_exactly(&by(grain, zone), key, column, bounds), exact, "{key} {bounds}");
    };
    let first = at("2026-10-01");
    check(true, Grain::Day, UTC, &first, "at", "FOR VALUES FROM ('2026-10-01') TO ('2026-10-02')");
    check(true, Grain::Day, UTC, &first, "at", "FOR VALUES IN ('2026-10-01')");
    check(true, Grain::Month, UTC, &first, "at", "FOR VALUES FROM ('2026-10-01') TO ('2026-11-01')");
    let paris = "FOR VALUES FROM ('2026-09-30 22:00:00+00') TO ('2026-10-01 22:00:00+00')";
    check(true, Grain::Day, Paris, &first, "at", paris);
    check(false, Grain::Day, UTC, &first, "at", paris);
    check(false, Grain::Day, UTC, &first, "at", "FOR VALUES FROM ('2026-10-01') TO ('2026-11-01')");
    check(false, Grain::Month, UTC, &first, "at", "FOR VALUES FROM ('2026-10-01') TO ('2026-10-02')");
    check(false, Grain::Month, UTC, &first, "at", "FOR VALUES IN ('2026-10-01')");
    check(false, Grain::Day, UTC, &first, "at", "FOR VALUES IN ('2026-10-01', '2026-10-02')");
    check(false, Grain::Day, UTC, &first, "at", "DEFAULT");
    check(false, Grain::Day, UTC, &first.and("country", "FR"), "at", "FOR VALUES IN ('2026-10-01')");
    check(false, Grain::Day, UTC, &PartitionKey::whole(), "at", "FOR VALUES IN ('2026-10-01')");
    let french = PartitionKey::of("country", "FR");
    check(true, Grain::Day, UTC, &french, "country", "FOR VALUES IN ('FR')");
    check(false, Grain::Day, UTC, &french, "country", "FOR VALUES IN ('FR', NULL)");
    check(false, Grain::Day, UTC, &french, "at", "FOR VALUES IN ('FR')");
    check(
        true,
        Grain::Day,
        UTC,
        &PartitionKey::of("country", Value::Null),
        "country",
        "FOR VALUES IN (NULL)",
    );
}
