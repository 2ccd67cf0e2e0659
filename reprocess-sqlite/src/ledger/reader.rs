//! The questions.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use reprocess_core::Result;
use reprocess_core::domain::ids::{BackfillId, JobName, LogicVersion, RunId, TableId};
use reprocess_core::domain::interval::Interval;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::ports::delivery::DeliveryRecord;
use reprocess_core::ports::ledger::{
    BackfillRecord, BackfillState, DeliveryFilter, LedgerReader, LedgerRow, Outdated, Progress, QueueTime,
    StalePartition, TaskRecord, Trigger,
};
use sqlx::SqliteConnection;

use super::row::{from_word, json, micros, number, parsed};
use super::{SqliteLedger, backfill, delivery, place, stale, task};
use crate::error::Doing;

#[async_trait]
impl LedgerReader for SqliteLedger {
    async fn position(&self) -> Result<u64> {
        let last: i64 = sqlx::query_scalar("SELECT coalesce(max(position), 0) FROM reprocess_run")
            .fetch_one(&mut *self.db.read().await?)
            .await
            .doing("read the position of the ledger")?;
        number(last)
    }

    async fn time(&self) -> Result<Option<DateTime<Utc>>> {
        Ok(None)
    }

    async fn backfill(&self, id: &BackfillId) -> Result<Option<BackfillRecord>> {
        let mut records = backfill::records(&mut *self.db.begin_read().await?, Some(id), &[]).await?;
        Ok(records.pop())
    }

    async fn backfills(&self, states: &[BackfillState]) -> Result<Vec<BackfillRecord>> {
        backfill::records(&mut *self.db.begin_read().await?, None, states).await
    }

    async fn tasks(&self, id: &BackfillId) -> Result<Vec<TaskRecord>> {
        task::records(&mut *self.db.read().await?, id).await
    }

    async fn current(&self, table: &TableId, partitions: &[PartitionKey]) -> Result<Vec<Option<LedgerRow>>> {
        let mut tx = self.db.begin_read().await?;
        let mut wanted = Vec::new();
        for shape in place::shapes(&mut tx, table).await? {
            let covering = partitions.iter().enumerate();
            let covering = covering.filter_map(|(place, key)| Some((place, shape.id, shape.covering(key)?)));
            wanted.extend(covering);
        }
        let found: Vec<(i64, i64, String)> = sqlx::query_as(CURRENT)
            .bind(json(&wanted)?)
            .fetch_all(&mut *tx)
            .await
            .doing("read current rows")?;
        let mut rows = vec![None; partitions.len()];
        for (place, position, record) in found {
            if let Some(answer) = rows.get_mut(number::<usize>(place)?) {
                *answer = Some(row((position, record))?);
            }
        }
        Ok(rows)
    }

    async fn history(&self, table: &TableId, partition: &PartitionKey, limit: u32) -> Result<Vec<LedgerRow>> {
        let mut tx = self.db.begin_read().await?;
        let mut found = Vec::new();
        for shape in place::shapes(&mut tx, table).await? {
            let place = shape.overlapping(partition);
            found.extend(of_place(&mut tx, &place, limit).await?);
        }
        found.sort_by_key(|row| std::cmp::Reverse(row.position));
        found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(found)
    }

    async fn run(&self, run: &RunId) -> Result<Vec<LedgerRow>> {
        let found = sqlx::query_as(OF_RUN)
            .bind(run.as_str())
            .fetch_all(&mut *self.db.read().await?)
            .await
            .doing("read the rows of a run")?;
        found.into_iter().map(row).collect()
    }

    async fn changes(&self, backfill: &BackfillId) -> Result<Vec<LedgerRow>> {
        let found = sqlx::query_as(OF_BACKFILL)
            .bind(backfill.as_str())
            .fetch_all(&mut *self.db.read().await?)
            .await
            .doing("read the rows of a backfill")?;
        found.into_iter().map(row).collect()
    }

    async fn partitions(&self, table: &TableId) -> Result<Vec<PartitionKey>> {
        let found: Vec<String> = sqlx::query_scalar(PARTITIONS)
            .bind(table.as_str())
            .fetch_all(&mut *self.db.read().await?)
            .await
            .doing("read the partitions of a table")?;
        let keys = found.iter().map(|key| parsed(key)).collect::<Result<BTreeSet<_>>>()?;
        Ok(keys.into_iter().collect())
    }

    async fn recent(&self, job: &JobName, limit: u32) -> Result<Vec<LedgerRow>> {
        let found = sqlx::query_as(RECENT)
            .bind(job.as_str())
            .bind(limit)
            .fetch_all(&mut *self.db.read().await?)
            .await
            .doing("read the recent rows of a job")?;
        found.into_iter().map(row).collect()
    }

    async fn outdated(&self, versions: &BTreeMap<JobName, LogicVersion>) -> Result<Vec<Outdated>> {
        let mut tx = self.db.begin_read().await?;
        let mut outdated = Vec::new();
        for (job, version) in versions {
            let found: Vec<Option<String>> = sqlx::query_scalar(OUTDATED)
                .bind(job.as_str())
                .bind(version.as_str())
                .fetch_all(&mut *tx)
                .await
                .doing("read outdated partitions")?;
            for list in found.iter().flatten() {
                let list: Vec<(TableId, PartitionKey, Option<LogicVersion>, RunId)> = parsed(list)?;
                let row = |(table, partition, logic, run)| Outdated {
                    job: job.clone(),
                    table,
                    partition,
                    logic,
                    run,
                };
                outdated.extend(list.into_iter().map(row));
            }
        }
        outdated.sort_by(|a, b| (&a.job, &a.table, &a.partition).cmp(&(&b.job, &b.table, &b.partition)));
        Ok(outdated)
    }

