//! Deliveries, in the order in which they were prepared.

mod send;

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use reprocess_core::Result;
use reprocess_core::domain::ids::{Actor, BackfillId, RunId};
use reprocess_core::ports::delivery::{Delivery, DeliveryOrigin, DeliveryRecord, DeliveryState};
use reprocess_core::ports::ledger::rules::{self, KeyPast};
use reprocess_core::ports::ledger::{DeliveryFilter, RunRecord};
use reprocess_core::ports::writer::{StagedId, StampId};
use sqlx::{QueryBuilder, SqliteConnection};

use super::row::{from_word, instant, json, micros, number, parsed, word};
use crate::error::Doing;

pub(super) use send::{claim, decide, end};

/// Whether deliveries stand for an attempt, in whatever state.
pub(super) async fn stand_for(conn: &mut SqliteConnection, id: &StagedId) -> Result<bool> {
    sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM reprocess_delivery WHERE stamp = ? AND attempt = ?)")
        .bind(json(&id.stamp)?)
        .bind(id.attempt)
        .fetch_one(conn)
        .await
        .doing("look for deliveries")
}

pub(super) async fn prepare(
    conn: &mut SqliteConnection,
    id: &StagedId,
    backfill: Option<&BackfillId>,
    batch: &[Delivery],
    now: DateTime<Utc>,
) -> Result<()> {
    let stamp = json(&id.stamp)?;
    // Once its output is committed, what was prepared for it may have been sent: preparing it again, after a lost reply,
    // must not make it new.
    let settled: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM reprocess_delivery
                        WHERE stamp = ? AND attempt = ? AND state NOT IN ('prepared', 'withdrawn'))",
    )
    .bind(&stamp)
    .bind(id.attempt)
    .fetch_one(&mut *conn)
    .await
    .doing("look for deliveries")?;
    if settled {
        return Ok(());
    }
    sqlx::query("DELETE FROM reprocess_delivery WHERE stamp = ? AND attempt = ?")
        .bind(&stamp)
        .bind(id.attempt)
        .execute(&mut *conn)
        .await
        .doing("replace deliveries")?;
    for delivery in batch {
        sqlx::query(
            "INSERT INTO reprocess_delivery
                 (stamp, attempt, run, generation, backfill, key, channel, payload, state, changed_us)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'prepared', ?)",
        )
        .bind(&stamp)
        .bind(id.attempt)
        .bind(id.stamp.run.as_str())
        .bind(id.stamp.generation)
        .bind(backfill.map(BackfillId::as_str))
        .bind(&delivery.key)
        .bind(&delivery.channel)
        .bind(json(&delivery.payload)?)
        .bind(micros(now))
        .execute(&mut *conn)
        .await
        .doing("prepare a delivery")?;
    }
    Ok(())
}

/// Files as released what has a key of its own.
pub(super) async fn announce(
    conn: &mut SqliteConnection,
    origin: &DeliveryOrigin,
    batch: &[Delivery],
    now: DateTime<Utc>,
) -> Result<u64> {
    let mut count = 0;
    for delivery in batch {
        let filed = sqlx::query(
            "INSERT INTO reprocess_delivery (run, backfill, key, channel, payload, state, changed_us)
             SELECT ?1, ?2, ?3, ?4, ?5, 'released', ?6
             WHERE NOT EXISTS (SELECT 1 FROM reprocess_delivery WHERE key = ?3)",
        )
        .bind(origin.run.as_ref().map(RunId::as_str))
        .bind(origin.backfill.as_ref().map(BackfillId::as_str))
        .bind(&delivery.key)
        .bind(&delivery.channel)
        .bind(json(&delivery.payload)?)
        .bind(micros(now))
        .execute(&mut *conn)
        .await
        .doing("announce")?;
        count += filed.rows_affected();
    }
    Ok(count)
}

/// Files what is announced with the commit of records.
pub(super) async fn announce_commit(
    conn: &mut SqliteConnection,
    records: &[RunRecord],
    batch: &[Delivery],
) -> Result<()> {
    let ended = records.iter().map(|record| record.finished_at).max();
    if let (Some(record), Some(ended)) = (records.first(), ended) {
        announce(conn, &rules::announced_by(record), batch, ended).await?;
    }
    Ok(())
}

/// Withdraws what is prepared for a generation of a backfill.
pub(super) async fn withdraw_backfill(
    conn: &mut SqliteConnection,
    id: &BackfillId,
    generation: u32,
    now: DateTime<Utc>,
) -> Result<()> {
    sqlx::query(
        "UPDATE reprocess_delivery SET state = 'withdrawn', changed_us = ?
         WHERE state = 'prepared' AND backfill = ? AND generation = ?",
    )
    .bind(micros(now))
    .bind(id.as_str())
    .bind(generation)
    .execute(conn)
    .await
    .doing("withdraw deliveries")?;
    Ok(())
}

/// Withdraws what is prepared for a stamp, whatever the attempt.
pub(super) async fn withdraw_stamp(
    conn: &mut SqliteConnection,
    stamp: &StampId,
    now: DateTime<Utc>,
) -> Result<()> {
    sqlx::query(
        "UPDATE reprocess_delivery SET state = 'withdrawn', changed_us = ? WHERE state = 'prepared' AND stamp = ?",
    )
    .bind(micros(now))
    .bind(json(stamp)?)
    .execute(conn)
    .await
    .doing("withdraw deliveries")?;
    Ok(())
}

