//! Pins and slices.

use std::sync::Arc;

use arrow_array::types::{Date32Type, TimestampMicrosecondType};
use arrow_array::{ArrayRef, Date32Array, PrimitiveArray, StringArray};
use chrono::{DateTime, Utc};

use super::*;
use crate::domain::interval::{Calendar, Interval};
use crate::domain::slice::{AsOfSlice, TimeSlice};
use crate::ports::reader::Availability;

fn instant(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

/// Whole periods of a column from the first to the last.
fn periods(calendar: Calendar, column: &str, first: &str, last: &str) -> Slice {
    let key = |text: &str| Value::Date(text.parse().unwrap());
    let (first, last) = (key(first), key(last));
    let interval = calendar.interval(&first).unwrap().hull(&calendar.interval(&last).unwrap());
    Slice::Time(TimeSlice { column: column.into(), first, last, interval, only: PartitionKey::whole() })
}

fn days(first: &str, last: &str) -> Slice {
    periods(Calendar::new(Grain::Day, chrono_tz::UTC), "day", first, last)
}

#[tokio::test]
async fn a_pin_reads_the_same_rows_whatever_is_written_afterwards() {
    let table = table_with(&[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let old = pin(&table, Slice::All).await;
    committed(&table, &replace(&table, "r1", &Scope::whole_table(), &[]).await).await;
    table.append_unmanaged(&batch(&[(MON, Some("DE"), 3, 30)])).unwrap();
    assert_eq!(read(&table, &old).await.unwrap(), ["2026-10-05/FR/1/10", "2026-10-06/FR/2/20"]);
    assert_eq!(all(&table).await, ["2026-10-05/DE/3/30"]);
}

#[tokio::test]
async fn a_pin_of_other_content_is_broken_and_never_reads_other_rows() {
    let table = table_with(&[(MON, Some("FR"), 1, 10)]).await;
    let old = pin(&table, Slice::All).await;
    table.append_unmanaged(&batch(&[(MON, Some("FR"), 2, 20)])).unwrap();
    let broken = async |pin: &Pin| {
        assert_eq!(read(&table, pin).await.unwrap_err().kind(), ErrorKind::PinBroken);
        assert_eq!(table.hold(std::slice::from_ref(pin)).await.unwrap_err().kind(), ErrorKind::PinBroken);
    };
    broken(&Pin { version: table.current().await.unwrap(), ..old.clone() }).await;
    broken(&Pin { version: "99".into(), ..old.clone() }).await;
    broken(&Pin { version: "x".into(), ..old }).await;
}

#[tokio::test]
async fn an_expired_version_is_gone_unless_it_was_held() {
    let table = table_with(&[(MON, Some("FR"), 1, 10)]).await;
    let (held, lost) = (pin(&table, days(MON, MON)).await, pin(&table, Slice::All).await);
    table.append_unmanaged(&batch(&[(MON, Some("FR"), 2, 20)])).unwrap();
    table.hold(std::slice::from_ref(&held)).await.unwrap();
    table.expire_before(&table.current().await.unwrap()).unwrap();
    assert_eq!(table.availability(&held.version).await.unwrap(), Availability::Expired);
    let now = table.current().await.unwrap();
    assert_eq!(table.availability(&now).await.unwrap(), Availability::Readable { until: None });
    assert_eq!(read(&table, &held).await.unwrap(), ["2026-10-05/FR/1/10"]);
    assert_eq!(read(&table, &lost).await.unwrap_err().kind(), ErrorKind::PinBroken);
    table.release(std::slice::from_ref(&held)).await.unwrap();
    table.release(std::slice::from_ref(&held)).await.unwrap();
    assert_eq!(read(&table, &held).await.unwrap_err().kind(), ErrorKind::PinBroken);
}

#[tokio::test]
async fn the_version_of_a_slice_changes_with_its_content_only() {
    let table = table_with(&[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    table.append_unmanaged(&batch(&[(TUE, Some("DE"), 3, 30)])).unwrap();
    let slices = [
        days(MON, MON),
        days(MON, TUE),
        Slice::Partitions([day(TUE).and("country", "FR")].into()),
        Slice::Partitions([day("2026-10-07")].into()),
        Slice::All,
    ];
    let versions = async |version: &str| {
        let versions = table.slice_versions(&version.into(), &slices).await.unwrap();
        versions.iter().map(|version| version.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(versions("3").await, ["2", "3", "2", "0", "3"]);
    assert_eq!(versions("2").await, ["2", "2", "2", "0", "2"]);
    assert_eq!(versions("1").await, ["0"; 5]);
}

#[tokio::test]
async fn slices_take_their_partitions_and_may_be_empty() {
    let table = table_with(&[(MON, Some("FR"), 1, 10), (TUE, None, 2, 20), ("", Some("FR"), 3, 30)]).await;
    assert_eq!(rows_of(&table, days(MON, TUE)).await, ["2026-10-05/FR/1/10", "2026-10-06/NULL/2/20"]);
    let no_day = Slice::Partitions([PartitionKey::of("day", Value::Null)].into());
    assert_eq!(rows_of(&table, no_day).await, ["NULL/FR/3/30"]);
    let Slice::Time(only) = days(MON, TUE) else { unreachable!() };
    let only = Slice::Time(TimeSlice { only: PartitionKey::of("country", Value::Null), ..only });
    assert_eq!(rows_of(&table, only).await, ["2026-10-06/NULL/2/20"]);
    let nothing = pin(&table, days("2026-12-01", "2026-12-31")).await;
    let (schema, stream) = table.read(&nothing).await.unwrap();
    assert_eq!((schema, stream.count().await), (columns(), 0));
    let by_id = Slice::Partitions([PartitionKey::of("id", 1)].into());
    let error = table.slice_versions(&table.current().await.unwrap(), &[by_id]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn instants_belong_to_the_local_month_in_which_they_lie() {
    let paris = chrono_tz::Europe::Paris;
    let by_month = Partitioning::unpartitioned().with_time("at", Grain::Month, paris);
    let table = MemoryTable::new(TableSpec::new(TABLE, by_month));
    // Midnight in Paris: 23:00 UTC in winter, 22:00 UTC in summer.
    let times =
        ["2026-02-28T22:59:59Z", "2026-02-28T23:00:00Z", "2026-03-31T21:59:59Z", "2026-03-31T22:00:00Z"];
    let micros = times.iter().map(|text| instant(text).timestamp_micros());
    let column = PrimitiveArray::<TimestampMicrosecondType>::from_iter_values(micros).with_timezone("UTC");
    table
        .append_unmanaged(&RecordBatch::try_from_iter([("at", Arc::new(column) as ArrayRef)]).unwrap())
        .unwrap();
    let march = periods(Calendar::new(Grain::Month, paris), "at", "2026-03-01", "2026-03-01");
    assert_eq!(rows_of(&table, march.clone()).await, [times[1], times[2]]);
    let Slice::Time(slice) = march else { unreachable!() };
    let interval = Interval::new(instant("2026-02-28T23:00:00Z"), instant("2026-03-31T22:00:00Z"));
    assert_eq!(Some(slice.interval), interval);
}

/// Prices with the dates from which and to which they hold.
fn prices(rows: &[(&str, &str, Option<&str>)]) -> RecordBatch {
    let days = |text: &str| text.parse().ok().map(Date32Type::from_naive_date);
    let columns: [(&str, ArrayRef); 3] = [
        ("item", Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.0)))),
        ("from", Arc::new(rows.iter().map(|row| days(row.1)).collect::<Date32Array>())),
        ("to", Arc::new(rows.iter().map(|row| row.2.and_then(days)).collect::<Date32Array>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
}

#[tokio::test]
async fn reference_rows_are_those_effective_at_the_date() {
    let table = MemoryTable::new(TableSpec::new(TABLE, Partitioning::unpartitioned()));
    let rows = [
        ("ended", "2026-01-01", Some("2026-10-05")),
        ("ends tomorrow", "2026-01-01", Some("2026-10-06")),
        ("open", "2026-10-05", None),
        ("later", "2026-10-06", None),
        ("never", "", None),
    ];
    table.append_unmanaged(&prices(&rows)).unwrap();
    let as_of = |to: Option<&str>| {
        Slice::AsOf(AsOfSlice {
            from: "from".into(),
            to: to.map(str::to_owned),
            entity: vec!["item".into()],
            date: MON.parse().unwrap(),
            instant: instant("2026-10-05T00:00:00Z"),
        })
    };
    let found = ["ends tomorrow/2026-01-01/2026-10-06", "open/2026-10-05/NULL"];
    assert_eq!(rows_of(&table, as_of(Some("to"))).await, found);
    let before = pin(&table, as_of(Some("to"))).await;
    table.append_unmanaged(&prices(&[("later still", "2026-11-01", None)])).unwrap();
    assert_eq!(pin(&table, as_of(Some("to"))).await.content, before.content, "not effective, so no change");

    table.append_unmanaged(&prices(&[("open", "2026-10-04", None), ("open", "2026-10-06", None)])).unwrap();
    let found =
        ["ended/2026-01-01/2026-10-05", "ends tomorrow/2026-01-01/2026-10-06", "open/2026-10-05/NULL"];
    assert_eq!(rows_of(&table, as_of(None)).await, found, "the last that has begun, of each item");
    let wrong = AsOfSlice {
        from: "item".into(),
        ..match as_of(None) {
            Slice::AsOf(s) => s,
            _ => unreachable!(),
        }
    };
    let version = table.current().await.unwrap();
    assert_eq!(
        table.slice_versions(&version, &[Slice::AsOf(wrong)]).await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
}