    async fn stale(&self) -> Result<Vec<StalePartition>> {
        stale::all(&mut *self.db.read().await?).await
    }

    async fn progress(&self, id: &BackfillId) -> Result<Progress> {
        task::progress(&mut *self.db.read().await?, id).await
    }

    async fn queue_times(&self, during: &Interval) -> Result<BTreeMap<Trigger, QueueTime>> {
        let found: Vec<(String, i64, i64, i64)> = sqlx::query_as(QUEUE_TIMES)
            .bind(micros(during.start()))
            .bind(micros(during.end()))
            .fetch_all(&mut *self.db.read().await?)
            .await
            .doing("read queue times")?;
        let time = |(trigger, rows, mean, max): (String, _, _, _)| {
            let time = QueueTime { rows: number(rows)?, mean_ms: number(mean)?, max_ms: number(max)? };
            Ok((from_word(&trigger)?, time))
        };
        found.into_iter().map(time).collect()
    }

    async fn deliveries(&self, filter: &DeliveryFilter) -> Result<Vec<DeliveryRecord>> {
        delivery::records(&mut *self.db.read().await?, filter).await
    }
}

/// For each wanted key the last of the current rows whose partition covers it.
pub(super) const CURRENT: &str = "
    WITH last (place, position) AS (
        SELECT w.value ->> 0, max(r.position) FROM json_each(?1) AS w CROSS JOIN reprocess_run AS r
        ON r.is_current = 1 AND r.shape = w.value ->> 1 AND r.partition = w.value ->> 2
        GROUP BY 1)
    SELECT last.place, r.position, r.record FROM last CROSS JOIN reprocess_run AS r ON r.position = last.position";

/// The newest rows of a place.
pub(super) const HISTORY: &str = "
    SELECT position, record FROM reprocess_run WHERE position IN (
        SELECT position FROM reprocess_run AS r
        WHERE shape = ?1 AND partition >= ?2 AND partition < ?3 AND NOT EXISTS (
            SELECT 1 FROM json_each(?4) AS s WHERE instr('/' || r.partition || '/', s.value) = 0)
        ORDER BY position DESC LIMIT ?5)";

/// The same where the place is every key of a shape, without looking at each.
pub(super) const HISTORY_OF_SHAPE: &str = "
    SELECT position, record FROM reprocess_run WHERE shape = ?1 ORDER BY position DESC LIMIT ?2";

pub(super) const OF_RUN: &str = "SELECT position, record FROM reprocess_run WHERE run = ? ORDER BY position";

pub(super) const OF_BACKFILL: &str =
    "SELECT position, record FROM reprocess_run WHERE backfill = ? ORDER BY position";

pub(super) const PARTITIONS: &str = "
    SELECT r.key FROM reprocess_shape AS s
    CROSS JOIN reprocess_run AS r INDEXED BY reprocess_run_current ON r.shape = s.shape AND r.is_current = 1
    WHERE s.table_id = ?1";

pub(super) const RECENT: &str = "
    SELECT position, record FROM reprocess_run WHERE job = ?1 AND is_current = 1 ORDER BY position DESC LIMIT ?2";

/// Three searches of one index, since one for \"is another\" would read every row of the job.
/// One list for each way to be outdated: tens of thousands of rows cost more on their way than in the index.
pub(super) const OUTDATED: &str = "
    SELECT '[' || group_concat('[' || json_quote(table_id) || ',' || key || ',' || json_quote(logic) || ','
        || json_quote(run) || ']') || ']' FROM reprocess_run WHERE is_current = 1 AND job = ?1 AND logic < ?2
    UNION ALL
    SELECT '[' || group_concat('[' || json_quote(table_id) || ',' || key || ',' || json_quote(logic) || ','
        || json_quote(run) || ']') || ']' FROM reprocess_run WHERE is_current = 1 AND job = ?1 AND logic > ?2
    UNION ALL
    SELECT '[' || group_concat('[' || json_quote(table_id) || ',' || key || ',' || json_quote(logic) || ','
        || json_quote(run) || ']') || ']' FROM reprocess_run WHERE is_current = 1 AND job = ?1 AND logic IS NULL";

/// Clocks of several machines may disagree; a negative time counts as none.
pub(super) const QUEUE_TIMES: &str = "
    SELECT triggered_by, count(*), sum(max(0, started_us - queued_us) / 1000) / count(*),
        max(max(0, started_us - queued_us) / 1000)
    FROM reprocess_run WHERE started_us >= ?1 AND started_us < ?2 GROUP BY triggered_by";

async fn of_place(conn: &mut SqliteConnection, place: &place::Place, limit: u32) -> Result<Vec<LedgerRow>> {
    let query = if place.is_shape() {
        sqlx::query_as(HISTORY_OF_SHAPE).bind(place.shape).bind(limit)
    } else {
        let query = sqlx::query_as(HISTORY).bind(place.shape).bind(&place.from).bind(&place.until);
        query.bind(json(&place.segments)?).bind(limit)
    };
    let found = query.fetch_all(conn).await.doing("read the history of a partition")?;
    found.into_iter().map(row).collect()
}

fn row((position, record): (i64, String)) -> Result<LedgerRow> {
    Ok(LedgerRow { position: number(position)?, record: parsed(&record)? })
}
