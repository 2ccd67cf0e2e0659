//! Gathers the facts that the planner asks for.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::estimate::Sample;
use crate::domain::ids::{JobName, RunId, TableId};
use crate::domain::job::JobSpec;
use crate::domain::partition::PartitionKey;
use crate::domain::plan::facts::{
    CurrentRun, Existing, Facts, KnownBackfill, Needs, Offer, RecordedInputs, Registered,
};
use crate::domain::request::Request;
use crate::domain::slice::{Pin, Slice};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::ports::ledger::{LedgerRow, RunStatus, Trigger};
use crate::ports::reader::Availability;

impl Engine {
    /// The partitions of every output that have been computed so far.
    pub(super) async fn existing(&self) -> Result<Existing> {
        let outputs: BTreeSet<&TableId> = self.host.catalog().jobs().map(|job| &job.output).collect();
        let mut existing = Existing::new();
        for table in outputs {
            let partitions = self.ledger.partitions(table).await?;
            existing.insert(table.clone(), partitions.into_iter().collect());
        }
        Ok(existing)
    }

    pub(super) async fn facts(&self, request: &Request, needs: &Needs, existing: Existing) -> Result<Facts> {
        let mut facts = Facts {
            position: self.ledger.position().await?,
            existing,
            registered: self.registered(),
            ..Facts::default()
        };
        facts.backfill = self
            .ledger
            .backfill(&request.id)
            .await?
            .map(|b| KnownBackfill { generation: b.plan.generation, open: b.state.holds_partitions() });
        for (table, slices) in &needs.slices {
            self.read_facts(table, slices, &mut facts).await?;
        }
        for (table, scope) in &needs.bases {
            let writer = self.host.writer(table)?;
            let offers = writer.capabilities();
            let offer = Offer {
                merge: offers.merge,
                replace_dynamic: offers.replace_dynamic,
                query: offers.query,
                restore: offers.restore,
                schema_change: offers.schema_change,
                shadow: offers.shadow && writer.staged().is_some(),
            };
            facts.offers.insert(table.clone(), offer);
            facts.bases.insert(table.clone(), writer.head(scope).await?);
        }
        for (name, units) in &needs.units {
            let job = self.host.catalog().job(name)?;
            facts.current.insert(name.clone(), self.current_runs(job, units).await?);
            let recent = self.ledger.recent(name, self.settings.history_rows).await?;
            for row in &recent {
                facts.history.add(name.clone(), row.record.partition.clone(), sample(row));
            }
        }
        if let Some(run) = &needs.recorded {
            self.recorded_facts(run, &mut facts).await?;
        }
        Ok(facts)
    }

    fn registered(&self) -> BTreeMap<JobName, Registered> {
        let registered = |job: &super::Job| Registered {
            versions: job.versions.iter().map(|(v, t)| (v.clone(), t.sql().map(str::to_owned))).collect(),
            current: job.current.clone(),
        };
        self.host.jobs().map(|job| (job.spec.name.clone(), registered(job))).collect()
    }

    async fn read_facts(&self, table: &TableId, slices: &BTreeSet<Slice>, facts: &mut Facts) -> Result<()> {
        let reader = self.host.reader(table)?;
        let version = reader.current().await?;
        match reader.availability(&version).await? {
            Availability::Readable { until } => facts.readable_until.insert(table.clone(), until),
            Availability::Expired => {
                return Err(Error::new(
                    ErrorKind::PinBroken,
                    "the current version of an input cannot be read",
                )
                .with_context("table", table));
            }
        };
        let list: Vec<_> = slices.iter().cloned().collect();
        let versions = reader.slice_versions(&version, &list).await?;
        if versions.len() != list.len() {
            return Err(Error::internal("a reader answered another number of versions than slices")
                .with_context("table", table));
        }
        facts.slices.insert(table.clone(), list.into_iter().zip(versions).collect());
        facts.pins.insert(table.clone(), version);
        Ok(())
    }

    /// The current run of each unit.
    pub(super) async fn current_runs(
        &self,
        job: &JobSpec,
        units: &[PartitionKey],
    ) -> Result<BTreeMap<PartitionKey, CurrentRun>> {
        let rows = self.ledger.current(&job.output, units).await?;
        let known = units.iter().zip(rows).filter_map(|(unit, row)| Some((unit.clone(), row?)));
        // What another job, or a run over more than this unit, has written is not this unit's own run.
        let own = known.filter(|(unit, row)| row.record.job == job.name && row.record.partition == *unit);
        Ok(own.map(|(unit, row)| (unit, current_run(row))).collect())
    }

    async fn recorded_facts(&self, run: &RunId, facts: &mut Facts) -> Result<()> {
        let rows = self.ledger.run(run).await?;
        if rows.is_empty() {
            return Err(Error::not_found("the ledger has no such run").with_context("run", run));
        }
        for row in rows.into_iter().filter(|row| row.record.status == RunStatus::Committed) {
            let mut expired = Vec::new();
            for pin in row.record.inputs.values() {
                if !self.is_readable(pin).await? {
                    expired.push(pin.table.clone());
                }
            }
            let key = (row.record.job, row.record.partition);
            facts.recorded.insert(key, RecordedInputs { pins: row.record.inputs, expired });
        }
        Ok(())
    }

    async fn is_readable(&self, pin: &Pin) -> Result<bool> {
        let reader = self.host.reader(&pin.table)?;
        Ok(reader.availability(&pin.version).await? != Availability::Expired)
    }
}

fn current_run(row: LedgerRow) -> CurrentRun {
    let record = row.record;
    CurrentRun {
        run: record.run,
        fingerprint: record.fingerprint,
        output: record.output_partition,
        rolled_back: record.backfill.filter(|_| record.trigger == Trigger::Rollback),
    }
}

fn sample(row: &LedgerRow) -> Sample {
    let record = &row.record;
    let duration = record.finished_at - record.started_at;
    let after = record.after.as_ref();
    let sample =
        Sample::new(u64::try_from(duration.num_milliseconds()).unwrap_or(0), after.map_or(0, |p| p.rows));
    let sample = record.read_bytes.into_iter().fold(sample, Sample::with_read_bytes);
    after.into_iter().fold(sample, |sample, profile| sample.with_written_bytes(profile.size_bytes))
}
