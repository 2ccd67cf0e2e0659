//! Writing to a table of ten million rows in SQLite: `cargo bench --bench sqlite`. The table is built once.
//!
//! `SALES_DAYS` makes the table smaller; a day has 100,000 rows.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "measures, and a bench that cannot go on has failed"
)]

mod support;

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use reprocess::ports::writer::Intent;
use support::sales::{ByHand, Sales};
use support::{cached, median};
use tokio::runtime::Runtime;

const ROWS: u32 = 100_000;

fn sqlite(c: &mut Criterion) {
    let days = std::env::var("SALES_DAYS").map_or(100, |days| days.parse().unwrap());
    let runtime = Runtime::new().unwrap();
    let mut sales = runtime.block_on(Sales::open(&cached(&format!("sales_{days}.db")), days, ROWS));
    let mut hand = runtime.block_on(ByHand::open(&cached(&format!("by_hand_{days}.db")), &sales));
    ratios(&runtime, &mut sales, &mut hand);
    let mut group = c.benchmark_group("sqlite");
    group.sample_size(10);
    group.bench_function("replace by hand", |b| b.iter(|| runtime.block_on(hand.replace(50, ROWS, 1))));
    group.bench_function("replace", |b| b.iter(|| runtime.block_on(sales.replace(50, ROWS, 1, false))));
    group.bench_function("merge 1 of 100 rows changed", |b| {
        b.iter(|| runtime.block_on(sales.merge(50, ROWS / 100, 2, false)));
    });
    group.bench_function("profile", |b| b.iter(|| runtime.block_on(sales.profile(50))));
    group.bench_function("publish 10 staged days", |b| {
        b.iter_custom(|times| (0..times).map(|_| publish(&runtime, &mut sales)).sum());
    });
    group.finish();
}

fn publish(runtime: &Runtime, sales: &mut Sales) -> Duration {
    runtime.block_on(async {
        let base = sales.base(60..70).await;
        let mut staged = Vec::new();
        for day in 60..70 {
            staged.push(sales.stage(day, ROWS / 10, 3, Intent::Replace).await);
        }
        let start = Instant::now();
        sales.commit(&staged, &base, false).await;
        start.elapsed()
    })
}

/// By turns, so that what else the machine does meets both; the median of the ratios is told.
fn ratios(runtime: &Runtime, sales: &mut Sales, hand: &mut ByHand) {
    let mut plain = Vec::new();
    let mut kept = Vec::new();
    let mut by_hand = Vec::new();
    for turn in 0..7 {
        runtime.block_on(async {
            let start = Instant::now();
            hand.replace(50, ROWS, turn).await;
            let one = start.elapsed().as_secs_f64();
            let start = Instant::now();
            sales.replace(50, ROWS, turn, false).await;
            plain.push(start.elapsed().as_secs_f64() / one);
            let start = Instant::now();
            let replaced = sales.replace(50, ROWS, turn, true).await;
            kept.push(start.elapsed().as_secs_f64() / one);
            sales.forget(&replaced.unwrap()).await;
            by_hand.push(one);
        });
    }
    println!(
        "replace of {ROWS} rows: by hand {:.0} ms; with profile {:.2} times that, and {:.2} with kept rows",
        median(by_hand) * 1_000.0,
        median(plain),
        median(kept)
    );
}

criterion_group!(benches, sqlite);
criterion_main!(benches);
