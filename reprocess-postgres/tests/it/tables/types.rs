//! Every type goes in and comes out as it was, or is refused by name.

use std::sync::Arc;

use arrow_array::builder::FixedSizeBinaryBuilder;
use arrow_array::*;
use arrow_buffer::i256;
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use futures::TryStreamExt;
use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::profile::{ProfileBuilder, ProfileSpec};
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Slice;
use reprocess_core::domain::value::{Value, ValueKind};
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_core::ports::writer::{Intent, PartitionWriter};
use reprocess_core::{ErrorKind, Result};
use reprocess_postgres::PostgresTable;

use super::support::*;

fn every_type() -> RecordBatch {
    let mut fixed = FixedSizeBinaryBuilder::new(2);
    fixed.append_value(b"\0\xff").unwrap();
    fixed.append_null();
    let decimal = Decimal128Array::from(vec![Some(-12_345), None]).with_precision_and_scale(10, 2).unwrap();
    let long = 10_i128.pow(38) - 1;
    let small = Decimal128Array::from(vec![Some(long), None]).with_precision_and_scale(38, 38).unwrap();
    let large = i256::from_string(&"9".repeat(76));
    let wide = Decimal256Array::from(vec![large, None]).with_data_type(DataType::Decimal256(76, 5));
    let zone = |array: TimestampMicrosecondArray| array.with_timezone("Europe/Paris");
    let first_instant = -210_866_803_200_000_000;
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("bool", Arc::new(BooleanArray::from(vec![Some(true), None]))),
        ("i8", Arc::new(Int8Array::from(vec![Some(i8::MIN), None]))),
        ("i16", Arc::new(Int16Array::from(vec![Some(i16::MAX), None]))),
        ("i32", Arc::new(Int32Array::from(vec![Some(i32::MIN), None]))),
        ("i64", Arc::new(Int64Array::from(vec![Some(i64::MIN), None]))),
        ("u8", Arc::new(UInt8Array::from(vec![Some(u8::MAX), None]))),
        ("u16", Arc::new(UInt16Array::from(vec![Some(u16::MAX), None]))),
        ("u32", Arc::new(UInt32Array::from(vec![Some(u32::MAX), None]))),
        ("u64", Arc::new(UInt64Array::from(vec![Some(u64::MAX), None]))),
        ("f32", Arc::new(Float32Array::from(vec![Some(0.1), None]))),
        ("f64", Arc::new(Float64Array::from(vec![Some(f64::MIN_POSITIVE), None]))),
        ("zero", Arc::new(Float64Array::from(vec![Some(-0.0), Some(0.0)]))),
        ("inf", Arc::new(Float64Array::from(vec![f64::INFINITY, f64::NEG_INFINITY]))),
        ("text", Arc::new(StringArray::from(vec![Some(""), None]))),
        ("large", Arc::new(LargeStringArray::from(vec![Some("a\\N\tb '\"é\n"), None]))),
        ("view", Arc::new(StringViewArray::from(vec![Some("12.50 "), None]))),
        ("binary", Arc::new(BinaryArray::from(vec![Some(&b""[..]), None]))),
        ("fixed", Arc::new(fixed.finish())),
        ("date", Arc::new(Date32Array::from(vec![Some(-2_440_588), Some(2_145_042_905)]))),
        ("second", Arc::new(TimestampSecondArray::from(vec![Some(-1), None]).with_timezone("UTC"))),
        ("milli", Arc::new(TimestampMillisecondArray::from(vec![Some(1_001), None]))),
        ("micro", Arc::new(zone(TimestampMicrosecondArray::from(vec![Some(first_instant), Some(-1)])))),
        ("nano", Arc::new(TimestampNanosecondArray::from(vec![Some(-1_000), None]))),
        ("decimal", Arc::new(decimal)),
        ("small", Arc::new(small)),
        ("wide", Arc::new(wide)),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .unwrap()
}

async fn replaced(table: &PostgresTable, run: &str, rows: RecordBatch) -> Result<()> {
    let all = Scope::whole_table();
    let base = table.head(&all).await?;
    let staged = table.stage(&request(run, &all, Intent::Replace), of(rows)).await?;
    committed(commit(table, &[apply(&staged)], &base, true).await?);
    let (_, profiles) = table.profile(&all, &ProfileSpec::new()).await?;
    assert_eq!(profiles[0].content, staged.profiles[0].content, "what was staged is what is there");
    Ok(())
}

