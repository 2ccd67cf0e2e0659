//! The atomic step: one version of the log, written onto the version that was checked.
//!
//! Whether a commit may go on is decided here, on the newest version, by the files of each partition and by stamps. The
//! library underneath is not asked to resolve conflicts: where another version came first nothing is written, and all is
//! checked again on that one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use arrow_schema::SchemaRef;
use backon::{BackoffBuilder, ExponentialBuilder};
use deltalake::DeltaTableError;
use deltalake::kernel::transaction::{CommitBuilder, CommitProperties, TableReference, TransactionError};
use deltalake::kernel::{Action, Add};
use deltalake::protocol::{DeltaOperation, SaveMode};
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::schema;
use reprocess_core::domain::slice::Base;
use reprocess_core::ports::writer::{
    Change, Commit, CommitEntry, CommitOutcome, CommitRequest, Intent, MovedBy, StampId,
};
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_lake::record::{Record, id_of, in_words};
use reprocess_lake::versions::version_of;
use serde_json::json;

use super::keep::{self, Replaced};
use super::{layout, merge, schema as delta};
use crate::commits::{self, Search};
use crate::error::Doing;
use crate::features;
use crate::shadow::{self, Set};
use crate::table::DeltaTable;
use crate::view::{File, View, identity_of, version};

/// How often a commit is tried again after another version came first.
const TRIES: usize = 1_000;

pub(super) async fn commit(table: &DeltaTable, request: CommitRequest<'_>) -> Result<CommitOutcome> {
    request.check(&table.spec().id)?;
    let waits = ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(2))
        .with_max_delay(Duration::from_millis(200))
        .with_max_times(TRIES)
        .with_jitter();
    for wait in waits.build() {
        let turn = table.turn().await;
        if let Some(outcome) = attempt(table, &request).await? {
            return Ok(outcome);
        }
        drop(turn);
        tokio::time::sleep(wait).await;
    }
    Err(Error::new(ErrorKind::Unavailable, "other versions came first, again and again"))
}

/// One try onto the newest version; `None` where another came first.
async fn attempt(table: &DeltaTable, request: &CommitRequest<'_>) -> Result<Option<CommitOutcome>> {
    let view = table.latest().await?;
    let known = known(table, &view, request).await?;
    let find = |stamp: &StampId| known.get(stamp).cloned();
    let (open, mut earlier) = request.left(find);
    earlier.sort_by_key(|commit| commit.order);
    if open.is_empty() {
        let said = Commit::sum(earlier).ok_or_else(|| Error::internal("nothing was committed"))?;
        return Ok(Some(CommitOutcome::AlreadyCommitted(said)));
    }
    let mut head = Base::new(view.version(), BTreeMap::new());
    for entry in &open {
        head.partitions.extend(view.head(&entry.scope)?.partitions);
    }
    if let Some(outcome) = refusal(table, &view, request, &open, &head).await? {
        return Ok(Some(outcome));
    }
    let mut changes = Changes::new(&view)?;
    for entry in &open {
        if !changes.take(table, entry, &head).await? {
            return Ok(Some(CommitOutcome::SchemaChanged));
        }
    }
    changes.write(table, request, &open, &earlier).await
}

/// The commits of those stamps that have one.
async fn known(
    table: &DeltaTable,
    view: &View,
    request: &CommitRequest<'_>,
) -> Result<BTreeMap<StampId, Commit>> {
    let mut known = BTreeMap::new();
    for entry in request.entries {
        let (log, commits) = (table.log().as_ref(), table.commits());
        let planned = entry.finish.task.is_some();
        let search = match planned {
            true => commits.find_since(log, view, &entry.stamp, &entry.scope, request.since).await?,
            false => commits.find(log, view, &entry.stamp, &entry.scope, request.since).await?,
        };
        match search {
            Search::Found(commit) => {
                known.insert(entry.stamp.clone(), commit);
            }
            Search::NotThere => {}
            Search::Expired => {
                return Err(Error::new(
                    ErrorKind::State,
                    "the log no longer tells whether this was committed",
                )
                .with_context("stamp", &entry.stamp)
                .with_advice("raise `delta.logRetentionDuration` of the table, and plan the work again"));
            }
        }
    }
    Ok(known)
}

