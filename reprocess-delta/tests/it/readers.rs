//! Every state of a table as readers that are not ours show it: the Python `deltalake`, and DuckDB, which shares no code
//! with it. `REPROCESS_TEST_PYTHON` is a Python with both.

use std::process::Command;
use std::sync::Arc;

use arrow_array::{Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::value::Value;
use reprocess_core::ports::writer::{
    Change, Intent, MergeKeys, Op, PartitionWriter, StageRequest, StampId, Visibility,
};

use crate::support::*;

fn read_by(python: &str, sales: &Sales, reader: &str) -> Vec<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/read_back.py");
    let read = Command::new(python).arg(script).arg(sales.path()).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let text = String::from_utf8(read.stdout).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix(&format!("{reader}|")));
    let mut rows: Vec<_> = rows.map(str::to_owned).collect();
    rows.sort();
    rows
}

async fn check(python: &str, sales: &Sales, expected: &[String], state: &str) {
    assert_eq!(sales.rows().await, expected, "{state}");
    for reader in ["deltalake", "duckdb"] {
        assert_eq!(read_by(python, sales, reader), expected, "{state}, read by {reader}");
    }
}

#[tokio::test]
async fn every_state_is_read_by_others() {
    let Some(python) = python() else { return };
    let given = [
        (MON, Some("FR"), 1, 10),
        (MON, Some("l'été 100%"), 2, 20),
        (TUE, Some("FR"), 3, 30),
        ("", None, 4, 40),
    ];
    let sales = Sales::with(&given).await;
    check(&python, &sales, &texts(&given), "given").await;

    sales.replace("empty", &days(&[TUE]), &[]).await;
    check(&python, &sales, &texts(&[given[0], given[1], given[3]]), "an empty replace").await;

    let by_id = MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: None };
    let owner = [("country".to_owned(), Value::from("FR"))].into();
    let merge = Intent::Merge(MergeKeys { delete_vanished: Some(owner), ..by_id });
    let rows = [(MON, Some("l'été 100%"), 2, 21), (TUE, Some("DE"), 5, 50)];
    let merged = sales.write("merge", &Scope::whole_table(), merge, batch(&rows)).await;
    check(&python, &sales, &texts(&[rows[0], rows[1], given[3]]), "a merge").await;

    // A shadow of two days that waits is not seen, and then published at once.
    let mut entries = Vec::new();
    for (text, id) in [(MON, 8), (TUE, 9)] {
        let scope = days(&[text]);
        let request = StageRequest {
            visibility: Visibility::Shadow("fix".into()),
            ..request(&sales.table, "shadow", &scope, Intent::Replace).await
        };
        let rows = batch(&[(text, Some("IT"), id, 1)]);
        entries.push(apply(&sales.table.stage(&request, rows.into()).await.unwrap()));
    }
    check(&python, &sales, &texts(&[rows[0], rows[1], given[3]]), "a shadow waits").await;
    let base = sales.table.head(&days(&[MON, TUE])).await.unwrap();
    done(commit(&sales.table, &entries, &base).await.unwrap());
    let published = texts(&[(MON, Some("IT"), 8, 1), (TUE, Some("IT"), 9, 1), given[3]]);
    check(&python, &sales, &published, "a publication").await;

    let monday = days(&[MON]);
    let stamp = StampId { op: Op::Restore, ..stamp("undo", &monday, &Intent::Replace) };
    let undo = entry(stamp, &monday, Change::Restore(merged.kept.unwrap()));
    let base = sales.table.head(&monday).await.unwrap();
    done(commit(&sales.table, &[undo], &base).await.unwrap());
    let restored = texts(&[given[0], given[1], (TUE, Some("IT"), 9, 1), given[3]]);
    check(&python, &sales, &restored, "Monday restored as it was before the merge").await;

    let mut fields: Vec<_> = columns().fields().iter().map(|field| field.as_ref().clone()).collect();
    fields.push(Field::new("tax", DataType::Int64, true));
    let mut arrays = batch(&[(TUE, Some("FR"), 7, 70)]).columns().to_vec();
    arrays.push(Arc::new(Int64Array::from(vec![2])));
    let taxed = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap();
    let tuesday = days(&[TUE]);
    let request = StageRequest {
        schema: SchemaPolicy::AddNullable,
        ..request(&sales.table, "taxed", &tuesday, Intent::Replace).await
    };
    let staged = sales.table.stage(&request, taxed.into()).await.unwrap();
    let base = sales.table.head(&tuesday).await.unwrap();
    done(commit(&sales.table, &[apply(&staged)], &base).await.unwrap());
    let mut widened: Vec<_> =
        texts(&[given[0], given[1], given[3]]).iter().map(|line| format!("{line}/NULL")).collect();
    widened.push("2026-10-06/FR/7/70/2".to_owned());
    widened.sort();
    check(&python, &sales, &widened, "a new column").await;
}

/// Partition values that paths and predicates are broken by elsewhere.
#[tokio::test]
async fn odd_partition_values_are_read_by_others() {
    let Some(python) = python() else { return };
    let odd = [
        "a/b",
        "..",
        "../../evil",
        "%",
        "%2F",
        "a b",
        "k=v",
        "it's",
        "\"x\"",
        "a\\b",
        "ünï",
        "1+1",
        "a:b",
        "*",
        "#",
        "?",
        "__HIVE_DEFAULT_PARTITION__",
        "NULL",
        "true",
        "2026-10-05",
        "~",
        "a,b",
        "[x]",
        "{y}",
        "^",
        "|",
        ";--",
        "$1",
        "&",
        "dot.",
        " lead",
        "trail ",
        "UPPER",
        "upper",
    ];
    let rows: Vec<Row<'_>> = (0..).zip(odd).map(|(id, country)| (MON, Some(country), id, 1)).collect();
    let sales = Sales::with(&rows).await;
    check(&python, &sales, &texts(&rows), "odd values").await;
    let scope = Scope::key(day(MON).and("country", "../../evil")).unwrap();
    sales.replace("r1", &scope, &[]).await;
    let rest: Vec<_> = rows.iter().filter(|row| row.1 != Some("../../evil")).copied().collect();
    check(&python, &sales, &texts(&rest), "one of them emptied").await;
    let outside = std::fs::read_dir(sales.path().parent().unwrap()).unwrap().count();
    assert_eq!(outside, 1, "nothing was written beside the table");
}

/// The empty text is a value of its own for us, and NULL for readers that follow Spark.
#[tokio::test]
async fn the_empty_text_is_told_from_null_by_us() {
    let rows = [(MON, Some(""), 1, 10), (MON, None, 2, 20)];
    let sales = Sales::with(&rows).await;
    let scope = Scope::key(day(MON).and("country", "")).unwrap();
    sales.replace("r1", &scope, &[(MON, Some(""), 3, 30)]).await;
    assert_eq!(sales.rows().await, texts(&[(MON, Some(""), 3, 30), rows[1]]));
}
