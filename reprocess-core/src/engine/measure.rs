//! What is measured, under the names that a monitoring system sees. Nothing happens where the process has no recorder.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use metrics::{Gauge, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use crate::domain::ids::JobName;
use crate::engine::record::Attempt;
use crate::engine::task::TaskEnd;
use crate::engine::{Dispatched, Engine};
use crate::error::Result;
use crate::ports::ledger::{BackfillState, TaskResult, TaskState};

/// A task that is counted among those that run, until it is dropped.
pub(super) struct Running(Gauge);

impl Running {
    pub(super) fn new(job: &JobName) -> Self {
        let running = gauge!("reprocess_tasks_running", "job" => job.to_string());
        running.increment(1.0);
        Self(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// How an attempt at a task ended, and how long it had waited for its slot and its memory and then ran.
pub(super) fn ended(at: &Attempt<'_>, waited: TimeDelta, ran: TimeDelta, end: &Result<TaskEnd>) {
    let outcome = match end {
        Ok(TaskEnd::Committed) => "committed",
        Ok(TaskEnd::Staged(_)) => "staged",
        Ok(TaskEnd::Skipped(_)) => "skipped",
        Ok(TaskEnd::Lost | TaskEnd::NotBegun) => "lost",
        Ok(TaskEnd::Moved(_)) => "moved",
        Err(_) => "failed",
    };
    let (job, trigger) = (at.task.job.to_string(), at.origin.trigger.name());
    counter!("reprocess_tasks_total", "job" => job.clone(), "trigger" => trigger, "outcome" => outcome)
        .increment(1);
    histogram!("reprocess_task_queue_seconds", "job" => job.clone(), "trigger" => trigger)
        .record(seconds(waited));
    histogram!("reprocess_task_seconds", "job" => job, "trigger" => trigger).record(seconds(ran));
}

/// What was staged, and what the validator says of it.
pub(super) fn staged(at: &Attempt<'_>, result: &TaskResult) {
    let job = at.task.job.to_string();
    let rows = result.after.iter().map(|profile| profile.rows).sum();
    counter!("reprocess_staged_rows_total", "job" => job.clone()).increment(rows);
    if let Some(bytes) = result.read_bytes {
        counter!("reprocess_read_bytes_total", "job" => job.clone()).increment(bytes);
    }
    if let Some(verdict) = &result.verdict {
        let verdict = verdict.decision.to_string();
        counter!("reprocess_verdicts_total", "job" => job, "verdict" => verdict).increment(1);
    }
}

/// What became of deliveries that were taken.
pub(super) fn dispatched(done: &Dispatched) {
    let all = [("sent", done.sent), ("again", done.again), ("unknown", done.unknown), ("dead", done.dead)];
    for (outcome, number) in all {
        counter!("reprocess_deliveries_total", "outcome" => outcome).increment(number);
    }
}

fn seconds(span: TimeDelta) -> f64 {
    span.to_std().unwrap_or_default().as_secs_f64()
}

/// A whole number as a measurement has it.
fn number(n: u64) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}

/// Tells the recorder of the process what each measurement means.
pub(super) fn describe() {
    describe_counter!("reprocess_tasks_total", Unit::Count, "Attempts at tasks that ended");
    describe_gauge!("reprocess_tasks_running", Unit::Count, "Tasks that this process runs");
    describe_histogram!("reprocess_task_seconds", Unit::Seconds, "How long tasks ran");
    describe_histogram!(
        "reprocess_task_queue_seconds",
        Unit::Seconds,
        "How long tasks waited before they ran"
    );
    describe_counter!("reprocess_staged_rows_total", Unit::Count, "Rows that were staged");
    describe_counter!("reprocess_read_bytes_total", Unit::Bytes, "Bytes that transforms read as streams");
    describe_counter!("reprocess_verdicts_total", Unit::Count, "What the validator said of staged outputs");
    describe_counter!("reprocess_deliveries_total", Unit::Count, "Attempts at deliveries that ended");
    describe_gauge!("reprocess_backfills", Unit::Count, "Backfills that hold partitions or run tasks");
    describe_gauge!("reprocess_backfill_tasks", Unit::Count, "Tasks of these backfills");
    describe_gauge!(
        "reprocess_outdated_partitions",
        Unit::Count,
        "Partitions on another logic version than the schedule runs"
    );
    describe_gauge!(
        "reprocess_stale_partitions",
        Unit::Count,
        "Partitions computed from what has changed since"
    );
}

impl Engine {
    /// Measures what is in the ledger: open backfills and their tasks by state, outdated and stale partitions by job. What tasks and
    /// deliveries of this process do is measured by itself, through the recorder of the [`metrics`] crate that the host has
    /// installed.
    pub async fn measure(&self) -> Result<()> {
        describe();
        let is_open = |state: &BackfillState| state.holds_partitions() || state.runs_tasks();
        let open: Vec<_> = BackfillState::ALL.into_iter().filter(is_open).collect();
        let mut backfills: BTreeMap<_, u64> = open.iter().map(|state| (*state, 0)).collect();
        let mut tasks: BTreeMap<TaskState, u64> =
            TaskState::ALL.into_iter().map(|state| (state, 0)).collect();
        for record in self.ledger.backfills(&open).await? {
            *backfills.entry(record.state).or_default() += 1;
            for (state, number) in self.ledger.progress(&record.plan.request.id).await?.tasks {
                *tasks.entry(state).or_default() += number;
            }
        }
        for (state, backfills) in backfills {
            gauge!("reprocess_backfills", "state" => state.name()).set(number(backfills));
        }
        for (state, tasks) in tasks {
            gauge!("reprocess_backfill_tasks", "state" => state.name()).set(number(tasks));
        }
        let (outdated, stale) = (self.outdated().await?, self.ledger.stale().await?);
        for job in self.host.catalog().jobs().map(|job| &job.name) {
            let outdated = outdated.iter().filter(|partition| partition.job == *job).count();
            let stale = stale.iter().filter(|partition| partition.job == *job).count();
            for (name, partitions) in
                [("reprocess_outdated_partitions", outdated), ("reprocess_stale_partitions", stale)]
            {
                let partitions = u64::try_from(partitions).unwrap_or(u64::MAX);
                gauge!(name, "job" => job.to_string()).set(number(partitions));
            }
        }
        Ok(())
    }
}
