//! Running a transform and staging its rows.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use futures::FutureExt;

use crate::domain::diff::{Diff, DiffSpec};
use crate::domain::job::{JobSpec, OwnerValue, WriteMode};
use crate::domain::plan::Task;
use crate::domain::profile::Profile;
use crate::domain::request::SchemaPolicy;
use crate::domain::slice::Base;
use crate::domain::validate::{Expectation, Severity, Verdict, validate};
use crate::domain::value::Value;
use crate::engine::Engine;
use crate::engine::deliver::check_keys;
use crate::engine::lease::retried;
use crate::engine::measure;
use crate::engine::pins::Resolved;
use crate::engine::record::Attempt;
use crate::error::{Error, ErrorKind, Result};
use crate::ports::ledger::TaskResult;
use crate::ports::transform::{Seen, TaskContext, host_error, logical_date};
use crate::ports::writer::{
    Intent, MergeKeys, PartitionWriter, Rows, StageRequest, Staged, StagedId, Visibility,
};

impl Engine {
    /// Runs the transform, stages its rows, profiles before and after, and validates.
    pub(super) async fn stage(
        &self,
        at: &Attempt<'_>,
        resolved: &Resolved,
        base: &Base,
    ) -> Result<TaskResult> {
        let job = self.host.catalog().job(&at.task.job)?;
        let writer = self.host.writer(&at.task.table)?.as_ref();
        let before = self.before(at, writer, job).await?;
        let (staged, read_bytes) = retried(self, || self.stage_once(at, resolved, base, writer)).await?;
        let after = self.after(at, writer, job, &staged).await?;
        let verdict = self.verdict(at, writer, job, &staged, &before, &after).await?;
        let result = TaskResult {
            staged: Some(staged),
            inputs: resolved.pins.clone(),
            fingerprint: Some(resolved.fingerprint.clone()),
            before,
            after,
            verdict,
            read_bytes,
            started_at: Some(at.started_at),
            ..TaskResult::new(base.clone(), resolved.pinned_at)
        };
        measure::staged(at, &result);
        Ok(result)
    }

    /// Profiles of the scope as the staged set would leave it.
    pub(super) async fn after(
        &self,
        at: &Attempt<'_>,
        writer: &dyn PartitionWriter,
        job: &JobSpec,
        staged: &Staged,
    ) -> Result<Vec<Profile>> {
        match (&staged.intent, writer.staged()) {
            (Intent::Replace, _) | (_, None) => Ok(staged.profiles.clone()),
            _ if merges_unseen(at, job) => Ok(staged.profiles.clone()),
            (_, Some(shadow)) => shadow.profile_after(staged, &job.profile).await,
        }
    }

    /// Profiles of the scope in production.
    pub(super) async fn before(
        &self,
        at: &Attempt<'_>,
        writer: &dyn PartitionWriter,
        job: &JobSpec,
    ) -> Result<Vec<Profile>> {
        if merges_unseen(at, job) {
            return Ok(Vec::new());
        }
        if retried(self, || writer.schema()).await?.is_none() {
            return Ok(Vec::new());
        }
        let (_, profiles) = retried(self, || writer.profile(&at.task.scope, &job.profile)).await?;
        Ok(profiles)
    }

    /// Removes what an attempt has staged, and withdraws what it would have sent.
    pub(super) async fn drop_staged(&self, at: &Attempt<'_>) -> Result<()> {
        let id = StagedId { stamp: self.stamp(at)?, attempt: at.number() };
        let now = self.clock.now();
        retried(self, || self.ledger.prepare_deliveries(&id, None, &[], now)).await?;
        let writer = self.host.writer(&at.task.table)?;
        retried(self, || writer.discard(&id)).await
    }

    async fn stage_once(
        &self,
        at: &Attempt<'_>,
        resolved: &Resolved,
        base: &Base,
        writer: &dyn PartitionWriter,
    ) -> Result<(Staged, Option<u64>)> {
        let job = self.host.catalog().job(&at.task.job)?;
        let seen = Seen { throttles: Arc::clone(&self.throttles), ..Seen::default() };
        let rows = self.transform(at, resolved, &seen).await?;
        let by_own_engine = matches!(rows, Rows::Query(_));
        if let Rows::Stream { schema, .. } = &rows
            && writer.schema().await?.is_none()
        {
            writer.create(schema).await?;
        }
        let request = StageRequest {
            id: StagedId { stamp: self.stamp(at)?, attempt: at.number() },
            scope: at.task.scope.clone(),
            intent: intent(job, at.task)?,
            visibility: visibility(at),
            profile: job.profile.clone(),
            schema: match at.task.is_downstream() {
                true => SchemaPolicy::Refuse,
                false => at.plan.request.schema,
            },
            base: base.clone(),
        };
        let staged = writer.stage(&request, rows).await?;
        let batch = std::mem::take(&mut *seen.deliveries.lock().unwrap_or_else(PoisonError::into_inner));
        check_keys(batch.iter().map(|delivery| delivery.key.as_str()))?;
        let backfill = at.origin.backfill.as_ref();
        self.ledger.prepare_deliveries(&staged.id, backfill, &batch, self.clock.now()).await?;
        let read_bytes = seen.read_bytes.load(Ordering::Relaxed);
        Ok((staged, (!by_own_engine).then_some(read_bytes)))
    }

