//! Downstream tasks: whether they are reached, and what has jobs run that are outside of this library.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;

use crate::domain::ids::Actor;
use crate::domain::plan::{Action, Plan, Task};
use crate::engine::Engine;
use crate::engine::record::Attempt;
use crate::engine::task::TaskEnd;
use crate::error::{Error, ErrorKind, Result};
use crate::ports::delivery::Answer;
use crate::ports::ledger::rules::changes_content;
use crate::ports::ledger::{BackfillState, LedgerRow, RunStatus, StateChange};
use crate::ports::notify::Start;

/// Why a downstream task is not run.
const CUT_OFF: &str = "what it reads came out as before, or another run has computed it since";

impl Engine {
    /// Takes a published backfill on to its downstream tasks, where it has some. Another process may have done so before.
    pub(super) async fn go_on_downstream(&self, plan: &Plan, by: &Actor) -> Result<()> {
        if !plan.propagates() {
            return Ok(());
        }
        let change = StateChange {
            from: BackfillState::Published,
            to: BackfillState::Propagating,
            by: by.clone(),
            approval: None,
            note: None,
        };
        self.ledger.transition(&plan.request.id, &change, self.clock.now()).await.map(drop)
    }

    /// Why a downstream task need not run; `None` where it has to, and for every other task.
    pub(super) async fn cut_off(&self, at: &Attempt<'_>) -> Result<Option<String>> {
        let reached =
            !at.task.is_downstream() || self.is_stale(at.task).await? || self.follows_change(at).await?;
        Ok((!reached).then(|| CUT_OFF.to_owned()))
    }

    /// Whether the ledger says that a task's units were computed from what has changed since.
    async fn is_stale(&self, task: &Task) -> Result<bool> {
        let stale = self.ledger.stale().await?;
        let of_task = |s: &crate::ports::ledger::StalePartition| {
            s.job == task.job && s.table == task.table && task.units.contains(&s.partition)
        };
        Ok(stale.iter().any(of_task))
    }

    /// Whether a task has to run for what the ledger does not note as stale: of jobs outside it has no rows, and rows without
    /// a declared order have to be merged again after those before them.
    async fn follows_change(&self, at: &Attempt<'_>) -> Result<bool> {
        let before = at.task.after.iter().map(|id| at.plan.task(*id)).collect::<Result<Vec<&Task>>>()?;
        if before.iter().any(|task| matches!(task.action, Action::Trigger)) {
            return Ok(true);
        }
        let outside = matches!(at.task.action, Action::Trigger);
        if !outside && !self.host.catalog().job(&at.task.job)?.depends_on_order() {
            return Ok(false);
        }
        let rows = self.ledger.run(&at.origin.run).await?;
        let by = |row: &LedgerRow, task: &Task| {
            task.job == row.record.job && task.units.contains(&row.record.partition)
        };
        let counts = |row: &LedgerRow, task: &Task| match outside {
            true => changes_content(&row.record),
            false => row.record.status == RunStatus::Committed && task.job == at.task.job,
        };
        Ok(rows.iter().any(|row| before.iter().any(|task| by(row, task) && counts(row, task))))
    }

    /// Has a job run that is outside of this library.
    pub(super) async fn have_run(&self, at: &Attempt<'_>) -> Result<TaskEnd> {
        if let Some(why) = self.cut_off(at).await? {
            return Ok(TaskEnd::Skipped(why));
        }
        let task = at.task;
        let partition = task.units.first().ok_or_else(|| Error::internal("a task without units"))?;
        let start = Start {
            job: task.job.clone(),
            table: task.table.clone(),
            partition: partition.clone(),
            data_interval_start: task.interval.map(|interval| interval.start()),
            data_interval_end: task.interval.map(|interval| interval.end()),
            backfill: at.plan.request.id.clone(),
            run: at.origin.run.clone(),
            reason: at.plan.request.reason.clone(),
        };
        let trigger = self.host.trigger(&task.job)?;
        let delivery = start.delivery(trigger.channel())?;
        let answer = AssertUnwindSafe(trigger.send(&delivery)).catch_unwind().await;
        match answer.unwrap_or_else(|_| Err(Error::new(ErrorKind::Transform, "the trigger panicked")))? {
            Answer::Accepted { note } => {
                let said = note.map_or_else(String::new, |note| format!(": {note}"));
                Ok(TaskEnd::Skipped(format!("run outside of this library{said}")))
            }
            Answer::Refused { why } => {
                Err(Error::new(ErrorKind::Transform, format!("the job outside failed: {why}")))
            }
            Answer::Busy { why } => {
                Err(Error::new(ErrorKind::Unavailable, format!("the job outside did not run: {why}")))
            }
        }
    }
}
