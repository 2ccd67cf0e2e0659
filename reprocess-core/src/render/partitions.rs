//! Partitions that need somebody: outdated, stale, and deliveries that wait.

use super::spans;
use super::text::{Page, count, cut, grouped, minute, table};
use crate::engine::{Drift, Finding, FindingSeverity};
use crate::ports::delivery::{DeliveryRecord, DeliveryState};
use crate::ports::ledger::{Outdated, StalePartition};

/// Partitions on another logic version than the schedule runs, by job and version, up to `shown` lines.
pub fn outdated(all: &[Outdated], shown: usize) -> String {
    if all.is_empty() {
        return "No partition is on outdated logic\n".to_owned();
    }
    let mut page = Page::new(format!("On outdated logic: {}", count(all.len(), "partition")));
    let groups = grouped(all.iter().map(|o| ((&o.job, &o.table, &o.logic), &o.partition)));
    let lines = groups.into_iter().flat_map(|((job, of_table, logic), keys)| {
        let logic = logic.as_ref().map_or_else(|| "unknown logic".to_owned(), ToString::to_string);
        let spans = spans::of_keys(keys).into_iter();
        spans.map(move |span| format!("{of_table}: {} has {logic} of {job}", span.text()))
    });
    page.items(shown, lines);
    page.finish()
}

/// Partitions computed from what has changed since, by job and cause, up to `shown` lines.
pub fn stale(all: &[StalePartition], shown: usize) -> String {
    if all.is_empty() {
        return "No partition is stale\n".to_owned();
    }
    let mut page = Page::new(format!("Stale: {}", count(all.len(), "partition")));
    let groups = grouped(all.iter().map(|s| ((&s.job, &s.table, &s.because), &s.partition)));
    let lines = groups.into_iter().flat_map(|((job, of_table, because), keys)| {
        let spans = spans::of_keys(keys).into_iter();
        spans.map(move |span| format!("{of_table}: {}: run {because} changed what {job} read", span.text()))
    });
    page.items(shown, lines);
    page.finish()
}

/// Partitions that hold other rows than the ledger recorded, up to `shown` lines.
pub fn drift(all: &[Drift], shown: usize) -> String {
    if all.is_empty() {
        return "Every partition is as the ledger recorded it\n".to_owned();
    }
    let mut page = Page::new(format!("Drift: {}", count(all.len(), "partition")));
    let line = |drift: &Drift| {
        let recorded =
            drift.rows_recorded.map_or_else(|| "an unknown number of".to_owned(), |rows| rows.to_string());
        format!(
            "{}: {}: run {} left {recorded} rows, and there are {} others",
            drift.table,
            spans::key(&drift.partition),
            drift.run,
            drift.rows_found
        )
    };
    page.items(shown, all.iter().map(line));
    page.finish()
}

/// What a host or its ledger should be told of, the worst first, up to `shown` lines.
pub fn findings(all: &[Finding], shown: usize) -> String {
    let mut page = Page::new(match all.len() {
        0 => "Nothing was found\n".to_owned(),
        findings => format!("Found: {}", count(findings, "thing")),
    });
    for (severity, heading) in
        [(FindingSeverity::Problem, "Will go wrong"), (FindingSeverity::Warning, "To know of")]
    {
        let mut of_severity = all.iter().filter(|finding| finding.severity == severity).peekable();
        if of_severity.peek().is_some() {
            page.section(heading);
            page.items(shown, of_severity.map(|finding| format!("{}: {}", finding.about, finding.text)));
        }
    }
    page.finish()
}

/// Deliveries as a table, in their order, up to `shown` of them.
pub fn deliveries(all: &[DeliveryRecord], shown: usize) -> String {
    let waiting = all.iter().filter(|d| d.state == DeliveryState::Suppressed).count();
    let mut page = Page::new(match waiting {
        0 => format!("Deliveries: {}", all.len()),
        waiting => format!("Deliveries: {}, of which {waiting} wait to be released by name", all.len()),
    });
    if all.is_empty() {
        return page.finish();
    }
    let header = ["key", "channel", "state", "since (UTC)", "backfill", "payload"];
    let rows = all.iter().take(shown).map(|record| {
        vec![
            record.delivery.key.clone(),
            record.delivery.channel.clone(),
            record.state.to_string(),
            minute(record.changed_at),
            record.backfill.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
            cut(&record.delivery.payload.to_string(), 60),
        ]
    });
    page.block(&table(&header, &[], rows));
    page.left_out(all.len().saturating_sub(shown));
    page.finish()
}
