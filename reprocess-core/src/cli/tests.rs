//! The command line over a small host in memory.

mod arguments;
mod documents;
mod fuzz;
mod host;
mod inspect;
mod schedule;
mod story;
mod workers;
