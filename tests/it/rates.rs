//! A joined rate is the one effective on the partition's date, not the latest.

use reprocess::arrow::schema::DataType;
use reprocess::domain::job::{JobSpec, Window};
use reprocess::domain::request::Mode;
use reprocess::engine::Job;
use reprocess::ports::ledger::BackfillState;

use super::support::{World, daily, execute, request, scheduled_days};

/// Two euros a piece until 2 October, three from 3 October on.
const SALES: &str = "
    CREATE TABLE sales (id INTEGER PRIMARY KEY, day DATE, pieces INTEGER);
    INSERT INTO sales (day, pieces) VALUES ('2026-10-01', 10), ('2026-10-02', 20), ('2026-10-03', 30);
    CREATE TABLE prices (price INTEGER, valid_from DATE, valid_to DATE);
    INSERT INTO prices VALUES (2, '2026-09-01', '2026-10-03'), (3, '2026-10-03', NULL);";
const V1: &str = "SELECT :date AS day, sum(pieces * price) AS euros FROM sales, prices";
const TABLE: &str = "SELECT day || ' ' || euros FROM revenue ORDER BY day";

#[tokio::test]
async fn each_day_is_computed_with_the_rate_that_was_effective_then() {
    let mut world = World::with(SALES).await;
    world.log("sales");
    world.reference("prices");
    world.output("revenue", daily(), &[("day", DataType::Date32), ("euros", DataType::Int64)]).await;
    let effective =
        Window::AsOf { from: "valid_from".to_owned(), to: Some("valid_to".to_owned()), entity: Vec::new() };
    let job = JobSpec::new("revenue", "finance", "revenue")
        .with_input("sales", "sales", Window::Same)
        .with_input("prices", "prices", effective);
    world.host.add_job(Job::new(job).transform_sql("v1", V1)).unwrap();
    let engine = world.engine().await;
    scheduled_days(&engine, "revenue", (1, 3), "v1").await;
    let expected = ["2026-10-01 20", "2026-10-02 40", "2026-10-03 90"];
    assert_eq!(world.rows(TABLE).await, expected);

    // A price of the future changes no slice of the past, so nothing is to be done again.
    world.sql("INSERT INTO prices VALUES (7, '2026-11-01', NULL)").await;
    world.sql("UPDATE prices SET valid_to = '2026-11-01' WHERE price = 3").await;
    let request = request("again", (1, 2)).with_job("revenue", "v1").with_mode(Mode::Direct);
    assert_eq!(engine.plan(&request).await.unwrap().skipped.len(), 2);
    assert_eq!(execute(&engine, &request.with_force()).await.state, BackfillState::Published);
    assert_eq!(world.rows(TABLE).await, expected);
}
