//! Commands by which people decide about a backfill.

use serde::Serialize;

use super::console::Invocation;
use super::exit::Exit;
use super::signals;
use crate::domain::ids::{BackfillId, TableId};
use crate::domain::partition::PartitionKey;
use crate::domain::plan::TaskId;
use crate::engine::Publication;
use crate::error::Result;
use crate::ports::ledger::{BackfillState, StalePartition};
use crate::ports::writer::Moved;
use crate::render;

/// Where a backfill is after a decision.
#[derive(Default, Serialize)]
struct Decided<'a> {
    backfill: &'a str,
    state: Option<BackfillState>,
    /// What was approved, or is left to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<&'a str>,
    /// What moved under a shadow.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    moved: Vec<Moved>,
    /// The tasks to be staged again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stage_again: Vec<TaskId>,
    /// Downstream partitions that a closed backfill leaves stale.
    #[serde(skip_serializing_if = "Option::is_none")]
    stale: Option<Vec<StalePartition>>,
}

/// Approves a plan or reviewed outputs.
pub(super) async fn approve(
    s: &mut Invocation<'_>,
    id: &BackfillId,
    digest: &str,
    comment: &str,
) -> Result<Exit> {
    s.engine.approve(id, digest, &s.by, comment).await?;
    let state = s.engine.backfill(id).await?.state;
    let (what, next) = match state {
        BackfillState::AwaitingReview => ("Outputs", format!("publish {id}")),
        _ => ("Plan", format!("backfill --resume {id}")),
    };
    let text = format!("{what} {digest} of backfill `{id}` approved by {}\n", s.by);
    decided(s, id, Decided { digest: Some(digest), ..Decided::default() }, text).await?;
    s.hint(&format!("next: {next}"))?;
    Ok(Exit::Done)
}

/// Takes some outputs out of a review.
pub(super) async fn discard(
    s: &mut Invocation<'_>,
    id: &BackfillId,
    tasks: &[u32],
    why: &str,
) -> Result<Exit> {
    let tasks: Vec<_> = tasks.iter().copied().map(TaskId).collect();
    let review = s.engine.discard_staged(id, &tasks, &s.by, why).await?;
    let digest = review.digest.as_str();
    let left = review.outputs.len();
    let text = format!("Backfill `{id}` has {left} outputs left in review, with digest {digest}\n");
    decided(s, id, Decided { digest: Some(digest), ..Decided::default() }, text).await?;
    s.hint(&format!("next: review {id}, then approve {id} --digest {digest}"))?;
    Ok(Exit::Waiting)
}

/// A reviewer's no.
pub(super) async fn abort(s: &mut Invocation<'_>, id: &BackfillId, why: &str) -> Result<Exit> {
    s.engine.abort(id, &s.by, why).await?;
    let text = format!("Backfill `{id}` is aborted; what was staged is discarded\n");
    decided(s, id, Decided::default(), text).await?;
    Ok(Exit::Done)
}

/// Stops a backfill.
pub(super) async fn cancel(s: &mut Invocation<'_>, id: &BackfillId, why: &str) -> Result<Exit> {
    s.engine.cancel(id, &s.by, why).await?;
    let text = format!("Backfill `{id}` is cancelled; what was committed stays\n");
    decided(s, id, Decided::default(), text).await?;
    Ok(Exit::Done)
}

/// Commits approved outputs.
pub(super) async fn publish(s: &mut Invocation<'_>, id: &BackfillId) -> Result<Exit> {
    match s.engine.publish(id, &s.by, &s.worker).await? {
        Publication::Published => {
            if s.engine.backfill(id).await?.state.runs_tasks() {
                let _ = signals::heeded(s, s.engine.execute(id, &s.worker, |_| {})).await?;
            }
            let tables = tables(s, id).await?;
            let text = format!("Backfill `{id}` is published: {}\n", tables.join(", "));
            decided(s, id, Decided::default(), text).await?;
            s.hint(&format!("next: close {id}; or rollback {id} --all --reason …"))?;
            Ok(Exit::of_state(s.engine.backfill(id).await?.state))
        }
        Publication::Stale { moved, tasks } => {
            let keys: Vec<&PartitionKey> = moved.iter().map(|m| &m.partition).collect();
            let names: Vec<_> = keys.iter().take(s.lines).map(ToString::to_string).collect();
            let text = format!(
                "Backfill `{id}` is stale: production moved in {} of its partitions, and nothing of their table was \
                 published\n  {}\n",
                keys.len(),
                names.join("\n  ")
            );
            let found = Decided { moved, stage_again: tasks, ..Decided::default() };
            decided(s, id, found, text).await?;
            s.hint(&format!("next: backfill --resume {id} stages only these again, then review it"))?;
            Ok(Exit::Stale)
        }
    }
}

/// The tables that a backfill writes, and into how many tasks each is divided.
async fn tables(s: &Invocation<'_>, id: &BackfillId) -> Result<Vec<String>> {
    let plan = s.engine.backfill(id).await?.plan;
    let mut tables = std::collections::BTreeMap::<TableId, usize>::new();
    for task in plan.tasks {
        *tables.entry(task.table).or_default() += 1;
    }
    let text = |(table, tasks): (TableId, usize)| match tasks {
        1 => format!("1 task of {table}"),
        n => format!("{n} tasks of {table}"),
    };
    Ok(tables.into_iter().map(text).collect())
}

/// Ends a backfill for good.
pub(super) async fn close(s: &mut Invocation<'_>, id: &BackfillId, forget: bool) -> Result<Exit> {
    let closed = s.engine.close(id, &s.by, forget).await?;
    let stale = render::stale(&closed.stale, s.lines);
    let text = format!("Backfill `{id}` is closed\n\n{stale}");
    decided(s, id, Decided { stale: Some(closed.stale), ..Decided::default() }, text).await?;
    Ok(Exit::Done)
}

async fn decided(s: &mut Invocation<'_>, id: &BackfillId, what: Decided<'_>, text: String) -> Result<()> {
    let state = Some(s.engine.backfill(id).await?.state);
    s.show(&Decided { backfill: id.as_str(), state, ..what }, |_| text)
}
