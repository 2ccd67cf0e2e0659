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
            self.mark_read(entry, &record.run);
        }
        let ended = finish.records.iter().map(|record| record.finished_at).max();
        let attempt = rules::committed_attempt(commit, entry);
        self.deliveries.commit(&entry.stamp, attempt, finish.deliver, ended);
        if let (Some(record), Some(ended)) = (finish.records.first(), ended) {
            self.deliveries.announce(&rules::announced_by(record), &finish.announce, ended);
        }
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
                // One that is told late, after a death or a pause, goes before what was committed over it since.
                let of_later = |row: &&LedgerRow| rules::came_after(&row.record, &record);
                let later: Vec<u64> = self.rows.values().filter(of_later).map(|row| row.position).collect();
                let position = self.append(record);
                for row in later.into_iter().filter_map(|later| self.rows.remove(&later)).collect::<Vec<_>>()
                {
                    self.append(row.record);
                }
                Some(position)
            }
        }
    }

    fn append(&mut self, record: RunRecord) -> u64 {
        self.position = self.position.saturating_add(1);
        self.places.insert((record.stamp.clone(), record.partition.clone()), self.position);
        self.rows.insert(self.position, LedgerRow { position: self.position, record });
        self.position
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
            if !self.has_run(table, partition) {
                continue;
            }
            let stale = StalePartition {
                job: job.clone(),
                table: table.clone(),
                partition: partition.clone(),
                because: record.run.clone(),
                position,
            };
            self.insert_stale(stale);
        }
    }

    /// Marks what was computed from partitions that other runs have changed since they were pinned.
    fn mark_read(&mut self, entry: &CommitEntry, run: &RunId) {
        let finish = &entry.finish;
        let later = finish.pinned_at.saturating_add(1);
        let was_read = |record: &RunRecord| {
            let of_table = finish.reads.iter().filter(|(table, _)| *table == record.table);
            of_table.flat_map(|(_, keys)| keys).any(|key| key.overlaps(&record.partition))
        };
        let missed: Vec<_> = (self.rows.range(later..).map(|(_, row)| row))
            .filter(|row| row.record.run != *run && rules::changes_content(&row.record))
            .filter(|row| was_read(&row.record))
            .map(|row| (row.record.run.clone(), row.position))
            .collect();
        for record in
            finish.records.iter().filter(|r| self.has_run(&r.table, &r.partition)).collect::<Vec<_>>()
        {
            for (because, position) in &missed {
                self.insert_stale(StalePartition {
                    job: record.job.clone(),
                    table: record.table.clone(),
                    partition: record.partition.clone(),
                    because: because.clone(),
                    position: *position,
                });
            }
        }
    }

    fn has_run(&self, table: &TableId, partition: &PartitionKey) -> bool {
        self.committed(table).any(|row| row.record.partition.covers(partition))
    }

    /// Of several changes by one run the last counts.
    fn insert_stale(&mut self, stale: StalePartition) {
        let place = (stale.table.clone(), stale.partition.clone(), stale.job.clone(), stale.because.clone());
        let known = self.stale.get(&place).map(|known| known.position);
        if known.is_none_or(|known| known < stale.position) {
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
