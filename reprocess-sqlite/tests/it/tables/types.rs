//! Every type goes in and comes out as it was.

use std::sync::Arc;

use arrow_array::builder::FixedSizeBinaryBuilder;
use arrow_array::*;
use arrow_buffer::i256;
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use futures::TryStreamExt;
use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::profile::{ProfileBuilder, ProfileSpec};
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Slice;
use reprocess_core::domain::value::{Value, ValueKind};
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_core::ports::writer::{Intent, PartitionWriter};
use reprocess_sqlite::SqliteTable;

use super::support::*;

fn every_type() -> RecordBatch {
    let mut fixed = FixedSizeBinaryBuilder::new(2);
    fixed.append_value(b"\0\xff").unwrap();
    fixed.append_null();
    let decimal = Decimal128Array::from(vec![Some(-12_345), None]).with_precision_and_scale(10, 2).unwrap();
    let wide = Decimal256Array::from(vec![Some(i256::MAX), None]).with_data_type(DataType::Decimal256(76, 5));
    let zone = |array: TimestampMicrosecondArray| array.with_timezone("Europe/Paris");
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("bool", Arc::new(BooleanArray::from(vec![Some(true), None]))),
        ("i8", Arc::new(Int8Array::from(vec![Some(i8::MIN), None]))),
        ("i16", Arc::new(Int16Array::from(vec![Some(i16::MAX), None]))),
        ("i32", Arc::new(Int32Array::from(vec![Some(i32::MIN), None]))),
        ("i64", Arc::new(Int64Array::from(vec![Some(i64::MIN), None]))),
        ("u8", Arc::new(UInt8Array::from(vec![Some(u8::MAX), None]))),
        ("u64", Arc::new(UInt64Array::from(vec![Some(u64::MAX >> 1), None]))),
        ("f32", Arc::new(Float32Array::from(vec![Some(0.1), None]))),
        ("f64", Arc::new(Float64Array::from(vec![Some(f64::MIN_POSITIVE), None]))),
        ("nan", Arc::new(Float64Array::from(vec![Some(f64::NAN), Some(3.0)]))),
        ("inf", Arc::new(Float64Array::from(vec![f64::INFINITY, f64::NEG_INFINITY]))),
        ("text", Arc::new(StringArray::from(vec![Some(""), None]))),
        ("large", Arc::new(LargeStringArray::from(vec![Some("a\0b '\"é"), None]))),
        ("view", Arc::new(StringViewArray::from(vec![Some("12.50"), None]))),
        ("binary", Arc::new(BinaryArray::from(vec![Some(&b""[..]), None]))),
        ("fixed", Arc::new(fixed.finish())),
        ("date", Arc::new(Date32Array::from(vec![Some(-719_528), None]))),
        ("second", Arc::new(TimestampSecondArray::from(vec![Some(-1), None]).with_timezone("UTC"))),
        ("milli", Arc::new(TimestampMillisecondArray::from(vec![Some(1_001), None]))),
        ("micro", Arc::new(zone(TimestampMicrosecondArray::from(vec![Some(i64::MIN), None])))),
        ("nano", Arc::new(TimestampNanosecondArray::from(vec![Some(i64::MAX), None]))),
        ("decimal", Arc::new(decimal)),
        ("wide", Arc::new(wide)),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .unwrap()
}

