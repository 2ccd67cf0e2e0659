//! The command line over a small host in memory.

mod arguments;
mod host;
mod story;
