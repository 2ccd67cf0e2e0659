//! Tables of the formats 1, 2 and 3, and of every transform.

use std::sync::Arc;

use arrow_array::types::TimestampMicrosecondType;
use arrow_array::{
    ArrayRef, Date32Array, Int64Array, PrimitiveArray, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use chrono::{DateTime, NaiveDate, Utc};
use iceberg::spec::{FormatVersion, Transform};
use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::value::{Value, ValueKind};
use reprocess_core::ports::writer::{Intent, MergeKeys, PartitionWriter};
use reprocess_core::{ErrorKind, Result};
use reprocess_iceberg::iceberg;

use super::Others;
use crate::fixtures::Made;
use crate::support::{apply, commit, days_since_epoch, done, stage};

const MORNING: &str = "2026-10-05T07:30:00Z";
const EVENING: &str = "2026-10-05T19:00:00.000001Z";
const NEXT: &str = "2026-10-06T00:00:00Z";
const OLD: &str = "1969-12-31T23:59:59.999999Z";

/// An instant (its day too), NULL where empty; country, id.
type Row<'a> = (&'a str, Option<&'a str>, i64);

fn instant(text: &str) -> Option<DateTime<Utc>> {
    text.parse().ok()
}

fn batch(rows: &[Row<'_>]) -> RecordBatch {
    let micros = |row: &Row<'_>| instant(row.0).map(|at| at.timestamp_micros());
    let at: TimestampMicrosecondArray =
        rows.iter().map(micros).collect::<PrimitiveArray<TimestampMicrosecondType>>();
    let day = |row: &Row<'_>| instant(row.0).and_then(|at| days_since_epoch(&at.date_naive().to_string()));
    let columns: [(&str, ArrayRef); 5] = [
        ("at", Arc::new(at.with_timezone("UTC"))),
        ("day", Arc::new(rows.iter().map(day).collect::<Date32Array>())),
        ("country", Arc::new(rows.iter().map(|row| row.1).collect::<StringArray>())),
        ("id", Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2)))),
        ("amount", Arc::new(Int64Array::from_iter_values(rows.iter().map(|_| 1)))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
}

async fn write(made: &Made, run: &str, scope: &Scope, intent: Intent, rows: &[Row<'_>]) -> Result<()> {
    let base = made.table.head(scope).await?;
    let staged = stage(&made.table, run, scope, intent, batch(rows)).await?;
    done(commit_plainly(made, &[apply(&staged)], &base).await?);
    Ok(())
}

/// Without keeping, which tables of format 1 cannot.
async fn commit_plainly(
    made: &Made,
    entries: &[reprocess_core::ports::writer::CommitEntry],
    base: &reprocess_core::domain::slice::Base,
) -> Result<reprocess_core::ports::writer::CommitOutcome> {
    let request = reprocess_core::ports::writer::CommitRequest {
        entries,
        base,
        since: base,
        fence: None,
        keep: false,
        ledger: None,
    };
    made.table.commit(request).await
}

/// The ids in the table, as the library underneath shows them.
async fn ids(made: &Made) -> Vec<i64> {
    let rows = made.raw.rows().await;
    let mut ids: Vec<i64> = rows.iter().map(|row| row.rsplit('/').nth(1).unwrap().parse().unwrap()).collect();
    ids.sort_unstable();
    ids
}

fn by_time(column: &str, grain: Grain) -> Partitioning {
    Partitioning::unpartitioned().with_time(column, grain, chrono_tz::UTC)
}

fn key(column: &str, value: impl Into<Value>) -> Scope {
    Scope::key(PartitionKey::of(column, value)).unwrap()
}

fn date(text: &str) -> NaiveDate {
    text.parse().unwrap()
}

/// Five rows of several periods are given; the period of `scope`, which holds `inside`, is replaced by one row.
async fn check(fields: &[(&str, Transform)], dimensions: Partitioning, scope: Scope, inside: &[i64]) {
    const GIVEN: [Row<'_>; 5] = [
        (MORNING, Some("FR"), 1),
        (EVENING, Some("FI"), 2),
        (NEXT, Some("FR"), 3),
        (OLD, None, 4),
        ("", Some("DE"), 5),
    ];
    for version in [FormatVersion::V1, FormatVersion::V2, FormatVersion::V3] {
        let made = Made::new(version, fields, dimensions.clone()).await;
        write(&made, "given", &Scope::whole_table(), Intent::Replace, &GIVEN).await.unwrap();
        // Others write the same partitions by the library's own splitter: both find the same ones.
        let others: Vec<_> = GIVEN.iter().map(|row| (row.0, row.1, row.2 + 10)).collect();
        made.raw.append(&batch(&others)).await;
        let what = format!("{version:?} by {fields:?}");
        assert_eq!(ids(&made).await, [1, 2, 3, 4, 5, 11, 12, 13, 14, 15], "{what}");
        let row = *GIVEN.iter().find(|row| inside.contains(&row.2)).unwrap();
        write(&made, "fix", &scope, Intent::Replace, &[(row.0, row.1, 9)]).await.unwrap();
        let mut expected: Vec<_> = [1, 2, 3, 4, 5]
            .into_iter()
            .filter(|id| !inside.contains(id))
            .flat_map(|id| [id, id + 10])
            .collect();
        expected.push(9);
        expected.sort_unstable();
        assert_eq!(ids(&made).await, expected, "{what}");
        write(&made, "empty", &scope, Intent::Replace, &[]).await.unwrap();
        expected.retain(|id| *id != 9);
        assert_eq!(ids(&made).await, expected, "{what}");
        if version != FormatVersion::V3
            && let Some(mut others) = Others::of(&made.raw)
        {
            assert_eq!(others.rows(None, &what).len(), expected.len(), "{what}");
        }
        assert!(made.folder().join("warehouse").exists());
    }
}

#[tokio::test]
async fn days_of_dates() {
    let scope = key("day", date("2026-10-05"));
    check(&[("day", Transform::Identity)], by_time("day", Grain::Day), scope.clone(), &[1, 2]).await;
    check(&[("day", Transform::Day)], by_time("day", Grain::Day), scope, &[1, 2]).await;
}

#[tokio::test]
async fn months_and_years() {
    let october = key("day", date("2026-10-01"));
    check(&[("day", Transform::Month)], by_time("day", Grain::Month), october.clone(), &[1, 2, 3]).await;
    check(&[("day", Transform::Identity)], by_time("day", Grain::Month), october, &[1, 2, 3]).await;
    let old = key("day", date("1969-01-01"));
    check(&[("day", Transform::Year)], by_time("day", Grain::Year), old, &[4]).await;
}

#[tokio::test]
async fn hours_and_days_of_instants() {
    let hour = key("at", instant("2026-10-05T07:00:00Z").unwrap());
    check(&[("at", Transform::Hour)], by_time("at", Grain::Hour), hour, &[1]).await;
    let old = key("at", instant("1969-12-31T23:00:00Z").unwrap());
    check(&[("at", Transform::Hour)], by_time("at", Grain::Hour), old, &[4]).await;
    check(&[("at", Transform::Day)], by_time("at", Grain::Day), key("at", date("2026-10-05")), &[1, 2]).await;
    check(&[("at", Transform::Day)], by_time("at", Grain::Day), key("at", Value::Null), &[5]).await;
}

#[tokio::test]
async fn further_fields_only_divide_the_files() {
    let by_country = Partitioning::unpartitioned().with_key("country", ValueKind::Text);
    for further in [("id", Transform::Bucket(4)), ("id", Transform::Truncate(2)), ("day", Transform::Month)] {
        check(
            &[("country", Transform::Identity), further],
            by_country.clone(),
            key("country", "FR"),
            &[1, 3],
        )
        .await;
    }
    check(&[("country", Transform::Identity)], by_country, key("country", Value::Null), &[4]).await;
}

/// What cannot be told from the values of a file is refused when the table is looked at.
#[tokio::test]
async fn dimensions_that_cannot_be_told_are_refused() {
    let paris = Partitioning::unpartitioned().with_time("at", Grain::Day, chrono_tz::Europe::Paris);
    let by_country = Partitioning::unpartitioned().with_key("country", ValueKind::Text);
    for (fields, dimensions, word) in [
        (vec![("at", Transform::Day)], paris, "local"),
        (vec![("day", Transform::Month)], by_time("day", Grain::Day), "`day`"),
        (vec![("country", Transform::Truncate(1))], by_country.clone(), "`country`"),
        (vec![("country", Transform::Bucket(4))], by_country.clone(), "`country`"),
        (vec![], by_country, "`country`"),
    ] {
        let made = Made::new(FormatVersion::V2, &fields, dimensions).await;
        let error = made.table.head(&Scope::whole_table()).await.unwrap_err();
        assert!(error.to_string().contains(word), "{fields:?}: {error}");
    }
}

/// What cannot be done right with a format is refused by its name.
#[tokio::test]
async fn what_a_format_cannot_is_refused_by_name() {
    let fields = [("day", Transform::Identity)];
    let merge = || Intent::Merge(MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: None });
    let all = Scope::whole_table();
    let made = Made::new(FormatVersion::V3, &fields, by_time("day", Grain::Day)).await;
    write(&made, "given", &all, Intent::Replace, &[(MORNING, None, 1)]).await.unwrap();
    let error = write(&made, "merge", &all, merge(), &[(MORNING, None, 2)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("format version 3"), "{error}");

    let made = Made::new(FormatVersion::V1, &fields, by_time("day", Grain::Day)).await;
    write(&made, "given", &all, Intent::Replace, &[(MORNING, None, 1)]).await.unwrap();
    write(&made, "merge", &all, merge(), &[(MORNING, None, 1), (NEXT, None, 2)]).await.unwrap();
    assert_eq!(ids(&made).await, [1, 2]);
    let base = made.table.head(&all).await.unwrap();
    let staged = stage(&made.table, "keep", &all, Intent::Replace, batch(&[])).await.unwrap();
    let error = commit(&made.table, &[apply(&staged)], &base).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("format version 1"), "{error}");
    assert_eq!(ids(&made).await, [1, 2]);
}
