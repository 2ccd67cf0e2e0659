//! Slots of pools.

use std::time::Duration;

use chrono::{DateTime, Utc};
use reprocess_core::Result;
use reprocess_core::domain::ids::WorkerId;
use reprocess_core::ports::ledger::{SlotAsk, SlotEntry, rules};
use sqlx::SqliteConnection;

use super::row::{from_word, instant, micros, micros_after};
use crate::error::Doing;

pub(super) async fn ask(
    conn: &mut SqliteConnection,
    ask: &SlotAsk,
    ttl: Duration,
    now: DateTime<Utc>,
) -> Result<bool> {
    sqlx::query("DELETE FROM reprocess_slot WHERE pool = ? AND expires_us <= ?")
        .bind(&ask.pool.name)
        .bind(micros(now))
        .execute(&mut *conn)
        .await
        .doing("forget asks for slots")?;
    sqlx::query(
        "INSERT INTO reprocess_slot (pool, holder, class, priority, asked_us, has_slot, expires_us)
         VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6)
         ON CONFLICT (pool, holder) DO UPDATE SET expires_us = excluded.expires_us",
    )
    .bind(&ask.pool.name)
    .bind(ask.holder.as_str())
    .bind(ask.class.name())
    .bind(ask.priority)
    .bind(micros(now))
    .bind(micros_after(now, ttl))
    .execute(&mut *conn)
    .await
    .doing("ask for a slot")?;
    let has_slot = rules::has_slot(&entries(conn, &ask.pool.name).await?, &ask.pool, &ask.holder);
    sqlx::query("UPDATE reprocess_slot SET has_slot = ?3 WHERE pool = ?1 AND holder = ?2")
        .bind(&ask.pool.name)
        .bind(ask.holder.as_str())
        .bind(has_slot)
        .execute(conn)
        .await
        .doing("take a slot")?;
    Ok(has_slot)
}

async fn entries(conn: &mut SqliteConnection, pool: &str) -> Result<Vec<SlotEntry>> {
    type Row = (String, String, i32, i64, bool);
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT holder, class, priority, asked_us, has_slot FROM reprocess_slot WHERE pool = ? ORDER BY holder",
    )
    .bind(pool)
    .fetch_all(conn)
    .await
    .doing("read the asks for slots")?;
    let entry = |(holder, class, priority, asked, has_slot): Row| {
        let (class, asked_at) = (from_word(&class)?, instant(asked)?);
        Ok(SlotEntry { holder: WorkerId::new(holder), class, priority, asked_at, has_slot })
    };
    rows.into_iter().map(entry).collect()
}

pub(super) async fn end(conn: &mut SqliteConnection, ask: &SlotAsk) -> Result<()> {
    sqlx::query("DELETE FROM reprocess_slot WHERE pool = ? AND holder = ?")
        .bind(&ask.pool.name)
        .bind(ask.holder.as_str())
        .execute(conn)
        .await
        .doing("give up a slot")?;
    Ok(())
}
