//! Jobs that could not be run again safely are refused, with the reason.

use reprocess::arrow::schema::DataType;
use reprocess::domain::job::{JobSpec, Window, WriteMode};
use reprocess::engine::{Job, RunRequest};
use reprocess::{Error, ErrorKind};

use super::support::{World, daily, day, request, worker};

const VISITS: &str = "
    CREATE TABLE visits (id INTEGER PRIMARY KEY, day DATE, visits INTEGER);
    INSERT INTO visits (day, visits) VALUES ('2026-10-01', 1);";
const V1: &str = "SELECT day, visits FROM visits";

async fn world() -> World {
    let mut world = World::with(VISITS).await;
    world.log("visits");
    world.output("copy", daily(), &[("day", DataType::Date32), ("visits", DataType::Int64)]).await;
    world
}

fn says(error: &Error, text: &str) {
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains(text), "{error}");
}

#[tokio::test]
async fn a_job_that_appends_is_refused_since_running_it_again_would_double_its_rows() {
    let mut world = world().await;
    let job = JobSpec::new("copy", "ops", "copy")
        .with_input("visits", "visits", Window::Same)
        .with_write(WriteMode::Append);
    world.host.add_job(Job::new(job).transform_sql("v1", V1)).unwrap();
    let engine = world.engine().await;

    let plan = engine.plan(&request("again", (1, 1)).with_job("copy", "v1")).await.unwrap();
    assert!(plan.tasks.is_empty());
    assert!(plan.refused[0].reason.contains("would double its rows"), "{}", plan.refused[0].reason);
    says(&engine.submit(&plan, &"analyst".into()).await.unwrap_err(), "would double its rows");
    let run = RunRequest::scheduled("copy-1", "copy", day(1));
    says(&engine.run(&run, &worker()).await.unwrap_err(), "would double its rows");
    assert_eq!(engine.ledger().position().await.unwrap(), 0);
    assert!(world.rows("SELECT day FROM copy").await.is_empty());
}

#[tokio::test]
async fn a_job_that_reads_the_partition_it_writes_is_refused_since_it_would_read_its_own_result() {
    for window in [Window::Same, Window::Trailing(7), Window::Between { before: 1, after: 1 }, Window::All] {
        let mut world = world().await;
        let job = JobSpec::new("copy", "ops", "copy").with_input("own", "copy", window.clone());
        let error = world.host.add_job(Job::new(job).transform_sql("v1", V1)).unwrap_err();
        says(&error, "a job must not read the partition that it writes");
        says(&error, "a re-run would read its own result");
    }
}

#[tokio::test]
async fn a_parameter_named_like_a_value_of_the_task_is_refused_since_one_of_them_would_be_lost() {
    for name in ["run", "logic", "date", "interval_start", "interval_end"] {
        let mut world = world().await;
        let job = JobSpec::new("copy", "ops", "copy")
            .with_input("visits", "visits", Window::Same)
            .with_parameter(name, "x");
        world.host.add_job(Job::new(job).transform_sql("v1", V1)).unwrap();
        let engine = world.engine().await;
        let error =
            engine.run(&RunRequest::scheduled("copy-1", "copy", day(1)), &worker()).await.unwrap_err();
        says(&error, &format!("the job has a parameter `{name}`"));
        assert!(world.rows("SELECT day FROM copy").await.is_empty());
    }
}
