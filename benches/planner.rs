//! Planning over a catalog of 800 jobs: `cargo bench --bench planner`.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "measures, and a bench that cannot go on has failed"
)]

mod support;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use support::catalog::{CHAIN, World};

fn planner(c: &mut Criterion) {
    let mut group = c.benchmark_group("planner");
    group.sample_size(10);
    for days in [1_825_u32, 3_650] {
        let world = World::new(40, days);
        // Twenty jobs are asked for, or one is and nineteen are reached; either way 20 tasks for each day.
        for (name, jobs) in [("asked", CHAIN), ("reached", 1)] {
            let request = world.request(1, jobs);
            let facts = world.facts(&request);
            group.throughput(Throughput::Elements(u64::from(days) * 20));
            group.bench_function(BenchmarkId::new(name, days), |b| b.iter(|| world.plan(&request, &facts)));
        }
    }
    group.finish();
}

criterion_group!(benches, planner);
criterion_main!(benches);
