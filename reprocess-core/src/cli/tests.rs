//! The command line over a small host in memory.

mod arguments;
mod fuzz;
mod host;
mod schedule;
mod story;
