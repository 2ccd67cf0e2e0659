//! Laws of reading at pins.

use std::sync::Arc;

use arrow_array::{ArrayRef, Date32Array, RecordBatch, StringArray};
use futures::StreamExt;

use super::fixture::Fixture;
use super::world::*;
use crate::ErrorKind;
use crate::domain::interval::{Calendar, Grain};
use crate::domain::partition::{PartitionKey, Partitioning};
use crate::domain::scope::Scope;
use crate::domain::slice::{AsOfSlice, Pin, Slice, TimeSlice};
use crate::domain::value::Value;
use crate::ports::reader::Availability;
use crate::ports::writer::Intent;

/// Whole days, oldest and newest included.
fn periods(first: &str, last: &str, only: PartitionKey) -> Slice {
    let calendar = Calendar::new(Grain::Day, chrono_tz::UTC);
    let key = |text: &str| Value::Date(text.parse().unwrap());
    let (first, last) = (key(first), key(last));
    let interval = calendar.interval(&first).unwrap().hull(&calendar.interval(&last).unwrap());
    Slice::Time(TimeSlice { column: "day".into(), first, last, interval, only })
}

fn between(first: &str, last: &str) -> Slice {
    periods(first, last, PartitionKey::whole())
}

/// "What `read` gives for a pin is the same rows every time, in any order, or `PinBroken`, never other rows"
/// (`SnapshotReader`; DESIGN 1, "deterministic").
pub(super) async fn a_pin_reads_the_same_rows_or_breaks(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let slices = [Slice::All, between(MON, MON), Slice::Partitions([day(MON).and("country", "FR")].into())];
    let mut pins = Vec::new();
    for slice in slices {
        let pin = w.pin(slice).await;
        let rows = w.read(&pin).await.unwrap();
        assert_eq!(w.read(&pin).await.unwrap(), rows);
        pins.push((pin, rows));
    }
    for (run, rows) in
        [("r1", &[(MON, Some("FR"), 1, 11)][..]), ("r2", &[]), ("r3", &[(MON, Some("DE"), 3, 30)])]
    {
        w.replace(run, &days(&[MON]), rows).await;
        for (pin, rows) in &pins {
            match w.read(pin).await {
                Ok(read) => assert_eq!(read, *rows, "{} after {run}", pin.slice),
                Err(error) => assert_eq!(error.kind(), ErrorKind::PinBroken, "{error}"),
            }
        }
    }
}

/// A pin that names a content that its version does not have is broken, for reading and for holding.
pub(super) async fn a_pin_of_another_content_is_broken(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10)]).await;
    let old = w.pin(Slice::All).await;
    w.replace("r1", &days(&[MON]), &[(MON, Some("FR"), 2, 20)]).await;
    let version = w.reader().current().await.unwrap();
    for pin in [Pin { version, ..old.clone() }, Pin { version: "999999".into(), ..old }] {
        refused(w.read(&pin).await, ErrorKind::PinBroken, &[]);
        refused(w.reader().hold(std::slice::from_ref(&pin)).await, ErrorKind::PinBroken, &[]);
    }
}

/// A pin that is held is readable, and holding and releasing can be repeated (`SnapshotReader::hold`; FIELD 39).
pub(super) async fn holding_and_releasing_can_be_repeated(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10)]).await;
    let pins = [w.pin(Slice::All).await, w.pin(between(MON, MON)).await];
    w.reader().hold(&pins).await.unwrap();
    w.reader().hold(&pins[..1]).await.unwrap();
    assert_eq!(w.read(&pins[0]).await.unwrap().len(), 1);
    w.reader().release(&pins).await.unwrap();
    w.reader().release(&pins).await.unwrap();
    w.reader().hold(&[]).await.unwrap();
}

/// "Expiry or vacuum removes what a pin needs … check before, hold the pin where the format can" (FIELD 39, 40).
pub(super) async fn an_expired_version_says_so_and_a_held_one_stays(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10)]).await;
    let (held, lost) = (w.pin(between(MON, MON)).await, w.pin(Slice::All).await);
    w.reader().hold(std::slice::from_ref(&held)).await.unwrap();
    w.replace("r1", &days(&[MON]), &[]).await;
    w.place.expire(&w.spec).await;
    assert_eq!(w.reader().availability(&lost.version).await.unwrap(), Availability::Expired);
    let now = w.reader().current().await.unwrap();
    assert_ne!(w.reader().availability(&now).await.unwrap(), Availability::Expired);
    refused(w.read(&lost).await, ErrorKind::PinBroken, &[]);
    assert_eq!(w.read(&held).await.unwrap(), lines(&[(MON, Some("FR"), 1, 10)]));
    w.reader().release(std::slice::from_ref(&held)).await.unwrap();
    refused(w.read(&held).await, ErrorKind::PinBroken, &[]);
}

