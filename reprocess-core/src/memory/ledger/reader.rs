//! The questions.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};

use super::MemoryLedger;
use super::state::State;
use crate::domain::ids::{BackfillId, JobName, LogicVersion, RunId, TableId};
use crate::domain::interval::Interval;
use crate::domain::partition::PartitionKey;
use crate::error::Result;
use crate::ports::delivery::DeliveryRecord;
use crate::ports::ledger::rules::Covered;
use crate::ports::ledger::{
    BackfillRecord, BackfillState, DeliveryFilter, LedgerReader, LedgerRow, Outdated, Progress, QueueTime,
    RunRecord, StalePartition, TaskRecord, TaskState, Trigger,
};

#[async_trait]
impl LedgerReader for MemoryLedger {
    async fn position(&self) -> Result<u64> {
        Ok(self.lock()?.position)
    }

    async fn time(&self) -> Result<Option<DateTime<Utc>>> {
        Ok(None)
    }

    async fn backfill(&self, id: &BackfillId) -> Result<Option<BackfillRecord>> {
        Ok(self.lock()?.latest(id).map(|opened| opened.record.clone()))
    }

    async fn backfills(&self, states: &[BackfillState]) -> Result<Vec<BackfillRecord>> {
        let state = self.lock()?;
        let latest = state.backfills.values().filter_map(|generations| generations.last());
        let records = latest.map(|opened| opened.record.clone());
        Ok(records.filter(|record| states.is_empty() || states.contains(&record.state)).collect())
    }

    async fn tasks(&self, id: &BackfillId) -> Result<Vec<TaskRecord>> {
        let state = self.lock()?;
        let tasks = state.latest(id).map(|opened| opened.tasks.as_slice()).unwrap_or_default();
        Ok(tasks.iter().map(|entry| entry.record.clone()).collect())
    }

    async fn current(&self, table: &TableId, partitions: &[PartitionKey]) -> Result<Vec<Option<LedgerRow>>> {
        let state = self.lock()?;
        let mut newest = Covered::new();
        for row in state.committed(table) {
            newest.insert(&row.record.partition, row);
        }
        let of = |key| newest.covering(key).max_by_key(|row| row.position).map(|row| (*row).clone());
        Ok(partitions.iter().map(of).collect())
    }

    async fn history(&self, table: &TableId, partition: &PartitionKey, limit: u32) -> Result<Vec<LedgerRow>> {
        let state = self.lock()?;
        let concerns = |record: &RunRecord| record.table == *table && record.partition.overlaps(partition);
        let newest_first = state.rows.values().rev().filter(|row| concerns(&row.record));
        Ok(newest_first.take(size(limit)).cloned().collect())
    }

    async fn run(&self, run: &RunId) -> Result<Vec<LedgerRow>> {
        Ok(self.lock()?.rows_where(|record| record.run == *run))
    }

    async fn changes(&self, backfill: &BackfillId) -> Result<Vec<LedgerRow>> {
        Ok(self.lock()?.rows_where(|record| record.backfill.as_ref() == Some(backfill)))
    }

    async fn partitions(&self, table: &TableId) -> Result<Vec<PartitionKey>> {
        let state = self.lock()?;
        let mut keys: Vec<_> =
            state.current_rows(table).into_iter().map(|row| row.record.partition.clone()).collect();
        keys.sort();
        Ok(keys)
    }

    async fn recent(&self, job: &JobName, limit: u32) -> Result<Vec<LedgerRow>> {
        let state = self.lock()?;
        let mut rows: Vec<_> = state.all_current().filter(|row| row.record.job == *job).cloned().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.position));
        rows.truncate(size(limit));
        Ok(rows)
    }

    async fn outdated(&self, versions: &BTreeMap<JobName, LogicVersion>) -> Result<Vec<Outdated>> {
        let state = self.lock()?;
        let other = |record: &RunRecord| {
            versions.get(&record.job).is_some_and(|version| record.logic.as_ref() != Some(version))
        };
        let outdated = state.all_current().map(|row| &row.record).filter(|record| other(record));
        let mut outdated: Vec<_> = outdated
            .map(|record| Outdated {
                job: record.job.clone(),
                table: record.table.clone(),
                partition: record.partition.clone(),
                logic: record.logic.clone(),
                run: record.run.clone(),
            })
            .collect();
        outdated.sort_by(|a, b| (&a.job, &a.table, &a.partition).cmp(&(&b.job, &b.table, &b.partition)));
        Ok(outdated)
    }

    async fn stale(&self) -> Result<Vec<StalePartition>> {
        Ok(self.lock()?.stale.values().cloned().collect())
    }

    async fn progress(&self, id: &BackfillId) -> Result<Progress> {
        let state = self.lock()?;
        let mut progress = Progress::default();
        for entry in state.latest(id).map(|opened| opened.tasks.as_slice()).unwrap_or_default() {
            let task = &entry.record;
            *progress.tasks.entry(task.state).or_insert(0) += 1;
            let finished = task.state.is_success() || task.state == TaskState::Failed;
            if let (Some(from), Some(to), true) = (task.started_at, task.finished_at, finished) {
                progress.busy_ms += milliseconds(to - from);
                progress.timed += 1;
            }
        }
        Ok(progress)
    }

    async fn queue_times(&self, during: &Interval) -> Result<BTreeMap<Trigger, QueueTime>> {
        let state = self.lock()?;
        let mut waits = BTreeMap::<Trigger, Vec<u64>>::new();
        for record in state.rows.values().map(|row| &row.record).filter(|r| during.contains(r.started_at)) {
            waits.entry(record.trigger).or_default().push(milliseconds(record.started_at - record.queued_at));
        }
        Ok(waits.into_iter().map(|(trigger, waits)| (trigger, queue_time(&waits))).collect())
    }

    async fn deliveries(&self, filter: &DeliveryFilter) -> Result<Vec<DeliveryRecord>> {
        let state = self.lock()?;
        let wanted = |d: &&DeliveryRecord| {
            filter.backfill.as_ref().is_none_or(|id| d.backfill.as_ref() == Some(id))
                && filter.run.as_ref().is_none_or(|run| d.run.as_ref() == Some(run))
                && filter.state.is_none_or(|state| d.state == state)
        };
        Ok(state.deliveries.all().filter(wanted).cloned().collect())
    }
}

impl State {
    fn rows_where(&self, wanted: impl Fn(&RunRecord) -> bool) -> Vec<LedgerRow> {
        self.rows.values().filter(|row| wanted(&row.record)).cloned().collect()
    }

    /// The current rows of every table.
    fn all_current(&self) -> impl Iterator<Item = &LedgerRow> {
        let tables: BTreeSet<_> = self.rows.values().map(|row| &row.record.table).collect();
        tables.into_iter().flat_map(|table| self.current_rows(table))
    }
}

fn queue_time(waits: &[u64]) -> QueueTime {
    let rows = u64::try_from(waits.len()).unwrap_or(u64::MAX);
    let mean_ms = waits.iter().sum::<u64>().checked_div(rows).unwrap_or(0);
    QueueTime { rows, mean_ms, max_ms: waits.iter().copied().max().unwrap_or(0) }
}

/// Clocks of several machines may disagree; a negative time counts as none.
fn milliseconds(delta: TimeDelta) -> u64 {
    u64::try_from(delta.num_milliseconds()).unwrap_or(0)
}

fn size(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}
