//! Commands that plan and run.

use std::collections::BTreeSet;

use serde::Serialize;

use super::args::{BackfillArgs, PlanArgs, RollbackArgs};
use super::console::Invocation;
use super::exit::Exit;
use super::progress::Progress;
use super::{request, signals};
use crate::domain::ids::{BackfillId, JobName, RunId};
use crate::domain::partition::PartitionKey;
use crate::domain::plan::{Plan, RollbackRequest, TaskId};
use crate::engine::{Review, Submission};
use crate::error::{Error, Result};
use crate::ports::ledger::{BackfillRecord, BackfillState, TaskRecord, TaskState};
use crate::render;

/// A plan with the digest that an approval binds to.
#[derive(Serialize)]
struct PlanDocument<'a> {
    digest: String,
    plan: &'a Plan,
}

/// Where a backfill is after work on it.
#[derive(Serialize)]
struct WorkDocument<'a> {
    backfill: &'a BackfillId,
    /// The backfill that this one takes back.
    rolls_back: Option<&'a BackfillId>,
    run: RunId,
    /// `null` where there was nothing to do, so that the ledger was not touched.
    state: Option<BackfillState>,
    plan_digest: String,
    note: Option<&'a str>,
    skipped: usize,
    tasks: Vec<TaskLine<'a>>,
    review: Option<Review>,
}

#[derive(Serialize)]
struct TaskLine<'a> {
    task: TaskId,
    job: &'a JobName,
    partitions: &'a [PartitionKey],
    state: TaskState,
    attempt: u32,
    note: Option<&'a str>,
}

/// Shows a plan.
pub(super) async fn plan(s: &mut Invocation<'_>, args: &PlanArgs) -> Result<Exit> {
    let request = request::request(s.engine, args, &s.by).await?;
    let plan = s.engine.plan(&request).await?;
    let document = PlanDocument { digest: plan.digest(), plan: &plan };
    s.show(&document, |lines| render::plan(&plan, lines))?;
    // The same answer as that of submitting it.
    Ok(if plan.refused.is_empty() { Exit::Done } else { Exit::Usage })
}

/// Plans, and files the plan to be approved.
pub(super) async fn submit(s: &mut Invocation<'_>, args: &PlanArgs) -> Result<Exit> {
    let request = request::request(s.engine, args, &s.by).await?;
    let plan = s.engine.plan(&request).await?;
    s.say(|lines| render::plan(&plan, lines))?;
    match s.engine.submit(&plan, &s.by).await? {
        Submission::NothingToDo => nothing_to_do(s, &plan),
        Submission::Already(state) if state != BackfillState::Planned => ended(s, &plan.request.id).await,
        Submission::New | Submission::Already(_) => approved(s, &plan, Agreed::Nobody).await,
    }
}

fn nothing_to_do(s: &mut Invocation<'_>, plan: &Plan) -> Result<Exit> {
    let document = document(plan, None, None, &[], None);
    s.show(&document, |_| "\nNothing to do: every partition is skipped\n".to_owned())?;
    Ok(Exit::Done)
}

/// Plans, submits, approves and executes, or goes on with what is in the ledger.
pub(super) async fn backfill(s: &mut Invocation<'_>, args: &BackfillArgs) -> Result<Exit> {
    let id = match &args.resume {
        Some(id) => BackfillId::from(id.as_str()),
        None => {
            let request = request::request(s.engine, &args.plan, &s.by).await?;
            let known = s.engine.ledger().backfill(&request.id).await?;
            match known.filter(|known| known.state.holds_partitions()) {
                // The same command again, for example after a crash, goes on with the plan that was made first.
                Some(known) if known.plan.request == request => {
                    s.hint("the ledger has this request already; going on with its plan")?;
                    request.id
                }
                Some(known) => return Err(other_request(&known)),
                None => {
                    let plan = s.engine.plan(&request).await?;
                    return start(s, &plan, args.yes).await;
                }
            }
        }
    };
    let record = s.engine.backfill(&id).await?;
    if record.state == BackfillState::Planned {
        s.say(|lines| render::plan(&record.plan, lines))?;
        let yes = agrees(s, &record.plan, args.yes)?;
        return approved(s, &record.plan, yes).await;
    }
    go_on(s, &id).await
}

