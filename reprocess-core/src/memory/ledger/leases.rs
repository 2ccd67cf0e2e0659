//! Leases on scopes of tables.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::domain::ids::{TableId, WorkerId};
use crate::domain::scope::Scope;
use crate::memory::clock::later;
use crate::ports::ledger::Fence;

/// Every lease that was ever given, in the order of tokens.
#[derive(Debug, Default)]
pub(super) struct Leases(Vec<Lease>);

#[derive(Debug)]
struct Lease {
    fence: Fence,
    holder: WorkerId,
    until: DateTime<Utc>,
    /// Released, or taken again by its holder.
    ended: bool,
}

impl Leases {
    pub(super) fn acquire(
        &mut self,
        table: &TableId,
        scope: &Scope,
        holder: &WorkerId,
        ttl: Duration,
        now: DateTime<Utc>,
    ) -> Option<Fence> {
        let overlapping = |lease: &Lease| lease.fence.table == *table && lease.fence.scope.overlaps(scope);
        let held = |lease: &Lease| !lease.ended && now < lease.until && lease.holder != *holder;
        if self.0.iter().any(|lease| held(lease) && overlapping(lease)) {
            return None;
        }
        for lease in self.0.iter_mut().filter(|lease| !lease.ended && overlapping(lease)) {
            lease.ended = true;
        }
        let token = self.0.last().map_or(1, |lease| lease.fence.token.saturating_add(1));
        let fence = Fence { table: table.clone(), scope: scope.clone(), token };
        let until = later(now, ttl);
        self.0.push(Lease { fence: fence.clone(), holder: holder.clone(), until, ended: false });
        Some(fence)
    }

    /// A lease that ran out and that nobody took is prolonged.
    pub(super) fn renew(&mut self, fence: &Fence, ttl: Duration, now: DateTime<Utc>) -> bool {
        match self.0.iter_mut().find(|lease| lease.fence == *fence && !lease.ended) {
            Some(lease) => {
                lease.until = later(now, ttl);
                true
            }
            None => false,
        }
    }

    pub(super) fn release(&mut self, fence: &Fence) {
        self.0.iter_mut().filter(|lease| lease.fence == *fence).for_each(|lease| lease.ended = true);
    }

    /// Whether the lease was given, and no later one overlaps it.
    pub(super) fn is_current(&self, fence: &Fence) -> bool {
        let mut later = self.0.iter().rev().take_while(|lease| lease.fence.token > fence.token);
        let superseded =
            later.any(|lease| lease.fence.table == fence.table && lease.fence.scope.overlaps(&fence.scope));
        !superseded && self.0.iter().any(|lease| lease.fence == *fence)
    }
}
