//! One partition before and after.

use std::collections::BTreeSet;

use super::Tolerance;
use crate::domain::decimal::Decimal;
use crate::domain::diff::Diff;
use crate::domain::profile::{Digest, Profile, Total};

/// What is known of one partition; a missing profile is that of an empty partition.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PartitionChange<'a> {
    pub(super) before: Option<&'a Profile>,
    pub(super) after: Option<&'a Profile>,
    pub(super) diff: Option<&'a Diff>,
}

impl PartitionChange<'_> {
    /// Number of rows before and after.
    pub(super) fn rows(&self) -> (u64, u64) {
        (self.before.map_or(0, |p| p.rows), self.after.map_or(0, |p| p.rows))
    }

    /// Whether nothing at all has changed, down to the bits of floats.
    pub(super) fn is_same(&self) -> bool {
        let same_content = || match (self.before, self.after) {
            (Some(before), Some(after)) => before.content == after.content,
            _ => false,
        };
        self.rows() == (0, 0) || same_content()
    }

    /// Every column that a profile or the diff knows.
    pub(super) fn columns(&self) -> BTreeSet<&str> {
        let profiles = || self.before.into_iter().chain(self.after);
        let totals = profiles().flat_map(|p| p.totals.keys());
        let nulls = profiles().flat_map(|p| p.nulls.keys());
        let differing = self.diff.into_iter().flat_map(|d| d.columns.keys());
        totals.chain(nulls).chain(differing).map(String::as_str).collect()
    }

    /// Whether the table has the column before and after; an empty partition has every column.
    pub(super) fn has_column(&self, column: &str) -> (bool, bool) {
        let has =
            |profile: Option<&Profile>| profile.is_none_or(|p| p.rows == 0 || p.nulls.contains_key(column));
        (has(self.before), has(self.after))
    }

    /// Totals of a column before and after; `None` where one was not taken.
    pub(super) fn totals(&self, column: &str) -> Option<(Total, Total)> {
        let mut filled = self.before.into_iter().chain(self.after).filter(|p| p.rows > 0).peekable();
        if filled.peek().is_some() && !filled.any(|p| p.nulls.contains_key(column)) {
            return None;
        }
        let of = |profile: Option<&Profile>| match profile {
            Some(p) if p.rows > 0 && p.nulls.contains_key(column) => p.totals.get(column).copied(),
            _ => Some(Total::Empty),
        };
        Some((of(self.before)?, of(self.after)?))
    }

    /// Number of NULL values before and after; a column that does not exist is NULL.
    pub(super) fn nulls(&self, column: &str) -> (u64, u64) {
        let of = |profile: Option<&Profile>| profile.map_or(0, |p| *p.nulls.get(column).unwrap_or(&p.rows));
        (of(self.before), of(self.after))
    }

    /// Whether two digests of one algorithm differ.
    pub(super) fn differs<'p>(&'p self, of: impl Fn(&'p Profile) -> Option<&'p Digest>) -> bool {
        match (self.before.and_then(&of), self.after.and_then(&of)) {
            (Some(before), Some(after)) => before.algorithm == after.algorithm && before.value != after.value,
            _ => false,
        }
    }

    /// How many rows may have changed without being seen: where rows are not matched, a changed row is one removed
    /// and one added.
    pub(super) fn hidden(&self) -> u64 {
        self.diff.filter(|d| !d.keyed).map_or(0, |d| d.added.min(d.removed))
    }
}

/// `1 row`, `2 rows`.
pub(super) fn rows_text(rows: u64) -> String {
    format!("{rows} {}", if rows == 1 { "row" } else { "rows" })
}

/// How far a total moved.
#[derive(Clone, Copy, Debug)]
pub(super) enum Moved {
    Exactly(Decimal),
    About {
        by: f64,
        /// What the order of rows alone can make of it.
        slack: f64,
    },
}

impl Moved {
    /// After minus before, an empty total taken as zero.
    pub(super) fn between(before: &Total, after: &Total) -> Self {
        match (exact(before), exact(after)) {
            (Some(b), Some(a)) => match a.checked_sub(&b) {
                Some(by) => Self::Exactly(by),
                None => Self::About { by: a.to_f64() - b.to_f64(), slack: 0.0 },
            },
            _ => Self::About { by: number(after) - number(before), slack: slack(before) + slack(after) },
        }
    }

    pub(super) fn is_nothing(&self) -> bool {
        !self.is_fall() && !self.is_rise()
    }

    pub(super) fn is_fall(&self) -> bool {
        match self {
            Self::Exactly(by) => *by < Decimal::ZERO,
            Self::About { by, slack } => *by < -slack,
        }
    }

    pub(super) fn is_rise(&self) -> bool {
        match self {
            Self::Exactly(by) => *by > Decimal::ZERO,
            Self::About { by, slack } => by > slack,
        }
    }

    /// Whether this is the predicted amount, within the tolerance; a relative one is a part of `reference`.
    pub(super) fn is(&self, predicted: &Decimal, tolerance: &Tolerance, reference: f64) -> bool {
        let missed_by = match self {
            Self::Exactly(by) => by.checked_sub(predicted).and_then(|missed| missed.checked_abs()),
            Self::About { .. } => None,
        };
        match (self, tolerance, missed_by) {
            (_, Tolerance::Absolute(allowed), Some(missed)) => missed <= *allowed,
            (_, Tolerance::Relative(part), Some(missed)) => {
                missed == Decimal::ZERO || missed.to_f64() <= part * reference.abs()
            }
            (Self::About { by, slack }, tolerance, _) => {
                let allowed = match tolerance {
                    Tolerance::Absolute(allowed) => allowed.to_f64(),
                    Tolerance::Relative(part) => part * reference.abs(),
                };
                (by - predicted.to_f64()).abs() <= allowed + slack
            }
            // The miss does not fit into 256 bits.
            (Self::Exactly(_), _, None) => false,
        }
    }
}

impl std::fmt::Display for Moved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exactly(by) => by.fmt(f),
            Self::About { by, .. } => by.fmt(f),
        }
    }
}

/// Numbers of NaN, infinite and negative infinite values.
pub(super) fn not_finite(total: &Total) -> (u64, u64, u64) {
    match total {
        Total::Float { nan, infinite, negative_infinite, .. } => (*nan, *infinite, *negative_infinite),
        _ => (0, 0, 0),
    }
}

/// The total as a double, zero where it is empty.
pub(super) fn number(total: &Total) -> f64 {
    match total {
        Total::Empty => 0.0,
        Total::Exact(sum) => sum.to_f64(),
        Total::Float { sum, .. } => *sum,
    }
}

fn exact(total: &Total) -> Option<Decimal> {
    match total {
        Total::Empty => Some(Decimal::ZERO),
        Total::Exact(sum) => Some(*sum),
        Total::Float { .. } => None,
    }
}

fn slack(total: &Total) -> f64 {
    match total {
        Total::Float { tolerance, .. } => *tolerance,
        _ => 0.0,
    }
}