fn other_request(known: &BackfillRecord) -> Error {
    let id = &known.plan.request.id;
    Error::new(
        crate::error::ErrorKind::State,
        format!("the backfill is {} with another request", known.state),
    )
    .with_context("backfill", id)
    .with_advice(format!(
        "go on with it: backfill --resume {id}; or abort or cancel it; or choose another name"
    ))
}

/// Plans a rollback, submits, approves and executes it.
pub(super) async fn rollback(s: &mut Invocation<'_>, args: &RollbackArgs) -> Result<Exit> {
    let of = BackfillId::from(args.id.as_str());
    let record = s.engine.backfill(&of).await?;
    let partitions = match args.all {
        true => None,
        false => Some(keys(s, &record.plan, &args.partition)?),
    };
    let id = match &args.rollback_id {
        Some(id) => BackfillId::from(id.as_str()),
        None => free_id(s, &of).await?,
    };
    let request =
        RollbackRequest { id, of, partitions, reason: args.reason.clone(), requester: s.by.clone() };
    let plan = s.engine.plan_rollback(&request).await?;
    start(s, &plan, args.yes).await
}

fn keys(s: &Invocation<'_>, plan: &Plan, texts: &[String]) -> Result<BTreeSet<PartitionKey>> {
    let catalog = s.engine.host().catalog();
    let mut units = Vec::new();
    for name in plan.request.jobs.keys() {
        units.push(catalog.unit(catalog.job(name)?)?);
    }
    texts.iter().map(|text| request::key(text, &units)).collect()
}

async fn free_id(s: &Invocation<'_>, of: &BackfillId) -> Result<BackfillId> {
    let mut n = 1_u32;
    loop {
        let id = BackfillId::new(format!("{of}.rollback-{n}"));
        if s.engine.ledger().backfill(&id).await?.is_none() {
            return Ok(id);
        }
        n += 1;
    }
}

/// Shows a new plan, files it and, where somebody agrees, runs it.
async fn start(s: &mut Invocation<'_>, plan: &Plan, yes: bool) -> Result<Exit> {
    s.say(|lines| render::plan(plan, lines))?;
    let runs = plan.refused.is_empty() && !plan.is_empty();
    let agreed = if runs { agrees(s, plan, yes)? } else { Agreed::Nobody };
    if agreed == Agreed::No {
        return approved(s, plan, agreed).await;
    }
    match s.engine.submit(plan, &s.by).await? {
        Submission::NothingToDo => nothing_to_do(s, plan),
        Submission::Already(state) if state != BackfillState::Planned => go_on(s, &plan.request.id).await,
        Submission::New | Submission::Already(_) => approved(s, plan, agreed).await,
    }
}

/// Whether the plan is approved here and now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Agreed {
    ByOption,
    AtTerminal,
    No,
    /// There is nobody to ask, so the plan waits.
    Nobody,
}

fn agrees(s: &mut Invocation<'_>, plan: &Plan, yes: bool) -> Result<Agreed> {
    if yes {
        return Ok(Agreed::ByOption);
    }
    let question = format!("\nApprove plan {} as {}?", plan.digest(), s.by);
    Ok(match s.ask(&question) {
        Some(true) => Agreed::AtTerminal,
        Some(false) => Agreed::No,
        None => Agreed::Nobody,
    })
}

