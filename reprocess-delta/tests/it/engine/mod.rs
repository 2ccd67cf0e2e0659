//! The engine over Delta tables, with a ledger in SQLite, and processes that are killed.

mod kill;
mod shop;
