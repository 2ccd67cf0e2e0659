//! Runs of one partition, outside of any backfill: the schedule's, or a person's.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};

use crate::domain::ids::{Actor, BackfillId, JobName, LogicVersion, RunId, WorkerId};
use crate::domain::partition::PartitionKey;
use crate::domain::plan::{self, Plan};
use crate::domain::request::{Mode, Request, Selection, WhenLeased};
use crate::engine::Engine;
use crate::engine::lease::retried;
use crate::engine::record::{Attempt, Origin};
use crate::engine::task::{Noted, TaskEnd, has_moved};
use crate::error::{Error, ErrorKind, Result};
use crate::ports::ledger::{RunRecord, RunStatus, Trigger};

/// A run of one partition.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RunRequest {
    /// The scheduler's id of the run. The same id again is the same run: it is recognised, never doubled. It may not be
    /// that of a backfill's run, which is its name, a dot and a number.
    pub run: RunId,
    /// The job.
    pub job: JobName,
    /// The partition, or for a merge job its unit; `whole` for a table without dimensions.
    pub unit: PartitionKey,
    /// The logic version; `None` takes the one that the job registered last.
    pub logic: Option<LogicVersion>,
    /// What made it happen.
    pub trigger: Trigger,
    /// Who asks.
    pub requester: Actor,
    /// Why.
    pub reason: String,
    /// Whether deliveries are released at the commit: on for the schedule.
    pub deliver: bool,
    /// Whether it runs even where nothing changed.
    pub force: bool,
    /// Whether the replaced rows are kept.
    pub keep_replaced: bool,
    /// What to do where another run holds a lease.
    pub when_leased: WhenLeased,
}

impl RunRequest {
    /// A run of the schedule: the current logic, deliveries released, waiting for others.
    pub fn scheduled(run: impl Into<RunId>, job: impl Into<JobName>, unit: PartitionKey) -> Self {
        Self {
            run: run.into(),
            job: job.into(),
            unit,
            logic: None,
            trigger: Trigger::Scheduled,
            requester: Actor::new("schedule"),
            reason: "scheduled".to_owned(),
            deliver: true,
            force: false,
            keep_replaced: false,
            when_leased: WhenLeased::Wait,
        }
    }

    /// A run by hand: deliveries suppressed.
    pub fn manual(
        run: impl Into<RunId>,
        job: impl Into<JobName>,
        unit: PartitionKey,
        requester: impl Into<Actor>,
        reason: impl Into<String>,
    ) -> Self {
        Self {
            trigger: Trigger::Manual,
            requester: requester.into(),
            reason: reason.into(),
            deliver: false,
            ..Self::scheduled(run, job, unit)
        }
    }

    /// Runs another logic version than the current one.
    #[must_use]
    pub fn with_logic(mut self, logic: impl Into<LogicVersion>) -> Self {
        self.logic = Some(logic.into());
        self
    }

    /// Keeps the replaced rows.
    #[must_use]
    pub fn with_kept_rows(mut self) -> Self {
        self.keep_replaced = true;
        self
    }

    /// Runs even where nothing changed.
    #[must_use]
    pub fn with_force(mut self) -> Self {
        self.force = true;
        self
    }

