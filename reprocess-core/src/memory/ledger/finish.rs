//! Recording commits.

use super::state::State;
use crate::domain::ids::{RunId, TableId};
use crate::domain::partition::PartitionKey;
use crate::ports::ledger::rules::{self, Upsert};
use crate::ports::ledger::{LedgerRow, RunRecord, StalePartition, TaskState};
use crate::ports::writer::{Commit, CommitEntry};

impl State {
    pub(super) fn finish(&mut self, commit: &Commit, entry: &CommitEntry) {
        let finish = &entry.finish;
        let mut last = None;
        for record in &finish.records {
            if let Some(position) = self.put_row(rules::fill(record.clone(), commit, entry)) {
                self.clear_stale(&record.table, &record.partition, &record.run, finish.pinned_at);
                last = Some(position);
            }
        }
        // The same again has no new row, and must not make stale what ran since.
        if let (Some(position), Some(record)) = (last, finish.records.first()) {
            self.mark_stale(entry, record, position);
        }
        let ended = finish.records.iter().map(|record| record.finished_at).max();
        let attempt = rules::committed_attempt(commit, entry);
        self.deliveries.commit(&entry.stamp, attempt, finish.deliver, ended);
        self.commit_task(entry);
    }

    /// Writes a row; answers its position where it got a new one.
    pub(super) fn put_row(&mut self, record: RunRecord) -> Option<u64> {
        let name = (record.stamp.clone(), record.partition.clone());
        let known = self.places.get(&name).copied();
        let status = known.and_then(|position| self.rows.get(&position)).map(|row| row.record.status);
        match rules::upsert(status, record.status) {
            Upsert::Keep => None,
            Upsert::InPlace => {
                if let Some(row) = known.and_then(|position| self.rows.get_mut(&position)) {
                    row.record = record;
                }
                None
            }
            Upsert::Append => {
                if let Some(position) = known {
                    self.rows.remove(&position);
                }
                self.position = self.position.saturating_add(1);
                self.places.insert(name, self.position);
                self.rows.insert(self.position, LedgerRow { position: self.position, record });
                Some(self.position)
            }
        }
    }

    /// A run has computed a partition, or found it unchanged.
    pub(super) fn clear_stale(&mut self, table: &TableId, key: &PartitionKey, run: &RunId, pinned_at: u64) {
        self.stale.retain(|_, stale| {
            let computed = stale.table == *table && key.covers(&stale.partition);
            !(computed && rules::has_seen(stale, run, pinned_at))
        });
    }

    fn mark_stale(&mut self, entry: &CommitEntry, record: &RunRecord, position: u64) {
        for (job, table, partition) in &entry.finish.stale {
            let has_run = self.committed(table).any(|row| row.record.partition.covers(partition));
            if !has_run {
                continue;
            }
            let stale = StalePartition {
                job: job.clone(),
                table: table.clone(),
                partition: partition.clone(),
                because: record.run.clone(),
                position,
            };
            let place = (table.clone(), partition.clone(), job.clone(), record.run.clone());
            self.stale.insert(place, stale);
        }
    }

    /// What is committed is committed, whatever became of the task meanwhile.
    fn commit_task(&mut self, entry: &CommitEntry) {
        let Some((backfill, generation, id)) = &entry.finish.task else { return };
        let ended = entry.finish.records.iter().map(|record| record.finished_at).max();
        let Some(opened) = self.generation_mut(backfill, *generation) else { return };
        let Some(task) = opened.task_mut(*id) else { return };
        let before = task.record.state;
        if before == TaskState::Claimed {
            task.record.finished_at = ended.or(task.record.started_at);
        }
        task.record.state = TaskState::Committed;
        task.record.note = None;
        if let Some(ended) = ended.filter(|_| !before.is_success()) {
            opened.follow(*id, TaskState::Committed, ended);
        }
    }
}
