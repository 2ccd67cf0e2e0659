//! Rows of the ledger, and what they say about one partition.

use super::numbers::Pair;
use super::spans::key;
use super::text::{Page, count, cut, duration, instant, minute, table};
use crate::domain::profile::{Profile, Total};
use crate::engine::Explanation;
use crate::ports::ledger::{LedgerRow, RunRecord, RunStatus, StalePartition, Trigger};

/// The rows as a table, in their order, up to `shown` of them.
pub fn ledger(rows: &[LedgerRow], shown: usize) -> String {
    let mut page = Page::new(format!("Ledger: {}", count(rows.len(), "row")));
    if let Some(only) = same(rows, |r| (&r.table, &r.job)) {
        let (of_table, job) = only;
        page.field("table", format!("{of_table}, written by {job}"));
    }
    page.field_of("why", same(rows, |r| &r.reason));
    page.field_of("asked by", same(rows, |r| &r.requester).map(ToString::to_string));
    if !rows.is_empty() {
        page.section("Rows");
        page.block(&rows_table(rows, shown));
        page.left_out(rows.len().saturating_sub(shown));
    }
    failures(&mut page, rows, shown);
    page.finish()
}

/// What all rows have in common; `None` where they differ, or where there are none.
fn same<'a, T: PartialEq + 'a>(rows: &'a [LedgerRow], of: impl Fn(&'a RunRecord) -> T) -> Option<T> {
    let first = of(&rows.first()?.record);
    rows.iter().all(|row| of(&row.record) == first).then_some(first)
}

fn rows_table(rows: &[LedgerRow], shown: usize) -> String {
    let one_job = same(rows, |r| (&r.table, &r.job)).is_some();
    let mut header = vec!["#"];
    if !one_job {
        header.push("job");
    }
    header.extend(["partition", "logic", "run", "trigger"]);
    // Of the others nothing else could be said.
    let some_failed = rows.iter().any(|row| row.record.status == RunStatus::Failed);
    if some_failed {
        header.push("status");
    }
    header.extend(["rows", "change", "approved by", "finished (UTC)"]);
    let lines = rows.iter().take(shown).map(|row| {
        let record = &row.record;
        let rows = row_pair(record);
        let mut line = vec![row.position.to_string()];
        if !one_job {
            line.push(record.job.to_string());
        }
        line.extend([
            key(&record.partition),
            record.logic.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
            record.run.to_string(),
            record.trigger.to_string(),
        ]);
        line.extend(some_failed.then(|| status(record).to_owned()));
        line.extend([
            if record.after.is_some() { rows.after } else { "-".to_owned() },
            rows.change,
            record.approval.as_ref().map_or_else(|| "-".to_owned(), |a| a.by.to_string()),
            minute(record.finished_at),
        ]);
        line
    });
    table(&header, &["#", "rows", "change"], lines)
}

fn row_pair(record: &RunRecord) -> Pair {
    let rows = |profile: &Option<Profile>| profile.as_ref().map(|p| p.rows);
    Pair::of_counts(rows(&record.before), rows(&record.after))
}

fn status(record: &RunRecord) -> &'static str {
    match record.status {
        RunStatus::Committed => "committed",
        RunStatus::Failed => "failed",
    }
}

fn failures(page: &mut Page, rows: &[LedgerRow], shown: usize) {
    let failed: Vec<_> = rows.iter().filter(|r| r.record.error.is_some()).collect();
    if failed.is_empty() {
        return;
    }
    page.section("Errors");
    let line = |row: &&LedgerRow| {
        let error = row.record.error.as_deref().unwrap_or_default();
        format!("#{} {}: {}", row.position, key(&row.record.partition), cut(error, 400))
    };
    page.items(shown, failed.iter().map(line));
}

