//! What others rely on: partitions that were, or will be, ready too late, and what went on meanwhile.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::domain::estimate;
use crate::domain::ids::{BackfillId, JobName, TableId};
use crate::domain::interval::Interval;
use crate::domain::job::JobSpec;
use crate::domain::partition::PartitionKey;
use crate::engine::Engine;
use crate::error::Result;
use crate::ports::ledger::{BackfillRecord, BackfillState, LedgerRow, QueueTime, RunStatus, Trigger};

/// Which partitions were not ready when they were to be, and how long tasks waited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Readiness {
    /// Of intervals that ended from then on.
    pub since: DateTime<Utc>,
    /// Up to now.
    pub until: DateTime<Utc>,
    /// Partitions that were late, are missing or will be late, by job and time.
    pub unready: Vec<Unready>,
    /// How long tasks that started meanwhile had waited, by what made them run.
    pub waits: BTreeMap<Trigger, QueueTime>,
}

/// A partition that was not ready when it was to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Unready {
    /// The job.
    pub job: JobName,
    /// Its output table.
    pub table: TableId,
    /// The partition.
    pub partition: PartitionKey,
    /// When it was to be ready.
    pub due_at: DateTime<Utc>,
    /// When it was there for the first time; `None` where it is not.
    pub ready_at: Option<DateTime<Utc>>,
    /// What is wrong with it.
    pub lateness: Lateness,
    /// How long the run that made it had waited, in milliseconds.
    pub waited_ms: Option<u64>,
    /// Backfills that were open between the end of its interval and when it was ready.
    pub beside: Vec<BackfillId>,
}

/// How a partition is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Lateness {
    /// It was ready too late.
    Late,
    /// It is due and not there.
    Missing,
    /// It is not due yet, and will be late even if its run starts now, going by earlier runs.
    AtRisk,
}

impl Engine {
    /// Partitions whose intervals ended since an instant and that were not ready in the time that their jobs
    /// [promise](JobSpec::with_ready_within), with the backfills that were open meanwhile and how long tasks waited. Of jobs
    /// that run outside of this library nothing is known, and of those with tasks for single keys of a period not when all
    /// of them were there, so that they are left out.
    pub async fn readiness(&self, since: DateTime<Utc>) -> Result<Readiness> {
        let until = self.clock.now();
        let mut readiness = Readiness { since, until, unready: Vec::new(), waits: BTreeMap::new() };
        // What ended at the first instant, and what began at the last, is among it.
        let moment = TimeDelta::microseconds(1);
        let Some(span) = Interval::new(since - moment, until + moment) else { return Ok(readiness) };
        readiness.waits = self.ledger.queue_times(&span).await?;
        let backfills = self.ledger.backfills(&[]).await?;
        let jobs = self.host.catalog().jobs();
        for job in jobs.filter(|job| !job.external && job.keyed_by.is_empty()) {
            if let Some(promised_s) = job.ready_within_s {
                let promised = i64::try_from(promised_s).ok().and_then(TimeDelta::try_seconds);
                let promised = promised.unwrap_or(TimeDelta::MAX);
                readiness.unready.extend(self.unready(job, promised, &span, until, &backfills).await?);
            }
        }
        Ok(readiness)
    }

