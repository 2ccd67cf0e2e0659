//! Laws of replacing partitions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray,
};
use arrow_schema::{DataType, Field, Schema, TimeUnit};

use super::fixture::Fixture;
use super::world::*;
use crate::ErrorKind;
use crate::domain::interval::Grain;
use crate::domain::partition::{PartitionKey, Partitioning};
use crate::domain::scope::Scope;
use crate::domain::slice::Slice;
use crate::ports::writer::Intent;

/// "Partitions that receive no rows become empty" (DESIGN 5; FIELD 1).
pub(super) async fn a_partition_that_receives_no_rows_becomes_empty(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    w.replace("fixed", &days(&[MON, TUE]), &[(MON, Some("FR"), 1, 11)]).await;
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 1, 11)]));
}

/// "An empty result is a first-class outcome" (FIELD 2).
pub(super) async fn zero_rows_empty_the_scope_and_are_a_commit_like_any_other(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let before = w.head(&days(&[MON])).await;
    let commit = w.replace("empty", &days(&[MON]), &[]).await;
    assert_eq!(w.rows().await, lines(&[(TUE, Some("FR"), 2, 20)]));
    assert_ne!(commit.partitions.partitions, before.partitions, "the partition is another");
    assert_eq!(commit.attempts.len(), 1);
    w.replace("empty again", &days(&[MON]), &[]).await;
    w.replace("never there", &days(&[WED]), &[]).await;
    assert_eq!(w.rows().await, lines(&[(TUE, Some("FR"), 2, 20)]));
}

/// "A commit acts on its scope": the rows of others stay as they are, to the last one (DESIGN 5).
pub(super) async fn rows_outside_the_scope_stay(f: &dyn Fixture) {
    let given =
        [(MON, Some("FR"), 1, 10), (MON, Some("DE"), 2, 20), (TUE, Some("FR"), 3, 30), ("", None, 4, 40)];
    let w = World::with(f, &given).await;
    w.replace("one", &scope(in_country(day(MON), Some("FR"))), &[(MON, Some("FR"), 9, 90)]).await;
    let expected = [given[1], given[2], given[3], (MON, Some("FR"), 9, 90)];
    assert_eq!(w.rows().await, lines(&expected));
}

/// "A key that binds the day of a (day, country) table covers every country of that day, so a country that the new logic
/// no longer produces disappears" (DESIGN 4).
pub(super) async fn the_key_of_a_day_covers_every_country_of_it(f: &dyn Fixture) {
    let w =
        World::with(f, &[(MON, Some("FR"), 1, 10), (MON, Some("DE"), 2, 20), (TUE, Some("DE"), 3, 30)]).await;
    w.replace("fixed", &days(&[MON]), &[(MON, Some("FR"), 1, 11)]).await;
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 1, 11), (TUE, Some("DE"), 3, 30)]));
    let everywhere = scope(PartitionKey::of("country", "DE"));
    w.replace("no more", &everywhere, &[]).await;
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 1, 11)]));
}

/// "No call without a scope; the whole table only by its own name" (DESIGN 5; FIELD 4).
pub(super) async fn the_whole_table_is_replaced_by_its_own_name_only(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10), ("", None, 2, 20)]).await;
    assert!(Scope::keys([]).is_err());
    assert!(Scope::key(PartitionKey::whole()).is_err());
    w.replace("all", &Scope::whole_table(), &[(TUE, Some("FR"), 3, 30)]).await;
    assert_eq!(w.rows().await, lines(&[(TUE, Some("FR"), 3, 30)]));
}

/// "An all-NULL partition tuple produces no predicate, and the delete falls back to everything" (FIELD 4).
pub(super) async fn the_partition_of_nulls_is_replaced_alone(f: &dyn Fixture) {
    let given = [("", None, 1, 10), ("", Some("FR"), 2, 20), (MON, None, 3, 30), (MON, Some("FR"), 4, 40)];
    let w = World::with(f, &given).await;
    w.replace("nulls", &scope(in_country(no_day(), None)), &[("", None, 9, 90)]).await;
    assert_eq!(w.rows().await, lines(&[("", None, 9, 90), given[1], given[2], given[3]]));
    w.replace("no day", &scope(no_day()), &[]).await;
    assert_eq!(w.rows().await, lines(&[given[2], given[3]]));
    w.replace("no country", &scope(PartitionKey::of("country", crate::domain::value::Value::Null)), &[])
        .await;
    assert_eq!(w.rows().await, lines(&[given[3]]));
}

