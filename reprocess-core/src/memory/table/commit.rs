//! The atomic step, and the search for it.

use std::collections::BTreeMap;

use arrow_schema::SchemaRef;
use serde_json::json;

use super::rows::Parts;
use super::state::State;
use super::{schema, stage};
use crate::domain::request::SchemaPolicy;
use crate::domain::slice::{Base, Kept};
use crate::error::{Error, ErrorKind, Result};
use crate::ports::writer::{
    Change, Commit, CommitEntry, CommitOutcome, CommitRequest, Found, Moved, MovedBy, StampId,
};

impl State {
    /// Commits all entries or none. Whether the fence is the current one was asked before.
    pub(super) fn commit(&mut self, request: CommitRequest<'_>, fenced: bool) -> Result<CommitOutcome> {
        self.check_request(&request)?;
        if let Some(commit) = self.earlier(request.entries)? {
            return Ok(CommitOutcome::AlreadyCommitted(commit.clone()));
        }
        let moved = self.moved(&request)?;
        if !moved.is_empty() {
            return Ok(CommitOutcome::Conflicted { moved });
        }
        if fenced {
            return Ok(CommitOutcome::Fenced);
        }
        let Some(schema) = self.schema_after(request.entries)? else {
            return Ok(CommitOutcome::SchemaChanged);
        };
        let mut writes = Vec::with_capacity(request.entries.len());
        for entry in request.entries {
            writes.push((entry.scope.clone(), self.after(entry, &schema)?));
        }
        let before = self.version;
        self.write(&schema, writes)?;
        Ok(CommitOutcome::Committed(self.log(&request, before)?))
    }

    /// Refuses what no backend could commit.
    fn check_request(&self, request: &CommitRequest<'_>) -> Result<()> {
        let refuse = |message: &str| Err(Error::invalid(message).with_context("table", &self.spec.id));
        if request.entries.is_empty() {
            return refuse("a commit without entries would commit nothing");
        }
        for (place, entry) in request.entries.iter().enumerate() {
            let others = request.entries.iter().take(place);
            if others.into_iter().any(|other| other.scope.overlaps(&entry.scope)) {
                return refuse("two entries of one commit touch the same partition");
            }
            if let Some(key) =
                entry.scope.partitions().iter().find(|k| !request.base.partitions.contains_key(k))
            {
                return refuse("the base does not hold a partition of the commit")
                    .map_err(|e: Error| e.with_context("partition", key));
            }
            match &entry.change {
                Change::Apply(staged) if staged.id.stamp != entry.stamp || staged.scope != entry.scope => {
                    return refuse("an entry has another stamp or scope than its staged set");
                }
                Change::Adopt => return refuse("what is only to be told to the ledger cannot be committed"),
                Change::Apply(_) | Change::Restore(_) => {}
            }
            if let Some(fence) = request.fence
                && !(fence.table == self.spec.id
                    && entry.scope.partitions().iter().all(|k| fence.scope.covers(k)))
            {
                return refuse("the fence is not one for the scope of the commit");
            }
        }
        Ok(())
    }

    /// The commit that has the entries already. Where only some were committed, or not together, no one answer is true.
    fn earlier(&self, entries: &[CommitEntry]) -> Result<Option<&Commit>> {
        let of = |commit: &&Commit, stamp: &StampId| commit.attempts.iter().any(|(known, _)| known == stamp);
        let found: Vec<_> =
            entries.iter().map(|e| self.commits.iter().find(|commit| of(commit, &e.stamp))).collect();
        let first = found.first().copied().flatten();
        if found.iter().all(|commit| commit.map(|c| &c.version) == first.map(|c| &c.version)) {
            return Ok(first);
        }
        Err(Error::new(
            ErrorKind::State,
            "some entries of the commit were committed before, in other company",
        )
        .with_context("table", &self.spec.id)
        .with_advice("ask for the commit of each stamp, and commit the others"))
    }

    fn moved(&self, request: &CommitRequest<'_>) -> Result<Vec<Moved>> {
        let mut moved = Vec::new();
        for entry in request.entries {
            for (partition, now) in self.head(&entry.scope)?.partitions {
                if request.base.partitions.get(&partition) != Some(&now) {
                    moved.push(Moved { partition, by: MovedBy::Content, now });
                }
            }
        }
        Ok(moved)
    }

    /// The columns after the commit; `None` where those of the table are no longer such that the rows fit.
    fn schema_after(&self, entries: &[CommitEntry]) -> Result<Option<SchemaRef>> {
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

    fn log(&mut self, request: &CommitRequest<'_>, before: u64) -> Result<Commit> {
        let mut partitions = BTreeMap::new();
        let mut attempts = Vec::new();
        for entry in request.entries {
            partitions.extend(self.head(&entry.scope)?.partitions);
            // A later attempt may commit what an earlier one staged; deliveries stand under the one that staged.
            let attempt = match &entry.change {
                Change::Apply(staged) => staged.id.attempt,
                Change::Restore(_) | Change::Adopt => entry.attempt,
            };
            attempts.push((entry.stamp.clone(), attempt));
            if let Change::Apply(staged) = &entry.change {
                self.staged.remove(&staged.id);
            }
        }
        let kept = request.keep.then(|| {
            self.kept.insert(before);
            Kept(json!({ "table": self.spec.id, "version": before }))
        });
        let version = self.table_version();
        let partitions = Base::new(version.clone(), partitions);
        let order = u64::try_from(self.commits.len()).unwrap_or(u64::MAX).saturating_add(1);
        let commit = Commit { version, partitions, attempts, kept, recorded: false, order };
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
