//! The embedded backend of reprocess: tables and ledger in one SQLite file.
//!
//! [`SqliteDatabase`] is the file, `SqliteTable` a table that reprocess writes, `SqliteSource` a table that
//! others write and jobs read.

mod config;
mod error;
mod ledger;

pub use config::{Durability, SqliteConfig, SqliteDatabase};
pub use ledger::SqliteLedger;
