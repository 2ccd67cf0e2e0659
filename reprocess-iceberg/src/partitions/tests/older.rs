//! Files of older specs, which may hold rows of several partitions, and the summaries of manifests.

use iceberg::spec::{DataContentType, NestedField, Type};
use reprocess_core::ErrorKind;
use reprocess_core::domain::interval::Calendar;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::{Slice, TimeSlice};

use super::*;
use crate::view::fixtures::deletes;

fn days(text: &str) -> i32 {
    text.parse::<NaiveDate>()
        .unwrap()
        .signed_duration_since(NaiveDate::default())
        .num_days()
        .try_into()
        .unwrap()
}

/// A table by day whose files were once of another spec.
fn by_day_before(before: &[(&str, Transform)], of: PrimitiveType) -> (TableMetadata, Partitions) {
    let made = metadata(FormatVersion::V2, schema(&[("at", of), ("country", PrimitiveType::String)]), before);
    let dimensions = by_time(Grain::Day, Tz::UTC).with_key("country", ValueKind::Text);
    let made = respecced(made, &[("at", Transform::Day), ("country", Transform::Identity)]);
    let partitions = Partitions::new(&dimensions, &made).unwrap();
    (made, partitions)
}

fn bounded(ends: &[(i32, Datum, Datum); 2], nulls: u64) -> DataFile {
    let lower = ends.iter().map(|(id, least, _)| (*id, least.clone())).collect();
    let upper = ends.iter().map(|(id, _, most)| (*id, most.clone())).collect();
    let nulls = ends.iter().map(|(id, ..)| (*id, nulls)).collect();
    data("f", []).lower_bounds(lower).upper_bounds(upper).null_value_counts(nulls).build().unwrap()
}

fn day(text: &str) -> PartitionKey {
    PartitionKey::of("at", Value::Date(text.parse().unwrap()))
}

#[test]
fn the_bounds_of_a_file_of_an_older_spec_show_that_it_lies_in_one_partition() {
    let (made, partitions) = by_day_before(&[], PrimitiveType::Timestamptz);
    let (spec, schema) = (made.partition_spec_by_id(0).unwrap(), made.current_schema());
    let instant = |text: &str| Datum::timestamptz_micros(micros(text));
    let text = |least: &str, most: &str| (2, Datum::string(least), Datum::string(most));
    let place = |file: &DataFile| partitions.place(spec, schema, file).unwrap();
    let whole_day = (1, instant("2026-10-05T00:00:00Z"), instant("2026-10-05T23:59:59.999999Z"));

    let one = place(&bounded(&[whole_day.clone(), text("FR", "FR")], 0));
    assert_eq!(one, Placed::In(day("2026-10-05").and("country", "FR")));

    let Placed::Among(two) = place(&bounded(&[whole_day.clone(), text("DE", "FR")], 0)) else { panic!() };
    assert!(two.may_hold(&day("2026-10-05").and("country", "ES")));
    assert!(two.may_hold(&PartitionKey::of("country", "DE")));
    assert!(!two.may_hold(&day("2026-10-05").and("country", "GB")));
    assert!(!two.may_hold(&day("2026-10-06")));
    assert!(!two.may_hold(&PartitionKey::of("country", Value::Null)));

    let Placed::Among(null) = place(&bounded(&[whole_day.clone(), text("FR", "FR")], 1)) else { panic!() };
    assert!(null.may_hold(&PartitionKey::of("country", Value::Null)));

    // Bounds that were cut short are bounds all the same.
    let cut = place(&bounded(&[whole_day, text("Deutschland, Bun", "Deutschland, Buo")], 0));
    let Placed::Among(cut) = cut else { panic!() };
    assert!(cut.may_hold(&day("2026-10-05").and("country", "Deutschland, Bundesrepublik")));

    let Placed::Among(unknown) = place(&data("f", []).build().unwrap()) else { panic!() };
    assert!(unknown.may_hold(&day("1970-01-01").and("country", Value::Null)));
}

