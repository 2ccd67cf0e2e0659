//! What keeps backfills from taking everything: how many tasks run at a time, and how fast they read.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Tasks of several jobs that share something, such as a database, and of which only so many may run at a time, over all
/// processes that share a ledger.
///
/// A task that has a slot keeps it to its end. Of those that wait, scheduled runs come before backfills, then those of
/// greater priority, then those that asked first; but backfills always have the slots that are theirs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// How many tasks run at a time.
    pub slots: NonZeroU32,
    /// How many of them are for backfills, whatever else waits, so that they come to their end.
    pub for_backfills: u32,
}

impl Pool {
    /// A pool without slots for backfills alone.
    pub fn new(name: impl Into<String>, slots: NonZeroU32) -> Self {
        Self { name: name.into(), slots, for_backfills: 0 }
    }

    /// Sets how many slots are for backfills.
    #[must_use]
    pub fn with_slots_for_backfills(mut self, slots: u32) -> Self {
        self.for_backfills = slots;
        self
    }

    /// Refuses a pool in which scheduled runs would never have a slot.
    pub(crate) fn check(&self) -> Result<()> {
        match self.for_backfills < self.slots.get() {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "of the {} slots of pool `{}` {} are for backfills, so that none is left for the schedule",
                self.slots, self.name, self.for_backfills
            ))),
        }
    }
}

/// How fast tasks of one process read a table, so that a backfill leaves something to the others that use it.
///
/// It holds for rows that are read as a stream. What SQL reads inside of the table's own engine is limited by pools and
/// concurrency only, and so is what a transform reads of an input past its context. Up to one second's worth is read at
/// once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReadLimit {
    /// Rows in a second; `None` for as many as come.
    pub rows_per_s: Option<NonZeroU32>,
    /// Bytes in a second, as Arrow arrays; `None` for as many as come.
    pub bytes_per_s: Option<NonZeroU32>,
}

impl ReadLimit {
    /// So many rows in a second.
    pub fn rows_per_s(rows: NonZeroU32) -> Self {
        Self { rows_per_s: Some(rows), bytes_per_s: None }
    }

    /// So many bytes in a second.
    pub fn bytes_per_s(bytes: NonZeroU32) -> Self {
        Self { rows_per_s: None, bytes_per_s: Some(bytes) }
    }

    /// Limits rows too.
    #[must_use]
    pub fn with_rows_per_s(mut self, rows: NonZeroU32) -> Self {
        self.rows_per_s = Some(rows);
        self
    }

    /// Limits bytes too.
    #[must_use]
    pub fn with_bytes_per_s(mut self, bytes: NonZeroU32) -> Self {
        self.bytes_per_s = Some(bytes);
        self
    }
}