/// Goes on with a planned backfill as was agreed.
async fn approved(s: &mut Invocation<'_>, plan: &Plan, agreed: Agreed) -> Result<Exit> {
    let id = &plan.request.id;
    let comment = match agreed {
        Agreed::ByOption => "approved with --yes",
        Agreed::AtTerminal => "approved at the terminal",
        Agreed::No => {
            s.hint("not approved, so nothing is run")?;
            return Ok(Exit::Refused);
        }
        Agreed::Nobody => {
            let document = document(plan, Some(BackfillState::Planned), None, &[], None);
            let digest = plan.digest();
            s.show(&document, |_| {
                format!("\nBackfill `{id}` is planned and waits for an approval of {digest}\n")
            })?;
            s.hint(&format!("next: approve {id} --digest {digest}, then backfill --resume {id}"))?;
            return Ok(Exit::Waiting);
        }
    };
    s.engine.approve(id, &plan.digest(), &s.by, comment).await?;
    go_on(s, id).await
}

/// Executes what is approved and shows where the backfill is then.
pub(super) async fn go_on(s: &mut Invocation<'_>, id: &BackfillId) -> Result<Exit> {
    let record = s.engine.backfill(id).await?;
    if !matches!(record.state, BackfillState::AwaitingReview) {
        let tasks = s.engine.ledger().tasks(id).await?;
        let progress = Progress::new(s.draws_progress(), &record.plan, &tasks);
        let _ = signals::heeded(s, s.engine.execute(id, &s.worker, |event| progress.watch(&event))).await?;
    }
    ended(s, id).await
}

/// Shows where a backfill is after work on it.
async fn ended(s: &mut Invocation<'_>, id: &BackfillId) -> Result<Exit> {
    let status = s.engine.status(id).await?;
    let record = &status.backfill;
    let review = match record.state {
        BackfillState::AwaitingReview => Some(s.engine.review(id).await?),
        _ => None,
    };
    let document = document(&record.plan, Some(record.state), record.note.as_deref(), &status.tasks, review);
    s.show(&document, |lines| {
        let text = match &document.review {
            Some(review) => render::review(review, lines),
            None => render::status(&status, lines),
        };
        format!("\n{text}")
    })?;
    if let Some(next) = next(record, document.review.as_ref()) {
        s.hint(&next)?;
    }
    Ok(Exit::of_state(record.state))
}

fn next(record: &BackfillRecord, review: Option<&Review>) -> Option<String> {
    let id = &record.plan.request.id;
    match (record.state, review) {
        (_, Some(review)) => {
            let digest = &review.digest;
            Some(format!("next: approve {id} --digest {digest}, then publish {id}; or abort {id} --why …"))
        }
        (BackfillState::Failed | BackfillState::Stale, _) => {
            Some(format!("next: backfill --resume {id} tries again what is not done; or cancel {id} --why …"))
        }
        (BackfillState::Running | BackfillState::Propagating, _) if record.paused_by.is_some() => {
            Some(format!("it is paused; next: resume {id}, then backfill --resume {id}"))
        }
        (BackfillState::Running | BackfillState::Propagating, _) => {
            Some(format!("next: backfill --resume {id} goes on with it"))
        }
        (BackfillState::Publishing, _) => Some(format!("next: publish {id}, if no process is at it")),
        _ => None,
    }
}

fn document<'a>(
    plan: &'a Plan,
    state: Option<BackfillState>,
    note: Option<&'a str>,
    tasks: &'a [TaskRecord],
    review: Option<Review>,
) -> WorkDocument<'a> {
    let line = |task: &'a TaskRecord| {
        let planned = plan.task(task.id).ok()?;
        Some(TaskLine {
            task: task.id,
            job: &planned.job,
            partitions: &planned.units,
            state: task.state,
            attempt: task.attempt,
            note: task.note.as_deref(),
        })
    };
    WorkDocument {
        backfill: &plan.request.id,
        rolls_back: plan.rolls_back.as_ref(),
        run: plan.run(),
        state,
        plan_digest: plan.digest(),
        note,
        skipped: plan.skipped.len(),
        tasks: tasks.iter().filter_map(line).collect(),
        review,
    }
}
