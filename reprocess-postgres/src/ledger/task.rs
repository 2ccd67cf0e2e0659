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

use super::row::{from_word, json, number, parsed, shown, ttl_us};
use super::{Session, backfill, delivery, order, run};
use crate::sql::Statement;

/// Who claims what.
#[derive(Debug)]
pub(super) struct Wish<'a> {
    pub(super) worker: &'a WorkerId,
    pub(super) can_run: &'a [(JobName, LogicVersion)],
    pub(super) limit: u32,
    pub(super) ttl: Duration,
    /// When it is claimed.
    pub(super) now: DateTime<Utc>,
    /// What decides which claims have run out; `None` for the clock of the server.
    pub(super) deciding: Option<DateTime<Utc>>,
}

pub(super) async fn claim(s: &mut Session<'_>, id: &BackfillId, wish: &Wish<'_>) -> Result<Vec<Claim>> {
    // Claims of one backfill wait for each other here, so that they count together.
    let (generation, state) = backfill::locked(s, id).await?;
    if !state.runs_tasks() {
        return Ok(Vec::new());
    }
    let room = room(s, id, generation, wish.deciding).await?.min(i64::from(wish.limit));
    if room <= 0 {
        return Ok(Vec::new());
    }
    let mut taken: Vec<(i64, i64, DateTime<Utc>)> = s
        .sql(TAKE)
        .bind(id.as_str())
        .bind(generation)
        .bind(wish.deciding)
        .bind(wish.can_run.iter().map(|(job, _)| job.as_str().to_owned()).collect::<Vec<_>>())
        .bind(wish.can_run.iter().map(|(_, logic)| logic.as_str().to_owned()).collect::<Vec<_>>())
        .bind(room)
        .bind(wish.worker.as_str())
        .bind(wish.now)
        .bind(ttl_us(wish.ttl))
        .bind(state == BackfillState::Propagating)
        .all(s.conn(), "claim tasks")
        .await?;
    taken.sort_by_key(|(task, _, _)| *task);
    let claim = |(task, attempt, queued_at)| {
        Ok(Claim {
            backfill: id.clone(),
            generation,
            task: TaskId(number(task)?),
            attempt: number(attempt)?,
            worker: wish.worker.clone(),
            queued_at,
            started_at: wish.now,
        })
    };
    taken.into_iter().map(claim).collect()
}

/// Tasks that are pending, or whose claim ran out, with nothing before them that is in their way. Those that a commit on its way has locked
/// are passed over.
pub(super) const TAKE: &str = "
    WITH can AS (SELECT job, logic FROM unnest($4::text[], $5::text[]) AS can (job, logic)),
    expired AS MATERIALIZED (
        SELECT t.no FROM reprocess.task AS t
        WHERE t.backfill = $1 AND t.generation = $2 AND t.state = 'claimed' AND t.waiting = 0
            AND t.expires_at <= coalesce($3, clock_timestamp()) AND (t.job, t.logic) IN (SELECT job, logic FROM can)
            AND ($10 OR NOT t.after_publication)
        ORDER BY t.no LIMIT $6 FOR NO KEY UPDATE SKIP LOCKED),
    pending AS MATERIALIZED (
        SELECT t.no FROM reprocess.task AS t
        WHERE t.backfill = $1 AND t.generation = $2 AND t.state = 'pending' AND t.waiting = 0
            AND (t.job, t.logic) IN (SELECT job, logic FROM can)
            AND ($10 OR NOT t.after_publication)
        ORDER BY t.no LIMIT $6 FOR NO KEY UPDATE SKIP LOCKED),
    free AS (SELECT no FROM expired UNION ALL SELECT no FROM pending ORDER BY no LIMIT $6)
    UPDATE reprocess.task AS t
    SET state = 'claimed', attempt = attempt + 1, worker = $7, started_at = $8,
        expires_at = coalesce($3, clock_timestamp()) + $9 * interval '1 microsecond', finished_at = NULL, note = NULL
    FROM free WHERE t.backfill = $1 AND t.generation = $2 AND t.no = free.no
    RETURNING t.no, t.attempt, t.queued_at";

/// How many more tasks may be claimed.
async fn room(
    s: &mut Session<'_>,
    id: &BackfillId,
    generation: u32,
    deciding: Option<DateTime<Utc>>,
) -> Result<i64> {
    let (room,) = s
        .sql(
            "SELECT CASE WHEN b.paused_by IS NOT NULL THEN 0 ELSE b.concurrency - (
                 SELECT count(*) FROM reprocess.task AS t
                 WHERE t.backfill = b.id AND t.generation = b.generation
                   AND t.state = 'claimed' AND t.expires_at > coalesce($3, clock_timestamp())) END
             FROM reprocess.backfill AS b WHERE b.id = $1 AND b.generation = $2",
        )
        .bind(id.as_str())
        .bind(generation)
        .bind(deciding)
        .one(s.conn(), "count claimed tasks")
        .await?;
    Ok(room)
}

