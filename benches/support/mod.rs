//! What several benches need: a large catalog with its facts, tables of rows, and how much memory the process has.

#![allow(dead_code, reason = "each bench uses a part")]

use std::path::{Path, PathBuf};

#[cfg(feature = "postgres")]
pub(crate) mod by_hand;
pub(crate) mod catalog;
#[cfg(feature = "postgres")]
pub(crate) mod facts;
pub(crate) mod measured;
pub(crate) mod memory;
pub(crate) mod rows;
#[cfg(feature = "sqlite")]
pub(crate) mod sales;
#[cfg(feature = "postgres")]
pub(crate) mod server;
pub(crate) mod through;

/// Where large tables are kept from one run to the next.
pub(crate) fn cached(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("benches");
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
