//! What a person looks at before asking for a backfill, or after one.

use super::spans;
use super::text::{Page, count, grouped, instant, span, table};
use crate::domain::decimal::Decimal;
use crate::engine::{Correction, Lateness, Readiness, Reconciled, Reconciliation, Unready};

/// Partitions computed from rows of a source that are others now, by job and input, up to `shown` lines.
pub fn corrections(all: &[Correction], shown: usize) -> String {
    if all.is_empty() {
        return "No source has changed under what was computed\n".to_owned();
    }
    let mut page =
        Page::new(format!("Computed from what sources have changed: {}", count(all.len(), "partition")));
    let groups = grouped(all.iter().map(|c| ((&c.job, &c.table, &c.source), &c.partition)));
    let lines = groups.into_iter().flat_map(|((job, of_table, source), keys)| {
        let spans = spans::of_keys(keys).into_iter();
        spans
            .map(move |span| format!("{of_table}: {}: {source} has changed since {job} read it", span.text()))
    });
    page.items(shown, lines);
    page.finish()
}

/// Whether declared totals agree, with up to `shown` partitions of each in which they do not.
pub fn reconciliations(all: &[Reconciliation], shown: usize) -> String {
    if all.is_empty() {
        return "No job declares a total that has to agree\n".to_owned();
    }
    let mut page = Page::default();
    for (place, one) in all.iter().enumerate() {
        let differing: Vec<_> = one.partitions.iter().filter(|partition| !partition.agrees).collect();
        let total = format!("{}: {} = {} of {}", one.job, one.total.column, one.total.of, one.total.input);
        let line = match differing.len() {
            0 => format!("{total}: agrees in {}", count(one.partitions.len(), "partition")),
            n => format!("{total}: differs in {n} of {}", count(one.partitions.len(), "partition")),
        };
        match place {
            0 => page = Page::new(line),
            _ => page.section(line),
        }
        page.items(shown, differing.into_iter().map(difference));
    }
    page.finish()
}

fn difference(partition: &Reconciled) -> String {
    let total =
        |total: Option<Decimal>| total.map_or_else(|| "unknown".to_owned(), |total| total.to_string());
    let (upper, lower) = (total(partition.upper), total(partition.lower));
    format!("{}: {upper}, and below {lower}", spans::key(&partition.partition))
}

/// Partitions that were or will be ready too late, up to `shown` lines, and how long tasks waited.
pub fn readiness(readiness: &Readiness, shown: usize) -> String {
    let all = &readiness.unready;
    let (since, until) = (instant(readiness.since), instant(readiness.until));
    let mut page = Page::new(match all.len() {
        0 => format!("Everything promised from {since} to {until} was ready in time"),
        n => format!("Not ready in time from {since} to {until}: {}", count(n, "partition")),
    });
    page.items(shown, all.iter().map(|unready| line(unready, readiness)));
    if !readiness.waits.is_empty() {
        page.section("How long tasks waited before they ran");
        let header = ["trigger", "tasks", "mean", "longest"];
        let rows = readiness.waits.iter().map(|(trigger, wait)| {
            vec![trigger.to_string(), wait.rows.to_string(), span(wait.mean_ms), span(wait.max_ms)]
        });
        page.block(&table(&header, &header[1..], rows));
    }
    page.finish()
}

fn line(unready: &Unready, readiness: &Readiness) -> String {
    let until = unready.ready_at.unwrap_or(readiness.until);
    let by = span(u64::try_from((until - unready.due_at).num_milliseconds()).unwrap_or(0));
    let what = match unready.lateness {
        Lateness::Late => format!("{by} late"),
        Lateness::Missing => format!("missing for {by}"),
        Lateness::AtRisk => "will be late".to_owned(),
    };
    let waited = match unready.waited_ms {
        Some(ms) if ms > 0 => format!(", its run waited {}", span(ms)),
        _ => String::new(),
    };
    let beside = match unready.beside.is_empty() {
        true => String::new(),
        false => {
            let names: Vec<_> = unready.beside.iter().map(ToString::to_string).collect();
            format!(", beside {}", names.join(", "))
        }
    };
    let key = spans::key(&unready.partition);
    format!("{} of {}: {what}, was due {}{waited}{beside}", key, unready.table, instant(unready.due_at))
}
