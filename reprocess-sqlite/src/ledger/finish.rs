//! Recording commits.

use reprocess_core::ports::ledger::{TaskState, rules};
use reprocess_core::ports::writer::{Commit, CommitEntry};
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::SqliteConnection;

use super::row::{from_word, micros};
use super::{backfill, delivery, run, stale, task};
use crate::error::Doing;

/// Refuses an entry whose task has passed to a later attempt or generation, or was stopped. For a transaction that has
/// not committed the data yet.
pub(super) async fn refuse_passed_on(conn: &mut SqliteConnection, entry: &CommitEntry) -> Result<()> {
    let Some((id, generation, task)) = &entry.finish.task else { return Ok(()) };
    let found: Option<(String, u32)> = sqlx::query_as(
        "SELECT state, attempt FROM reprocess_task WHERE backfill = ? AND generation = ? AND no = ?",
    )
    .bind(id.as_str())
    .bind(*generation)
    .bind(task.0)
    .fetch_optional(&mut *conn)
    .await
    .doing("look for the task of a commit")?;
    let Some((state, attempt)) = found else { return Ok(()) };
    let state: TaskState = from_word(&state)?;
    if state == TaskState::Committed {
        return Ok(());
    }
    let latest = backfill::latest(conn, id).await?.map_or(*generation, |(latest, _, _)| latest);
    let message = if attempt > entry.attempt {
        format!("the claim has passed to attempt {attempt}")
    } else if latest > *generation {
        format!("the backfill was opened again, in generation {latest}")
    } else if state == TaskState::Cancelled {
        "the task was cancelled".to_owned()
    } else {
        return Ok(());
    };
    let error = Error::new(ErrorKind::State, message).with_context("task", task).with_context("backfill", id);
    Err(error.with_context("attempt", entry.attempt).with_advice("nothing was committed by this attempt"))
}

/// Records one entry of a commit.
pub(super) async fn record(conn: &mut SqliteConnection, commit: &Commit, entry: &CommitEntry) -> Result<()> {
    let finish = &entry.finish;
    let mut last = None;
    for record in &finish.records {
        let position = run::upsert(conn, &rules::fill(record.clone(), commit, entry)).await?;
        if position.is_some() {
            stale::clear(conn, &record.table, &record.partition, &record.run, finish.pinned_at).await?;
            last = position;
        }
    }
    // The same again has no new row, and must not make stale what ran since.
    if let (Some(position), Some(record)) = (last, finish.records.first()) {
        for partition in &finish.stale {
            stale::mark(conn, partition, &record.run, position).await?;
        }
        for (because, position) in stale::missed(conn, finish, &record.run).await? {
            for record in &finish.records {
                let own = (record.job.clone(), record.table.clone(), record.partition.clone());
                stale::mark(conn, &own, &because, position).await?;
            }
        }
    }
    let ended = finish.records.iter().map(|record| record.finished_at).max();
    let attempt = rules::committed_attempt(commit, entry);
    delivery::commit(conn, &entry.stamp, attempt, finish.deliver, ended).await?;
    delivery::announce_commit(conn, &finish.records, &finish.announce).await?;
    commit_task(conn, entry).await
}

/// What is committed is committed, whatever became of the task meanwhile.
async fn commit_task(conn: &mut SqliteConnection, entry: &CommitEntry) -> Result<()> {
    let Some((id, generation, task)) = &entry.finish.task else { return Ok(()) };
    let state: Option<String> = sqlx::query_scalar(
        "SELECT state FROM reprocess_task WHERE backfill = ? AND generation = ? AND no = ?",
    )
    .bind(id.as_str())
    .bind(*generation)
    .bind(task.0)
    .fetch_optional(&mut *conn)
    .await
    .doing("look for the task of a commit")?;
    let Some(before) = state.as_deref().map(from_word::<TaskState>).transpose()? else { return Ok(()) };
    let ended = entry.finish.records.iter().map(|record| record.finished_at).max();
    sqlx::query(
        "UPDATE reprocess_task SET state = 'committed', note = NULL, expires_us = NULL,
             finished_us = CASE WHEN state = 'claimed' THEN coalesce(?4, started_us) ELSE finished_us END
         WHERE backfill = ?1 AND generation = ?2 AND no = ?3",
    )
    .bind(id.as_str())
    .bind(*generation)
    .bind(task.0)
    .bind(ended.map(micros))
    .execute(&mut *conn)
    .await
    .doing("record a task as committed")?;
    match ended {
        Some(ended) if !before.is_success() => {
            task::follow(conn, id, *generation, *task, TaskState::Committed, ended).await
        }
        _ => Ok(()),
    }
}
