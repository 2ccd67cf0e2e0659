//! Queries over pinned inputs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use reprocess_core::ErrorKind;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Slice;
use reprocess_core::domain::value::Value;
use reprocess_core::ports::reader::{PinnedInput, SnapshotReader};
use reprocess_core::ports::writer::{Intent, PartitionWriter, Query, Rows};

use super::support::*;

async fn input(reader: impl SnapshotReader + Clone, slice: Slice) -> PinnedInput {
    let pin = pin(&reader, slice).await.unwrap();
    PinnedInput { pin, reader: Arc::new(reader), staged: vec![], writer: None }
}

fn query(sql: &str, params: &[(&str, Value)], inputs: Vec<(&str, PinnedInput)>) -> Rows {
    Rows::Query(Query {
        sql: sql.to_owned(),
        params: params
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect::<BTreeMap<_, _>>(),
        inputs: inputs.into_iter().map(|(name, input)| (name.to_owned(), input)).collect(),
    })
}

async fn filled() -> Fixture {
    let f = fixture().await;
    f.replace(
        "r1",
        &days(&["2026-10-01", "2026-10-02"]),
        &[("2026-10-01", "FR", 1, 1, 0), ("2026-10-01", "DE", 2, 2, 0), ("2026-10-02", "FR", 3, 3, 0)],
    )
    .await;
    f
}

#[tokio::test]
async fn a_query_sees_the_pinned_slices_under_their_names() {
    let f = filled().await;
    f.sql("CREATE TABLE rates (country TEXT, rate INTEGER); INSERT INTO rates VALUES ('FR', 10), ('DE', 20)")
        .await;
    let one = Slice::Partitions(BTreeSet::from([day("2026-10-01")]));
    let rates = table_of(&f.db, "rates", Default::default()).await;
    rates.adopt().await.unwrap();
    let target = days(&["2026-10-05"]);
    let sql = "SELECT s.rev, :day AS day, s.country, s.id, s.amount * r.rate AS amount -- ; :nothing
               FROM \"my sales\" AS s JOIN rates AS r USING (country) WHERE s.id > :least; -- the end";
    let inputs =
        vec![("my sales", input(f.table.clone(), one).await), ("rates", input(rates, Slice::All).await)];
    let params = [("day", Value::Date(date("2026-10-05"))), ("least", Value::Integer(0))];
    let staged =
        f.table.stage(&request("q", &target, Intent::Replace), query(sql, &params, inputs)).await.unwrap();
    let base = f.table.head(&target).await.unwrap();
    committed(commit(&f.table, &[apply(&staged)], &base, false).await.unwrap());
    let rows = f.rows().await;
    assert_eq!(rows.len(), 5);
    assert!(
        rows.contains(&"2026-10-05/DE/2/40/0".to_owned())
            && rows.contains(&"2026-10-05/FR/1/10/0".to_owned())
    );
}

#[tokio::test]
async fn a_query_over_a_pin_that_broke_is_refused() {
    let f = filled().await;
    let inputs = vec![("s", input(f.table.clone(), Slice::All).await)];
    f.sql("UPDATE sales SET amount = 0").await;
    let rows = query("SELECT * FROM s", &[], inputs);
    let staged = f.table.stage(&request("q", &Scope::whole_table(), Intent::Replace), rows).await;
    assert_eq!(refused(staged, &["changed", "input s"]).kind(), ErrorKind::PinBroken);
}

#[tokio::test]
async fn staged_sets_of_an_input_are_seen_in_place_of_production() {
    let f = filled().await;
    let one = days(&["2026-10-01"]);
    let staged = f.stage("up", &one, Intent::Replace, &[("2026-10-01", "FR", 1, 100, 0)]).await.unwrap();
    let mut input = input(f.table.clone(), Slice::All).await;
    input.staged = vec![staged];
    input.writer = Some(Arc::new(f.table.clone()));
    let down = table_of(&f.db, "down", Default::default()).await;
    let all = Scope::whole_table();
    let sql = "SELECT day, sum(amount)::bigint AS total, avg(amount)::float8 AS mean, max(country) AS most FROM s GROUP BY day";
    let rows = query(sql, &[], vec![("s", input)]);
    let staged = down.stage(&request("q", &all, Intent::Replace), rows).await.unwrap();
    // The table does not exist: the query decides the types.
    let types: Vec<_> = staged.schema.fields().iter().map(|f| f.data_type().to_string()).collect();
    assert_eq!(types, ["Date32", "Int64", "Float64", "Utf8"]);
    let base = down.head(&all).await.unwrap();
    committed(commit(&down, &[apply(&staged)], &base, false).await.unwrap());
    assert_eq!(self::rows(&down).await, ["2026-10-01/100/100.0/FR", "2026-10-02/3/3.0/FR"]);
}

#[tokio::test]
async fn mistakes_in_a_query_are_for_its_author() {
    let f = filled().await;
    let all = Scope::whole_table();
    let check = async |sql: &str, words: &[&str]| {
        let inputs = vec![("s", input(f.table.clone(), Slice::All).await)];
        let staged = f.table.stage(&request("q", &all, Intent::Replace), query(sql, &[], inputs)).await;
        assert_eq!(refused(staged, words).kind(), ErrorKind::Invalid, "{sql}");
    };
    check("SELEC 1", &["refuses the query", "syntax error"]).await;
    check("SELECT * FROM nowhere", &["refuses the query", "nowhere"]).await;
    check("SELECT :day", &[":day", "no value"]).await;
    check("SELECT day, country, id, 'many' AS amount, rev FROM s", &["amount", "text", "bigint"]).await;
    check("SELECT day FROM s", &["lack", "country"]).await;
    check("SELECT s.*, amount / 3.0 AS share FROM s", &["share", "precision"]).await;
    for sql in ["SELECT 1) ; DELETE FROM sales; SELECT (1", "SELECT 1) AS q; COMMIT; DELETE FROM sales; --"] {
        check(sql, &[]).await;
    }
    check("DELETE FROM sales RETURNING *", &[]).await;
    check("WITH gone AS (DELETE FROM sales RETURNING *) SELECT * FROM gone", &[]).await;
    assert_eq!(f.rows().await.len(), 3);
    // An input that lives elsewhere cannot be joined.
    let other = crate::server::TestDatabase::fresh().await;
    let elsewhere = table_of(&other.connect().await, "sales", by_day_and_country()).await;
    elsewhere.create(&columns()).await.unwrap();
    let rows = query("SELECT * FROM s", &[], vec![("s", input(elsewhere, Slice::All).await)]);
    let staged = f.table.stage(&request("q", &all, Intent::Replace), rows).await;
    assert_eq!(refused(staged, &["own database"]).kind(), ErrorKind::Unsupported);
}
