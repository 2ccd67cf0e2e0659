//! A job that reads its own previous day, in shadow mode: it reads its own shadow, oldest first.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use reprocess::arrow::array::cast::AsArray;
use reprocess::arrow::array::types::{Date32Type, Int64Type};
use reprocess::arrow::array::{Array, Date32Array, Int64Array, RecordBatch};
use reprocess::arrow::schema::DataType;
use reprocess::domain::ids::BackfillId;
use reprocess::domain::job::{JobSpec, Window};
use reprocess::domain::profile::Total;
use reprocess::domain::request::Mode;
use reprocess::engine::{Engine, Job, TaskEvent};
use reprocess::ports::ledger::{BackfillState, TaskState};
use reprocess::ports::transform::{HostError, TaskContext};
use reprocess::ports::writer::Rows;

use super::support::{World, daily, date, execute, publish, request, scheduled_days, worker};

/// 11, 22, 33, 44 and 55 on five days, each with a test payment of 1, 2, 3, 4 and 5 among them.
const PAYMENTS: &str = "
    CREATE TABLE payments (id INTEGER PRIMARY KEY, day DATE, amount INTEGER, kind TEXT);
    INSERT INTO payments (day, amount, kind) VALUES
        ('2026-10-01', 10, 'real'), ('2026-10-02', 20, 'real'), ('2026-10-03', 30, 'real'), ('2026-10-04', 40, 'real'),
        ('2026-10-05', 50, 'real'), ('2026-10-01', 1, 'test'), ('2026-10-02', 2, 'test'), ('2026-10-03', 3, 'test'),
        ('2026-10-04', 4, 'test'), ('2026-10-05', 5, 'test');";
const V1: &str = "
    SELECT :date AS day, coalesce((SELECT total FROM before), 0) + (SELECT sum(amount) FROM payments) AS total";
const TABLE: &str = "SELECT day || ' ' || total FROM balance ORDER BY day";
const WITH_TESTS: [&str; 5] =
    ["2026-10-01 11", "2026-10-02 33", "2026-10-03 66", "2026-10-04 110", "2026-10-05 165"];
const WITHOUT_TESTS: [&str; 5] =
    ["2026-10-01 10", "2026-10-02 30", "2026-10-03 60", "2026-10-04 100", "2026-10-05 150"];

/// Fails on the third day until it is mended; counts how often it computed.
#[derive(Clone, Default)]
struct Fragile {
    mended: Arc<AtomicBool>,
    computed: Arc<AtomicU32>,
}

/// The second version leaves out test payments.
async fn without_tests(state: Fragile, task: TaskContext) -> Result<Rows, HostError> {
    let day = task.date().ok_or("no day")?;
    if day == date(3) && !state.mended.load(Ordering::SeqCst) {
        return Err("the third day is broken".into());
    }
    state.computed.fetch_add(1, Ordering::SeqCst);
    let payments = task.collect("payments").await?;
    let amounts = payments.column_by_name("amount").ok_or("no amount")?.as_primitive::<Int64Type>();
    let kinds = payments.column_by_name("kind").ok_or("no kind")?.as_string::<i32>();
    let real = (0..payments.num_rows()).filter(|row| kinds.value(*row) == "real");
    let before = task.collect("before").await?;
    let before = before.column_by_name("total").ok_or("no total")?.as_primitive::<Int64Type>();
    let total = before.iter().flatten().sum::<i64>() + real.map(|row| amounts.value(row)).sum::<i64>();
    let day: Arc<dyn Array> = Arc::new(Date32Array::from(vec![Date32Type::from_naive_date(day)]));
    let total: Arc<dyn Array> = Arc::new(Int64Array::from(vec![total]));
    Ok(RecordBatch::try_from_iter([("day", day), ("total", total)])?.into())
}

