use chrono_tz::{America, Australia, Europe, Pacific};

use super::*;

fn date(text: &str) -> Value {
    Value::Date(text.parse().unwrap())
}

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn check_interval(grain: Grain, zone: Tz, key: &str, start: &str, end: &str) {
    let interval = Calendar::new(grain, zone).interval(&date(key)).unwrap();
    assert_eq!((interval.start(), interval.end()), (at(start), at(end)), "{grain} {key} in {zone}");
}

#[test]
fn a_local_day_lasts_as_long_as_its_zone_says() {
    use Grain::Day;
    let ny = America::New_York;
    check_interval(Day, ny, "2013-03-09", "2013-03-09T05:00:00Z", "2013-03-10T05:00:00Z");
    check_interval(Day, ny, "2013-03-10", "2013-03-10T05:00:00Z", "2013-03-11T04:00:00Z");
    check_interval(Day, ny, "2013-11-03", "2013-11-03T04:00:00Z", "2013-11-04T05:00:00Z");
    check_interval(Day, Europe::London, "2026-03-29", "2026-03-29T00:00:00Z", "2026-03-29T23:00:00Z");
    // Half an hour of daylight saving.
    check_interval(Day, Australia::Lord_Howe, "2026-04-05", "2026-04-04T13:00:00Z", "2026-04-05T13:30:00Z");
    // Midnight does not exist: the day begins at one o'clock.
    check_interval(Day, America::Sao_Paulo, "2018-11-04", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z");
}

#[test]
fn a_day_that_a_zone_jumped_over_does_not_exist() {
    let apia = Calendar::new(Grain::Day, Pacific::Apia);
    assert_eq!(apia.interval(&date("2011-12-30")), None);
    assert_eq!(apia.step(&date("2011-12-29"), 1), Some(date("2011-12-31")));
    assert_eq!(apia.step(&date("2011-12-31"), -1), Some(date("2011-12-29")));
    let (a, b) = (apia.interval(&date("2011-12-29")).unwrap(), apia.interval(&date("2011-12-31")).unwrap());
    assert_eq!(a.end(), b.start());
}

#[test]
fn coarse_periods_begin_where_the_calendar_says() {
    let ny = America::New_York;
    check_interval(Grain::Week, ny, "2013-03-04", "2013-03-04T05:00:00Z", "2013-03-11T04:00:00Z");
    check_interval(Grain::Month, ny, "2013-03-01", "2013-03-01T05:00:00Z", "2013-04-01T04:00:00Z");
    check_interval(Grain::Quarter, ny, "2013-01-01", "2013-01-01T05:00:00Z", "2013-04-01T04:00:00Z");
    check_interval(Grain::Year, ny, "2013-01-01", "2013-01-01T05:00:00Z", "2014-01-01T05:00:00Z");
    // Monday 29 December 2025 begins the week that holds New Year.
    let weeks = Calendar::new(Grain::Week, Tz::UTC);
    assert_eq!(weeks.key_at(at("2026-01-01T00:00:00Z")), Some(date("2025-12-29")));
    assert_eq!(weeks.interval(&date("2026-01-01")), None, "a Thursday begins no week");
}

#[test]
fn the_repeated_hour_of_autumn_is_two_partitions() {
    let hours = Calendar::new(Grain::Hour, America::New_York);
    let day = Calendar::new(Grain::Day, America::New_York);
    let count = |d: &str| hours.keys_in(&day.interval(&date(d)).unwrap()).count();
    assert_eq!((count("2013-03-09"), count("2013-03-10"), count("2013-11-03")), (24, 23, 25));
}

#[test]
fn an_instant_belongs_to_the_interval_of_its_key() {
    // Clocks went back from 00:01 to 23:01 of the day before; the later minutes belong to the new day.
    let st_johns = Calendar::new(Grain::Day, America::St_Johns);
    for text in
        ["2010-11-07T02:30:30Z", "2010-11-07T02:31:30Z", "2010-11-07T03:29:00Z", "2010-11-07T03:31:00Z"]
    {
        let key = st_johns.key_at(at(text)).unwrap();
        assert!(st_johns.interval(&key).unwrap().contains(at(text)), "{text} {key}");
    }
}

#[test]
fn keys_in_an_interval_cover_it() {
    let days = Calendar::new(Grain::Day, America::New_York);
    let interval = Interval::new(at("2013-03-10T12:00:00Z"), at("2013-03-12T04:00:00Z")).unwrap();
    assert_eq!(days.keys_in(&interval).collect::<Vec<_>>(), [date("2013-03-10"), date("2013-03-11")]);
}

#[test]
fn both_clock_changes_of_the_named_zones_are_as_a_hand_worked_them_out() {
    let cases = [
        (America::New_York, "2026-03-08", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z", 23),
        (America::New_York, "2026-11-01", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z", 25),
        (Europe::London, "2026-03-29", "2026-03-29T00:00:00Z", "2026-03-29T23:00:00Z", 23),
        (Europe::London, "2026-10-25", "2026-10-24T23:00:00Z", "2026-10-26T00:00:00Z", 25),
        // Half an hour: the day begins or ends within an hour of UTC, which both days share.
        (Australia::Lord_Howe, "2026-04-05", "2026-04-04T13:00:00Z", "2026-04-05T13:30:00Z", 25),
        (Australia::Lord_Howe, "2026-10-04", "2026-10-03T13:30:00Z", "2026-10-04T13:00:00Z", 24),
        // Midnight does not exist, and is gone through twice.
        (America::Sao_Paulo, "2018-11-04", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z", 23),
        (America::Sao_Paulo, "2018-02-17", "2018-02-17T02:00:00Z", "2018-02-18T03:00:00Z", 25),
        // Before and after the day that does not exist.
        (Pacific::Apia, "2011-12-29", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z", 24),
        (Pacific::Apia, "2011-12-31", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z", 24),
    ];
    for (zone, key, start, end, hours) in cases {
        check_interval(Grain::Day, zone, key, start, end);
        let day = Interval::new(at(start), at(end)).unwrap();
        let keys: Vec<_> = Calendar::new(Grain::Hour, zone).keys_in(&day).collect();
        assert_eq!(keys.len(), hours, "{key} in {zone}");
        assert_eq!(keys.iter().collect::<std::collections::BTreeSet<_>>().len(), hours, "{key} in {zone}");
    }
}

#[test]
fn weeks_cross_the_end_of_a_year_and_leap_years_have_their_day() {
    let weeks = Calendar::new(Grain::Week, America::New_York);
    for (day, monday) in [
        ("1999-12-31", "1999-12-27"),
        ("2000-01-02", "1999-12-27"),
        ("2020-12-31", "2020-12-28"),
        ("2021-01-03", "2020-12-28"),
        ("2021-01-04", "2021-01-04"),
        ("2024-12-30", "2024-12-30"),
        ("2025-01-01", "2024-12-30"),
        ("2027-01-01", "2026-12-28"),
    ] {
        assert_eq!(weeks.key_of_date(day.parse().unwrap()), Some(date(monday)), "{day}");
    }
    let of = |grain| Calendar::new(grain, Europe::London);
    let days = of(Grain::Day);
    assert_eq!(days.step(&date("2024-02-28"), 1), Some(date("2024-02-29")));
    assert_eq!(days.step(&date("2024-02-28"), 2), Some(date("2024-03-01")));
    assert_eq!(days.step(&date("2023-02-28"), 1), Some(date("2023-03-01")));
    assert_eq!(days.step(&date("2024-03-01"), -366), Some(date("2023-03-01")));
    let length = |grain, key: &str| {
        let interval = of(grain).interval(&date(key)).unwrap();
        (interval.end() - interval.start()).num_days()
    };
    assert_eq!((length(Grain::Month, "2024-02-01"), length(Grain::Month, "2023-02-01")), (29, 28));
    assert_eq!((length(Grain::Year, "2024-01-01"), length(Grain::Year, "1900-01-01")), (366, 365));
    assert_eq!(of(Grain::Month).step(&date("2024-02-01"), 12), Some(date("2025-02-01")));
}

mod random {
    use proptest::prelude::*;

    use super::*;

    fn named() -> impl Strategy<Value = Tz> {
        prop::sample::select(vec![
            America::New_York,
            Europe::London,
            Australia::Lord_Howe,
            America::Sao_Paulo,
            Pacific::Apia,
        ])
    }

    fn zone() -> impl Strategy<Value = Tz> {
        prop_oneof![named(), prop::sample::select(&chrono_tz::TZ_VARIANTS[..])]
    }

    fn grain() -> impl Strategy<Value = Grain> {
        use Grain::{Day, Hour, Month, Quarter, Week, Year};
        prop::sample::select(vec![Hour, Day, Week, Month, Quarter, Year])
    }

    /// From 1970 to 2037, half of the time around a clock change of one of the named zones.
    fn instant() -> impl Strategy<Value = DateTime<Utc>> {
        let changes = [
            "2026-03-08T07:00:00Z",
            "2026-11-01T06:00:00Z",
            "2026-03-29T01:00:00Z",
            "2026-10-25T01:00:00Z",
            "2026-04-04T15:00:00Z",
            "2026-10-03T15:30:00Z",
            "2018-11-04T03:00:00Z",
            "2018-02-18T02:00:00Z",
            "2011-12-30T10:00:00Z",
            "2024-02-29T12:00:00Z",
            "2027-01-01T00:00:00Z",
        ]
        .map(|text| at(text).timestamp());
        let around = (prop::sample::select(changes.to_vec()), -200_000..200_000_i64).prop_map(|(t, s)| t + s);
        prop_oneof![around, 0..2_145_000_000_i64].prop_map(|t| DateTime::from_timestamp(t, 0).unwrap())
    }

    /// A range of up to some 300 periods of a grain.
    fn range() -> impl Strategy<Value = (Grain, Interval)> {
        (grain(), instant(), 1..300_i64, 0..86_400_i64).prop_map(|(grain, start, periods, seconds)| {
            let hours = match grain {
                Grain::Hour => 1,
                Grain::Day => 24,
                Grain::Week => 168,
                _ => 2_000,
            };
            let length = Duration::hours(periods * hours) + Duration::seconds(seconds);
            (grain, Interval::new(start, start + length).unwrap())
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn keys_follow_without_gap_or_overlap_and_cover_the_range(zone in zone(), (grain, range) in range()) {
            let calendar = Calendar::new(grain, zone);
            let keys: Vec<_> = calendar.keys_in(&range).collect();
            let intervals: Vec<_> = keys.iter().map(|key| calendar.interval(key).unwrap()).collect();
            prop_assert!(intervals.iter().all(|i| i.start() < i.end()), "a period without length");
            prop_assert!(intervals.windows(2).all(|pair| pair[0].end() == pair[1].start()), "a gap or an overlap");
            prop_assert!(intervals.first().unwrap().contains(range.start()));
            prop_assert!(intervals.last().unwrap().contains(range.end() - Duration::nanoseconds(1)));
            prop_assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "keys sort by time");
            for pair in keys.windows(2) {
                prop_assert_eq!(calendar.step(&pair[0], 1), Some(pair[1].clone()));
                prop_assert_eq!(calendar.step(&pair[1], -1), Some(pair[0].clone()));
            }
            let far = i64::try_from(keys.len()).unwrap() - 1;
            let (first, last) = (keys[0].clone(), keys[keys.len() - 1].clone());
            prop_assert_eq!(calendar.step(&first, far), Some(last.clone()));
            prop_assert_eq!(calendar.step(&last, -far), Some(first.clone()));
            prop_assert_eq!(calendar.step(&first, 0), Some(first));
        }

        #[test]
        fn every_instant_belongs_to_exactly_the_period_of_its_key(
            zone in zone(), grain in grain(), instant in instant(),
        ) {
            let calendar = Calendar::new(grain, zone);
            let key = calendar.key_at(instant).unwrap();
            prop_assert!(calendar.interval(&key).unwrap().contains(instant));
            for other in [calendar.step(&key, 1).unwrap(), calendar.step(&key, -1).unwrap()] {
                prop_assert!(!calendar.interval(&other).unwrap().contains(instant));
            }
        }

        #[test]
        fn in_the_named_zones_the_key_is_the_local_date(zone in named(), instant in instant()) {
            let local = instant.with_timezone(&zone).date_naive();
            prop_assert_eq!(Calendar::new(Grain::Day, zone).key_at(instant), Some(Value::Date(local)));
            for grain in [Grain::Week, Grain::Month, Grain::Quarter, Grain::Year] {
                let calendar = Calendar::new(grain, zone);
                prop_assert_eq!(calendar.key_at(instant), calendar.key_of_date(local));
            }
        }
    }
}
