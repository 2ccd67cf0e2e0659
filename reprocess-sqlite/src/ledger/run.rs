//! Rows of runs: writing them, and which of them are current.

use reprocess_core::Result;
use reprocess_core::domain::fingerprint::Fingerprint;
use reprocess_core::domain::ids::{BackfillId, LogicVersion, TableId};
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::ports::ledger::rules::{self, Upsert};
use reprocess_core::ports::ledger::{RunRecord, RunStatus};
use sqlx::SqliteConnection;

use super::place::{self, Place};
use super::row::{from_word, json, micros, parsed, signed, word};
use crate::error::Doing;

/// Writes a row; answers its position where it got a new one.
pub(super) async fn upsert(conn: &mut SqliteConnection, record: &RunRecord) -> Result<Option<i64>> {
    let known: Option<(i64, String)> = sqlx::query_as(KNOWN)
        .bind(json(&record.stamp)?)
        .bind(place::text(&record.partition))
        .fetch_optional(&mut *conn)
        .await
        .doing("look for a row of a run")?;
    let status = known.as_ref().map(|(_, status)| from_word::<RunStatus>(status)).transpose()?;
    let position = known.map(|(position, _)| position);
    match rules::upsert(status, record.status) {
        Upsert::Keep => Ok(None),
        Upsert::InPlace => {
            delete(conn, position).await?;
            insert(conn, record, position).await?;
            Ok(None)
        }
        Upsert::Append => {
            delete(conn, position).await?;
            if record.status == RunStatus::Committed {
                supersede(conn, &record.table, &record.partition).await?;
            }
            let position = insert(conn, record, None).await?;
            if record.status == RunStatus::Committed {
                move_behind(conn, record).await?;
            }
            Ok(Some(position))
        }
    }
}

/// A commit that is told late goes before what was committed over it since.
async fn move_behind(conn: &mut SqliteConnection, record: &RunRecord) -> Result<()> {
    let later: Vec<(i64, String)> = sqlx::query_as(LATER)
        .bind(record.table.as_str())
        .bind(signed(record.order)?)
        .fetch_all(&mut *conn)
        .await
        .doing("look for later commits")?;
    for (position, known) in later {
        let known: RunRecord = parsed(&known)?;
        if rules::came_after(&known, record) {
            delete(conn, Some(position)).await?;
            supersede(conn, &known.table, &known.partition).await?;
            insert(conn, &known, None).await?;
        }
    }
    Ok(())
}

const LATER: &str = "SELECT position, record FROM reprocess_run
    WHERE table_id = ?1 AND ?2 > 0 AND commit_order > ?2 ORDER BY position";

pub(super) const KNOWN: &str = "SELECT position, status FROM reprocess_run WHERE stamp = ? AND partition = ?";

async fn delete(conn: &mut SqliteConnection, position: Option<i64>) -> Result<()> {
    let Some(position) = position else { return Ok(()) };
    sqlx::query("DELETE FROM reprocess_run WHERE position = ?")
        .bind(position)
        .execute(conn)
        .await
        .doing("replace a failed row")?;
    Ok(())
}

/// Rows are current until a later one covers their partition.
pub(super) const SUPERSEDE: &str = "
    UPDATE reprocess_run SET is_current = 0 WHERE position IN (
        SELECT r.position FROM json_each(?1) AS p CROSS JOIN reprocess_run AS r
        ON r.is_current = 1 AND r.shape = p.value ->> 'shape'
            AND r.partition >= p.value ->> 'from' AND r.partition < p.value ->> 'until'
        WHERE NOT EXISTS (
            SELECT 1 FROM json_each(p.value, '$.segments') AS s WHERE instr('/' || r.partition || '/', s.value) = 0))";

async fn supersede(conn: &mut SqliteConnection, table: &TableId, partition: &PartitionKey) -> Result<()> {
    let shapes = place::shapes(conn, table).await?;
    let below: Vec<Place> = shapes.iter().filter_map(|shape| shape.below(partition)).collect();
    sqlx::query(SUPERSEDE).bind(json(&below)?).execute(conn).await.doing("mark rows as superseded")?;
    Ok(())
}

async fn insert(conn: &mut SqliteConnection, record: &RunRecord, position: Option<i64>) -> Result<i64> {
    let shape = place::shape_of(conn, &record.table, &record.partition).await?;
    sqlx::query_scalar(
        "INSERT INTO reprocess_run
             (position, stamp, shape, partition, key, table_id, job, run, backfill, triggered_by, status, is_current,
              logic, fingerprint, queued_us, started_us, finished_us, commit_order, record)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
         RETURNING position",
    )
    .bind(position)
    .bind(json(&record.stamp)?)
    .bind(shape)
    .bind(place::text(&record.partition))
    .bind(json(&record.partition)?)
    .bind(record.table.as_str())
    .bind(record.job.as_str())
    .bind(record.run.as_str())
    .bind(record.backfill.as_ref().map(BackfillId::as_str))
    .bind(record.trigger.name())
    .bind(word(&record.status)?)
    .bind(record.status == RunStatus::Committed)
    .bind(record.logic.as_ref().map(LogicVersion::as_str))
    .bind(record.fingerprint.as_ref().map(Fingerprint::as_str))
    .bind(micros(record.queued_at))
    .bind(micros(record.started_at))
    .bind(micros(record.finished_at))
    .bind(Some(signed(record.order)?).filter(|order| *order > 0))
    .bind(json(record)?)
    .fetch_one(conn)
    .await
    .doing("write a row of a run")
}
