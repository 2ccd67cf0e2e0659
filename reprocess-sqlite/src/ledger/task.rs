//! Claiming tasks and leaving them.

use std::time::Duration;

use chrono::{DateTime, Utc};
use reprocess_core::Result;
use reprocess_core::domain::ids::{BackfillId, JobName, LogicVersion, WorkerId};
use reprocess_core::domain::plan::TaskId;
use reprocess_core::ports::ledger::{
    BackfillState, Claim, Leave, Progress, RunRecord, RunStatus, StateChange, TaskRecord, TaskResult,
    TaskState,
};
use reprocess_core::ports::writer::StampId;
use sqlx::SqliteConnection;

use super::row::{from_word, instant, json, micros, micros_after, number, parsed};
use super::{backfill, delivery, run};
use crate::error::Doing;

/// Who claims what.
#[derive(Debug)]
pub(super) struct Wish<'a> {
    pub(super) worker: &'a WorkerId,
    pub(super) can_run: &'a [(JobName, LogicVersion)],
    pub(super) limit: u32,
    pub(super) ttl: Duration,
}

pub(super) async fn claim(
    conn: &mut SqliteConnection,
    id: &BackfillId,
    wish: &Wish<'_>,
    now: DateTime<Utc>,
) -> Result<Vec<Claim>> {
    let (generation, state) = backfill::known(conn, id).await?;
    if !state.runs_tasks() {
        return Ok(Vec::new());
    }
    let free: Vec<u32> = sqlx::query_scalar(FREE)
        .bind(id.as_str())
        .bind(generation)
        .bind(micros(now))
        .bind(json(wish.can_run)?)
        .bind(room(conn, id, generation, now).await?.min(i64::from(wish.limit)))
        .bind(state == BackfillState::Propagating)
        .fetch_all(&mut *conn)
        .await
        .doing("look for free tasks")?;
    let mut claims = Vec::with_capacity(free.len());
    for task in free {
        claims.push(take(conn, id, generation, TaskId(task), wish, now).await?);
    }
    Ok(claims)
}

/// Tasks that are pending, or whose claim ran out, with nothing before them that is in their way.
pub(super) const FREE: &str = "
    SELECT no FROM (
        SELECT no, job, logic, after_publication FROM reprocess_task
        WHERE backfill = ?1 AND generation = ?2 AND state = 'pending' AND waiting = 0
        UNION ALL
        SELECT no, job, logic, after_publication FROM reprocess_task INDEXED BY reprocess_task_claimed
        WHERE backfill = ?1 AND generation = ?2 AND state = 'claimed' AND expires_us <= ?3 AND waiting = 0
    ) AS free
    WHERE EXISTS (SELECT 1 FROM json_each(?4) AS can
                  WHERE can.value ->> 0 = free.job AND can.value ->> 1 = free.logic)
        AND (after_publication = 0 OR ?6)
    ORDER BY no LIMIT ?5";

/// How many more tasks may be claimed.
async fn room(
    conn: &mut SqliteConnection,
    id: &BackfillId,
    generation: u32,
    now: DateTime<Utc>,
) -> Result<i64> {
    sqlx::query_scalar(
        "SELECT CASE WHEN b.paused_by IS NOT NULL THEN 0 ELSE max(0, b.concurrency - (
             SELECT count(*) FROM reprocess_task AS t
             WHERE t.backfill = b.id AND t.generation = b.generation
               AND t.state = 'claimed' AND t.expires_us > ?3)) END
         FROM reprocess_backfill AS b WHERE b.id = ?1 AND b.generation = ?2",
    )
    .bind(id.as_str())
    .bind(generation)
    .bind(micros(now))
    .fetch_one(conn)
    .await
    .doing("count claimed tasks")
}

async fn take(
    conn: &mut SqliteConnection,
    id: &BackfillId,
    generation: u32,
    task: TaskId,
    wish: &Wish<'_>,
    now: DateTime<Utc>,
) -> Result<Claim> {
    let (attempt, queued): (u32, i64) = sqlx::query_as(
        "UPDATE reprocess_task
         SET state = 'claimed', attempt = attempt + 1, worker = ?4, expires_us = ?5, started_us = ?6,
             finished_us = NULL, note = NULL
         WHERE backfill = ?1 AND generation = ?2 AND no = ?3
         RETURNING attempt, queued_us",
    )
    .bind(id.as_str())
    .bind(generation)
    .bind(task.0)
    .bind(wish.worker.as_str())
    .bind(micros_after(now, wish.ttl))
    .bind(micros(now))
    .fetch_one(conn)
    .await
    .doing("claim a task")?;
    Ok(Claim {
        backfill: id.clone(),
        generation,
        task,
        attempt,
        worker: wish.worker.clone(),
        queued_at: instant(queued)?,
        started_at: now,
    })
}

