//! Figures of memory, printed: `cargo bench --bench memory`.

#![allow(clippy::disallowed_methods, reason = "measures")]

mod support;

use std::time::Instant;

use support::catalog::{CHAIN, World};
use support::memory;

fn main() {
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    for chains in [1, 4, 10, 40] {
        plan_of(chains);
    }
}

/// Every day of ten years of every job of so many chains.
fn plan_of(chains: usize) {
    let world = World::new(40, 3_650);
    let request = world.request(chains, CHAIN);
    let facts = world.facts(&request);
    memory::reset_peak();
    let (before, start) = (memory::resident(), Instant::now());
    let plan = world.plan(&request, &facts);
    let (took, held, peak) = (start.elapsed(), memory::resident() - before, memory::peak() - before);
    let tasks = u64::try_from(plan.tasks.len()).unwrap();
    println!(
        "plan of {tasks} tasks: {took:.2?}, {} ns, {} bytes kept and {} bytes at the most for each",
        took.as_nanos() / u128::from(tasks),
        held / tasks,
        peak / tasks
    );
}
