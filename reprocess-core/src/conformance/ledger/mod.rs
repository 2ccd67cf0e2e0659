//! Laws of the run ledger.

pub(in crate::conformance) mod fixtures;
pub(super) mod outbox;
pub(super) mod rows;
pub(super) mod tasks;
