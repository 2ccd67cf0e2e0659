//! Plans, reviews and ledger rows as text for a person at a terminal.
//!
//! Plain functions from data to text: up to 120 columns wide, UTF-8, no colours. Each function that lists takes how many
//! lines of a list it is to show; what is left out is counted. For programs, the same data has a JSON form.

mod backfill;
mod diff;
mod ledger;
mod numbers;
mod partitions;
mod plan;
mod reports;
mod review;
mod spans;
mod text;

pub use backfill::{backfills, status};
pub use diff::diff;
pub use ledger::{explanation, ledger};
pub use partitions::{deliveries, drift, findings, outdated, stale};
pub use plan::plan;
pub use reports::{corrections, readiness, reconciliations};
pub use review::review;

/// How many lines of a list fit what a person reads at once.
pub const SHOWN: usize = 40;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;
