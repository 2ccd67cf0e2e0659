//! Shows when a transform breaks determinism: stages a task twice, compares, discards.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::domain::fingerprint::Fingerprint;
use crate::domain::ids::{Actor, JobName, LogicVersion, RunId, WorkerId};
use crate::domain::partition::PartitionKey;
use crate::domain::plan::facts::Existing;
use crate::domain::plan::{self, Plan, Task};
use crate::domain::profile::{Digest, Profile, Total};
use crate::domain::request::{Mode, Request, Selection};
use crate::engine::Engine;
use crate::engine::pins::Pinning;
use crate::engine::record::{Attempt, Beside, Origin};
use crate::error::{Error, Result};
use crate::ports::ledger::{RunStatus, Trigger};

/// What two runs of the same task have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct Determinism {
    /// The same rows, to the last bit. Their order is no difference: a table is a multiset of rows.
    pub same_rows: bool,
    /// What differs between the two runs, in words.
    pub differences: Vec<String>,
    /// A run in the ledger with the same fingerprint and other rows: the same version, and other code.
    pub other_code: Option<RunId>,
}

impl Determinism {
    /// Whether nothing was found.
    pub fn holds(&self) -> bool {
        self.same_rows && self.other_code.is_none()
    }
}

impl fmt::Display for Determinism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.holds() {
            return f.write_str("two runs gave the same rows, in whatever order");
        }
        if !self.same_rows {
            write!(f, "two runs gave other rows: {}", self.differences.join("; "))?;
        }
        if let Some(run) = &self.other_code {
            let and = if self.same_rows { "" } else { "; " };
            write!(
                f,
                "{and}run {run} has the same fingerprint and other rows: the same version, and other code"
            )?;
        }
        Ok(())
    }
}

impl Engine {
    /// Stages one task twice, compares the two, and compares them with what the ledger has for the same fingerprint.
    /// Nothing is committed, recorded or delivered.
    pub async fn check_determinism(
        &self,
        job: &JobName,
        logic: &LogicVersion,
        unit: &PartitionKey,
        worker: &WorkerId,
    ) -> Result<Determinism> {
        let plan = self.plan_check(job, logic, unit, worker).await?;
        let Some(task) = plan.tasks.first() else {
            let reason = plan.refused.first().map_or("the plan has no task", |r| r.reason.as_str());
            return Err(Error::invalid(reason).with_context("job", job).with_context("partition", unit));
        };
        let beside = Beside::default();
        let origin = Origin {
            run: RunId::new(format!("check-determinism/{worker}")),
            trigger: Trigger::Manual,
            backfill: None,
            approval: None,
            worker: worker.clone(),
        };
        let now = self.clock.now();
        let at = Attempt {
            plan: &plan,
            task,
            origin: &origin,
            claim: None,
            beside: &beside,
            queued_at: now,
            started_at: now,
        };
        let resolved = self.resolve(&at, Pinning::Committed).await?;
        let first = self.stage(&at, &resolved, &task.base).await?;
        self.drop_staged(&at).await?;
        let second = self.stage(&at, &resolved, &task.base).await?;
        self.drop_staged(&at).await?;
        let differences = differences(&first.after, &second.after);
        let same_rows = contents(&first.after) == contents(&second.after);
        let other_code = match same_rows {
            true => self.other_code(task, &resolved.fingerprint, &contents(&first.after)).await?,
            false => None,
        };
        Ok(Determinism { same_rows, differences, other_code })
    }

    async fn plan_check(
        &self,
        job: &JobName,
        logic: &LogicVersion,
        unit: &PartitionKey,
        worker: &WorkerId,
    ) -> Result<Plan> {
        let selection = match unit.is_whole() {
            true => Selection::WholeTable,
            false => Selection::Keys(BTreeSet::from([unit.clone()])),
        };
        let request =
            Request::new("check-determinism", selection, "check determinism", Actor::new(worker.as_str()))
                .with_job(job.clone(), logic.clone())
                .with_mode(Mode::Direct)
                .with_force()
                .without_kept_rows()
                .without_propagation();
        let catalog = self.host.catalog();
        let needs = plan::expand_run(&request, catalog)?;
        let facts = self.facts(&request, &needs, Existing::new()).await?;
        plan::plan_run(&request, catalog, &facts, self.clock.now())
    }

    /// A committed run of the task's units with the same fingerprint and rows that are not among `contents`.
    async fn other_code(
        &self,
        task: &Task,
        fingerprint: &Fingerprint,
        contents: &[&Digest],
    ) -> Result<Option<RunId>> {
        let Some(unit) = task.units.first() else { return Ok(None) };
        let history = self.ledger.history(&task.table, unit, self.settings.history_rows).await?;
        let other = history.into_iter().map(|row| row.record).find(|record| {
            let comparable = record.status == RunStatus::Committed
                && record.trigger != Trigger::Rollback
                && record.fingerprint.as_ref() == Some(fingerprint)
                && record.partition == *unit;
            comparable && record.after.as_ref().is_some_and(|p| !contents.contains(&&p.content))
        });
        Ok(other.map(|record| record.run))
    }
}

fn contents(profiles: &[Profile]) -> Vec<&Digest> {
    profiles.iter().map(|p| &p.content).collect()
}

fn differences(first: &[Profile], second: &[Profile]) -> Vec<String> {
    let mut found = Vec::new();
    for (a, b) in first.iter().zip(second).filter(|(a, b)| a.content != b.content) {
        let at = &a.partition;
        if a.rows != b.rows {
            found.push(format!("{at} has {} rows, then {}", a.rows, b.rows));
        }
        for (column, total) in &a.totals {
            let other = b.totals.get(column);
            if other != Some(total) {
                let then = other.map(ToString::to_string).unwrap_or_default();
                found.push(format!("{at}: the total of `{column}` is {total}, then {then}"));
            }
        }
        if a.comparable == b.comparable {
            found.push(format!("{at}: only float columns differ, {}", float_text(a, b)));
        } else if a.rows == b.rows && a.totals == b.totals {
            found.push(format!("{at}: row count and totals are the same, values are not"));
        }
    }
    found
}

/// How far apart float totals are, and how far another order of the same rows could bring them.
fn float_text(a: &Profile, b: &Profile) -> String {
    let totals = a.totals.iter().filter_map(|(column, total)| match (total, b.totals.get(column)) {
        (Total::Float { sum, tolerance, .. }, Some(Total::Float { sum: other, tolerance: more, .. })) => {
            Some(((sum - other).abs(), tolerance + more))
        }
        _ => None,
    });
    let (apart, tolerance) = totals
        .max_by(|(a, within_a), (b, within_b)| (a - within_a).total_cmp(&(b - within_b)))
        .unwrap_or((0.0, 0.0));
    match apart <= tolerance {
        true => {
            format!(
                "by {apart:.1e} in total, within the tolerance of {tolerance:.1e} of another order of rows"
            )
        }
        false => format!(
            "by {apart:.1e} in total, more than the {tolerance:.1e} that another order of rows explains"
        ),
    }
}
