//! What is not as it should be: tables that others have changed, and what will go wrong later.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::domain::ids::{RunId, TableId};
use crate::domain::job::{JobSpec, WriteMode};
use crate::domain::partition::PartitionKey;
use crate::domain::profile::Profile;
use crate::domain::scope::Scope;
use crate::engine::Engine;
use crate::error::Result;
use crate::ports::delivery::DeliveryState;
use crate::ports::ledger::{BackfillState, DeliveryFilter, LedgerRow};
use crate::ports::reader::Availability;

/// A difference between clocks that is worth telling.
const SKEW: TimeDelta = TimeDelta::seconds(1);

/// How many partitions or slices of a table are asked for at a time.
pub(super) const AT_A_TIME: usize = 500;

/// A partition that holds other rows than the run left that the ledger has for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drift {
    /// The table.
    pub table: TableId,
    /// The partition.
    pub partition: PartitionKey,
    /// The run.
    pub run: RunId,
    /// How many rows it left; `None` where the ledger does not know.
    pub rows_recorded: Option<u64>,
    /// How many there are.
    pub rows_found: u64,
}

/// Something that a host or its ledger should be told of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: FindingSeverity,
    /// What it is about: the ledger, or a job, a table, a backfill by name.
    pub about: String,
    /// What was found.
    pub text: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingSeverity {
    /// Something cannot be done.
    Warning,
    /// Something will go wrong.
    Problem,
}

impl Engine {
    /// Partitions of some tables, or of all that jobs write, that hold other rows than the ledger recorded. A table whose
    /// files were only rewritten has not drifted. Of units that are merged into the same rows nothing can be said.
    pub async fn drift(&self, tables: &[TableId]) -> Result<Vec<Drift>> {
        let mut found = Vec::new();
        let mut outputs = BTreeMap::new();
        for job in self.host.catalog().jobs().filter(|job| !job.external) {
            outputs.entry(&job.output).or_insert(job);
        }
        for table in tables {
            self.host.writer(table)?;
        }
        for (table, job) in outputs {
            if !tables.is_empty() && !tables.contains(table) {
                continue;
            }
            let keys = self.ledger.partitions(table).await?;
            let rows = self.ledger.current(table, &keys).await?;
            let with_version = |row: &LedgerRow| {
                row.record.output_partition.is_some() && row.record.scope.covers(&row.record.partition)
            };
            let rows: Vec<_> = rows.into_iter().flatten().filter(with_version).collect();
            for some in rows.chunks(AT_A_TIME) {
                found.extend(self.drifted(job, some).await?);
            }
        }
        Ok(found)
    }

    async fn drifted(&self, job: &JobSpec, rows: &[LedgerRow]) -> Result<Vec<Drift>> {
        let writer = self.host.writer(&job.output)?.as_ref();
        let Some(scope) = scope_of(rows.iter().map(|row| &row.record.partition)) else {
            return Ok(Vec::new());
        };
        let head = writer.head(&scope).await?;
        let moved = |row: &&LedgerRow| {
            head.partitions.get(&row.record.partition) != row.record.output_partition.as_ref()
        };
        let moved: Vec<_> = rows.iter().filter(moved).collect();
        let Some(scope) = scope_of(moved.iter().map(|row| &row.record.partition)) else {
            return Ok(Vec::new());
        };
        let (_, now) = writer.profile(&scope, &job.profile).await?;
        let drift = |row: &&LedgerRow| {
            let record = &row.record;
            let now = now.iter().find(|profile| profile.partition == record.partition)?;
            let recorded = record.after.as_ref();
            // Digests of other algorithms cannot be compared, which is no difference.
            let same = |then: &Profile| {
                then.content.algorithm != now.content.algorithm || then.content == now.content
            };
            (!recorded.is_some_and(same)).then(|| Drift {
                table: record.table.clone(),
                partition: record.partition.clone(),
                run: record.run.clone(),
                rows_recorded: recorded.map(|profile| profile.rows),
                rows_found: now.rows,
            })
        };
        Ok(moved.iter().filter_map(drift).collect())
    }

    /// Looks for what will go wrong: code that is missing, tables that cannot do what their jobs need, inputs of open
    /// backfills that can no longer be read, or not until they end, deliveries that wait for a person or for a sink, a clock that
    /// differs from that of the ledger.
    pub async fn examine(&self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        for job in self.host.catalog().jobs().filter(|job| !job.external) {
            findings.extend(self.examine_job(job).await);
        }
        findings.extend(self.examine_clock().await?);
        findings.extend(self.examine_pins().await?);
        findings.extend(self.examine_deliveries().await?);
        Ok(findings)
    }

