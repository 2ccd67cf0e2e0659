//! Gathers the facts that the planner asks for.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::estimate::Sample;
use crate::domain::ids::{BackfillId, JobName, PartitionVersion, RunId, TableId, TableVersion};
use crate::domain::job::{JobSpec, WriteMode};
use crate::domain::lineage;
use crate::domain::partition::PartitionKey;
use crate::domain::plan::facts::{
    CurrentRun, Existing, Facts, KnownBackfill, Needs, Offer, RecordedInputs, Registered,
};
use crate::domain::request::Request;
use crate::domain::scope::Scope;
use crate::domain::slice::{Base, Pin, Slice};
use crate::engine::Engine;
use crate::engine::pins::was_staged;
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
        let mut facts = self.ledger_facts(&request.id).await?;
        facts.existing = existing;
        if request.propagate {
            facts.outputs = self.outputs(request.jobs.keys()).await?;
        }
        for (table, slices) in &needs.slices {
            self.read_facts(table, slices, &mut facts).await?;
        }
        for (table, scopes) in &needs.bases {
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
            let mut base: Option<Base> = None;
            for scope in scopes {
                let head = writer.head(scope).await?;
                // The table's version is the earlier one, from which on a commit is looked for.
                match &mut base {
                    Some(base) => base.partitions.extend(head.partitions),
                    None => base = Some(head),
                }
            }
            facts.bases.extend(base.map(|base| (table.clone(), base)));
        }
        for (name, units) in &needs.units {
            let job = self.host.catalog().job(name)?;
            let base = facts.bases.get(&job.output).filter(|_| matches!(job.write, WriteMode::Merge(_)));
            if let Some(base) = base {
                let position = self.lost_before(&job.output, base).await?;
                facts.lost_before.insert(job.output.clone(), position);
            }
            let rows = self.current_rows(job, units).await?;
            facts.settled.insert(name.clone(), self.settled(job, &rows).await?);
            facts
                .current
                .insert(name.clone(), rows.into_iter().map(|(unit, row)| (unit, current_run(row))).collect());
        }
        for job in lineage::downstream_jobs(self.host.catalog(), request.jobs.keys())? {
            for row in self.ledger.recent(job, self.settings.history_rows).await? {
                facts.history.add(job.clone(), row.record.partition.clone(), sample(&row));
            }
        }
        if let Some(run) = &needs.recorded {
            self.recorded_facts(run, &mut facts).await?;
        }
        Ok(facts)
    }

    /// What every plan needs to know.
    pub(super) async fn ledger_facts(&self, id: &BackfillId) -> Result<Facts> {
        let position = self.ledger.position().await?;
        let known = self.ledger.backfill(id).await?;
        let backfill =
            known.map(|b| KnownBackfill { generation: b.plan.generation, open: b.state.holds_partitions() });
        Ok(Facts { position, backfill, registered: self.registered(), ..Facts::default() })
    }

    /// Versions of the tables that jobs downstream of these write.
    pub(super) async fn outputs<'a>(
        &'a self,
        of: impl Iterator<Item = &'a JobName>,
    ) -> Result<BTreeMap<TableId, TableVersion>> {
        let catalog = self.host.catalog();
        let mut outputs = BTreeMap::new();
        for name in lineage::downstream_jobs(catalog, of)? {
            let job = catalog.job(name)?;
            if job.external || outputs.contains_key(&job.output) {
                continue;
            }
            let head = self.host.writer(&job.output)?.head(&Scope::whole_table()).await?;
            outputs.insert(job.output.clone(), head.table);
        }
        Ok(outputs)
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

    /// The row of the current run of each unit.
    async fn current_rows(
        &self,
        job: &JobSpec,
        units: &[PartitionKey],
    ) -> Result<BTreeMap<PartitionKey, LedgerRow>> {
        let rows = self.ledger.current(&job.output, units).await?;
        let known = units.iter().zip(rows).filter_map(|(unit, row)| Some((unit.clone(), row?)));
        // What another job, or a run over more than this unit, has written is not this unit's own run.
        let own = known.filter(|(unit, row)| row.record.job == job.name && row.record.partition == *unit);
        Ok(own.collect())
    }

    /// Position up to which rows that runs have merged may be lost: each commit after it found what the one before had
    /// left, up to the head. What lies further back than the last rows counts as lost, which costs work only.
    pub(super) async fn lost_before(&self, table: &TableId, head: &Base) -> Result<u64> {
        const LAST: u32 = 1000;
        let whole = PartitionKey::whole();
        let Some(head) = head.partitions.get(&whole) else { return Ok(0) };
        let rows = self.ledger.history(table, &whole, LAST).await?;
        let committed = rows.iter().filter(|row| row.record.status == RunStatus::Committed);
        let (mut left, mut found) = (None, Some(head));
        for row in committed {
            let output = row.record.output_partition.as_ref();
            // Several rows of one commit have left the same.
            if output.is_none() || (output != found && output != left) {
                return Ok(row.position);
            }
            if output == found {
                (left, found) = (found, row.record.base.as_ref());
            }
        }
        let is_all = rows.len() < usize::try_from(LAST).unwrap_or(usize::MAX);
        Ok(rows.last().filter(|_| !is_all).map_or(0, |row| row.position))
    }

    /// For each unit the inputs that its run read while they were staged, where production holds just that since.
    async fn settled(
        &self,
        job: &JobSpec,
        rows: &BTreeMap<PartitionKey, LedgerRow>,
    ) -> Result<BTreeMap<PartitionKey, BTreeMap<String, PartitionVersion>>> {
        let mut settled = BTreeMap::<_, BTreeMap<_, _>>::new();
        for (unit, row) in rows {
            let staged = row.record.inputs.iter().filter(|(_, pin)| was_staged(&pin.content));
            for (name, pin) in staged.filter(|(name, _)| job.inputs.iter().any(|input| input.name == **name))
            {
                if self.is_settled(pin, row.position).await? {
                    settled.entry(unit.clone()).or_default().insert(name.clone(), pin.content.clone());
                }
            }
        }
        Ok(settled)
    }

    /// Whether every period of the pin's slice is as a run has left it that was recorded before `position`: what was
    /// staged then was published with, or before, the run that read it, and nothing has come since.
    async fn is_settled(&self, pin: &Pin, position: u64) -> Result<bool> {
        let Slice::Time(slice) = &pin.slice else { return Ok(false) };
        let Some((column, calendar)) = self.host.catalog().table(&pin.table)?.partitioning.time() else {
            return Ok(false);
        };
        let periods: Vec<_> =
            calendar.keys_in(&slice.interval).map(|v| PartitionKey::of(column, v)).collect();
        let rows = self.ledger.current(&pin.table, &periods).await?;
        let head = self.host.writer(&pin.table)?.head(&Scope::keys(periods.iter().cloned())?).await?;
        let as_left = |(period, row): (&PartitionKey, Option<LedgerRow>)| {
            row.is_some_and(|row| {
                let left = row.record.output_partition.as_ref();
                row.position <= position && left.is_some() && left == head.partitions.get(period)
            })
        };
        Ok(periods.iter().zip(rows).all(as_left))
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
        position: row.position,
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
