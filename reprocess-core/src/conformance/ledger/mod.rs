//! Laws of the run ledger.

pub(in crate::conformance) mod fixtures;
pub(super) mod rows;
pub(super) mod tasks;