#[test]
fn the_bounds_of_deletes_say_nothing_of_the_rows_that_go() {
    let (made, partitions) = by_day_before(&[("country", Transform::Identity)], PrimitiveType::Timestamptz);
    let noon = Datum::timestamptz_micros(micros("2026-10-05T12:00:00Z"));
    let mut file = deletes(DataContentType::EqualityDeletes, "f", [Some(Literal::string("FR"))]);
    file.lower_bounds([(1, noon.clone())].into()).upper_bounds([(1, noon)].into());
    file.null_value_counts([(1, 0)].into());
    let spec = made.partition_spec_by_id(0).unwrap();
    let placed = partitions.place(spec, made.current_schema(), &file.build().unwrap()).unwrap();
    let Placed::Among(reach) = placed else { panic!() };
    assert!(reach.may_hold(&day("1970-01-01").and("country", "FR")));
    assert!(!reach.may_hold(&PartitionKey::of("country", "DE")));
}

#[test]
fn a_file_of_nothing_but_null_lies_in_the_partition_of_null() {
    let (made, partitions) = by_day_before(&[("country", Transform::Identity)], PrimitiveType::Timestamptz);
    let file = data("f", [None]).null_value_counts([(1, 10)].into()).build().unwrap();
    let spec = made.partition_spec_by_id(0).unwrap();
    let placed = partitions.place(spec, made.current_schema(), &file).unwrap();
    assert_eq!(placed, Placed::In(PartitionKey::of("at", Value::Null).and("country", Value::Null)));
}

#[test]
fn periods_of_an_older_spec_are_narrowed_by_bounds_and_widened_where_they_contradict() {
    let by_month = [("at", Transform::Month), ("country", Transform::Identity)];
    let (made, partitions) = by_day_before(&by_month, PrimitiveType::Timestamp);
    let (spec, schema) = (made.partition_spec_by_id(0).unwrap(), made.current_schema());
    let place = |month: i32, bounds: Option<(&str, &str)>| {
        let mut file = data("f", [Some(Literal::int(month)), Some(Literal::string("FR"))]);
        if let Some((least, most)) = bounds {
            let end = |text: &str| [(1, Datum::timestamp_micros(micros(text)))].into();
            file.lower_bounds(end(least)).upper_bounds(end(most));
        }
        partitions.place(spec, schema, &file.build().unwrap()).unwrap()
    };
    let october = (2026 - 1970) * 12 + 9;
    let Placed::Among(month) = place(october, None) else { panic!() };
    let days = ["2026-09-30", "2026-10-01", "2026-10-31", "2026-11-01"];
    assert_eq!(days.map(|text| month.may_hold(&day(text))), [false, true, true, false]);
    assert!(!month.may_hold(&PartitionKey::of("country", "DE")));
    assert!(!month.may_hold(&PartitionKey::of("at", Value::Null)));

    let one = place(october, Some(("2026-10-05T00:00:00Z", "2026-10-05T12:00:00Z")));
    assert_eq!(one, Placed::In(day("2026-10-05").and("country", "FR")));

    let Placed::Among(odd) = place(0, Some(("1969-12-31T12:00:00Z", "1969-12-31T13:00:00Z"))) else {
        panic!()
    };
    let days = ["1969-12-30", "1969-12-31", "1970-01-31", "1970-02-01"];
    assert_eq!(days.map(|text| odd.may_hold(&day(text))), [false, true, true, false]);
}

#[test]
fn every_value_between_the_bounds_may_be_in_the_file() {
    let mut instants = instants();
    instants.sort_unstable();
    for (grain, zone) in GRAINS.iter().flat_map(|grain| ZONES.map(|zone| (*grain, zone))) {
        let dimensions = by_time(grain, zone);
        let before = metadata(FormatVersion::V2, schema(&[("at", PrimitiveType::Timestamp)]), &[]);
        let made = respecced(before, &[("at", Transform::Identity)]);
        let partitions = Partitions::new(&dimensions, &made).unwrap();
        let batch = rows(column(&PrimitiveType::Timestamp, &instants));
        let keys = partition_of_rows(&dimensions, &batch).unwrap();
        for (place, width) in (0..instants.len()).step_by(7).zip([0, 1, 3, 20].into_iter().cycle()) {
            let last = (place + width).min(instants.len() - 1);
            let end = |place: usize| [(1, Datum::timestamp_micros(instants[place]))].into();
            let mut file = data("f", []);
            file.lower_bounds(end(place)).upper_bounds(end(last)).null_value_counts([(1, 0)].into());
            let spec = made.partition_spec_by_id(0).unwrap();
            let placed = partitions.place(spec, made.current_schema(), &file.build().unwrap()).unwrap();
            for key in &keys {
                let between = keys[place] <= *key && *key <= keys[last];
                match &placed {
                    Placed::In(only) => assert_eq!(only == key, between, "{grain} {zone} {key}"),
                    Placed::Among(reach) => assert_eq!(reach.may_hold(key), between, "{grain} {zone} {key}"),
                }
            }
        }
    }
}

