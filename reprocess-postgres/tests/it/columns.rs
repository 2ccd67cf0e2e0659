//! A column that comes in the middle of a range of days: refused, added over the whole range, or the table rebuilt with
//! it, as the request says.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use chrono::NaiveDate;
use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::job::{JobSpec, TableSpec, Window};
use reprocess_core::domain::partition::Partitioning;
use reprocess_core::domain::request::{Mode, Request, SchemaPolicy, Selection};
use reprocess_core::domain::value::Value;
use reprocess_core::engine::{Engine, Execution, Host, Job};
use reprocess_core::ports::ledger::{BackfillState, RunLedger};
use reprocess_core::ports::transform::{HostError, TaskContext};
use reprocess_core::ports::writer::Rows;
use reprocess_postgres::{PostgresLedger, PostgresTable};

use crate::server::TestDatabase;

struct Shop {
    database: TestDatabase,
    engine: Engine,
}

/// Orders of 100 on the first of October, 200 on the second, and so on for four days; all of them summed up by `v1`.
async fn shop() -> Shop {
    let database = TestDatabase::fresh().await;
    database
        .execute("CREATE TABLE orders (day date, cents bigint); INSERT INTO orders SELECT '2026-09-30'::date + n, 100 * n FROM generate_series(1, 4) AS n")
        .await;
    let db = database.connect().await;
    let by_day = || Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
    let (orders, revenue) = (TableSpec::new("orders", by_day()), TableSpec::new("revenue", by_day()));
    let source = PostgresTable::open(db.clone(), orders.clone()).await.unwrap();
    source.adopt().await.unwrap();
    let table = PostgresTable::open(db.clone(), revenue.clone()).await.unwrap();
    let mut host = Host::new("test");
    host.add_source(orders, Arc::new(source)).unwrap();
    host.add_table(revenue, Arc::new(table)).unwrap();
    let job = JobSpec::new("revenue", "ops", "revenue").with_input("orders", "orders", Window::Same);
    let job = Job::new(job).transform_with("v1", false, revenue_of).transform_with("v2", true, revenue_of);
    host.add_job(job).unwrap();
    let ledger = Arc::new(PostgresLedger::open(db).await.unwrap());
    let shop = Shop { database, engine: Engine::new(host, ledger as Arc<dyn RunLedger>) };
    let done = shop.run("first", "v1", days(1, 4), SchemaPolicy::Refuse).await;
    assert_eq!(done.state, BackfillState::Published);
    shop
}

/// The orders as they are; in the second version with a tenth as tax.
async fn revenue_of(taxed: bool, task: TaskContext) -> Result<Rows, HostError> {
    let orders = task.collect("orders").await?;
    let cents = orders.column_by_name("cents").ok_or("cents")?.as_primitive::<Int64Type>();
    let tax: ArrayRef = Arc::new(cents.iter().map(|c| c.map(|c| c / 10)).collect::<Int64Array>());
    let mut columns =
        vec![("day", orders.column(0).clone(), true), ("cents", orders.column(1).clone(), true)];
    if taxed {
        columns.push(("tax", tax, true));
    }
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?.into())
}

fn days(first: u32, last: u32) -> Selection {
    let day = |day| Value::Date(NaiveDate::from_ymd_opt(2026, 10, day).unwrap());
    Selection::Range { first: day(first), last: day(last) }
}

impl Shop {
    async fn run(&self, id: &str, logic: &str, selection: Selection, policy: SchemaPolicy) -> Execution {
        let request = Request::new(id, selection, "tax", "ann").with_job("revenue", logic);
        let request = request.with_mode(Mode::Direct).with_schema(policy);
        let plan = self.engine.plan(&request).await.unwrap();
        let _ = self.engine.submit(&plan, &"ann".into()).await.unwrap();
        self.engine.approve(&plan.request.id, &plan.digest(), &"bob".into(), "").await.unwrap();
        self.engine.execute(&plan.request.id, &"w1".into(), |_| {}).await.unwrap()
    }

    /// Rows as JSON without the day, in its order: so that they say their columns.
    async fn rows(&self) -> Vec<String> {
        let sql = "SELECT (to_jsonb(r) - 'day')::text FROM revenue AS r ORDER BY day";
        sqlx::query_scalar(sql).fetch_all(&mut self.database.raw().await).await.unwrap()
    }
}

const BEFORE: [&str; 4] =
    [r#"{"cents": 100}"#, r#"{"cents": 200}"#, r#"{"cents": 300}"#, r#"{"cents": 400}"#];

#[tokio::test]
async fn is_refused_and_every_day_stays() {
    let shop = shop().await;
    let done = shop.run("fix", "v2", days(2, 3), SchemaPolicy::Refuse).await;
    assert_eq!((done.state, done.tasks.len()), (BackfillState::Failed, 2));
    for task in &done.tasks {
        let note = task.note.as_deref().unwrap();
        assert!(note.contains("tax"), "{note}");
    }
    assert_eq!(shop.rows().await, BEFORE);
}

#[tokio::test]
async fn is_added_and_null_outside_of_the_range() {
    let shop = shop().await;
    let done = shop.run("fix", "v2", days(2, 3), SchemaPolicy::AddNullable).await;
    assert_eq!(done.state, BackfillState::Published);
    let rows = [
        r#"{"tax": null, "cents": 100}"#,
        r#"{"tax": 20, "cents": 200}"#,
        r#"{"tax": 30, "cents": 300}"#,
        r#"{"tax": null, "cents": 400}"#,
    ];
    assert_eq!(shop.rows().await, rows);
    // Over the whole range only the days without it are left to do.
    let done = shop.run("rest", "v2", days(1, 4), SchemaPolicy::AddNullable).await;
    assert_eq!((done.state, done.tasks.len()), (BackfillState::Published, 2));
    let all = shop.rows().await;
    assert_eq!(all[0], r#"{"tax": 10, "cents": 100}"#);
    assert_eq!(
        (&all[1..3], all[3].as_str()),
        (&rows.map(str::to_owned)[1..3], r#"{"tax": 40, "cents": 400}"#)
    );
}

#[tokio::test]
async fn comes_with_a_rebuild_of_the_whole_table() {
    let shop = shop().await;
    let part = Request::new("part", days(2, 3), "tax", "ann").with_job("revenue", "v2");
    let plan = shop.engine.plan(&part.with_schema(SchemaPolicy::Rebuild)).await;
    let refused = format!("{:?}", plan.map(|plan| plan.refused));
    assert!(refused.contains("needs the whole table"), "{refused}");
    let done = shop.run("fix", "v2", Selection::WholeTable, SchemaPolicy::Rebuild).await;
    assert_eq!((done.state, done.tasks.len()), (BackfillState::Published, 1));
    let rows = [
        r#"{"tax": 10, "cents": 100}"#,
        r#"{"tax": 20, "cents": 200}"#,
        r#"{"tax": 30, "cents": 300}"#,
        r#"{"tax": 40, "cents": 400}"#,
    ];
    assert_eq!(shop.rows().await, rows);
}
