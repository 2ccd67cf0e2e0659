//! Submitting backfills, reading them and changing their state.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use reprocess_core::domain::ids::{Actor, BackfillId, TableId};
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::plan::Plan;
use reprocess_core::ports::ledger::{
    Adjustment, Approval, BackfillRecord, BackfillState, Overlap, StateChange, Submitted, TaskState,
    Transition, rules,
};
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::SqliteConnection;

use super::row::{from_word, instant, json, micros, parsed};
use super::{delivery, place};
use crate::error::Doing;

/// Generation, state and digest of the plan of a backfill's latest generation.
pub(super) async fn latest(
    conn: &mut SqliteConnection,
    id: &BackfillId,
) -> Result<Option<(u32, BackfillState, String)>> {
    let found: Option<(u32, String, String)> = sqlx::query_as(
        "SELECT generation, state, plan_digest FROM reprocess_backfill
         WHERE id = ? ORDER BY generation DESC LIMIT 1",
    )
    .bind(id.as_str())
    .fetch_optional(conn)
    .await
    .doing("read a backfill")?;
    found.map(|(generation, state, digest)| Ok((generation, from_word(&state)?, digest))).transpose()
}

/// The same, of a backfill that must be there.
pub(super) async fn known(conn: &mut SqliteConnection, id: &BackfillId) -> Result<(u32, BackfillState)> {
    let found = latest(conn, id).await?;
    let (generation, state, _) =
        found.ok_or_else(|| Error::not_found(format!("the ledger has no backfill `{id}`")))?;
    Ok((generation, state))
}

pub(super) async fn submit(
    conn: &mut SqliteConnection,
    plan: &Plan,
    by: &Actor,
    now: DateTime<Utc>,
) -> Result<Submitted> {
    let known = latest(conn, &plan.request.id).await?;
    let known = known.as_ref().map(|(generation, state, digest)| (*generation, *state, digest.as_str()));
    if let Some(answer) = rules::submission(known, plan) {
        return Ok(answer);
    }
    let touched = rules::touched(plan);
    let overlaps = overlaps(conn, &touched).await?;
    if !overlaps.is_empty() {
        return Ok(Submitted::Overlaps(overlaps));
    }
    sqlx::query(
        "INSERT INTO reprocess_backfill
             (id, generation, state, concurrency, plan, plan_digest, submitted_by, submitted_us, changed_us)
         VALUES (?1, ?2, 'planned', ?3, ?4, ?5, ?6, ?7, ?7)",
    )
    .bind(plan.request.id.as_str())
    .bind(plan.generation)
    .bind(plan.request.concurrency)
    .bind(json(plan)?)
    .bind(plan.digest())
    .bind(by.as_str())
    .bind(micros(now))
    .execute(&mut *conn)
    .await
    .doing("file a backfill")?;
    insert_touched(conn, plan, &touched).await?;
    insert_tasks(conn, plan, now).await?;
    Ok(Submitted::New)
}

type Keys = BTreeMap<TableId, BTreeSet<PartitionKey>>;

/// One overlap for each open backfill and table, naming the first key held.
async fn overlaps(conn: &mut SqliteConnection, wanted: &Keys) -> Result<Vec<Overlap>> {
    let holding: Vec<_> = BackfillState::ALL.into_iter().filter(|state| state.holds_partitions()).collect();
    let found: Vec<(String, String, String, String)> = sqlx::query_as(
        "SELECT b.id, b.state, t.table_id, t.key
         FROM reprocess_backfill AS b
         JOIN reprocess_touched AS t ON t.backfill = b.id AND t.generation = b.generation
         WHERE b.state IN (SELECT value FROM json_each(?1))
           AND t.table_id IN (SELECT value FROM json_each(?2))",
    )
    .bind(json(&holding)?)
    .bind(json(&wanted.keys().collect::<Vec<_>>())?)
    .fetch_all(conn)
    .await
    .doing("read what open backfills hold")?;
    let mut held = BTreeMap::<(BackfillId, TableId), (BackfillState, BTreeSet<PartitionKey>)>::new();
    for (backfill, state, table, key) in found {
        let state = from_word(&state)?;
        let place = (BackfillId::new(backfill), TableId::new(table));
        held.entry(place).or_insert_with(|| (state, BTreeSet::new())).1.insert(parsed(&key)?);
    }
    let overlap = |((backfill, table), (state, keys)): ((BackfillId, TableId), (_, BTreeSet<_>))| {
        let partition = rules::first_overlap(wanted.get(&table)?, &keys)?.clone();
        Some(Overlap { backfill, state, table, partition })
    };
    Ok(held.into_iter().filter_map(overlap).collect())
}

