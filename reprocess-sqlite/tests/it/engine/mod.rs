//! The engine over one SQLite file, with several processes.

mod kill;
mod merge;
mod shop;
mod signals;
mod together;
