//! The ledger in PostgreSQL: agreement with the ledger in memory, and what only a server has. The laws of the port are in
//! the conformance suite.

mod apart;
mod clock;
pub(crate) mod fixtures;
mod lost;
mod random;
mod together;
mod transaction;
