//! The embedded backend of reprocess: tables and ledger in one SQLite file.
//!
//! [`SqliteDatabase`] is the file, [`SqliteTable`] a table that reprocess writes, [`SqliteSource`] a table that
//! others write and jobs read.

mod catalog;
mod changes;
mod config;
mod error;
mod layout;
mod ledger;
mod predicate;
mod reader;
mod shadow;
mod sql;
mod writer;

pub use config::{Durability, SqliteConfig, SqliteDatabase};
pub use ledger::SqliteLedger;
pub use reader::SqliteSource;
pub use writer::SqliteTable;
