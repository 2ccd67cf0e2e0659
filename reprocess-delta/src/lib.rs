//! The backend of reprocess for Delta Lake tables, in a folder or in an object store.
//!
//! [`DeltaTable`] is a table that reprocess writes and jobs read. Other engines read and write it as well: what they
//! change moves the partitions that they touch and no others. The ledger lives elsewhere, in SQLite or PostgreSQL.
//!
//! Beside the files that Delta knows a table has a folder `_reprocess`, which readers and `VACUUM` pass over: staged
//! sets that wait, what commits kept, and pins that are held.

mod commits;
mod config;
mod error;
mod features;
mod partitions;
mod reader;
mod scan;
mod shadow;
mod table;
mod view;
mod writer;

pub use config::DeltaConfig;
pub use table::DeltaTable;

/// The library underneath, with the versions of Arrow and DataFusion that tables and sessions are of.
pub use deltalake;
