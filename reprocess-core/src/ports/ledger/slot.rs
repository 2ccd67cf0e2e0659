//! Slots of pools.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::domain::ids::WorkerId;
use crate::domain::pool::Pool;

/// What kind of task wants a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SlotClass {
    /// One of the schedule, or of a person who waits for it.
    Scheduled,
    /// One of a backfill, of a rollback, or downstream of them.
    Backfill,
}

impl SlotClass {
    /// The name in storage and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Backfill => "backfill",
        }
    }
}

/// A task that wants a slot, or that has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotAsk {
    /// The pool, as the host that asks declares it.
    pub pool: Pool,
    /// The task: no two ask under one name.
    pub holder: WorkerId,
    /// What kind of task it is.
    pub class: SlotClass,
    /// Greater ones come first.
    pub priority: i32,
}

/// A task among others in its pool, as a ledger has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotEntry {
    /// The task.
    pub holder: WorkerId,
    /// What kind of task it is.
    pub class: SlotClass,
    /// Greater ones come first.
    pub priority: i32,
    /// When it asked first.
    pub asked_at: DateTime<Utc>,
    /// Whether it has a slot.
    pub has_slot: bool,
}
