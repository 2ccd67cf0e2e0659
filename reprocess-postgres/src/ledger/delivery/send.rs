//! Deliveries on their way out. What is due and what has run out is decided by the clock of the server.

use std::time::Duration;

use chrono::{DateTime, Utc};
use reprocess_core::Result;
use reprocess_core::domain::ids::{Actor, WorkerId};
use reprocess_core::ports::delivery::{Delivery, DeliveryClaim, DeliveryDecision, DeliveryEnd};
use reprocess_core::ports::ledger::rules;

use super::super::Session;
use super::super::row::{from_word, number, parsed, shown, signed, ttl_us, word};

/// A wish for deliveries.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Wish<'a> {
    pub(in super::super) channels: &'a [String],
    pub(in super::super) worker: &'a WorkerId,
    pub(in super::super) limit: u32,
    pub(in super::super) ttl: Duration,
    pub(in super::super) now: DateTime<Utc>,
    pub(in super::super) deciding: Option<DateTime<Utc>>,
}

pub(in super::super) async fn claim(s: &mut Session<'_>, wish: &Wish<'_>) -> Result<Vec<DeliveryClaim>> {
    type Row = (i64, String, String, String, i64, bool);
    let mut rows: Vec<Row> = s
        .sql(
            "UPDATE reprocess.delivery
             SET state = 'sending', changed_at = $1, attempts = attempts + 1,
                 in_doubt = in_doubt OR state = 'sending', taken_by = $2,
                 expires_at = coalesce($3, clock_timestamp()) + $4 * interval '1 microsecond'
             WHERE position IN (
                 SELECT position FROM reprocess.delivery
                 WHERE channel = ANY ($5::text[]) AND (
                     state = 'released' AND coalesce(due_at <= coalesce($3, clock_timestamp()), true)
                     OR state = 'sending' AND expires_at <= coalesce($3, clock_timestamp()))
                 ORDER BY position LIMIT $6)
             RETURNING position, key, channel, payload::text, attempts, in_doubt",
        )
        .bind(wish.now)
        .bind(wish.worker.as_str())
        .bind(wish.deciding)
        .bind(ttl_us(wish.ttl))
        .bind(wish.channels.to_vec())
        .bind(wish.limit)
        .all(s.conn(), "claim deliveries")
        .await?;
    rows.sort_unstable_by_key(|row| row.0);
    let claim = |(position, key, channel, payload, attempt, in_doubt): Row| {
        Ok(DeliveryClaim {
            place: number(position)?,
            delivery: Delivery { key, channel, payload: parsed(&payload)? },
            attempt: number(attempt)?,
            in_doubt,
            worker: wish.worker.clone(),
        })
    };
    rows.into_iter().map(claim).collect()
}

pub(in super::super) async fn end(
    s: &mut Session<'_>,
    claim: &DeliveryClaim,
    end: &DeliveryEnd,
    now: DateTime<Utc>,
) -> Result<bool> {
    let (due_at, in_doubt, note) = match end {
        DeliveryEnd::Sent { note } => (None, None, note.as_ref()),
        DeliveryEnd::Unknown { note } | DeliveryEnd::Dead { note } => (None, None, Some(note)),
        DeliveryEnd::Again { due_at, in_doubt, note } => (Some(*due_at), Some(*in_doubt), Some(note)),
    };
    let ended = s
        .sql(
            "UPDATE reprocess.delivery
             SET state = $1, changed_at = $2, due_at = $3, in_doubt = coalesce($4, in_doubt), note = $5,
                 expires_at = NULL
             WHERE position = $6 AND state = 'sending' AND attempts = $7 AND taken_by = $8",
        )
        .bind(word(&rules::delivery_after(end))?)
        .bind(now)
        .bind(due_at)
        .bind(in_doubt)
        .bind(note.map(|note| shown(note)))
        .bind(signed(claim.place)?)
        .bind(claim.attempt)
        .bind(claim.worker.as_str())
        .execute(s.conn(), "end a delivery")
        .await?;
    Ok(ended == 1)
}

pub(in super::super) async fn decide(
    s: &mut Session<'_>,
    keys: &[String],
    decision: DeliveryDecision,
    by: &Actor,
    now: DateTime<Utc>,
) -> Result<u64> {
    let open: Vec<(i64, String)> = s
        .sql(
            "SELECT position, state FROM reprocess.delivery
             WHERE key = ANY ($1::text[]) AND state IN ('unknown', 'dead') ORDER BY position",
        )
        .bind(keys.to_vec())
        .all(s.conn(), "read deliveries that are to be decided")
        .await?;
    let mut count = 0;
    for (position, state) in open {
        let Some(next) = rules::delivery_decided(from_word(&state)?, decision) else { continue };
        s.sql(
            "UPDATE reprocess.delivery
             SET state = $2, changed_at = $3, released_by = $4, attempts = 0, due_at = NULL, in_doubt = false
             WHERE position = $1",
        )
        .bind(position)
        .bind(word(&next)?)
        .bind(now)
        .bind(by.as_str())
        .execute(s.conn(), "decide about a delivery")
        .await?;
        count += 1;
    }
    Ok(count)
}
