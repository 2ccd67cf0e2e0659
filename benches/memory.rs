//! Figures of memory, printed: `cargo bench --bench memory`.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "measures, and a bench that cannot go on has failed"
)]

mod support;

use std::time::Instant;

use reprocess::domain::interval::Grain;
use reprocess::domain::job::TableSpec;
use reprocess::domain::partition::{PartitionKey, Partitioning};
use reprocess::domain::profile::ProfileSpec;
use reprocess::domain::scope::Scope;
use reprocess::ports::writer::{Intent, PartitionWriter};
use reprocess::postgres::{PostgresDatabase, PostgresTable};
use support::cached;
use support::catalog::{CHAIN, World};
use support::facts::{Order, batches, filled, schema};
use support::memory;
use support::rows::date;
use support::sales::Sales;
use support::server::{Server, run};
use support::through::Through;

fn main() {
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    for rows in [100_000, 1_000_000] {
        replace_of(rows);
    }
    let server = Server::start();
    for rows in [100_000, 1_000_000, 5_000_000] {
        replace_in_postgres(&server, rows);
    }
    for (chains, days) in [(1, 1_825), (1, 3_650), (1, 7_300), (4, 3_650), (10, 3_650), (40, 3_650)] {
        plan_of(chains, days);
    }
}

/// So many days of every job of so many chains.
fn plan_of(chains: usize, days: u32) {
    let world = World::new(40, days);
    let request = world.request(chains, CHAIN);
    let facts = world.facts(&request);
    memory::reset_peak();
    let (before, start, on_core) = (memory::resident(), Instant::now(), memory::nanoseconds_on_core());
    let plan = world.plan(&request, &facts);
    let (took, held, peak) = (start.elapsed(), memory::resident() - before, memory::peak() - before);
    let on_core = memory::nanoseconds_on_core() - on_core;
    let tasks = u64::try_from(plan.tasks.len()).unwrap();
    println!(
        "plan of {tasks} tasks: {took:.2?}, {} ms on the core; {} ns, {} bytes kept and {} bytes at the most for each",
        on_core / 1_000_000,
        on_core / tasks,
        held / tasks,
        peak / tasks
    );
}

/// Staging and commit of one partition of so many rows, over one of as many, with kept rows.
fn replace_of(rows: u32) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let path = cached(&format!("memory_{rows}.db"));
    let mut sales = runtime.block_on(Sales::open(&path, 1, rows));
    runtime.block_on(sales.replace(0, rows, 1, false));
    memory::reset_peak();
    let before = memory::resident();
    let kept = runtime.block_on(sales.replace(0, rows, 2, true));
    runtime.block_on(sales.profile(0));
    println!("replace of {rows} rows: {} kB at the most", (memory::peak() - before) / 1024);
    runtime.block_on(sales.forget(&kept.unwrap()));
}

/// The same in PostgreSQL, with a table that others made and that has a key.
fn replace_in_postgres(server: &Server, rows: u32) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let pool = server.pool().await;
        run(&pool, filled("orders", "day, id", 1, rows)).await;
        let database = PostgresDatabase::connect(server.address()).await.unwrap();
        let daily = Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
        let table = PostgresTable::open(database, TableSpec::new("orders", daily)).await.unwrap();
        table.adopt().await.unwrap();
        let orders = Through::new(table);
        let scope = Scope::key(PartitionKey::of("day", date(0))).unwrap();
        memory::reset_peak();
        let before = memory::resident();
        let changed = (0..i64::from(rows)).map(|id| Order { day: 0, id, salt: 1 });
        orders.write(&scope, Intent::Replace, schema(), batches(changed), true).await;
        orders.table.profile(&scope, &ProfileSpec::new()).await.unwrap();
        println!("replace of {rows} rows in PostgreSQL: {} kB at the most", (memory::peak() - before) / 1024);
        run(&pool, "DROP TABLE orders".to_owned()).await;
    });
}
