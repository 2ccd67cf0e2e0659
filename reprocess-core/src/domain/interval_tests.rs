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
