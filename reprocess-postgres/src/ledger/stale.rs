//! Downstream partitions that were computed from what has changed since. All writing under the lock of
//! [`order`](super::order).

use std::collections::BTreeMap;

use reprocess_core::Result;
use reprocess_core::domain::ids::{JobName, RunId, TableId};
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::ports::ledger::{StalePartition, TaskFinish};

use super::Session;
use super::place::{self, at_place, places};
use super::row::{json, number, parsed, signed};

/// A run has computed a partition, or found it unchanged; see [`has_seen`](reprocess_core::ports::ledger::rules::has_seen).
pub(super) async fn clear(
    s: &mut Session<'_>,
    table: &TableId,
    key: &PartitionKey,
    run: &RunId,
    pinned_at: u64,
) -> Result<()> {
    let shapes = place::shapes(s, table).await?;
    let computed: Vec<_> = shapes.iter().filter_map(|shape| shape.below(key)).collect();
    place::bind_places(s.sql(CLEAR), &computed)
        .bind(signed(pinned_at)?)
        .bind(run.as_str())
        .execute(s.conn(), "clear what is no longer stale")
        .await?;
    Ok(())
}

pub(super) const CLEAR: &str = concat!(
    "DELETE FROM reprocess.stale AS k USING ",
    places!(),
    " WHERE (k.position <= $5 OR k.because = $6) AND ",
    at_place!()
);

/// Marks a partition that has a current run as stale because of a row.
pub(super) async fn mark(
    s: &mut Session<'_>,
    (job, table, partition): &(JobName, TableId, PartitionKey),
    because: &RunId,
    position: i64,
) -> Result<()> {
    let (shapes, texts): (Vec<_>, Vec<_>) = place::covering(s, table, partition).await?.into_iter().unzip();
    let (has_run,): (bool,) = s
        .sql(
            "SELECT EXISTS (
                 SELECT 1 FROM unnest($1::bigint[], $2::text[]) AS w (shape, partition)
                 JOIN reprocess.run AS r ON r.is_current AND r.shape = w.shape AND r.partition = w.partition)",
        )
        .bind(shapes)
        .bind(texts)
        .one(s.conn(), "look for a current run")
        .await?;
    if !has_run {
        return Ok(());
    }
    let shape = place::shape_of(s, table, partition).await?;
    s.sql(
        "INSERT INTO reprocess.stale AS known (shape, partition, job, table_id, key, because, position)
         VALUES ($1, $2, $3, $4, $5, $6, $7)
         ON CONFLICT (shape, partition, job, because)
         DO UPDATE SET position = greatest(known.position, excluded.position)",
    )
    .bind(shape)
    .bind(place::text(partition))
    .bind(job.as_str())
    .bind(table.as_str())
    .bind(json(partition)?)
    .bind(because.as_str())
    .bind(position)
    .execute(s.conn(), "mark a partition as stale")
    .await?;
    Ok(())
}

/// What other runs have changed in the partitions that were read, since the inputs were pinned: for each run the last
/// row; see [`changes_content`](reprocess_core::ports::ledger::rules::changes_content).
pub(super) async fn missed(
    s: &mut Session<'_>,
    finish: &TaskFinish,
    own: &RunId,
) -> Result<BTreeMap<RunId, i64>> {
    let (mut places, mut whole) = (Vec::new(), Vec::new());
    for (table, keys) in &finish.reads {
        for shape in place::shapes(s, table).await? {
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
        let rows: Vec<(String, i64)> = place::bind_places(s.sql(sql), &places)
            .bind(signed(finish.pinned_at)?)
            .bind(own.as_str())
            .all(s.conn(), "look for changes since the inputs were pinned")
            .await?;
        for (run, position) in rows {
            let last = missed.entry(RunId::new(run)).or_insert(position);
            *last = position.max(*last);
        }
    }
    Ok(missed)
}

pub(super) const MISSED: &str = concat!(
    "SELECT k.run, k.position FROM ",
    places!(),
    " JOIN reprocess.run AS k ON ",
    at_place!(),
    " WHERE k.position > $5 AND k.run <> $6 AND k.changes"
);

pub(super) const MISSED_OF_SHAPE: &str = concat!(
    "SELECT k.run, k.position FROM ",
    places!(),
    " JOIN reprocess.run AS k ON k.shape = p.shape AND k.position > $5 WHERE k.run <> $6 AND k.changes"
);

/// By table, partition, job and run.
pub(super) async fn all(s: &mut Session<'_>) -> Result<Vec<StalePartition>> {
    type Row = (String, String, String, String, i64);
    let rows: Vec<Row> = s
        .sql("SELECT job, table_id, key, because, position FROM reprocess.stale")
        .all(s.conn(), "read what is stale")
        .await?;
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
