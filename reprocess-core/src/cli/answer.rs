//! Commands that answer questions.

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::args::LedgerArgs;
use super::console::Invocation;
use super::exit::Exit;
use super::request;
use crate::domain::diff::Diff;
use crate::domain::ids::{BackfillId, JobName, LogicVersion, RunId, TableId};
use crate::domain::partition::{PartitionKey, Partitioning};
use crate::domain::plan::TaskId;
use crate::domain::request::Mode;
use crate::engine::{Review, StagedOutput};
use crate::error::{Error, Result};
use crate::ports::ledger::{BackfillRecord, BackfillState, LedgerRow, Outdated, StalePartition};
use crate::render;

/// One backfill among others.
#[derive(Serialize)]
struct BackfillLine<'a> {
    backfill: &'a BackfillId,
    rolls_back: Option<&'a BackfillId>,
    state: BackfillState,
    generation: u32,
    mode: Mode,
    jobs: &'a std::collections::BTreeMap<JobName, LogicVersion>,
    tasks: usize,
    requester: String,
    reason: &'a str,
    submitted_at: DateTime<Utc>,
    changed_at: DateTime<Utc>,
    note: Option<&'a str>,
}

impl<'a> From<&'a BackfillRecord> for BackfillLine<'a> {
    fn from(record: &'a BackfillRecord) -> Self {
        let request = &record.plan.request;
        Self {
            backfill: &request.id,
            rolls_back: record.plan.rolls_back.as_ref(),
            state: record.state,
            generation: record.plan.generation,
            mode: request.mode,
            jobs: &request.jobs,
            tasks: record.plan.tasks.len(),
            requester: request.requester.to_string(),
            reason: &request.reason,
            submitted_at: record.submitted_at,
            changed_at: record.changed_at,
            note: record.note.as_deref(),
        }
    }
}

/// The list of an answer under its name.
#[derive(Default, Serialize)]
struct Lists<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    backfills: Option<Vec<BackfillLine<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    diffs: Option<&'a [Diff]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<&'a [LedgerRow]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outdated: Option<&'a [Outdated]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stale: Option<&'a [StalePartition]>,
}

/// One backfill, or all of them, the one that changed last first.
pub(super) async fn status(s: &mut Invocation<'_>, id: Option<&BackfillId>) -> Result<Exit> {
    if let Some(id) = id {
        let status = s.engine.status(id).await?;
        s.show(&status, |lines| render::status(&status, lines))?;
        return Ok(Exit::Done);
    }
    let mut all = s.engine.ledger().backfills(&[]).await?;
    all.sort_by_key(|record| std::cmp::Reverse(record.changed_at));
    let document =
        Lists { backfills: Some(all.iter().map(BackfillLine::from).collect()), ..Lists::default() };
    s.show(&document, |lines| render::backfills(&all, lines))?;
    Ok(Exit::Done)
}

/// One backfill, again and again while processes work on it; for programs once, at the end.
pub(super) async fn watch(s: &mut Invocation<'_>, id: &BackfillId) -> Result<Exit> {
    loop {
        let status = s.engine.status(id).await?;
        let state = status.backfill.state;
        let at_work = state.runs_tasks() || state == BackfillState::Publishing;
        if !at_work || status.backfill.paused_by.is_some() {
            s.show(&status, |lines| render::status(&status, lines))?;
            return Ok(Exit::of_state(state));
        }
        s.say(|lines| format!("{}\n", render::status(&status, lines)))?;
        s.engine.look_again().await;
    }
}

/// A review, and how the rows of some outputs differ.
#[derive(Serialize)]
struct Reviewed<'a> {
    #[serde(flatten)]
    review: &'a Review,
    rows: Vec<Rows>,
}

#[derive(Serialize)]
struct Rows {
    task: TaskId,
    diffs: Vec<Diff>,
    /// Why they could not be compared; the review itself is whole without.
    error: Option<String>,
}

/// The outputs of a shadow, and rows of those that a reviewer looks at first.
pub(super) async fn review(
    s: &mut Invocation<'_>,
    id: &BackfillId,
    tasks: usize,
    samples: usize,
) -> Result<Exit> {
    let review = s.engine.review(id).await?;
    let mut outputs: Vec<_> = review.outputs.iter().collect();
    let worst = |output: &&StagedOutput| output.result.verdict.as_ref().map(|verdict| verdict.decision);
    outputs.sort_by_key(|output| std::cmp::Reverse(worst(output)));
    let mut rows = Vec::new();
    for task in outputs.into_iter().take(tasks).map(|output| output.task) {
        rows.push(match s.engine.diff(id, task, samples).await {
            Ok(diffs) => Rows { task, diffs, error: None },
            Err(error) => Rows { task, diffs: Vec::new(), error: Some(error.to_string()) },
        });
    }
    let document = Reviewed { review: &review, rows };
    s.show(&document, |lines| {
        let mut text = render::review(&review, lines);
        for Rows { task, diffs, error } in &document.rows {
            let rows = match error {
                Some(error) => format!("  cannot be compared: {error}\n"),
                None => render::diff(diffs, usize::MAX),
            };
            text.push_str(&format!("\nRows of task {task}\n{rows}"));
        }
        text
    })?;
    Ok(Exit::Done)
}

