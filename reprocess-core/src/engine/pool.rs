//! Slots of pools and memory, held beside the tasks that run in them.

use std::pin::pin;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::{Either, select};
use tracing::Instrument;

use crate::domain::ids::WorkerId;
use crate::engine::Engine;
use crate::engine::lease::{Held, Kept, retried};
use crate::engine::measure::{self, Running};
use crate::engine::record::Attempt;
use crate::engine::task::{Noted, TaskEnd};
use crate::error::{Error, Result};
use crate::ports::ledger::{SlotAsk, SlotClass, Trigger};

/// How often a slot is asked for within the time after which an ask is forgotten, so that who died soon no longer waits.
const ASKS: u32 = 5;

/// How an attempt at a task ended, and since when it ran.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) started_at: DateTime<Utc>,
    pub(super) end: Result<TaskEnd>,
}

/// How waiting for a slot or for memory ended.
#[derive(Debug)]
enum Waited<T> {
    For(T),
    /// Nothing is to be begun any more.
    GivenUp,
    /// The claim was stopped or passed to another worker.
    Lost,
}

impl Engine {
    /// Runs a task in its pool: waits for a slot and for memory, during which it counts as queued, and holds both to the end.
    /// What is traced meanwhile stands in a span with run, job and partition.
    pub(super) async fn run_in_pool(&self, at: &Attempt<'_>, noted: Noted) -> Ran {
        let (run, task) = (&at.origin.run, at.task);
        let span = tracing::info_span!(
            "task", %run, job = %task.job, partition = %task.scope, trigger = %at.origin.trigger, attempt = at.number()
        );
        let ran = self.run_in_slot(at, noted).instrument(span).await;
        ran.unwrap_or_else(|error| self.not_begun(Err(error)))
    }

    fn not_begun(&self, end: Result<TaskEnd>) -> Ran {
        Ran { started_at: self.clock.now(), end }
    }

    async fn run_in_slot(&self, at: &Attempt<'_>, noted: Noted) -> Result<Ran> {
        let Some(ask) = self.slot_ask(at)? else { return self.run_in_memory(at, noted).await };
        self.asks().insert(ask.holder.clone(), ask.clone());
        let ran = match self.slot(at, &ask).await {
            Ok(Waited::For(())) => self.holding_slot(&ask, self.run_in_memory(at, noted)).await,
            Ok(Waited::GivenUp) => Ok(self.not_begun(Ok(TaskEnd::NotBegun))),
            Ok(Waited::Lost) => Ok(self.not_begun(Ok(TaskEnd::Lost))),
            Err(error) => Err(error),
        };
        self.asks().remove(&ask.holder);
        self.end_slot(&ask).await;
        ran
    }

    /// Runs a task when this process has the memory for it.
    async fn run_in_memory(&self, at: &Attempt<'_>, noted: Noted) -> Result<Ran> {
        let job = self.host.catalog().job(&at.task.job)?;
        let needed = job.memory_mib.min(self.settings.memory_mib.max(1));
        let _memory = match self.memory_for(at, needed).await? {
            Waited::For(memory) => memory,
            Waited::GivenUp => return Ok(self.not_begun(Ok(TaskEnd::NotBegun))),
            Waited::Lost => return Ok(self.not_begun(Ok(TaskEnd::Lost))),
        };
        let _running = Running::new(&at.task.job);
        let started_at = self.clock.now();
        let end = self.run_task(&Attempt { started_at, ..*at }, noted).await;
        measure::ended(at, started_at - at.queued_at, self.clock.now() - started_at, &end);
        Ok(Ran { started_at, end })
    }

