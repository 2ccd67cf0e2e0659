//! Laws of the run ledger.

pub(super) mod downstream;
pub(in crate::conformance) mod fixtures;
pub(super) mod outbox;
pub(super) mod pools;
pub(super) mod rows;
pub(super) mod tasks;
