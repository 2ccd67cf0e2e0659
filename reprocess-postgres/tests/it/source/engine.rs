//! Jobs over sources, from the plan to the commit.

use std::sync::Arc;

use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::job::{JobSpec, TableSpec, Window};
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::engine::{Engine, Host, Job, RunOutcome, RunRequest};
use reprocess_core::memory::MemoryLedger;
use reprocess_core::ports::ledger::RunLedger;
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_postgres::{ExportedSnapshot, PostgresLedger, PostgresSource, PostgresTable};
use sqlx::Executor;

use super::support::*;

const SUMS: &str = "SELECT (at AT TIME ZONE 'UTC')::date AS day, count(*) AS events, sum(n)::bigint AS total
                    FROM events GROUP BY 1";

async fn engine(f: &Fixture, source: PostgresSource, ledger: Arc<dyn RunLedger>) -> Engine {
    let by_day = Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
    let sums = TableSpec::new("sums", by_day);
    let mut host = Host::new("test");
    host.add_source(events(), Arc::new(source)).unwrap();
    let table = PostgresTable::open(f.db.clone(), sums.clone()).await.unwrap();
    host.add_table(sums, Arc::new(table)).unwrap();
    let job = JobSpec::new("sums", "ops", "sums").with_input("events", "events", Window::Same);
    host.add_job(Job::new(job).transform_sql("v1", SUMS)).unwrap();
    Engine::new(host, ledger)
}

async fn with_ledger(f: &Fixture, source: PostgresSource) -> Engine {
    let ledger = PostgresLedger::open(f.db.clone()).await.unwrap();
    engine(f, source, Arc::new(ledger)).await
}

async fn run(engine: &Engine, name: &str) -> RunOutcome {
    let day = PartitionKey::of("day", date("2026-10-01"));
    engine.run(&RunRequest::scheduled(name, "sums", day), &"w".into()).await.unwrap()
}

/// Day, number of events, and sum of their numbers.
async fn sums(f: &Fixture) -> Vec<String> {
    f.column("SELECT concat_ws(' ', day, events, total) FROM sums ORDER BY 1").await
}

#[tokio::test]
async fn condition_14_a_late_transaction_is_counted_by_the_next_run_and_once() {
    let f = fixture(EVENTS).await;
    let engine = with_ledger(&f, f.append_only()).await;
    let mut late = f.other().await;
    late.execute("BEGIN; INSERT INTO events VALUES (10, '2026-10-01 01:00:00+00', 'late')").await.unwrap();
    f.sql("INSERT INTO events VALUES (11, '2026-10-01 02:00:00+00', 'prompt')").await;
    assert_eq!(run(&engine, "r1").await, RunOutcome::Committed);
    assert_eq!(sums(&f).await, ["2026-10-01 3 16"]);
    assert!(matches!(run(&engine, "r2").await, RunOutcome::Skipped(_)), "nothing has changed");
    late.execute("COMMIT").await.unwrap();
    assert_eq!(run(&engine, "r3").await, RunOutcome::Committed);
    assert_eq!(sums(&f).await, ["2026-10-01 4 26"]);
    assert!(matches!(run(&engine, "r4").await, RunOutcome::Skipped(_)));
}

#[tokio::test]
async fn condition_15_a_row_with_a_mark_equal_to_the_largest_is_counted_by_the_next_run() {
    let f = fixture(EVENTS).await;
    f.sql("ALTER TABLE events ADD COLUMN batch integer NOT NULL DEFAULT 7").await;
    let source = PostgresSource::high_water_mark(f.db.clone(), events(), "batch").unwrap();
    let engine = with_ledger(&f, source).await;
    assert_eq!(run(&engine, "r1").await, RunOutcome::Committed);
    assert_eq!(sums(&f).await, ["2026-10-01 2 5"]);
    f.sql("INSERT INTO events VALUES (10, '2026-10-01 01:00:00+00', 'equal')").await;
    assert_eq!(run(&engine, "r2").await, RunOutcome::Committed);
    assert_eq!(sums(&f).await, ["2026-10-01 3 15"]);
}

#[tokio::test]
async fn condition_22_a_lost_ledger_appends_nothing_again() {
    let f = fixture(EVENTS).await;
    for (name, source) in [("a", f.append_only()), ("b", f.up_to_mark()), ("c", f.mutable())] {
        let engine = engine(&f, source, Arc::new(MemoryLedger::new())).await;
        let _ = run(&engine, name).await;
        assert_eq!(sums(&f).await, ["2026-10-01 2 5"], "{name}");
    }
}

#[tokio::test]
async fn a_job_reads_a_table_that_changes_and_a_snapshot_of_it() {
    let f = fixture(EVENTS).await;
    let engine = with_ledger(&f, f.mutable()).await;
    assert_eq!(run(&engine, "r1").await, RunOutcome::Committed);
    f.sql("UPDATE events SET n = 30 WHERE n = 3").await;
    assert_eq!(run(&engine, "r2").await, RunOutcome::Committed);
    assert_eq!(sums(&f).await, ["2026-10-01 2 32"]);
    let snapshot = ExportedSnapshot::export(&f.db).await.unwrap();
    f.sql("UPDATE events SET n = 40 WHERE n = 30").await;
    let source = PostgresSource::in_snapshot(f.db.clone(), events(), &snapshot).unwrap();
    assert_eq!(source.table().as_str(), "events");
    let engine = with_ledger(&f, source).await;
    let again = RunRequest::scheduled("r3", "sums", PartitionKey::of("day", date("2026-10-01"))).with_force();
    assert_eq!(engine.run(&again, &"w".into()).await.unwrap(), RunOutcome::Committed);
    assert_eq!(sums(&f).await, ["2026-10-01 2 32"]);
    snapshot.end().await.unwrap();
}
