//! The embedded backend of reprocess: tables and ledger in one SQLite file.
//!
//! [`SqliteDatabase`] is the file, [`SqliteTable`] a table that reprocess writes, [`SqliteSource`] a table that
//! others write and jobs read, [`SqliteLedger`] the ledger.
//!
//! What this backend promises, and what it cannot:
//!
//! | promise | how, and its limit |
//! |---|---|
//! | a commit is atomic, with the ledger in the same file | one short transaction that holds the write lock of the file |
//! | staging does not block writers | staged rows go to `<file>.staged`, which has a lock of its own |
//! | a lock is waited for | over all processes of the machine, up to [`SqliteConfig::lock_timeout_ms`]; not on network file systems, where SQLite's locks do not hold |
//! | a partition that moved since the base conflicts | a log of changes per key; also for rows that others insert, update or delete, which triggers note |
//! | writes of others are noticed | unless they switch triggers off, or drop and alter the table: then a commit answers that the columns changed, or does not find the table |
//! | a pin reads the same rows or breaks | tables keep one version; a pin breaks when its slice changes. [`SqliteSource::mutable`] copies what is held |
//! | values come back exactly | except the sign of a zero; see the table of types at [`SqliteTable`] |
//! | rollback | of what was kept at the commit: all rows of a replaced partition, the changed rows of a merge |
//! | a commit survives a crash of the machine | with [`Durability::Full`], the default |

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
