//! Deliveries on their way out.

use std::time::Duration;

use chrono::{DateTime, Utc};
use reprocess_core::Result;
use reprocess_core::domain::ids::{Actor, WorkerId};
use reprocess_core::ports::delivery::{Delivery, DeliveryClaim, DeliveryDecision, DeliveryEnd};
use reprocess_core::ports::ledger::rules;
use sqlx::SqliteConnection;

use super::super::row::{from_word, json, micros, micros_after, number, parsed, signed, word};
use crate::error::Doing;

pub(in super::super) async fn claim(
    conn: &mut SqliteConnection,
    channels: &[String],
    worker: &WorkerId,
    limit: u32,
    ttl: Duration,
    now: DateTime<Utc>,
) -> Result<Vec<DeliveryClaim>> {
    type Row = (i64, String, String, String, u32, bool);
    let rows = sqlx::query_as(
        "UPDATE reprocess_delivery
         SET state = 'sending', changed_us = ?1, attempts = attempts + 1, in_doubt = max(in_doubt, state = 'sending'),
             taken_by = ?2, expires_us = ?3
         WHERE position IN (
             SELECT position FROM reprocess_delivery
             WHERE channel IN (SELECT value FROM json_each(?4)) AND (
                 state = 'released' AND coalesce(due_us <= ?1, true) OR state = 'sending' AND expires_us <= ?1)
             ORDER BY position LIMIT ?5)
         RETURNING position, key, channel, payload, attempts, in_doubt",
    )
    .bind(micros(now))
    .bind(worker.as_str())
    .bind(micros_after(now, ttl))
    .bind(json(channels)?)
    .bind(limit);
    let mut rows: Vec<Row> = rows.fetch_all(conn).await.doing("claim deliveries")?;
    rows.sort_unstable_by_key(|row| row.0);
    let claim = |(position, key, channel, payload, attempt, in_doubt): Row| {
        let delivery = Delivery { key, channel, payload: parsed(&payload)? };
        Ok(DeliveryClaim { place: number(position)?, delivery, attempt, in_doubt, worker: worker.clone() })
    };
    rows.into_iter().map(claim).collect()
}

pub(in super::super) async fn end(
    conn: &mut SqliteConnection,
    claim: &DeliveryClaim,
    end: &DeliveryEnd,
    now: DateTime<Utc>,
) -> Result<bool> {
    let (due_at, in_doubt, note) = match end {
        DeliveryEnd::Sent { note } => (None, None, note.as_ref()),
        DeliveryEnd::Unknown { note } | DeliveryEnd::Dead { note } => (None, None, Some(note)),
        DeliveryEnd::Again { due_at, in_doubt, note } => (Some(*due_at), Some(*in_doubt), Some(note)),
    };
    let ended = sqlx::query(
        "UPDATE reprocess_delivery
         SET state = ?1, changed_us = ?2, due_us = ?3, in_doubt = coalesce(?4, in_doubt), note = ?5, expires_us = NULL
         WHERE position = ?6 AND state = 'sending' AND attempts = ?7 AND taken_by = ?8",
    )
    .bind(word(&rules::delivery_after(end))?)
    .bind(micros(now))
    .bind(due_at.map(micros))
    .bind(in_doubt)
    .bind(note)
    .bind(signed(claim.place)?)
    .bind(claim.attempt)
    .bind(claim.worker.as_str())
    .execute(conn)
    .await
    .doing("end a delivery")?;
    Ok(ended.rows_affected() == 1)
}

pub(in super::super) async fn decide(
    conn: &mut SqliteConnection,
    keys: &[String],
    decision: DeliveryDecision,
    by: &Actor,
    now: DateTime<Utc>,
) -> Result<u64> {
    let mut count = 0;
    for key in keys {
        let open: Vec<(i64, String)> = sqlx::query_as(
            "SELECT position, state FROM reprocess_delivery WHERE key = ? AND state IN ('unknown', 'dead')",
        )
        .bind(key)
        .fetch_all(&mut *conn)
        .await
        .doing("read deliveries that are to be decided")?;
        for (position, state) in open {
            let Some(next) = rules::delivery_decided(from_word(&state)?, decision) else { continue };
            sqlx::query(
                "UPDATE reprocess_delivery SET state = ?, changed_us = ?, released_by = ?, attempts = 0, due_us = NULL,
                     in_doubt = 0
                 WHERE position = ?",
            )
            .bind(word(&next)?)
            .bind(micros(now))
            .bind(by.as_str())
            .bind(position)
            .execute(&mut *conn)
            .await
            .doing("decide about a delivery")?;
            count += 1;
        }
    }
    Ok(count)
}