/// "NULL, '', a/b, %, quotes in partition values … round trip for all" (FIELD 5).
pub(super) async fn odd_values_are_partitions_of_their_own(f: &dyn Fixture) {
    let odd = [
        None,
        Some(""),
        Some("a/b"),
        Some("%"),
        Some("%2F"),
        Some("l'été \"x\""),
        Some("__HIVE_DEFAULT_PARTITION__"),
        Some("day=2026-10-05"),
        Some("Ж;--"),
        Some("fr"),
        Some("FR"),
        Some(" FR"),
    ];
    let given: Vec<Row> = (0..).zip(odd).map(|(id, country)| (MON, country, id, 1)).collect();
    let w = World::with(f, &given).await;
    let mut expected = given.clone();
    for (place, country) in odd.into_iter().enumerate() {
        expected[place].3 = 2;
        let key = in_country(day(MON), country);
        w.replace(&format!("r{place}"), &scope(key.clone()), &[expected[place]]).await;
        assert_eq!(w.rows().await, lines(&expected), "{key}");
        assert_eq!(w.rows_of(Slice::Partitions([key].into())).await, lines(&[expected[place]]));
    }
}

/// "The dynamic form (only partitions that received rows) exists under its own name" (DESIGN 5).
pub(super) async fn the_dynamic_form_leaves_partitions_that_received_nothing(f: &dyn Fixture) {
    let w =
        World::with(f, &[(MON, Some("FR"), 1, 10), (MON, Some("DE"), 2, 20), (TUE, Some("FR"), 3, 30)]).await;
    let staged = w.stage("dynamic", &days(&[MON]), Intent::ReplaceDynamic, &[(MON, Some("FR"), 9, 90)]).await;
    assert_eq!(staged.received, [in_country(day(MON), Some("FR"))].into());
    w.committed(&apply(&staged)).await;
    let expected = [(MON, Some("FR"), 9, 90), (MON, Some("DE"), 2, 20), (TUE, Some("FR"), 3, 30)];
    assert_eq!(w.rows().await, lines(&expected));
}

/// "No dimension = the whole table (full rebuild)" (DESIGN 4).
pub(super) async fn a_table_without_dimensions_is_replaced_as_a_whole(f: &dyn Fixture) {
    let w = World::of(f, Partitioning::unpartitioned(), &columns()).await;
    w.replace("first", &Scope::whole_table(), &[(MON, Some("FR"), 1, 10), (MON, Some("FR"), 1, 10)]).await;
    assert_eq!(w.rows().await.len(), 2);
    w.replace("second", &Scope::whole_table(), &[(TUE, None, 2, 20)]).await;
    assert_eq!(w.rows().await, lines(&[(TUE, None, 2, 20)]));
}

/// "Each replaced partition holds exactly what one clean run … would have written": a row that is there twice is two rows
/// (DESIGN 1; FIELD 33).
pub(super) async fn equal_rows_are_as_many_as_were_written(f: &dyn Fixture) {
    let twice = [(MON, Some("FR"), 1, 10), (MON, Some("FR"), 1, 10), (MON, None, 2, 20)];
    let w = World::with(f, &twice).await;
    assert_eq!(w.rows().await, lines(&twice));
    w.replace("thrice", &days(&[MON]), &[twice[0]; 3]).await;
    assert_eq!(w.rows().await, lines(&[twice[0]; 3]));
}

/// "No reader sees a half-replaced partition" (DESIGN 1; FIELD 6).
pub(super) async fn no_reader_sees_half_a_replace(f: &dyn Fixture) {
    let states =
        [-1_i64, 1].map(|amount| (0..200).map(|id| (MON, Some("FR"), id, amount)).collect::<Vec<Row>>());
    let w = World::with(f, &states[0]).await;
    let (other, ended) = (w.place.open(&w.spec).await, Arc::new(AtomicBool::new(false)));
    let stop = Arc::clone(&ended);
    let reading = tokio::spawn(async move {
        let mut seen = Vec::new();
        while !stop.load(Ordering::SeqCst) {
            let read = async {
                let pin = pin(&*other.reader, Slice::All).await?;
                texts(other.reader.read(&pin).await?.1).await
            };
            match read.await {
                Ok(rows) => seen.push(rows),
                Err(e) if e.kind() == ErrorKind::PinBroken || e.is_retryable() => {}
                Err(e) => panic!("{e}"),
            }
            tokio::task::yield_now().await;
        }
        seen
    });
    for turn in 0..6 {
        w.replace(&format!("r{turn}"), &days(&[MON]), &states[(turn + 1) % 2]).await;
    }
    ended.store(true, Ordering::SeqCst);
    let whole = [lines(&states[0]), lines(&states[1])];
    for seen in reading.await.unwrap() {
        assert!(whole.contains(&seen), "{} rows of a mixture", seen.len());
    }
}

