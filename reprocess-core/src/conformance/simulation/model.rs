//! What the tables must hold: obvious code over plain rows, fed by what the ports were asked and answered.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::NaiveDate;

use super::rows::{self, Row};
use super::shop::computed;
use crate::domain::ids::{PartitionVersion, RunId, TableId, TableVersion};
use crate::domain::partition::PartitionKey;
use crate::domain::profile::Profile;
use crate::domain::request::WhenMoved;
use crate::domain::scope::Scope;
use crate::domain::slice::{Base, Pin, Slice};
use crate::domain::value::Value;
use crate::ports::ledger::RunRecord;
use crate::ports::writer::{Change, Commit, CommitEntry, CommitRequest, Intent, StageRequest, StampId};

/// A law that was broken, in words.
pub(super) type Law<T = ()> = Result<T, String>;

type Content = Arc<Vec<Row>>;

type Left = (Scope, Vec<Row>);

/// The model of every table and of every commit.
#[derive(Default)]
pub(super) struct Model {
    tables: BTreeMap<TableId, Content>,
    versions: BTreeMap<(TableId, TableVersion), Content>,
    slices: BTreeMap<(TableId, Slice, PartitionVersion), Vec<Row>>,
    bases: BTreeMap<(TableId, PartitionKey, PartitionVersion), (usize, Vec<Row>)>,
    staged: BTreeMap<(StampId, u32), (Base, bool)>,
    kept: BTreeMap<String, Content>,
    /// Every change of rows, in order: table, who, what it was before and after.
    log: Vec<Changed>,
    pub(super) commits: BTreeMap<StampId, Committed>,
    /// What each run has left in its scopes.
    by_run: BTreeMap<(RunId, TableId), Vec<Left>>,
    /// What runs do where something moved; `Stop` where nothing is said.
    pub(super) policies: BTreeMap<RunId, WhenMoved>,
}

struct Changed {
    table: TableId,
    by: Option<RunId>,
    before: Content,
    after: Content,
}

/// A commit as the backend answered it.
#[derive(Clone, Debug)]
pub(super) struct Committed {
    /// Its place among all commits.
    pub(super) place: usize,
    pub(super) attempt: u32,
    pub(super) deliver: bool,
    pub(super) records: Vec<RunRecord>,
    /// What it left in its scope.
    pub(super) rows: Vec<Row>,
}

impl Model {
    pub(super) fn content(&self, table: &TableId) -> Content {
        self.tables.get(table).cloned().unwrap_or_default()
    }

    /// Somebody else has replaced the rows under a key.
    pub(super) fn outside(&mut self, table: &TableId, key: &PartitionKey, rows: &[Row]) {
        let mut after: Vec<_> = self.content(table).iter().filter(|row| !row.under(key)).cloned().collect();
        after.extend(rows.iter().cloned());
        self.put(table, None, after);
    }

    fn put(&mut self, table: &TableId, by: Option<RunId>, mut after: Vec<Row>) {
        after.sort();
        let after = Arc::new(after);
        let before = self.tables.insert(table.clone(), Arc::clone(&after)).unwrap_or_default();
        if before != after {
            self.log.push(Changed { table: table.clone(), by, before, after });
        }
    }

    pub(super) fn saw_version(&mut self, table: &TableId, version: &TableVersion) {
        let content = self.content(table);
        self.versions.insert((table.clone(), version.clone()), content);
    }

    pub(super) fn saw_slice(
        &mut self,
        table: &TableId,
        version: &TableVersion,
        slice: &Slice,
        content: &PartitionVersion,
        live: bool,
    ) -> Law {
        let then = match live {
            true => Some(self.content(table)),
            false => self.versions.get(&(table.clone(), version.clone())).cloned(),
        };
        let Some(then) = then else { return Ok(()) };
        let rows: Vec<_> = then.iter().filter(|row| row.within(slice)).cloned().collect();
        let name = (table.clone(), slice.clone(), content.clone());
        match self.slices.get(&name) {
            Some(known) if *known != rows => Err(format!(
                "a slice version names two contents: {table} {slice} at {content}: {known:?}, {rows:?}"
            )),
            _ => {
                self.slices.insert(name, rows);
                Ok(())
            }
        }
    }

