//! The review of a shadow: every partition before and after.

use std::collections::{BTreeMap, BTreeSet};

use super::numbers::{Pair, aligned, decimal};
use super::spans;
use super::text::{Page, WIDTH, count, grouped, table};
use crate::domain::partition::PartitionKey;
use crate::domain::plan::TaskId;
use crate::domain::profile::{Profile, Total};
use crate::domain::validate::{Decision, Finding, Severity};
use crate::engine::{Review, StagedOutput};

/// What waits for a reviewer, with up to `shown` partitions and findings. Columns whose total is the same everywhere are
/// named and not shown.
pub fn review(review: &Review, shown: usize) -> String {
    let mut page = Page::new(format!("Review of backfill `{}`", review.backfill));
    page.field("digest", &review.digest);
    page.field(
        "verdict",
        match review.decision {
            Decision::Approve => "approve: everything is as predicted",
            Decision::Review => "review: a person has to look",
            Decision::Abort => "abort: the backfill stops",
        },
    );
    if review.outputs.is_empty() {
        page.section("Nothing is staged");
        return page.finish();
    }
    for (name, outputs) in grouped(review.outputs.iter().map(|o| (&o.table, o))) {
        let lines: Vec<_> = outputs.into_iter().flat_map(lines).collect();
        page.section(format!("{name}: {}, production → staged", count(lines.len(), "partition")));
        before_and_after(&mut page, &lines, shown);
    }
    findings(&mut page, &review.outputs, shown);
    page.finish()
}

/// One partition of a staged task.
struct Line<'a> {
    task: TaskId,
    partition: &'a PartitionKey,
    before: Option<&'a Profile>,
    after: Option<&'a Profile>,
    verdict: Option<Decision>,
}

impl Line<'_> {
    fn total(profile: Option<&Profile>, column: &str) -> Option<Total> {
        // A column that one side does not have adds up to nothing there.
        Some(profile?.totals.get(column).copied().unwrap_or(Total::Empty))
    }
}

fn lines(output: &StagedOutput) -> Vec<Line<'_>> {
    let result = &output.result;
    let mut sides: BTreeMap<&PartitionKey, (Option<&Profile>, Option<&Profile>)> = BTreeMap::new();
    for profile in &result.before {
        sides.entry(&profile.partition).or_default().0 = Some(profile);
    }
    for profile in &result.after {
        sides.entry(&profile.partition).or_default().1 = Some(profile);
    }
    let verdict = |partition: &PartitionKey| {
        let of = result.verdict.as_ref()?;
        let own = of.findings.iter().filter(|f| f.partition.overlaps(partition));
        Some(own.map(|f| decision(f.severity)).max().unwrap_or(Decision::Approve))
    };
    sides
        .into_iter()
        .map(|(partition, (before, after))| Line {
            task: output.task,
            partition,
            before,
            after,
            verdict: verdict(partition),
        })
        .collect()
}

fn decision(severity: Severity) -> Decision {
    match severity {
        Severity::Review => Decision::Review,
        Severity::Abort => Decision::Abort,
    }
}

fn before_and_after(page: &mut Page, lines: &[Line<'_>], shown: usize) {
    let mut columns = vec![("rows", row_pairs(lines))];
    let mut same = Vec::new();
    let names: BTreeSet<&String> = lines
        .iter()
        .flat_map(|l| l.before.into_iter().chain(l.after))
        .flat_map(|p| p.totals.keys())
        .collect();
    for name in names {
        let pairs = total_pairs(lines, name);
        match pairs.iter().all(Pair::is_same) {
            true => same.push(name.as_str()),
            false => columns.push((name, pairs)),
        }
    }
    let wide = columns.len() * 30 + 40 > WIDTH;
    for part in columns.chunks(if wide { 3 } else { columns.len() }) {
        page.block(&part_of_table(lines, part, shown));
    }
    page.left_out(lines.len().saturating_sub(shown));
    if !same.is_empty() {
        page.item(format!("total unchanged in every partition: {}", same.join(", ")));
    }
}

/// A table of the first `shown` partitions, and a line with the sums over all of them.
fn part_of_table(lines: &[Line<'_>], columns: &[(&str, Vec<Pair>)], shown: usize) -> String {
    let mut header = vec!["task", "partition"];
    header.extend(columns.iter().map(|(name, _)| *name));
    header.push("verdict");
    let numbers: Vec<_> = columns.iter().map(|(_, pairs)| aligned(pairs)).collect();
    let of = |place: usize| numbers.iter().filter_map(move |column| column.get(place).cloned());
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (place, line) in lines.iter().enumerate().take(shown) {
        let mut row = vec![line.task.to_string(), spans::key(line.partition)];
        row.extend(of(place));
        row.push(line.verdict.map_or_else(|| "not judged".to_owned(), |v| v.to_string()));
        rows.push(row);
    }
    let mut all = vec![String::new(), format!("all {}", lines.len())];
    all.extend(of(lines.len()));
    all.push(lines.iter().filter_map(|l| l.verdict).max().map(|v| v.to_string()).unwrap_or_default());
    rows.push(all);
    let mut right = vec!["task"];
    right.extend(columns.iter().map(|(name, _)| *name));
    table(&header, &right, rows)
}

/// The row counts of each partition, and last of all together.
fn row_pairs(lines: &[Line<'_>]) -> Vec<Pair> {
    let rows = |profile: Option<&Profile>| profile.map(|p| p.rows);
    let mut pairs: Vec<_> = lines.iter().map(|l| Pair::of_counts(rows(l.before), rows(l.after))).collect();
    let total = |profile: Option<&Profile>| profile.map(|p| Total::Exact(decimal(p.rows)));
    let before: Vec<_> = lines.iter().map(|l| total(l.before)).collect();
    let after: Vec<_> = lines.iter().map(|l| total(l.after)).collect();
    pairs.push(summed(&before, &after));
    pairs
}

/// The totals of one column in each partition, and last of all together.
fn total_pairs(lines: &[Line<'_>], column: &str) -> Vec<Pair> {
    let before: Vec<_> = lines.iter().map(|l| Line::total(l.before, column)).collect();
    let after: Vec<_> = lines.iter().map(|l| Line::total(l.after, column)).collect();
    let mut pairs: Vec<_> =
        before.iter().zip(&after).map(|(b, a)| Pair::of_totals(b.as_ref(), a.as_ref())).collect();
    pairs.push(summed(&before, &after));
    pairs
}

fn summed(before: &[Option<Total>], after: &[Option<Total>]) -> Pair {
    let sum = |totals: &[Option<Total>]| Total::sum(totals.iter().map(Option::as_ref));
    Pair::of_totals(sum(before).as_ref(), sum(after).as_ref())
}

fn findings(page: &mut Page, outputs: &[StagedOutput], shown: usize) {
    let verdicts = outputs.iter().filter_map(|o| o.result.verdict.as_ref());
    let mut all: Vec<&Finding> = verdicts.flat_map(|v| &v.findings).collect();
    if all.is_empty() {
        return;
    }
    // What stops the backfill is not to be among what is left out.
    all.sort_by_key(|f| std::cmp::Reverse(f.severity));
    page.section(format!("Findings: {}", all.len()));
    page.items(shown, all.into_iter().map(ToString::to_string));
}
