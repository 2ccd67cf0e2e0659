//! What a stopped backfill has committed without the ledger knowing.

use crate::domain::plan::{Action, Plan};
use crate::engine::Engine;
use crate::engine::execute::origin;
use crate::engine::lease::retried;
use crate::engine::record::Attempt;
use crate::engine::task::Noted;
use crate::error::Result;
use crate::ports::ledger::{BackfillRecord, Claim, TaskRecord, TaskState};
use crate::ports::writer::Found;

impl Engine {
    /// Tells the ledger of commits whose workers died before they could, where nobody will try their tasks again.
    pub(super) async fn settle(&self, record: &BackfillRecord, tasks: &[TaskRecord]) -> Result<()> {
        let plan = &record.plan;
        let untold = |known: &&TaskRecord| may_have_committed(plan, known);
        for known in tasks.iter().filter(untold) {
            let task = plan.task(known.id)?;
            let (Some(worker), Some(started_at)) = (&known.worker, known.started_at) else { continue };
            let Ok(writer) = self.host.writer(&task.table) else {
                tracing::warn!(table = %task.table, scope = %task.scope, "this process cannot look for a commit");
                continue;
            };
            let claim = Claim {
                backfill: plan.request.id.clone(),
                generation: plan.generation,
                task: known.id,
                attempt: known.attempt,
                worker: worker.clone(),
                queued_at: known.queued_at,
                started_at,
            };
            let (origin, beside) = (origin(record, task, worker), self.beside(plan).await?);
            let at = Attempt {
                plan,
                task,
                origin: &origin,
                claim: Some(&claim),
                beside: &beside,
                queued_at: known.queued_at,
                started_at,
            };
            let stamp = self.stamp(&at)?;
            let found = retried(self, || writer.find_commit(&stamp, &task.scope, &task.base)).await?;
            if let Found::Yes(commit) = found {
                let noted = Noted { own: known.result.clone(), ..Noted::default() };
                self.tell_of(&at, &noted, &commit).await?;
            }
        }
        Ok(())
    }
}

/// Whether a worker may have come as far as the commit of a task.
fn may_have_committed(plan: &Plan, known: &TaskRecord) -> bool {
    let commits = plan
        .task(known.id)
        .is_ok_and(|task| plan.commits_at_once(task) && !matches!(task.action, Action::Trigger));
    let settled = matches!(known.state, TaskState::Committed | TaskState::Skipped);
    known.attempt > 0 && !settled && commits
}