async fn world(state: &Fragile) -> (World, Engine) {
    let mut world = World::with(PAYMENTS).await;
    world.log("payments");
    world.output("balance", daily(), &[("day", DataType::Date32), ("total", DataType::Int64)]).await;
    let job = JobSpec::new("balance", "finance", "balance")
        .with_input("payments", "payments", Window::Same)
        .with_input("before", "balance", Window::PreviousOutput);
    let job = Job::new(job).transform_sql("v1", V1).transform_with("v2", state.clone(), without_tests);
    world.host.add_job(job).unwrap();
    let engine = world.engine().await;
    scheduled_days(&engine, "balance", (1, 5), "v1").await;
    assert_eq!(world.rows(TABLE).await, WITH_TESTS);
    (world, engine)
}

#[tokio::test]
async fn a_failure_in_the_middle_blocks_the_later_days_and_the_shadow_goes_on_from_there() {
    let state = Fragile::default();
    let (world, engine) = world(&state).await;
    // More at a time than one may run: the days wait for each other.
    let request = request("no-tests", (1, 5)).with_job("balance", "v2").with_concurrency(4);
    let execution = execute(&engine, &request).await;
    assert_eq!(execution.state, BackfillState::Failed);
    let states: Vec<_> = execution.tasks.iter().map(|t| t.state).collect();
    use TaskState::{Blocked, Failed, Staged};
    assert_eq!(states, [Staged, Staged, Failed, Blocked, Blocked]);
    assert!(execution.tasks[2].note.as_deref().unwrap().contains("the third day is broken"));
    assert_eq!(state.computed.load(Ordering::SeqCst), 2);
    assert_eq!(world.rows(TABLE).await, WITH_TESTS, "a shadow is not production");

    state.mended.store(true, Ordering::SeqCst);
    let id = BackfillId::from("no-tests");
    let started = Mutex::new(Vec::new());
    let watch = |event| {
        if let TaskEvent::Started(task) = event {
            started.lock().unwrap().push(task.0);
        }
    };
    let execution = engine.execute(&id, &worker(), watch).await.unwrap();
    assert_eq!(execution.state, BackfillState::AwaitingReview);
    assert_eq!(*started.lock().unwrap(), [2, 3, 4], "what is staged is not computed again");
    assert_eq!(state.computed.load(Ordering::SeqCst), 5);
    let review = engine.review(&id).await.unwrap();
    let staged: Vec<_> = review.outputs.iter().map(|o| o.result.after[0].totals["total"]).collect();
    assert_eq!(staged, [10, 30, 60, 100, 150].map(|total: i64| Total::Exact(total.into())));

    publish(&engine, "no-tests").await;
    assert_eq!(world.rows(TABLE).await, WITHOUT_TESTS);
}

#[tokio::test]
async fn the_same_request_again_finds_every_day_unchanged() {
    let state = Fragile::default();
    state.mended.store(true, Ordering::SeqCst);
    let (_world, engine) = world(&state).await;
    let request = request("no-tests", (1, 5)).with_job("balance", "v2");
    assert_eq!(execute(&engine, &request).await.state, BackfillState::AwaitingReview);
    publish(&engine, "no-tests").await;
    let plan = engine.plan(&request).await.unwrap();
    assert_eq!(plan.skipped.len(), 5, "tasks of the second plan: {}", plan.tasks.len());
}

#[tokio::test]
async fn in_direct_mode_each_day_reads_what_the_day_before_has_committed() {
    let state = Fragile::default();
    state.mended.store(true, Ordering::SeqCst);
    let (world, engine) = world(&state).await;
    let request =
        request("no-tests", (1, 5)).with_job("balance", "v2").with_mode(Mode::Direct).with_concurrency(4);
    assert_eq!(execute(&engine, &request).await.state, BackfillState::Published);
    assert_eq!(world.rows(TABLE).await, WITHOUT_TESTS);
    assert_eq!(engine.plan(&request).await.unwrap().skipped.len(), 5);
}