    pub(super) fn saw_read(&self, pin: &Pin, rows: &[Row]) -> Law {
        let name = (pin.table.clone(), pin.slice.clone(), pin.content.clone());
        match self.slices.get(&name) {
            Some(known) if *known != rows => Err(format!(
                "a pin was read with other rows: {} {}: {rows:?} in place of {known:?}",
                pin.table, pin.slice
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn saw_base(&mut self, table: &TableId, base: &Base) {
        let content = self.content(table);
        for (key, version) in &base.partitions {
            let seen = (self.log.len(), rows::under(&content, key));
            self.bases.insert((table.clone(), key.clone(), version.clone()), seen);
        }
    }

    pub(super) fn saw_profiles(&self, table: &TableId, profiles: &[Profile]) -> Law {
        let content = self.content(table);
        for profile in profiles {
            let rows = rows::under(&content, &profile.partition).len();
            if u64::try_from(rows).ok() != Some(profile.rows) {
                return Err(format!("a profile counts {} rows of {rows}: {table}", profile.rows));
            }
        }
        Ok(())
    }

    pub(super) fn saw_stage(&mut self, request: &StageRequest) {
        let merges_by_newer = matches!(&request.intent, Intent::Merge(keys) if keys.newer.is_some());
        let name = (request.id.stamp.clone(), request.id.attempt);
        self.staged.insert(name, (request.base.clone(), merges_by_newer));
    }

    pub(super) fn saw_already(&self, request: &CommitRequest<'_>) -> Law {
        let known = |entry: &&CommitEntry| !self.commits.contains_key(&entry.stamp);
        match request.entries.iter().find(known) {
            Some(entry) => Err(format!("{} was never committed, and is said to be", entry.stamp)),
            None => Ok(()),
        }
    }

    pub(super) fn saw_commit(
        &mut self,
        table: &TableId,
        request: &CommitRequest<'_>,
        commit: &Commit,
    ) -> Law {
        let before = self.content(table);
        for entry in request.entries {
            // Of a publication that died some entries may be in production from before.
            if self.commits.contains_key(&entry.stamp) {
                match commit.attempts.len() {
                    1 => return Err(format!("{} was committed twice", entry.stamp)),
                    _ => continue,
                }
            }
            self.check_base(table, entry, request)?;
            let rows = self.expected(table, entry)?;
            let content = self.content(table);
            let mut after: Vec<_> =
                content.iter().filter(|row| !covers(&entry.scope, row)).cloned().collect();
            after.extend(rows.iter().cloned());
            let run = entry.stamp.run.clone();
            self.put(table, Some(run.clone()), after);
            self.by_run.entry((run, table.clone())).or_default().push((entry.scope.clone(), rows.clone()));
            let attempt = commit.attempts.iter().find(|(stamp, _)| *stamp == entry.stamp).map(|a| a.1);
            let staged = match &entry.change {
                Change::Apply(staged) => staged.id.attempt,
                _ => entry.attempt,
            };
            let committed = Committed {
                place: self.commits.len(),
                attempt: attempt.unwrap_or(staged),
                deliver: entry.finish.deliver,
                records: entry.finish.records.clone(),
                rows,
            };
            self.commits.insert(entry.stamp.clone(), committed);
        }
        if let Some(kept) = &commit.kept {
            self.kept.insert(kept.0.to_string(), before);
        }
        self.saw_base(table, &commit.partitions);
        Ok(())
    }

    /// The rows that the base names are the rows that are there, and nothing newer than what was looked at is lost.
    fn check_base(&self, table: &TableId, entry: &CommitEntry, request: &CommitRequest<'_>) -> Law {
        let content = self.content(table);
        let planned = match &entry.change {
            Change::Apply(staged) => self.staged.get(&(entry.stamp.clone(), staged.id.attempt)),
            _ => None,
        };
        let overwrites = self.policies.get(&entry.stamp.run) == Some(&WhenMoved::Overwrite)
            || planned.is_some_and(|(_, newer)| *newer);
        for key in entry.scope.partitions() {
            let now = rows::under(&content, &key);
            let named = |base: &Base| {
                let version = base.partitions.get(&key)?.clone();
                self.bases.get(&(table.clone(), key.clone(), version))
            };
            if let Some((_, rows)) = named(request.base)
                && *rows != now
            {
                return Err(format!("{} was committed over a base that had moved: {key}", entry.stamp));
            }
            let looked_at = planned.map_or(request.since, |(base, _)| base);
            // A base that was never taken anew names the rows that are there: what was written since was undone by others,
            // and a backend may give a partition that is empty again the version that it had before.
            if looked_at.partitions.get(&key) == request.base.partitions.get(&key) {
                continue;
            }
            let Some((since, _)) = named(looked_at).filter(|_| !overwrites) else { continue };
            let newer = self.log.iter().skip(*since).find(|changed| {
                changed.table == *table
                    && changed.by.as_ref() != Some(&entry.stamp.run)
                    && rows::under(&changed.before, &key) != rows::under(&changed.after, &key)
            });
            if let Some(newer) = newer {
                return Err(format!(
                    "{} has overwritten what {:?} wrote after it was planned: {key}",
                    entry.stamp, newer.by
                ));
            }
        }
        Ok(())
    }

    /// What a clean run of the entry leaves in its scope.
    fn expected(&self, table: &TableId, entry: &CommitEntry) -> Law<Vec<Row>> {
        let content = self.content(table);
        let staged = match &entry.change {
            Change::Apply(staged) => staged,
            Change::Restore(kept) => {
                let then = self.kept.get(&kept.0.to_string());
                let then = then.ok_or_else(|| format!("{} restores what was never kept", entry.stamp))?;
                return Ok(then.iter().filter(|row| covers(&entry.scope, row)).cloned().collect());
            }
            Change::Adopt => return Err(format!("{} was committed as an adoption", entry.stamp)),
        };
        let Some(record) = entry.finish.records.first() else {
            return Err(format!("{} was committed without a record", entry.stamp));
        };
        let logic = record.logic.as_ref().map_or("", |logic| logic.as_str());
        let mut inputs = BTreeMap::new();
        for (name, pin) in &record.inputs {
            inputs.insert(name.clone(), self.input(record, pin)?);
        }
        let days: Vec<NaiveDate> = entry.finish.records.iter().filter_map(|r| day_of(&r.partition)).collect();
        let new = computed(record.job.as_str(), logic, &days, &inputs);
        let Intent::Merge(_) = &staged.intent else { return Ok(new) };
        let mut merged: BTreeMap<String, Row> =
            content.iter().map(|row| (row.country.clone(), row.clone())).collect();
        for row in new {
            let known = merged.entry(row.country.clone()).or_insert_with(|| row.clone());
            if row.id > known.id {
                *known = row;
            }
        }
        Ok(merged.into_values().collect())
    }

    /// The rows that a record says were read. Where staged sets were, they are what the same run has committed.
    fn input(&self, record: &RunRecord, pin: &Pin) -> Law<Vec<Row>> {
        if !pin.content.as_str().starts_with("shadow:") {
            let name = (pin.table.clone(), pin.slice.clone(), pin.content.clone());
            let known = self.slices.get(&name).cloned();
            return known.ok_or_else(|| {
                format!("{} read a version of {} {} that never was", record.run, pin.table, pin.slice)
            });
        }
        let production = self.versions.get(&(pin.table.clone(), pin.version.clone()));
        let mut rows = production.map(|content| content.as_ref().clone()).unwrap_or_default();
        let own = self.by_run.get(&(record.run.clone(), pin.table.clone()));
        for (scope, committed) in own.into_iter().flatten() {
            rows.retain(|row| !covers(scope, row));
            rows.extend(committed.iter().cloned());
        }
        rows.retain(|row| row.within(&pin.slice));
        rows.sort();
        Ok(rows)
    }
}

fn covers(scope: &Scope, row: &Row) -> bool {
    scope.partitions().iter().any(|key| row.under(key))
}

pub(super) fn day_of(key: &PartitionKey) -> Option<NaiveDate> {
    match key.get("day") {
        Some(Value::Date(day)) => Some(*day),
        _ => None,
    }
}
