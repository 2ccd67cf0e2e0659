//! Leases on scopes of tables.

use std::time::Duration;

use chrono::{DateTime, Utc};
use reprocess_core::Result;
use reprocess_core::domain::ids::{TableId, WorkerId};
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::ledger::Fence;
use sqlx::SqliteConnection;

use super::place;
use super::row::{json, micros, micros_after, number, signed};
use crate::error::Doing;

pub(super) async fn acquire(
    conn: &mut SqliteConnection,
    table: &TableId,
    scope: &Scope,
    holder: &WorkerId,
    ttl: Duration,
    now: DateTime<Utc>,
) -> Result<Option<Fence>> {
    let overlapping: Vec<(i64, bool)> = sqlx::query_as(OVERLAPPING)
        .bind(places(conn, table, scope).await?)
        .bind(holder.as_str())
        .bind(micros(now))
        .fetch_all(&mut *conn)
        .await
        .doing("look for leases")?;
    if overlapping.iter().any(|(_, held)| *held) {
        return Ok(None);
    }
    let void: Vec<i64> = overlapping.into_iter().map(|(token, _)| token).collect();
    sqlx::query("DELETE FROM reprocess_lease WHERE token IN (SELECT value FROM json_each(?))")
        .bind(json(&void)?)
        .execute(&mut *conn)
        .await
        .doing("end leases")?;
    let token: i64 = sqlx::query_scalar(
        "INSERT INTO reprocess_lease (table_id, holder, ended, expires_us) VALUES (?, ?, 0, ?) RETURNING token",
    )
    .bind(table.as_str())
    .bind(holder.as_str())
    .bind(micros_after(now, ttl))
    .fetch_one(&mut *conn)
    .await
    .doing("take a lease")?;
    for key in scope.partitions() {
        sqlx::query("INSERT INTO reprocess_lease_key (shape, partition, token) VALUES (?, ?, ?)")
            .bind(place::shape_of(conn, table, &key).await?)
            .bind(place::text(&key))
            .bind(token)
            .execute(&mut *conn)
            .await
            .doing("take a lease")?;
    }
    Ok(Some(Fence { table: table.clone(), scope: scope.clone(), token: number(token)? }))
}

/// Leases that overlap, and whether another holds them.
pub(super) const OVERLAPPING: &str = "
    SELECT DISTINCT l.token, l.ended = 0 AND l.holder <> ?2 AND l.expires_us > ?3
    FROM json_each(?1) AS p CROSS JOIN reprocess_lease_key AS k
    ON k.shape = p.value ->> 'shape'
        AND k.partition >= p.value ->> 'from' AND k.partition < p.value ->> 'until'
    CROSS JOIN reprocess_lease AS l ON l.token = k.token
    WHERE NOT EXISTS (
        SELECT 1 FROM json_each(p.value, '$.segments') AS s WHERE instr('/' || k.partition || '/', s.value) = 0)";

async fn places(conn: &mut SqliteConnection, table: &TableId, scope: &Scope) -> Result<String> {
    let shapes = place::shapes(conn, table).await?;
    let keys = scope.partitions();
    let places: Vec<_> =
        shapes.iter().flat_map(|shape| keys.iter().map(|key| shape.overlapping(key))).collect();
    json(&places)
}

/// One that ran out and that nobody took is prolonged.
pub(super) async fn renew(
    conn: &mut SqliteConnection,
    fence: &Fence,
    ttl: Duration,
    now: DateTime<Utc>,
) -> Result<bool> {
    let done = sqlx::query(
        "UPDATE reprocess_lease SET expires_us = ?3 WHERE token = ?1 AND table_id = ?2 AND ended = 0",
    )
    .bind(signed(fence.token)?)
    .bind(fence.table.as_str())
    .bind(micros_after(now, ttl))
    .execute(conn)
    .await
    .doing("prolong a lease")?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn release(conn: &mut SqliteConnection, fence: &Fence) -> Result<()> {
    sqlx::query("UPDATE reprocess_lease SET ended = 1 WHERE token = ? AND table_id = ?")
        .bind(signed(fence.token)?)
        .bind(fence.table.as_str())
        .execute(conn)
        .await
        .doing("end a lease")?;
    Ok(())
}

/// Whether the lease was given, and no later one overlaps it: that would have removed it.
pub(super) async fn is_current(conn: &mut SqliteConnection, fence: &Fence) -> Result<bool> {
    sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM reprocess_lease WHERE token = ? AND table_id = ?)")
        .bind(signed(fence.token)?)
        .bind(fence.table.as_str())
        .fetch_one(conn)
        .await
        .doing("check a fence")
}