    /// Runs the host's code. A panic in it is an error of the task and of nothing else.
    async fn transform(&self, at: &Attempt<'_>, resolved: &Resolved, seen: &Seen) -> Result<Rows> {
        let task = at.task;
        let catalog = self.host.catalog();
        let zone = catalog.unit(catalog.job(&task.job)?)?.time().map_or(chrono_tz::UTC, |(_, c)| c.zone);
        let context = TaskContext {
            job: task.job.clone(),
            logic: task.logic.clone(),
            run: at.origin.run.clone(),
            units: task.units.clone(),
            interval: task.interval,
            date: task.interval.map(|i| logical_date(i.start(), zone)),
            parameters: task.parameters.clone(),
            inputs: resolved.inputs.clone(),
            seen: seen.clone(),
        };
        let transform = self.host.transform(&task.job, &task.logic)?;
        match AssertUnwindSafe(transform.run(context)).catch_unwind().await {
            Ok(rows) => rows.map_err(host_error),
            Err(panic) => {
                let text = panic
                    .downcast_ref::<&str>()
                    .map(|t| (*t).to_owned())
                    .or_else(|| panic.downcast_ref::<String>().cloned())
                    .unwrap_or_else(|| "without a message".to_owned());
                Err(Error::new(ErrorKind::Transform, format!("the transform panicked: {text}")))
            }
        }
    }

    async fn verdict(
        &self,
        at: &Attempt<'_>,
        writer: &dyn PartitionWriter,
        job: &JobSpec,
        staged: &Staged,
        before: &[Profile],
        after: &[Profile],
    ) -> Result<Option<Verdict>> {
        let expectations = expectations(at, job);
        if at.plan.commits_at_once(at.task) && expectations.is_empty() {
            return Ok(None);
        }
        let diffs: Vec<Diff> = match writer.staged() {
            Some(reader) => reader.diff(staged, &DiffSpec::new(job.profile.keys.iter().cloned())).await?,
            None => Vec::new(),
        };
        Ok(Some(validate(&expectations, before, after, &diffs)))
    }
}

/// A direct merge can have the whole of a large table as its scope, which is not worth reading twice where nothing is
/// expected of it.
fn merges_unseen(at: &Attempt<'_>, job: &JobSpec) -> bool {
    let merges = matches!(job.write, WriteMode::Merge(_)) && at.plan.commits_at_once(at.task);
    merges && expectations(at, job).is_empty()
}

/// The expectations of a request that are about a task, with predictions for its units only. They are about the jobs that
/// the request names.
fn expectations(at: &Attempt<'_>, job: &JobSpec) -> Vec<(Expectation, Severity)> {
    if at.task.is_downstream() {
        return Vec::new();
    }
    let all = at.plan.request.expectations.iter();
    let about = all.filter(|e| e.job.as_ref().is_none_or(|name| *name == job.name));
    about.map(|e| (e.expectation.only(&at.task.units), e.severity)).collect()
}

fn visibility(at: &Attempt<'_>) -> Visibility {
    match at.plan.commits_at_once(at.task) {
        true => Visibility::Direct,
        false => Visibility::Shadow(at.plan.request.id.clone()),
    }
}

pub(super) fn intent(job: &JobSpec, task: &Task) -> Result<Intent> {
    let merge = match &job.write {
        WriteMode::Replace => return Ok(Intent::Replace),
        WriteMode::ReplaceDynamic => return Ok(Intent::ReplaceDynamic),
        WriteMode::Merge(merge) => merge,
        WriteMode::Append => {
            return Err(
                Error::invalid("a job that appends cannot be run again").with_context("job", &job.name)
            );
        }
    };
    let owner = |value: &OwnerValue| -> Result<Value> {
        match value {
            OwnerValue::Fixed(value) => Ok(value.clone()),
            OwnerValue::OfUnit(dimension) => {
                let unit = task.units.first().and_then(|unit| unit.get(dimension));
                unit.cloned().ok_or_else(|| {
                    Error::invalid(format!("the unit binds no `{dimension}` to own rows by"))
                        .with_context("job", &job.name)
                })
            }
        }
    };
    let delete_vanished = match &merge.delete_vanished {
        Some(columns) => {
            Some(columns.iter().map(|(c, v)| Ok((c.clone(), owner(v)?))).collect::<Result<_>>()?)
        }
        None => None,
    };
    Ok(Intent::Merge(MergeKeys { keys: merge.keys.clone(), newer: merge.newer.clone(), delete_vanished }))
}
