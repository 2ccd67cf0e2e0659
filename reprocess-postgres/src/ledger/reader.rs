//! The questions. Each is answered of one moment.

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

use super::place::{self, at_place, places};
use super::row::{from_word, number, parsed, signed};
use super::{PostgresLedger, Session, backfill, delivery, order, stale, task};
use crate::config::Tx;
use crate::sql::Statement;

async fn answered<T>(tx: Tx, answer: T) -> Result<T> {
    tx.rollback().await?;
    Ok(answer)
}

#[async_trait]
impl LedgerReader for PostgresLedger {
    async fn position(&self) -> Result<u64> {
        let mut tx = self.db.begin_read().await?;
        let last = order::last(&mut self.session(&mut tx)).await?;
        answered(tx, number(last)?).await
    }

    async fn time(&self) -> Result<Option<DateTime<Utc>>> {
        if self.callers_clock {
            return Ok(None);
        }
        let mut tx = self.db.begin_read().await?;
        let s = &mut self.session(&mut tx);
        let (now,): (DateTime<Utc>,) =
            s.sql("SELECT clock_timestamp()").one(s.conn(), "read the server's clock").await?;
        answered(tx, Some(now)).await
    }

    async fn backfill(&self, id: &BackfillId) -> Result<Option<BackfillRecord>> {
        let mut tx = self.db.begin_read().await?;
        let mut records = backfill::records(&mut self.session(&mut tx), Some(id), &[]).await?;
        answered(tx, records.pop()).await
    }

    async fn backfills(&self, states: &[BackfillState]) -> Result<Vec<BackfillRecord>> {
        let mut tx = self.db.begin_read().await?;
        let records = backfill::records(&mut self.session(&mut tx), None, states).await?;
        answered(tx, records).await
    }

    async fn tasks(&self, id: &BackfillId) -> Result<Vec<TaskRecord>> {
        let mut tx = self.db.begin_read().await?;
        let records = task::records(&mut self.session(&mut tx), id).await?;
        answered(tx, records).await
    }

    async fn current(&self, table: &TableId, partitions: &[PartitionKey]) -> Result<Vec<Option<LedgerRow>>> {
        let mut tx = self.db.begin_read().await?;
        let rows = current(&mut self.session(&mut tx), table, partitions).await?;
        answered(tx, rows).await
    }

    async fn history(&self, table: &TableId, partition: &PartitionKey, limit: u32) -> Result<Vec<LedgerRow>> {
        let mut tx = self.db.begin_read().await?;
        let s = &mut self.session(&mut tx);
        let mut found = Vec::new();
        for shape in place::shapes(s, table).await? {
            let place = shape.overlapping(partition);
            let statement = if place.is_shape() {
                s.sql(HISTORY_OF_SHAPE).bind(place.shape).bind(limit)
            } else {
                place::bind_places(s.sql(HISTORY), &[place]).bind(limit)
            };
            found.extend(rows(s, statement, "read the history of a partition").await?);
        }
        found.sort_by_key(|row| std::cmp::Reverse(row.position));
        found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        answered(tx, found).await
    }

    async fn run(&self, run: &RunId) -> Result<Vec<LedgerRow>> {
        let mut tx = self.db.begin_read().await?;
        let s = &mut self.session(&mut tx);
        let statement = s.sql(OF_RUN).bind(run.as_str());
        let found = rows(s, statement, "read the rows of a run").await?;
        answered(tx, found).await
    }

    async fn changes(&self, backfill: &BackfillId) -> Result<Vec<LedgerRow>> {
        let mut tx = self.db.begin_read().await?;
        let s = &mut self.session(&mut tx);
        let statement = s.sql(OF_BACKFILL).bind(backfill.as_str());
        let found = rows(s, statement, "read the rows of a backfill").await?;
        answered(tx, found).await
    }