/// One that ran out and that nobody took is prolonged.
pub(super) async fn renew(
    conn: &mut SqliteConnection,
    claim: &Claim,
    ttl: Duration,
    now: DateTime<Utc>,
) -> Result<bool> {
    let done = sqlx::query(
        "UPDATE reprocess_task SET expires_us = ?5
         WHERE backfill = ?1 AND generation = ?2 AND no = ?3 AND state = 'claimed' AND attempt = ?4",
    )
    .bind(claim.backfill.as_str())
    .bind(claim.generation)
    .bind(claim.task.0)
    .bind(claim.attempt)
    .bind(micros_after(now, ttl))
    .execute(conn)
    .await
    .doing("prolong a claim")?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn note_staged(
    conn: &mut SqliteConnection,
    claim: &Claim,
    result: &TaskResult,
) -> Result<bool> {
    let done = sqlx::query(
        "UPDATE reprocess_task SET result = ?5
         WHERE backfill = ?1 AND generation = ?2 AND no = ?3 AND state = 'claimed' AND attempt = ?4",
    )
    .bind(claim.backfill.as_str())
    .bind(claim.generation)
    .bind(claim.task.0)
    .bind(claim.attempt)
    .bind(json(result)?)
    .execute(conn)
    .await
    .doing("note what a task staged")?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn leave(
    conn: &mut SqliteConnection,
    claim: &Claim,
    how: Leave,
    now: DateTime<Utc>,
) -> Result<bool> {
    let noted: Option<Option<String>> = sqlx::query_scalar(
        "SELECT result FROM reprocess_task
         WHERE backfill = ?1 AND generation = ?2 AND no = ?3 AND state = 'claimed' AND attempt = ?4",
    )
    .bind(claim.backfill.as_str())
    .bind(claim.generation)
    .bind(claim.task.0)
    .bind(claim.attempt)
    .fetch_optional(&mut *conn)
    .await
    .doing("look for a claim")?;
    let Some(noted) = noted else { return Ok(false) };
    match how {
        Leave::Pending { note } => end(conn, claim, TaskState::Pending, Some(&note), noted, now).await?,
        Leave::Staged(result) => {
            end(conn, claim, TaskState::Staged, None, Some(json(&*result)?), now).await?;
        }
        Leave::Skipped { note } => {
            end(conn, claim, TaskState::Skipped, Some(&note), None, now).await?;
            if let Some(stamp) = stamp_of(noted.as_deref())? {
                delivery::withdraw_stamp(conn, &stamp, now).await?;
            }
        }
        Leave::Failed { note, records } => {
            end(conn, claim, TaskState::Failed, Some(&note), noted, now).await?;
            record_failed(conn, &records).await?;
        }
    }
    Ok(true)
}

/// Writes rows of runs that failed for good.
pub(super) async fn record_failed(conn: &mut SqliteConnection, records: &[RunRecord]) -> Result<()> {
    for record in records {
        let mut failed = record.clone();
        failed.status = RunStatus::Failed;
        run::upsert(conn, &failed).await?;
    }
    Ok(())
}

async fn end(
    conn: &mut SqliteConnection,
    claim: &Claim,
    state: TaskState,
    note: Option<&str>,
    result: Option<String>,
    now: DateTime<Utc>,
) -> Result<()> {
    sqlx::query(
        "UPDATE reprocess_task SET state = ?4, note = ?5, result = ?6, finished_us = ?7, expires_us = NULL
         WHERE backfill = ?1 AND generation = ?2 AND no = ?3",
    )
    .bind(claim.backfill.as_str())
    .bind(claim.generation)
    .bind(claim.task.0)
    .bind(state.name())
    .bind(note)
    .bind(result)
    .bind(micros(now))
    .execute(&mut *conn)
    .await
    .doing("leave a task")?;
    follow(conn, &claim.backfill, claim.generation, claim.task, state, now).await
}

/// What the end of a task does to those after it: they have become ready, or are blocked.
pub(super) async fn follow(
    conn: &mut SqliteConnection,
    id: &BackfillId,
    generation: u32,
    ended: TaskId,
    state: TaskState,
    now: DateTime<Utc>,
) -> Result<()> {
    if state.is_success() {
        sqlx::query(
            "UPDATE reprocess_task SET queued_us = ?4
             WHERE backfill = ?1 AND generation = ?2 AND state = 'pending' AND waiting = 0 AND no IN (
                 SELECT no FROM reprocess_task_after
                 WHERE backfill = ?1 AND generation = ?2 AND before = ?3)",
        )
        .bind(id.as_str())
        .bind(generation)
        .bind(ended.0)
        .bind(micros(now))
        .execute(conn)
        .await
        .doing("queue the tasks after one")?;
    } else if state == TaskState::Failed {
        sqlx::query(
            "WITH RECURSIVE later (no) AS (
                 SELECT no FROM reprocess_task_after
                 WHERE backfill = ?1 AND generation = ?2 AND before = ?3
                 UNION
                 SELECT a.no FROM later JOIN reprocess_task_after AS a
                 ON a.backfill = ?1 AND a.generation = ?2 AND a.before = later.no)
             UPDATE reprocess_task SET state = 'blocked', note = ?4
             WHERE backfill = ?1 AND generation = ?2 AND state = 'pending' AND no IN (SELECT no FROM later)",
        )
        .bind(id.as_str())
        .bind(generation)
        .bind(ended.0)
        .bind(format!("task {ended} before it failed"))
        .execute(conn)
        .await
        .doing("block the tasks after one")?;
    }
    Ok(())
}

/// The tasks and all that wait for them.
pub(super) async fn with_later(
    conn: &mut SqliteConnection,
    id: &BackfillId,
    tasks: &[TaskId],
) -> Result<Vec<TaskId>> {
    let (generation, _) = backfill::known(conn, id).await?;
    let found: Vec<u32> = sqlx::query_scalar(
        "WITH RECURSIVE later (no) AS (
             SELECT value FROM json_each(?3)
             UNION
             SELECT a.no FROM later JOIN reprocess_task_after AS a
             ON a.backfill = ?1 AND a.generation = ?2 AND a.before = later.no)
         SELECT no FROM later ORDER BY no",
    )
    .bind(id.as_str())
    .bind(generation)
    .bind(json(tasks)?)
    .fetch_all(conn)
    .await
    .doing("look for the tasks after some")?;
    Ok(found.into_iter().map(TaskId).collect())
}

