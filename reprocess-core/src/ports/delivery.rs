//! Side effects: prepared before the commit, released after it.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::writer::StagedId;
use crate::domain::ids::BackfillId;

/// A mail, a partner call, a payment that a task wants to happen once its output is committed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delivery {
    /// Idempotency key from the business event, not from the run: the same event again has the same key.
    pub key: String,
    /// Who sends it, for example `mail`.
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
    /// A delivery with its key was released before, so this one never is.
    Duplicate,
    /// Its output was given up.
    Withdrawn,
}

/// A delivery in the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeliveryRecord {
    /// The staged set that it belongs to.
    pub staged: StagedId,
    /// The backfill, where it is of one.
    pub backfill: Option<BackfillId>,
    /// What would be sent.
    pub delivery: Delivery,
    /// How far it is.
    pub state: DeliveryState,
    /// When it got there.
    pub changed_at: DateTime<Utc>,
}
