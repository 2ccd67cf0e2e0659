//! How the rows of a partition differ before and after.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::decimal::Decimal;
use super::partition::PartitionKey;

/// What a diff is to contain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
}

impl DiffSpec {
    /// Rows identified by `keys`, up to 20 samples of each kind.
    pub fn new(keys: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { keys: keys.into_iter().map(Into::into).collect(), samples: 20, distributions: Vec::new() }
    }

    /// Sets how many rows of each kind are shown.
    #[must_use]
    pub fn with_samples(mut self, samples: usize) -> Self {
        self.samples = samples;
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
    /// For each column that is not a key, in how many changed rows it differs.
    pub columns: BTreeMap<String, u64>,
    /// For each numeric column, how far values moved (after minus before) over the changed rows.
    pub distributions: BTreeMap<String, Distribution>,
    /// Some of the rows that differ.
    pub samples: Vec<RowDiff>,
}

/// Quantiles of the difference of one column over the changed rows in which both values are finite numbers.
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