/// What was staged is given up.
pub(super) async fn unstage(
    conn: &mut SqliteConnection,
    id: &BackfillId,
    tasks: &[TaskId],
    becomes: TaskState,
    change: &StateChange,
    now: DateTime<Utc>,
) -> Result<()> {
    let (generation, _) = backfill::known(conn, id).await?;
    for task in tasks {
        let noted: Option<String> = sqlx::query_scalar(
            "SELECT result FROM reprocess_task
             WHERE backfill = ? AND generation = ? AND no = ? AND state = 'staged'",
        )
        .bind(id.as_str())
        .bind(generation)
        .bind(task.0)
        .fetch_optional(&mut *conn)
        .await
        .doing("look for a staged task")?;
        let Some(noted) = noted else { continue };
        sqlx::query(
            "UPDATE reprocess_task SET state = ?6, result = NULL, note = ?5,
                 queued_us = CASE WHEN ?6 = 'pending' THEN ?4 ELSE queued_us END
             WHERE backfill = ?1 AND generation = ?2 AND no = ?3",
        )
        .bind(id.as_str())
        .bind(generation)
        .bind(task.0)
        .bind(micros(now))
        .bind(change.note.as_deref())
        .bind(becomes.name())
        .execute(&mut *conn)
        .await
        .doing("give up what a task staged")?;
        if let Some(stamp) = stamp_of(Some(&noted))? {
            delivery::withdraw_stamp(conn, &stamp, now).await?;
        }
    }
    Ok(())
}

fn stamp_of(result: Option<&str>) -> Result<Option<StampId>> {
    let result: Option<TaskResult> = result.map(parsed).transpose()?;
    Ok(result.and_then(|result| result.staged).map(|staged| staged.id.stamp))
}

pub(super) async fn records(conn: &mut SqliteConnection, id: &BackfillId) -> Result<Vec<TaskRecord>> {
    type Row =
        (u32, String, u32, i64, Option<i64>, Option<i64>, Option<String>, Option<String>, Option<String>);
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT no, state, attempt, queued_us, started_us, finished_us, worker, result, note
         FROM reprocess_task
         WHERE backfill = ?1
           AND generation = (SELECT max(generation) FROM reprocess_backfill WHERE id = ?1)
         ORDER BY no",
    )
    .bind(id.as_str())
    .fetch_all(conn)
    .await
    .doing("read tasks")?;
    let record = |(no, state, attempt, queued, started, finished, worker, result, note): Row| {
        let mut record = TaskRecord::new(TaskId(no), instant(queued)?);
        record.state = from_word(&state)?;
        record.attempt = attempt;
        record.started_at = started.map(instant).transpose()?;
        record.finished_at = finished.map(instant).transpose()?;
        record.worker = worker.map(WorkerId::new);
        record.result = result.as_deref().map(parsed).transpose()?;
        record.note = note;
        Ok(record)
    };
    rows.into_iter().map(record).collect()
}

pub(super) const PROGRESS: &str = "
    SELECT state, count(*), count(finished_us - started_us), sum(max(0, finished_us - started_us) / 1000)
    FROM reprocess_task
    WHERE backfill = ?1 AND generation = (SELECT max(generation) FROM reprocess_backfill WHERE id = ?1)
    GROUP BY state";

pub(super) async fn progress(conn: &mut SqliteConnection, id: &BackfillId) -> Result<Progress> {
    let rows: Vec<(String, i64, i64, Option<i64>)> = sqlx::query_as(PROGRESS)
        .bind(id.as_str())
        .fetch_all(conn)
        .await
        .doing("count the tasks of a backfill")?;
    let mut progress = Progress::default();
    for (state, tasks, timed, busy) in rows {
        let state: TaskState = from_word(&state)?;
        progress.tasks.insert(state, number(tasks)?);
        // Only these have an end that stays.
        if state.is_success() || state == TaskState::Failed {
            progress.timed += number::<u64>(timed)?;
            progress.busy_ms += number::<u64>(busy.unwrap_or(0))?;
        }
    }
    Ok(progress)
}
