//! What `check determinism` finds, by a job whose every run may give other rows.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow_array::{ArrayRef, Date32Array, Float64Array, Int64Array, RecordBatch, StringArray};

use super::shop::{date, day, worker};
use crate::domain::interval::Grain;
use crate::domain::job::{JobSpec, TableSpec};
use crate::domain::partition::Partitioning;
use crate::engine::Determinism;
use crate::engine::{Engine, Host, Job, RunRequest};
use crate::memory::{ManualClock, MemoryLedger, MemoryTable};
use crate::ports::transform::TaskContext;

/// Name, number, share.
type Row = (String, i64, f64);

/// A transform that is told how often it ran before.
type Logic = fn(&TaskContext, u32) -> Vec<Row>;

struct World {
    table: MemoryTable,
    ledger: Arc<MemoryLedger>,
}

impl World {
    fn new() -> Self {
        Self { table: MemoryTable::new(spec()), ledger: Arc::default() }
    }

    fn engine(&self, logic: Logic) -> Engine {
        let mut host = Host::new("build-1");
        host.add_table(spec(), Arc::new(self.table.clone())).unwrap();
        let ran = Arc::new(AtomicU32::new(0));
        let job = Job::new(JobSpec::new("shares", "ops", "shares")).transform_with(
            "v1",
            ran,
            move |ran, task: TaskContext| async move {
                let rows = logic(&task, ran.fetch_add(1, Ordering::SeqCst));
                Ok(batch(&rows).into())
            },
        );
        host.add_job(job).unwrap();
        let clock = Arc::new(ManualClock::new("2026-10-10T00:00:00Z".parse().unwrap()));
        Engine::new(host, self.ledger.clone()).with_clock(clock)
    }

    async fn check(&self, logic: Logic) -> Determinism {
        self.engine(logic)
            .check_determinism(&"shares".into(), &"v1".into(), &day(1), &worker("w"))
            .await
            .unwrap()
    }
}

fn spec() -> TableSpec {
    TableSpec::new("shares", Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC))
}

fn batch(rows: &[Row]) -> RecordBatch {
    let epoch = chrono::NaiveDate::from_ymd_opt(1970, 1, 1).unwrap();
    let number = i32::try_from((date(1) - epoch).num_days()).unwrap();
    let columns: [(&str, ArrayRef); 4] = [
        ("day", Arc::new(Date32Array::from(vec![number; rows.len()]))),
        ("name", Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.0)))),
        ("number", Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1)))),
        ("share", Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row.2)))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
}

fn named(name: impl Into<String>, number: i64) -> Row {
    (name.into(), number, 0.5)
}

fn three() -> Vec<Row> {
    vec![named("a", 1), named("b", 2), named("c", 3)]
}

/// A thousand entries in the order of a hash map, which is another in every map.
#[allow(clippy::disallowed_types, reason = "what is to be found")]
fn hashed() -> Vec<i64> {
    let map: std::collections::HashMap<i64, ()> = (0..1_000).map(|i| (i, ())).collect();
    map.into_keys().collect()
}

async fn holds(logic: Logic) {
    let found = World::new().check(logic).await;
    assert!(found.holds(), "{found}");
    assert_eq!(found.to_string(), "two runs gave the same rows, in whatever order");
}

async fn says(logic: Logic, text: &str) {
    let found = World::new().check(logic).await;
    assert!(!found.holds() && found.to_string().contains(text), "{found}");
}

#[tokio::test]
async fn the_order_of_rows_is_no_difference_since_a_table_is_a_multiset() {
    holds(|_, ran| {
        let mut rows = three();
        rows.rotate_left(usize::try_from(ran).unwrap());
        rows
    })
    .await;
    holds(|_, _| hashed().into_iter().map(|number| named("x", number)).collect()).await;
}

#[tokio::test]
async fn a_row_that_comes_twice_is_a_difference() {
    let text = "two runs gave other rows: day=2026-10-01 has 3 rows, then 4";
    says(|_, ran| three().into_iter().chain((ran > 0).then(|| named("a", 1))).collect(), text).await;
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "what is to be found")]
async fn a_wall_clock_is_found() {
    says(
        |_, _| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            vec![named(now.as_nanos().to_string(), 1)]
        },
        "day=2026-10-01: row count and totals are the same, values are not",
    )
    .await;
}

#[tokio::test]
async fn random_numbers_are_found_unless_they_are_the_tasks_own() {
    says(
        |_, _| vec![named("a", i64::try_from(RandomState::new().build_hasher().finish() >> 2).unwrap())],
        "day=2026-10-01: the total of `number` is ",
    )
    .await;
    holds(|task, _| {
        use rand_chacha::rand_core::Rng;
        vec![named("a", i64::from(task.rng().next_u32()))]
    })
    .await;
}

#[tokio::test]
async fn the_order_of_a_hash_map_is_found_where_it_reaches_values() {
    says(
        |_, _| {
            let places = (0..).zip(hashed());
            places.map(|(place, number)| named(format!("{number}"), place)).collect()
        },
        "day=2026-10-01: row count and totals are the same, values are not",
    )
    .await;
    // Which of them come first reaches the totals too.
    says(
        |_, _| hashed().into_iter().take(3).map(|number| named("x", number)).collect(),
        "day=2026-10-01: the total of `number` is ",
    )
    .await;
}

#[tokio::test]
async fn the_order_of_a_float_sum_is_found_and_told_with_its_tolerance() {
    // 0.1 + 0.2 + 0.3 is 0.6000000000000001, and 0.6 the other way round.
    let found = World::new()
        .check(|_, ran| {
            let mut parts = [0.1, 0.2, 0.3];
            if ran > 0 {
                parts.reverse();
            }
            vec![("a".into(), 1, parts.iter().sum())]
        })
        .await;
    assert_eq!(
        found.to_string(),
        "two runs gave other rows: day=2026-10-01: the total of `share` is 0.6000000000000001, then 0.6; \
         day=2026-10-01: only float columns differ, by 1.1e-16 in total, within the tolerance of 2.7e-16 of another \
         order of rows"
    );
    let found = World::new().check(|_, ran| vec![("a".into(), 1, if ran > 0 { 0.61 } else { 0.6 })]).await;
    assert!(
        found.to_string().contains("by 1.0e-2 in total, more than the 2.7e-16 that another order"),
        "{found}"
    );
}

#[tokio::test]
async fn the_same_version_with_other_code_is_found_by_what_it_left() {
    let world = World::new();
    let first: Logic = |_, _| three();
    let run = RunRequest::scheduled("shares-1", "shares", day(1));
    let _ = world.engine(first).run(&run, &worker("schedule")).await.unwrap();
    assert!(world.check(first).await.holds());
    let other = world.check(|_, _| vec![named("a", 1)]).await;
    assert!(other.same_rows);
    assert_eq!(
        other.to_string(),
        "run shares-1 has the same fingerprint and other rows: the same version, and other code"
    );
}
