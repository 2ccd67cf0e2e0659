//! The engine over Iceberg tables, with catalog and ledger in one SQLite file, and processes that are killed.

mod kill;
mod shop;
