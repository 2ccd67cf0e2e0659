//! A table that is partitioned can be rebuilt as a whole, by its own name only.

use reprocess::arrow::schema::DataType;
use reprocess::domain::job::{JobSpec, Window};
use reprocess::domain::request::{Request, SchemaPolicy, Selection};
use reprocess::engine::{Job, RunOutcome};
use reprocess::ports::ledger::BackfillState;

use super::support::{World, daily, execute, publish, scheduled, scheduled_days};

const VISITS: &str = "
    CREATE TABLE visits (id INTEGER PRIMARY KEY, day DATE, visits INTEGER);
    INSERT INTO visits (day, visits) VALUES ('2026-10-01', 1), ('2026-10-02', 2), ('2026-10-02', 3);";
const V1: &str = "SELECT day, sum(visits) AS visits FROM visits GROUP BY day";
const V2: &str = "SELECT day, sum(visits) AS visits, count(*) AS sources FROM visits GROUP BY day";

#[tokio::test]
async fn a_rebuild_with_another_column_replaces_every_day_and_the_schedule_goes_on_after_it() {
    let mut world = World::with(VISITS).await;
    world.log("visits");
    world.output("daily", daily(), &[("day", DataType::Date32), ("visits", DataType::Int64)]).await;
    let job = JobSpec::new("daily", "ops", "daily").with_input("visits", "visits", Window::Same);
    world.host.add_job(Job::new(job).transform_sql("v1", V1).transform_sql("v2", V2)).unwrap();
    let engine = world.engine().await;
    scheduled_days(&engine, "daily", (1, 2), "v1").await;
    assert_eq!(world.rows("SELECT day || ' ' || visits FROM daily").await, ["2026-10-01 1", "2026-10-02 5"]);

    let request =
        Request::new("sources", Selection::WholeTable, "the number of sources is wanted", "analyst")
            .with_job("daily", "v2")
            .with_schema(SchemaPolicy::Rebuild);
    assert_eq!(execute(&engine, &request).await.state, BackfillState::AwaitingReview);
    publish(&engine, "sources").await;
    let table = "SELECT day || ' ' || visits || ' ' || sources FROM daily ORDER BY day";
    assert_eq!(world.rows(table).await, ["2026-10-01 1 1", "2026-10-02 5 2"]);
    assert_eq!(engine.plan(&request).await.unwrap().skipped.len(), 1);

    world.sql("INSERT INTO visits (day, visits) VALUES ('2026-10-03', 4)").await;
    assert_eq!(scheduled(&engine, "next", "daily", 3, "v2").await, RunOutcome::Committed);
    assert_eq!(world.rows(table).await.last().unwrap(), "2026-10-03 4 1");
}