async fn insert_touched(conn: &mut SqliteConnection, plan: &Plan, touched: &Keys) -> Result<()> {
    let keys = touched.iter().flat_map(|(table, keys)| keys.iter().map(move |key| (table, key)));
    let rows = keys.map(|(table, key)| Ok((table, place::text(key), json(key)?)));
    sqlx::query(
        "INSERT OR IGNORE INTO reprocess_touched (backfill, generation, table_id, partition, key)
         SELECT ?1, ?2, value ->> 0, value ->> 1, value ->> 2 FROM json_each(?3)",
    )
    .bind(plan.request.id.as_str())
    .bind(plan.generation)
    .bind(json(&rows.collect::<Result<Vec<_>>>()?)?)
    .execute(conn)
    .await
    .doing("file what a backfill touches")?;
    Ok(())
}

async fn insert_tasks(conn: &mut SqliteConnection, plan: &Plan, now: DateTime<Utc>) -> Result<()> {
    let before =
        |task: &reprocess_core::domain::plan::Task| task.after.iter().copied().collect::<BTreeSet<_>>();
    let row = |task: &reprocess_core::domain::plan::Task| {
        let waits = i64::from(plan.waits_for_publication(task));
        (task.id, task.job.clone(), task.logic.clone(), before(task).len(), waits)
    };
    let tasks: Vec<_> = plan.tasks.iter().map(row).collect();
    sqlx::query(
        "INSERT INTO reprocess_task
             (backfill, generation, no, job, logic, state, waiting, after_publication, attempt, queued_us)
         SELECT ?1, ?2, value ->> 0, value ->> 1, value ->> 2, 'pending', value ->> 3, value ->> 4, 0, ?3
         FROM json_each(?4)",
    )
    .bind(plan.request.id.as_str())
    .bind(plan.generation)
    .bind(micros(now))
    .bind(json(&tasks)?)
    .execute(&mut *conn)
    .await
    .doing("file the tasks of a backfill")?;
    let after = plan.tasks.iter().flat_map(|task| before(task).into_iter().map(|before| (before, task.id)));
    sqlx::query(
        "INSERT INTO reprocess_task_after (backfill, generation, before, no)
         SELECT ?1, ?2, value ->> 0, value ->> 1 FROM json_each(?3)",
    )
    .bind(plan.request.id.as_str())
    .bind(plan.generation)
    .bind(json(&after.collect::<Vec<_>>())?)
    .execute(conn)
    .await
    .doing("file the order of tasks")?;
    Ok(())
}

pub(super) async fn transition(
    conn: &mut SqliteConnection,
    id: &BackfillId,
    change: &StateChange,
    now: DateTime<Utc>,
) -> Result<Transition> {
    let (generation, state) = known(conn, id).await?;
    if state != change.from {
        return Ok(Transition::Elsewhere(state));
    }
    if !state.may_become(change.to) {
        let message = format!("a backfill that is {state} cannot become {}", change.to);
        return Err(Error::new(ErrorKind::State, message).with_context("backfill", id));
    }
    // A note tells why it was stopped, which is no longer so once it runs again.
    let keep_note = change.note.is_none() && change.to != BackfillState::Running;
    sqlx::query(
        "UPDATE reprocess_backfill
         SET state = ?3, changed_us = ?4, note = CASE WHEN ?5 THEN note ELSE ?6 END
         WHERE id = ?1 AND generation = ?2",
    )
    .bind(id.as_str())
    .bind(generation)
    .bind(change.to.name())
    .bind(micros(now))
    .bind(keep_note)
    .bind(change.note.as_deref())
    .execute(&mut *conn)
    .await
    .doing("change the state of a backfill")?;
    if let Some(approval) = &change.approval {
        insert_approval(conn, id, generation, approval).await?;
    }
    change_tasks(conn, id, generation, change, now).await?;
    if !change.to.holds_partitions() {
        delivery::withdraw_backfill(conn, id, generation, now).await?;
    }
    Ok(Transition::Done)
}

async fn insert_approval(
    conn: &mut SqliteConnection,
    id: &BackfillId,
    generation: u32,
    approval: &Approval,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO reprocess_approval (backfill, generation, no, approved_by, approved_us, digest, comment)
         SELECT ?1, ?2, count(*), ?3, ?4, ?5, ?6 FROM reprocess_approval
         WHERE backfill = ?1 AND generation = ?2",
    )
    .bind(id.as_str())
    .bind(generation)
    .bind(approval.by.as_str())
    .bind(micros(approval.at))
    .bind(&approval.digest)
    .bind(&approval.comment)
    .execute(conn)
    .await
    .doing("file an approval")?;
    Ok(())
}

