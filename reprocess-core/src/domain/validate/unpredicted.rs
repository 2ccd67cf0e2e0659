//! What differs in one partition and no expectation predicts.

use std::collections::BTreeSet;

use super::change::{Moved, PartitionChange, not_finite, rows_text};
use super::check::predicted;
use super::{Expectation, Finding, FindingKind, Severity, Tolerance};
use crate::domain::decimal::Decimal;
use crate::domain::partition::PartitionKey;

/// The differences of a partition that nothing predicts. The rules stand at the head of the parent module.
pub(super) fn find(
    partition: &PartitionKey,
    change: &PartitionChange<'_>,
    expectations: &[(Expectation, Severity)],
) -> Vec<Finding> {
    let said = Said::of(expectations, partition);
    let mut found = Vec::new();
    if !change.is_same() {
        rows(change, &said, &mut found);
    }
    for column in change.columns() {
        let facts = column_facts(change, &said, column);
        if !facts.is_empty() {
            found.push((FindingKind::Unpredicted, format!("column `{column}` {}", facts.join(", "))));
        }
        found.extend(missing_total(change, column).map(|why| (FindingKind::NotChecked, why)));
    }
    if !change.is_same() {
        digests(change, &said, &mut found);
    }
    let finding = |(kind, message)| Finding {
        partition: partition.clone(),
        severity: Severity::Review,
        kind,
        expectation: None,
        message: match kind {
            FindingKind::NotChecked => format!("not checked: {message}"),
            _ => format!("{message}, which nothing predicts"),
        },
    };
    found.into_iter().map(finding).collect()
}

/// What the expectations say about one partition.
#[derive(Default)]
struct Said<'a> {
    /// Columns that may change.
    may_change: BTreeSet<&'a str>,
    /// Columns that may change in every respect.
    listed: BTreeSet<&'a str>,
    /// Columns whose total is the matter of an expectation.
    totals: BTreeSet<&'a str>,
    only_columns: bool,
    row_count: bool,
    added: Option<u64>,
    removed: Option<u64>,
}

impl<'a> Said<'a> {
    fn of(expectations: &'a [(Expectation, Severity)], partition: &PartitionKey) -> Self {
        let mut said = Self::default();
        for (expectation, _) in expectations {
            match expectation {
                Expectation::RowCountUnchanged => said.row_count = true,
                Expectation::TotalChanges { column, by, tolerance } => {
                    let drifts = predicted(by, partition) != Decimal::ZERO || allows_drift(tolerance);
                    said.total(column, drifts);
                }
                Expectation::TotalOnlyFalls { column } | Expectation::TotalOnlyRises { column } => {
                    said.total(column, true);
                }
                Expectation::TotalUnchanged { column, tolerance } => {
                    said.total(column, allows_drift(tolerance));
                }
                Expectation::ChangeWithin { column, .. } => {
                    said.may_change.insert(column);
                }
                Expectation::OnlyColumnsChange { columns } => {
                    said.only_columns = true;
                    said.may_change.extend(columns.iter().map(String::as_str));
                    said.listed.extend(columns.iter().map(String::as_str));
                }
                Expectation::RowsAddedAtMost(most) => said.added = said.added.max(Some(*most)),
                Expectation::RowsRemovedAtMost(most) => said.removed = said.removed.max(Some(*most)),
                Expectation::RowsChangedAtMost(_) => {}
            }
        }
        said
    }

    fn total(&mut self, column: &'a str, may_change: bool) {
        self.totals.insert(column);
        if may_change {
            self.may_change.insert(column);
        }
    }

    fn predicts_added(&self) -> bool {
        self.added.is_some_and(|most| most > 0)
    }

    fn predicts_removed(&self) -> bool {
        self.removed.is_some_and(|most| most > 0)
    }
}

fn allows_drift(tolerance: &Tolerance) -> bool {
    match tolerance {
        Tolerance::Absolute(by) => *by > Decimal::ZERO,
        Tolerance::Relative(part) => *part > 0.0,
    }
}