/// Values of every kind come back as they were written, NULL among them (FIELD 32).
pub(super) async fn values_come_back_as_they_were_written(f: &dyn Fixture) {
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let fields = [
        ("flag", DataType::Boolean),
        ("number", DataType::Int64),
        ("real", DataType::Float64),
        ("text", DataType::Utf8),
        ("date", DataType::Date32),
        ("at", utc),
        ("price", DataType::Decimal128(20, 4)),
    ];
    let fields: Vec<_> = fields.into_iter().map(|(name, kind)| Field::new(name, kind, true)).collect();
    let prices = Decimal128Array::from(vec![Some(-123_456_789_012_345_i128), None, Some(0)]);
    let times = TimestampMicrosecondArray::from(vec![Some(-1), None, Some(1_790_000_000_123_456)]);
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])),
        Arc::new(Int64Array::from(vec![Some(i64::MIN), None, Some(i64::MAX)])),
        Arc::new(Float64Array::from(vec![Some(0.1), None, Some(-1e300)])),
        Arc::new(StringArray::from(vec![Some("a\\b\n'é\u{1F600}"), None, Some("")])),
        Arc::new(Date32Array::from(vec![Some(-1), None, Some(20_000)])),
        Arc::new(times.with_timezone("UTC")),
        Arc::new(prices.with_precision_and_scale(20, 4).unwrap()),
    ];
    let rows = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap();
    let w = World::of(f, Partitioning::unpartitioned(), &rows.schema()).await;
    let all = Scope::whole_table();
    let staged = w.try_stage("r1", &all, Intent::Replace, rows.clone()).await.unwrap();
    w.committed(&apply(&staged)).await;
    let written = texts(futures::StreamExt::boxed(futures::stream::iter([Ok(rows)]))).await.unwrap();
    assert_eq!(w.rows_of(Slice::All).await, written);
    let profiles = w.writer().profile(&all, &crate::domain::profile::ProfileSpec::new()).await.unwrap().1;
    assert_eq!(profiles[0].content, staged.profiles[0].content);
}

/// "Select and delete use different time zones; rows are lost or doubled at midnight" (FIELD 21, 22). A backend whose
/// partitions cannot follow the zone refuses the table.
pub(super) async fn a_local_day_of_instants_is_replaced_from_midnight_to_midnight(f: &dyn Fixture) {
    let paris = Partitioning::unpartitioned().with_time("at", Grain::Day, chrono_tz::Europe::Paris);
    let kind = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let schema = Arc::new(Schema::new(vec![Field::new("at", kind, true)]));
    let rows = |times: &[&str]| {
        let micros = times.iter().map(|text| instant(text).timestamp_micros());
        let array = TimestampMicrosecondArray::from_iter_values(micros).with_timezone("UTC");
        RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(array)]).unwrap()
    };
    let w = World::absent(f, paris).await;
    match w.writer().create(&schema).await {
        Err(e) if [ErrorKind::Invalid, ErrorKind::Unsupported].contains(&e.kind()) => return,
        made => made.unwrap(),
    }
    // The clocks go back on that day, so that it lasts 25 hours.
    let times =
        ["2026-10-24T21:59:59Z", "2026-10-24T22:00:00Z", "2026-10-25T22:59:59Z", "2026-10-25T23:00:00Z"];
    let staged = w.try_stage("r1", &Scope::whole_table(), Intent::Replace, rows(&times)).await.unwrap();
    w.committed(&apply(&staged)).await;
    let long = PartitionKey::of("at", crate::domain::value::Value::Date("2026-10-25".parse().unwrap()));
    assert_eq!(w.rows_of(Slice::Partitions([long.clone()].into())).await, [times[1], times[2]]);
    let outside = w.request("stray", &scope(long.clone()), Intent::Replace).await;
    let stray = w.writer().stage(&outside, rows(&[times[3]]).into()).await;
    refused(stray, ErrorKind::Invalid, &["2026-10-26"]);
    let staged = w.try_stage("r2", &scope(long), Intent::Replace, rows(&times[2..3])).await.unwrap();
    w.committed(&apply(&staged)).await;
    assert_eq!(w.rows_of(Slice::All).await, [times[0], times[2], times[3]]);
}
