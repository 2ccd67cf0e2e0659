//! Snapshots on real tables in a folder, whose catalog is only this: requirements are checked, updates are
//! applied.

mod evolution;
mod history;
mod lab;
mod merging;
mod replace;
mod retry;
mod rows;
mod summaries;