#[test]
fn rows_from_before_the_column_have_null_there_or_its_first_default() {
    let (made, _) = by_day_before(&[], PrimitiveType::Timestamptz);
    let old = schema(&[("at", PrimitiveType::Timestamptz)]);
    for (default, value) in [(None, Value::Null), (Some(Literal::string("FR")), Value::from("FR"))] {
        let country = NestedField {
            initial_default: default,
            ..NestedField::optional(2, "country", Type::Primitive(PrimitiveType::String))
        };
        let at = NestedField::optional(1, "at", Type::Primitive(PrimitiveType::Timestamptz));
        let now = Schema::builder().with_fields([at.into(), country.into()]).build().unwrap();
        let now =
            metadata(FormatVersion::V3, now, &[("at", Transform::Day), ("country", Transform::Identity)]);
        let dimensions = by_time(Grain::Day, Tz::UTC).with_key("country", ValueKind::Text);
        let partitions = Partitions::new(&dimensions, &now).unwrap();
        let noon = Datum::timestamptz_micros(micros("2026-10-05T12:00:00Z"));
        let mut file = data("f", []);
        file.lower_bounds([(1, noon.clone())].into()).upper_bounds([(1, noon)].into());
        file.null_value_counts([(1, 0)].into());
        let spec = made.partition_spec_by_id(0).unwrap();
        let placed = partitions.place(spec, &old, &file.build().unwrap()).unwrap();
        assert_eq!(placed, Placed::In(day("2026-10-05").and("country", value)));
        file.value_counts([(2, 10)].into());
        let placed = partitions.place(spec, &old, &file.build().unwrap()).unwrap();
        assert!(matches!(placed, Placed::Among(_)));
    }
}

#[test]
fn other_partition_values_than_those_of_the_spec_are_corrupt() {
    let (made, partitions) = by_day_before(&[], PrimitiveType::Timestamptz);
    let file = data("f", [Some(Literal::date(0))]).build().unwrap();
    let error = partitions.place(partitions.spec(), made.current_schema(), &file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("file f"), "{error}");
}

fn summary(least: &Datum, most: &Datum, contains_null: bool) -> FieldSummary {
    FieldSummary {
        contains_null,
        contains_nan: None,
        lower_bound: Some(least.to_bytes().unwrap()),
        upper_bound: Some(most.to_bytes().unwrap()),
    }
}

#[test]
fn manifests_are_passed_over_where_their_summaries_show_that_nothing_in_them_is_wanted() {
    let (_, partitions) = by_day_before(&[], PrimitiveType::Timestamptz);
    let october = summary(&Datum::date(days("2026-10-01")), &Datum::date(days("2026-10-31")), false);
    let fr = summary(&Datum::string("DE"), &Datum::string("FR"), true);
    let summaries = [october, fr];
    let names = |wanted: &Wanted| partitions.may_name(partitions.spec(), Some(&summaries), wanted);
    let keys = |keys: Vec<PartitionKey>| Wanted::Keys(keys);
    for (wanted, named) in [
        (Wanted::All, true),
        (keys(vec![day("2026-10-01")]), true),
        (keys(vec![day("2026-09-30")]), false),
        (keys(vec![day("2026-09-30"), day("2026-10-31").and("country", "ES")]), true),
        (keys(vec![day("2026-10-05").and("country", "GB")]), false),
        (keys(vec![PartitionKey::of("country", Value::Null)]), true),
        (keys(vec![PartitionKey::of("at", Value::Null)]), false),
        (Wanted::Slice(Slice::All), true),
        (Wanted::Slice(Slice::Partitions([day("2026-11-01")].into())), false),
        (Wanted::Slice(Slice::Partitions([day("2026-10-02")].into())), true),
        (Wanted::Slice(days_of("2026-10-31", "2026-11-02")), true),
        (Wanted::Slice(days_of("2026-11-01", "2026-11-02")), false),
    ] {
        assert_eq!(names(&wanted), named, "{wanted:?}");
        assert!(partitions.may_name(partitions.spec(), None, &wanted));
        assert!(partitions.may_name(partitions.spec(), Some(&[]), &wanted));
        assert!(partitions.may_name(&PartitionSpec::unpartition_spec(), Some(&[]), &wanted));
    }
    let null = FieldSummary { contains_null: true, ..FieldSummary::default() };
    let nulls = [null.clone(), null];
    let of_null = |wanted| partitions.may_name(partitions.spec(), Some(&nulls), &wanted);
    assert!(of_null(keys(vec![PartitionKey::of("at", Value::Null)])));
    assert!(!of_null(keys(vec![day("2026-10-01")])));
}

