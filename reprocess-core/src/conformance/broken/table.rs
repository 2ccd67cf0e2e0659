//! A table that breaks one promise.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::{Schema, SchemaRef};
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};

use super::Broken;
use crate::conformance::world::{day, scope};
use crate::domain::diff::{Diff, DiffSpec};
use crate::domain::ids::{PartitionVersion, RunId, TableId, TableVersion};
use crate::domain::job::TableSpec;
use crate::domain::partition::PartitionKey;
use crate::domain::profile::{Profile, ProfileSpec};
use crate::domain::request::SchemaPolicy;
use crate::domain::rows::partition_runs;
use crate::domain::scope::Scope;
use crate::domain::slice::{Base, Kept, Pin, Slice, TimeSlice};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::MemoryTable;
use crate::ports::reader::{Availability, RowStream, SnapshotReader};
use crate::ports::staged::StagedReader;
use crate::ports::writer::*;

#[derive(Debug)]
pub(super) struct BrokenTable {
    inner: MemoryTable,
    spec: TableSpec,
    broken: Broken,
    /// What this process has staged: the request, the rows, the digest that the table knows.
    staged: Mutex<BTreeMap<StagedId, (StageRequest, RecordBatch, Staged)>>,
}

impl BrokenTable {
    pub(super) fn new(inner: MemoryTable, spec: &TableSpec, broken: Broken) -> Self {
        Self { inner, spec: spec.clone(), broken, staged: Mutex::default() }
    }

    fn is(&self, broken: Broken) -> bool {
        self.broken == broken
    }

    fn known(&self, id: &StagedId) -> Option<(StageRequest, RecordBatch, Staged)> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// The rows of partitions that are wanted.
    fn only(&self, batch: &RecordBatch, wanted: impl Fn(&PartitionKey) -> bool) -> RecordBatch {
        let runs = partition_runs(&self.spec.partitioning, batch).unwrap();
        let parts: Vec<_> = runs
            .into_iter()
            .filter(|(key, _)| wanted(key))
            .map(|(_, run)| batch.slice(run.start, run.len()))
            .collect();
        arrow_select::concat::concat_batches(&batch.schema(), &parts).unwrap()
    }

    /// The entry as the table knows it.
    fn true_entry(&self, entry: &CommitEntry) -> CommitEntry {
        let mut entry = entry.clone();
        if let Change::Apply(staged) = &mut entry.change
            && self.is(Broken::DigestsNothing)
            && let Some((_, _, known)) = self.known(&staged.id)
        {
            *staged = known;
        }
        entry
    }

    async fn now(&self, entries: &[CommitEntry]) -> Result<Base> {
        let all = Scope::union_of(entries.iter().map(|entry| &entry.scope));
        self.inner.head(&all.unwrap_or_else(Scope::whole_table)).await
    }

    async fn base_of(&self, request: &CommitRequest<'_>) -> Result<Base> {
        let now = self.now(request.entries).await?;
        let mut base = request.base.clone();
        for (key, version) in &mut base.partitions {
            let ignored = self.is(Broken::IgnoresTheBase)
                || (self.is(Broken::IgnoresTheBaseWhereItWasEmpty) && version.as_str() == "0");
            if let (true, Some(now)) = (ignored, now.partitions.get(key)) {
                *version = now.clone();
            }
        }
        if self.is(Broken::FillsInTheBase) {
            for (key, version) in now.partitions {
                base.partitions.entry(key).or_insert(version);
            }
        }
        Ok(base)
    }

    /// What comes of the rows of a stage on their way.
    async fn received(&self, request: &StageRequest, rows: RecordBatch) -> Result<RecordBatch> {
        let table = self.inner.schema().await?.unwrap();
        Ok(match self.broken {
            Broken::DropsStrayRows => self.only(&rows, |key| request.scope.covers(key)),
            Broken::LosesTheNullPartition => {
                self.only(&rows, |key| key.bound().any(|(_, value)| !value.is_null()))
            }
            Broken::TakesEmptyTextForNull => nulled(&rows),
            Broken::AcceptsOtherColumns => widened(&rows, &table),
            Broken::DropsRowsWithNull => rows.slice(0, 0),
            Broken::WantsColumnsInOrder if rows.schema().field(0).name() != table.field(0).name() => {
                return Err(Error::invalid("the columns come in another order"));
            }
            _ => rows,
        })
    }

