//! The published table, for a person at a terminal.

use reprocess::domain::ids::TableId;
use reprocess::domain::partition::PartitionKey;
use reprocess::engine::Engine;

use super::Result;
use super::jobs::DAILY;
use super::numbers::{Day, grouped};

/// Each day with its numbers, the logic that they come from, and the run.
pub(crate) async fn days(engine: &Engine, days: &[Day]) -> Result<()> {
    let keys: Vec<_> = days.iter().map(|d| PartitionKey::of("day", d.day)).collect();
    let runs = engine.ledger().current(&TableId::from(DAILY), &keys).await?;
    println!(" day          carriers   scheduled   departures   cancelled   logic   by run");
    println!("{}", "─".repeat(108));
    for (d, run) in days.iter().zip(&runs) {
        let record = run.as_ref().map(|row| &row.record).ok_or("a published day that the ledger lacks")?;
        let logic = record.logic.as_ref().map_or("?", |logic| logic.as_str());
        println!(
            " {}   {:>8}   {:>9}   {:>10}   {:>9}   {logic:<5}   {}",
            d.day,
            d.carriers,
            d.scheduled,
            d.departures,
            d.scheduled - d.departures,
            record.run
        );
    }
    Ok(())
}

/// Each airline over the three weeks, and their sum.
pub(crate) fn carriers(carriers: &[(String, i64, i64)], (scheduled, departures): (i64, i64)) {
    println!("\n 4 to 24 March   scheduled   departures   cancelled");
    println!("{}", "─".repeat(52));
    let sum = ("all".to_owned(), scheduled, departures);
    for (carrier, scheduled, departures) in carriers.iter().chain([&sum]) {
        let cancelled = scheduled - departures;
        println!(
            " {carrier:<13}   {:>9}   {:>10}   {:>9}",
            grouped(scheduled),
            grouped(departures),
            grouped(cancelled)
        );
    }
}
