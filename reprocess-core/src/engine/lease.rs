//! Leases and claims, held beside the work that they protect.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{MutexGuard, PoisonError};

use chrono::{DateTime, Utc};
use futures::future::{Either, select};

use crate::domain::ids::{TableId, WorkerId};
use crate::domain::request::WhenLeased;
use crate::domain::scope::Scope;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::ports::ledger::{Claim, Fence, SlotAsk};

/// What is prolonged while work goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held<'a> {
    pub(super) claim: Option<&'a Claim>,
    pub(super) fence: Option<&'a Fence>,
}

/// How work under a claim ended.
#[derive(Debug)]
pub(super) enum Kept<T> {
    /// It ended by itself.
    Yes(T),
    /// The claim was stopped or passed to another worker; the work was dropped.
    Lost,
}

/// Whether a lease was taken.
#[derive(Debug)]
pub(super) enum Leased {
    /// It was, or leases are off.
    Yes(Option<Fence>),
    /// Another holds it, and the request says to leave the partition to it.
    LeftToOther,
    /// The claim was stopped or passed to another worker.
    Lost,
}

impl Engine {
    /// Runs work and prolongs what it holds. A lease that is lost does not stop the work: its commit will be fenced.
    pub(super) async fn holding<T>(&self, held: Held<'_>, work: impl Future<Output = T>) -> Result<Kept<T>> {
        let mut work = pin!(work);
        loop {
            // The work is polled while its lease is prolonged: it could hold the connection that this needs.
            match select(work.as_mut(), pin!(self.beat(held))).await {
                Either::Left((done, _)) => return Ok(Kept::Yes(done)),
                Either::Right((Ok(true), _)) => {}
                Either::Right((Ok(false), _)) => return Ok(Kept::Lost),
                Either::Right((Err(error), _)) => return Err(error),
            }
        }
    }

    /// Runs a commit to its end, whatever becomes of what is held: one that is given up may take place all the same, and
    /// nobody would tell the ledger. Where the lease has passed on, it is fenced.
    pub(super) async fn to_its_end<T>(&self, held: Held<'_>, commit: impl Future<Output = T>) -> T {
        let mut commit = pin!(commit);
        loop {
            match select(commit.as_mut(), pin!(self.beat(held))).await {
                Either::Left((done, _)) => return done,
                Either::Right((Ok(_), _)) => {}
                Either::Right((Err(error), _)) => tracing::warn!(%error, "a lease was not prolonged"),
            }
        }
    }

    async fn beat(&self, held: Held<'_>) -> Result<bool> {
        self.clock.sleep(self.settings.lease_ttl() / 3).await;
        self.prolong(held).await
    }

    /// Prolongs what is held; `false` where the claim was stopped or passed to another worker.
    pub(super) async fn prolong(&self, held: Held<'_>) -> Result<bool> {
        let (ttl, now) = (self.settings.lease_ttl(), self.clock.now());
        if let Some(fence) = held.fence {
            let kept = retried(self, || self.ledger.renew(fence, ttl, now)).await?;
            if !kept {
                tracing::warn!(table = %fence.table, scope = %fence.scope, "a lease was lost");
            }
        }
        match held.claim {
            Some(claim) => retried(self, || self.ledger.renew_claim(claim, ttl, now)).await,
            None => Ok(true),
        }
    }

    /// Takes a lease on a scope, and waits for it where the policy says so.
    pub(super) async fn lease(
        &self,
        table: &TableId,
        scope: &Scope,
        holder: &WorkerId,
        policy: WhenLeased,
        claim: Option<&Claim>,
    ) -> Result<Leased> {
        if !self.settings.leases {
            return Ok(Leased::Yes(None));
        }
        let ttl = self.settings.lease_ttl();
        // The lease may be that of an earlier attempt at this very task, which ends by itself where its worker has died.
        let again = claim.is_some_and(|claim| claim.attempt > 1);
        let own_until = if again { self.clock.now() + ttl } else { DateTime::<Utc>::MIN_UTC };
        loop {
            let now = self.clock.now();
            let fence = retried(self, || self.ledger.acquire(table, scope, holder, ttl, now)).await?;
            match (fence, policy) {
                (Some(fence), _) => {
                    self.held_leases().insert(fence.token, fence.clone());
                    return Ok(Leased::Yes(Some(fence)));
                }
                (None, _) if now <= own_until => {}
                (None, WhenLeased::Skip) => return Ok(Leased::LeftToOther),
                (None, WhenLeased::Fail) => {
                    return Err(Error::new(ErrorKind::State, "another run holds a lease on the partition")
                        .with_context("partition", scope)
                        .with_context("table", table)
                        .with_retry(true)
                        .with_advice("run it again when the other is done"));
                }
                (None, WhenLeased::Wait) => {}
            }
            self.clock.sleep(self.settings.poll()).await;
            if !self.prolong(Held { claim, fence: None }).await? {
                return Ok(Leased::Lost);
            }
        }
    }

    /// Ends a lease. One that stays runs out by itself, so an error is only logged.
    pub(super) async fn unlease(&self, fence: Option<&Fence>) {
        let Some(fence) = fence else { return };
        self.held_leases().remove(&fence.token);
        self.end_lease(fence).await;
    }

    /// Ends the leases and slots of work that was given up, so that others need not wait until they run out.
    pub(super) async fn unlease_all(&self) {
        let left = std::mem::take(&mut *self.held_leases());
        for fence in left.values() {
            self.end_lease(fence).await;
        }
        let asks = std::mem::take(&mut *self.asks());
        for ask in asks.values() {
            self.end_slot(ask).await;
        }
    }

    pub(super) fn asks(&self) -> MutexGuard<'_, BTreeMap<WorkerId, SlotAsk>> {
        self.asks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held_leases(&self) -> MutexGuard<'_, BTreeMap<u64, Fence>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn end_lease(&self, fence: &Fence) {
        if let Err(error) = self.ledger.release(fence).await {
            tracing::warn!(table = %fence.table, scope = %fence.scope, %error, "a lease was not released");
        }
    }
}

/// Tries a step again while its error is one that a retry can get past.
pub(super) async fn retried<T, F, Fut>(engine: &Engine, step: F) -> Result<T>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T>>,
{
    let mut waits = engine.settings.backoff();
    loop {
        match step().await {
            Err(error) if error.is_retryable() => match waits.next() {
                Some(wait) => {
                    tracing::debug!(%error, ?wait, "tried again");
                    engine.clock.sleep(wait).await;
                }
                None => return Err(error),
            },
            result => return result,
        }
    }
}