async fn change_tasks(
    conn: &mut SqliteConnection,
    id: &BackfillId,
    generation: u32,
    change: &StateChange,
    now: DateTime<Utc>,
) -> Result<()> {
    // No state that a task gets here is one that the same change leads further, so the order does not matter.
    for state in TaskState::ALL {
        let Some(next) = rules::task_after_change(state, change.from, change.to) else { continue };
        sqlx::query(
            "UPDATE reprocess_task SET state = ?4, note = NULL, expires_us = NULL,
                 finished_us = CASE WHEN state = 'claimed' THEN ?5 ELSE finished_us END
             WHERE backfill = ?1 AND generation = ?2 AND state = ?3",
        )
        .bind(id.as_str())
        .bind(generation)
        .bind(state.name())
        .bind(next.name())
        .bind(micros(now))
        .execute(&mut *conn)
        .await
        .doing("change the tasks of a backfill")?;
    }
    if change.to.runs_tasks() {
        sqlx::query(
            "UPDATE reprocess_task SET queued_us = ?3
             WHERE backfill = ?1 AND generation = ?2 AND state = 'pending'",
        )
        .bind(id.as_str())
        .bind(generation)
        .bind(micros(now))
        .execute(conn)
        .await
        .doing("queue the tasks of a backfill")?;
    }
    Ok(())
}

/// Changes how a backfill is worked on.
pub(super) async fn adjust(
    conn: &mut SqliteConnection,
    id: &BackfillId,
    what: Adjustment,
    by: &Actor,
) -> Result<()> {
    let (generation, _) = known(conn, id).await?;
    let (pauses, paused_by, concurrency) = match what {
        Adjustment::Pause => (true, Some(by.as_str()), None),
        Adjustment::Resume => (true, None, None),
        Adjustment::Concurrency(tasks) => (false, None, Some(tasks.get())),
    };
    sqlx::query(
        "UPDATE reprocess_backfill
         SET paused_by = CASE WHEN ?3 THEN ?4 ELSE paused_by END, concurrency = coalesce(?5, concurrency)
         WHERE id = ?1 AND generation = ?2",
    )
    .bind(id.as_str())
    .bind(generation)
    .bind(pauses)
    .bind(paused_by)
    .bind(concurrency)
    .execute(conn)
    .await
    .doing("adjust a backfill")?;
    Ok(())
}

/// Backfills in their latest generation; no id means every one, no state every state.
pub(super) async fn records(
    conn: &mut SqliteConnection,
    id: Option<&BackfillId>,
    states: &[BackfillState],
) -> Result<Vec<BackfillRecord>> {
    type Row = (u32, String, String, String, String, i64, i64, Option<String>, u32, Option<String>);
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT generation, plan, plan_digest, state, submitted_by, submitted_us, changed_us, note, concurrency,
             paused_by
         FROM reprocess_backfill AS b
         WHERE (?1 IS NULL OR id = ?1)
           AND generation = (SELECT max(generation) FROM reprocess_backfill WHERE id = b.id)
           AND (?2 = '[]' OR state IN (SELECT value FROM json_each(?2)))
         ORDER BY id",
    )
    .bind(id.map(BackfillId::as_str))
    .bind(json(states)?)
    .fetch_all(&mut *conn)
    .await
    .doing("read backfills")?;
    let mut records = Vec::with_capacity(rows.len());
    for (generation, plan, plan_digest, state, by, submitted, changed, note, concurrency, paused_by) in rows {
        let mut record =
            BackfillRecord::new(Plan::from_json(&plan)?, plan_digest, Actor::new(by), instant(submitted)?);
        record.state = from_word(&state)?;
        record.changed_at = instant(changed)?;
        record.approvals = approvals(conn, &record.plan.request.id, generation).await?;
        record.note = note;
        record.concurrency = concurrency;
        record.paused_by = paused_by.map(Actor::new);
        records.push(record);
    }
    Ok(records)
}

async fn approvals(conn: &mut SqliteConnection, id: &BackfillId, generation: u32) -> Result<Vec<Approval>> {
    type Row = (String, i64, String, String);
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT approved_by, approved_us, digest, comment FROM reprocess_approval
         WHERE backfill = ? AND generation = ? ORDER BY no",
    )
    .bind(id.as_str())
    .bind(generation)
    .fetch_all(conn)
    .await
    .doing("read approvals")?;
    let approval = |(by, at, digest, comment): Row| {
        Ok(Approval { by: Actor::new(by), at: instant(at)?, digest, comment })
    };
    rows.into_iter().map(approval).collect()
}
