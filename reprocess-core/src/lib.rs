//! Domain, planner, validator, ports and engine of reprocess.
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod domain;
pub mod engine;
pub mod error;
pub mod memory;
pub mod ports;
pub mod render;
pub mod replay;
#[cfg(feature = "sinks")]
pub mod sinks;

pub use error::{Error, ErrorKind, Result};
