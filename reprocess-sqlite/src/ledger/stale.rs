//! Downstream partitions that were computed from what has changed since.

use std::collections::BTreeMap;

use reprocess_core::Result;
use reprocess_core::domain::ids::{JobName, RunId, TableId};
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::ports::ledger::{StalePartition, TaskFinish};
use sqlx::SqliteConnection;

use super::place;
use super::row::{json, number, parsed, signed};
use crate::error::Doing;

/// A run has computed a partition, or found it unchanged; see [`has_seen`](reprocess_core::ports::ledger::rules::has_seen).
pub(super) async fn clear(
    conn: &mut SqliteConnection,
    table: &TableId,
    key: &PartitionKey,
    run: &RunId,
    pinned_at: u64,
) -> Result<()> {
    let shapes = place::shapes(conn, table).await?;
    let computed: Vec<_> = shapes.iter().filter_map(|shape| shape.below(key)).collect();
    sqlx::query(CLEAR)
        .bind(json(&computed)?)
        .bind(signed(pinned_at)?)
        .bind(run.as_str())
        .execute(conn)
        .await
        .doing("clear what is no longer stale")?;
    Ok(())
}

pub(super) const CLEAR: &str = "
    DELETE FROM reprocess_stale WHERE (position <= ?2 OR because = ?3) AND (shape, partition) IN (
        SELECT k.shape, k.partition FROM json_each(?1) AS p CROSS JOIN reprocess_stale AS k
        ON k.shape = p.value ->> 'shape'
            AND k.partition >= p.value ->> 'from' AND k.partition < p.value ->> 'until'
        WHERE NOT EXISTS (
            SELECT 1 FROM json_each(p.value, '$.segments') AS s
            WHERE instr('/' || k.partition || '/', s.value) = 0))";

/// Marks a partition that has a current run as stale because of a row.
pub(super) async fn mark(
    conn: &mut SqliteConnection,
    (job, table, partition): &(JobName, TableId, PartitionKey),
    because: &RunId,
    position: i64,
) -> Result<()> {
    let covering = place::covering(conn, table, partition).await?;
    let has_run: bool = sqlx::query_scalar(
        "SELECT EXISTS (
             SELECT 1 FROM json_each(?1) AS w CROSS JOIN reprocess_run AS r
             ON r.is_current = 1 AND r.shape = w.value ->> 0 AND r.partition = w.value ->> 1)",
    )
    .bind(json(&covering)?)
    .fetch_one(&mut *conn)
    .await
    .doing("look for a current run")?;
    if !has_run {
        return Ok(());
    }
    let shape = place::shape_of(conn, table, partition).await?;
    sqlx::query(
        "INSERT INTO reprocess_stale (shape, partition, job, table_id, key, because, position)
         VALUES (?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET position = max(position, excluded.position)",
    )
    .bind(shape)
    .bind(place::text(partition))
    .bind(job.as_str())
    .bind(table.as_str())
    .bind(json(partition)?)
    .bind(because.as_str())
    .bind(position)
    .execute(conn)
    .await
    .doing("mark a partition as stale")?;
    Ok(())
}

/// What other runs have changed in the partitions that were read, since the inputs were pinned: for each run the last
/// row; see [`changes_content`](reprocess_core::ports::ledger::rules::changes_content).
pub(super) async fn missed(
    conn: &mut SqliteConnection,
    finish: &TaskFinish,
    own: &RunId,
) -> Result<BTreeMap<RunId, i64>> {
    let (mut places, mut whole) = (Vec::new(), Vec::new());
    for (table, keys) in &finish.reads {
        for shape in place::shapes(conn, table).await? {
            for place in keys.iter().map(|key| shape.overlapping(key)) {
                if place.is_shape() {
                    whole.push(place);
                } else {
                    places.push(place);
                }
            }
        }
    }
    let mut missed = BTreeMap::new();
    for (sql, places) in [(MISSED, places), (MISSED_OF_SHAPE, whole)] {
        if places.is_empty() {
            continue;
        }
        let rows: Vec<(String, i64)> = sqlx::query_as(sql)
            .bind(json(&places)?)
            .bind(signed(finish.pinned_at)?)
            .bind(own.as_str())
            .fetch_all(&mut *conn)
            .await
            .doing("look for changes since the inputs were pinned")?;
        for (run, position) in rows {
            let last = missed.entry(RunId::new(run)).or_insert(position);
            *last = position.max(*last);
        }
    }
    Ok(missed)
}

pub(super) const MISSED: &str = "
    SELECT r.run, r.position FROM json_each(?1) AS p CROSS JOIN reprocess_run AS r INDEXED BY reprocess_run_place
    ON r.shape = p.value ->> 'shape' AND r.partition >= p.value ->> 'from' AND r.partition < p.value ->> 'until'
    WHERE r.position > ?2 AND r.run <> ?3 AND r.status = 'committed'
        AND coalesce(r.record -> '$.before.content' <> r.record -> '$.after.content', 1)
        AND NOT EXISTS (
            SELECT 1 FROM json_each(p.value, '$.segments') AS s
            WHERE instr('/' || r.partition || '/', s.value) = 0)";

pub(super) const MISSED_OF_SHAPE: &str = "
    SELECT r.run, r.position FROM json_each(?1) AS p CROSS JOIN reprocess_run AS r INDEXED BY reprocess_run_shape
    ON r.shape = p.value ->> 'shape' AND r.position > ?2
    WHERE r.run <> ?3 AND r.status = 'committed'
        AND coalesce(r.record -> '$.before.content' <> r.record -> '$.after.content', 1)";

/// By table, partition, job and run.
pub(super) async fn all(conn: &mut SqliteConnection) -> Result<Vec<StalePartition>> {
    type Row = (String, String, String, String, i64);
    let rows: Vec<Row> = sqlx::query_as("SELECT job, table_id, key, because, position FROM reprocess_stale")
        .fetch_all(conn)
        .await
        .doing("read what is stale")?;
    let stale = |(job, table, key, because, position): Row| {
        Ok(StalePartition {
            job: JobName::new(job),
            table: TableId::new(table),
            partition: parsed(&key)?,
            because: RunId::new(because),
            position: number(position)?,
        })
    };
    let mut stale = rows.into_iter().map(stale).collect::<Result<Vec<_>>>()?;
    let place = |s: &StalePartition| (s.table.clone(), s.partition.clone(), s.job.clone(), s.because.clone());
    stale.sort_by_cached_key(place);
    Ok(stale)
}
