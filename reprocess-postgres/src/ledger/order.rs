//! The one order of what the ledger is told.
//!
//! A run notes the position of the ledger when its inputs are pinned, and what happened up to there it has seen. So a
//! position may not become visible while a smaller one is still on its way: who writes rows holds the lock until its
//! transaction ends. Numbers are given under the lock, without gaps.

use reprocess_core::{Error, Result};

use super::Session;

/// Waits until nobody else writes what is ordered. A statement of its own, so that the next ones see what he wrote;
/// under a stricter level than READ COMMITTED, which a host may have begun, they would not.
pub(super) async fn lock(s: &mut Session<'_>) -> Result<()> {
    let lock =
        s.sql("SELECT current_setting('transaction_isolation') FROM reprocess.ledger FOR NO KEY UPDATE");
    let (level,): (String,) = lock.one(s.conn(), "wait for its turn to write the ledger").await?;
    if level != "read committed" {
        return Err(Error::invalid(format!("a commit cannot be recorded in a transaction that is {level}"))
            .with_advice("begin it with ISOLATION LEVEL READ COMMITTED"));
    }
    Ok(())
}

/// The position of the next row.
pub(super) async fn next(s: &mut Session<'_>) -> Result<i64> {
    let next = s.sql("UPDATE reprocess.ledger SET position = position + 1 RETURNING position");
    let (position,) = next.one(s.conn(), "give a row its position").await?;
    Ok(position)
}

/// The position of the last row.
pub(super) async fn last(s: &mut Session<'_>) -> Result<i64> {
    let last = s.sql("SELECT position FROM reprocess.ledger");
    let (position,) = last.one(s.conn(), "read the position of the ledger").await?;
    Ok(position)
}