/// A statement about a claim that nobody has taken over: `$1` to `$4` are its own.
fn of_claim(s: &Session<'_>, claim: &Claim, verb: &str, rest: &str) -> Statement {
    s.sql(&format!(
        "{verb} WHERE backfill = $1 AND generation = $2 AND no = $3 AND state = 'claimed' AND attempt = $4 {rest}"
    ))
    .bind(claim.backfill.as_str())
    .bind(claim.generation)
    .bind(claim.task.0)
    .bind(claim.attempt)
}

/// One that ran out and that nobody took is prolonged.
pub(super) async fn renew(
    s: &mut Session<'_>,
    claim: &Claim,
    ttl: Duration,
    deciding: Option<DateTime<Utc>>,
) -> Result<bool> {
    let verb = "UPDATE reprocess.task
        SET expires_at = coalesce($5, clock_timestamp()) + $6 * interval '1 microsecond'";
    let renew = of_claim(s, claim, verb, "").bind(deciding).bind(ttl_us(ttl));
    Ok(renew.execute(s.conn(), "prolong a claim").await? == 1)
}

pub(super) async fn note_staged(s: &mut Session<'_>, claim: &Claim, result: &TaskResult) -> Result<bool> {
    let note = of_claim(s, claim, "UPDATE reprocess.task SET result = $5::json", "").bind(json(result)?);
    Ok(note.execute(s.conn(), "note what a task staged").await? == 1)
}

pub(super) async fn leave(
    s: &mut Session<'_>,
    claim: &Claim,
    how: Leave,
    now: DateTime<Utc>,
) -> Result<bool> {
    order::lock(s).await?;
    let noted: Option<(Option<String>,)> =
        of_claim(s, claim, "SELECT result::text FROM reprocess.task", "FOR NO KEY UPDATE")
            .first(s.conn(), "look for a claim")
            .await?;
    let Some((noted,)) = noted else { return Ok(false) };
    match how {
        Leave::Pending { note } => end(s, claim, TaskState::Pending, Some(&note), noted, now).await?,
        Leave::Staged(result) => {
            end(s, claim, TaskState::Staged, None, Some(json(&*result)?), now).await?;
        }
        Leave::Skipped { note } => {
            end(s, claim, TaskState::Skipped, Some(&note), None, now).await?;
            if let Some(stamp) = stamp_of(noted.as_deref())? {
                delivery::withdraw_stamp(s, &stamp, now).await?;
            }
        }
        Leave::Failed { note, records } => {
            end(s, claim, TaskState::Failed, Some(&note), noted, now).await?;
            record_failed(s, &records).await?;
        }
    }
    Ok(true)
}

/// Writes rows of runs that failed for good.
pub(super) async fn record_failed(s: &mut Session<'_>, records: &[RunRecord]) -> Result<()> {
    for record in records {
        let mut failed = record.clone();
        failed.status = RunStatus::Failed;
        run::upsert(s, &failed).await?;
    }
    Ok(())
}

async fn end(
    s: &mut Session<'_>,
    claim: &Claim,
    state: TaskState,
    note: Option<&str>,
    result: Option<String>,
    now: DateTime<Utc>,
) -> Result<()> {
    let verb = "UPDATE reprocess.task
        SET state = $5, note = $6, result = $7::json, finished_at = $8, expires_at = NULL";
    of_claim(s, claim, verb, "")
        .bind(state.name())
        .bind(note.map(shown))
        .bind(result)
        .bind(now)
        .execute(s.conn(), "leave a task")
        .await?;
    follow(s, &claim.backfill, claim.generation, claim.task, state, now).await
}

/// What the end of a task does to those after it: they have become ready, or are blocked.
pub(super) async fn follow(
    s: &mut Session<'_>,
    id: &BackfillId,
    generation: u32,
    ended: TaskId,
    state: TaskState,
    now: DateTime<Utc>,
) -> Result<()> {
    if state.is_success() {
        s.sql(
            "UPDATE reprocess.task SET queued_at = $4
             WHERE backfill = $1 AND generation = $2 AND state = 'pending' AND waiting = 0 AND no IN (
                 SELECT no FROM reprocess.task_after
                 WHERE backfill = $1 AND generation = $2 AND before = $3)",
        )
        .bind(id.as_str())
        .bind(generation)
        .bind(ended.0)
        .bind(now)
        .execute(s.conn(), "queue the tasks after one")
        .await?;
    } else if state == TaskState::Failed {
        let later = with_later(s, id, generation, &[ended]).await?;
        s.sql(
            "UPDATE reprocess.task SET state = 'blocked', note = $4
             WHERE backfill = $1 AND generation = $2 AND state = 'pending' AND no = ANY ($3::bigint[])",
        )
        .bind(id.as_str())
        .bind(generation)
        .bind(later.iter().filter(|task| **task != ended).map(|task| i64::from(task.0)).collect::<Vec<_>>())
        .bind(format!("task {ended} before it failed"))
        .execute(s.conn(), "block the tasks after one")
        .await?;
    }
    Ok(())
}