    async fn partitions(&self, table: &TableId) -> Result<Vec<PartitionKey>> {
        let mut tx = self.db.begin_read().await?;
        let s = &mut self.session(&mut tx);
        let found: Vec<(String,)> =
            s.sql(PARTITIONS).bind(table.as_str()).all(s.conn(), "read the partitions of a table").await?;
        let keys = found.iter().map(|(key,)| parsed(key)).collect::<Result<BTreeSet<_>>>()?;
        answered(tx, keys.into_iter().collect()).await
    }

    async fn recent(&self, job: &JobName, limit: u32) -> Result<Vec<LedgerRow>> {
        let mut tx = self.db.begin_read().await?;
        let s = &mut self.session(&mut tx);
        let statement = s.sql(RECENT).bind(job.as_str()).bind(limit);
        let found = rows(s, statement, "read the recent rows of a job").await?;
        answered(tx, found).await
    }

    async fn outdated(&self, versions: &BTreeMap<JobName, LogicVersion>) -> Result<Vec<Outdated>> {
        let mut tx = self.db.begin_read().await?;
        let found = outdated(&mut self.session(&mut tx), versions).await?;
        answered(tx, found).await
    }

    async fn stale(&self) -> Result<Vec<StalePartition>> {
        let mut tx = self.db.begin_read().await?;
        let found = stale::all(&mut self.session(&mut tx)).await?;
        answered(tx, found).await
    }

    async fn progress(&self, id: &BackfillId) -> Result<Progress> {
        let mut tx = self.db.begin_read().await?;
        let progress = task::progress(&mut self.session(&mut tx), id).await?;
        answered(tx, progress).await
    }

    async fn queue_times(&self, during: &Interval) -> Result<BTreeMap<Trigger, QueueTime>> {
        let mut tx = self.db.begin_read().await?;
        let times = queue_times(&mut self.session(&mut tx), during.start(), during.end()).await?;
        answered(tx, times).await
    }

    async fn deliveries(&self, filter: &DeliveryFilter) -> Result<Vec<DeliveryRecord>> {
        let mut tx = self.db.begin_read().await?;
        let records = delivery::records(&mut self.session(&mut tx), filter).await?;
        answered(tx, records).await
    }
}

/// For each wanted key the last of the current rows whose partition covers it.
pub(super) const CURRENT: &str = "
    SELECT last.place, r.position, r.record::text
    FROM (SELECT w.place, max(k.position) AS position
          FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS w (place, shape, partition)
          JOIN reprocess.run AS k ON k.is_current AND k.shape = w.shape AND k.partition = w.partition
          GROUP BY w.place) AS last
    JOIN reprocess.run AS r ON r.position = last.position";

