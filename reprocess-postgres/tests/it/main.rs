//! Tests of the PostgreSQL backend from outside, in one binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod columns;
mod concurrency;
mod conditions;
mod connect;
mod crash;
mod ledger;
mod pooled;
mod proxy;
mod server;
mod simulation;
mod source;
mod tables;
