//! The validator: what the reason for a backfill predicts, against what happened.
//!
//! Every partition is looked at by itself. A partition that is missing on one side counts as empty. A partition whose
//! content digests are equal, or that is missing on both sides, has not changed and needs no diff.
//!
//! **What expectations say.** Each expectation is checked in each partition; where it is not met, the finding has the
//! severity that was given with it. Beside that, some of them *predict*, so that what follows is no surprise:
//!
//! | expectation | predicts |
//! |---|---|
//! | total changes (by other than zero, or within a tolerance), only falls, only rises; change within bounds; total unchanged within a tolerance | that this column changes |
//! | only columns change | that each of these columns changes |
//! | rows added (removed) at most *n* | that rows are added (removed), and what they bring (take away) |
//!
//! Row count unchanged, rows changed at most *n*, and total unchanged without a tolerance predict no change.
//!
//! **What else is a finding**, always of severity review: rows that were added or removed, a row count, a set of keys,
//! a total, a number of NULL, NaN or infinite values, or values of a column in the diff that changed without being
//! predicted; and comparable digests that differ although nothing that may change has visibly changed. So without
//! expectations every difference is a finding.
//!
//! A total or a NULL count that changed because rows came or went is no finding beside that of the rows. It is told from
//! other changes by a keyed diff in which rows on both sides kept their values in that column, or, where rows are not
//! matched, by a diff with only added or only removed rows.
//!
//! Totals of floats are equal within the sum of their tolerances. Digests of unequal algorithms are no difference.
//! What a check needs and does not have is a finding of severity review, "not checked". Without a diff, totals and NULL
//! counts are all there is: a changed text can hide behind a predicted change of another column, and an expectation on
//! columns, which cannot be checked then, says so.

mod change;
mod check;
mod expectation;
mod unpredicted;
mod verdict;

use std::collections::BTreeMap;

pub use expectation::{Expectation, Prediction, Severity, Tolerance};
pub use verdict::{Decision, Finding, FindingKind, Verdict};

use super::diff::Diff;
use super::partition::PartitionKey;
use super::profile::Profile;
use change::PartitionChange;

/// Checks every partition of either side, and every partition that a prediction names, against the expectations.
/// Answers all findings, by partition; the rules stand at the head of the module.
pub fn validate(
    expectations: &[(Expectation, Severity)],
    before: &[Profile],
    after: &[Profile],
    diffs: &[Diff],
) -> Verdict {
    let mut partitions: BTreeMap<&PartitionKey, PartitionChange<'_>> = BTreeMap::new();
    for profile in before {
        partitions.entry(&profile.partition).or_default().before = Some(profile);
    }
    for profile in after {
        partitions.entry(&profile.partition).or_default().after = Some(profile);
    }
    for diff in diffs {
        partitions.entry(&diff.partition).or_default().diff = Some(diff);
    }
    for (expectation, _) in expectations {
        if let Expectation::TotalChanges { by: Prediction::PerPartition(by), .. } = expectation {
            by.keys().for_each(|partition| {
                partitions.entry(partition).or_default();
            });
        }
    }
    let mut findings = Vec::new();
    for (partition, change) in &partitions {
        for (expectation, severity) in expectations {
            findings.extend(check::check(partition, change, expectation, *severity));
        }
        findings.extend(unpredicted::find(partition, change, expectations));
    }
    Verdict::new(partitions.len(), findings)
}

#[cfg(test)]
#[path = "../validate_tests.rs"]
mod tests;
