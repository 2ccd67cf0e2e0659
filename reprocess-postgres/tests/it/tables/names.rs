//! Names that need quoting.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::value::ValueKind;
use reprocess_core::ports::staged::StagedReader;
use reprocess_core::ports::writer::{Intent, MergeKeys, PartitionWriter};

use reprocess_postgres::PostgresTable;

use super::support::*;

#[tokio::test]
async fn tables_and_columns_may_have_any_name() {
    let f = fixture().await;
    let long = "a_very_long_name_".repeat(4)[..60].to_owned();
    for name in ["Sales Of \"2026\"", "l'été", "продажи", "select", "a;b--", "[x]", "t", "s", &long]
    {
        let (key, number) = ("Key \"of\" ;--".to_owned(), "n's.n".to_owned());
        let partitioning = Partitioning::unpartitioned().with_key(&key, ValueKind::Text);
        let table = table_of(&f.db, name, partitioning).await;
        let schema = Arc::new(Schema::new(vec![
            Field::new(&key, DataType::Utf8, true),
            Field::new(&number, DataType::Int64, false),
        ]));
        table.create(&schema).await.unwrap();
        let rows = |keys: Vec<&str>, numbers: Vec<i64>| {
            let arrays: Vec<ArrayRef> =
                vec![Arc::new(StringArray::from(keys)), Arc::new(Int64Array::from(numbers))];
            of(RecordBatch::try_new(schema.clone(), arrays).unwrap())
        };
        let one = scope(PartitionKey::of(&key, "a"));
        let base = table.head(&one).await.unwrap();
        let staged = table
            .stage(&request("r1", &one, Intent::Replace), rows(vec!["a", "a"], vec![1, 2]))
            .await
            .unwrap();
        committed(commit(&table, &[apply(&staged)], &base, true).await.unwrap());
        let all = Scope::whole_table();
        let base = table.head(&all).await.unwrap();
        let merge = MergeKeys {
            keys: vec![number.clone()],
            newer: Some(number.clone()),
            delete_vanished: Some([(key.clone(), value("a"))].into()),
        };
        let staged = table
            .stage(&request("r2", &all, Intent::Merge(merge)), rows(vec!["b", "c"], vec![2, 3]))
            .await
            .unwrap();
        assert_eq!(table.profile_after(&staged, &Default::default()).await.unwrap()[0].rows, 2);
        committed(commit(&table, &[apply(&staged)], &base, true).await.unwrap());
        assert_eq!(super::support::rows(&table).await, ["a/2", "c/3"], "{name}");
        // The triggers quote the names too.
        let quoted = format!("\"{}\"", name.replace('"', "\"\""));
        f.sql(&format!("INSERT INTO {quoted} VALUES ('d', 4)")).await;
        let key = PartitionKey::of(&key, "d");
        assert_eq!(table.head(&scope(key.clone())).await.unwrap().partitions[&key].as_str(), "2.1", "{name}");
    }
}

#[tokio::test]
async fn names_that_postgresql_or_the_library_needs_are_refused() {
    let f = fixture().await;
    let create = async |table: &str, columns: &[&str]| {
        let fields: Vec<_> = columns.iter().map(|c| Field::new(*c, DataType::Int64, true)).collect();
        let table = PostgresTable::open(f.db.clone(), TableSpec::new(table, Default::default())).await?;
        table.create(&Arc::new(Schema::new(fields))).await
    };
    refused(create("reprocess_table", &["a"]).await, &["reprocess_table"]);
    refused(create("", &["a"]).await, &["no name"]);
    refused(create("a.b.c", &["a"]).await, &["a.b.c"]);
    refused(create(&"a".repeat(64), &["a"]).await, &["64 bytes"]);
    refused(create("a\0b", &["a"]).await, &["no name"]);
    refused(create("x", &["ctid"]).await, &["ctid"]);
    refused(create("x", &["reprocess_seq"]).await, &["reprocess_seq"]);
    refused(create("x", &["a", "a"]).await, &["stands twice"]);
    refused(create("x", &[]).await, &["needs a column"]);
    create("x", &["a", "A", "oid"]).await.unwrap();
}
