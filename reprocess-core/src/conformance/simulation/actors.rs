//! What each actor does: a process with an engine of its own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use super::gate::{Port, SimClock};
use super::history::{Act, Wish};
use super::rows;
use super::shop::TTL_MS;
use crate::domain::ids::{Actor, BackfillId, RunId, WorkerId};
use crate::domain::plan::{Plan, RollbackRequest};
use crate::domain::request::{Inputs, Mode, Order, Request, Selection};
use crate::domain::value::Value;
use crate::engine::{Engine, Publication, RunRequest};
use crate::error::Result;
use crate::ports::clock::Clock;
use crate::ports::ledger::BackfillState;

pub(super) type Life = BoxFuture<'static, Result<String>>;

/// The life of the actor of a step; `None` where the step is one that the scheduler does itself.
pub(super) fn life(act: &Act, engine: Engine, port: &Port) -> Option<Life> {
    let worker = WorkerId::new(format!("w{}", port.actor));
    Some(match act.clone() {
        Act::Schedule { run, job, day, force, keep, leased } => {
            let mut request = RunRequest::scheduled(format!("run-{run}"), job, rows::key(day));
            (request.force, request.keep_replaced, request.when_leased) = (force, keep, leased);
            Box::pin(async move { Ok(format!("{:?}", engine.run(&request, &worker).await?)) })
        }
        Act::Backfill(wish) => Box::pin(backfill(engine, *wish, worker)),
        Act::Work { backfill } => Box::pin(async move {
            let done = engine.execute(&name(backfill), &worker, |_| {}).await?;
            Ok(done.state.name().to_owned())
        }),
        Act::Publish { backfill } => Box::pin(async move {
            accept(&engine, &name(backfill)).await?;
            Ok(format!("{:?}", engine.publish(&name(backfill), &"eve".into(), &worker).await?))
        }),
        Act::Rollback { id, of, day } => Box::pin(async move {
            let request = RollbackRequest {
                id: name(id),
                of: name(of),
                partitions: day.map(|day| BTreeSet::from([rows::key(day)])),
                reason: "it was wrong".into(),
                requester: "ann".into(),
            };
            let plan = engine.plan_rollback(&request).await?;
            through(&engine, &plan, &worker).await
        }),
        Act::Cancel { backfill } => Box::pin(async move {
            engine.cancel(&name(backfill), &"eve".into(), "enough").await.map(|()| "cancelled".to_owned())
        }),
        Act::Abort { backfill } => Box::pin(async move {
            engine.abort(&name(backfill), &"eve".into(), "no").await.map(|()| "aborted".to_owned())
        }),
        Act::Close { backfill, forget } => Box::pin(async move {
            engine.close(&name(backfill), &"eve".into(), forget).await.map(|_| "closed".to_owned())
        }),
        Act::Release { keys } => {
            Box::pin(async move { Ok(engine.release_deliveries(&keys, &"eve".into()).await?.to_string()) })
        }
        Act::Orders { .. } | Act::Outside { .. } | Act::Jump { .. } => return None,
    })
}

pub(super) fn name(backfill: u32) -> BackfillId {
    BackfillId::new(format!("fix-{backfill}"))
}

async fn backfill(engine: Engine, wish: Wish, worker: WorkerId) -> Result<String> {
    let selection = Selection::Range {
        first: Value::Date(rows::date(wish.days.0)),
        last: Value::Date(rows::date(wish.days.1)),
    };
    let mut request = Request::new(name(wish.id), selection, "a refund was counted", "ann")
        .with_mode(if wish.shadow { Mode::Shadow } else { Mode::Direct })
        .with_when_moved(wish.moved)
        .with_when_leased(wish.leased)
        .with_concurrency(wish.concurrency)
        .with_partitions_per_commit(wish.per_commit)
        .with_order(if wish.oldest_first { Order::OldestFirst } else { Order::Any });
    (request.keep_replaced, request.force, request.deliver) = (wish.keep, wish.force, wish.deliver);
    for (job, logic) in &wish.jobs {
        request = request.with_job(*job, *logic);
    }
    if let Some(run) = wish.replays {
        request = request.with_inputs(Inputs::Recorded { by: RunId::new(format!("run-{run}")) });
    }
    let plan = engine.plan(&request).await?;
    through(&engine, &plan, &worker).await
}

/// Submits, approves, executes, reviews and publishes.
async fn through(engine: &Engine, plan: &Plan, worker: &WorkerId) -> Result<String> {
    let id = &plan.request.id;
    let submission = engine.submit(plan, &"ann".into()).await?;
    if submission == crate::engine::Submission::NothingToDo {
        return Ok("nothing to do".to_owned());
    }
    if engine.backfill(id).await?.state == BackfillState::Planned {
        engine.approve(id, &plan.digest(), &"bob".into(), "fine").await?;
    }
    see_through(engine, id, worker, 4).await
}

/// Executes and publishes, again where production moved.
pub(super) async fn see_through(
    engine: &Engine,
    id: &BackfillId,
    worker: &WorkerId,
    rounds: u32,
) -> Result<String> {
    for _ in 0..rounds {
        let done = engine.execute(id, worker, |_| {}).await?;
        match done.state {
            BackfillState::AwaitingReview | BackfillState::Publishing => {
                accept(engine, id).await?;
                match engine.publish(id, &Actor::from("bob"), worker).await? {
                    Publication::Published => return Ok("published".to_owned()),
                    Publication::Stale { .. } => {}
                }
            }
            state => return Ok(state.name().to_owned()),
        }
    }
    Ok("given up".to_owned())
}

/// Approves what waits for a review, as it is.
async fn accept(engine: &Engine, id: &BackfillId) -> Result<()> {
    if engine.backfill(id).await?.state == BackfillState::AwaitingReview {
        let review = engine.review(id).await?;
        engine.approve(id, &review.digest, &"bob".into(), "as predicted").await?;
    }
    Ok(())
}

/// A person who looks at what is left of a backfill, and brings it to an end.
pub(super) async fn tidy(engine: Engine, port: Port, id: BackfillId) -> Result<String> {
    let worker = WorkerId::new(format!("w{}", port.actor));
    let record = engine.backfill(&id).await?;
    if record.state == BackfillState::Planned {
        engine.approve(&id, &record.plan_digest, &"bob".into(), "fine").await?;
    }
    for _ in 0..3 {
        if !engine.backfill(&id).await?.state.holds_partitions() {
            break;
        }
        // A lease of somebody who died runs out.
        let clock = SimClock(Arc::clone(&port.world));
        match see_through(&engine, &id, &worker, 6).await {
            Err(error) if error.is_retryable() => clock.sleep(Duration::from_millis(2 * TTL_MS)).await,
            _ => {}
        }
    }
    let state = engine.backfill(&id).await?.state;
    if state.holds_partitions() {
        engine.cancel(&id, &"eve".into(), "the history is over").await?;
    }
    // Whoever committed and was stopped before the ledger knew is found now.
    let stopped = [BackfillState::Aborted, BackfillState::Cancelled];
    if stopped.contains(&engine.backfill(&id).await?.state) {
        let _ = engine.close(&id, &"eve".into(), false).await?;
    }
    Ok(engine.backfill(&id).await?.state.name().to_owned())
}
