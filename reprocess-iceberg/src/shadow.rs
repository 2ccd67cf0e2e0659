//! Staged sets: where they are noted, and how the table would look with them.

pub(crate) mod branch;
mod set;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_trait::async_trait;
use futures::TryStreamExt;
use iceberg::spec::DataFile;
use reprocess_core::domain::diff::{self, Diff, DiffSpec};
use reprocess_core::domain::ids::RunId;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::profile::{Profile, ProfileSpec, ScopeProfiler};
use reprocess_core::domain::schema;
use reprocess_core::domain::slice::Pin;
use reprocess_core::ports::reader::RowStream;
use reprocess_core::ports::staged::StagedReader;
use reprocess_core::ports::writer::{Intent, Staged, StagedId};
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_lake::sets;
use reprocess_lake::slices::{as_of, broken};

pub(crate) use self::set::{Content, Set, claim, discard, forget, open};
use crate::partitions::Placed;
use crate::reader::{Keys, Source, Written};
use crate::table::IcebergTable;
use crate::view::{Listing, There, View, Wanted};

#[async_trait]
impl StagedReader for IcebergTable {
    async fn list(&self, run: &RunId) -> Result<Vec<StagedId>> {
        let view = self.latest().await?;
        let Some(there) = view.known() else { return Ok(Vec::new()) };
        let mut ids = Vec::new();
        for id in sets::of_run(there.files.folder(), run).await? {
            if open(self, &id).await?.is_some() {
                ids.push(id);
            }
        }
        ids.sort();
        Ok(ids)
    }

    async fn open(&self, id: &StagedId) -> Result<Option<Staged>> {
        Ok(open(self, id).await?.map(|set| set.staged))
    }

    async fn read_overlaid(&self, staged: &[Staged], pin: &Pin) -> Result<(SchemaRef, RowStream)> {
        let source = self.overlaid(staged, pin).await?;
        let rows = source.rows().await.map_err(|e| self.in_table(e))?;
        Ok((source.schema, rows))
    }

    async fn profile_after(&self, staged: &Staged, spec: &ProfileSpec) -> Result<Vec<Profile>> {
        let view = self.latest().await?;
        let columns = schema::resolve(view.schema(), &staged.schema, staged.schema_policy)?;
        let after = After::of(self, &view, view.there()?, staged).await?;
        let after = after.source(&columns, &Keys::new(|_| true));
        let mut profiler = ScopeProfiler::new(&self.spec().partitioning, &staged.scope, &after.schema, spec)?;
        let mut rows = after.rows().await.map_err(|e| self.in_table(e))?;
        while let Some(batch) = rows.try_next().await? {
            profiler.push(&batch)?;
        }
        Ok(profiler.finish())
    }

    /// Holds the rows of one key at a time in memory.
    async fn diff(&self, staged: &Staged, spec: &DiffSpec) -> Result<Vec<Diff>> {
        let view = self.latest().await?;
        let columns = schema::resolve(view.schema(), &staged.schema, staged.schema_policy)?;
        let after = After::of(self, &view, view.there()?, staged).await?;
        let mut diffs = Vec::new();
        for key in staged.scope.partitions() {
            let known = self.spec().partitioning.check_key(&key)?;
            let keys = Keys::new({
                let known = known.clone();
                move |partition| known.covers(partition)
            });
            let before = self.rows_of(&view, &after.listing, &known, &keys).await?;
            let after = self.gathered(&after.source(&columns, &keys)).await?;
            diffs.push(diff::diff(key, &before, &after, spec)?);
        }
        Ok(diffs)
    }
}

impl IcebergTable {
    /// The rows of one key of a version.
    async fn rows_of(
        &self,
        view: &Arc<View>,
        listing: &Listing,
        key: &PartitionKey,
        keys: &Keys,
    ) -> Result<Vec<RecordBatch>> {
        let loose = listing.loose_under(key).into_iter();
        let source = Source {
            files: listing.under(key).into_iter().cloned().collect(),
            loose: loose.map(|file| (file.clone(), keys.clone())).collect(),
            ..Source::of(self, view, view.schema())
        };
        self.gathered(&source).await
    }

    async fn gathered(&self, source: &Source) -> Result<Vec<RecordBatch>> {
        source.rows().await.map_err(|e| self.in_table(e))?.try_collect().await
    }

