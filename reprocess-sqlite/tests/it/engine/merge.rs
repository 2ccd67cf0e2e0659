//! Merges of several days into one table without partitions.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Int64Type};
use arrow_array::{ArrayRef, Date32Array, Int64Array, RecordBatch, StringArray};
use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::job::{JobSpec, MergeSpec, TableSpec, Window, WriteMode};
use reprocess_core::domain::partition::Partitioning;
use reprocess_core::domain::plan::RollbackRequest;
use reprocess_core::domain::request::{Mode, Request, Selection};
use reprocess_core::domain::value::Value;
use reprocess_core::engine::{Engine, Host, Job, RunRequest};
use reprocess_core::ports::ledger::{BackfillState, RunLedger};
use reprocess_core::ports::transform::{HostError, TaskContext};
use reprocess_core::ports::writer::Rows;
use reprocess_sqlite::{SqliteConfig, SqliteLedger, SqliteSource, SqliteTable};

use super::shop::{create, date, day};

async fn engine(path: &Path, merge: MergeSpec) -> Engine {
    let database = SqliteConfig::new().open(path).await.unwrap();
    let ledger = Arc::new(SqliteLedger::open(database.clone()).await.unwrap());
    let by_day = || Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
    let orders = TableSpec::new("orders", by_day());
    let latest = TableSpec::new("latest", Partitioning::unpartitioned());
    let mut host = Host::new("test");
    let source = SqliteSource::append_only(database.clone(), orders.clone(), "no");
    host.add_source(orders, Arc::new(source)).unwrap();
    host.add_table(latest.clone(), Arc::new(SqliteTable::new(database, latest))).unwrap();
    let job = JobSpec::new("latest", "ops", "latest")
        .with_input("orders", "orders", Window::Same)
        .with_unit(by_day())
        .with_write(WriteMode::Merge(merge));
    host.add_job(Job::new(job).transform_with("v1", (), |_: (), task| latest_of(task))).unwrap();
    Engine::new(host, ledger as Arc<dyn RunLedger>)
}

/// The greatest order of each country.
async fn latest_of(task: TaskContext) -> Result<Rows, HostError> {
    let batch = task.collect("orders").await?;
    let mut found = BTreeMap::<String, (i32, i64)>::new();
    for row in 0..batch.num_rows() {
        let date = batch.column_by_name("day").ok_or("day")?.as_primitive::<Date32Type>().value(row);
        let country = batch.column_by_name("country").ok_or("country")?.as_string::<i32>().value(row);
        let cents = batch.column_by_name("cents").ok_or("cents")?.as_primitive::<Int64Type>().value(row);
        let entry = found.entry(country.to_owned()).or_default();
        *entry = (*entry).max((date, cents));
    }
    let columns: [(&str, ArrayRef); 3] = [
        ("country", Arc::new(found.keys().map(Some).collect::<StringArray>())),
        ("day", Arc::new(found.values().map(|v| Some(v.0)).collect::<Date32Array>())),
        ("cents", Arc::new(found.values().map(|v| Some(v.1)).collect::<Int64Array>())),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)))?;
    Ok(batch.into())
}

async fn sql(path: &Path, text: &'static str) -> Vec<(String, String, i64)> {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
    let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
    let rows = sqlx::query_as(text).fetch_all(&pool).await.unwrap();
    pool.close().await;
    rows
}

async fn contents(path: &Path) -> Vec<String> {
    let rows = sql(path, "SELECT country, day, cents FROM latest ORDER BY country").await;
    rows.into_iter().map(|(country, day, cents)| format!("{country} {day} {cents}")).collect()
}

async fn work(engine: &Engine, plan: &reprocess_core::domain::plan::Plan) -> BackfillState {
    let id = &plan.request.id;
    let _ = engine.submit(plan, &"ann".into()).await.unwrap();
    engine.approve(id, &plan.digest(), &"bob".into(), "").await.unwrap();
    engine.execute(id, &"w1".into(), |_| {}).await.unwrap().state
}

#[tokio::test]
async fn merges_of_several_days_are_taken_back_one_after_the_other() {
    for merge in [MergeSpec::by(["country"]).newer("day"), MergeSpec::by(["country"])] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shop.db");
        create(&path).await;
        let engine = engine(&path, merge).await;
        let first = RunRequest::scheduled("first", "latest", day(0));
        let _ = engine.run(&first, &"w1".into()).await.unwrap();
        let before = contents(&path).await;
        let range = Selection::Range { first: Value::Date(date(0)), last: Value::Date(date(4)) };
        let request = Request::new("fix", range, "late rows", "ann").with_job("latest", "v1");
        let plan = engine.plan(&request.clone().with_mode(Mode::Direct)).await.unwrap();
        assert_eq!(work(&engine, &plan).await, BackfillState::Published);
        let after = contents(&path).await;
        assert_ne!(after, before);
        let mut back = RollbackRequest {
            id: "back".into(),
            of: "fix".into(),
            partitions: None,
            reason: "it was wrong".into(),
            requester: "ann".into(),
        };
        let plan = engine.plan_rollback(&back).await.unwrap();
        assert_eq!((plan.refused.as_slice(), plan.tasks.len()), ([].as_slice(), 4));
        assert_eq!(work(&engine, &plan).await, BackfillState::Published);
        assert_eq!(contents(&path).await, before);
        // What somebody else took away comes back, and what came after it is not taken back any more.
        let mut request = request.with_mode(Mode::Direct).with_force();
        request.id = "again".into();
        let plan = engine.plan(&request).await.unwrap();
        assert_eq!(work(&engine, &plan).await, BackfillState::Published);
        assert_eq!(contents(&path).await, after);
        sql(&path, "DELETE FROM latest WHERE country = 'FR' RETURNING country, day, cents").await;
        (back.id, back.of) = ("back2".into(), "again".into());
        let plan = engine.plan_rollback(&back).await.unwrap();
        assert_eq!(plan.refused.len(), 5);
        (request.id, request.force) = ("lost".into(), false);
        let plan = engine.plan(&request).await.unwrap();
        assert_eq!(plan.tasks.len(), 5);
        assert_eq!(work(&engine, &plan).await, BackfillState::Published);
        assert_eq!(contents(&path).await, after);
    }
}
