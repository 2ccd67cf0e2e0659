//! Slots of pools.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::domain::ids::WorkerId;
use crate::memory::clock::later;
use crate::ports::ledger::{SlotAsk, SlotEntry, rules};

/// Who asks for slots of each pool, and who has one.
#[derive(Debug, Default)]
pub(super) struct Slots(BTreeMap<String, BTreeMap<WorkerId, (SlotEntry, DateTime<Utc>)>>);

impl Slots {
    pub(super) fn ask(&mut self, ask: &SlotAsk, ttl: Duration, now: DateTime<Utc>) -> bool {
        let entries = self.0.entry(ask.pool.name.clone()).or_default();
        entries.retain(|_, (_, until)| now < *until);
        let new = || SlotEntry {
            holder: ask.holder.clone(),
            class: ask.class,
            priority: ask.priority,
            asked_at: now,
            has_slot: false,
        };
        let own = entries.entry(ask.holder.clone()).or_insert_with(|| (new(), now));
        own.1 = later(now, ttl);
        let all: Vec<_> = entries.values().map(|(entry, _)| entry.clone()).collect();
        let has_slot = rules::has_slot(&all, &ask.pool, &ask.holder);
        if let Some((own, _)) = entries.get_mut(&ask.holder) {
            own.has_slot = has_slot;
        }
        has_slot
    }

    pub(super) fn end(&mut self, ask: &SlotAsk) {
        if let Some(entries) = self.0.get_mut(&ask.pool.name) {
            entries.remove(&ask.holder);
        }
    }
}
