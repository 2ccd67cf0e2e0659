//! The ledger in SQLite: the contract of the port, agreement with the ledger in memory, and what only a file has.

mod contract;
mod file;
mod fixtures;
mod random;
