//! Tests of Delta tables against real ones in folders.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod engine;
mod features;
mod held;
mod merge;
mod query;
mod races;
mod readers;
mod simulation;
mod support;
