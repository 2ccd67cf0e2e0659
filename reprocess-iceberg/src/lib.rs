//! The backend of reprocess for Apache Iceberg tables, in SQL and REST catalogs.
//!
//! [`IcebergTable`] is a table that reprocess writes and jobs read. Other engines read and write it as well: what they
//! change moves the partitions that they touch and no others. A commit is one snapshot that replaces exactly its scope;
//! the shadow of a backfill is a branch that every engine can read. The ledger is in SQLite or PostgreSQL, and where it
//! is in the database of the catalog, data and ledger change in one transaction.
//!
//! Beside the files that Iceberg knows a table has a folder `_reprocess`: staged sets that wait, and pins that are held.

mod bridge;
mod catalog;
mod columns;
mod commits;
mod config;
mod error;
mod features;
mod files;
mod manifests;
mod partitions;
mod reader;
mod scan;
mod shadow;
mod snapshot;
mod storage;
mod table;
mod view;
mod writer;

pub use catalog::{IcebergCatalog, RestConfig};
pub use config::IcebergConfig;
pub use table::IcebergTable;

/// The engine of queries, with the version that sessions are of.
pub use datafusion;
/// The library underneath.
pub use iceberg;
