//! Submitting backfills, reading them and changing their state.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use reprocess_core::domain::ids::{Actor, BackfillId, TableId};
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::plan::{Plan, Task};
use reprocess_core::ports::ledger::{
    Adjustment, Approval, BackfillRecord, BackfillState, Overlap, StateChange, Submitted, TaskState,
    Transition, rules,
};
use reprocess_core::{Error, ErrorKind, Result};

use super::row::{from_word, json, number, parsed, shown, signed};
use super::{Session, delivery, order, place};

/// Generation, state and digest of the plan of a backfill's latest generation.
pub(super) async fn latest(
    s: &mut Session<'_>,
    id: &BackfillId,
) -> Result<Option<(u32, BackfillState, String)>> {
    let found: Option<(i64, String, String)> = s
        .sql(
            "SELECT generation, state, plan_digest FROM reprocess.backfill
             WHERE id = $1 ORDER BY generation DESC LIMIT 1",
        )
        .bind(id.as_str())
        .first(s.conn(), "read a backfill")
        .await?;
    found.map(|(generation, state, digest)| Ok((number(generation)?, from_word(&state)?, digest))).transpose()
}

/// Generation and state of a backfill that must be there, which stay until the transaction ends.
pub(super) async fn locked(s: &mut Session<'_>, id: &BackfillId) -> Result<(u32, BackfillState)> {
    let found: Option<(i64, String)> = s
        .sql(
            "SELECT generation, state FROM reprocess.backfill
             WHERE id = $1 ORDER BY generation DESC LIMIT 1 FOR NO KEY UPDATE",
        )
        .bind(id.as_str())
        .first(s.conn(), "lock a backfill")
        .await?;
    let (generation, state) =
        found.ok_or_else(|| Error::not_found(format!("the ledger has no backfill `{id}`")))?;
    Ok((number(generation)?, from_word(&state)?))
}

pub(super) async fn submit(
    s: &mut Session<'_>,
    plan: &Plan,
    by: &Actor,
    now: DateTime<Utc>,
) -> Result<Submitted> {
    // Backfills come to hold partitions here only, so of two that overlap the second sees the first.
    s.sql("SELECT pg_advisory_xact_lock(hashtextextended('reprocess submit ' || $1, 0))")
        .bind(s.schema.name())
        .execute(s.conn(), "wait for its turn to submit")
        .await?;
    let known = latest(s, &plan.request.id).await?;
    let known = known.as_ref().map(|(generation, state, digest)| (*generation, *state, digest.as_str()));
    if let Some(answer) = rules::submission(known, plan) {
        return Ok(answer);
    }
    let touched = rules::touched(plan);
    let overlaps = overlaps(s, &touched).await?;
    if !overlaps.is_empty() {
        return Ok(Submitted::Overlaps(overlaps));
    }
    s.sql(
        "INSERT INTO reprocess.backfill
             (id, generation, state, concurrency, plan, plan_digest, submitted_by, submitted_at, changed_at)
         VALUES ($1, $2, 'planned', $3, $4::json, $5, $6, $7, $7)",
    )
    .bind(plan.request.id.as_str())
    .bind(plan.generation)
    .bind(signed(plan.request.concurrency)?)
    .bind(json(plan)?)
    .bind(plan.digest())
    .bind(by.as_str())
    .bind(now)
    .execute(s.conn(), "file a backfill")
    .await?;
    insert_touched(s, plan, &touched).await?;
    insert_tasks(s, plan, now).await?;
    Ok(Submitted::New)
}

type Keys = BTreeMap<TableId, BTreeSet<PartitionKey>>;

