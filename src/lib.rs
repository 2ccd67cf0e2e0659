//! Re-run a data pipeline as a routine operation.
//!
//! A host application declares its jobs; the library plans a backfill, pins what it reads, replaces or merges exactly
//! the affected partitions in one atomic commit, compares a shadow with production before publishing, keeps a ledger
//! that explains every number, and carries the correction downstream.
//!
//! Start with [`Host`](engine::Host) and [`Engine`](engine::Engine); the words are those of [`domain`].

pub use reprocess_core::*;

/// Delta Lake tables.
#[cfg(feature = "delta")]
pub use reprocess_delta as delta;

/// Apache Iceberg tables in SQL and REST catalogs.
#[cfg(feature = "iceberg")]
pub use reprocess_iceberg as iceberg;

/// Tables and ledger in one PostgreSQL database, shared by many machines.
#[cfg(feature = "postgres")]
pub use reprocess_postgres as postgres;

/// Tables and ledger in one SQLite file.
#[cfg(feature = "sqlite")]
pub use reprocess_sqlite as sqlite;

/// The data plane: rows are Arrow record batches of this version.
pub mod arrow {
    pub use arrow_array as array;
    pub use arrow_schema as schema;
}

/// The code in the README compiles and runs.
#[cfg(all(doctest, feature = "sqlite", feature = "sinks"))]
#[doc = include_str!("../README.md")]
struct Readme;
