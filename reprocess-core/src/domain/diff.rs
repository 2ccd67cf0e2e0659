//! How the rows of a partition differ before and after.

mod compare;
mod distribution;
mod rows;

pub use compare::{LeftOut, diff, diff_of_rest};

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::decimal::Decimal;
use super::partition::PartitionKey;

/// What a diff is to contain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct DiffSpec {
    /// Columns that identify a row. Empty, or repeated or NULL in the rows: whole rows are compared as a multiset,
    /// and nothing counts as changed.
    pub keys: Vec<String>,
    /// How many rows of each kind to show, in the order of their keys.
    pub samples: usize,
    /// Numeric columns whose per-row difference is summed up as a distribution; empty means every numeric column.
    pub distributions: Vec<String>,
    /// Two floats that are no key are equal when they agree to so many significant digits: engines add up in
    /// different orders, and a reviewer is not to see that. 17 digits and more compare exactly.
    pub float_digits: u8,
}

impl Default for DiffSpec {
    fn default() -> Self {
        Self { keys: Vec::new(), samples: 0, distributions: Vec::new(), float_digits: 9 }
    }
}

impl DiffSpec {
    /// Rows identified by `keys`, up to 20 samples of each kind.
    pub fn new(keys: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { keys: keys.into_iter().map(Into::into).collect(), samples: 20, ..Self::default() }
    }

    /// Sets how many rows of each kind are shown.
    #[must_use]
    pub fn with_samples(mut self, samples: usize) -> Self {
        self.samples = samples;
        self
    }

    /// Names the columns whose differences are summed up.
    #[must_use]
    pub fn with_distributions(mut self, columns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.distributions = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets to how many significant digits floats must agree.
    #[must_use]
    pub fn with_float_digits(mut self, digits: u8) -> Self {
        self.float_digits = digits;
        self
    }
}

/// Difference of one partition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Diff {
    /// The partition.
    pub partition: PartitionKey,
    /// Whether rows were matched by key; `false` compares whole rows.
    pub keyed: bool,
    /// Rows only after.
    pub added: u64,
    /// Rows only before.
    pub removed: u64,
    /// Rows on both sides with another value in some column.
    pub changed: u64,
    /// Rows equal on both sides.
    pub unchanged: u64,
    /// For each column that is not a key, in how many changed rows it differs; empty where rows are not matched.
    pub columns: BTreeMap<String, u64>,
    /// For each numeric column, how far values moved (after minus before) over the changed rows.
    pub distributions: BTreeMap<String, Distribution>,
    /// Some of the rows that differ.
    pub samples: Vec<RowDiff>,
}

/// Quantiles of the difference of one column over the changed rows in which both values are finite numbers. A
/// quantile is the smallest difference that at least so large a part of the rows does not exceed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Distribution {
    /// How many rows it is taken over.
    pub rows: u64,
    /// Smallest difference.
    pub min: f64,
    /// First percentile.
    pub p01: f64,
    /// Median.
    pub p50: f64,
    /// Ninety-ninth percentile.
    pub p99: f64,
    /// Largest difference.
    pub max: f64,
    /// Sum of the differences where the column is exact.
    pub sum: Option<Decimal>,
}

/// One row that differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RowDiff {
    /// Key columns and their values as text; `null` is NULL.
    pub key: BTreeMap<String, Option<String>>,
    /// Other columns before, absent where the row was added; of a changed row only the columns that differ.
    pub before: Option<BTreeMap<String, Option<String>>>,
    /// The same after, absent where the row was removed.
    pub after: Option<BTreeMap<String, Option<String>>>,
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
