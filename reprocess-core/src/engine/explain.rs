//! Questions about what is in production, answered from ledger and storage.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::domain::decimal::Decimal;
use crate::domain::ids::{BackfillId, JobName, LogicVersion, TableId};
use crate::domain::job::MatchingTotal;
use crate::domain::lineage;
use crate::domain::partition::PartitionKey;
use crate::domain::profile::Total;
use crate::domain::scope::Scope;
use crate::engine::Engine;
use crate::engine::execute::open_tasks;
use crate::error::{Error, Result};
use crate::ports::ledger::{BackfillRecord, LedgerRow, Outdated, Progress, StalePartition, TaskRecord};

/// What produced a partition, and whether it is still that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The table.
    pub table: TableId,
    /// The partition.
    pub partition: PartitionKey,
    /// The row of the run that produced it; `None` where no run has.
    pub current: Option<LedgerRow>,
    /// Whether the table is as that run left it; `None` where that cannot be said.
    pub as_left: Option<bool>,
    /// Why it is stale against what it read.
    pub stale: Vec<StalePartition>,
    /// Every row about it, newest first.
    pub history: Vec<LedgerRow>,
}

/// How far a backfill is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The backfill.
    pub backfill: BackfillRecord,
    /// Its tasks.
    pub tasks: Vec<TaskRecord>,
    /// How many are in each state.
    pub progress: Progress,
    /// When its tasks will end, going by those that have, else by earlier runs; `None` without either, or where none is open.
    pub ends_at: Option<chrono::DateTime<chrono::Utc>>,
}

/// A declared total, and whether it agrees in each partition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Reconciliation {
    /// The job that declares it.
    pub job: JobName,
    /// The total.
    pub total: MatchingTotal,
    /// Every partition of the job's output that a run has produced.
    pub partitions: Vec<Reconciled>,
}

/// Whether a total agrees with that of the layer below.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reconciled {
    /// Partition of the upper table.
    pub partition: PartitionKey,
    /// Its total; `None` where no run has produced it or the column is not totalled.
    pub upper: Option<Decimal>,
    /// Total over the partitions that it reads of the lower table.
    pub lower: Option<Decimal>,
    /// Whether both are there and equal.
    pub agrees: bool,
}

impl Engine {
    /// What produced a partition.
    pub async fn explain(&self, table: &TableId, partition: &PartitionKey) -> Result<Explanation> {
        let partitioning = &self.host.catalog().table(table)?.partitioning;
        let partition = match self.unit_of(table, partition) {
            Some(unit) => unit,
            None => partitioning.check_key(partition)?,
        };
        let current =
            self.ledger.current(table, std::slice::from_ref(&partition)).await?.into_iter().flatten().next();
        let history = self.ledger.history(table, &partition, self.settings.history_rows).await?;
        let as_left = match &current {
            Some(row) => self.is_as_left(row).await?,
            None => None,
        };
        let mut stale = self.ledger.stale().await?;
        stale.retain(|s| s.table == *table && s.partition.overlaps(&partition));
        Ok(Explanation { table: table.clone(), partition, current, as_left, stale, history })
    }

    /// The key as a unit of a merge job that writes the table, whose units are not its partitions.
    fn unit_of(&self, table: &TableId, key: &PartitionKey) -> Option<PartitionKey> {
        let jobs = self.host.catalog().jobs().filter(|job| job.output == *table);
        jobs.filter_map(|job| job.unit.as_ref()?.check_key(key).ok()).next()
    }

    async fn is_as_left(&self, row: &LedgerRow) -> Result<Option<bool>> {
        let record = &row.record;
        let Ok(scope) = Scope::key(record.partition.clone()) else { return Ok(None) };
        let Some(left) = record.output_partition.as_ref().filter(|_| record.scope.covers(&record.partition))
        else {
            return Ok(None);
        };
        if record.scope.is_whole_table() {
            return Ok(None);
        }
        let head = self.host.writer(&record.table)?.head(&scope).await?;
        Ok(head.partitions.get(&record.partition).map(|version| version == left))
    }

