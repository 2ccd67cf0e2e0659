//! A day covers its countries, so one that the new logic no longer produces disappears.

use reprocess::arrow::schema::DataType;
use reprocess::domain::job::{JobSpec, Window};
use reprocess::domain::request::Mode;
use reprocess::domain::value::ValueKind;
use reprocess::engine::Job;
use reprocess::ports::ledger::BackfillState;

use super::support::{World, daily, execute, publish, request, scheduled_days};

const VISITS: &str = "
    CREATE TABLE visits (id INTEGER PRIMARY KEY, day DATE, country TEXT, visits INTEGER);
    INSERT INTO visits (day, country, visits) VALUES
        ('2026-10-01', 'FR', 1), ('2026-10-01', 'DE', 2), ('2026-10-02', 'FR', 3), ('2026-10-02', 'DE', 4),
        ('2026-10-03', 'FR', 5), ('2026-10-03', 'DE', 6);";
const V1: &str = "SELECT :date AS day, country, sum(visits) AS visits FROM visits GROUP BY country";
const V2: &str = "
    SELECT :date AS day, country, sum(visits) AS visits FROM visits WHERE country <> 'FR' GROUP BY country";
const TABLE: &str = "SELECT day || ' ' || country || ' ' || visits FROM per_country ORDER BY day, country";
const CORRECTED: [&str; 4] = ["2026-10-01 DE 2", "2026-10-02 DE 4", "2026-10-03 DE 6", "2026-10-03 FR 5"];

async fn world() -> (World, reprocess::engine::Engine) {
    let mut world = World::with(VISITS).await;
    world.log("visits");
    let columns = [("day", DataType::Date32), ("country", DataType::Utf8), ("visits", DataType::Int64)];
    world.output("per_country", daily().with_key("country", ValueKind::Text), &columns).await;
    let job = JobSpec::new("per_country", "ops", "per_country").with_input("visits", "visits", Window::Same);
    world.host.add_job(Job::new(job).transform_sql("v1", V1).transform_sql("v2", V2)).unwrap();
    let engine = world.engine().await;
    scheduled_days(&engine, "per_country", (1, 3), "v1").await;
    assert_eq!(world.rows(TABLE).await.len(), 6);
    (world, engine)
}

#[tokio::test]
async fn a_country_that_vanishes_is_gone_for_the_replaced_days_and_stays_for_the_others() {
    let (world, engine) = world().await;
    let request = request("no-france", (1, 2)).with_job("per_country", "v2").with_mode(Mode::Direct);
    assert_eq!(execute(&engine, &request).await.state, BackfillState::Published);
    assert_eq!(world.rows(TABLE).await, CORRECTED);
}

#[tokio::test]
async fn so_it_is_when_a_shadow_is_published_and_a_rollback_brings_the_country_back() {
    let (world, engine) = world().await;
    let before = world.rows(TABLE).await;
    let request = request("no-france", (1, 2)).with_job("per_country", "v2");
    assert_eq!(execute(&engine, &request).await.state, BackfillState::AwaitingReview);
    assert_eq!(world.rows(TABLE).await, before, "a shadow is not production");
    publish(&engine, "no-france").await;
    assert_eq!(world.rows(TABLE).await, CORRECTED);

    let undo = reprocess::domain::plan::RollbackRequest {
        id: "france-again".into(),
        of: "no-france".into(),
        partitions: None,
        reason: "it was right before".to_owned(),
        requester: "analyst".into(),
    };
    let plan = engine.plan_rollback(&undo).await.unwrap();
    let _ = engine.submit(&plan, &undo.requester).await.unwrap();
    engine.approve(&undo.id, &plan.digest(), &undo.requester, "").await.unwrap();
    let undone = engine.execute(&undo.id, &super::support::worker(), |_| {}).await.unwrap();
    assert_eq!(undone.state, BackfillState::Published);
    assert_eq!(world.rows(TABLE).await, before);
    assert_eq!(engine.backfill(&undo.of).await.unwrap().state, BackfillState::RolledBack);
}