#[tokio::test]
async fn schema_and_values_come_back_exactly() {
    let f = fixture().await;
    let table = SqliteTable::new(f.db.clone(), TableSpec::new("types", Partitioning::unpartitioned()));
    let rows = every_type();
    table.create(&rows.schema()).await.unwrap();
    let all = Scope::whole_table();
    let base = table.head(&all).await.unwrap();
    let staged = table.stage(&request("r1", &all, Intent::Replace), of(rows.clone())).await.unwrap();
    committed(commit(&table, &[apply(&staged)], &base, true).await.unwrap());
    let (schema, stream) = table.read(&pin(&table, Slice::All).await.unwrap()).await.unwrap();
    assert_eq!(schema, rows.schema());
    let back: Vec<RecordBatch> = stream.try_collect().await.unwrap();
    assert_eq!(back, [rows.clone()].map(|r| r));
    let digest = |batch: &RecordBatch| {
        let mut builder = ProfileBuilder::new(&batch.schema(), &ProfileSpec::new()).unwrap();
        builder.push(batch).unwrap();
        builder.finish(PartitionKey::whole())
    };
    let (_, profiles) = table.profile(&all, &ProfileSpec::new()).await.unwrap();
    assert_eq!(profiles[0].content, digest(&rows).content);
    assert_eq!(profiles[0].size_bytes, staged.profiles[0].size_bytes);
}

#[tokio::test]
async fn a_negative_zero_is_a_zero_for_every_reader() {
    let f = fixture().await;
    let table = SqliteTable::new(f.db.clone(), TableSpec::new("zero", Partitioning::unpartitioned()));
    let rows =
        RecordBatch::try_from_iter([("x", Arc::new(Float64Array::from(vec![-0.0])) as ArrayRef)]).unwrap();
    let all = Scope::whole_table();
    let base = table.head(&all).await.unwrap();
    let staged = table.stage(&request("r1", &all, Intent::Replace), of(rows)).await.unwrap();
    committed(commit(&table, &[apply(&staged)], &base, true).await.unwrap());
    let (_, profiles) = table.profile(&all, &ProfileSpec::new()).await.unwrap();
    assert_eq!(profiles[0].content, staged.profiles[0].content);
    assert_eq!(super::support::rows(&table).await, ["0.0"]);
}

#[tokio::test]
async fn what_sqlite_cannot_hold_is_named() {
    let f = fixture().await;
    let stage = async |array: ArrayRef| {
        let table = SqliteTable::new(f.db.clone(), TableSpec::new("odd", Partitioning::unpartitioned()));
        let rows = RecordBatch::try_from_iter([("x", array)]).unwrap();
        table.stage(&request("r1", &Scope::whole_table(), Intent::Replace), of(rows)).await
    };
    refused(stage(Arc::new(UInt64Array::from(vec![u64::MAX]))).await, &["18446744073709551615", "`x`"]);
    refused(stage(Arc::new(Date32Array::from(vec![3_000_000]))).await, &["`x`"]);
    refused(stage(Arc::new(Time32SecondArray::from(vec![1]))).await, &["`x`", "Time32"]);
    refused(stage(Arc::new(Date64Array::from(vec![1]))).await, &["`x`", "Date64"]);
    stage(Arc::new(UInt64Array::from(vec![u64::MAX >> 1]))).await.unwrap();
}

