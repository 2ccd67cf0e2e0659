//! Laws of the engine over the tables and the ledger of a backend.

pub(super) mod crash;
pub(crate) mod faults;
pub(super) mod outbox;
pub(super) mod propagation;
mod shop;
pub(super) mod stories;