    /// Writes the rows of a committed stamp once more.
    async fn write_again(&self, entries: &[CommitEntry]) -> Result<()> {
        for entry in entries {
            let Change::Apply(staged) = &entry.change else { continue };
            let Some((mut request, rows, _)) = self.known(&staged.id) else { continue };
            request.id.stamp.run = format!("{} again", request.id.stamp.run).as_str().into();
            let staged = self.inner.stage(&request, rows.into()).await?;
            let mut entry = entry.clone();
            entry.stamp = staged.id.stamp.clone();
            entry.change = Change::Apply(staged);
            self.commit_now(entry).await?;
        }
        Ok(())
    }

    async fn commit_now(&self, entry: CommitEntry) -> Result<()> {
        let entries = [entry];
        let base = self.now(&entries).await?;
        let request = CommitRequest {
            entries: &entries,
            base: &base,
            since: &base,
            fence: None,
            keep: false,
            ledger: None,
        };
        let _ = self.inner.commit(request).await?;
        Ok(())
    }

    /// What is broken after a commit.
    async fn afterwards(&self, request: &CommitRequest<'_>, outcome: &CommitOutcome) -> Result<()> {
        let committed = matches!(outcome, CommitOutcome::Committed(_));
        for entry in request.entries {
            let neighbour = day("2026-10-06");
            if committed
                && self.is(Broken::ReachesBeyondItsScope)
                && !entry.scope.overlaps(&scope(neighbour.clone()))
            {
                let schema = self.inner.schema().await?.unwrap();
                self.inner.replace_unmanaged(&scope(neighbour), &RecordBatch::new_empty(schema))?;
            }
            if let (true, true, Change::Restore(kept)) =
                (committed, self.is(Broken::RestoresEverything), &entry.change)
            {
                let mut entry = entry.clone();
                entry.scope = Scope::whole_table();
                entry.stamp.run = format!("{} of all", entry.stamp.run).as_str().into();
                entry.change = Change::Restore(kept.clone());
                self.commit_now(entry).await?;
            }
        }
        Ok(())
    }

