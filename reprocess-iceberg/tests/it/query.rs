//! SQL transforms over pinned tables.

use std::collections::BTreeMap;
use std::sync::Arc;

use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Slice;
use reprocess_core::domain::value::Value;
use reprocess_core::memory::MemoryTable;
use reprocess_core::ports::reader::{PinnedInput, SnapshotReader};
use reprocess_core::ports::writer::{Intent, PartitionWriter, Query, Rows};
use reprocess_core::{Error, ErrorKind};

use crate::support::*;

async fn input(sales: &Sales, slice: Slice) -> PinnedInput {
    PinnedInput {
        pin: sales.pin(slice).await,
        reader: Arc::new(sales.again().await),
        staged: vec![],
        writer: None,
    }
}

async fn run(
    sql: &str,
    inputs: BTreeMap<String, PinnedInput>,
    params: BTreeMap<String, Value>,
) -> Result<Vec<String>, Error> {
    let output = Sales::new().await;
    let query = Rows::Query(Query { sql: sql.into(), params, inputs });
    let all = Scope::whole_table();
    let staged = stage(&output.table, "r1", &all, Intent::Replace, query).await?;
    let base = output.table.head(&all).await?;
    done(commit(&output.table, &[apply(&staged)], &base).await?);
    Ok(output.rows().await)
}

/// Only the pinned slice at the pinned version is seen, whatever came since; parameters are bound.
#[tokio::test]
async fn a_query_reads_its_pinned_slices_and_parameters() {
    let sales = Sales::with(&[(MON, Some("FR"), 1, 10), (MON, None, 2, 20), (TUE, Some("FR"), 3, 30)]).await;
    let inputs =
        BTreeMap::from([("sales".to_owned(), input(&sales, Slice::Partitions([day(MON)].into())).await)]);
    sales.replace("later", &days(&[MON]), &[]).await;
    let params = BTreeMap::from([
        ("day".to_owned(), Value::Date(MON.parse().unwrap())),
        ("country".to_owned(), Value::from("it's; DROP")),
    ]);
    let sql = "SELECT day, :country AS country, sum(id) AS id, sum(amount) AS amount
               FROM sales WHERE day = :day GROUP BY day";
    assert_eq!(run(sql, inputs, params).await.unwrap(), ["2026-10-05/it's; DROP/3/30"]);
}

/// Rows without a partner, told by a column that both tables have: the condition must not reach the scan of the other.
#[tokio::test]
async fn rows_without_a_partner_are_found() {
    let left = Sales::with(&[(MON, Some("FR"), 1, 10), (MON, Some("FR"), 2, 20)]).await;
    let right = Sales::with(&[(MON, Some("FR"), 2, 99)]).await;
    let inputs = BTreeMap::from([
        ("l".to_owned(), input(&left, Slice::All).await),
        ("r".to_owned(), input(&right, Slice::All).await),
    ]);
    for sql in [
        "SELECT l.* FROM l LEFT JOIN r ON l.id = r.id WHERE r.id IS NULL",
        "SELECT l.* FROM r RIGHT JOIN l ON l.id = r.id WHERE r.id IS NULL",
        "SELECT l.* FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.id = l.id)",
        "SELECT l.* FROM l WHERE id NOT IN (SELECT id FROM r)",
    ] {
        assert_eq!(run(sql, inputs.clone(), BTreeMap::new()).await.unwrap(), ["2026-10-05/FR/1/10"], "{sql}");
    }
}

/// Another backend's table can be an input too, and a shadow is read in place of what it will replace.
#[tokio::test]
async fn inputs_of_other_backends_and_shadows_are_read() {
    let memory = MemoryTable::new(spec());
    memory.append_unmanaged(&batch(&[(TUE, None, 5, 50)])).unwrap();
    let version = memory.current().await.unwrap();
    let slice = Slice::All;
    let content = memory.slice_versions(&version, std::slice::from_ref(&slice)).await.unwrap().remove(0);
    let pin = reprocess_core::domain::slice::Pin { table: spec().id, version, slice, content };
    let other = PinnedInput { pin, reader: Arc::new(memory), staged: vec![], writer: None };

    let sales = Sales::with(&[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let shadow =
        stage(&sales.table, "s", &days(&[MON]), Intent::Replace, batch(&[(MON, Some("DE"), 3, 30)])).await;
    let mut ours = input(&sales, Slice::All).await;
    ours.staged = vec![shadow.unwrap()];
    ours.writer = Some(Arc::new(sales.again().await));
    let inputs = BTreeMap::from([("ours".to_owned(), ours), ("other".to_owned(), other)]);
    let sql = "SELECT * FROM ours UNION ALL SELECT * FROM other";
    let expected = texts(&[(MON, Some("DE"), 3, 30), (TUE, Some("FR"), 2, 20), (TUE, None, 5, 50)]);
    assert_eq!(run(sql, inputs, BTreeMap::new()).await.unwrap(), expected);
}

/// What is no query of the inputs is refused, with the reason.
#[tokio::test]
async fn what_is_no_query_is_refused() {
    let sales = Sales::with(&[(MON, Some("FR"), 1, 10)]).await;
    let inputs = BTreeMap::from([("sales".to_owned(), input(&sales, Slice::All).await)]);
    for (sql, word) in [
        ("SELECT * FROM nowhere", "nowhere"),
        ("SELECT nothing FROM sales", "nothing"),
        ("DROP TABLE sales", "DDL"),
        ("INSERT INTO sales SELECT * FROM sales", "DML"),
        ("SELECT * FROM sales WHERE id = :missing", "missing"),
        ("SELECT day FROM sales", "`amount` is missing"),
        ("SELEC", "SELEC"),
    ] {
        let error = run(sql, inputs.clone(), BTreeMap::new()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{sql}: {error}");
        assert!(error.to_string().contains(word), "{sql}: {error}");
    }
}
