//! What owners and schedulers are told. It goes the way of all deliveries: filed in the ledger, sent once, also after a crash.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::delivery::{Delivery, OWN_KEYS};
use super::ledger::{BackfillState, LedgerRow, RunRecord, RunStatus, Trigger};
use crate::domain::ids::{BackfillId, JobName, LogicVersion, RunId, TableId};
use crate::domain::interval::Interval;
use crate::domain::partition::PartitionKey;
use crate::domain::profile::{Profile, Total};
use crate::error::{Error, Result};

/// Channel of [`Notice`]s.
pub const NOTICES: &str = "notices";
/// Channel of [`Event`]s.
pub const EVENTS: &str = "events";

/// What an owner of jobs and exposures is told of a backfill, once for each state that it reaches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// The backfill.
    pub backfill: BackfillId,
    /// Its generation.
    pub generation: u32,
    /// The state it reached.
    pub state: BackfillState,
    /// Who is told.
    pub owner: String,
    /// What happened, in a sentence.
    pub text: String,
    /// Why the backfill was asked for.
    pub reason: String,
    /// What is in production since, in all and by partition; empty where nothing is.
    pub changes: Vec<TableChange>,
}

/// What a backfill changed in a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableChange {
    /// The table.
    pub table: TableId,
    /// Over all partitions.
    pub all: Change,
    /// Each partition that was written.
    pub partitions: Vec<(PartitionKey, Change)>,
}

/// Before and after; `None` where it is not known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// What was there.
    pub before: Option<Numbers>,
    /// What is there.
    pub after: Option<Numbers>,
}

/// What rows amount to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Numbers {
    /// Number of rows.
    pub rows: u64,
    /// Totals by column; without those that are not known of every partition.
    pub totals: BTreeMap<String, Total>,
}

/// A partition was published: for schedulers that start work when their inputs change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The table.
    pub table: TableId,
    /// The partition; for a merge job, its unit.
    pub partition: PartitionKey,
    /// Where its time begins, included; `None` where it has no time.
    pub data_interval_start: Option<DateTime<Utc>>,
    /// Where its time ends, excluded.
    pub data_interval_end: Option<DateTime<Utc>>,
    /// The job.
    pub job: JobName,
    /// The run.
    pub run: RunId,
    /// What made it happen.
    pub trigger: Trigger,
    /// The backfill, where it is of one.
    pub backfill: Option<BackfillId>,
    /// The logic version, where known.
    pub logic: Option<LogicVersion>,
}

/// What a job is to compute that runs outside of this library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The job.
    pub job: JobName,
    /// The table it writes.
    pub table: TableId,
    /// The partition.
    pub partition: PartitionKey,
    /// Where its time begins, included; `None` where it has no time.
    pub data_interval_start: Option<DateTime<Utc>>,
    /// Where its time ends, excluded.
    pub data_interval_end: Option<DateTime<Utc>>,
    /// The backfill that changed what it reads.
    pub backfill: BackfillId,
    /// Its run.
    pub run: RunId,
    /// Why the backfill was asked for.
    pub reason: String,
}

impl Start {
    /// As it is sent: under one key, however often it is.
    pub(crate) fn delivery(&self, channel: &str) -> Result<Delivery> {
        let Self { run, job, partition, .. } = self;
        own(format!("{OWN_KEYS}start/{run}/{job}/{partition}"), channel, self)
    }
}

impl Notice {
    /// The notice as a delivery, whose key is the same whoever files it.
    pub(crate) fn delivery(&self) -> Result<Delivery> {
        let Self { backfill, generation, state, owner, .. } = self;
        let key = format!("{OWN_KEYS}notice/{backfill}/{generation}/{}/{owner}", state.name());
        own(key, NOTICES, self)
    }
}

impl Event {
    /// The event of a record as a delivery, whose key is the same whoever files it.
    pub(crate) fn delivery(record: &RunRecord, interval: Option<Interval>) -> Result<Delivery> {
        let RunRecord { run, table, partition, stamp, .. } = record;
        let event = Self {
            table: table.clone(),
            partition: partition.clone(),
            data_interval_start: interval.map(|interval| interval.start()),
            data_interval_end: interval.map(|interval| interval.end()),
            job: record.job.clone(),
            run: run.clone(),
            trigger: record.trigger,
            backfill: record.backfill.clone(),
            logic: record.logic.clone(),
        };
        own(format!("{OWN_KEYS}event/{run}/{table}/{partition}/{}", stamp.scope_digest), EVENTS, &event)
    }
}

fn own(key: String, channel: &str, payload: &impl Serialize) -> Result<Delivery> {
    let payload = serde_json::to_value(payload)
        .map_err(|e| Error::internal("what is told has no JSON form").with_source(e))?;
    Ok(Delivery { key, channel: channel.to_owned(), payload })
}

/// What rows of the ledger changed, by table: of each partition what was there before the first of them and what is there
/// after the last.
pub(crate) fn changes(rows: &[LedgerRow]) -> Vec<TableChange> {
    let mut tables = BTreeMap::<&TableId, BTreeMap<&PartitionKey, (&RunRecord, &RunRecord)>>::new();
    for row in rows.iter().filter(|row| row.record.status == RunStatus::Committed) {
        let partitions = tables.entry(&row.record.table).or_default();
        partitions.entry(&row.record.partition).or_insert((&row.record, &row.record)).1 = &row.record;
    }
    let change = |(table, partitions): (&TableId, BTreeMap<&PartitionKey, (&RunRecord, &RunRecord)>)| {
        let before: Vec<_> = partitions.values().map(|(first, _)| first.before.as_ref()).collect();
        let after: Vec<_> = partitions.values().map(|(_, last)| last.after.as_ref()).collect();
        let of_one = |(key, (first, last)): (&&PartitionKey, &(&RunRecord, &RunRecord))| {
            let change = Change { before: sum(&[first.before.as_ref()]), after: sum(&[last.after.as_ref()]) };
            ((*key).clone(), change)
        };
        TableChange {
            table: table.clone(),
            all: Change { before: sum(&before), after: sum(&after) },
            partitions: partitions.iter().map(of_one).collect(),
        }
    };
    tables.into_iter().map(change).collect()
}

/// The sum of profiles; `None` where one is not known.
fn sum(profiles: &[Option<&Profile>]) -> Option<Numbers> {
    let profiles: Vec<&Profile> = profiles.iter().copied().collect::<Option<_>>()?;
    let rows = profiles.iter().map(|profile| profile.rows).sum();
    let columns: BTreeSet<_> = profiles.iter().flat_map(|profile| profile.totals.keys()).collect();
    let total = |column: &String| Total::sum(profiles.iter().map(|profile| profile.totals.get(column)));
    let totals = columns.into_iter().filter_map(|column| Some((column.clone(), total(column)?)));
    Some(Numbers { rows, totals: totals.collect() })
}