    /// Those entries that do not conflict, where nothing should be committed.
    async fn commit_the_others(&self, request: &CommitRequest<'_>, moved: &[Moved]) -> Result<()> {
        for entry in request.entries {
            if !moved.iter().any(|moved| entry.scope.covers(&moved.partition)) {
                self.commit_now(entry.clone()).await?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl PartitionWriter for BrokenTable {
    fn table(&self) -> &TableId {
        &self.spec.id
    }

    fn capabilities(&self) -> Capabilities {
        let mut offered = self.inner.capabilities();
        if self.is(Broken::DoesWhatItDoesNotOffer) {
            (offered.merge, offered.replace_dynamic) = (false, false);
        }
        offered
    }

    async fn schema(&self) -> Result<Option<SchemaRef>> {
        self.inner.schema().await
    }

    async fn create(&self, schema: &SchemaRef) -> Result<()> {
        match self.inner.create(schema).await {
            Err(_) if self.is(Broken::CreatesOverOtherColumns) => Ok(()),
            created => created,
        }
    }

    async fn head(&self, scope: &Scope) -> Result<Base> {
        match self.inner.head(scope).await {
            Err(_) if self.is(Broken::AcceptsAnyScope) => self.inner.head(&Scope::whole_table()).await,
            head => head,
        }
    }

    async fn profile(&self, scope: &Scope, spec: &ProfileSpec) -> Result<(Base, Vec<Profile>)> {
        self.inner.profile(scope, spec).await
    }

    async fn stage(&self, request: &StageRequest, rows: Rows) -> Result<Staged> {
        let Rows::Stream { schema, stream } = rows else { return self.inner.stage(request, rows).await };
        if let (true, Some((_, _, first))) = (self.is(Broken::KeepsTheFirstStaged), self.known(&request.id)) {
            return Ok(first);
        }
        let batches: Vec<_> = stream.try_collect().await?;
        let mut rows = arrow_select::concat::concat_batches(&schema, &batches).unwrap();
        let mut altered = request.clone();
        match (self.broken, &mut altered.intent) {
            (Broken::KeepsPartitionsWithoutRows, intent @ Intent::Replace) => {
                *intent = Intent::ReplaceDynamic;
            }
            (Broken::MergesOlderRows, Intent::Merge(by)) => by.newer = None,
            (Broken::DeletesRowsOfOthers, Intent::Merge(by)) => {
                by.delete_vanished = by.delete_vanished.as_ref().map(|_| BTreeMap::new());
            }
            _ => {}
        }
        rows = self.received(request, rows).await?;
        let staged = match self.inner.stage(&altered, rows.clone().into()).await {
            Err(_) if self.is(Broken::AcceptsBadMergeKeys) && matches!(request.intent, Intent::Merge(_)) => {
                altered.intent =
                    Intent::Merge(MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: None });
                rows = rows.slice(0, 1);
                self.inner.stage(&altered, rows.clone().into()).await?
            }
            staged => staged?,
        };
        if self.is(Broken::ShowsWhatIsStaged) {
            self.inner.append_unmanaged(&rows)?;
        }
        let known = (altered, rows, staged.clone());
        self.staged.lock().unwrap_or_else(PoisonError::into_inner).insert(request.id.clone(), known);
        let digest = if self.is(Broken::DigestsNothing) { "same".to_owned() } else { staged.digest.clone() };
        let mut profiles = staged.profiles;
        if self.is(Broken::ProfilesWhatCameOnly) {
            profiles.retain(|profile| profile.rows > 0);
        }
        Ok(Staged { intent: request.intent.clone(), digest, profiles, ..staged })
    }

    async fn rebase(&self, staged: &Staged, _: &Base) -> Result<Staged> {
        Ok(staged.clone())
    }

    async fn discard(&self, id: &StagedId) -> Result<()> {
        if self.is(Broken::DiscardsNothing) {
            return Ok(());
        }
        match self.inner.discard(id).await {
            Err(_) if self.is(Broken::DiscardsWhatIsCommitted) => Ok(()),
            discarded => discarded,
        }
    }

    async fn commit(&self, request: CommitRequest<'_>) -> Result<CommitOutcome> {
        let lost = |entry: &&CommitEntry| match &entry.change {
            Change::Apply(staged) => self.known(&staged.id).is_none(),
            Change::Restore(_) | Change::Adopt => false,
        };
        if self.is(Broken::LosesStagedSetsWithTheProcess) && request.entries.iter().any(|entry| lost(&entry))
        {
            return Err(Error::new(ErrorKind::NotFound, "another process staged it"));
        }
        let mut entries: Vec<_> = request.entries.iter().map(|entry| self.true_entry(entry)).collect();
        let base = self.base_of(&request).await?;
        let mut asked = CommitRequest { entries: &entries, base: &base, ..request };
        if self.is(Broken::IgnoresTheFence) {
            (asked.fence, asked.ledger) = (None, None);
        }
        if self.is(Broken::ShowsHalfAReplace) && self.now(&entries).await?.partitions == base.partitions {
            let schema = self.inner.schema().await?.unwrap();
            self.inner.replace_unmanaged(&entries[0].scope, &RecordBatch::new_empty(schema))?;
            tokio::time::sleep(Duration::from_millis(20)).await;
            let base = self.now(&entries).await?;
            return self.inner.commit(CommitRequest { base: &base, ..asked }).await;
        }
        if self.is(Broken::CommitsTheFirstEntryOnly) {
            asked.entries = &asked.entries[..asked.entries.len().min(1)];
        }
        let mut outcome = self.inner.commit(asked).await?;
        if let (true, CommitOutcome::Committed(commit)) = (self.is(Broken::SaysTheLedgerKnows), &mut outcome)
        {
            commit.recorded = true;
        }
        match &outcome {
            CommitOutcome::AlreadyCommitted(_) if self.is(Broken::ForgetsTheStamp) => {
                self.write_again(&entries).await?;
            }
            CommitOutcome::Conflicted { moved } if self.is(Broken::CommitsWhatDoesNotConflict) => {
                self.commit_the_others(&asked, moved).await?;
            }
            CommitOutcome::SchemaChanged if self.is(Broken::CommitsForOtherColumns) => {
                for entry in &mut entries {
                    let Change::Apply(staged) = &mut entry.change else { continue };
                    let Some((mut request, rows, _)) = self.known(&staged.id) else { continue };
                    request.schema = SchemaPolicy::AddNullable;
                    let rows = widened(&rows, &self.inner.schema().await?.unwrap());
                    *staged = self.inner.stage(&request, rows.into()).await?;
                }
                outcome =
                    self.inner.commit(CommitRequest { entries: &entries, base: &base, ..request }).await?;
            }
            outcome => self.afterwards(&asked, outcome).await?,
        }
        Ok(outcome)
    }

    async fn find_commit(&self, stamp: &StampId, scope: &Scope, since: &Base) -> Result<Found> {
        if self.is(Broken::FindsNoCommit) {
            return Ok(Found::No);
        }
        self.inner.find_commit(stamp, scope, since).await
    }

    async fn forget(&self, kept: &Kept) -> Result<()> {
        if self.is(Broken::ForgetsNothing) { Ok(()) } else { self.inner.forget(kept).await }
    }

    fn staged(&self) -> Option<&dyn StagedReader> {
        Some(self)
    }
}

/// The rows with NULL in place of empty texts.
fn nulled(rows: &RecordBatch) -> RecordBatch {
    let column = |array: &ArrayRef| -> ArrayRef {
        match array.as_string_opt::<i32>() {
            Some(texts) => Arc::new(
                texts.iter().map(|text| text.filter(|text| !text.is_empty())).collect::<StringArray>(),
            ),
            None => array.clone(),
        }
    };
    RecordBatch::try_new(rows.schema(), rows.columns().iter().map(column).collect()).unwrap()
}

/// The rows with NULL in the columns they lack.
fn widened(rows: &RecordBatch, schema: &SchemaRef) -> RecordBatch {
    let column = |field: &Arc<arrow_schema::Field>| match rows.column_by_name(field.name()) {
        Some(array) => array.clone(),
        None => arrow_array::new_null_array(field.data_type(), rows.num_rows()),
    };
    RecordBatch::try_new(schema.clone(), schema.fields().iter().map(column).collect()).unwrap()
}

#[async_trait]
impl SnapshotReader for BrokenTable {
    fn table(&self) -> &TableId {
        &self.spec.id
    }

    async fn current(&self) -> Result<TableVersion> {
        self.inner.current().await
    }

    async fn availability(&self, version: &TableVersion) -> Result<Availability> {
        if self.is(Broken::ReadsExpiredVersions) {
            return Ok(Availability::Readable { until: None });
        }
        self.inner.availability(version).await
    }

    async fn slice_versions(
        &self,
        version: &TableVersion,
        slices: &[Slice],
    ) -> Result<Vec<PartitionVersion>> {
        let versions = self.inner.slice_versions(version, slices).await?;
        if self.is(Broken::NeverMovesASlice) {
            return Ok(vec!["1".into(); versions.len()]);
        }
        Ok(versions)
    }

    async fn hold(&self, pins: &[Pin]) -> Result<()> {
        self.inner.hold(pins).await
    }

    async fn release(&self, pins: &[Pin]) -> Result<()> {
        self.inner.release(pins).await
    }

    async fn read(&self, pin: &Pin) -> Result<(SchemaRef, RowStream)> {
        if self.is(Broken::ReadsNewerRows) || self.is(Broken::NeverMovesASlice) {
            let newest = crate::conformance::world::pin(&self.inner, pin.slice.clone()).await?;
            return self.inner.read(&newest).await;
        }
        if let (true, Slice::Time(slice)) = (self.is(Broken::ReadsEveryCountry), &pin.slice) {
            let every = Slice::Time(TimeSlice { only: PartitionKey::whole(), ..slice.clone() });
            return self.inner.read(&crate::conformance::world::pin(&self.inner, every).await?).await;
        }
        let (schema, rows) = self.inner.read(pin).await?;
        let batches: Vec<_> = rows.try_collect().await?;
        let count: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let schema = match count {
            0 if self.is(Broken::ForgetsTheColumnsOfNothing) => Schema::empty().into(),
            _ => schema,
        };
        let kept = if self.is(Broken::EndsStreamsEarly) { 100 } else { usize::MAX };
        let batches = batches.into_iter().map(move |batch| Ok(batch.slice(0, batch.num_rows().min(kept))));
        Ok((schema, stream::iter(batches).boxed()))
    }
}

#[async_trait]
impl StagedReader for BrokenTable {
    async fn list(&self, run: &RunId) -> Result<Vec<StagedId>> {
        self.inner.list(run).await
    }

    async fn open(&self, id: &StagedId) -> Result<Option<Staged>> {
        let lost = self.is(Broken::LosesStagedSetsWithTheProcess) && self.known(id).is_none();
        if lost { Ok(None) } else { self.inner.open(id).await }
    }

    async fn read_overlaid(&self, staged: &[Staged], pin: &Pin) -> Result<(SchemaRef, RowStream)> {
        let staged = if self.is(Broken::OverlaysNothing) { &[] } else { staged };
        self.inner.read_overlaid(staged, pin).await
    }

    async fn profile_after(&self, staged: &Staged, spec: &ProfileSpec) -> Result<Vec<Profile>> {
        self.inner.profile_after(staged, spec).await
    }

    async fn diff(&self, staged: &Staged, spec: &DiffSpec) -> Result<Vec<Diff>> {
        if self.is(Broken::FindsNoDifference) {
            return Ok(staged.scope.partitions().iter().map(|_| Diff::default()).collect());
        }
        self.inner.diff(staged, spec).await
    }
}