    async fn memory_for(
        &self,
        at: &Attempt<'_>,
        mib: u32,
    ) -> Result<Waited<tokio::sync::SemaphorePermit<'_>>> {
        let memory = async {
            tokio::select! {
                biased;
                memory = self.memory.acquire_many(mib) => Some(memory),
                () = self.stop.asked() => None,
            }
        };
        match self.holding(Held { claim: at.claim, fence: None }, memory).await? {
            Kept::Yes(Some(Ok(memory))) => Ok(Waited::For(memory)),
            Kept::Yes(Some(Err(e))) => {
                Err(Error::internal("the memory of this process is closed").with_source(e))
            }
            Kept::Yes(None) => Ok(Waited::GivenUp),
            Kept::Lost => Ok(Waited::Lost),
        }
    }

    fn slot_ask(&self, at: &Attempt<'_>) -> Result<Option<SlotAsk>> {
        let job = self.host.catalog().job(&at.task.job)?;
        let Some(pool) = self.host.pool(job) else { return Ok(None) };
        // A scheduler may give the runs of several jobs and intervals one id, and an attempt may outlive its claim.
        let (task, stamp) = (at.task, self.stamp(at)?);
        let holder = format!("{}/{}/{}/{}", at.holder(), task.job, stamp.scope_digest, at.number());
        Ok(Some(SlotAsk {
            pool: pool.clone(),
            holder: WorkerId::new(holder),
            class: match at.origin.trigger {
                Trigger::Scheduled | Trigger::Manual => SlotClass::Scheduled,
                Trigger::Backfill | Trigger::Propagated | Trigger::Rollback => SlotClass::Backfill,
            },
            priority: job.priority,
        }))
    }

    /// Waits for a slot, unless nothing is to be begun any more: the process is to stop, or the backfill is paused.
    async fn slot(&self, at: &Attempt<'_>, ask: &SlotAsk) -> Result<Waited<()>> {
        let (ttl, poll) = (self.settings.lease_ttl(), self.settings.poll());
        let mut renewed_at = self.clock.now();
        loop {
            // Whoever waits and dies is not to be waited for as long as a task that runs.
            if self.ask(ask, ttl.min(poll * ASKS)).await? {
                return Ok(match self.ask(ask, ttl).await? {
                    true => Waited::For(()),
                    false => continue,
                });
            }
            tokio::select! {
                biased;
                () = self.stop.asked() => return Ok(Waited::GivenUp),
                () = self.clock.sleep(poll) => {}
            }
            if (self.clock.now() - renewed_at).to_std().unwrap_or_default() < ttl / 3 {
                continue;
            }
            renewed_at = self.clock.now();
            if !self.prolong(Held { claim: at.claim, fence: None }).await? {
                return Ok(Waited::Lost);
            }
            if let Some(claim) = at.claim
                && self.backfill(&claim.backfill).await?.paused_by.is_some()
            {
                return Ok(Waited::GivenUp);
            }
        }
    }

    async fn ask(&self, ask: &SlotAsk, ttl: Duration) -> Result<bool> {
        let now = self.clock.now();
        retried(self, || self.ledger.ask_slot(ask, ttl, now)).await
    }

    /// Runs work and prolongs its slot. One that is lost does not stop the work: it limits how much runs, not what is true.
    async fn holding_slot<T>(&self, ask: &SlotAsk, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let ttl = self.settings.lease_ttl();
        loop {
            let beat = async {
                self.clock.sleep(ttl / 3).await;
                self.ask(ask, ttl).await
            };
            match select(work.as_mut(), pin!(beat)).await {
                Either::Left((done, _)) => return done,
                Either::Right((Ok(true), _)) => {}
                Either::Right((Ok(false), _)) => {
                    tracing::warn!(pool = ask.pool.name, holder = %ask.holder, "a slot was lost");
                }
                Either::Right((Err(error), _)) => {
                    tracing::warn!(pool = ask.pool.name, %error, "a slot was not prolonged");
                }
            }
        }
    }

    /// Gives up a slot. One that stays runs out by itself, so an error is only logged.
    pub(super) async fn end_slot(&self, ask: &SlotAsk) {
        if let Err(error) = self.ledger.end_slot(ask).await {
            tracing::warn!(pool = ask.pool.name, holder = %ask.holder, %error, "a slot was not given up");
        }
    }
}
