//! Several that write and read one table at the same time.

mod interval;
mod matrix;
mod merge;
pub(crate) mod race;
mod readers;
