//! Tests of Iceberg tables against real ones, of catalogs in SQLite and PostgreSQL and of a REST catalog.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod catalogs;
mod engine;
mod fixtures;
mod held;
mod merge;
mod others;
mod postgres;
mod query;
mod races;
mod raw;
mod readers;
mod rest;
#[path = "../rest_server/server.rs"]
mod rest_server;
#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "s3")]
#[path = "../../../tests/s3/mod.rs"]
mod s3_store;
mod shadow;
mod simulation;
mod support;
