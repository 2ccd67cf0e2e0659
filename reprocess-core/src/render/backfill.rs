//! Backfills: all of them in a table, one with its tasks.

use super::spans::{self, Span};
use super::text::{Page, count, cut, grouped, instant, minute, table};
use crate::domain::plan::Task;
use crate::domain::request::Mode;
use crate::engine::Status;
use crate::ports::ledger::{BackfillRecord, BackfillState, TaskRecord, TaskState};

/// Backfills as a table, in their order, up to `shown` of them.
pub fn backfills(records: &[BackfillRecord], shown: usize) -> String {
    let mut page = Page::new(count(records.len(), "backfill"));
    if records.is_empty() {
        return page.finish();
    }
    let header = ["backfill", "state", "jobs", "tasks", "mode", "asked by", "changed (UTC)", "why"];
    let rows = records.iter().take(shown).map(|record| {
        let request = &record.plan.request;
        let jobs: Vec<_> = request.jobs.iter().map(|(job, logic)| format!("{job} {logic}")).collect();
        vec![
            request.id.to_string(),
            record.state.to_string(),
            jobs.join(", "),
            record.plan.tasks.len().to_string(),
            mode(record).to_owned(),
            request.requester.to_string(),
            minute(record.changed_at),
            cut(&request.reason, 60),
        ]
    });
    page.block(&table(&header, &["tasks"], rows));
    page.left_out(records.len().saturating_sub(shown));
    page.finish()
}

fn mode(record: &BackfillRecord) -> &'static str {
    match (&record.plan.rolls_back, record.plan.request.mode) {
        (Some(_), _) => "rollback",
        (None, Mode::Direct) => "direct",
        (None, Mode::Shadow) => "shadow",
    }
}

/// How far a backfill is: its state, what is in progress, done and left, up to `shown` lines of each.
pub fn status(status: &Status, shown: usize) -> String {
    let record = &status.backfill;
    let request = &record.plan.request;
    let mut page = Page::new(format!("Backfill `{}` is {}", request.id, record.state));
    page.field_of("note", record.note.as_ref());
    page.field("why", &request.reason);
    page.field("asked by", format!("{}, submitted {}", record.submitted_by, instant(record.submitted_at)));
    if let Some(of) = &record.plan.rolls_back {
        page.field("takes back", format!("backfill `{of}`"));
    }
    page.field("plan", format!("{} (generation {})", record.plan_digest, record.plan.generation));
    for approval in &record.approvals {
        let said =
            if approval.comment.is_empty() { String::new() } else { format!(": {}", approval.comment) };
        let text = format!("{} by {}, {}{said}", approval.digest, approval.by, instant(approval.at));
        page.field("approved", text);
    }
    page.field("changed", instant(record.changed_at));
    page.field_of("paused by", record.paused_by.as_ref().map(ToString::to_string));
    if record.concurrency != request.concurrency {
        page.field("at a time", format!("{}, and {} as asked for", record.concurrency, request.concurrency));
    }
    page.field("progress", progress(status));
    page.field_of("ends about", status.ends_at.map(instant));
    page.field_of("next", next(record));
    tasks(&mut page, status, shown);
    notes(&mut page, status, shown);
    page.finish()
}

fn progress(status: &Status) -> String {
    let total = status.tasks.len();
    let done = status.tasks.iter().filter(|t| !t.state.is_open()).count();
    let filled = (done * 20).checked_div(total).unwrap_or(20);
    let bar: String = (0..20).map(|i| if i < filled { '█' } else { '░' }).collect();
    format!("{bar} {done} of {}", count(total, "task"))
}

/// What a person can do now.
fn next(record: &BackfillRecord) -> Option<&'static str> {
    Some(match record.state {
        state if state.runs_tasks() && record.paused_by.is_some() => "resume it",
        BackfillState::Planned => "approve the plan",
        BackfillState::Approved | BackfillState::Failed => "execute it (backfill --resume)",
        BackfillState::Stale => "stage again what moved (backfill --resume), then review it",
        BackfillState::AwaitingReview => "review it, then approve and publish, or abort",
        BackfillState::Publishing => "publish again if no process is at it",
        BackfillState::Published | BackfillState::Done => "close it, or roll it back",
        _ => return None,
    })
}

fn tasks(page: &mut Page, status: &Status, shown: usize) {
    page.section("Tasks");
    let plan = &status.backfill.plan;
    let mut lines = Vec::new();
    for state in TaskState::ALL {
        let of_state: Vec<&Task> =
            status.tasks.iter().filter(|t| t.state == state).filter_map(|t| plan.task(t.id).ok()).collect();
        for (job, tasks) in grouped(of_state.iter().map(|t| (&t.job, *t))) {
            let spans = tasks.iter().filter_map(|t| Span::of_units(&t.units, t.interval)).collect();
            for span in spans::join(spans) {
                lines.push(format!("{state:<9} {job}: {}", span.text()));
            }
        }
    }
    page.items(shown, lines);
}

/// Why tasks failed, were blocked or skipped.
fn notes(page: &mut Page, status: &Status, shown: usize) {
    let told = |t: &&TaskRecord| t.note.is_some();
    let with_note: Vec<_> = status.tasks.iter().filter(told).collect();
    if with_note.is_empty() {
        return;
    }
    page.section("Notes");
    let line = |t: &&TaskRecord| {
        let scope = status.backfill.plan.task(t.id).map(|p| p.scope.to_string()).unwrap_or_default();
        let note = t.note.as_deref().unwrap_or_default();
        format!("task {} ({}, {}): {}", t.id, cut(&scope, 60), t.state, cut(note, 400))
    };
    page.items(shown, with_note.iter().map(line));
}
