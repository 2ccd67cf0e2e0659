//! Runs that an external scheduler asks for, and those that nobody has asked for yet.

use chrono::{DateTime, Utc};

use crate::domain::ids::{JobName, RunId, WorkerId};
use crate::domain::interval::{Calendar, Interval};
use crate::domain::partition::{PartitionKey, Partitioning};
use crate::engine::{Engine, RunOutcome, RunRequest};
use crate::error::{Error, ErrorKind, Result};
use crate::ports::ledger::rules::Covered;

/// How the run of one unit ended.
#[derive(Debug)]
pub struct UnitRun {
    /// The unit.
    pub unit: PartitionKey,
    /// The run's id.
    pub run: RunId,
    /// How it ended.
    pub outcome: Result<RunOutcome>,
}

impl Engine {
    /// The units of a job that make up a data interval, oldest first. Refuses an interval that has not ended, and one that
    /// begins or ends in the middle of a unit.
    pub fn units_of(&self, job: &JobName, interval: &Interval) -> Result<Vec<PartitionKey>> {
        self.check_ended(job, interval.end())?;
        let (unit, calendar) = self.unit_in_time(job)?;
        let cut = |at: DateTime<Utc>| {
            let holds = calendar.key_at(at).and_then(|key| calendar.interval(&key));
            holds.filter(|holds| holds.start() != at)
        };
        if let Some(whole) = cut(interval.start()).or_else(|| cut(interval.end())) {
            let message =
                format!("the interval cuts the {} from {} to {}", calendar.grain, whole.start(), whole.end());
            return Err(Error::invalid(message).with_context("job", job).with_advice(format!(
                "give an interval of whole partitions; those of the job are {calendar}"
            )));
        }
        Ok(keys(unit, calendar, interval))
    }

    /// The units of a job that ended up to an instant and that nobody has produced yet, oldest first. They begin with
    /// `from`, or with the first unit that was ever produced.
    pub async fn missing(
        &self,
        job: &JobName,
        from: Option<&PartitionKey>,
        until: DateTime<Utc>,
    ) -> Result<Vec<PartitionKey>> {
        self.check_ended(job, until)?;
        let (unit, calendar) = self.unit_in_time(job)?;
        let produced = self.ledger.partitions(&self.host.catalog().job(job)?.output).await?;
        let first = match from {
            Some(key) => unit
                .interval(key)
                .ok_or_else(|| Error::invalid(format!("{key} is no {calendar}")).with_context("job", job))?,
            None => produced.iter().filter_map(|key| unit.interval(key)).min().ok_or_else(|| {
                Error::invalid("nothing was ever produced, so that there is no first interval")
                    .with_context("job", job)
                    .with_advice("name the first one")
            })?,
        };
        let Some(span) = Interval::new(first.start(), until) else { return Ok(Vec::new()) };
        let mut known = Covered::new();
        for key in &produced {
            known.insert(key, ());
        }
        let mut missing = keys(unit, calendar, &span);
        missing.retain(|key| {
            let ended = unit.interval(key).is_some_and(|interval| interval.end() <= until);
            ended && known.covering(key).next().is_none()
        });
        Ok(missing)
    }

    /// Runs units one after the other, each as the request says. Where a job depends on its order, the first failure ends it;
    /// else the others are run all the same. Without a run id each unit has one of its own, the same whoever asks.
    pub async fn run_units(
        &self,
        request: &RunRequest,
        run: Option<&RunId>,
        units: &[PartitionKey],
        worker: &WorkerId,
    ) -> Result<Vec<UnitRun>> {
        let in_order = self.host.catalog().job(&request.job)?.depends_on_order();
        let mut ended = Vec::new();
        for unit in units {
            let own = || RunId::new(format!("{} {} {unit}", request.trigger, request.job));
            let run = run.cloned().unwrap_or_else(own);
            let request = RunRequest { run: run.clone(), unit: unit.clone(), ..request.clone() };
            let outcome = self.run(&request, worker).await;
            let failed = outcome.is_err();
            ended.push(UnitRun { unit: unit.clone(), run, outcome });
            if failed && in_order {
                break;
            }
        }
        Ok(ended)
    }

    fn check_ended(&self, job: &JobName, end: DateTime<Utc>) -> Result<()> {
        if end <= self.clock.now() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::State, format!("the interval ends at {end}, which is not yet"))
            .with_context("job", job)
            .with_retry(true)
            .with_advice("run it when it has ended"))
    }

    fn unit_in_time(&self, job: &JobName) -> Result<(&Partitioning, &Calendar)> {
        let catalog = self.host.catalog();
        let unit = catalog.unit(catalog.job(job)?)?;
        let (_, calendar) = unit.time().ok_or_else(|| {
            Error::invalid("the job has no time dimension, so that it has no intervals")
                .with_context("job", job)
        })?;
        Ok((unit, calendar))
    }
}

fn keys(unit: &Partitioning, calendar: &Calendar, span: &Interval) -> Vec<PartitionKey> {
    calendar.keys_in(span).filter_map(|key| unit.time_key(key)).collect()
}
