//! What has changed in the sources since they were read: corrections, and rows that came late.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::domain::ids::{JobName, PartitionVersion, RunId, TableId};
use crate::domain::job::{InputSpec, JobSpec};
use crate::domain::partition::PartitionKey;
use crate::domain::slice::Slice;
use crate::engine::Engine;
use crate::engine::inspect::AT_A_TIME;
use crate::engine::pins::was_staged;
use crate::error::Result;
use crate::ports::ledger::RunRecord;

/// A partition that was computed from rows of a source that are others now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Correction {
    /// The job.
    pub job: JobName,
    /// Its output table.
    pub table: TableId,
    /// The partition; of a merge job, its unit.
    pub partition: PartitionKey,
    /// The run that computed it.
    pub run: RunId,
    /// The input.
    pub input: String,
    /// The source.
    pub source: TableId,
    /// What the run read of it.
    pub slice: Slice,
}

impl Engine {
    /// Partitions of these jobs, or of all, that were computed from rows of a source that may have changed since, or of which
    /// there may be more now, by the versions of the slices that were read: where a storage system knows versions of files only,
    /// rows that were written anew count too. Of several partitions in one commit all are named that read the slice. Sources are
    /// tables that no job of this library writes; of the others the ledger knows what is
    /// [stale](crate::ports::ledger::LedgerReader::stale).
    ///
    /// It asks each source for the versions of all slices that current runs have read of it, which reads the rows where the
    /// storage system has no versions of its own.
    pub async fn corrections(&self, jobs: &[JobName]) -> Result<Vec<Correction>> {
        let catalog = self.host.catalog();
        for job in jobs {
            catalog.job(job)?;
        }
        let written: BTreeSet<_> = catalog.jobs().map(|job| &job.output).collect();
        let mut found = Vec::new();
        for job in catalog.jobs().filter(|job| !job.external && (jobs.is_empty() || jobs.contains(&job.name)))
        {
            let sources: Vec<_> = job.inputs.iter().filter(|input| !written.contains(&input.table)).collect();
            if sources.is_empty() {
                continue;
            }
            let keys = self.ledger.partitions(&job.output).await?;
            let rows = self.ledger.current(&job.output, &keys).await?;
            let own =
                rows.into_iter().flatten().map(|row| row.record).filter(|record| record.job == job.name);
            let records: Vec<_> = own.collect();
            for input in sources {
                found.extend(self.corrected(job, input, &records).await?);
            }
        }
        found.sort_by(|a, b| (&a.job, &a.partition, &a.input).cmp(&(&b.job, &b.partition, &b.input)));
        Ok(found)
    }

    async fn corrected(
        &self,
        job: &JobSpec,
        input: &InputSpec,
        records: &[RunRecord],
    ) -> Result<Vec<Correction>> {
        let read = |record: &RunRecord| {
            let pin = record.inputs.get(&input.name)?;
            (pin.table == input.table && !was_staged(&pin.content)).then(|| pin.slice.clone())
        };
        let slices: BTreeSet<Slice> = records.iter().filter_map(read).collect();
        let now = self.contents(&input.table, slices.into_iter().collect()).await?;
        let correction = |record: &RunRecord| {
            let slice = read(record)?;
            let pin = record.inputs.get(&input.name)?;
            (now.get(&slice)? != &pin.content).then(|| Correction {
                job: job.name.clone(),
                table: job.output.clone(),
                partition: record.partition.clone(),
                run: record.run.clone(),
                input: input.name.clone(),
                source: input.table.clone(),
                slice,
            })
        };
        Ok(records.iter().filter_map(correction).collect())
    }

    /// The versions of slices as they are now.
    async fn contents(
        &self,
        table: &TableId,
        slices: Vec<Slice>,
    ) -> Result<BTreeMap<Slice, PartitionVersion>> {
        let reader = self.host.reader(table)?;
        let version = reader.current().await?;
        let mut now = BTreeMap::new();
        for some in slices.chunks(AT_A_TIME) {
            let versions = reader.slice_versions(&version, some).await?;
            now.extend(some.iter().cloned().zip(versions));
        }
        Ok(now)
    }
}
