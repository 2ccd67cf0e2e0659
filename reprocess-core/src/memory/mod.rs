//! The reference backend, in memory: obvious code that every other backend is compared with, and what tests run on.
//!
//! Nothing is optimised and nothing is forgotten: every version of a table and every row of the ledger stay.

mod clock;
#[cfg(test)]
mod fixtures;
mod ledger;
mod table;

pub use clock::ManualClock;
pub use ledger::MemoryLedger;
pub use table::MemoryTable;
