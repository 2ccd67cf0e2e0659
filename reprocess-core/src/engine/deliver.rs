//! Sends what is released: each key at most once for each confirmation.

use std::panic::AssertUnwindSafe;
use std::pin::pin;

use chrono::TimeDelta;
use futures::FutureExt;
use futures::future::{Either, join_all, select};
use serde::Serialize;

use crate::domain::ids::{Actor, WorkerId};
use crate::engine::Engine;
use crate::engine::lease::retried;
use crate::engine::measure;
use crate::error::{Error, ErrorKind, Result};
use crate::ports::delivery::{
    Answer, DeliveryClaim, DeliveryDecision, DeliveryEnd, DeliverySink, Known, OWN_KEYS,
};
use crate::ports::notify::{EVENTS, NOTICES};

/// What became of the deliveries that were taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Dispatched {
    /// Confirmed.
    pub sent: u64,
    /// To be tried again later.
    pub again: u64,
    /// Left to a person, since nobody can say whether they were sent.
    pub unknown: u64,
    /// Given up.
    pub dead: u64,
}

impl Dispatched {
    fn count(&mut self, end: &DeliveryEnd) {
        let count = match end {
            DeliveryEnd::Sent { .. } => &mut self.sent,
            DeliveryEnd::Again { .. } => &mut self.again,
            DeliveryEnd::Unknown { .. } => &mut self.unknown,
            DeliveryEnd::Dead { .. } => &mut self.dead,
        };
        *count += 1;
    }
}

impl Engine {
    /// Sends released deliveries through the host's sinks, the oldest first, until none is due. Several processes may do so
    /// at a time: each delivery is taken by one.
    ///
    /// What a process took and did not end, since it died, is taken again after `send_ttl_ms`, and the sink is asked
    /// whether the receiver has it. Where that cannot tell, the delivery is left to a person, as
    /// [`decide_deliveries`](Self::decide_deliveries) says.
    pub async fn dispatch(&self, worker: &WorkerId) -> Result<Dispatched> {
        self.dispatch_over(&self.host.channels(), worker).await
    }

    /// Decides about deliveries of these keys that are unknown or dead, and answers how many were changed.
    pub async fn decide_deliveries(
        &self,
        keys: &[String],
        decision: DeliveryDecision,
        by: &Actor,
    ) -> Result<u64> {
        self.ledger.decide_deliveries(keys, decision, by, self.clock.now()).await
    }

    /// Sends what owners and schedulers are to be told, as part of other work: what cannot be sent now is sent later.
    pub(super) async fn dispatch_own(&self, worker: &WorkerId) {
        let own = |channel: &String| [NOTICES, EVENTS].contains(&channel.as_str());
        let channels: Vec<_> = self.host.channels().into_iter().filter(own).collect();
        if let Err(error) = self.dispatch_over(&channels, worker).await {
            tracing::warn!(%error, "notices and events wait to be sent");
        }
    }

    async fn dispatch_over(&self, channels: &[String], worker: &WorkerId) -> Result<Dispatched> {
        let mut done = Dispatched::default();
        let (ttl, at_once) = (self.settings.send_ttl(), self.settings.sends.max(1));
        while !channels.is_empty() {
            let now = self.clock.now();
            let claim = || self.ledger.claim_deliveries(channels, worker, at_once, ttl, now);
            let claims = retried(self, claim).await?;
            if claims.is_empty() {
                break;
            }
            for end in join_all(claims.iter().map(|claim| self.deliver(claim))).await {
                done.count(&end?);
            }
        }
        measure::dispatched(&done);
        Ok(done)
    }

    async fn deliver(&self, claim: &DeliveryClaim) -> Result<DeliveryEnd> {
        let end = match self.host.sink(&claim.delivery.channel) {
            Some(sink) => self.sent(sink, claim).await,
            None => self.later(claim, claim.in_doubt, "no sink serves the channel".to_owned()),
        };
        let now = self.clock.now();
        let key = &claim.delivery.key;
        if !retried(self, || self.ledger.end_delivery(claim, &end, now)).await? {
            tracing::warn!(key, "the end of a delivery was noted before, or by another");
        }
        match &end {
            DeliveryEnd::Sent { .. } => tracing::debug!(key, "delivered"),
            DeliveryEnd::Again { note, .. } => tracing::debug!(key, note, "not delivered yet"),
            DeliveryEnd::Unknown { note } | DeliveryEnd::Dead { note } => {
                tracing::warn!(key, note, "a delivery is left to a person");
            }
        }
        Ok(end)
    }

    /// An attempt at a delivery.
    async fn sent(&self, sink: &dyn DeliverySink, claim: &DeliveryClaim) -> DeliveryEnd {
        let delivery = &claim.delivery;
        if claim.in_doubt
            && let Some(end) = self.asked(sink, claim, "an earlier attempt did not come to its end").await
        {
            return end;
        }
        match self.in_time(sink.send(delivery)).await {
            Ok(Answer::Accepted { note }) => DeliveryEnd::Sent { note },
            Ok(Answer::Refused { why }) => DeliveryEnd::Dead { note: why },
            Ok(Answer::Busy { why }) => self.later(claim, false, why),
            Err(error) => {
                let why = error.to_string();
                let end = self.asked(sink, claim, &why).await;
                end.unwrap_or_else(|| self.later(claim, false, why))
            }
        }
    }

    /// What the receiver says of a delivery that may have been sent; `None` where it has not got it.
    async fn asked(&self, sink: &dyn DeliverySink, claim: &DeliveryClaim, why: &str) -> Option<DeliveryEnd> {
        match self.in_time(sink.ask(&claim.delivery)).await {
            Ok(Known::NotReceived) => None,
            Ok(Known::Received) => Some(DeliveryEnd::Sent { note: None }),
            Ok(Known::CannotTell) => Some(DeliveryEnd::Unknown { note: why.to_owned() }),
            Err(error) => Some(self.later(claim, true, format!("{why}; {error}"))),
        }
    }

    /// Another attempt, unless there were enough.
    fn later(&self, claim: &DeliveryClaim, in_doubt: bool, note: String) -> DeliveryEnd {
        if claim.attempt < self.settings.send_attempts {
            let wait = TimeDelta::from_std(self.settings.send_pause(claim.attempt));
            let now = self.clock.now();
            let due_at = wait.ok().and_then(|wait| now.checked_add_signed(wait)).unwrap_or(now);
            return DeliveryEnd::Again { due_at, in_doubt, note };
        }
        match in_doubt {
            true => DeliveryEnd::Unknown { note },
            false => DeliveryEnd::Dead { note },
        }
    }

    /// What a sink answers before another process may take the delivery. A panic in it is an error of the delivery.
    async fn in_time<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let call = pin!(AssertUnwindSafe(call).catch_unwind());
        let limit = pin!(self.clock.sleep(self.settings.send_ttl() / 2));
        match select(call, limit).await {
            Either::Left((Ok(answer), _)) => answer,
            Either::Left((Err(_), _)) => Err(Error::new(ErrorKind::Transform, "the sink panicked")),
            Either::Right(_) => {
                Err(Error::new(ErrorKind::Unavailable, "the receiver did not answer in time"))
            }
        }
    }
}

/// Refuses keys of transforms that are kept for what this library tells.
pub(super) fn check_keys<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<()> {
    match keys.into_iter().find(|key| key.starts_with(OWN_KEYS)) {
        None => Ok(()),
        Some(key) => Err(Error::invalid(format!("a delivery has the key `{key}`"))
            .with_advice(format!("begin it with anything but `{OWN_KEYS}`"))),
    }
}
