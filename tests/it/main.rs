//! What the library promises, shown over SQLite with numbers worked out by hand, and what the examples say.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod backends;
mod bad_input;
mod carried;
mod coarse;
mod countries;
mod cumulative;
mod custom_backend;
mod merges;
#[cfg(feature = "postgres")]
#[path = "../../reprocess-iceberg/tests/it/postgres.rs"]
mod postgres;
mod rates;
mod rebuilds;
mod refusals;
mod replays;
mod stories;
mod support;
