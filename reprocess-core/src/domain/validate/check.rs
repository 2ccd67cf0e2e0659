//! Checks one expectation in one partition.

use super::change::{Moved, PartitionChange, number, rows_text};
use super::{Expectation, Finding, FindingKind, Prediction, Severity, Tolerance};
use crate::domain::decimal::Decimal;
use crate::domain::diff::{Diff, Distribution};
use crate::domain::partition::PartitionKey;
use crate::domain::profile::Total;

/// What came of a check: met, or one message for each way in which it is not.
enum Outcome {
    Met,
    NotMet(Vec<String>),
    NotChecked(String),
}

use Outcome::{Met, NotChecked, NotMet};

/// The findings of one expectation in one partition.
pub(super) fn check(
    partition: &PartitionKey,
    change: &PartitionChange<'_>,
    expectation: &Expectation,
    severity: Severity,
) -> Vec<Finding> {
    let (severity, kind, messages) = match outcome(partition, change, expectation) {
        Met => return Vec::new(),
        NotMet(messages) => (severity, FindingKind::NotMet, messages),
        NotChecked(why) => (Severity::Review, FindingKind::NotChecked, vec![format!("not checked: {why}")]),
    };
    // A verdict over many partitions would else hold every prediction as many times.
    let own = expectation.only(std::slice::from_ref(partition));
    let finding = |message| Finding {
        partition: partition.clone(),
        severity,
        kind,
        expectation: Some(own.clone()),
        message,
    };
    messages.into_iter().map(finding).collect()
}

fn outcome(partition: &PartitionKey, change: &PartitionChange<'_>, expectation: &Expectation) -> Outcome {
    let rows = |diff: &Diff, found: u64, most: u64, what: &str| {
        let how = if diff.keyed { "" } else { " (not matched by key: a changed row is removed and added)" };
        met(found <= most, || format!("{} {what}{how}, at most {most} expected", rows_text(found)))
    };
    match expectation {
        Expectation::RowCountUnchanged => {
            let (before, after) = change.rows();
            met(before == after, || format!("the row count changed from {before} to {after}"))
        }
        Expectation::TotalChanges { column, by, tolerance } => {
            let predicted = predicted(by, partition);
            with_total(change, column, |moved, before, after| {
                met(moved.is(&predicted, tolerance, predicted.to_f64()), || {
                    format!(
                        "the total of `{column}` changed by {moved} from {before} to {after}, predicted was {predicted}{}",
                        allowance(tolerance)
                    )
                })
            })
        }
        Expectation::TotalOnlyFalls { column } => with_total(change, column, |moved, before, after| {
            met(!moved.is_rise(), || format!("the total of `{column}` rose from {before} to {after}"))
        }),
        Expectation::TotalOnlyRises { column } => with_total(change, column, |moved, before, after| {
            met(!moved.is_fall(), || format!("the total of `{column}` fell from {before} to {after}"))
        }),
        Expectation::TotalUnchanged { column, tolerance } => {
            with_total(change, column, |moved, before, after| {
                met(moved.is(&Decimal::ZERO, tolerance, number(before)), || {
                    format!(
                        "the total of `{column}` changed by {moved} from {before} to {after}{}",
                        allowance(tolerance)
                    )
                })
            })
        }
        Expectation::OnlyColumnsChange { columns } => with_diff(change, |diff| only_columns(diff, columns)),
        Expectation::RowsAddedAtMost(most) => with_diff(change, |d| rows(d, d.added, *most, "added")),
        Expectation::RowsRemovedAtMost(most) => with_diff(change, |d| rows(d, d.removed, *most, "removed")),
        Expectation::RowsChangedAtMost(most) => {
            with_diff(change, |d| rows(d, d.changed + change.hidden(), *most, "changed"))
        }
        Expectation::ChangeWithin { column, quantile, min, max } => {
            with_diff(change, |diff| within(diff, column, *quantile, (*min, *max)))
        }
    }
}

fn met(met: bool, message: impl FnOnce() -> String) -> Outcome {
    if met { Met } else { NotMet(vec![message()]) }
}

/// The predicted change of one partition.
pub(super) fn predicted(by: &Prediction, partition: &PartitionKey) -> Decimal {
    match by {
        Prediction::Each(by) => *by,
        Prediction::PerPartition(by) => by.get(partition).copied().unwrap_or(Decimal::ZERO),
    }
}

fn allowance(tolerance: &Tolerance) -> String {
    match tolerance {
        Tolerance::Absolute(by) if *by == Decimal::ZERO => String::new(),
        Tolerance::Absolute(by) => format!(" ± {by}"),
        Tolerance::Relative(part) => format!(" ± {}%", part * 100.0),
    }
}

fn with_total(
    change: &PartitionChange<'_>,
    column: &str,
    check: impl FnOnce(&Moved, &Total, &Total) -> Outcome,
) -> Outcome {
    match change.totals(column) {
        Some((before, after)) => check(&Moved::between(&before, &after), &before, &after),
        None => NotChecked(format!("no total of `{column}` was taken")),
    }
}

fn with_diff(change: &PartitionChange<'_>, check: impl FnOnce(&Diff) -> Outcome) -> Outcome {
    match change.diff {
        _ if change.is_same() => Met,
        Some(diff) => check(diff),
        None => NotChecked("there is no diff of the rows".to_owned()),
    }
}

fn only_columns(diff: &Diff, allowed: &[String]) -> Outcome {
    if !diff.keyed && diff.added.min(diff.removed) > 0 {
        return NotChecked(format!(
            "{} removed and {} added, without unique keys that tell which columns changed",
            rows_text(diff.removed),
            rows_text(diff.added)
        ));
    }
    let others: Vec<_> = diff
        .columns
        .iter()
        .filter(|(column, rows)| **rows > 0 && !allowed.contains(column))
        .map(|(column, rows)| format!("column `{column}` changed in {}", rows_text(*rows)))
        .collect();
    if others.is_empty() { Met } else { NotMet(others) }
}

fn within(diff: &Diff, column: &str, quantile: f64, (min, max): (f64, f64)) -> Outcome {
    if !diff.keyed && diff.added.min(diff.removed) > 0 {
        return NotChecked(format!("without unique keys there is no distribution of `{column}`"));
    }
    let Some(distribution) = diff.distributions.get(column) else {
        return match diff.columns.get(column) {
            _ if diff.changed == 0 => Met,
            Some(0) => Met,
            _ => NotChecked(format!("there is no distribution of `{column}`")),
        };
    };
    match value_at(distribution, quantile) {
        Some(found) => met(min <= found && found <= max, || {
            format!("quantile {quantile} of the change of `{column}` is {found}, not within {min} and {max}")
        }),
        None => NotChecked(format!("quantile {quantile} is not known; 0, 0.01, 0.5, 0.99 and 1 are")),
    }
}

fn value_at(distribution: &Distribution, quantile: f64) -> Option<f64> {
    let known = [
        (0.0, distribution.min),
        (0.01, distribution.p01),
        (0.5, distribution.p50),
        (0.99, distribution.p99),
        (1.0, distribution.max),
    ];
    known.into_iter().find(|(q, _)| (q - quantile).abs() < 1e-9).map(|(_, value)| value)
}