/// Row counts, keys, and rows that were added or removed.
fn rows(change: &PartitionChange<'_>, said: &Said<'_>, found: &mut Vec<(FindingKind, String)>) {
    let mut unpredicted = |message: String| found.push((FindingKind::Unpredicted, message));
    let (before, after) = change.rows();
    let grown = if after > before { said.predicts_added() } else { said.predicts_removed() };
    let told_by_diff = change.diff.is_some_and(|d| before + d.added == after + d.removed);
    if before != after && !grown && !said.row_count && !told_by_diff {
        unpredicted(format!("the row count changed from {before} to {after}"));
    }
    let Some(diff) = change.diff else {
        let replaced = said.predicts_added() && said.predicts_removed();
        if before == after && !replaced && change.differs(|p| p.keys.as_ref()) {
            unpredicted("other keys came in the place of some".to_owned());
        }
        return;
    };
    let hidden = change.hidden();
    let both_said = said.added.is_some() && said.removed.is_some();
    if hidden > 0 && !both_said && !reason_shows(change, said, true) {
        unpredicted(format!("{} changed or replaced (not matched by key)", rows_text(hidden)));
    }
    if diff.added > hidden && said.added.is_none() {
        unpredicted(format!("{} added", rows_text(diff.added - hidden)));
    }
    if diff.removed > hidden && said.removed.is_none() {
        unpredicted(format!("{} removed", rows_text(diff.removed - hidden)));
    }
}

/// In which respects a column changed without being predicted.
fn column_facts(change: &PartitionChange<'_>, said: &Said<'_>, column: &str) -> Vec<String> {
    let mut facts = Vec::new();
    let may_change = said.may_change.contains(column);
    match change.has_column(column) {
        (false, true) if !may_change => facts.push("is new".to_owned()),
        (true, false) if !may_change => facts.push("is gone".to_owned()),
        _ => {}
    }
    // Where all rows came or went, the rows are the finding, not each of their columns.
    let (rows_before, rows_after) = change.rows();
    if change.is_same() || rows_before == 0 || rows_after == 0 {
        return facts;
    }
    let rows = change.diff.and_then(|d| d.columns.get(column)).copied().unwrap_or(0);
    if rows > 0 && !may_change && !said.only_columns {
        facts.push(format!("changed in {}", rows_text(rows)));
    }
    if follows_from_rows(change, column) {
        return facts;
    }
    let (nulls_before, nulls_after) = change.nulls(column);
    if nulls_before != nulls_after && !may_change {
        facts.push(format!("went from {nulls_before} to {nulls_after} NULL values"));
    }
    let Some((before, after)) = change.totals(column) else { return facts };
    if !may_change && !said.totals.contains(column) && !Moved::between(&before, &after).is_nothing() {
        facts.push(format!("went from a total of {before} to {after}"));
    }
    let (odd_before, odd_after) = (not_finite(&before), not_finite(&after));
    if odd_before != odd_after && !said.listed.contains(column) {
        let text = |(nan, plus, minus): (u64, u64, u64)| {
            format!("{nan} NaN, {plus} infinite and {minus} negative infinite")
        };
        facts.push(format!("went from {} to {} values", text(odd_before), text(odd_after)));
    }
    facts
}

/// Whether rows were added or removed, which is predicted or a finding by itself, and rows on both sides provably kept
/// their values in the column.
fn follows_from_rows(change: &PartitionChange<'_>, column: &str) -> bool {
    let Some(diff) = change.diff else { return false };
    let kept = diff.columns.get(column).is_none_or(|rows| *rows == 0) && change.hidden() == 0;
    kept && diff.added + diff.removed > 0
}

/// A total that only one side has although both have the column.
fn missing_total(change: &PartitionChange<'_>, column: &str) -> Option<String> {
    let sides = [change.before?, change.after?];
    let taken = sides.map(|p| p.totals.contains_key(column));
    let relevant = taken[0] != taken[1] && sides.iter().all(|p| p.nulls.contains_key(column));
    (relevant && change.totals(column).is_none())
        .then(|| format!("the total of `{column}` was taken on one side only"))
}

/// The digests, where nothing else has told why they differ.
fn digests(change: &PartitionChange<'_>, said: &Said<'_>, found: &mut Vec<(FindingKind, String)>) {
    if !change.differs(|p| Some(&p.comparable)) {
        return;
    }
    let (before, after) = change.rows();
    let explained = match change.diff {
        Some(diff) => diff.added + diff.removed + diff.changed > 0,
        None => before != after || !found.is_empty() || reason_shows(change, said, false),
    };
    if !explained {
        let what = match change.diff {
            Some(_) => "the digests differ although the diff shows no difference",
            None => "values changed that no total shows",
        };
        found.push((FindingKind::Unpredicted, what.to_owned()));
    }
}

/// Whether a column that may change has visibly changed, or cannot show it; of what it cannot show, the expectation
/// itself says that it was not checked.
fn reason_shows(change: &PartitionChange<'_>, said: &Said<'_>, floats_count: bool) -> bool {
    said.may_change.iter().any(|column| {
        let (nulls_before, nulls_after) = change.nulls(column);
        let moved = change.totals(column).map(|(before, after)| Moved::between(&before, &after));
        nulls_before != nulls_after
            || match moved {
                None => true,
                Some(Moved::About { .. }) if !floats_count => false,
                Some(moved) => !moved.is_nothing(),
            }
    })
}
