//! The laws that hold after every step.

use std::collections::{BTreeMap, BTreeSet};

use futures::TryStreamExt;

use super::gate::{World, Written};
use super::model::{Law, Model};
use super::rows::{self, Row};
use super::shop::{JOBS, Shop};
use crate::domain::ids::TableId;
use crate::domain::partition::PartitionKey;
use crate::domain::slice::{Pin, Slice};
use crate::ports::delivery::{DeliveryRecord, DeliveryState};
use crate::ports::ledger::{DeliveryFilter, LedgerRow, RunStatus};
use crate::ports::reader::SnapshotReader;

/// What was seen of deliveries at the audit before.
#[derive(Debug, Default)]
pub(super) struct Auditor {
    released: BTreeSet<String>,
    /// Keys that a person has released by name.
    pub(super) by_name: BTreeSet<String>,
}

impl Auditor {
    /// Looks at what was written; `at_rest` where nothing is on its way.
    pub(super) async fn audit(&mut self, shop: &Shop, world: &World, written: Written, at_rest: bool) -> Law {
        for (name, table) in shop.outputs.iter().filter(|_| written.tables) {
            let id = TableId::from(*name);
            let actual = contents(table.reader.as_ref()).await?;
            let expected = world.lock().model.content(&id);
            if actual != *expected {
                return Err(format!("{name} holds {actual:?}, and a clean run gives {expected:?}"));
            }
        }
        if !written.ledger {
            return Ok(());
        }
        for job in JOBS {
            let rows = shop.ledger.history(&job.into(), &PartitionKey::whole(), 100_000).await;
            let rows = rows.map_err(|e| e.to_string())?;
            ledger(&job.into(), &rows, &world.lock().model, at_rest)?;
        }
        let deliveries = shop.ledger.deliveries(&DeliveryFilter::default()).await;
        self.deliveries(&deliveries.map_err(|e| e.to_string())?, &world.lock().model, at_rest)
    }

    fn deliveries(&mut self, all: &[DeliveryRecord], model: &Model, at_rest: bool) -> Law {
        let mut released = BTreeSet::new();
        for record in all {
            let key = &record.delivery.key;
            let Some(staged) = &record.staged else { continue };
            let commit = model.commits.get(&staged.stamp);
            let committed = commit.filter(|commit| commit.attempt == staged.attempt);
            match record.state {
                DeliveryState::Released => {
                    if !released.insert(key.clone()) {
                        return Err(format!("{key} was released twice"));
                    }
                    let Some(commit) = committed else {
                        return Err(format!("{key} was released, and its output is not committed"));
                    };
                    if !commit.deliver && !self.by_name.contains(key) {
                        return Err(format!("{key} is suppressed, and was released"));
                    }
                }
                DeliveryState::Suppressed | DeliveryState::Duplicate if committed.is_none() => {
                    return Err(format!("{key} is {:?} of what was not committed", record.state));
                }
                DeliveryState::Prepared | DeliveryState::Withdrawn if at_rest && committed.is_some() => {
                    return Err(format!("{key} is {:?} of what was committed", record.state));
                }
                _ => {}
            }
        }
        if let Some(lost) = self.released.difference(&released).next() {
            return Err(format!("{lost} was released, and is so no longer"));
        }
        self.released = released;
        Ok(())
    }
}

/// One row for each run, job and partition; only of what was committed; the last commit is current.
fn ledger(table: &TableId, newest_first: &[LedgerRow], model: &Model, at_rest: bool) -> Law {
    let mut seen = BTreeSet::new();
    let mut last = BTreeMap::<&PartitionKey, (u64, usize)>::new();
    for row in newest_first {
        let record = &row.record;
        let what = format!("{} of {} in {}", record.partition, record.job, record.run);
        if !seen.insert((&record.run, &record.job, &record.partition)) {
            return Err(format!("the ledger has two rows of {what}"));
        }
        let commit = model.commits.get(&record.stamp);
        let commit = match (record.status, commit) {
            (RunStatus::Committed, None) => {
                return Err(format!("the ledger has a commit that never was: {what}"));
            }
            (RunStatus::Committed, Some(commit)) => commit,
            (RunStatus::Failed, Some(_)) if at_rest => {
                return Err(format!("the ledger says of a commit that it failed: {what}"));
            }
            (RunStatus::Failed, _) => continue,
        };
        if let Some((position, place)) = last.get(&record.partition)
            && *place < commit.place
        {
            return Err(format!("{what} was superseded, and is current since row {position}"));
        }
        last.insert(&record.partition, (row.position, commit.place));
        let rows = rows::under(&commit.rows, &record.partition);
        let told = record.after.as_ref().map(|after| after.rows);
        let merges = record.table.as_str() == "customers";
        if !merges && told.is_some_and(|told| Ok(told) != u64::try_from(rows.len())) {
            return Err(format!("the ledger counts {told:?} rows of {}: {what}", rows.len()));
        }
    }
    let told: BTreeSet<_> =
        newest_first.iter().map(|row| (&row.record.stamp, &row.record.partition)).collect();
    let untold = model.commits.iter().filter(|_| at_rest).find_map(|(stamp, commit)| {
        let of_table = commit.records.iter().filter(|record| record.table == *table);
        of_table.map(|r| (stamp, &r.partition)).find(|name| !told.contains(name))
    });
    match untold {
        Some((stamp, partition)) => Err(format!("the ledger does not know of {stamp}: {partition}")),
        None => Ok(()),
    }
}

/// Every row of a table, read past the gates.
pub(super) async fn contents(reader: &dyn SnapshotReader) -> Law<Vec<Row>> {
    let read = async {
        let version = reader.current().await?;
        let versions = reader.slice_versions(&version, &[Slice::All]).await?;
        let Some(content) = versions.into_iter().next() else { return Ok(Vec::new()) };
        let pin = Pin { table: reader.table().clone(), version, slice: Slice::All, content };
        let (_, stream) = reader.read(&pin).await?;
        stream.try_collect::<Vec<_>>().await
    };
    let batches = read.await.map_err(|e: crate::error::Error| format!("a table cannot be read: {e}"))?;
    Ok(rows::of(&batches))
}