/// The rows that a staged task changes.
pub(super) async fn diff(s: &mut Invocation<'_>, id: &BackfillId, task: u32, samples: usize) -> Result<Exit> {
    let diffs = s.engine.diff(id, TaskId(task), samples).await?;
    let document = Lists { diffs: Some(&diffs), ..Lists::default() };
    // The samples were counted on the command line already.
    s.show(&document, |_| render::diff(&diffs, usize::MAX))?;
    Ok(Exit::Done)
}

/// What produced a partition.
pub(super) async fn explain(s: &mut Invocation<'_>, table: &str, key: &str) -> Result<Exit> {
    let table = TableId::from(table);
    let key = key_of(s, &table, key)?;
    let explanation = s.engine.explain(&table, &key).await?;
    s.show(&explanation, |lines| render::explanation(&explanation, lines))?;
    Ok(Exit::Done)
}

/// A partition of the table, or a unit of a merge job that writes it.
fn key_of(s: &Invocation<'_>, table: &TableId, text: &str) -> Result<PartitionKey> {
    let catalog = s.engine.host().catalog();
    let mut known: Vec<&Partitioning> = vec![&catalog.table(table)?.partitioning];
    known.extend(catalog.jobs().filter(|job| job.output == *table).filter_map(|job| job.unit.as_ref()));
    let key = request::key(text, &known)?;
    if key.is_whole() && !known.iter().any(|p| p.dimensions().is_empty()) {
        return Err(Error::invalid("no partition is named").with_context("table", table));
    }
    Ok(key)
}

/// Rows of the ledger.
pub(super) async fn ledger(s: &mut Invocation<'_>, args: &LedgerArgs) -> Result<Exit> {
    let rows = rows(s, args).await?;
    let document = Lists { rows: Some(&rows), ..Lists::default() };
    s.show(&document, |lines| render::ledger(&rows, lines))?;
    Ok(Exit::Done)
}

async fn rows(s: &Invocation<'_>, args: &LedgerArgs) -> Result<Vec<LedgerRow>> {
    let ledger = s.engine.ledger();
    if let Some(id) = &args.backfill {
        let id = BackfillId::from(id.as_str());
        let _ = s.engine.backfill(&id).await?;
        return ledger.changes(&id).await;
    }
    if let Some(run) = &args.run {
        let run = RunId::from(run.as_str());
        let rows = ledger.run(&run).await?;
        return match rows.is_empty() {
            true => Err(Error::not_found("the ledger has no row of this run").with_context("run", run)),
            false => Ok(rows),
        };
    }
    let Some(table) = args.table.as_deref().map(TableId::from) else {
        let mut latest = Vec::new();
        for job in s.engine.host().catalog().jobs() {
            latest.extend(ledger.recent(&job.name, args.limit).await?);
        }
        latest.sort_by_key(|row| std::cmp::Reverse(row.position));
        latest.truncate(usize::try_from(args.limit).unwrap_or(usize::MAX));
        return Ok(latest);
    };
    match &args.partition {
        Some(text) => ledger.history(&table, &key_of(s, &table, text)?, args.limit).await,
        None => {
            s.engine.host().catalog().table(&table)?;
            let keys = ledger.partitions(&table).await?;
            Ok(ledger.current(&table, &keys).await?.into_iter().flatten().collect())
        }
    }
}

/// Partitions on another logic version than the schedule runs.
pub(super) async fn outdated(s: &mut Invocation<'_>) -> Result<Exit> {
    let outdated = s.engine.outdated().await?;
    let document = Lists { outdated: Some(&outdated), ..Lists::default() };
    s.show(&document, |lines| render::outdated(&outdated, lines))?;
    Ok(Exit::Done)
}

/// Partitions computed from what has changed since.
pub(super) async fn stale(s: &mut Invocation<'_>) -> Result<Exit> {
    let stale = s.engine.ledger().stale().await?;
    let document = Lists { stale: Some(&stale), ..Lists::default() };
    s.show(&document, |lines| render::stale(&stale, lines))?;
    Ok(Exit::Done)
}