async fn all_of(table: &PostgresTable) -> Result<Vec<RecordBatch>> {
    let (_, stream) = table.read(&pin(table, Slice::All).await?).await?;
    stream.try_collect().await
}

fn column(name: &str, array: impl Array + 'static) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable([(name, Arc::new(array) as ArrayRef, true)]).unwrap()
}

#[tokio::test]
async fn schema_and_values_come_back_exactly() {
    let f = fixture().await;
    let table = table_of(&f.db, "types", Partitioning::unpartitioned()).await;
    let rows = every_type();
    table.create(&rows.schema()).await.unwrap();
    replaced(&table, "r1", rows.clone()).await.unwrap();
    assert_eq!(table.schema().await.unwrap(), Some(rows.schema()));
    assert_eq!(all_of(&table).await.unwrap(), std::slice::from_ref(&rows));
    let mut builder = ProfileBuilder::new(&rows.schema(), &ProfileSpec::new()).unwrap();
    builder.push(&rows).unwrap();
    let (_, profiles) = table.profile(&Scope::whole_table(), &ProfileSpec::new()).await.unwrap();
    assert_eq!(profiles[0].content, builder.finish(PartitionKey::whole()).content);
    // Rows may come in another memory layout.
    let dictionary: Int8DictionaryArray = vec!["x", "y", "x"].into_iter().collect();
    let table = table_of(&f.db, "texts", Partitioning::unpartitioned()).await;
    table.create(&column("text", StringArray::from(vec!["a"])).schema()).await.unwrap();
    replaced(&table, "r1", column("text", dictionary)).await.unwrap();
    assert_eq!(rows_text(&table).await, ["x", "x", "y"]);
}

async fn rows_text(table: &PostgresTable) -> Vec<String> {
    rows(table).await
}

#[tokio::test]
async fn what_postgresql_does_not_hold_is_refused_by_name_and_value() {
    let f = fixture().await;
    let mut number = 0;
    let mut check = async |rows: RecordBatch, words: &[&str]| {
        number += 1;
        let table = table_of(&f.db, &format!("t{number}"), Partitioning::unpartitioned()).await;
        table.create(&rows.schema()).await.unwrap();
        assert_eq!(refused(replaced(&table, "r", rows).await, words).kind(), ErrorKind::Invalid);
    };
    check(column("text", StringArray::from(vec!["ok", "a\0b"])), &["`a\\0b`", "column `text`", "NUL"]).await;
    check(column("date", Date32Array::from(vec![i32::MAX])), &["column `date`", "5874897"]).await;
    check(column("at", TimestampMicrosecondArray::from(vec![i64::MIN])), &["column `at`", "4713 BC"]).await;
    check(column("at", TimestampSecondArray::from(vec![i64::MAX])), &["column `at`"]).await;
    check(column("nano", TimestampNanosecondArray::from(vec![1])), &["column `nano`", "6 digits"]).await;
    let long = Decimal128Array::from(vec![1_000]).with_data_type(DataType::Decimal128(3, 1));
    check(column("price", long), &["100.0", "column `price`", "3 digits, 1 behind the point"]).await;
    let table = table_of(&f.db, "odd", Partitioning::unpartitioned()).await;
    for (data_type, word) in [
        (DataType::Time64(TimeUnit::Microsecond), "Time64"),
        (DataType::new_list(DataType::Int32, true), "List"),
        (DataType::Decimal128(5, -2), "-2"),
        (DataType::Decimal128(5, 6), "6"),
        (DataType::Null, "Null"),
    ] {
        let schema = Arc::new(Schema::new(vec![Field::new("odd", data_type, true)]));
        refused(table.create(&schema).await, &["`odd`", word]);
    }
}