/// Why what is left may not be committed.
async fn refusal(
    table: &DeltaTable,
    view: &View,
    request: &CommitRequest<'_>,
    open: &[&CommitEntry],
    head: &Base,
) -> Result<Option<CommitOutcome>> {
    let refused = request.refusal(open, head).await?;
    if let Some(CommitOutcome::Conflicted { mut moved }) = refused {
        for moved in &mut moved {
            if layout::only_files_moved(table, view, &moved.partition, request.base).await? {
                moved.by = MovedBy::Layout;
            }
        }
        return Ok(Some(CommitOutcome::Conflicted { moved }));
    }
    if let (None, Some(fence)) = (&refused, request.fence) {
        for entry in open {
            let (log, commits) = (table.log().as_ref(), table.commits());
            if commits.later_lease(log, view, &entry.scope, request.base, fence.token).await? {
                return Ok(Some(CommitOutcome::Fenced));
            }
        }
    }
    Ok(refused)
}

/// What a commit does to a version.
struct Changes<'a> {
    view: &'a View,
    /// Columns of the table afterwards.
    columns: SchemaRef,
    /// Where a whole table comes back: its columns as they were.
    columns_then: Option<String>,
    removed: BTreeMap<String, &'a File>,
    added: Vec<(PartitionKey, Add)>,
    staged: Vec<Set>,
}

impl<'a> Changes<'a> {
    fn new(view: &'a View) -> Result<Self> {
        features::check(view, false)?;
        Ok(Self {
            view,
            columns: SchemaRef::clone(view.schema()),
            columns_then: None,
            removed: BTreeMap::new(),
            added: Vec::new(),
            staged: Vec::new(),
        })
    }

    /// Takes an entry in; `false` where the table's columns are no longer such that its rows fit.
    async fn take(&mut self, table: &DeltaTable, entry: &CommitEntry, head: &Base) -> Result<bool> {
        match &entry.change {
            Change::Apply(staged) => {
                let set = shadow::claim(table, staged).await?;
                features::check(self.view, matches!(staged.intent, Intent::Merge(_)))?;
                let Ok(columns) = schema::resolve(&self.columns, &staged.schema, staged.schema_policy) else {
                    return Ok(false);
                };
                if !set.content.fits(staged, self.view, &columns)? {
                    return Ok(false);
                }
                self.columns = columns;
                let files = self.view.files_in(&entry.scope)?;
                let removed = match (&staged.intent, &set.content.files.merged) {
                    (Intent::Merge(_), Some(merged)) => {
                        if !merged.is_on(head) {
                            return Err(Error::new(
                                ErrorKind::State,
                                "the merge was computed on other rows than those of the base",
                            )
                            .with_context("staged", &staged.id)
                            .with_advice("take the base for it first: `PartitionWriter::rebase`"));
                        }
                        merge::removed(&files, &merged.removes)?
                    }
                    (Intent::ReplaceDynamic, _) => {
                        let received = self.view.files_where(|key| staged.received.contains(key));
                        received.map(|(_, file)| file).collect()
                    }
                    _ => files,
                };
                self.replace(removed, set.content.files.adds.clone())?;
                self.staged.push(set);
                Ok(true)
            }
            Change::Restore(kept) => {
                let replaced = keep::find(table, kept).await?;
                self.restore(table, entry, replaced).await
            }
            Change::Adopt => {
                Err(Error::internal("what is only to be told to the ledger cannot be committed"))
            }
        }
    }

    fn replace(&mut self, removed: Vec<&'a File>, added: Vec<Add>) -> Result<()> {
        self.removed.extend(removed.into_iter().map(|file| (file.identity(), file)));
        let partitions = self.view.partitions()?;
        for add in added {
            self.added.push((partitions.key(&partitions.values(&add.partition_values)?)?, add));
        }
        Ok(())
    }

    async fn restore(&mut self, table: &DeltaTable, entry: &CommitEntry, replaced: Replaced) -> Result<bool> {
        let then = delta::arrow_columns(&replaced.columns)?;
        if entry.scope.is_whole_table() {
            self.columns = then;
            self.columns_then = Some(replaced.columns);
        } else if schema::resolve(&then, &self.columns, SchemaPolicy::AddNullable).is_err() {
            return Ok(false);
        }
        let partitions = self.view.partitions()?;
        let mut back = Vec::new();
        for add in replaced.files {
            if entry.scope.covers(&partitions.key(&partitions.values(&add.partition_values)?)?) {
                back.push(add);
            }
        }
        // A file that is still there stays: one version cannot remove and add it.
        let live = self.view.files_in(&entry.scope)?;
        let there: BTreeSet<_> = live.iter().map(|file| file.identity()).collect();
        let kept: BTreeSet<_> = back.iter().map(identity_of).collect();
        let removed = live.into_iter().filter(|file| !kept.contains(&file.identity())).collect();
        back.retain(|add| !there.contains(&identity_of(add)));
        keep::check_files(table, &back).await?;
        self.replace(removed, back)?;
        Ok(true)
    }

