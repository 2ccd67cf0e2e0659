//! Side effects: prepared before the commit, released after it, sent once.

use std::fmt;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::writer::{StagedId, StampId};
use crate::domain::ids::{BackfillId, RunId, WorkerId};
use crate::error::Result;

/// What the keys begin with that this library gives its own deliveries; those of transforms may not.
pub const OWN_KEYS: &str = "reprocess/";

/// A mail, a partner call, a payment that a task wants to happen once its output is committed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delivery {
    /// Idempotency key from the business event, not from the run: the same event again has the same key.
    pub key: String,
    /// Who sends it, for example `mail`: the channel of a [`DeliverySink`].
    pub channel: String,
    /// What is sent.
    pub payload: serde_json::Value,
}

/// How far a delivery is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// Its output is not committed.
    Prepared,
    /// Its output is committed, and the run was not asked to deliver; it waits to be released by name.
    Suppressed,
    /// It may be sent.
    Released,
    /// A process has taken it and may have sent it.
    Sending,
    /// Whoever gets it has confirmed it.
    Sent,
    /// It may have been sent, and nobody can say whether it was: a person decides.
    Unknown,
    /// It was refused, or not taken however often it was tried: a person decides.
    Dead,
    /// A delivery with its key was released before, so this one never is.
    Duplicate,
    /// Its output was given up.
    Withdrawn,
}

impl DeliveryState {
    /// Every state.
    pub const ALL: [Self; 9] = [
        Self::Prepared,
        Self::Suppressed,
        Self::Released,
        Self::Sending,
        Self::Sent,
        Self::Unknown,
        Self::Dead,
        Self::Duplicate,
        Self::Withdrawn,
    ];

    /// The name in storage and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prepared => "prepared",
            Self::Suppressed => "suppressed",
            Self::Released => "released",
            Self::Sending => "sending",
            Self::Sent => "sent",
            Self::Unknown => "unknown",
            Self::Dead => "dead",
            Self::Duplicate => "duplicate",
            Self::Withdrawn => "withdrawn",
        }
    }

    /// Whether its key is taken: no other delivery of the key is released any more.
    pub fn was_released(self) -> bool {
        matches!(self, Self::Released | Self::Sending | Self::Sent | Self::Unknown | Self::Dead)
    }
}

impl fmt::Display for DeliveryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A delivery in the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeliveryRecord {
    /// Its place: grows with every delivery of the ledger.
    pub place: u64,
    /// The staged set that it belongs to; `None` for what this library tells owners and schedulers.
    pub staged: Option<StagedId>,
    /// The run that it is of, where it is of one.
    pub run: Option<RunId>,
    /// The backfill, where it is of one.
    pub backfill: Option<BackfillId>,
    /// What would be sent.
    pub delivery: Delivery,
    /// How far it is.
    pub state: DeliveryState,
    /// When it got there.
    pub changed_at: DateTime<Utc>,
    /// How often it was taken to be sent since it was released.
    pub attempts: u32,
    /// Before this it is not tried again.
    pub due_at: Option<DateTime<Utc>>,
    /// What was said of the last attempt.
    pub note: Option<String>,
}

impl DeliveryRecord {
    /// A delivery as it is filed, at a place, in a state.
    pub fn new(
        place: u64,
        origin: &DeliveryOrigin,
        delivery: Delivery,
        state: DeliveryState,
        at: DateTime<Utc>,
    ) -> Self {
        Self {
            place,
            staged: origin.staged.clone(),
            run: origin.run.clone(),
            backfill: origin.backfill.clone(),
            delivery,
            state,
            changed_at: at,
            attempts: 0,
            due_at: None,
            note: None,
        }
    }

    /// The stamp of its staged set.
    pub fn stamp(&self) -> Option<&StampId> {
        self.staged.as_ref().map(|staged| &staged.stamp)
    }
}

/// What a delivery is of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveryOrigin {
    /// The staged set.
    pub staged: Option<StagedId>,
    /// The run.
    pub run: Option<RunId>,
    /// The backfill.
    pub backfill: Option<BackfillId>,
}

impl DeliveryOrigin {
    /// A staged set, whose run is in its stamp.
    pub fn of_set(id: &StagedId, backfill: Option<&BackfillId>) -> Self {
        Self { staged: Some(id.clone()), run: Some(id.stamp.run.clone()), backfill: backfill.cloned() }
    }
}

/// A delivery that a process has taken to send it.
#[derive(Clone, Debug, PartialEq)]
pub struct DeliveryClaim {
    /// Its place.
    pub place: u64,
    /// What is sent.
    pub delivery: Delivery,
    /// Which attempt this is, from 1. The ledger takes the end of the latest attempt only.
    pub attempt: u32,
    /// Whether an earlier attempt may have sent it without being told so.
    pub in_doubt: bool,
    /// Who has taken it.
    pub worker: WorkerId,
}

/// How an attempt to send ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryEnd {
    /// It is confirmed.
    Sent {
        /// What the receiver said, for example its own number of the message.
        note: Option<String>,
    },
    /// It is to be tried again.
    Again {
        /// Not before this.
        due_at: DateTime<Utc>,
        /// Whether it may have been sent after all.
        in_doubt: bool,
        /// Why.
        note: String,
    },
    /// Nobody can say whether it was sent.
    Unknown {
        /// Why.
        note: String,
    },
    /// It is given up.
    Dead {
        /// Why.
        note: String,
    },
}

/// What a person decides about a delivery that is unknown or dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryDecision {
    /// It is sent again: it was not received, or a second one does no harm.
    Again,
    /// It was received.
    Sent,
    /// It is not sent.
    Never,
}

/// What a receiver answers to a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has it.
    Accepted {
        /// What the receiver said, for example its own number of the message.
        note: Option<String>,
    },
    /// It has not taken it, and will not.
    Refused {
        /// Why.
        why: String,
    },
    /// It has not taken it, and may later.
    Busy {
        /// Why.
        why: String,
    },
}

/// What a receiver says when it is asked for a delivery that may have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It has it.
    Received,
    /// It has not, and what was sent before will not come any more.
    NotReceived,
    /// It cannot tell.
    CannotTell,
}

/// Sends the deliveries of one channel: mail, a partner's interface, what a scheduler listens to.
///
/// An error of [`send`](Self::send) leaves open whether the delivery was received: the sink is asked then, and where it
/// cannot tell, the delivery is left to a person. So a sink answers [`Answer::Busy`] or [`Answer::Refused`] where it knows
/// that nothing was received. What takes longer than half of the lease of a worker counts as an error.
#[async_trait]
pub trait DeliverySink: Send + Sync + fmt::Debug {
    /// The channel.
    fn channel(&self) -> &str;

    /// Sends one. The key goes along, so that a receiver that knows keys takes it once.
    async fn send(&self, delivery: &Delivery) -> Result<Answer>;

    /// Asks the receiver whether it has a delivery that may have been sent.
    async fn ask(&self, _delivery: &Delivery) -> Result<Known> {
        Ok(Known::CannotTell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_json() {
        for state in DeliveryState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.name());
        }
    }
}
