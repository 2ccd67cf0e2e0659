//! Tests of the SQLite backend from outside, in one binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod engine;
mod ledger;
mod simulation;
mod tables;