/// What produced a partition, whether it is still that, and up to `shown` rows of its history.
pub fn explanation(explanation: &Explanation, shown: usize) -> String {
    let mut page = Page::new(format!("{} of table `{}`", key(&explanation.partition), explanation.table));
    match &explanation.current {
        None => page.field("produced by", "no run that the ledger knows"),
        Some(row) => current(&mut page, row),
    }
    page.field(
        "as it left it",
        match explanation.as_left {
            Some(true) => "yes",
            Some(false) => "no: the partition was changed outside of any run",
            None => "cannot be said",
        },
    );
    if !explanation.stale.is_empty() {
        page.section("Stale: computed from what has changed since");
        let line = |s: &StalePartition| {
            format!("{}: run {} changed what it read; run {} again", key(&s.partition), s.because, s.job)
        };
        page.items(shown, explanation.stale.iter().map(line));
    }
    if !explanation.history.is_empty() {
        page.section(format!("History: {}, newest first", count(explanation.history.len(), "row")));
        page.block(&rows_table(&explanation.history, shown));
        page.left_out(explanation.history.len().saturating_sub(shown));
        failures(&mut page, &explanation.history, shown);
    }
    page.finish()
}

fn current(page: &mut Page, row: &LedgerRow) {
    let record = &row.record;
    let of = match &record.backfill {
        Some(backfill) if record.trigger == Trigger::Backfill => format!("backfill `{backfill}`"),
        Some(backfill) => format!("{} of backfill `{backfill}`", record.trigger),
        None => record.trigger.to_string(),
    };
    page.field("produced by", format!("run {} ({of}), row {} of the ledger", record.run, row.position));
    let logic = record.logic.as_ref().map_or_else(|| "unknown".to_owned(), ToString::to_string);
    page.field("logic", format!("{} {logic}, build {}", record.job, record.build));
    page.field("why", &record.reason);
    page.field("asked by", record.requester.to_string());
    if let Some(approval) = &record.approval {
        let said =
            if approval.comment.is_empty() { String::new() } else { format!(": {}", approval.comment) };
        page.field("approved by", format!("{}, {}{said}", approval.by, instant(approval.at)));
    }
    for (name, value) in &record.parameters {
        page.field("parameter", format!("{name} = {value}"));
    }
    for (name, pin) in &record.inputs {
        let version = cut(pin.version.as_str(), 40);
        page.field("read", format!("{name}: {} of {} at version {version}", pin.slice, pin.table));
    }
    if let Some(run) = &record.replays {
        page.field("replays", format!("the inputs that run {run} recorded"));
    }
    page.field_of("fingerprint", record.fingerprint.as_ref().map(ToString::to_string));
    let rows = row_pair(record);
    page.field("rows", format!("{} → {} {}", rows.before, rows.after, rows.change));
    totals(page, record);
    if let Some(after) = &record.after {
        let read = record.read_bytes.map_or_else(|| "unknown".to_owned(), |bytes| bytes.to_string());
        page.field("bytes", format!("{read} read, {} written", after.size_bytes));
    }
    page.field_of("content", record.after.as_ref().map(|p| p.content.to_string()));
    if let Some(verdict) = &record.verdict {
        page.field("verdict", verdict.to_string());
    }
    page.field("time", times(record));
}

fn totals(page: &mut Page, record: &RunRecord) {
    let Some(after) = &record.after else { return };
    for (column, total) in &after.totals {
        let before = record.before.as_ref().map(|b| b.totals.get(column).copied().unwrap_or(Total::Empty));
        let pair = Pair::of_totals(before.as_ref(), Some(total));
        page.field("total", format!("{column}: {} → {} {}", pair.before, pair.after, pair.change));
    }
}

fn times(record: &RunRecord) -> String {
    format!(
        "finished {}, took {}, waited {}, attempt {}, by {}",
        instant(record.finished_at),
        duration(record.started_at, record.finished_at),
        duration(record.queued_at, record.started_at),
        record.attempt,
        record.worker
    )
}
