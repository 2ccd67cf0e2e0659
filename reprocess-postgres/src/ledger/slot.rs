//! Slots of pools.

use std::time::Duration;

use chrono::{DateTime, Utc};
use reprocess_core::Result;
use reprocess_core::domain::ids::WorkerId;
use reprocess_core::ports::ledger::{SlotAsk, SlotEntry, rules};

use super::Session;
use super::row::{from_word, number, ttl_us};

/// `deciding` is the time that decides who asked first and which asks have run out; `None` for the clock of the server.
pub(super) async fn ask(
    s: &mut Session<'_>,
    ask: &SlotAsk,
    ttl: Duration,
    deciding: Option<DateTime<Utc>>,
) -> Result<bool> {
    // Asks of one pool wait for each other here, so that they count together.
    s.sql("SELECT pg_advisory_xact_lock(hashtextextended('reprocess slot ' || $1 || ' ' || $2, 0))")
        .bind(s.schema.name())
        .bind(ask.pool.name.as_str())
        .execute(s.conn(), "wait for its turn to ask for a slot")
        .await?;
    s.sql("DELETE FROM reprocess.slot WHERE pool = $1 AND expires_at <= coalesce($2, clock_timestamp())")
        .bind(ask.pool.name.as_str())
        .bind(deciding)
        .execute(s.conn(), "forget asks for slots")
        .await?;
    s.sql(
        "INSERT INTO reprocess.slot (pool, holder, class, priority, asked_at, has_slot, expires_at)
         VALUES ($1, $2, $3, $4, coalesce($5, clock_timestamp()), false,
                 coalesce($5, clock_timestamp()) + $6 * interval '1 microsecond')
         ON CONFLICT (pool, holder) DO UPDATE SET expires_at = excluded.expires_at",
    )
    .bind(ask.pool.name.as_str())
    .bind(ask.holder.as_str())
    .bind(ask.class.name())
    .bind(i64::from(ask.priority))
    .bind(deciding)
    .bind(ttl_us(ttl))
    .execute(s.conn(), "ask for a slot")
    .await?;
    let has_slot = rules::has_slot(&entries(s, &ask.pool.name).await?, &ask.pool, &ask.holder);
    s.sql("UPDATE reprocess.slot SET has_slot = $3 WHERE pool = $1 AND holder = $2")
        .bind(ask.pool.name.as_str())
        .bind(ask.holder.as_str())
        .bind(has_slot)
        .execute(s.conn(), "take a slot")
        .await?;
    Ok(has_slot)
}

async fn entries(s: &mut Session<'_>, pool: &str) -> Result<Vec<SlotEntry>> {
    type Row = (String, String, i64, DateTime<Utc>, bool);
    let rows: Vec<Row> = s
        .sql("SELECT holder, class, priority, asked_at, has_slot FROM reprocess.slot WHERE pool = $1 ORDER BY holder")
        .bind(pool)
        .all(s.conn(), "read the asks for slots")
        .await?;
    let entry = |(holder, class, priority, asked_at, has_slot): Row| {
        let (class, priority) = (from_word(&class)?, number(priority)?);
        Ok(SlotEntry { holder: WorkerId::new(holder), class, priority, asked_at, has_slot })
    };
    rows.into_iter().map(entry).collect()
}

pub(super) async fn end(s: &mut Session<'_>, ask: &SlotAsk) -> Result<()> {
    s.sql("DELETE FROM reprocess.slot WHERE pool = $1 AND holder = $2")
        .bind(ask.pool.name.as_str())
        .bind(ask.holder.as_str())
        .execute(s.conn(), "give up a slot")
        .await?;
    Ok(())
}
