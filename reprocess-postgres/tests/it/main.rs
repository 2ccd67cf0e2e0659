//! Tests of the PostgreSQL backend from outside, in one binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod connect;
mod ledger;
mod proxy;
mod server;
mod simulation;
mod source;
mod tables;