/// A table with columns of every kind that others may make.
const THEIRS: &str = r#"
    CREATE TYPE mood AS ENUM ('sad', 'it''s ok', 'happy');
    CREATE DOMAIN percent AS numeric(5, 2) CHECK (VALUE BETWEEN 0 AND 100);
    CREATE DOMAIN short AS percent;
    CREATE TYPE pair AS (a integer, b text);
    CREATE TABLE theirs (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        twice bigint GENERATED ALWAYS AS (id * 2) STORED,
        feeling mood, share short, code varchar(3), padded char(4), price numeric(40, 20), anything numeric,
        uid uuid, doc jsonb, raw json, bytes bytea, many integer[], texts text[], span interval,
        clock time, zoned timetz, range int4range, address inet, bits bit varying(8), couple pair, coarse timestamp(3),
        gone integer, spot point, label "char", title name, tags mood[], plain timestamptz);
    ALTER TABLE theirs DROP COLUMN gone"#;

const VALUES: &str = r#"INSERT INTO theirs (feeling, share, code, padded, price, anything, uid, doc, raw, bytes, many, texts,
        span, clock, zoned, range, address, bits, couple, coarse, spot, label, title, tags, plain)
    VALUES ('it''s ok', 99.5, 'äöü', 'x', 12345678901234567890.12345678901234567890, 'NaN',
        '01234567-89ab-cdef-0123-456789abcdef', '{"b": 1.0, "a": [null]}', '{"b":1 , "b":2}', '\x00ff',
        '[0:1]={1,NULL}', '{"a,b","{}"}', '1 month 30 days', '24:00', '12:00:00.000001+05:30', '[1,5)',
        '10.0.0.0/8', '101', '(1,"a ""b""")', '2026-10-01 00:00:00.001', '(0.1,1e300)', 'x', 'a name',
        '{happy,"it''s ok"}', 'epoch'),
        (NULL, NULL, NULL, NULL, NULL, 'Infinity', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
         NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"#;

#[tokio::test]
async fn a_table_of_others_is_read_and_written_whatever_its_types() {
    let f = fixture().await;
    f.sql(THEIRS).await;
    f.sql(VALUES).await;
    let table = table_of(&f.db, "theirs", Partitioning::unpartitioned()).await;
    assert_eq!(table.schema().await.unwrap(), None);
    table.adopt().await.unwrap();
    let types = table.schema().await.unwrap().unwrap();
    let type_of = |name: &str| types.field_with_name(name).unwrap().data_type().clone();
    assert_eq!(type_of("share"), DataType::Decimal128(5, 2));
    assert_eq!(type_of("price"), DataType::Decimal256(40, 20));
    assert_eq!(type_of("uid"), DataType::FixedSizeBinary(16));
    assert_eq!(type_of("coarse"), DataType::Timestamp(TimeUnit::Microsecond, None));
    assert!(types.field_with_name("twice").is_err() && types.field_with_name("gone").is_err());
    let before = all_of(&table).await.unwrap();
    let texts = rows_text(&table).await;
    assert_eq!(
        texts[0],
        "1/it's ok/99.50/äöü/x/12345678901234567890.12345678901234567890/NaN/\
         0x0123456789abcdef0123456789abcdef/{\"a\": [null], \"b\": 1.0}/{\"b\":1 , \"b\":2}/0x00ff/\
         [0:1]={1,NULL}/{\"a,b\",\"{}\"}/1 mon 30 days/24:00:00/12:00:00.000001+05:30/[1,5)/10.0.0.0/8/101/\
         (1,\"a \"\"b\"\"\")/2026-10-01T00:00:00.001Z/(0.1,1e+300)/x/a name/{happy,\"it's ok\"}/1970-01-01T00:00:00Z"
    );
    let dump = "SELECT string_agg(t::text, '|' ORDER BY id) FROM public.theirs AS t";
    let mut other = f.other().await;
    let there: (String,) = sqlx::query_as(dump).fetch_one(&mut other).await.unwrap();
    let whole = |batches: &[RecordBatch]| batches.to_vec();
    let [batch] = &whole(&before)[..] else { panic!("one batch") };
    replaced(&table, "r1", batch.clone()).await.unwrap();
    assert_eq!(all_of(&table).await.unwrap(), before);
    let again: (String,) = sqlx::query_as(dump).fetch_one(&mut other).await.unwrap();
    assert_eq!(there, again, "the server keeps the same, to the last digit");
    // Fewer rows than are changed in part: the difference is written, and a row whose number the server counts stays.
    replaced(&table, "r2", batch.slice(0, 1)).await.unwrap();
    assert_eq!(rows_text(&table).await, texts[..1]);
}

#[tokio::test]
async fn values_that_columns_of_others_refuse_are_named() {
    let f = fixture().await;
    f.sql(THEIRS).await;
    let mut number = 0;
    let mut check = async |declared: &str, array: ArrayRef, words: &[&str]| {
        number += 1;
        f.sql(&format!("CREATE TABLE theirs{number} (value {declared})")).await;
        let table = table_of(&f.db, &format!("theirs{number}"), Partitioning::unpartitioned()).await;
        table.adopt().await.unwrap();
        let rows = RecordBatch::try_from_iter_with_nullable([("value", array, true)]).unwrap();
        refused(replaced(&table, "r", rows).await, words);
        assert!(rows_text(&table).await.is_empty());
    };
    let text = |text: &str| Arc::new(StringArray::from(vec![text])) as ArrayRef;
    check("varchar(3)", text("abc "), &["`abc `", "3 characters"]).await;
    check("char(3)", text("ab "), &["`ab `", "no space at the end"]).await;
    check("char(3)", text("abcd"), &["`abcd`"]).await;
    check("integer[]", text("{1, 2}"), &["`{1, 2}`", "`{1,2}`"]).await;
    check("integer[]", text("{1"), &["integer[]"]).await;
    check("bit(3)", text("1011"), &["`1011`", "`101`"]).await;
    check("interval", text("60 minutes"), &["`01:00:00`"]).await;
    check("mood", text("angry"), &[]).await;
    check("jsonb", text("{"), &[]).await;
    let hundred = Decimal128Array::from(vec![10_001]).with_precision_and_scale(5, 2).unwrap();
    check("short", Arc::new(hundred), &[]).await;
    check("timestamp(3)", Arc::new(TimestampMicrosecondArray::from(vec![1])), &["3 digits"]).await;
    f.sql("CREATE TABLE cash (value money)").await;
    let cash = table_of(&f.db, "cash", Partitioning::unpartitioned()).await;
    refused(cash.adopt().await, &["`value`", "money"]);
}

#[tokio::test]
async fn values_that_arrow_does_not_hold_are_an_error_of_the_column() {
    let f = fixture().await;
    let mut number = 0;
    let mut check = async |declared: &str, value: &str, words: &[&str]| {
        number += 1;
        f.sql(&format!(
            "CREATE TABLE theirs{number} (value {declared}); INSERT INTO theirs{number} VALUES ({value})"
        ))
        .await;
        let table = table_of(&f.db, &format!("theirs{number}"), Partitioning::unpartitioned()).await;
        table.adopt().await.unwrap();
        let mut words = words.to_vec();
        words.push("column `value`");
        assert_eq!(refused(all_of(&table).await, &words).kind(), ErrorKind::Corrupt);
        refused(table.profile(&Scope::whole_table(), &ProfileSpec::new()).await, &words);
    };
    check("date", "'infinity'", &["`infinity`"]).await;
    check("date", "'-infinity'", &["`-infinity`"]).await;
    check("timestamptz", "'infinity'", &["`infinity`"]).await;
    check("timestamp", "'-infinity'", &["`-infinity`"]).await;
    check("timestamp", "'294276-12-31 23:59:59'", &["instant"]).await;
    check("numeric(10, 2)", "'NaN'", &["`NaN`"]).await;
}

#[tokio::test]
async fn strangers_may_write_what_a_column_of_ours_does_not_hold() {
    let f = fixture().await;
    let check = async |name: &str, array: ArrayRef, value: &str, words: &[&str]| {
        let table = table_of(&f.db, name, Partitioning::unpartitioned()).await;
        let rows = RecordBatch::try_from_iter_with_nullable([("value", array, true)]).unwrap();
        table.create(&rows.schema()).await.unwrap();
        f.sql(&format!("INSERT INTO {name} VALUES ({value})")).await;
        assert_eq!(refused(all_of(&table).await, words).kind(), ErrorKind::Corrupt);
    };
    check("a", Arc::new(Int8Array::from(vec![1])), "300", &["value", "Int8"]).await;
    check("b", Arc::new(UInt64Array::from(vec![1])), "-1", &["value", "UInt64"]).await;
    check("c", Arc::new(TimestampSecondArray::from(vec![1])), "'2026-10-01 00:00:00.5'", &["value"]).await;
    check("d", Arc::new(TimestampNanosecondArray::from(vec![1])), "'2300-01-01'", &["value"]).await;
    check(
        "e",
        Arc::new(FixedSizeBinaryArray::try_from_iter([b"ab"].iter()).unwrap()),
        "'\\x00'",
        &["1 bytes"],
    )
    .await;
}

#[tokio::test]
async fn columns_that_do_not_compare_byte_by_byte_are_no_dimensions() {
    let f = fixture().await;
    f.sql("CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
           CREATE TYPE mood AS ENUM ('a'); CREATE TABLE theirs (folded text COLLATE folded, mood mood, day date)").await;
    for column in ["folded", "mood"] {
        let by = Partitioning::unpartitioned().with_key(column, ValueKind::Text);
        refused(table_of(&f.db, "theirs", by).await.adopt().await, &[column]);
    }
    let by = Partitioning::unpartitioned().with_time("day", Grain::Month, chrono_tz::UTC);
    table_of(&f.db, "theirs", by).await.adopt().await.unwrap();
}

#[tokio::test]
async fn partitions_by_every_kind_of_key_are_replaced_alone() {
    let f = fixture().await;
    let check = async |kind: ValueKind, array: ArrayRef, values: [Value; 3]| {
        let name = format!("by_{kind}");
        let table = table_of(&f.db, &name, Partitioning::unpartitioned().with_key("k", kind)).await;
        let rows = RecordBatch::try_from_iter_with_nullable([("k", array, true)]).unwrap();
        table.create(&rows.schema()).await.unwrap();
        replaced(&table, "r1", rows.clone()).await.unwrap();
        for (place, value) in values.into_iter().enumerate() {
            let key = PartitionKey::of("k", value);
            let read = pin(&table, Slice::Partitions([key.clone()].into())).await.unwrap();
            assert_eq!(read_text(&table, &read).await.len(), 1, "{key}");
            let one = scope(key.clone());
            let base = table.head(&one).await.unwrap();
            let none = request(&format!("d{place}"), &one, Intent::Replace);
            let staged = table.stage(&none, of(rows.slice(0, 0))).await.unwrap();
            committed(commit(&table, &[apply(&staged)], &base, true).await.unwrap());
            assert_eq!(rows_text(&table).await.len(), 2 - place, "{key}");
        }
    };
    let at = |micros: i64| Value::Timestamp(chrono::DateTime::from_timestamp_micros(micros).unwrap());
    check(
        ValueKind::Boolean,
        Arc::new(BooleanArray::from(vec![Some(true), Some(false), None])),
        [Value::Boolean(true), Value::Boolean(false), Value::Null],
    )
    .await;
    check(
        ValueKind::Integer,
        Arc::new(UInt64Array::from(vec![Some(i64::MAX as u64), Some(0), None])),
        [Value::Integer(i64::MAX), Value::Integer(0), Value::Null],
    )
    .await;
    check(
        ValueKind::Timestamp,
        Arc::new(TimestampMicrosecondArray::from(vec![Some(-1), Some(253_402_300_800_000_000), None])),
        [at(-1), at(253_402_300_800_000_000), Value::Null],
    )
    .await;
    check(
        ValueKind::Date,
        Arc::new(Date32Array::from(vec![Some(-719_529), Some(2_932_897), None])),
        [
            Value::Date(chrono::NaiveDate::from_ymd_opt(-1, 12, 31).unwrap()),
            Value::Date(chrono::NaiveDate::from_ymd_opt(10_000, 1, 1).unwrap()),
            Value::Null,
        ],
    )
    .await;
}

async fn read_text(table: &PostgresTable, pin: &reprocess_core::domain::slice::Pin) -> Vec<String> {
    read(table, pin).await.unwrap()
}
