//! Tests of Delta tables against real ones in folders and in an object store.
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
#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "s3")]
#[path = "../../../tests/s3/mod.rs"]
mod s3_store;
mod simulation;
mod support;
