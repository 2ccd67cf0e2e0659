//! Recording commits.

use reprocess_core::ports::ledger::{TaskState, rules};
use reprocess_core::ports::writer::{Commit, CommitEntry};
use reprocess_core::{Error, ErrorKind, Result};

use super::row::{from_word, number};
use super::{Session, backfill, delivery, run, stale, task};

/// State and attempt of the task of an entry, which stay until the transaction ends.
async fn task_of(s: &mut Session<'_>, entry: &CommitEntry) -> Result<Option<(TaskState, u32)>> {
    let Some((id, generation, task)) = &entry.finish.task else { return Ok(None) };
    let found: Option<(String, i64)> = s
        .sql(
            "SELECT state, attempt FROM reprocess.task
             WHERE backfill = $1 AND generation = $2 AND no = $3 FOR NO KEY UPDATE",
        )
        .bind(id.as_str())
        .bind(*generation)
        .bind(task.0)
        .first(s.conn(), "look for the task of a commit")
        .await?;
    found.map(|(state, attempt)| Ok((from_word(&state)?, number(attempt)?))).transpose()
}

/// Refuses an entry whose task has passed to a later attempt or generation, or was stopped. For a transaction that has
/// not committed the data yet.
pub(super) async fn refuse_passed_on(s: &mut Session<'_>, entry: &CommitEntry) -> Result<()> {
    let Some((state, attempt)) = task_of(s, entry).await? else { return Ok(()) };
    let Some((id, generation, task)) = &entry.finish.task else { return Ok(()) };
    if state == TaskState::Committed {
        return Ok(());
    }
    let latest = backfill::latest(s, id).await?.map_or(*generation, |(latest, _, _)| latest);
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
pub(super) async fn record(s: &mut Session<'_>, commit: &Commit, entry: &CommitEntry) -> Result<()> {
    let finish = &entry.finish;
    let mut last = None;
    for record in &finish.records {
        let position = run::upsert(s, &rules::fill(record.clone(), commit, entry)).await?;
        if position.is_some() {
            stale::clear(s, &record.table, &record.partition, &record.run, finish.pinned_at).await?;
            last = position;
        }
    }
    // The same again has no new row, and must not make stale what ran since.
    if let (Some(position), Some(record)) = (last, finish.records.first()) {
        for partition in &finish.stale {
            stale::mark(s, partition, &record.run, position).await?;
        }
        for (because, position) in stale::missed(s, finish, &record.run).await? {
            for record in &finish.records {
                let own = (record.job.clone(), record.table.clone(), record.partition.clone());
                stale::mark(s, &own, &because, position).await?;
            }
        }
    }
    let ended = finish.records.iter().map(|record| record.finished_at).max();
    let attempt = rules::committed_attempt(commit, entry);
    delivery::commit(s, &entry.stamp, attempt, finish.deliver, ended).await?;
    delivery::announce_commit(s, &finish.records, &finish.announce).await?;
    commit_task(s, entry).await
}

/// What is committed is committed, whatever became of the task meanwhile.
async fn commit_task(s: &mut Session<'_>, entry: &CommitEntry) -> Result<()> {
    let Some((before, _)) = task_of(s, entry).await? else { return Ok(()) };
    let Some((id, generation, task)) = &entry.finish.task else { return Ok(()) };
    let ended = entry.finish.records.iter().map(|record| record.finished_at).max();
    s.sql(
        "UPDATE reprocess.task SET state = 'committed', note = NULL, expires_at = NULL,
             finished_at = CASE WHEN state = 'claimed' THEN coalesce($4, started_at) ELSE finished_at END
         WHERE backfill = $1 AND generation = $2 AND no = $3",
    )
    .bind(id.as_str())
    .bind(*generation)
    .bind(task.0)
    .bind(ended)
    .execute(s.conn(), "record a task as committed")
    .await?;
    match ended {
        Some(ended) if !before.is_success() => {
            task::follow(s, id, *generation, *task, TaskState::Committed, ended).await
        }
        _ => Ok(()),
    }
}
