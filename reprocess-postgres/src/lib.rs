//! The backend of reprocess in PostgreSQL 15 and later: tables and ledger in one database, shared by many machines.
//!
//! [`PostgresDatabase`] is the database, [`PostgresTable`] a table that reprocess writes, [`PostgresSource`] one that
//! others write and jobs read, [`PostgresLedger`] the ledger.
//!
//! What is ours is kept in a schema of its own, with a version of its own: no migration of the host sees it. Nothing
//! outlives a transaction, no lock, no setting and no prepared statement, so that a pooler such as PgBouncer may stand
//! between, in transaction mode.

mod catalog;
mod changes;
mod config;
mod error;
mod layout;
mod ledger;
mod predicate;
mod reader;
mod schema;
mod shadow;
mod sql;
mod writer;

pub use config::{PostgresConfig, PostgresDatabase, PostgresTransaction};
pub use ledger::PostgresLedger;
pub use reader::{ExportedSnapshot, PostgresSource};
pub use writer::PostgresTable;

#[cfg(test)]
extern crate self as reprocess_postgres;

#[cfg(test)]
#[allow(dead_code, reason = "shared with the tests from outside")]
#[path = "../tests/it/server.rs"]
mod server;