    /// Sets what to do where another run holds a lease.
    #[must_use]
    pub fn with_when_leased(mut self, policy: WhenLeased) -> Self {
        self.when_leased = policy;
        self
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum RunOutcome {
    /// Its output is in production and in the ledger.
    Committed,
    /// It was not run, and why.
    Skipped(String),
}

fn stopped(request: &RunRequest) -> Error {
    Error::new(ErrorKind::State, "the process was stopped before the run had come to its end")
        .with_context("job", &request.job)
        .with_context("partition", &request.unit)
        .with_context("run", &request.run)
        .with_retry(true)
        .with_advice("run it again under the same id; what was committed is recognised")
}

impl Engine {
    /// Runs one partition at once, under the same leases and guards as a backfill. A failure is recorded and returned;
    /// the scheduler may run it again under the same id.
    pub async fn run(&self, request: &RunRequest, worker: &WorkerId) -> Result<RunOutcome> {
        let outcome = tokio::select! {
            biased;
            outcome = self.run_once(request, worker) => outcome?,
            () = self.stop.released() => {
                self.unlease_all().await;
                return Err(stopped(request));
            }
        };
        self.dispatch_own(worker).await;
        Ok(outcome)
    }

    async fn run_once(&self, request: &RunRequest, worker: &WorkerId) -> Result<RunOutcome> {
        self.check_run(&request.run).await?;
        let queued_at = self.clock.now();
        let mut left = self.settings.attempts.max(1);
        loop {
            left -= 1;
            // A run is about what is there when it runs: it may have waited for a backfill, and read what that replaced.
            if let Some(outcome) = self.run_planned(request, worker, queued_at, left == 0).await? {
                return Ok(outcome);
            }
        }
    }

    /// Plans and runs; `None` where production has moved since the plan, unless it was the last time.
    async fn run_planned(
        &self,
        request: &RunRequest,
        worker: &WorkerId,
        queued_at: DateTime<Utc>,
        last: bool,
    ) -> Result<Option<RunOutcome>> {
        if self.is_recorded(request).await? {
            return Ok(Some(RunOutcome::Committed));
        }
        let plan = self.plan_run(request).await?;
        if let Some(refused) = plan.refused.first() {
            return Err(Error::invalid(refused.reason.clone())
                .with_context("job", &request.job)
                .with_context("partition", &request.unit)
                .with_context("run", &request.run));
        }
        let origin = Origin {
            run: request.run.clone(),
            trigger: request.trigger,
            backfill: None,
            approval: None,
            worker: worker.clone(),
        };
        let Some(task) = plan.tasks.first() else {
            if self.adopt_unrecorded(request, &origin).await? {
                return Ok(Some(RunOutcome::Committed));
            }
            self.note_unchanged(&plan, &request.run).await?;
            let reason =
                plan.skipped.first().map_or_else(|| "nothing to do".to_owned(), |s| s.reason.to_string());
            return Ok(Some(RunOutcome::Skipped(reason)));
        };
        let beside = self.beside(&plan).await?;
        let now = self.clock.now();
        let at = Attempt {
            plan: &plan,
            task,
            origin: &origin,
            claim: None,
            beside: &beside,
            queued_at,
            started_at: now,
        };
        let ran = self.run_in_pool(&at, Noted::default()).await;
        let at = Attempt { started_at: ran.started_at, ..at };
        let error = match ran.end {
            Ok(TaskEnd::Skipped(why)) => return Ok(Some(RunOutcome::Skipped(why))),
            Ok(TaskEnd::NotBegun) => return Err(stopped(request)),
            Ok(TaskEnd::Moved(_)) if !last => {
                // Planned anew it may find nothing to do, and then nobody would come back to what is staged.
                self.drop_staged(&at).await?;
                return Ok(None);
            }
            Ok(TaskEnd::Moved(moved)) => has_moved(&moved).with_retry(true),
            Ok(_) => return Ok(Some(RunOutcome::Committed)),
            Err(error) => error,
        };
        let error = error
            .with_context("job", &request.job)
            .with_context("partition", &request.unit)
            .with_context("run", &request.run);
        let records = self.records(&at, None, RunStatus::Failed, Some(&error.to_string()))?;
        retried(self, || self.ledger.record_failed(&records)).await?;
        Err(error)
    }

    /// Tells the ledger of a commit that this run made before it died, where another run has since made the same rows, so
    /// that there is nothing left to run.
    async fn adopt_unrecorded(&self, request: &RunRequest, origin: &Origin) -> Result<bool> {
        let plan = self.plan_run(&RunRequest { force: true, ..request.clone() }).await?;
        let Some(task) = plan.tasks.first() else { return Ok(false) };
        let beside = self.beside(&plan).await?;
        let now = self.clock.now();
        let at = Attempt {
            plan: &plan,
            task,
            origin,
            claim: None,
            beside: &beside,
            queued_at: now,
            started_at: now,
        };
        Ok(self.adopt(&at, &Noted::default()).await?.is_some())
    }

    /// Refuses the id of a backfill's run: the work of the two could not be told apart.
    async fn check_run(&self, run: &RunId) -> Result<()> {
        let numbered = run.as_str().rsplit_once('.').filter(|(_, number)| number.parse::<u32>().is_ok());
        let Some((name, _)) = numbered else { return Ok(()) };
        if self.ledger.backfill(&BackfillId::new(name)).await?.is_none() {
            return Ok(());
        }
        Err(Error::invalid(format!("run ids like `{name}.1` are those of the backfill `{name}`"))
            .with_context("run", run)
            .with_advice("choose another run id"))
    }

    /// Whether the ledger has the run. A plan made now has a base from after its commit, so that the table's history
    /// could not be asked for it.
    async fn is_recorded(&self, request: &RunRequest) -> Result<bool> {
        let rows = self.ledger.run(&request.run).await?;
        let is_it = |record: &RunRecord| {
            record.status == RunStatus::Committed
                && record.job == request.job
                && record.partition.covers(&request.unit)
        };
        Ok(rows.iter().any(|row| is_it(&row.record)))
    }

    async fn plan_run(&self, request: &RunRequest) -> Result<Plan> {
        let job = self.host.catalog().job(&request.job)?;
        let logic = match &request.logic {
            Some(logic) => logic.clone(),
            None => self.host.current_logic(&request.job)?.clone(),
        };
        let selection = match request.unit.is_whole() {
            true => Selection::WholeTable,
            false => Selection::Keys(BTreeSet::from([request.unit.clone()])),
        };
        let mut as_backfill =
            Request::new(request.run.as_str(), selection, request.reason.clone(), request.requester.clone())
                .with_job(job.name.clone(), logic)
                .with_mode(Mode::Direct)
                .with_when_leased(request.when_leased)
                .without_propagation();
        as_backfill.deliver = request.deliver;
        as_backfill.force = request.force;
        as_backfill.keep_replaced = request.keep_replaced;
        // The schedule's own partitions are the live window, so it is not left out here, nor is what follows in order.
        let catalog = self.host.catalog();
        let existing = self.existing().await?;
        let needs = plan::expand_run(&as_backfill, catalog)?;
        let facts = self.facts(&as_backfill, &needs, existing).await?;
        plan::plan_run(&as_backfill, catalog, &facts, self.clock.now())
    }
}
