//! How rows differ before and after.

use std::collections::BTreeMap;

use super::numbers::float;
use super::spans::key;
use super::text::{Page, cut, table};
use crate::domain::diff::{Diff, RowDiff};

/// Widest value of a sample.
const LONGEST: usize = 40;

/// Each partition's differences, with up to `shown` of the sampled rows.
pub fn diff(diffs: &[Diff], shown: usize) -> String {
    let mut page = Page::default();
    for (place, diff) in diffs.iter().enumerate() {
        match place {
            0 => page = Page::new(key(&diff.partition)),
            _ => page.section(key(&diff.partition)),
        }
        one(&mut page, diff, shown);
    }
    if diffs.is_empty() {
        page = Page::new("no partition");
    }
    page.finish()
}

fn one(page: &mut Page, diff: &Diff, shown: usize) {
    let how = if diff.keyed { "rows matched by key" } else { "whole rows compared" };
    page.field(
        "rows",
        format!(
            "{} added, {} removed, {} changed, {} unchanged ({how})",
            diff.added, diff.removed, diff.changed, diff.unchanged
        ),
    );
    let differing: Vec<_> = diff
        .columns
        .iter()
        .filter(|(_, rows)| **rows > 0)
        .map(|(name, rows)| format!("{name} {rows}"))
        .collect();
    if !differing.is_empty() {
        page.field("differ in", differing.join(", "));
    }
    if !diff.distributions.is_empty() {
        page.section("How far values moved over the changed rows");
        let header = ["column", "rows", "min", "1 %", "median", "99 %", "max", "sum"];
        let rows = diff.distributions.iter().map(|(name, d)| {
            let mut row = vec![name.clone(), d.rows.to_string()];
            row.extend([d.min, d.p01, d.p50, d.p99, d.max].map(float));
            row.push(d.sum.map_or_else(|| "-".to_owned(), |sum| sum.to_string()));
            row
        });
        page.block(&table(&header, &header[1..], rows));
    }
    if !diff.samples.is_empty() {
        page.section("Samples");
        page.items(shown, diff.samples.iter().map(sample));
        let all = diff.added.saturating_add(diff.removed).saturating_add(diff.changed);
        let sampled = u64::try_from(diff.samples.len()).unwrap_or(u64::MAX);
        if all > sampled {
            page.item(format!("{} rows that differ are not sampled", all - sampled));
        }
    }
}

fn sample(row: &RowDiff) -> String {
    let name = values(&row.key);
    let name = if name.is_empty() { name } else { format!("{name}: ") };
    match (&row.before, &row.after) {
        (None, Some(after)) => format!("+ {name}{}", values(after)),
        (Some(before), None) => format!("- {name}{}", values(before)),
        (Some(before), Some(after)) => format!("~ {name}{}", changes(before, after)),
        (None, None) => name,
    }
}

fn values(columns: &BTreeMap<String, Option<String>>) -> String {
    let all: Vec<_> = columns.iter().map(|(name, v)| format!("{name}={}", value(v.as_ref()))).collect();
    all.join(" ")
}

fn changes(before: &BTreeMap<String, Option<String>>, after: &BTreeMap<String, Option<String>>) -> String {
    let one = |(name, old): (&String, &Option<String>)| {
        let new = after.get(name).and_then(Option::as_ref);
        format!("{name} {} → {}", value(old.as_ref()), value(new))
    };
    before.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn value(value: Option<&String>) -> String {
    value.map_or_else(|| "NULL".to_owned(), |v| cut(v, LONGEST))
}