#[tokio::test]
async fn partitions_by_every_kind_of_value_are_found() {
    let f = fixture().await;
    let at: chrono::DateTime<chrono::Utc> = "2026-10-01T05:00:00Z".parse().unwrap();
    let instants = |unit: TimeUnit| DataType::Timestamp(unit, Some("UTC".into()));
    let cases: Vec<(ValueKind, ArrayRef, Value)> = vec![
        (ValueKind::Boolean, Arc::new(BooleanArray::from(vec![true, false])), true.into()),
        (ValueKind::Integer, Arc::new(Int16Array::from(vec![7, 8])), 7.into()),
        (ValueKind::Date, Arc::new(Date32Array::from(vec![0, 1])), date("1970-01-01").into()),
        (
            ValueKind::Timestamp,
            Arc::new(
                TimestampNanosecondArray::from(vec![at.timestamp_nanos_opt().unwrap(), 0])
                    .with_timezone("UTC"),
            ),
            at.into(),
        ),
        (
            ValueKind::Timestamp,
            Arc::new(TimestampSecondArray::from(vec![at.timestamp(), 0]).with_timezone("UTC")),
            at.into(),
        ),
    ];
    for (n, (kind, array, value)) in cases.into_iter().enumerate() {
        let partitioning = Partitioning::unpartitioned().with_key("k", kind);
        let table = SqliteTable::new(f.db.clone(), TableSpec::new(format!("t{n}"), partitioning));
        let rows = RecordBatch::try_from_iter_with_nullable([("k", array, true)]).unwrap();
        table.create(&rows.schema()).await.unwrap();
        let key = PartitionKey::of("k", value);
        let all = Scope::whole_table();
        let base = table.head(&all).await.unwrap();
        let staged = table.stage(&request("r1", &all, Intent::Replace), of(rows)).await.unwrap();
        committed(commit(&table, &[apply(&staged)], &base, true).await.unwrap());
        assert_eq!(
            table.profile(&scope(key.clone()), &ProfileSpec::new()).await.unwrap().1[0].rows,
            1,
            "{key}"
        );
        f.sql(&format!("UPDATE t{n} SET k = k WHERE rowid = 1")).await;
        let version = |key: PartitionKey| {
            let table = table.clone();
            async move { table.head(&scope(key.clone())).await.unwrap().partitions[&key].as_str().to_owned() }
        };
        assert_eq!(version(key.clone()).await, "2", "{key}");
        assert_eq!(version(PartitionKey::of("k", Value::Null)).await, "1", "{key}");
    }
    for (column, kind) in
        [(DataType::Float64, ValueKind::Integer), (instants(TimeUnit::Second), ValueKind::Date)]
    {
        let partitioning = Partitioning::unpartitioned().with_key("k", kind);
        let table = SqliteTable::new(f.db.clone(), TableSpec::new("wrong", partitioning));
        let schema = Arc::new(Schema::new(vec![Field::new("k", column, true)]));
        refused(table.create(&schema).await, &["`k`"]);
    }
}

#[tokio::test]
async fn periods_of_instants_follow_the_zone() {
    let f = fixture().await;
    let paris = Partitioning::unpartitioned().with_time("at", Grain::Day, chrono_tz::Europe::Paris);
    for (name, unit) in [("micro", TimeUnit::Microsecond), ("nano", TimeUnit::Nanosecond)] {
        let table = SqliteTable::new(f.db.clone(), TableSpec::new(name, paris.clone()));
        // 25 hours: 2026-10-25 begins at 22:00 UTC of the day before and ends at 23:00 UTC.
        let seconds: Vec<i64> =
            ["2026-10-24T21:59:59Z", "2026-10-24T22:00:00Z", "2026-10-25T22:59:59Z", "2026-10-25T23:00:00Z"]
                .iter()
                .map(|t| t.parse::<chrono::DateTime<chrono::Utc>>().unwrap().timestamp())
                .collect();
        let array: ArrayRef = match unit {
            TimeUnit::Nanosecond => Arc::new(TimestampNanosecondArray::from_iter_values(
                seconds.iter().map(|s| s * 1_000_000_000),
            )),
            _ => Arc::new(TimestampMicrosecondArray::from_iter_values(seconds.iter().map(|s| s * 1_000_000))),
        };
        let rows = RecordBatch::try_from_iter([("at", array)]).unwrap();
        let all = Scope::whole_table();
        let base = table.head(&all).await.unwrap();
        let staged = table.stage(&request("r1", &all, Intent::Replace), of(rows)).await.unwrap();
        committed(commit(&table, &[apply(&staged)], &base, true).await.unwrap());
        let keys = ["2026-10-24", "2026-10-25", "2026-10-26"].map(|d| PartitionKey::of("at", date(d)));
        let profiles = table.profile(&Scope::keys(keys).unwrap(), &ProfileSpec::new()).await.unwrap().1;
        assert_eq!(profiles.iter().map(|p| p.rows).collect::<Vec<_>>(), [1, 2, 1], "{name}");
    }
}
