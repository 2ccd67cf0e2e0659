//! Deliveries, in the order in which they were prepared. All writing under the lock of [`order`](super::order), so that
//! of two with one key the second sees the first.

mod send;

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use reprocess_core::Result;
use reprocess_core::domain::ids::{Actor, BackfillId, RunId};
use reprocess_core::ports::delivery::{Delivery, DeliveryOrigin, DeliveryRecord, DeliveryState};
use reprocess_core::ports::ledger::rules::{self, KeyPast};
use reprocess_core::ports::ledger::{DeliveryFilter, RunRecord};
use reprocess_core::ports::writer::{StagedId, StampId};

use super::Session;
use super::row::{from_word, json, number, parsed, word};

pub(super) use send::{Wish, claim, decide, end};

/// Whether deliveries stand for an attempt, in whatever state.
pub(super) async fn stand_for(s: &mut Session<'_>, id: &StagedId) -> Result<bool> {
    let (some,): (bool,) = s
        .sql("SELECT EXISTS (SELECT 1 FROM reprocess.delivery WHERE stamp = $1 AND attempt = $2)")
        .bind(json(&id.stamp)?)
        .bind(id.attempt)
        .one(s.conn(), "look for deliveries")
        .await?;
    Ok(some)
}

pub(super) async fn prepare(
    s: &mut Session<'_>,
    id: &StagedId,
    backfill: Option<&BackfillId>,
    batch: &[Delivery],
    now: DateTime<Utc>,
) -> Result<()> {
    let stamp = json(&id.stamp)?;
    // Once its output is committed, what was prepared for it may have been sent: preparing it again, after a lost reply,
    // must not make it new.
    let (settled,): (bool,) = s
        .sql(
            "SELECT EXISTS (SELECT 1 FROM reprocess.delivery
                            WHERE stamp = $1 AND attempt = $2 AND state NOT IN ('prepared', 'withdrawn'))",
        )
        .bind(stamp.as_str())
        .bind(id.attempt)
        .one(s.conn(), "look for deliveries")
        .await?;
    if settled {
        return Ok(());
    }
    s.sql("DELETE FROM reprocess.delivery WHERE stamp = $1 AND attempt = $2")
        .bind(stamp.as_str())
        .bind(id.attempt)
        .execute(s.conn(), "replace deliveries")
        .await?;
    let payloads = batch.iter().map(|delivery| json(&delivery.payload));
    s.sql(
        "INSERT INTO reprocess.delivery
             (stamp, attempt, run, generation, backfill, key, channel, payload, state, changed_at)
         SELECT $1, $2, $3, $4, $5, key, channel, payload::json, 'prepared', $6
         FROM unnest($7::text[], $8::text[], $9::text[]) WITH ORDINALITY AS d (key, channel, payload, no)
         ORDER BY no",
    )
    .bind(stamp)
    .bind(id.attempt)
    .bind(id.stamp.run.as_str())
    .bind(id.stamp.generation)
    .bind(backfill.map(BackfillId::as_str))
    .bind(now)
    .bind(batch.iter().map(|delivery| delivery.key.clone()).collect::<Vec<_>>())
    .bind(batch.iter().map(|delivery| delivery.channel.clone()).collect::<Vec<_>>())
    .bind(payloads.collect::<Result<Vec<_>>>()?)
    .execute(s.conn(), "prepare deliveries")
    .await?;
    Ok(())
}

/// Files as released what has a key of its own.
pub(super) async fn announce(
    s: &mut Session<'_>,
    origin: &DeliveryOrigin,
    batch: &[Delivery],
    now: DateTime<Utc>,
) -> Result<u64> {
    let mut count = 0;
    for delivery in batch {
        count += s
            .sql(
                "INSERT INTO reprocess.delivery (run, backfill, key, channel, payload, state, changed_at)
                 SELECT $1, $2, $3, $4, $5::json, 'released', $6
                 WHERE NOT EXISTS (SELECT 1 FROM reprocess.delivery WHERE key = $3)",
            )
            .bind(origin.run.as_ref().map(RunId::as_str))
            .bind(origin.backfill.as_ref().map(BackfillId::as_str))
            .bind(delivery.key.as_str())
            .bind(delivery.channel.as_str())
            .bind(json(&delivery.payload)?)
            .bind(now)
            .execute(s.conn(), "announce")
            .await?;
    }
    Ok(count)
}

/// Files what is announced with the commit of records.
pub(super) async fn announce_commit(
    s: &mut Session<'_>,
    records: &[RunRecord],
    batch: &[Delivery],
) -> Result<()> {
    let ended = records.iter().map(|record| record.finished_at).max();
    if let (Some(record), Some(ended)) = (records.first(), ended) {
        announce(s, &rules::announced_by(record), batch, ended).await?;
    }
    Ok(())
}

/// Withdraws what is prepared for a generation of a backfill.
pub(super) async fn withdraw_backfill(
    s: &mut Session<'_>,
    id: &BackfillId,
    generation: u32,
    now: DateTime<Utc>,
) -> Result<()> {
    s.sql(
        "UPDATE reprocess.delivery SET state = 'withdrawn', changed_at = $3
         WHERE state = 'prepared' AND backfill = $1 AND generation = $2",
    )
    .bind(id.as_str())
    .bind(generation)
    .bind(now)
    .execute(s.conn(), "withdraw deliveries")
    .await?;
    Ok(())
}