    async fn examine_job(&self, job: &JobSpec) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut add = |severity, text: String| {
            findings.push(Finding { severity, about: format!("job {}", job.name), text });
        };
        if self.host.current_logic(&job.name).is_err() {
            add(
                FindingSeverity::Warning,
                "no logic version is registered, so that nothing runs it".to_owned(),
            );
        }
        if job.write == WriteMode::Append {
            add(FindingSeverity::Problem, "it appends, so that it can never be run again".to_owned());
        }
        let Ok(writer) = self.host.writer(&job.output) else { return findings };
        let offers = writer.capabilities();
        if matches!(job.write, WriteMode::Merge(_)) && !offers.merge {
            add(FindingSeverity::Problem, format!("the backend of table {} does not merge", job.output));
        }
        if !(offers.shadow && writer.staged().is_some()) {
            let text =
                format!("table {} has no shadow: nothing can be reviewed before it is published", job.output);
            add(FindingSeverity::Warning, text);
        }
        if !offers.restore {
            let text =
                format!("table {} keeps nothing that was replaced: no rollback is possible", job.output);
            add(FindingSeverity::Warning, text);
        }
        if let Err(error) = writer.schema().await {
            add(
                FindingSeverity::Problem,
                format!("table {} cannot be asked for its columns: {error}", job.output),
            );
        }
        findings
    }

    /// Leases run out by the ledger's clock, but times in its rows are those of the workers.
    async fn examine_clock(&self) -> Result<Option<Finding>> {
        let before = self.clock.now();
        let Some(told) = self.ledger.time().await? else { return Ok(None) };
        let skew = skew(before, told, self.clock.now());
        Ok((skew.abs() >= SKEW).then(|| Finding {
            severity: FindingSeverity::Warning,
            about: "the ledger".to_owned(),
            text: format!(
                "its clock is {} ms {} that of this process: waits and durations of its rows are wrong by so much",
                skew.num_milliseconds().abs(),
                if skew > TimeDelta::zero() { "ahead of" } else { "behind" }
            ),
        }))
    }

    async fn examine_pins(&self) -> Result<Vec<Finding>> {
        let open: Vec<_> = BackfillState::ALL.into_iter().filter(|state| state.holds_partitions()).collect();
        let mut findings = Vec::new();
        for record in self.ledger.backfills(&open).await? {
            let about = format!("backfill {}", record.plan.request.id);
            let ends_at = self.status(&record.plan.request.id).await?.ends_at;
            for (table, pins) in self.pins_by_table(&record.plan) {
                let Ok(reader) = self.host.reader(&table) else { continue };
                for pin in pins {
                    let text = match reader.availability(&pin.version).await {
                        Ok(Availability::Readable { until }) => match until.zip(ends_at) {
                            Some((until, ends_at)) if until < ends_at => format!(
                                "{} of table {table} can be read until {until}, and the tasks will end at {ends_at}",
                                pin.slice
                            ),
                            _ => continue,
                        },
                        Ok(Availability::Expired) => {
                            format!(
                                "{} of table {table} can no longer be read at version {}",
                                pin.slice, pin.version
                            )
                        }
                        Err(error) => {
                            format!("table {table} cannot be asked for version {}: {error}", pin.version)
                        }
                    };
                    findings.push(Finding { severity: FindingSeverity::Problem, about: about.clone(), text });
                }
            }
        }
        Ok(findings)
    }

    async fn examine_deliveries(&self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        let served = self.host.channels();
        for (state, what) in [
            (DeliveryState::Unknown, "nobody can say whether they were sent: decide about them"),
            (DeliveryState::Dead, "were not taken: decide about them"),
            (DeliveryState::Released, "wait to be sent, and no sink of this host serves them"),
        ] {
            let filter = DeliveryFilter { state: Some(state), ..DeliveryFilter::default() };
            let mut by_channel = BTreeMap::<String, usize>::new();
            for record in self.ledger.deliveries(&filter).await? {
                let channel = record.delivery.channel;
                if state != DeliveryState::Released || !served.contains(&channel) {
                    *by_channel.entry(channel).or_default() += 1;
                }
            }
            findings.extend(by_channel.into_iter().map(|(channel, count)| Finding {
                severity: FindingSeverity::Warning,
                about: format!("channel {channel}"),
                text: format!("{count} deliveries {what}"),
            }));
        }
        Ok(findings)
    }
}

/// How far a clock is ahead of ours, which was read before and after it: at least so far, in whichever direction.
fn skew(before: DateTime<Utc>, told: DateTime<Utc>, after: DateTime<Utc>) -> TimeDelta {
    match told {
        told if told < before => told - before,
        told if told > after => told - after,
        _ => TimeDelta::zero(),
    }
}

/// A scope of all the keys; `None` where there are none.
fn scope_of<'a>(keys: impl Iterator<Item = &'a PartitionKey>) -> Option<Scope> {
    let keys: Vec<_> = keys.cloned().collect();
    match keys.iter().any(PartitionKey::is_whole) {
        true => Some(Scope::whole_table()),
        false => Scope::keys(keys).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_differs_by_what_the_question_does_not_explain() {
        let at = |ms| DateTime::UNIX_EPOCH + TimeDelta::milliseconds(ms);
        assert_eq!(skew(at(100), at(100), at(300)), TimeDelta::zero());
        assert_eq!(skew(at(100), at(300), at(300)), TimeDelta::zero());
        assert_eq!(skew(at(100), at(1500), at(300)), TimeDelta::milliseconds(1200), "ahead");
        assert_eq!(skew(at(100), at(-900), at(300)), TimeDelta::milliseconds(-1000), "behind");
    }
}
