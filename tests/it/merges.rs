//! A merge job with a declared order of rows: re-runs in any order give the same table.

use reprocess::arrow::schema::DataType;
use reprocess::domain::job::{JobSpec, MergeSpec, Window, WriteMode};
use reprocess::domain::partition::Partitioning;
use reprocess::domain::request::Mode;
use reprocess::engine::{Engine, Job, RunOutcome, RunRequest};
use reprocess::ports::ledger::BackfillState;

use super::support::{World, daily, day, execute, request, scheduled_days, worker};

/// Customer 1 changes on days 1, 3 and 5, customer 2 on days 2, 3 and 4, customer 3 on day 3 alone.
const CHANGES: &str = "
    CREATE TABLE changes (id INTEGER PRIMARY KEY, day DATE, customer INTEGER, name TEXT, version INTEGER);
    INSERT INTO changes (day, customer, name, version) VALUES
        ('2026-10-01', 1, 'Ann', 1), ('2026-10-02', 2, 'Bob', 2), ('2026-10-03', 1, 'Anne', 3),
        ('2026-10-03', 2, 'Rob', 4), ('2026-10-03', 3, 'Cy', 5), ('2026-10-04', 2, 'Robert', 6),
        ('2026-10-05', 1, 'Annette', 7);";
const V1: &str = "SELECT customer, name, version FROM changes";
const TABLE: &str = "SELECT customer || ' ' || name || ' ' || version FROM customers ORDER BY customer";
const LATEST: [&str; 3] = ["1 Annette 7", "2 Robert 6", "3 Cy 5"];

async fn world() -> (World, Engine) {
    let mut world = World::with(CHANGES).await;
    world.log("changes");
    let columns = [("customer", DataType::Int64), ("name", DataType::Utf8), ("version", DataType::Int64)];
    world.output("customers", Partitioning::unpartitioned(), &columns).await;
    let job = JobSpec::new("customers", "crm", "customers")
        .with_input("changes", "changes", Window::Same)
        .with_unit(daily())
        .with_write(WriteMode::Merge(MergeSpec::by(["customer"]).newer("version")));
    world.host.add_job(Job::new(job).transform_sql("v1", V1)).unwrap();
    let engine = world.engine().await;
    (world, engine)
}

#[tokio::test]
async fn day_3_run_again_after_day_5_leaves_newer_values() {
    let (world, engine) = world().await;
    scheduled_days(&engine, "customers", (1, 5), "v1").await;
    assert_eq!(world.rows(TABLE).await, LATEST);
    let again = request("again", (3, 3)).with_job("customers", "v1").with_mode(Mode::Direct).with_force();
    assert_eq!(execute(&engine, &again).await.state, BackfillState::Published);
    assert_eq!(world.rows(TABLE).await, LATEST);
    let row = engine.ledger().current(&"customers".into(), &[day(3)]).await.unwrap();
    assert_eq!(row[0].as_ref().unwrap().record.run.as_str(), "again.1");
}

#[tokio::test]
async fn any_order_of_five_runs_and_of_five_runs_again_gives_the_same_table() {
    let (world, engine) = world().await;
    for (number, order) in orders(&[1, 2, 3, 4, 5]).into_iter().enumerate() {
        // Every second order starts from nothing, the others run again over what is there.
        if number % 2 == 0 {
            world.sql("DELETE FROM customers").await;
        }
        for d in &order {
            let run = RunRequest::scheduled(format!("order-{number}-{d}"), "customers", day(*d)).with_force();
            assert_eq!(engine.run(&run, &worker()).await.unwrap(), RunOutcome::Committed);
        }
        assert_eq!(world.rows(TABLE).await, LATEST, "order {order:?}");
    }
}

/// Every order of the days.
fn orders(days: &[u32]) -> Vec<Vec<u32>> {
    if days.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (place, first) in days.iter().enumerate() {
        let others: Vec<_> = days.iter().enumerate().filter(|(i, _)| *i != place).map(|(_, d)| *d).collect();
        all.extend(orders(&others).into_iter().map(|rest| [vec![*first], rest].concat()));
    }
    all
}
