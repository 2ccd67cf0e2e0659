//! What the ledger holds.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use super::deliveries::Deliveries;
use super::leases::Leases;
use super::slots::Slots;
use crate::domain::ids::{BackfillId, JobName, RunId, TableId};
use crate::domain::partition::PartitionKey;
use crate::domain::plan::TaskId;
use crate::error::{Error, Result};
use crate::ports::ledger::rules::Covered;
use crate::ports::ledger::{BackfillRecord, LedgerRow, RunStatus, StalePartition, TaskRecord};
use crate::ports::writer::StampId;

#[derive(Debug, Default)]
pub(super) struct State {
    /// Every generation of every backfill, the latest last.
    pub(super) backfills: BTreeMap<BackfillId, Vec<Opened>>,
    /// Every row by its position.
    pub(super) rows: BTreeMap<u64, LedgerRow>,
    /// Position of the row of each stamp and partition.
    pub(super) places: BTreeMap<(StampId, PartitionKey), u64>,
    /// Position of the last row.
    pub(super) position: u64,
    /// What is stale, once for each run that made it so.
    pub(super) stale: BTreeMap<(TableId, PartitionKey, JobName, RunId), StalePartition>,
    /// Leases.
    pub(super) leases: Leases,
    /// Slots of pools.
    pub(super) slots: Slots,
    /// Deliveries.
    pub(super) deliveries: Deliveries,
}

/// One generation of a backfill.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) record: BackfillRecord,
    pub(super) tasks: Vec<TaskEntry>,
}

#[derive(Debug)]
pub(super) struct TaskEntry {
    pub(super) record: TaskRecord,
    /// When its claim runs out; of no meaning where it is not claimed.
    pub(super) claimed_until: DateTime<Utc>,
}

impl State {
    pub(super) fn latest(&self, id: &BackfillId) -> Option<&Opened> {
        self.backfills.get(id)?.last()
    }

    pub(super) fn latest_mut(&mut self, id: &BackfillId) -> Result<&mut Opened> {
        self.backfills
            .get_mut(id)
            .and_then(|generations| generations.last_mut())
            .ok_or_else(|| Error::not_found(format!("the ledger has no backfill `{id}`")))
    }

    pub(super) fn generation_mut(&mut self, id: &BackfillId, generation: u32) -> Option<&mut Opened> {
        self.backfills.get_mut(id)?.iter_mut().find(|o| o.record.plan.generation == generation)
    }

    pub(super) fn task_mut(
        &mut self,
        id: &BackfillId,
        generation: u32,
        task: TaskId,
    ) -> Option<&mut TaskEntry> {
        self.generation_mut(id, generation)?.task_mut(task)
    }

    /// Committed rows of a table, newest first.
    pub(super) fn committed(&self, table: &TableId) -> impl Iterator<Item = &LedgerRow> {
        let of_table = move |row: &&LedgerRow| row.record.table == *table;
        self.rows.values().rev().filter(of_table).filter(|row| row.record.status == RunStatus::Committed)
    }

    /// The committed rows of a table that no later one covers, newest first.
    pub(super) fn current_rows(&self, table: &TableId) -> Vec<&LedgerRow> {
        let mut seen = Covered::new();
        self.committed(table).filter(|row| !seen.insert(&row.record.partition, ())).collect()
    }
}

impl Opened {
    pub(super) fn task_mut(&mut self, id: TaskId) -> Option<&mut TaskEntry> {
        self.tasks.iter_mut().find(|entry| entry.record.id == id)
    }
}