    /// What a pin names as it would be with staged sets committed. Beside their scopes the rows are those of the version of
    /// the pin.
    pub(crate) async fn overlaid(&self, staged: &[Staged], pin: &Pin) -> Result<Source> {
        if staged.is_empty() {
            let source = self.pinned(pin).await?;
            self.check_files(pin, &source).await?;
            return Ok(source);
        }
        let (view, listing) = self.pinned_view(pin).await?;
        let latest = self.latest().await?;
        let scopes: Vec<_> = staged.iter().map(|set| set.scope.clone()).collect();
        let (slice, in_slice) = (pin.slice.clone(), pin.slice.clone());
        let beside = Keys::new(move |key| slice.holds(key) && !scopes.iter().any(|scope| scope.covers(key)));
        let in_slice = Keys::new(move |key| in_slice.holds(key));
        let files = listing.files.iter().filter(|(key, _)| beside.hold(key));
        let mut source = Source {
            files: files.flat_map(|(_, files)| files.iter().cloned()).collect(),
            loose: listing.loose.iter().map(|(file, _)| (file.clone(), beside.clone())).collect(),
            as_of: as_of(&pin.slice).cloned(),
            ..Source::of(self, &view, latest.schema())
        };
        for set in staged {
            source.schema = schema::resolve(&source.schema, &set.schema, set.schema_policy)?;
            let after = After::of(self, &view, latest.there()?, set).await.map_err(|e| match e.kind() {
                ErrorKind::State => {
                    broken(pin, "a merge is staged on other rows than those of the pin").with_source(e)
                }
                _ => e,
            })?;
            let after = after.source(&source.schema, &in_slice);
            source.files.extend(after.files);
            source.loose.extend(after.loose);
            source.staged.extend(after.staged);
        }
        self.check_files(pin, &source).await?;
        Ok(source)
    }
}

/// A version with one staged set committed onto it, as far as the scope of the set goes.
struct After<'a> {
    table: &'a IcebergTable,
    view: &'a Arc<View>,
    /// The table as it is now, which knows the files of the set.
    there: &'a There,
    set: Set,
    /// The files that a commit adds.
    added: Vec<(PartitionKey, DataFile)>,
    /// Of the version, complete for the scope.
    listing: Listing,
}

impl<'a> After<'a> {
    async fn of(
        table: &'a IcebergTable,
        view: &'a Arc<View>,
        there: &'a There,
        staged: &Staged,
    ) -> Result<Self> {
        let set = Set::find(there.files.folder(), staged).await.map_err(|e| table.in_table(e))?;
        let listing = view.listing(table, &Wanted::of(&staged.scope)).await?;
        if let Some(merged) = &set.content.merged
            && !merged.is_on(&view.head(&listing, &staged.scope)?)
        {
            return Err(table.in_table(
                Error::new(ErrorKind::State, "the table moved under a merge that waits")
                    .with_context("staged", &staged.id)
                    .with_advice("take a new base for it, or stage it again"),
            ));
        }
        let added = added(there, &set).map_err(|e| table.in_table(e))?;
        Ok(Self { table, view, there, set, added, listing })
    }

    /// The rows of the wanted partitions in the scope, with columns.
    fn source(&self, columns: &SchemaRef, wanted: &Keys) -> Source {
        let staged = &self.set.staged;
        let stays = self.staying(wanted);
        let kept = |path: &str| !self.set.content.removes(path);
        let files = self.listing.files.iter().filter(|(key, _)| stays.hold(key));
        let files = files.flat_map(|(_, files)| files).filter(|file| kept(file.path())).cloned();
        let loose = self.listing.loose.iter().map(|(file, _)| file).filter(|file| kept(file.path()));
        let loose = loose.filter(|_| staged.intent != Intent::Replace);
        let in_scope = |key: &PartitionKey| staged.scope.covers(key) && wanted.hold(key);
        let data = self.added.iter().filter(|(key, _)| in_scope(key)).map(|(_, file)| file.clone());
        let written = Written {
            files: self.there.files.clone(),
            columns: Arc::new(self.set.content.columns().clone()),
            data: data.collect(),
        };
        Source {
            files: files.collect(),
            loose: loose.map(|file| (file.clone(), stays.clone())).collect(),
            staged: vec![written],
            ..Source::of(self.table, self.view, columns)
        }
    }

    /// The partitions of which live rows stay, where their files do.
    fn staying(&self, wanted: &Keys) -> Keys {
        let (staged, wanted) = (self.set.staged.clone(), wanted.clone());
        Keys::new(move |key| {
            let in_scope = staged.scope.covers(key) && wanted.hold(key);
            in_scope
                && match &staged.intent {
                    Intent::Replace => false,
                    Intent::ReplaceDynamic => !staged.received.contains(key),
                    Intent::Merge(_) => true,
                }
        })
    }
}

/// The files that a commit of a set adds, each with its partition.
fn added(there: &There, set: &Set) -> Result<Vec<(PartitionKey, DataFile)>> {
    let content = &set.content;
    let files = content.added(there)?;
    let spec = there.loaded.metadata.partition_spec_by_id(content.spec_id());
    let spec = spec.ok_or_else(|| sets::gone(&set.staged.id))?;
    let placed =
        files.into_iter().map(|file| match there.partitions.place(spec, content.columns(), &file)? {
            Placed::In(key) => Ok((key, file)),
            Placed::Among(_) => Err(Error::internal("a staged file holds rows of several partitions")
                .with_context("file", file.file_path())),
        });
    placed.collect()
}
