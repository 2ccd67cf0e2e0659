//! What a backfill is expected to change, and what not.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::domain::decimal::Decimal;
use crate::domain::partition::PartitionKey;

/// What one expectation that is not met does to the verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A person has to look.
    #[default]
    Review,
    /// The backfill stops.
    Abort,
}

/// How far a value may lie from its prediction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tolerance {
    /// By this much.
    Absolute(Decimal),
    /// By this fraction of the predicted value, for example `0.01` for one percent.
    Relative(f64),
}

impl Default for Tolerance {
    fn default() -> Self {
        Self::Absolute(Decimal::ZERO)
    }
}

/// A predicted change of a total.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prediction {
    /// The same in every partition.
    Each(Decimal),
    /// One per partition; a partition that is not listed is predicted not to change.
    #[serde(with = "crate::domain::slice::entries")]
    PerPartition(BTreeMap<PartitionKey, Decimal>),
}

/// One expectation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Expectation {
    /// Every partition keeps its number of rows.
    RowCountUnchanged,
    /// The total of a column changes by a predicted amount.
    TotalChanges {
        /// The column.
        column: String,
        /// After minus before.
        by: Prediction,
        /// How far off it may be.
        #[serde(default)]
        tolerance: Tolerance,
    },
    /// The total of a column falls or stays.
    TotalOnlyFalls {
        /// The column.
        column: String,
    },
    /// The total of a column rises or stays.
    TotalOnlyRises {
        /// The column.
        column: String,
    },
    /// The total of a column stays.
    TotalUnchanged {
        /// The column.
        column: String,
        /// How far off it may be.
        #[serde(default)]
        tolerance: Tolerance,
    },
    /// Rows change in these columns only.
    OnlyColumnsChange {
        /// The columns that may change.
        columns: Vec<String>,
    },
    /// At most so many rows of a partition are added.
    RowsAddedAtMost(u64),
    /// At most so many rows of a partition are removed.
    RowsRemovedAtMost(u64),
    /// At most so many rows of a partition are changed.
    RowsChangedAtMost(u64),
    /// Quantiles of the per-row difference of a column lie within bounds, both inclusive.
    ChangeWithin {
        /// The column.
        column: String,
        /// Which quantile: 0 is the smallest difference, 0.5 the median, 1 the largest; 0.01 and 0.99 are known too.
        quantile: f64,
        /// Lower bound.
        min: f64,
        /// Upper bound.
        max: f64,
    },
}

impl Expectation {
    /// The expectation without predictions for other partitions than the chosen ones.
    pub(crate) fn only(&self, chosen: &[PartitionKey]) -> Self {
        match self {
            Self::TotalChanges { column, by: Prediction::PerPartition(by), tolerance } => {
                let by = chosen.iter().filter_map(|key| Some((key.clone(), *by.get(key)?))).collect();
                Self::TotalChanges {
                    column: column.clone(),
                    by: Prediction::PerPartition(by),
                    tolerance: *tolerance,
                }
            }
            other => other.clone(),
        }
    }
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absolute(by) if *by == Decimal::ZERO => f.write_str("exactly"),
            Self::Absolute(by) => write!(f, "give or take {by}"),
            Self::Relative(fraction) => write!(f, "give or take {}%", fraction * 100.0),
        }
    }
}

impl fmt::Display for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Each(by) => write!(f, "by {by} in every partition"),
            Self::PerPartition(by) => {
                write!(f, "by an amount for each of {} partitions", by.len())?;
                let sum = by.values().try_fold(Decimal::ZERO, |sum, by| sum.checked_add(by));
                sum.map_or(Ok(()), |sum| write!(f, ", {sum} in all"))
            }
        }
    }
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RowCountUnchanged => f.write_str("the number of rows stays"),
            Self::TotalChanges { column, by, tolerance } => {
                write!(f, "the total of `{column}` changes {by}, {tolerance}")
            }
            Self::TotalOnlyFalls { column } => write!(f, "the total of `{column}` falls or stays"),
            Self::TotalOnlyRises { column } => write!(f, "the total of `{column}` rises or stays"),
            Self::TotalUnchanged { column, tolerance } => {
                write!(f, "the total of `{column}` stays, {tolerance}")
            }
            Self::OnlyColumnsChange { columns } => {
                write!(f, "only these columns change: {}", columns.join(", "))
            }
            Self::RowsAddedAtMost(n) => write!(f, "at most {n} rows of a partition are added"),
            Self::RowsRemovedAtMost(n) => write!(f, "at most {n} rows of a partition are removed"),
            Self::RowsChangedAtMost(n) => write!(f, "at most {n} rows of a partition are changed"),
            Self::ChangeWithin { column, quantile, min, max } => {
                write!(f, "quantile {quantile} of the change of `{column}` lies between {min} and {max}")
            }
        }
    }
}
