//! Bad input at the front door: it is named, production stays as it was, and the same table works afterwards. What a
//! single part refuses is shown beside that part.

use std::sync::Arc;

use reprocess::arrow::array::types::Date32Type;
use reprocess::arrow::array::{ArrayRef, Date32Array, Int64Array, RecordBatch, StringArray};
use reprocess::arrow::schema::DataType;
use reprocess::domain::job::{JobSpec, MergeSpec, Window, WriteMode};
use reprocess::domain::partition::Partitioning;
use reprocess::domain::plan::{PLAN_FORMAT, Plan};
use reprocess::domain::request::{Mode, Selection};
use reprocess::engine::{Job, RunOutcome, RunRequest, Submission};
use reprocess::ports::ledger::BackfillState;

use super::support::{World, daily, date, day, execute, publish, request, scheduled, worker};

fn batch(days: &[u32], columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let days = days.iter().map(|d| Date32Type::from_naive_date(date(*d)));
    let day: ArrayRef = Arc::new(Date32Array::from_iter_values(days));
    let all = std::iter::once(("day", day)).chain(columns).map(|(name, array)| (name, array, true));
    RecordBatch::try_from_iter_with_nullable(all).unwrap()
}

fn integers(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn good() -> RecordBatch {
    batch(&[1], vec![("visits", integers(&[Some(7)]))])
}

/// Runs day 1 with good rows and again with bad ones.
async fn check(write: WriteMode, bad: fn() -> RecordBatch, message: &str) {
    let mut world = World::with("").await;
    world.output("visits", daily(), &[("day", DataType::Date32), ("visits", DataType::Int64)]).await;
    let job = JobSpec::new("visits", "ops", "visits").with_write(write);
    let job = Job::new(job)
        .transform_blocking("bad", move |_, _| Ok(bad().into()))
        .transform_blocking("good", |_, _| Ok(good().into()));
    world.host.add_job(job).unwrap();
    let engine = world.engine().await;
    assert_eq!(scheduled(&engine, "r1", "visits", 1, "good").await, RunOutcome::Committed);
    let run = RunRequest::scheduled("r2", "visits", day(1)).with_logic("bad");
    let error = engine.run(&run, &worker()).await.unwrap_err();
    assert!(error.to_string().contains(message), "{error}");
    assert!(error.to_string().contains("job visits"), "{error}");
    assert!(!error.is_retryable(), "{error}");
    let fix = request("fix", (1, 1)).with_job("visits", "bad").with_mode(Mode::Direct);
    let done = execute(&engine, &fix).await;
    assert_eq!(done.state, BackfillState::Failed);
    let note = done.tasks[0].note.clone().unwrap();
    assert!(note.contains(message), "{note}");
    assert_eq!(world.rows("SELECT day || ' ' || visits FROM visits").await, ["2026-10-01 7"]);
}

#[tokio::test]
async fn rows_that_do_not_fit_are_refused_and_production_stays() {
    let bad = || batch(&[1], vec![("visits", integers(&[Some(1)])), ("extra", integers(&[None]))]);
    check(WriteMode::Replace, bad, "the rows have a column `extra` that the table has not").await;
    let bad = || batch(&[1], vec![("visits", Arc::new(StringArray::from(vec!["seven"])) as ArrayRef)]);
    check(WriteMode::Replace, bad, "column `visits` is a Utf8 in the rows and a Int64 in the table").await;
    check(WriteMode::Replace, || batch(&[1], vec![]), "the rows lack the column `visits` of the table").await;
    let bad = || batch(&[1, 2, 3], vec![("visits", integers(&[Some(1); 3]))]);
    let outside = "2 rows lie outside the scope, in partition day=2026-10-02 (1), day=2026-10-03 (1)";
    check(WriteMode::Replace, bad, outside).await;
    let merge = || WriteMode::Merge(MergeSpec::by(["visits"]).newer("day"));
    check(
        merge(),
        || batch(&[1, 1], vec![("visits", integers(&[Some(4); 2]))]),
        "there are the same keys in 2 rows: ",
    )
    .await;
    check(
        merge(),
        || batch(&[1], vec![("visits", integers(&[None]))]),
        "there are NULL in the keys of 1 rows: ",
    )
    .await;
}

#[tokio::test]
async fn a_transform_that_panics_fails_its_task_and_nothing_else() {
    check(WriteMode::Replace, || panic!("out of cheese"), "the transform panicked: out of cheese").await;
}

#[tokio::test]
async fn a_plan_of_a_newer_version_and_a_damaged_one_are_refused_before_anything_is_filed() {
    let mut world = World::with("").await;
    world.output("visits", daily(), &[("day", DataType::Date32), ("visits", DataType::Int64)]).await;
    let job = Job::new(JobSpec::new("visits", "ops", "visits"))
        .transform_blocking("good", |_, _| Ok(good().into()));
    world.host.add_job(job).unwrap();
    let engine = world.engine().await;
    let plan = engine.plan(&request("fix", (1, 2)).with_job("visits", "good")).await.unwrap();
    let text = serde_json::to_string(&plan).unwrap();
    let newer = text.replacen(&format!("\"format\":{PLAN_FORMAT}"), "\"format\":99", 1);
    assert_eq!(
        Plan::from_json(&newer).unwrap_err().to_string(),
        "the plan has form 99, and this version knows forms up to 1; use the version of reprocess that wrote it, or plan \
         again"
    );
    assert!(
        Plan::from_json(&text[..text.len() / 2]).unwrap_err().to_string().starts_with("the text is no plan")
    );
    let whole = Plan::from_json(&text).unwrap();
    assert_eq!(engine.submit(&whole, &"analyst".into()).await.unwrap(), Submission::New);
}

#[tokio::test]
async fn names_of_any_kind_go_from_plan_to_publication_and_back() {
    let long = format!("{}{}", "Ein sehr langer Name ", "ü".repeat(70));
    for name in ["Sales Of \"2026\"", "main.sales", "продажи'", "a;b--", &long] {
        let mut world = World::with(
            "CREATE TABLE src (id INTEGER PRIMARY KEY, day DATE, n INTEGER);
            INSERT INTO src (day, n) VALUES ('2026-10-01', 5);",
        )
        .await;
        world.log("src");
        let column = format!("{name}.Day");
        let by = Partitioning::unpartitioned().with_time(
            &column,
            reprocess::domain::interval::Grain::Day,
            chrono_tz::UTC,
        );
        world.output(name, by, &[(&column, DataType::Date32), ("n", DataType::Int64)]).await;
        let quoted = format!("\"{}\"", column.replace('"', "\"\""));
        let input = format!("in {name}");
        let from = format!("\"{}\"", input.replace('"', "\"\""));
        let job = JobSpec::new(name, "ops", name).with_input(input, "src", Window::Covering);
        let job = Job::new(job).transform_sql("v 1", format!("SELECT day AS {quoted}, n FROM {from}"));
        world.host.add_job(job).unwrap();
        let engine = world.engine().await;
        let range = Selection::Range { first: date(1).into(), last: date(1).into() };
        let mut fix = request(name, (1, 1)).with_job(name, "v 1").with_mode(Mode::Shadow);
        fix.selection = range;
        assert_eq!(execute(&engine, &fix).await.state, BackfillState::AwaitingReview, "{name}");
        publish(&engine, name).await;
        let key = reprocess::domain::partition::PartitionKey::of(&column, date(1));
        let history = engine.ledger().history(&name.into(), &key, 9).await.unwrap();
        assert_eq!(history.len(), 1, "{name}");
        assert_eq!(history[0].record.job.as_str(), name);
    }
}