/// The stamp was committed by an attempt. Without an instant, what changes keeps its own.
pub(super) async fn commit(
    conn: &mut SqliteConnection,
    stamp: &StampId,
    committed: u32,
    deliver: bool,
    at: Option<DateTime<Utc>>,
) -> Result<()> {
    let rows: Vec<(i64, u32, String, String, bool)> = sqlx::query_as(
        "SELECT position, attempt, key, state, backfill IS NOT NULL FROM reprocess_delivery
         WHERE stamp = ? ORDER BY position",
    )
    .bind(json(stamp)?)
    .fetch_all(&mut *conn)
    .await
    .doing("read prepared deliveries")?;
    for (position, attempt, key, state, of_backfill) in rows {
        let past = past(conn, &key).await?;
        let of_committed = attempt == committed;
        let next = rules::delivery_at_commit(from_word(&state)?, of_committed, deliver, of_backfill, past);
        if let Some(next) = next {
            change(conn, position, next, None, at).await?;
        }
    }
    Ok(())
}

pub(super) async fn release(
    conn: &mut SqliteConnection,
    keys: &[String],
    by: &Actor,
    now: DateTime<Utc>,
) -> Result<u64> {
    let mut count = 0;
    for key in keys.iter().collect::<BTreeSet<_>>() {
        let waiting: Vec<i64> = sqlx::query_scalar(
            "SELECT position FROM reprocess_delivery WHERE state = 'suppressed' AND key = ? ORDER BY position",
        )
        .bind(key)
        .fetch_all(&mut *conn)
        .await
        .doing("read suppressed deliveries")?;
        let states = rules::deliveries_at_release(waiting.len(), past(conn, key).await? == KeyPast::Released);
        for (position, state) in waiting.into_iter().zip(states) {
            let released = state == DeliveryState::Released;
            change(conn, position, state, released.then_some(by), Some(now)).await?;
            count += u64::from(released);
        }
    }
    Ok(count)
}

async fn past(conn: &mut SqliteConnection, key: &str) -> Result<KeyPast> {
    let states: Vec<String> =
        sqlx::query_scalar("SELECT DISTINCT state FROM reprocess_delivery WHERE key = ?")
            .bind(key)
            .fetch_all(conn)
            .await
            .doing("look for deliveries of a key")?;
    let states = states.iter().map(|state| from_word(state)).collect::<Result<Vec<DeliveryState>>>()?;
    Ok(KeyPast::of(states))
}

async fn change(
    conn: &mut SqliteConnection,
    position: i64,
    state: DeliveryState,
    by: Option<&Actor>,
    at: Option<DateTime<Utc>>,
) -> Result<()> {
    sqlx::query(
        "UPDATE reprocess_delivery SET state = ?2, released_by = ?3, changed_us = coalesce(?4, changed_us)
         WHERE position = ?1",
    )
    .bind(position)
    .bind(word(&state)?)
    .bind(by.map(Actor::as_str))
    .bind(at.map(micros))
    .execute(conn)
    .await
    .doing("change a delivery")?;
    Ok(())
}

pub(super) async fn records(
    conn: &mut SqliteConnection,
    filter: &DeliveryFilter,
) -> Result<Vec<DeliveryRecord>> {
    let mut query = QueryBuilder::new(
        "SELECT position, stamp, attempt, run, backfill, key, channel, payload, state, changed_us, attempts, due_us, note
         FROM reprocess_delivery WHERE true",
    );
    // Only conditions that are set stand in the text, so that each finds its index.
    if let Some(backfill) = &filter.backfill {
        query.push(" AND backfill = ").push_bind(backfill.as_str());
    }
    if let Some(run) = &filter.run {
        query.push(" AND run = ").push_bind(run.as_str());
    }
    if let Some(state) = &filter.state {
        query.push(" AND state = ").push_bind(word(state)?);
    }
    let query = query.push(" ORDER BY position").build_query_as();
    let rows: Vec<Row> = query.fetch_all(conn).await.doing("read deliveries")?;
    rows.into_iter().map(record).collect()
}

type Row = (
    i64,
    Option<String>,
    Option<u32>,
    Option<String>,
    Option<String>,
    String,
    String,
    String,
    String,
    i64,
    u32,
    Option<i64>,
    Option<String>,
);

fn record(row: Row) -> Result<DeliveryRecord> {
    let (position, stamp, attempt, run, backfill, key, channel, payload, state, changed, attempts, due, note) =
        row;
    let staged = stamp.zip(attempt);
    let staged = staged.map(|(stamp, attempt)| Ok(StagedId { stamp: parsed(&stamp)?, attempt }));
    Ok(DeliveryRecord {
        place: number(position)?,
        staged: staged.transpose()?,
        run: run.map(RunId::new),
        backfill: backfill.map(BackfillId::new),
        delivery: Delivery { key, channel, payload: parsed(&payload)? },
        state: from_word(&state)?,
        changed_at: instant(changed)?,
        attempts,
        due_at: due.map(instant).transpose()?,
        note,
    })
}