/// The tasks and all that wait for them.
pub(super) async fn with_later(
    s: &mut Session<'_>,
    id: &BackfillId,
    generation: u32,
    tasks: &[TaskId],
) -> Result<Vec<TaskId>> {
    let found: Vec<(i64,)> = s
        .sql(
            "WITH RECURSIVE later (no) AS (
                 SELECT no FROM unnest($3::bigint[]) AS t (no)
                 UNION
                 SELECT a.no FROM later JOIN reprocess.task_after AS a
                 ON a.backfill = $1 AND a.generation = $2 AND a.before = later.no)
             SELECT no FROM later ORDER BY no",
        )
        .bind(id.as_str())
        .bind(generation)
        .bind(tasks.iter().map(|task| i64::from(task.0)).collect::<Vec<_>>())
        .all(s.conn(), "look for the tasks after some")
        .await?;
    found.into_iter().map(|(task,)| Ok(TaskId(number(task)?))).collect()
}

/// What was staged is given up.
pub(super) async fn unstage(
    s: &mut Session<'_>,
    id: &BackfillId,
    generation: u32,
    tasks: &[TaskId],
    becomes: TaskState,
    change: &StateChange,
    now: DateTime<Utc>,
) -> Result<()> {
    for task in tasks {
        let noted: Option<(String,)> = s
            .sql(
                "SELECT result::text FROM reprocess.task
                 WHERE backfill = $1 AND generation = $2 AND no = $3 AND state = 'staged' FOR NO KEY UPDATE",
            )
            .bind(id.as_str())
            .bind(generation)
            .bind(task.0)
            .first(s.conn(), "look for a staged task")
            .await?;
        let Some((noted,)) = noted else { continue };
        s.sql(
            "UPDATE reprocess.task SET state = $4, result = NULL, note = $5,
                 queued_at = CASE WHEN $4 = 'pending' THEN $6 ELSE queued_at END
             WHERE backfill = $1 AND generation = $2 AND no = $3",
        )
        .bind(id.as_str())
        .bind(generation)
        .bind(task.0)
        .bind(becomes.name())
        .bind(change.note.as_deref().map(shown))
        .bind(now)
        .execute(s.conn(), "give up what a task staged")
        .await?;
        if let Some(stamp) = stamp_of(Some(&noted))? {
            delivery::withdraw_stamp(s, &stamp, now).await?;
        }
    }
    Ok(())
}

fn stamp_of(result: Option<&str>) -> Result<Option<StampId>> {
    let result: Option<TaskResult> = result.map(parsed).transpose()?;
    Ok(result.and_then(|result| result.staged).map(|staged| staged.id.stamp))
}

pub(super) async fn records(s: &mut Session<'_>, id: &BackfillId) -> Result<Vec<TaskRecord>> {
    type Row = (
        i64,
        String,
        i64,
        DateTime<Utc>,
        Option<DateTime<Utc>>,
        Option<DateTime<Utc>>,
        Option<String>,
        Option<String>,
        Option<String>,
    );
    let rows: Vec<Row> = s
        .sql(
            "SELECT no, state, attempt, queued_at, started_at, finished_at, worker, result::text, note
             FROM reprocess.task
             WHERE backfill = $1
               AND generation = (SELECT max(generation) FROM reprocess.backfill WHERE id = $1)
             ORDER BY no",
        )
        .bind(id.as_str())
        .all(s.conn(), "read tasks")
        .await?;
    let record = |(no, state, attempt, queued_at, started_at, finished_at, worker, result, note): Row| {
        let mut record = TaskRecord::new(TaskId(number(no)?), queued_at);
        record.state = from_word(&state)?;
        record.attempt = number(attempt)?;
        record.started_at = started_at;
        record.finished_at = finished_at;
        record.worker = worker.map(WorkerId::new);
        record.result = result.as_deref().map(parsed).transpose()?;
        record.note = note;
        Ok(record)
    };
    rows.into_iter().map(record).collect()
}

/// Whole milliseconds of each task, as they are summed elsewhere.
pub(super) const PROGRESS: &str = "
    SELECT state, count(*), count(finished_at - started_at),
        coalesce(sum(greatest(0, trunc(extract(epoch FROM finished_at - started_at) * 1000))), 0)::bigint
    FROM reprocess.task
    WHERE state = ANY ($2::text[]) AND backfill = $1
        AND generation = (SELECT max(generation) FROM reprocess.backfill WHERE id = $1)
    GROUP BY state";

pub(super) async fn progress(s: &mut Session<'_>, id: &BackfillId) -> Result<Progress> {
    let rows: Vec<(String, i64, i64, i64)> = s
        .sql(PROGRESS)
        .bind(id.as_str())
        .bind(TaskState::ALL.map(|state| state.name().to_owned()).to_vec())
        .all(s.conn(), "count the tasks of a backfill")
        .await?;
    let mut progress = Progress::default();
    for (state, tasks, timed, busy) in rows {
        let state: TaskState = from_word(&state)?;
        progress.tasks.insert(state, number(tasks)?);
        // Only these have an end that stays.
        if state.is_success() || state == TaskState::Failed {
            progress.timed += number::<u64>(timed)?;
            progress.busy_ms += number::<u64>(busy)?;
        }
    }
    Ok(progress)
}
