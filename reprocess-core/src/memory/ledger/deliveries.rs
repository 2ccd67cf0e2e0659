//! Deliveries, in the order in which they were prepared.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};

use crate::domain::ids::BackfillId;
use crate::ports::delivery::{Delivery, DeliveryRecord, DeliveryState};
use crate::ports::ledger::rules;
use crate::ports::writer::{StagedId, StampId};

#[derive(Debug, Default)]
pub(super) struct Deliveries(Vec<DeliveryRecord>);

impl Deliveries {
    pub(super) fn all(&self) -> impl Iterator<Item = &DeliveryRecord> {
        self.0.iter()
    }

    pub(super) fn prepare(
        &mut self,
        id: &StagedId,
        backfill: Option<&BackfillId>,
        batch: &[Delivery],
        now: DateTime<Utc>,
    ) {
        use DeliveryState::{Prepared, Withdrawn};
        let settled = |record: &DeliveryRecord| !matches!(record.state, Prepared | Withdrawn);
        // Once its output is committed, what was prepared for it may have been sent: preparing it again, after a lost
        // reply, must not make it new.
        if self.0.iter().any(|record| record.staged == *id && settled(record)) {
            return;
        }
        self.0.retain(|record| record.staged != *id);
        self.0.extend(batch.iter().map(|delivery| DeliveryRecord {
            staged: id.clone(),
            backfill: backfill.cloned(),
            delivery: delivery.clone(),
            state: Prepared,
            changed_at: now,
        }));
    }

    /// Withdraws those of the prepared deliveries that are given up.
    pub(super) fn withdraw(&mut self, now: DateTime<Utc>, given_up: impl Fn(&DeliveryRecord) -> bool) {
        let prepared = |record: &&mut DeliveryRecord| record.state == DeliveryState::Prepared;
        for record in self.0.iter_mut().filter(prepared).filter(|record| given_up(record)) {
            record.state = DeliveryState::Withdrawn;
            record.changed_at = now;
        }
    }

    /// The stamp was committed by an attempt. Without an instant, what changes keeps its own.
    pub(super) fn commit(&mut self, stamp: &StampId, attempt: u32, deliver: bool, at: Option<DateTime<Utc>>) {
        for place in 0..self.0.len() {
            let Some(record) = self.0.get(place).filter(|record| record.staged.stamp == *stamp) else {
                continue;
            };
            let released = self.was_released(&record.delivery.key);
            let of_attempt = record.staged.attempt == attempt;
            let next = rules::delivery_at_commit(record.state, of_attempt, deliver, released);
            if let (Some(state), Some(record)) = (next, self.0.get_mut(place)) {
                record.state = state;
                record.changed_at = at.unwrap_or(record.changed_at);
            }
        }
    }

    pub(super) fn release(&mut self, keys: &[String], now: DateTime<Utc>) -> u64 {
        let mut count = 0;
        for key in keys.iter().collect::<BTreeSet<_>>() {
            let was_released = self.was_released(key);
            let suppressed = |record: &&mut DeliveryRecord| {
                record.state == DeliveryState::Suppressed && record.delivery.key == *key
            };
            let waiting: Vec<_> = self.0.iter_mut().filter(suppressed).collect();
            let states = rules::deliveries_at_release(waiting.len(), was_released);
            for (record, state) in waiting.into_iter().zip(states) {
                record.state = state;
                record.changed_at = now;
                count += u64::from(state == DeliveryState::Released);
            }
        }
        count
    }

    fn was_released(&self, key: &str) -> bool {
        let released = |record: &DeliveryRecord| record.state == DeliveryState::Released;
        self.0.iter().any(|record| released(record) && record.delivery.key == key)
    }
}