    async fn unready(
        &self,
        job: &JobSpec,
        promised: TimeDelta,
        span: &Interval,
        now: DateTime<Utc>,
        backfills: &[BackfillRecord],
    ) -> Result<Vec<Unready>> {
        let unit = self.host.catalog().unit(job)?;
        let Some((_, calendar)) = unit.time() else { return Ok(Vec::new()) };
        let usual = self.usual_duration(job).await?;
        let mut found = Vec::new();
        for value in calendar.keys_in(span) {
            let Some((partition, interval)) = unit.time_key(value.clone()).zip(calendar.interval(&value))
            else {
                continue;
            };
            if interval.end() > now {
                continue;
            }
            let due_at = interval.end().checked_add_signed(promised).unwrap_or(DateTime::<Utc>::MAX_UTC);
            let first = self.first_made(job, &partition, interval.end()).await?;
            let ready_at = first.as_ref().map(|row| row.record.finished_at);
            let Some(lateness) = lateness(due_at, ready_at, now, usual) else { continue };
            let meanwhile = (interval.end(), ready_at.unwrap_or(now));
            let open = backfills.iter().filter(|backfill| was_open(backfill, meanwhile));
            found.push(Unready {
                job: job.name.clone(),
                table: job.output.clone(),
                partition,
                due_at,
                ready_at,
                lateness,
                waited_ms: first.map(|row| wait_ms(&row)),
                beside: open.map(|backfill| backfill.plan.request.id.clone()).collect(),
            });
        }
        Ok(found)
    }

    /// The row of the run that made a partition for the first time since its interval had ended.
    async fn first_made(
        &self,
        job: &JobSpec,
        partition: &PartitionKey,
        ended_at: DateTime<Utc>,
    ) -> Result<Option<LedgerRow>> {
        let rows = self.ledger.history(&job.output, partition, u32::MAX).await?;
        let made = |row: &LedgerRow| {
            let record = &row.record;
            let whole = record.partition.covers(partition) && record.job == job.name;
            whole && record.status == RunStatus::Committed && record.finished_at >= ended_at
        };
        Ok(rows.into_iter().rev().find(made))
    }

    /// The median of how long earlier runs of a job took.
    async fn usual_duration(&self, job: &JobSpec) -> Result<TimeDelta> {
        let rows = self.ledger.recent(&job.name, self.settings.history_rows).await?;
        let took = rows.iter().map(|row| ms(row.record.finished_at - row.record.started_at));
        let median_ms = estimate::median(took.collect()).unwrap_or(0);
        Ok(TimeDelta::milliseconds(i64::try_from(median_ms).unwrap_or(i64::MAX)))
    }
}

/// Whether a backfill may have worked in a span of time: it was submitted before its end, and was not over before its
/// beginning. One that was closed later may have been over long before, which is not known.
fn was_open(backfill: &BackfillRecord, (start, end): (DateTime<Utc>, DateTime<Utc>)) -> bool {
    let state = backfill.state;
    let works = state.holds_partitions() || state.runs_tasks();
    let over_since = backfill.changed_at >= start && state != BackfillState::Closed;
    backfill.submitted_at < end && (works || over_since)
}

fn lateness(
    due_at: DateTime<Utc>,
    ready_at: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
    usual: TimeDelta,
) -> Option<Lateness> {
    let at_the_earliest = now.checked_add_signed(usual).unwrap_or(DateTime::<Utc>::MAX_UTC);
    match ready_at {
        Some(ready_at) => (ready_at > due_at).then_some(Lateness::Late),
        None if now > due_at => Some(Lateness::Missing),
        None => (at_the_earliest > due_at).then_some(Lateness::AtRisk),
    }
}

fn wait_ms(row: &LedgerRow) -> u64 {
    ms(row.record.started_at - row.record.queued_at)
}

fn ms(span: TimeDelta) -> u64 {
    u64::try_from(span.num_milliseconds()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_late_missing_or_at_risk() {
        let at = |s| DateTime::UNIX_EPOCH + TimeDelta::seconds(s);
        let check = |ready: Option<i64>, now, usual, expected| {
            let found = lateness(at(100), ready.map(at), at(now), TimeDelta::seconds(usual));
            assert_eq!(found, expected, "ready at {ready:?}, now {now}, usual {usual}");
        };
        check(Some(100), 500, 0, None);
        check(Some(101), 500, 0, Some(Lateness::Late));
        check(None, 101, 0, Some(Lateness::Missing));
        check(None, 90, 10, None);
        check(None, 90, 11, Some(Lateness::AtRisk));
        check(None, 100, 0, None);
    }
}
