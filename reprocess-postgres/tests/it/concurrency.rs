//! Several that write and read one table at the same time.

mod merge;
mod race;
