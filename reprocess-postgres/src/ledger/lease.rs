//! Leases on scopes of tables.

use std::time::Duration;

use chrono::{DateTime, Utc};
use reprocess_core::Result;
use reprocess_core::domain::ids::{TableId, WorkerId};
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::ledger::Fence;

use super::Session;
use super::place::{self, Place, at_place, places};
use super::row::{number, signed, ttl_us};

pub(super) async fn acquire(
    s: &mut Session<'_>,
    table: &TableId,
    scope: &Scope,
    holder: &WorkerId,
    ttl: Duration,
    now: Option<DateTime<Utc>>,
) -> Result<Option<Fence>> {
    // A statement of its own, so that the next ones see the lease that was waited for.
    s.sql("SELECT pg_advisory_xact_lock(hashtextextended('reprocess lease ' || $1 || ' ' || $2, 0))")
        .bind(s.schema.name())
        .bind(table.as_str())
        .execute(s.conn(), "wait for its turn to take a lease")
        .await?;
    let places = places_of(s, table, scope).await?;
    let overlapping: Vec<(i64, bool)> = place::bind_places(s.sql(OVERLAPPING), &places)
        .bind(holder.as_str())
        .bind(now)
        .all(s.conn(), "look for leases")
        .await?;
    if overlapping.iter().any(|(_, held)| *held) {
        return Ok(None);
    }
    if !end(s, overlapping.into_iter().map(|(token, _)| token).collect()).await? {
        return Ok(None);
    }
    let (token,): (i64,) = s
        .sql(
            "INSERT INTO reprocess.lease (table_id, holder, ended, expires_at)
             VALUES ($1, $2, false, coalesce($3, clock_timestamp()) + $4 * interval '1 microsecond')
             RETURNING token",
        )
        .bind(table.as_str())
        .bind(holder.as_str())
        .bind(now)
        .bind(ttl_us(ttl))
        .one(s.conn(), "take a lease")
        .await?;
    let (mut shapes, mut texts) = (Vec::new(), Vec::new());
    for key in scope.partitions() {
        shapes.push(place::shape_of(s, table, &key).await?);
        texts.push(place::text(&key));
    }
    s.sql(
        "INSERT INTO reprocess.lease_key (shape, partition, token)
         SELECT shape, partition, $3 FROM unnest($1::bigint[], $2::text[]) AS k (shape, partition)",
    )
    .bind(shapes)
    .bind(texts)
    .bind(token)
    .execute(s.conn(), "take a lease")
    .await?;
    Ok(Some(Fence { table: table.clone(), scope: scope.clone(), token: number(token)? }))
}

/// Leases that overlap, and whether another holds them.
pub(super) const OVERLAPPING: &str = concat!(
    "SELECT l.token, NOT l.ended AND l.holder <> $5 AND l.expires_at > coalesce($6, clock_timestamp())
     FROM reprocess.lease AS l WHERE l.token IN (
         SELECT k.token FROM ",
    places!(),
    " JOIN reprocess.lease_key AS k ON ",
    at_place!(),
    ")"
);

/// Ends leases; `false` where one cannot be, since a commit that goes by it is on its way.
async fn end(s: &mut Session<'_>, tokens: Vec<i64>) -> Result<bool> {
    let wanted = signed(tokens.len())?;
    let ended = s
        .sql(
            "DELETE FROM reprocess.lease WHERE token IN (
                 SELECT token FROM reprocess.lease WHERE token = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED)",
        )
        .bind(tokens)
        .execute(s.conn(), "end leases")
        .await?;
    Ok(signed(ended)? == wanted)
}

async fn places_of(s: &mut Session<'_>, table: &TableId, scope: &Scope) -> Result<Vec<Place>> {
    let shapes = place::shapes(s, table).await?;
    let keys = scope.partitions();
    Ok(shapes.iter().flat_map(|shape| keys.iter().map(|key| shape.overlapping(key))).collect())
}

/// One that ran out and that nobody took is prolonged.
pub(super) async fn renew(
    s: &mut Session<'_>,
    fence: &Fence,
    ttl: Duration,
    now: Option<DateTime<Utc>>,
) -> Result<bool> {
    let done = s
        .sql(
            "UPDATE reprocess.lease
             SET expires_at = coalesce($3, clock_timestamp()) + $4 * interval '1 microsecond'
             WHERE token = $1 AND table_id = $2 AND NOT ended",
        )
        .bind(signed(fence.token)?)
        .bind(fence.table.as_str())
        .bind(now)
        .bind(ttl_us(ttl))
        .execute(s.conn(), "prolong a lease")
        .await?;
    Ok(done == 1)
}

pub(super) async fn release(s: &mut Session<'_>, fence: &Fence) -> Result<()> {
    s.sql("UPDATE reprocess.lease SET ended = true WHERE token = $1 AND table_id = $2")
        .bind(signed(fence.token)?)
        .bind(fence.table.as_str())
        .execute(s.conn(), "end a lease")
        .await?;
    Ok(())
}

/// Whether the lease was given, and no later one overlaps it: that would have removed it.
pub(super) async fn is_current(s: &mut Session<'_>, fence: &Fence) -> Result<bool> {
    let found: Option<(i64,)> = s
        .sql("SELECT token FROM reprocess.lease WHERE token = $1 AND table_id = $2")
        .bind(signed(fence.token)?)
        .bind(fence.table.as_str())
        .first(s.conn(), "check a fence")
        .await?;
    Ok(found.is_some())
}

/// The same, and it stays so until the transaction ends. It can be prolonged and ended meanwhile.
pub(super) async fn hold(s: &mut Session<'_>, fence: &Fence) -> Result<bool> {
    let found: Option<(i64,)> = s
        .sql("SELECT token FROM reprocess.lease WHERE token = $1 AND table_id = $2 FOR KEY SHARE")
        .bind(signed(fence.token)?)
        .bind(fence.table.as_str())
        .first(s.conn(), "check a fence")
        .await?;
    Ok(found.is_some())
}
