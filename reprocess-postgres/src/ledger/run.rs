//! Rows of runs: writing them, and which of them are current. All under the lock of [`order`].

use reprocess_core::Result;
use reprocess_core::domain::fingerprint::Fingerprint;
use reprocess_core::domain::ids::{BackfillId, LogicVersion, TableId};
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::ports::ledger::rules::{self, Upsert};
use reprocess_core::ports::ledger::{RunRecord, RunStatus};

use super::place::{self, Place, at_place, places};
use super::row::{from_word, json, parsed, signed, word};
use super::{Session, order};

/// Writes a row; answers its position where it got a new one.
pub(super) async fn upsert(s: &mut Session<'_>, record: &RunRecord) -> Result<Option<i64>> {
    let known: Option<(i64, String)> = s
        .sql(KNOWN)
        .bind(json(&record.stamp)?)
        .bind(place::text(&record.partition))
        .first(s.conn(), "look for a row of a run")
        .await?;
    let status = known.as_ref().map(|(_, status)| from_word::<RunStatus>(status)).transpose()?;
    let position = known.map(|(position, _)| position);
    match rules::upsert(status, record.status) {
        Upsert::Keep => Ok(None),
        Upsert::InPlace => {
            delete(s, position).await?;
            insert(s, record, position).await?;
            Ok(None)
        }
        Upsert::Append => {
            delete(s, position).await?;
            if record.status == RunStatus::Committed {
                supersede(s, &record.table, &record.partition).await?;
            }
            let position = insert(s, record, None).await?;
            if record.status == RunStatus::Committed {
                move_behind(s, record).await?;
            }
            Ok(Some(position))
        }
    }
}

/// A commit that is told late goes before what was committed over it since.
async fn move_behind(s: &mut Session<'_>, record: &RunRecord) -> Result<()> {
    if record.order == 0 {
        return Ok(());
    }
    let later: Vec<(i64, String)> = s
        .sql(LATER)
        .bind(record.table.as_str())
        .bind(signed(record.order)?)
        .all(s.conn(), "look for later commits")
        .await?;
    for (position, known) in later {
        let known: RunRecord = parsed(&known)?;
        if rules::came_after(&known, record) {
            delete(s, Some(position)).await?;
            supersede(s, &known.table, &known.partition).await?;
            insert(s, &known, None).await?;
        }
    }
    Ok(())
}

const LATER: &str = "SELECT position, record::text FROM reprocess.run
    WHERE table_id = $1 AND commit_order > $2 ORDER BY position";

pub(super) const KNOWN: &str =
    "SELECT position, status FROM reprocess.run WHERE stamp = $1 AND partition = $2";

async fn delete(s: &mut Session<'_>, position: Option<i64>) -> Result<()> {
    let Some(position) = position else { return Ok(()) };
    s.sql("DELETE FROM reprocess.run WHERE position = $1")
        .bind(position)
        .execute(s.conn(), "replace a failed row")
        .await?;
    Ok(())
}

/// Rows are current until a later one covers their partition.
pub(super) const SUPERSEDE: &str = concat!(
    "UPDATE reprocess.run SET is_current = false WHERE position IN (
         SELECT k.position FROM ",
    places!(),
    " JOIN reprocess.run AS k ON k.is_current AND ",
    at_place!(),
    ")"
);

async fn supersede(s: &mut Session<'_>, table: &TableId, partition: &PartitionKey) -> Result<()> {
    let shapes = place::shapes(s, table).await?;
    let below: Vec<Place> = shapes.iter().filter_map(|shape| shape.below(partition)).collect();
    place::bind_places(s.sql(SUPERSEDE), &below).execute(s.conn(), "mark rows as superseded").await?;
    Ok(())
}

async fn insert(s: &mut Session<'_>, record: &RunRecord, position: Option<i64>) -> Result<i64> {
    let shape = place::shape_of(s, &record.table, &record.partition).await?;
    let position = match position {
        Some(position) => position,
        None => order::next(s).await?,
    };
    s.sql(
        "INSERT INTO reprocess.run
             (position, stamp, shape, partition, key, table_id, job, run, backfill, triggered_by, status, is_current,
              changes, logic, fingerprint, queued_at, started_at, finished_at, commit_order, record)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20::json)",
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
    .bind(rules::changes_content(record))
    .bind(record.logic.as_ref().map(LogicVersion::as_str))
    .bind(record.fingerprint.as_ref().map(Fingerprint::as_str))
    .bind(record.queued_at)
    .bind(record.started_at)
    .bind(record.finished_at)
    .bind(Some(signed(record.order)?).filter(|order| *order > 0))
    .bind(json(record)?)
    .execute(s.conn(), "write a row of a run")
    .await?;
    Ok(position)
}