/// "One version for each slice, in order, and another version whenever the content of the slice is another"
/// (`SnapshotReader::slice_versions`).
pub(super) async fn the_version_of_a_slice_changes_with_its_content(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let french = |d| Slice::Partitions([in_country(day(d), Some("FR"))].into());
    let slices =
        [between(MON, MON), between(MON, TUE), french(TUE), Slice::Partitions([day(WED)].into()), Slice::All];
    let versions = async || {
        let version = w.reader().current().await.unwrap();
        let found = w.reader().slice_versions(&version, &slices).await.unwrap();
        assert_eq!(found.len(), slices.len());
        found
    };
    let moved = |before: &[_], after: &[_]| {
        before
            .iter()
            .zip(after)
            .map(|(b, a): (&crate::domain::ids::PartitionVersion, _)| b != a)
            .collect::<Vec<_>>()
    };
    let first = versions().await;
    assert_eq!(versions().await, first);
    w.replace("r1", &scope(in_country(day(TUE), Some("DE"))), &[(TUE, Some("DE"), 3, 30)]).await;
    let second = versions().await;
    assert_eq!(moved(&first, &second), [false, true, false, false, true]);
    w.replace("r2", &days(&[TUE]), &[(TUE, Some("DE"), 3, 30)]).await;
    let third = versions().await;
    assert_eq!(moved(&second, &third), [false, true, true, false, true], "the french rows went");
    w.replace("r3", &days(&[WED]), &[(WED, Some("FR"), 4, 40)]).await;
    assert_eq!(moved(&third, &versions().await), [false, false, false, true, true]);
}

/// A version of the table stands for one moment, also between two changes of others: what a slice was then is told apart
/// from what it was before and after, or cannot be told any more (`SnapshotReader::slice_versions`).
pub(super) async fn a_version_between_two_changes_of_strangers_names_what_was_there(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10)]).await;
    let monday = [between(MON, MON)];
    let at = async |version| w.reader().slice_versions(&version, &monday).await;
    let before = at(w.reader().current().await.unwrap()).await.unwrap();
    w.place.write_as_stranger(&w.spec, &batch(&[(MON, Some("FR"), 2, 20)])).await;
    let moment = w.reader().current().await.unwrap();
    w.place.write_as_stranger(&w.spec, &batch(&[(MON, Some("FR"), 3, 30)])).await;
    let check = async |when: &str| match at(moment.clone()).await {
        Ok(then) => {
            assert_ne!(then, before, "{when}");
            assert_ne!(then, at(w.reader().current().await.unwrap()).await.unwrap(), "{when}");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::PinBroken, "{error}"),
    };
    check("while both are the last changes").await;
    w.replace("r1", &days(&[TUE]), &[(TUE, Some("FR"), 4, 40)]).await;
    check("after a commit of ours to another day").await;
    w.replace("r2", &days(&[MON]), &[]).await;
    check("after a commit of ours to that day").await;
}

/// A slice is exactly its partitions: whole periods, named keys, those of NULL, or everything (DESIGN 4, "windows").
pub(super) async fn slices_hold_exactly_their_partitions(f: &dyn Fixture) {
    let given = [
        (MON, Some("FR"), 1, 10),
        (TUE, None, 2, 20),
        (TUE, Some("FR"), 3, 30),
        (WED, Some("FR"), 4, 40),
        ("", Some("FR"), 5, 50),
    ];
    let w = World::with(f, &given).await;
    let check = async |slice: Slice, expected: &[Row]| {
        let said = slice.to_string();
        assert_eq!(w.rows_of(slice).await, lines(expected), "{said}");
    };
    check(between(MON, TUE), &given[..3]).await;
    check(between(TUE, TUE), &given[1..3]).await;
    check(periods(MON, WED, PartitionKey::of("country", "FR")), &[given[0], given[2], given[3]]).await;
    check(periods(MON, WED, PartitionKey::of("country", Value::Null)), &given[1..2]).await;
    check(Slice::Partitions([no_day()].into()), &given[4..]).await;
    check(Slice::Partitions([day(MON), in_country(day(TUE), None)].into()), &given[..2]).await;
    check(Slice::Partitions([PartitionKey::of("country", Value::Null)].into()), &given[1..2]).await;
    check(Slice::Partitions([day(MON), in_country(day(MON), Some("FR"))].into()), &given[..1]).await;
    check(Slice::All, &given).await;
    let by_id = Slice::Partitions([PartitionKey::of("id", 1)].into());
    let version = w.reader().current().await.unwrap();
    refused(w.reader().slice_versions(&version, &[by_id]).await, ErrorKind::Invalid, &["id"]);
}

