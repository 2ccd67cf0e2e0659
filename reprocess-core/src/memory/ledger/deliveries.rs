//! Deliveries, in the order in which they were prepared.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::domain::ids::{BackfillId, WorkerId};
use crate::memory::clock::later;
use crate::ports::delivery::{
    Delivery, DeliveryClaim, DeliveryDecision, DeliveryEnd, DeliveryOrigin, DeliveryRecord, DeliveryState,
};
use crate::ports::ledger::rules::{self, KeyPast};
use crate::ports::writer::{StagedId, StampId};

#[derive(Debug, Default)]
pub(super) struct Deliveries {
    all: Vec<Filed>,
    last_place: u64,
}

/// A delivery, and what only the ledger needs of it.
#[derive(Debug)]
struct Filed {
    record: DeliveryRecord,
    in_doubt: bool,
    taken_by: Option<WorkerId>,
    taken_until: Option<DateTime<Utc>>,
}

impl Deliveries {
    pub(super) fn all(&self) -> impl Iterator<Item = &DeliveryRecord> {
        self.all.iter().map(|filed| &filed.record)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut DeliveryRecord> {
        self.all.iter_mut().map(|filed| &mut filed.record)
    }

    fn file(
        &mut self,
        origin: &DeliveryOrigin,
        delivery: &Delivery,
        state: DeliveryState,
        now: DateTime<Utc>,
    ) {
        self.last_place = self.last_place.saturating_add(1);
        let record = DeliveryRecord::new(self.last_place, origin, delivery.clone(), state, now);
        self.all.push(Filed { record, in_doubt: false, taken_by: None, taken_until: None });
    }

    /// Of a staged set, in place of those that were there.
    pub(super) fn prepare(
        &mut self,
        id: &StagedId,
        backfill: Option<&BackfillId>,
        batch: &[Delivery],
        now: DateTime<Utc>,
    ) {
        use DeliveryState::{Prepared, Withdrawn};
        let of_set = |record: &DeliveryRecord| record.staged.as_ref() == Some(id);
        let settled = |record: &DeliveryRecord| !matches!(record.state, Prepared | Withdrawn);
        // Once its output is committed, what was prepared for it may have been sent: preparing it again, after a lost
        // reply, must not make it new.
        if self.all().any(|record| of_set(record) && settled(record)) {
            return;
        }
        self.all.retain(|filed| !of_set(&filed.record));
        let origin = DeliveryOrigin::of_set(id, backfill);
        batch.iter().for_each(|delivery| self.file(&origin, delivery, Prepared, now));
    }

    /// Files as released what has a key of its own.
    pub(super) fn announce(
        &mut self,
        origin: &DeliveryOrigin,
        batch: &[Delivery],
        now: DateTime<Utc>,
    ) -> u64 {
        let mut count = 0;
        for delivery in batch {
            if !self.all().any(|record| record.delivery.key == delivery.key) {
                self.file(origin, delivery, DeliveryState::Released, now);
                count += 1;
            }
        }
        count
    }

    /// Withdraws those of the prepared deliveries that are given up.
    pub(super) fn withdraw(&mut self, now: DateTime<Utc>, given_up: impl Fn(&DeliveryRecord) -> bool) {
        let prepared = |record: &&mut DeliveryRecord| record.state == DeliveryState::Prepared;
        for record in self.all_mut().filter(prepared).filter(|record| given_up(record)) {
            record.state = DeliveryState::Withdrawn;
            record.changed_at = now;
        }
    }

    /// The stamp was committed by an attempt. Without an instant, what changes keeps its own.
    pub(super) fn commit(&mut self, stamp: &StampId, attempt: u32, deliver: bool, at: Option<DateTime<Utc>>) {
        for index in 0..self.all.len() {
            let Some(record) = self.all.get(index).map(|filed| &filed.record) else { continue };
            let Some(staged) = record.staged.as_ref().filter(|staged| staged.stamp == *stamp) else {
                continue;
            };
            let (past, of_backfill) = (self.past(&record.delivery.key), record.backfill.is_some());
            let of_attempt = staged.attempt == attempt;
            let next = rules::delivery_at_commit(record.state, of_attempt, deliver, of_backfill, past);
            if let (Some(state), Some(filed)) = (next, self.all.get_mut(index)) {
                filed.record.state = state;
                filed.record.changed_at = at.unwrap_or(filed.record.changed_at);
            }
        }
    }

    pub(super) fn release(&mut self, keys: &[String], now: DateTime<Utc>) -> u64 {
        let mut count = 0;
        for key in keys.iter().collect::<BTreeSet<_>>() {
            let was_released = self.past(key) == KeyPast::Released;
            let suppressed = |record: &&mut DeliveryRecord| {
                record.state == DeliveryState::Suppressed && record.delivery.key == *key
            };
            let waiting: Vec<_> = self.all_mut().filter(suppressed).collect();
            let states = rules::deliveries_at_release(waiting.len(), was_released);
            for (record, state) in waiting.into_iter().zip(states) {
                record.state = state;
                record.changed_at = now;
                count += u64::from(state == DeliveryState::Released);
            }
        }
        count
    }

    fn past(&self, key: &str) -> KeyPast {
        let of_key = self.all().filter(|record| record.delivery.key == key);
        KeyPast::of(of_key.map(|record| record.state))
    }

    pub(super) fn claim(
        &mut self,
        channels: &[String],
        worker: &WorkerId,
        limit: u32,
        ttl: Duration,
        now: DateTime<Utc>,
    ) -> Vec<DeliveryClaim> {
        let due = |filed: &&mut Filed| {
            let record = &filed.record;
            channels.contains(&record.delivery.channel)
                && rules::may_be_sent(record.state, record.due_at, filed.taken_until, now)
        };
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let take = |filed: &mut Filed| {
            let record = &mut filed.record;
            filed.in_doubt |= record.state == DeliveryState::Sending;
            filed.taken_by = Some(worker.clone());
            filed.taken_until = Some(later(now, ttl));
            (record.state, record.changed_at) = (DeliveryState::Sending, now);
            record.attempts = record.attempts.saturating_add(1);
            DeliveryClaim {
                place: record.place,
                delivery: record.delivery.clone(),
                attempt: record.attempts,
                in_doubt: filed.in_doubt,
                worker: worker.clone(),
            }
        };
        self.all.iter_mut().filter(due).take(limit).map(take).collect()
    }

    pub(super) fn end(&mut self, claim: &DeliveryClaim, end: &DeliveryEnd, now: DateTime<Utc>) -> bool {
        let is_it = |filed: &&mut Filed| {
            let record = &filed.record;
            record.place == claim.place
                && record.state == DeliveryState::Sending
                && record.attempts == claim.attempt
                && filed.taken_by.as_ref() == Some(&claim.worker)
        };
        let Some(filed) = self.all.iter_mut().find(is_it) else { return false };
        filed.taken_until = None;
        let record = &mut filed.record;
        (record.state, record.changed_at) = (rules::delivery_after(end), now);
        record.due_at = None;
        record.note = match end {
            DeliveryEnd::Sent { note } => note.clone(),
            DeliveryEnd::Unknown { note } | DeliveryEnd::Dead { note } => Some(note.clone()),
            DeliveryEnd::Again { due_at, in_doubt, note } => {
                record.due_at = Some(*due_at);
                filed.in_doubt = *in_doubt;
                Some(note.clone())
            }
        };
        true
    }

    pub(super) fn decide(&mut self, keys: &[String], decision: DeliveryDecision, now: DateTime<Utc>) -> u64 {
        let mut count = 0;
        for filed in self.all.iter_mut().filter(|filed| keys.contains(&filed.record.delivery.key)) {
            let record = &mut filed.record;
            let Some(state) = rules::delivery_decided(record.state, decision) else { continue };
            (record.state, record.changed_at) = (state, now);
            (record.attempts, record.due_at, filed.in_doubt) = (0, None, false);
            count += 1;
        }
        count
    }
}
