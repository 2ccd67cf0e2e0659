//! The embedded backend of reprocess: tables and ledger in one SQLite file.
//!
//! [`SqliteDatabase`] is the file, `SqliteTable` a table that reprocess writes, `SqliteSource` a table that
//! others write and jobs read.

mod catalog;
mod changes;
mod config;
mod error;
mod layout;
mod predicate;
mod sql;

pub use config::{Durability, SqliteConfig, SqliteDatabase};
