//! The atomic step, and the search for it.

use std::collections::BTreeMap;

use arrow_schema::SchemaRef;
use serde_json::json;

use super::rows::Parts;
use super::stage;
use super::state::State;
use crate::domain::request::SchemaPolicy;
use crate::domain::schema;
use crate::domain::slice::{Base, Kept};
use crate::error::{Error, ErrorKind, Result};
use crate::ports::writer::{
    Change, Commit, CommitEntry, CommitOutcome, CommitRequest, Found, Moved, MovedBy, StampId,
};

impl State {
    /// Commits all entries that are not committed yet, or none. `lost` says of each whether its lease or its task has
    /// passed to another, which was asked before.
    pub(super) fn commit(&mut self, request: CommitRequest<'_>, lost: &[bool]) -> Result<CommitOutcome> {
        request.check(&self.spec.id)?;
        let (open, mut earlier) = request.left(|stamp| self.find_stamp(stamp).cloned());
        if open.is_empty() {
            earlier.sort_by_key(|commit| self.number(&commit.version).ok());
            let said = Commit::sum(earlier).ok_or_else(|| Error::internal("nothing was committed"))?;
            return Ok(CommitOutcome::AlreadyCommitted(said));
        }
        let moved = self.moved(&request, &open)?;
        if !moved.is_empty() {
            return Ok(CommitOutcome::Conflicted { moved });
        }
        if request.entries.iter().zip(lost).any(|(e, lost)| *lost && self.find_stamp(&e.stamp).is_none()) {
            return Ok(CommitOutcome::Fenced);
        }
        let Some(schema) = self.schema_after(&open)? else {
            return Ok(CommitOutcome::SchemaChanged);
        };
        let mut writes = Vec::with_capacity(open.len());
        for entry in &open {
            writes.push((entry.scope.clone(), self.after(entry, &schema)?));
        }
        let before = self.version;
        self.write(&schema, writes)?;
        Ok(CommitOutcome::Committed(self.log(&request, &open, &earlier, before)?))
    }

    /// The first commit that completed a stamp.
    fn find_stamp(&self, stamp: &StampId) -> Option<&Commit> {
        self.commits.iter().find(|commit| commit.attempts.iter().any(|(known, _)| known == stamp))
    }

    fn moved(&self, request: &CommitRequest<'_>, open: &[&CommitEntry]) -> Result<Vec<Moved>> {
        let mut moved = Vec::new();
        for entry in open {
            for (partition, now) in self.head(&entry.scope)?.partitions {
                if request.base.partitions.get(&partition) != Some(&now) {
                    moved.push(Moved { partition, by: MovedBy::Content, now });
                }
            }
        }
        Ok(moved)
    }

    /// The columns after the commit; `None` where those of the table are no longer such that the rows fit.
    fn schema_after(&self, entries: &[&CommitEntry]) -> Result<Option<SchemaRef>> {
        let mut after = self.schema().ok_or_else(|| self.not_there())?.clone();
        for entry in entries {
            let resolved = match &entry.change {
                Change::Apply(staged) => {
                    let set = self.find_staged(staged)?;
                    let resolved = schema::resolve(&after, &staged.schema, staged.schema_policy);
                    resolved.and_then(|schema| schema::check_nulls(&schema, &set.rows).map(|()| schema))
                }
                // The whole table comes back as it was, columns included; a part of it takes the columns that are there.
                Change::Restore(kept) if entry.scope.is_whole_table() => {
                    Ok(self.schema_at(self.kept_version(kept)?))
                }
                Change::Restore(kept) => {
                    let then = self.schema_at(self.kept_version(kept)?);
                    schema::resolve(&then, &after, SchemaPolicy::AddNullable).map(|_| after.clone())
                }
                Change::Adopt => Ok(after.clone()),
            };
            match resolved {
                Ok(schema) => after = schema,
                Err(_) => return Ok(None),
            }
        }
        Ok(Some(after))
    }

    /// What the scope of an entry holds afterwards.
    fn after(&self, entry: &CommitEntry, schema: &SchemaRef) -> Result<Parts> {
        let in_scope = |key: &_| entry.scope.covers(key);
        match &entry.change {
            Change::Apply(staged) => {
                let before = self.rows_at(self.version, schema, in_scope)?;
                stage::apply(self, self.find_staged(staged)?, schema, before)
            }
            Change::Restore(kept) => self.rows_at(self.kept_version(kept)?, schema, in_scope),
            Change::Adopt => self.rows_at(self.version, schema, in_scope),
        }
    }

    fn log(
        &mut self,
        request: &CommitRequest<'_>,
        open: &[&CommitEntry],
        earlier: &[Commit],
        before: u64,
    ) -> Result<Commit> {
        let mut partitions = BTreeMap::new();
        for entry in request.entries {
            partitions.extend(self.head(&entry.scope)?.partitions);
        }
        for entry in open {
            if let Change::Apply(staged) = &entry.change {
                self.staged.remove(&staged.id);
            }
        }
        let kept = request.keep.then(|| {
            self.kept.insert(before);
            Kept(json!({ "table": self.spec.id, "version": before }))
        });
        let after = Base::new(self.table_version(), partitions);
        let order = u64::try_from(self.commits.len()).unwrap_or(u64::MAX).saturating_add(1);
        let commit = Commit { kept, order, ..Commit::of(open, earlier, request, after) };
        self.commits.push(commit.clone());
        Ok(commit)
    }

    pub(super) fn find_commit(&self, stamp: &StampId, since: &Base) -> Result<Found> {
        let expired = |commit: &Commit| self.number(&commit.version).is_ok_and(|v| v < self.expired_before);
        let of = |commit: &&Commit| commit.attempts.iter().any(|(known, _)| known == stamp);
        match self.commits.iter().filter(|commit| !expired(commit)).find(of) {
            Some(commit) => Ok(Found::Yes(commit.clone())),
            None if self.number(&since.table)?.saturating_add(1) < self.expired_before => {
                Ok(Found::HistoryExpired)
            }
            None => Ok(Found::No),
        }
    }

    pub(super) fn forget(&mut self, kept: &Kept) -> Result<()> {
        let version = self.parse_kept(kept)?;
        self.kept.remove(&version);
        Ok(())
    }

    fn kept_version(&self, kept: &Kept) -> Result<u64> {
        let version = self.parse_kept(kept)?;
        if self.kept.contains(&version) {
            return Ok(version);
        }
        Err(Error::new(ErrorKind::State, "what the commit replaced is no longer kept")
            .with_context("table", &self.spec.id))
    }

    fn parse_kept(&self, kept: &Kept) -> Result<u64> {
        let here = kept.0.get("table").and_then(|table| table.as_str()) == Some(self.spec.id.as_str());
        kept.0.get("version").and_then(|version| version.as_u64()).filter(|_| here).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, "what is to be restored was not kept by this table")
                .with_context("table", &self.spec.id)
        })
    }
}