#[test]
fn a_manifest_of_days_before_1970_may_name_the_day_before_its_first() {
    let (_, partitions) = by_day_before(&[], PrimitiveType::Timestamptz);
    let summaries = [summary(&Datum::date(0), &Datum::date(0), false), FieldSummary::default()];
    let names =
        |text| partitions.may_name(partitions.spec(), Some(&summaries), &Wanted::Keys(vec![day(text)]));
    assert_eq!(
        ["1969-12-30", "1969-12-31", "1970-01-01", "1970-01-02"].map(names),
        [false, true, true, false]
    );
}

fn days_of(first: &str, last: &str) -> Slice {
    let calendar = Calendar::new(Grain::Day, Tz::UTC);
    let value = |text: &str| Value::Date(text.parse().unwrap());
    let (first, last) = (value(first), value(last));
    let interval = calendar.interval(&first).unwrap().hull(&calendar.interval(&last).unwrap());
    Slice::Time(TimeSlice { column: "at".to_owned(), first, last, interval, only: PartitionKey::whole() })
}

#[test]
fn a_scope_holds_a_loose_file_where_it_has_all_partitions_that_the_file_may_reach() {
    let (made, partitions) = by_day_before(&[], PrimitiveType::Timestamptz);
    let instant = |text: &str| Datum::timestamptz_micros(micros(text));
    let few = (1, instant("2026-10-05T10:00:00Z"), instant("2026-10-07T10:00:00Z"));
    let file = bounded(&[few, (2, Datum::string("DE"), Datum::string("FR"))], 0);
    let spec = made.partition_spec_by_id(0).unwrap();
    let Placed::Among(reach) = partitions.place(spec, made.current_schema(), &file).unwrap() else {
        panic!()
    };
    let days = |texts: &[&str]| Scope::keys(texts.iter().map(|text| day(text))).unwrap();
    for (scope, within) in [
        (Scope::whole_table(), true),
        (days(&["2026-10-05", "2026-10-06", "2026-10-07"]), true),
        (days(&["2026-10-05", "2026-10-06", "2026-10-07", "2026-10-09"]), true),
        (days(&["2026-10-05", "2026-10-07"]), false),
        (Scope::key(day("2026-10-05").and("country", "FR")).unwrap(), false),
        (Scope::key(PartitionKey::of("country", "FR")).unwrap(), false),
    ] {
        assert_eq!(reach.is_within(&scope, partitions.dimensions()), within, "{scope}");
    }
}

#[test]
fn a_date_that_the_zone_left_out_is_within_a_file_of_dates_around_it() {
    let dimensions = by_time(Grain::Day, Tz::Pacific__Apia);
    let made = metadata(FormatVersion::V2, schema(&[("at", PrimitiveType::Date)]), &[]);
    let made = respecced(made, &[("at", Transform::Identity)]);
    let partitions = Partitions::new(&dimensions, &made).unwrap();
    let end = |text: &str| [(1, Datum::date(days(text)))].into();
    let mut file = data("f", []);
    file.lower_bounds(end("2011-12-29")).upper_bounds(end("2011-12-31")).null_value_counts([(1, 0)].into());
    let spec = made.partition_spec_by_id(0).unwrap();
    let placed = partitions.place(spec, made.current_schema(), &file.build().unwrap()).unwrap();
    let Placed::Among(reach) = placed else { panic!() };
    let scope = |texts: &[&str]| Scope::keys(texts.iter().map(|text| day(text))).unwrap();
    assert!(!reach.is_within(&scope(&["2011-12-29", "2011-12-31"]), &dimensions));
    assert!(reach.is_within(&scope(&["2011-12-29", "2011-12-30", "2011-12-31"]), &dimensions));
}
