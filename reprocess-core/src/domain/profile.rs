//! What a partition holds, in a few numbers: the before and after that a reviewer compares.

mod builder;
mod digest;
mod scoped;
mod total;

pub use builder::ProfileBuilder;
pub use scoped::ScopeProfiler;
pub(crate) use total::Float;

use std::collections::BTreeMap;
use std::fmt;

use arrow_schema::Schema;
use serde::{Deserialize, Serialize};

use super::decimal::Decimal;
use super::partition::PartitionKey;
use crate::error::Result;

/// Name of the digest algorithm of this version: a wrapping 256-bit sum of BLAKE3 over canonical rows.
pub const DIGEST_ALGORITHM: &str = "blake3-sum-v1";

/// What a profile is to contain beside the row count, the null counts and the digests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ProfileSpec {
    /// Columns to total; empty means every numeric column.
    pub totals: Vec<String>,
    /// Columns that identify a row; empty means that no checksum of keys is taken.
    pub keys: Vec<String>,
}

impl ProfileSpec {
    /// Totals of every numeric column, no keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the columns to total.
    #[must_use]
    pub fn with_totals(mut self, columns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.totals = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Names the columns that identify a row.
    #[must_use]
    pub fn with_keys(mut self, columns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.keys = columns.into_iter().map(Into::into).collect();
        self
    }
}

/// Row count, totals, null counts and digests of one partition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Profile {
    /// The partition, or the key that stands for all partitions below it.
    pub partition: PartitionKey,
    /// Number of rows.
    pub rows: u64,
    /// Size of the rows as Arrow arrays, in bytes.
    pub size_bytes: u64,
    /// Sum of each totalled column, NULL left out.
    pub totals: BTreeMap<String, Total>,
    /// Number of NULL values of each column.
    pub nulls: BTreeMap<String, u64>,
    /// Digest over the key columns alone, where the spec names some.
    pub keys: Option<Digest>,
    /// Digest over every column, float bits included: decides skip, base, cut-off and drift.
    pub content: Digest,
    /// Digest without float columns: used by the validator only.
    pub comparable: Digest,
}

impl Profile {
    /// The profile of a partition without rows. Refuses what [`ProfileBuilder::new`] refuses.
    pub fn empty(partition: PartitionKey, schema: &Schema, spec: &ProfileSpec) -> Result<Self> {
        Ok(ProfileBuilder::new(schema, spec)?.finish(partition))
    }
}

/// Sum of a column.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Total {
    /// No value that is not NULL.
    Empty,
    /// An exact sum of integers or decimals.
    Exact(Decimal),
    /// A sum of floats, which depends on the order of rows within the tolerance.
    Float {
        /// Sum of the finite values.
        sum: f64,
        /// By how much another order of the same rows can differ: the number of values times 2⁻⁵² times the sum of
        /// their magnitudes, which bounds every order of summation, compensated or not.
        tolerance: f64,
        /// Number of NaN values, which are not in the sum.
        nan: u64,
        /// Number of positive infinities, which are not in the sum.
        infinite: u64,
        /// Number of negative infinities, which are not in the sum.
        negative_infinite: u64,
    },
}

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.pad("-"),
            Self::Exact(d) => d.fmt(f),
            Self::Float { sum, .. } => f.pad(&sum.to_string()),
        }
    }
}

/// A digest over a multiset of rows; equal only under the same algorithm.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Digest {
    /// Name of the algorithm; unequal algorithms are recomputed, never reported as a difference.
    pub algorithm: String,
    /// The digest in hexadecimal: the sum, then the number of rows.
    pub value: String,
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.value.get(..12).unwrap_or(&self.value))
    }
}

#[cfg(test)]
#[path = "profile_tests.rs"]
mod tests;