async fn current(
    s: &mut Session<'_>,
    table: &TableId,
    partitions: &[PartitionKey],
) -> Result<Vec<Option<LedgerRow>>> {
    let (mut places, mut shapes, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    for shape in place::shapes(s, table).await? {
        for (place, key) in partitions.iter().enumerate() {
            if let Some(text) = shape.covering(key) {
                places.push(signed(place)?);
                shapes.push(shape.id);
                texts.push(text);
            }
        }
    }
    let found: Vec<(i64, i64, String)> =
        s.sql(CURRENT).bind(places).bind(shapes).bind(texts).all(s.conn(), "read current rows").await?;
    let mut rows = vec![None; partitions.len()];
    for (place, position, record) in found {
        if let Some(answer) = rows.get_mut(number::<usize>(place)?) {
            *answer = Some(row((position, record))?);
        }
    }
    Ok(rows)
}

/// The newest rows of a place, which is searched first: there are few rows of one key, and many of its shape.
pub(super) const HISTORY: &str = concat!(
    "WITH found AS MATERIALIZED (SELECT k.position FROM ",
    places!(),
    " JOIN reprocess.run AS k ON ",
    at_place!(),
    "), newest AS MATERIALIZED (SELECT position FROM found ORDER BY position DESC LIMIT $5)
     SELECT r.position, r.record::text FROM newest JOIN reprocess.run AS r ON r.position = newest.position"
);

/// The same where the place is every key of a shape, without looking at each.
pub(super) const HISTORY_OF_SHAPE: &str = "
    SELECT position, record::text FROM reprocess.run WHERE shape = $1 ORDER BY position DESC LIMIT $2";

pub(super) const OF_RUN: &str =
    "SELECT position, record::text FROM reprocess.run WHERE run = $1 ORDER BY position";

pub(super) const OF_BACKFILL: &str =
    "SELECT position, record::text FROM reprocess.run WHERE backfill = $1 ORDER BY position";

pub(super) const PARTITIONS: &str = "
    SELECT r.key FROM reprocess.shape AS s JOIN reprocess.run AS r ON r.shape = s.shape AND r.is_current
    WHERE s.table_id = $1";

pub(super) const RECENT: &str = "
    SELECT position, record::text FROM reprocess.run
    WHERE job = $1 AND is_current ORDER BY position DESC LIMIT $2";

/// Three searches of one index, since one for \"is another\" would read every row of the job.
pub(super) const OUTDATED: &str = "
    SELECT v.job, r.table_id, r.key, r.logic, r.run
    FROM unnest($1::text[], $2::text[]) AS v (job, logic)
    CROSS JOIN LATERAL (
        SELECT table_id, key, logic, run FROM reprocess.run
        WHERE is_current AND job = v.job AND logic < v.logic
        UNION ALL
        SELECT table_id, key, logic, run FROM reprocess.run
        WHERE is_current AND job = v.job AND logic > v.logic
        UNION ALL
        SELECT table_id, key, logic, run FROM reprocess.run
        WHERE is_current AND job = v.job AND logic IS NULL) AS r";

async fn outdated(s: &mut Session<'_>, versions: &BTreeMap<JobName, LogicVersion>) -> Result<Vec<Outdated>> {
    let found: Vec<(String, String, String, Option<String>, String)> = s
        .sql(OUTDATED)
        .bind(versions.keys().map(|job| job.as_str().to_owned()).collect::<Vec<_>>())
        .bind(versions.values().map(|logic| logic.as_str().to_owned()).collect::<Vec<_>>())
        .all(s.conn(), "read outdated partitions")
        .await?;
    let outdated = |(job, table, key, logic, run): (String, String, String, Option<String>, String)| {
        Ok(Outdated {
            job: JobName::new(job),
            table: TableId::new(table),
            partition: parsed(&key)?,
            logic: logic.map(LogicVersion::new),
            run: RunId::new(run),
        })
    };
    let mut outdated = found.into_iter().map(outdated).collect::<Result<Vec<_>>>()?;
    outdated.sort_by(|a, b| (&a.job, &a.table, &a.partition).cmp(&(&b.job, &b.table, &b.partition)));
    Ok(outdated)
}

/// Whole milliseconds. Clocks of several machines may disagree; a negative time counts as none.
pub(super) const QUEUE_TIMES: &str = "
    SELECT triggered_by, count(*), div(sum(waited), count(*))::bigint, max(waited)::bigint
    FROM (SELECT triggered_by, greatest(0, trunc(extract(epoch FROM started_at - queued_at) * 1000)) AS waited
          FROM reprocess.run WHERE started_at >= $1 AND started_at < $2) AS r
    GROUP BY triggered_by";

async fn queue_times(
    s: &mut Session<'_>,
    from: DateTime<Utc>,
    until: DateTime<Utc>,
) -> Result<BTreeMap<Trigger, QueueTime>> {
    let found: Vec<(String, i64, i64, i64)> =
        s.sql(QUEUE_TIMES).bind(from).bind(until).all(s.conn(), "read queue times").await?;
    let time = |(trigger, rows, mean, max): (String, _, _, _)| {
        let time = QueueTime { rows: number(rows)?, mean_ms: number(mean)?, max_ms: number(max)? };
        Ok((from_word(&trigger)?, time))
    };
    found.into_iter().map(time).collect()
}

async fn rows(s: &mut Session<'_>, statement: Statement, what: &str) -> Result<Vec<LedgerRow>> {
    let found = statement.all(s.conn(), what).await?;
    found.into_iter().map(row).collect()
}

fn row((position, record): (i64, String)) -> Result<LedgerRow> {
    Ok(LedgerRow { position: number(position)?, record: parsed(&record)? })
}