/// One overlap for each open backfill and table, naming the first key held.
async fn overlaps(s: &mut Session<'_>, wanted: &Keys) -> Result<Vec<Overlap>> {
    let holding = BackfillState::ALL.into_iter().filter(|state| state.holds_partitions());
    let found: Vec<(String, String, String, String)> = s
        .sql(
            "SELECT b.id, b.state, t.table_id, t.key
             FROM reprocess.backfill AS b
             JOIN reprocess.touched AS t ON t.backfill = b.id AND t.generation = b.generation
             WHERE b.state = ANY ($1::text[]) AND t.table_id = ANY ($2::text[])",
        )
        .bind(holding.map(|state| state.name().to_owned()).collect::<Vec<_>>())
        .bind(wanted.keys().map(|table| table.as_str().to_owned()).collect::<Vec<_>>())
        .all(s.conn(), "read what open backfills hold")
        .await?;
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

async fn insert_touched(s: &mut Session<'_>, plan: &Plan, touched: &Keys) -> Result<()> {
    let keys: Vec<_> = touched.iter().flat_map(|(t, keys)| keys.iter().map(move |key| (t, key))).collect();
    s.sql(
        "INSERT INTO reprocess.touched (backfill, generation, table_id, partition, key)
         SELECT $1, $2, table_id, partition, key
         FROM unnest($3::text[], $4::text[], $5::text[]) AS k (table_id, partition, key)
         ON CONFLICT DO NOTHING",
    )
    .bind(plan.request.id.as_str())
    .bind(plan.generation)
    .bind(keys.iter().map(|(table, _)| table.as_str().to_owned()).collect::<Vec<_>>())
    .bind(keys.iter().map(|(_, key)| place::text(key)).collect::<Vec<_>>())
    .bind(keys.iter().map(|(_, key)| json(key)).collect::<Result<Vec<_>>>()?)
    .execute(s.conn(), "file what a backfill touches")
    .await?;
    Ok(())
}

async fn insert_tasks(s: &mut Session<'_>, plan: &Plan, now: DateTime<Utc>) -> Result<()> {
    let before = |task: &Task| task.after.iter().copied().collect::<BTreeSet<_>>();
    let waiting = plan.tasks.iter().map(|task| signed(before(task).len()));
    s.sql(
        "INSERT INTO reprocess.task
             (backfill, generation, no, job, logic, state, waiting, after_publication, attempt, queued_at)
         SELECT $1, $2, no, job, logic, 'pending', waiting, after_publication = 1, 0, $3
         FROM unnest($4::bigint[], $5::text[], $6::text[], $7::bigint[], $8::bigint[])
             AS t (no, job, logic, waiting, after_publication)",
    )
    .bind(plan.request.id.as_str())
    .bind(plan.generation)
    .bind(now)
    .bind(plan.tasks.iter().map(|task| i64::from(task.id.0)).collect::<Vec<_>>())
    .bind(plan.tasks.iter().map(|task| task.job.as_str().to_owned()).collect::<Vec<_>>())
    .bind(plan.tasks.iter().map(|task| task.logic.as_str().to_owned()).collect::<Vec<_>>())
    .bind(waiting.collect::<Result<Vec<_>>>()?)
    .bind(plan.tasks.iter().map(|task| i64::from(plan.waits_for_publication(task))).collect::<Vec<_>>())
    .execute(s.conn(), "file the tasks of a backfill")
    .await?;
    let pairs: Vec<_> =
        plan.tasks.iter().flat_map(|task| before(task).into_iter().map(|before| (before, task.id))).collect();
    s.sql(
        "INSERT INTO reprocess.task_after (backfill, generation, before, no)
         SELECT $1, $2, before, no FROM unnest($3::bigint[], $4::bigint[]) AS a (before, no)",
    )
    .bind(plan.request.id.as_str())
    .bind(plan.generation)
    .bind(pairs.iter().map(|(before, _)| i64::from(before.0)).collect::<Vec<_>>())
    .bind(pairs.iter().map(|(_, task)| i64::from(task.0)).collect::<Vec<_>>())
    .execute(s.conn(), "file the order of tasks")
    .await?;
    Ok(())
}

pub(super) async fn transition(
    s: &mut Session<'_>,
    id: &BackfillId,
    change: &StateChange,
    now: DateTime<Utc>,
) -> Result<Transition> {
    order::lock(s).await?;
    let (generation, state) = locked(s, id).await?;
    if state != change.from {
        return Ok(Transition::Elsewhere(state));
    }
    if !state.may_become(change.to) {
        let message = format!("a backfill that is {state} cannot become {}", change.to);
        return Err(Error::new(ErrorKind::State, message).with_context("backfill", id));
    }
    // A note tells why it was stopped, which is no longer so once it runs again.
    let keep_note = change.note.is_none() && change.to != BackfillState::Running;
    s.sql(
        "UPDATE reprocess.backfill
         SET state = $4, changed_at = $5, note = CASE WHEN $6 THEN note ELSE $7 END
         WHERE id = $1 AND generation = $2 AND state = $3",
    )
    .bind(id.as_str())
    .bind(generation)
    .bind(change.from.name())
    .bind(change.to.name())
    .bind(now)
    .bind(keep_note)
    .bind(change.note.as_deref().map(shown))
    .execute(s.conn(), "change the state of a backfill")
    .await?;
    if let Some(approval) = &change.approval {
        insert_approval(s, id, generation, approval).await?;
    }
    change_tasks(s, id, generation, change, now).await?;
    if !change.to.holds_partitions() {
        delivery::withdraw_backfill(s, id, generation, now).await?;
    }
    Ok(Transition::Done)
}

async fn insert_approval(
    s: &mut Session<'_>,
    id: &BackfillId,
    generation: u32,
    approval: &Approval,
) -> Result<()> {
    s.sql(
        "INSERT INTO reprocess.approval (backfill, generation, no, approved_by, approved_at, digest, comment)
         SELECT $1, $2, count(*), $3, $4, $5, $6 FROM reprocess.approval
         WHERE backfill = $1 AND generation = $2",
    )
    .bind(id.as_str())
    .bind(generation)
    .bind(approval.by.as_str())
    .bind(approval.at)
    .bind(approval.digest.as_str())
    .bind(shown(&approval.comment))
    .execute(s.conn(), "file an approval")
    .await?;
    Ok(())
}

async fn change_tasks(
    s: &mut Session<'_>,
    id: &BackfillId,
    generation: u32,
    change: &StateChange,
    now: DateTime<Utc>,
) -> Result<()> {
    // No state that a task gets here is one that the same change leads further, so the order does not matter.
    for state in TaskState::ALL {
        let Some(next) = rules::task_after_change(state, change.from, change.to) else { continue };
        s.sql(
            "UPDATE reprocess.task SET state = $4, note = NULL, expires_at = NULL,
                 finished_at = CASE WHEN state = 'claimed' THEN $5 ELSE finished_at END
             WHERE backfill = $1 AND generation = $2 AND state = $3",
        )
        .bind(id.as_str())
        .bind(generation)
        .bind(state.name())
        .bind(next.name())
        .bind(now)
        .execute(s.conn(), "change the tasks of a backfill")
        .await?;
    }
    if change.to.runs_tasks() {
        s.sql(
            "UPDATE reprocess.task SET queued_at = $3
             WHERE backfill = $1 AND generation = $2 AND state = 'pending'",
        )
        .bind(id.as_str())
        .bind(generation)
        .bind(now)
        .execute(s.conn(), "queue the tasks of a backfill")
        .await?;
    }
    Ok(())
}

/// Changes how a backfill is worked on.
pub(super) async fn adjust(s: &mut Session<'_>, id: &BackfillId, what: Adjustment, by: &Actor) -> Result<()> {
    let (generation, _) = locked(s, id).await?;
    let (pauses, paused_by, concurrency) = match what {
        Adjustment::Pause => (true, Some(by.as_str()), None),
        Adjustment::Resume => (true, None, None),
        Adjustment::Concurrency(tasks) => (false, None, Some(i64::from(tasks.get()))),
    };
    s.sql(
        "UPDATE reprocess.backfill
         SET paused_by = CASE WHEN $3 THEN $4 ELSE paused_by END, concurrency = coalesce($5, concurrency)
         WHERE id = $1 AND generation = $2",
    )
    .bind(id.as_str())
    .bind(generation)
    .bind(pauses)
    .bind(paused_by)
    .bind(concurrency)
    .execute(s.conn(), "adjust a backfill")
    .await?;
    Ok(())
}

/// Backfills in their latest generation; no id means every one, no state every state.
pub(super) async fn records(
    s: &mut Session<'_>,
    id: Option<&BackfillId>,
    states: &[BackfillState],
) -> Result<Vec<BackfillRecord>> {
    type Row = (
        i64,
        String,
        String,
        String,
        String,
        DateTime<Utc>,
        DateTime<Utc>,
        Option<String>,
        i64,
        Option<String>,
    );
    let rows: Vec<Row> = s
        .sql(
            "SELECT generation, plan::text, plan_digest, state, submitted_by, submitted_at, changed_at, note,
                 concurrency, paused_by
             FROM reprocess.backfill AS b
             WHERE ($1 IS NULL OR id = $1)
               AND generation = (SELECT max(generation) FROM reprocess.backfill WHERE id = b.id)
               AND ($2::text[] = '{}' OR state = ANY ($2::text[]))
             ORDER BY id",
        )
        .bind(id.map(BackfillId::as_str))
        .bind(states.iter().map(|state| state.name().to_owned()).collect::<Vec<_>>())
        .all(s.conn(), "read backfills")
        .await?;
    let mut records = Vec::with_capacity(rows.len());
    for (generation, plan, plan_digest, state, by, submitted_at, changed_at, note, concurrency, paused_by) in
        rows
    {
        let plan = Plan::from_json(&plan)?;
        let mut record = BackfillRecord::new(plan, plan_digest, Actor::new(by), submitted_at);
        record.state = from_word(&state)?;
        record.changed_at = changed_at;
        record.approvals = approvals(s, &record.plan.request.id, generation).await?;
        record.note = note;
        record.concurrency = number(concurrency)?;
        record.paused_by = paused_by.map(Actor::new);
        records.push(record);
    }
    Ok(records)
}

async fn approvals(s: &mut Session<'_>, id: &BackfillId, generation: i64) -> Result<Vec<Approval>> {
    type Row = (String, DateTime<Utc>, String, String);
    let rows: Vec<Row> = s
        .sql(
            "SELECT approved_by, approved_at, digest, comment FROM reprocess.approval
             WHERE backfill = $1 AND generation = $2 ORDER BY no",
        )
        .bind(id.as_str())
        .bind(generation)
        .all(s.conn(), "read approvals")
        .await?;
    let approval = |(by, at, digest, comment): Row| Approval { by: Actor::new(by), at, digest, comment };
    Ok(rows.into_iter().map(approval).collect())
}
