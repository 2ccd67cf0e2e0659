//! Canonical values of Arrow rows: what makes two rows equal, whatever engine wrote them.
//!
//! A value does not depend on the width of its integer, the trailing zeros of its decimal, the layout of its text,
//! the unit of its timestamp or date, on dictionary or run-end encoding, or on the order of columns. Timestamps are
//! instants of UTC; one without a zone is read as UTC. NULL is distinct from every value. Types that have no
//! canonical form here are refused by name.

mod cell;
mod column;
mod partitions;

pub use cell::{Cell, CellKind};
pub(crate) use column::encode;
pub use column::{Column, Columns};
pub(crate) use partitions::refuse_outside;
pub use partitions::{check_rows, column_values, partition_of_rows, partition_runs};

#[cfg(test)]
#[path = "../rows_tests.rs"]
mod tests;
