//! The ledger in SQLite: agreement with the ledger in memory, and what only a file has. The laws of
//! the port are in the conformance suite.

mod file;
mod fixtures;
mod random;