/// "A slice that holds no rows is read as an empty stream with a schema; a table that does not exist is read as one
/// without rows and columns" (`SnapshotReader`).
pub(super) async fn nothing_is_read_as_nothing(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10)]).await;
    let nothing = w.pin(between("2026-12-01", "2026-12-31")).await;
    let (schema, stream) = w.reader().read(&nothing).await.unwrap();
    assert_eq!(schema, columns());
    assert_eq!(texts(stream).await.unwrap(), [""; 0]);
    let absent = World::absent(f, by_day()).await;
    let pin = absent.pin(Slice::All).await;
    let (schema, stream) = absent.reader().read(&pin).await.unwrap();
    assert_eq!(schema.fields().len(), 0);
    assert_eq!(texts(stream).await.unwrap(), [""; 0]);
    let head = absent.head(&days(&[MON])).await;
    assert_eq!(head.partitions.len(), 1, "also what is not there has a version");
}

/// A stream "owns what it reads from, so it outlives the call that made it" and what others write meanwhile (`RowStream`).
pub(super) async fn a_stream_ends_as_it_began(f: &dyn Fixture) {
    let given: Vec<Row> = (0..300).map(|id| (MON, Some("FR"), id, 1)).collect();
    let w = World::with(f, &given).await;
    let pin = w.pin(Slice::All).await;
    let (_, mut stream) = w.reader().read(&pin).await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    w.replace("r1", &days(&[MON]), &[(MON, Some("DE"), 1, 2)]).await;
    match texts(futures::stream::iter([Ok(first)]).chain(stream).boxed()).await {
        Ok(read) => assert_eq!(read, lines(&given)),
        Err(error) => assert_eq!(error.kind(), ErrorKind::PinBroken, "{error}"),
    }
    // Streams that nobody reads to their end free what they hold.
    for _ in 0..50 {
        let pin = w.pin(Slice::All).await;
        drop(w.reader().read(&pin).await.unwrap());
    }
}

/// Prices with the dates from which and to which they hold.
fn prices(rows: &[(&str, &str, Option<&str>)]) -> RecordBatch {
    let columns: [(&str, ArrayRef); 3] = [
        ("item", Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.0)))),
        ("from", Arc::new(rows.iter().map(|row| days_since_epoch(row.1)).collect::<Date32Array>())),
        ("to", Arc::new(rows.iter().map(|row| row.2.and_then(days_since_epoch)).collect::<Date32Array>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
}

/// "`as_of`: reference rows effective at the partition's date: a slice by effective dates, not time travel" (DESIGN 4). A
/// reader that cannot says so.
pub(super) async fn reference_rows_are_those_effective_at_the_date(f: &dyn Fixture) {
    let w = World::of(f, Partitioning::unpartitioned(), &prices(&[]).schema()).await;
    let fill = async |run: &str, rows: &[(&str, &str, Option<&str>)]| {
        let staged = w.try_stage(run, &Scope::whole_table(), Intent::Replace, prices(rows)).await.unwrap();
        w.committed(&apply(&staged)).await;
    };
    let as_of = |to: Option<&str>| {
        let (from, entity, to) = ("from".into(), vec!["item".into()], to.map(str::to_owned));
        let (date, instant) = (MON.parse().unwrap(), instant("2026-10-05T00:00:00Z"));
        Slice::AsOf(AsOfSlice { from, to, entity, date, instant })
    };
    let mut rows = vec![
        ("ended", "2026-01-01", Some(MON)),
        ("ends tomorrow", "2026-01-01", Some(TUE)),
        ("open", MON, None),
        ("later", TUE, None),
        ("never", "", None),
    ];
    fill("r1", &rows).await;
    let version = w.reader().current().await.unwrap();
    if let Err(error) = w.reader().slice_versions(&version, &[as_of(Some("to"))]).await {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        return;
    }
    let effective = ["ends tomorrow/2026-01-01/2026-10-06", "open/2026-10-05/NULL"];
    assert_eq!(w.rows_of(as_of(Some("to"))).await, effective);
    rows.extend([("open", "2026-10-04", None), ("open", TUE, None)]);
    fill("r2", &rows).await;
    let latest =
        ["ended/2026-01-01/2026-10-05", "ends tomorrow/2026-01-01/2026-10-06", "open/2026-10-05/NULL"];
    assert_eq!(w.rows_of(as_of(None)).await, latest, "the last that has begun, of each item");
}
