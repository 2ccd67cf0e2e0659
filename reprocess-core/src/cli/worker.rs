//! Commands about workers: what works, and how much of it.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::args::WorkArgs;
use super::console::Invocation;
use super::exit::Exit;
use super::signals;
use crate::domain::ids::BackfillId;
use crate::engine::TaskEvent;
use crate::error::Result;
use crate::ports::ledger::TaskState;

/// What a worker has done.
#[derive(Serialize)]
struct Worked<'a> {
    worker: &'a str,
    /// Of each backfill, how many tasks it left in each state.
    backfills: BTreeMap<BackfillId, BTreeMap<TaskState, u64>>,
}

/// How a backfill is worked on.
#[derive(Serialize)]
struct Adjusted<'a> {
    backfill: &'a BackfillId,
    concurrency: u32,
    paused_by: Option<String>,
}

/// Works until there is nothing to do, or until it is stopped.
pub(super) async fn work(s: &mut Invocation<'_>, args: &WorkArgs) -> Result<Exit> {
    let left = Mutex::new(BTreeMap::<BackfillId, BTreeMap<TaskState, u64>>::new());
    let watch = |id: &BackfillId, event: TaskEvent| {
        if let TaskEvent::Left(_, state) = event {
            let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
            *left.entry(id.clone()).or_default().entry(state).or_default() += 1;
        }
    };
    let work = s.engine.work(&s.worker, args.until_idle, watch);
    #[cfg(feature = "prometheus")]
    let work = super::metrics::served(s.engine, args.metrics, work);
    signals::heeded(s, work).await?;
    let worker = s.worker.clone();
    let backfills = left.into_inner().unwrap_or_else(PoisonError::into_inner);
    let document = Worked { worker: worker.as_str(), backfills };
    s.show(&document, |_| {
        let line = |(id, states): (&BackfillId, &BTreeMap<TaskState, u64>)| {
            let states: Vec<_> = states.iter().map(|(state, tasks)| format!("{tasks} {state}")).collect();
            format!("{id}: {}\n", states.join(", "))
        };
        match document.backfills.is_empty() {
            true => "No task was run\n".to_owned(),
            false => document.backfills.iter().map(line).collect(),
        }
    })?;
    Ok(Exit::Done)
}

/// Lets no more tasks be begun.
pub(super) async fn pause(s: &mut Invocation<'_>, id: &BackfillId) -> Result<Exit> {
    s.engine.pause(id, &s.by).await?;
    adjusted(s, id, format!("Backfill `{id}` is paused; tasks that run come to their end\n")).await
}

/// Lets tasks be begun again.
pub(super) async fn resume(s: &mut Invocation<'_>, id: &BackfillId) -> Result<Exit> {
    s.engine.resume(id, &s.by).await?;
    adjusted(s, id, format!("Backfill `{id}` is no longer paused; workers go on with it\n")).await
}

/// Sets how many tasks run at a time.
pub(super) async fn concurrency(s: &mut Invocation<'_>, id: &BackfillId, tasks: NonZeroU32) -> Result<Exit> {
    s.engine.set_concurrency(id, tasks, &s.by).await?;
    adjusted(s, id, format!("Up to {tasks} tasks of backfill `{id}` run at a time\n")).await
}

async fn adjusted(s: &mut Invocation<'_>, id: &BackfillId, text: String) -> Result<Exit> {
    let record = s.engine.backfill(id).await?;
    let paused_by = record.paused_by.map(|by| by.to_string());
    s.show(&Adjusted { backfill: id, concurrency: record.concurrency, paused_by }, |_| text)?;
    Ok(Exit::Done)
}
