//! An old run is replayed with exactly the inputs that it recorded, or deliberately with those of today.

use reprocess::arrow::schema::DataType;
use reprocess::domain::ids::RunId;
use reprocess::domain::job::{JobSpec, Window};
use reprocess::domain::profile::Digest;
use reprocess::domain::request::{Inputs, Mode};
use reprocess::engine::{Engine, Job, RunOutcome};
use reprocess::ports::ledger::BackfillState;

use super::support::{World, daily, day, execute, request, scheduled};

const VISITS: &str = "
    CREATE TABLE visits (id INTEGER PRIMARY KEY, day DATE, visits INTEGER);
    INSERT INTO visits (day, visits) VALUES ('2026-10-01', 1), ('2026-10-01', 2);";
const V1: &str = "SELECT :date AS day, sum(visits) AS visits FROM visits";
const TABLE: &str = "SELECT day || ' ' || visits FROM total";

async fn digest(engine: &Engine, run: &str) -> (Digest, Option<RunId>) {
    let rows = engine.ledger().run(&RunId::from(run)).await.unwrap();
    assert_eq!(rows.len(), 1);
    let record = &rows[0].record;
    (record.after.clone().unwrap().content, record.replays.clone())
}

#[tokio::test]
async fn a_replayed_run_gives_its_recorded_digest_though_rows_arrived_since() {
    let mut world = World::with(VISITS).await;
    world.log("visits");
    world.output("total", daily(), &[("day", DataType::Date32), ("visits", DataType::Int64)]).await;
    let job = JobSpec::new("total", "ops", "total").with_input("visits", "visits", Window::Same);
    world.host.add_job(Job::new(job).transform_sql("v1", V1)).unwrap();
    let engine = world.engine().await;
    assert_eq!(scheduled(&engine, "old", "total", 1, "v1").await, RunOutcome::Committed);
    assert_eq!(world.rows(TABLE).await, ["2026-10-01 3"]);

    world.sql("INSERT INTO visits (day, visits) VALUES ('2026-10-01', 4)").await;
    assert_eq!(scheduled(&engine, "new", "total", 1, "v1").await, RunOutcome::Committed);
    assert_eq!(world.rows(TABLE).await, ["2026-10-01 7"]);

    let replay = request("replay", (1, 1))
        .with_job("total", "v1")
        .with_mode(Mode::Direct)
        .with_inputs(Inputs::Recorded { by: "old".into() });
    assert_eq!(execute(&engine, &replay).await.state, BackfillState::Published);
    assert_eq!(world.rows(TABLE).await, ["2026-10-01 3"]);
    let ((old, _), (new, _)) = (digest(&engine, "old").await, digest(&engine, "new").await);
    assert_ne!(old, new);
    assert_eq!(digest(&engine, "replay.1").await, (old, Some("old".into())));

    let today = request("today", (1, 1)).with_job("total", "v1").with_mode(Mode::Direct);
    assert_eq!(execute(&engine, &today).await.state, BackfillState::Published);
    assert_eq!(world.rows(TABLE).await, ["2026-10-01 7"]);
    assert_eq!(digest(&engine, "today.1").await, (new, None));
    let explained = engine.explain(&"total".into(), &day(1)).await.unwrap();
    assert_eq!(explained.history.len(), 4);
    assert_eq!(explained.as_left, Some(true));
}