    /// Versions of the keys of all entries, once the commit is there.
    fn after(&self, request: &CommitRequest<'_>) -> Result<Base> {
        let mut partitions = BTreeMap::new();
        for key in request.entries.iter().flat_map(|entry| entry.scope.partitions()) {
            let stays = self.view.files_of(&key)?.into_iter().map(File::identity);
            let stays = stays.filter(|identity| !self.removed.contains_key(identity));
            let comes = self.added.iter().filter(|(partition, _)| key.covers(partition));
            let version = version_of(stays.chain(comes.map(|(_, add)| identity_of(add))));
            partitions.insert(key, version);
        }
        Ok(Base::new(version(self.next()), partitions))
    }

    fn next(&self) -> Option<u64> {
        self.view.number().map(|number| number.saturating_add(1))
    }

    /// Writes the version; `None` where another came first.
    async fn write(
        self,
        table: &DeltaTable,
        request: &CommitRequest<'_>,
        open: &[&CommitEntry],
        earlier: &[Commit],
    ) -> Result<Option<CommitOutcome>> {
        let snapshot = self.view.snapshot()?;
        let number = self.next().unwrap_or_default();
        let mut commit = Commit { order: number, ..Commit::of(open, earlier, request, self.after(request)?) };
        if request.keep {
            commit.kept = Some(keep::keep(table, self.view, open, &id_of(open)).await?);
        }
        let record = Record::of(commit.clone(), open, request);
        let keys: BTreeSet<_> = open.iter().flat_map(|entry| entry.scope.partitions()).collect();
        let properties = CommitProperties::default()
            .with_max_retries(0)
            .with_metadata([
                (commits::KEY.to_owned(), json!(record)),
                ("userMetadata".to_owned(), json!(in_words(open))),
            ])
            .with_application_transactions(commits::transactions(open, number));
        let operation = DeltaOperation::Write {
            mode: SaveMode::Overwrite,
            partition_by: Some(snapshot.metadata().partition_columns().to_vec()),
            predicate: self.view.partitions()?.condition(&keys.into_iter().collect::<Vec<_>>()),
        };
        let written = CommitBuilder::from(properties)
            .with_actions(self.actions()?)
            .build(Some(snapshot.as_ref() as &dyn TableReference), table.log().clone(), operation)
            .await;
        if let Err(error) = written {
            // An error does not say that nothing was written: what follows the write may have failed, or its answer was lost.
            if !is_there(table, self.view, &commit, open, request).await? {
                if !came_first(&error) {
                    // It may still arrive, so that what it keeps stays noted.
                    return Err(error).doing("write a version of the table");
                }
                if let Some(kept) = &commit.kept {
                    keep::forget(table, kept).await?;
                }
                return Ok(None);
            }
            tracing::warn!(error = %error, version = number, "the version was written, and an error came after it");
        }
        for set in &self.staged {
            if let Err(e) = shadow::forget(table, set).await {
                tracing::warn!(error = %e, staged = %set.staged.id, "the note of a committed set could not be removed");
            }
        }
        Ok(Some(CommitOutcome::Committed(commit)))
    }

    fn actions(&self) -> Result<Vec<Action>> {
        let snapshot = self.view.snapshot()?;
        let mut actions = Vec::new();
        let metadata = match &self.columns_then {
            Some(then) => delta::with_columns_of(snapshot.metadata(), &keep::columns_of(self.view)?, then)?,
            None => delta::with_columns(snapshot.metadata(), self.view.schema(), &self.columns)?,
        };
        actions.extend(metadata.map(Action::Metadata));
        actions.extend(self.removed.values().map(|file| Action::Remove(file.remove())));
        let adds = self.added.iter().map(|(_, add)| Add { data_change: true, ..add.clone() });
        actions.extend(adds.map(Action::Add));
        Ok(actions)
    }
}

/// Whether another version came first, so that nothing was written.
fn came_first(error: &DeltaTableError) -> bool {
    matches!(
        error,
        DeltaTableError::VersionAlreadyExists(_)
            | DeltaTableError::Transaction { source: TransactionError::MaxCommitAttempts(_) }
    )
}

/// Whether this very commit is in the log.
async fn is_there(
    table: &DeltaTable,
    view: &View,
    commit: &Commit,
    open: &[&CommitEntry],
    request: &CommitRequest<'_>,
) -> Result<bool> {
    let Some(entry) = open.first() else { return Ok(false) };
    let (now, since) = (table.latest().await?, Base::new(view.version(), request.base.partitions.clone()));
    let search =
        table.commits().find_since(table.log().as_ref(), &now, &entry.stamp, &entry.scope, &since).await?;
    Ok(matches!(search, Search::Found(found) if found == *commit))
}
