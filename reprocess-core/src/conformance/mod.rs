//! The conformance suite: the contracts of the ports, and what the engine promises over them, one named law each, for any
//! backend that supplies a small [`Fixture`].
//!
//! A backend's test is a few lines, and every law is a test of its own:
//!
//! ```ignore
//! reprocess_core::conformance_tests!(MyFixture::default());
//! ```
//!
//! A law is tried where what it needs is offered, by the writer's [`Capabilities`](crate::ports::writer::Capabilities)
//! or by the fixture's [`Hooks`]. Laws assert, so they panic where a promise is broken, and say by which rows.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a law that does not hold panics: that is what it is for"
)]

#[cfg(test)]
mod broken;
mod commit;
mod engine;
mod entries;
mod fences;
mod fixture;
mod guards;
mod ledger;
mod memory;
mod merge;
mod needs;
mod reader;
mod registry;
mod replace;
mod report;
mod restore;
mod schema;
pub mod simulation;
mod staged;
mod world;

pub use fixture::{Fixture, Handle, Hooks, Offer, Place};
pub use memory::MemoryFixture;
pub use registry::{Law, laws};
pub use report::{Outcome, Report, check, run_all, run_matching};

#[cfg(test)]
pub(crate) use engine::faults;

#[cfg(test)]
mod tests;
