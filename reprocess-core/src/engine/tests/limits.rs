//! What one process takes: memory, and rows of a source in a second; and what it measures of that.

use std::num::NonZeroU32;
use std::sync::Arc;

use tokio::time::Instant;

use super::pools::{Simulated, at_a_time, by_day, records, run, start_backfill};
use crate::domain::job::{JobSpec, TableSpec, Window};
use crate::domain::pool::ReadLimit;
use crate::engine::{Engine, Host, Job, Settings};
use crate::memory::{MemoryLedger, MemoryTable};
use crate::ports::clock::Clock;
use crate::ports::ledger::BackfillState;
use crate::ports::throttle::Throttle;
use crate::ports::transform::{HostError, TaskContext};
use crate::ports::writer::Rows;

/// An engine whose tasks need so much memory each, of so much.
fn engine(needed_mib: u32, memory_mib: u32, ledger: &Arc<MemoryLedger>) -> Engine {
    let mut host = Host::new("test");
    let spec = TableSpec::new("big", by_day());
    host.add_table(spec.clone(), Arc::new(MemoryTable::new(spec))).unwrap();
    let job = JobSpec::new("big", "ops", "big").with_memory_mib(needed_mib);
    host.add_job(Job::new(job).transform_with("v1", "big", run)).unwrap();
    let settings = Settings { poll_ms: 100, memory_mib, ..Settings::default() };
    Engine::new(host, ledger.clone()).with_clock(Arc::new(Simulated(Instant::now()))).with_settings(settings)
}

/// How many of twelve tasks run at a time.
async fn check(needed_mib: u32, memory_mib: u32, expected: i32) {
    let ledger = Arc::new(MemoryLedger::new());
    let engine = engine(needed_mib, memory_mib, &ledger);
    start_backfill(&engine, "big", 12).await;
    let done = engine.execute(&"fix".into(), &"w1".into(), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Published);
    assert_eq!(done.tasks.iter().map(|task| task.attempt).max(), Some(1), "waiting keeps the claim");
    let records = records(&ledger, "big").await;
    assert_eq!((records.len(), at_a_time(&records)), (12, expected), "{needed_mib} of {memory_mib} MiB");
}

#[tokio::test(start_paused = true)]
async fn a_process_begins_as_many_tasks_as_its_memory_holds() {
    check(512, 2048, 4).await;
    check(700, 2048, 2).await;
    check(0, 2048, 12).await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_needs_more_than_there_is_runs_alone() {
    check(5000, 2048, 1).await;
}

async fn copied(task: TaskContext) -> Result<Rows, HostError> {
    Ok(task.collect("orders").await?.into())
}

/// A host that copies orders, one to three a day, and may read one row in a second.
async fn copying() -> (Engine, Arc<MemoryLedger>) {
    let (orders, copy) = (TableSpec::new("orders", by_day()), TableSpec::new("copy", by_day()));
    let source = MemoryTable::new(orders.clone());
    let rows: Vec<_> =
        (1..=3).flat_map(|d| (0..d).map(move |n| (d, i64::from(n), "FR", 100, false))).collect();
    source.append_unmanaged(&super::shop::orders(&rows)).unwrap();
    let mut host = Host::new("test");
    host.add_source(orders, Arc::new(source)).unwrap();
    host.add_table(copy.clone(), Arc::new(MemoryTable::new(copy))).unwrap();
    host.limit_reads(&"orders".into(), ReadLimit::rows_per_s(NonZeroU32::MIN)).unwrap();
    assert!(host.limit_reads(&"nothing".into(), ReadLimit::default()).is_err());
    let job = JobSpec::new("copy", "ops", "copy").with_input("orders", "orders", Window::Same);
    host.add_job(Job::new(job).transform_with("v1", (), |(), task| copied(task))).unwrap();
    let ledger = Arc::new(MemoryLedger::new());
    let engine = Engine::new(host, ledger.clone()).with_clock(Arc::new(Simulated(Instant::now())));
    (engine, ledger)
}

#[tokio::test(start_paused = true)]
async fn all_tasks_of_a_process_together_read_no_faster_than_the_limit() {
    let (engine, ledger) = copying().await;
    start_backfill(&engine, "copy", 3).await;
    let started = Instant::now();
    let done = engine.execute(&"fix".into(), &"w1".into(), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Published);
    // Six rows, of which one at once. After the last one a worker looks once more whether something is left to do.
    let took = started.elapsed().as_millis();
    assert!((5_000..6_000).contains(&took), "{took} ms");
    let rows: u64 = records(&ledger, "copy").await.iter().map(|r| r.after.as_ref().unwrap().rows).sum();
    assert_eq!(rows, 6);
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_large_batches_has_its_turn_beside_one_of_small_ones() {
    let clock: Arc<dyn Clock> = Arc::new(Simulated(Instant::now()));
    let throttle = Throttle::new(&ReadLimit::rows_per_s(1000.try_into().unwrap()), &clock);
    let rows = |n: usize| super::shop::orders(&vec![(1, 1, "FR", 1, false); n]);
    let (few, many) = (rows(10), rows(5000));
    let small = async {
        for _ in 0..6_000 {
            throttle.pass(&few).await;
        }
        panic!("the large batch did not pass in a minute");
    };
    let started = Instant::now();
    tokio::select! {
        () = small => {}
        () = throttle.pass(&many) => {}
    }
    let took = started.elapsed().as_millis();
    // 5,000 rows, of which 1,000 at once where none of the others came before.
    assert!((4_000..5_500).contains(&took), "{took} ms");
}

#[cfg(feature = "prometheus")]
#[test]
fn what_tasks_do_and_what_the_ledger_has_is_measured() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let (engine, _ledger) = copying().await;
            start_backfill(&engine, "copy", 2).await;
            let run = crate::engine::RunRequest::scheduled("late", "copy", super::shop::day(3));
            let _ = engine.run(&run, &"schedule".into()).await.unwrap();
            let _ = engine
                .run(&crate::engine::RunRequest { run: "again".into(), ..run }, &"schedule".into())
                .await
                .unwrap();
            engine.measure().await.unwrap();
            let approved = handle.render();
            assert!(approved.contains("reprocess_backfills{state=\"approved\"} 1"), "{approved}");
            assert!(approved.contains("reprocess_backfill_tasks{state=\"pending\"} 2"), "{approved}");
            let _ = engine.execute(&"fix".into(), &"w1".into(), |_| {}).await.unwrap();
            engine.measure().await.unwrap();
        });
    });
    let text = handle.render();
    for line in [
        "reprocess_tasks_total{job=\"copy\",trigger=\"backfill\",outcome=\"committed\"} 2",
        "reprocess_tasks_total{job=\"copy\",trigger=\"scheduled\",outcome=\"committed\"} 1",
        "reprocess_tasks_running{job=\"copy\"} 0",
        // Three of the third day, and one and two of the others.
        "reprocess_staged_rows_total{job=\"copy\"} 6",
        "reprocess_task_seconds_count{job=\"copy\",trigger=\"backfill\"} 2",
        "reprocess_backfill_tasks{state=\"pending\"} 0",
        "reprocess_outdated_partitions{job=\"copy\"} 0",
        "# HELP reprocess_tasks_total Attempts at tasks that ended",
    ] {
        assert!(text.lines().any(|found| found == line), "no line `{line}` in\n{text}");
    }
}
