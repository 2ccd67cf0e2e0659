//! The engine over one SQLite file, with several processes.

mod kill;
mod shop;
mod together;