    /// How far a backfill is, and when it ends.
    pub async fn status(&self, id: &BackfillId) -> Result<Status> {
        let backfill = self.backfill(id).await?;
        let tasks = self.ledger.tasks(id).await?;
        let progress = self.ledger.progress(id).await?;
        // What waits for a review has no end that could be told.
        let open = match backfill.state.runs_tasks() {
            true => open_tasks(&backfill, tasks.clone()).len(),
            false => 0,
        };
        let ends_at = match (open, progress.timed) {
            (0, _) => None,
            // Nothing of it has ended: as long as earlier runs took.
            (_, 0) => backfill.plan.estimate.wall_ms.and_then(|ms| after_ms(self.clock.now(), ms)),
            (open, timed) => {
                let rounds =
                    u64::try_from(open).unwrap_or(u64::MAX).div_ceil(u64::from(backfill.concurrency.max(1)));
                let left_ms = (progress.busy_ms / timed).saturating_mul(rounds);
                after_ms(self.clock.now(), left_ms)
            }
        };
        Ok(Status { backfill, tasks, progress, ends_at })
    }

    /// Production partitions on another logic version than the one that the schedule runs.
    pub async fn outdated(&self) -> Result<Vec<Outdated>> {
        let mut versions = BTreeMap::<JobName, LogicVersion>::new();
        for job in self.host.catalog().jobs() {
            if let Ok(logic) = self.host.current_logic(&job.name) {
                versions.insert(job.name.clone(), logic.clone());
            }
        }
        self.ledger.outdated(&versions).await
    }

    /// Whether the totals of a job's output agree with those of the input that it adds up, for every partition that has
    /// been computed.
    ///
    /// `upper` is a totalled column of the job's output, `lower` one of the input's table. Only exact totals agree.
    pub async fn reconcile(
        &self,
        job: &JobName,
        input: &str,
        upper: &str,
        lower: &str,
    ) -> Result<Vec<Reconciled>> {
        let catalog = self.host.catalog();
        let job = catalog.job(job)?;
        let input = job.inputs.iter().find(|i| i.name == input).ok_or_else(|| {
            Error::invalid(format!("the job has no input `{input}`")).with_context("job", &job.name)
        })?;
        let below = &catalog.table(&input.table)?.partitioning;
        let lower_keys = self.ledger.partitions(&input.table).await?;
        let lower_totals = self.totals(&input.table, &lower_keys, lower).await?;
        let upper_keys = self.ledger.partitions(&job.output).await?;
        let upper_totals = self.totals(&job.output, &upper_keys, upper).await?;
        let mut all = Vec::new();
        for (partition, upper) in upper_keys.into_iter().zip(upper_totals) {
            let slice = lineage::slice(catalog, job, input, std::slice::from_ref(&partition))?;
            let mapped = lower_keys
                .iter()
                .zip(&lower_totals)
                .filter(|(key, _)| slice.as_ref().is_some_and(|slice| slice.may_hold(below, key)));
            let lower = mapped
                .map(|(_, total)| *total)
                .try_fold(Decimal::ZERO, |sum, total| sum.checked_add(&total?));
            all.push(Reconciled { agrees: upper.is_some() && upper == lower, partition, upper, lower });
        }
        Ok(all)
    }

    /// Whether the totals agree that these jobs, or all, [declare](crate::domain::job::JobSpec::with_matching_total), for every partition
    /// that has been computed.
    pub async fn reconcile_declared(&self, jobs: &[JobName]) -> Result<Vec<Reconciliation>> {
        let catalog = self.host.catalog();
        for job in jobs {
            catalog.job(job)?;
        }
        let mut all = Vec::new();
        for job in catalog.jobs().filter(|job| jobs.is_empty() || jobs.contains(&job.name)) {
            for total in &job.matching_totals {
                let partitions = self.reconcile(&job.name, &total.input, &total.column, &total.of).await?;
                all.push(Reconciliation { job: job.name.clone(), total: total.clone(), partitions });
            }
        }
        Ok(all)
    }

    async fn totals(
        &self,
        table: &TableId,
        keys: &[PartitionKey],
        column: &str,
    ) -> Result<Vec<Option<Decimal>>> {
        let rows = self.ledger.current(table, keys).await?;
        let total = |row: Option<LedgerRow>| match row?.record.after?.totals.get(column)? {
            Total::Exact(decimal) => Some(*decimal),
            Total::Empty => Some(Decimal::ZERO),
            Total::Float { .. } => None,
        };
        Ok(rows.into_iter().map(total).collect())
    }
}

fn after_ms(now: chrono::DateTime<chrono::Utc>, ms: u64) -> Option<chrono::DateTime<chrono::Utc>> {
    now.checked_add_signed(chrono::Duration::milliseconds(i64::try_from(ms).unwrap_or(i64::MAX)))
}
