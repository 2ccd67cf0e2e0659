//! What several benches need: a large catalog with its facts, and how much memory the process has.

#![allow(dead_code, reason = "each bench uses a part")]

pub(crate) mod catalog;
pub(crate) mod memory;
pub(crate) mod rows;
#[cfg(feature = "sqlite")]
pub(crate) mod sales;