/// Withdraws what is prepared for a stamp, whatever the attempt.
pub(super) async fn withdraw_stamp(s: &mut Session<'_>, stamp: &StampId, now: DateTime<Utc>) -> Result<()> {
    s.sql(
        "UPDATE reprocess.delivery SET state = 'withdrawn', changed_at = $2
         WHERE state = 'prepared' AND stamp = $1",
    )
    .bind(json(stamp)?)
    .bind(now)
    .execute(s.conn(), "withdraw deliveries")
    .await?;
    Ok(())
}

/// The stamp was committed by an attempt. Without an instant, what changes keeps its own.
pub(super) async fn commit(
    s: &mut Session<'_>,
    stamp: &StampId,
    committed: u32,
    deliver: bool,
    at: Option<DateTime<Utc>>,
) -> Result<()> {
    let rows: Vec<(i64, i64, String, String, bool)> = s
        .sql(
            "SELECT position, attempt, key, state, backfill IS NOT NULL FROM reprocess.delivery
             WHERE stamp = $1 ORDER BY position",
        )
        .bind(json(stamp)?)
        .all(s.conn(), "read prepared deliveries")
        .await?;
    for (position, attempt, key, state, of_backfill) in rows {
        let past = past(s, &key).await?;
        let of_committed = number::<u32>(attempt)? == committed;
        let next = rules::delivery_at_commit(from_word(&state)?, of_committed, deliver, of_backfill, past);
        if let Some(next) = next {
            change(s, position, next, None, at).await?;
        }
    }
    Ok(())
}

pub(super) async fn release(
    s: &mut Session<'_>,
    keys: &[String],
    by: &Actor,
    now: DateTime<Utc>,
) -> Result<u64> {
    let mut count = 0;
    for key in keys.iter().collect::<BTreeSet<_>>() {
        let waiting: Vec<(i64,)> = s
            .sql(
                "SELECT position FROM reprocess.delivery
                 WHERE state = 'suppressed' AND key = $1 ORDER BY position",
            )
            .bind(key.as_str())
            .all(s.conn(), "read suppressed deliveries")
            .await?;
        let states = rules::deliveries_at_release(waiting.len(), past(s, key).await? == KeyPast::Released);
        for ((position,), state) in waiting.into_iter().zip(states) {
            let released = state == DeliveryState::Released;
            change(s, position, state, released.then_some(by), Some(now)).await?;
            count += u64::from(released);
        }
    }
    Ok(count)
}

async fn past(s: &mut Session<'_>, key: &str) -> Result<KeyPast> {
    let states: Vec<(String,)> = s
        .sql("SELECT DISTINCT state FROM reprocess.delivery WHERE key = $1")
        .bind(key)
        .all(s.conn(), "look for deliveries of a key")
        .await?;
    let states = states.iter().map(|(state,)| from_word(state)).collect::<Result<Vec<DeliveryState>>>()?;
    Ok(KeyPast::of(states))
}

async fn change(
    s: &mut Session<'_>,
    position: i64,
    state: DeliveryState,
    by: Option<&Actor>,
    at: Option<DateTime<Utc>>,
) -> Result<()> {
    s.sql(
        "UPDATE reprocess.delivery SET state = $2, released_by = $3, changed_at = coalesce($4, changed_at)
         WHERE position = $1",
    )
    .bind(position)
    .bind(word(&state)?)
    .bind(by.map(Actor::as_str))
    .bind(at)
    .execute(s.conn(), "change a delivery")
    .await?;
    Ok(())
}

pub(super) async fn records(s: &mut Session<'_>, filter: &DeliveryFilter) -> Result<Vec<DeliveryRecord>> {
    let rows: Vec<Row> = s
        .sql(
            "SELECT position, stamp, attempt, run, backfill, key, channel, payload::text, state, changed_at,
                 attempts, due_at, note
             FROM reprocess.delivery
             WHERE ($1::text IS NULL OR backfill = $1) AND ($2::text IS NULL OR run = $2)
                 AND ($3::text IS NULL OR state = $3)
             ORDER BY position",
        )
        .bind(filter.backfill.as_ref().map(BackfillId::as_str))
        .bind(filter.run.as_ref().map(RunId::as_str))
        .bind(filter.state.as_ref().map(word).transpose()?)
        .all(s.conn(), "read deliveries")
        .await?;
    rows.into_iter().map(record).collect()
}

type Row = (
    i64,
    Option<String>,
    Option<i64>,
    Option<String>,
    Option<String>,
    String,
    String,
    String,
    String,
    DateTime<Utc>,
    i64,
    Option<DateTime<Utc>>,
    Option<String>,
);

fn record(row: Row) -> Result<DeliveryRecord> {
    let (position, stamp, attempt, run, backfill, key, channel, payload, state, changed, attempts, due, note) =
        row;
    let staged = stamp.zip(attempt);
    let staged =
        staged.map(|(stamp, attempt)| Ok(StagedId { stamp: parsed(&stamp)?, attempt: number(attempt)? }));
    Ok(DeliveryRecord {
        place: number(position)?,
        staged: staged.transpose()?,
        run: run.map(RunId::new),
        backfill: backfill.map(BackfillId::new),
        delivery: Delivery { key, channel, payload: parsed(&payload)? },
        state: from_word(&state)?,
        changed_at: changed,
        attempts: number(attempts)?,
        due_at: due,
        note,
    })
}
