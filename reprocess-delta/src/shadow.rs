//! Staged sets: where they are noted, and how the table would look with them.

mod set;

use std::sync::Arc;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use futures::TryStreamExt;
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

pub(crate) use set::{Content, Files, Merged, Set, claim, discard, forget};

use crate::reader::Source;
use crate::table::DeltaTable;
use crate::view::{File, View};

#[async_trait]
impl StagedReader for DeltaTable {
    async fn list(&self, run: &RunId) -> Result<Vec<StagedId>> {
        let mut ids = Vec::new();
        for id in sets::of_run(self.folder(), run).await? {
            if set::open(self, &id).await?.is_some() {
                ids.push(id);
            }
        }
        ids.sort();
        Ok(ids)
    }

    async fn open(&self, id: &StagedId) -> Result<Option<Staged>> {
        Ok(set::open(self, id).await?.map(|set| set.staged))
    }

    async fn read_overlaid(&self, staged: &[Staged], pin: &Pin) -> Result<(SchemaRef, RowStream)> {
        let source = self.overlaid(staged, pin).await?;
        let rows = source.rows().await.map_err(|e| self.in_table(e))?;
        Ok((source.schema, rows))
    }

    async fn profile_after(&self, staged: &Staged, spec: &ProfileSpec) -> Result<Vec<Profile>> {
        let view = self.latest().await?;
        let columns = schema::resolve(view.schema(), &staged.schema, staged.schema_policy)?;
        let after = self.after(&view, staged, &columns, |_| true).await?;
        let mut profiler = ScopeProfiler::new(&self.spec().partitioning, &staged.scope, &after.schema, spec)?;
        let mut rows = after.rows().await?;
        while let Some(batch) = rows.try_next().await? {
            profiler.push(&batch)?;
        }
        Ok(profiler.finish())
    }

    /// Holds the rows of one key at a time in memory.
    async fn diff(&self, staged: &Staged, spec: &DiffSpec) -> Result<Vec<Diff>> {
        let view = self.latest().await?;
        let columns = schema::resolve(view.schema(), &staged.schema, staged.schema_policy)?;
        let mut diffs = Vec::new();
        for key in staged.scope.partitions() {
            let known = self.spec().partitioning.check_key(&key)?;
            let before = self.rows_of(&view, &known).await?;
            let after = self.after(&view, staged, &columns, |partition| known.covers(partition)).await?;
            let after: Vec<_> = after.rows().await?.try_collect().await?;
            diffs.push(diff::diff(key, &before, &after, spec)?);
        }
        Ok(diffs)
    }
}

impl DeltaTable {
    async fn rows_of(&self, view: &Arc<View>, key: &PartitionKey) -> Result<Vec<arrow_array::RecordBatch>> {
        let files = view.files_of(key)?.into_iter().cloned().collect();
        let schema = Arc::clone(view.schema());
        let source = Source {
            table: self.clone(),
            view: Arc::clone(view),
            files,
            adds: Vec::new(),
            schema,
            as_of: None,
        };
        source.rows().await?.try_collect().await
    }

    /// What a pin names as it would be with staged sets committed. Beside their scopes the rows are those of the version of
    /// the pin.
    pub(crate) async fn overlaid(&self, staged: &[Staged], pin: &Pin) -> Result<Source> {
        if staged.is_empty() {
            let source = self.pinned(pin).await?;
            self.check_files(pin, &source.files).await?;
            return Ok(source);
        }
        let view = self.pinned_view(pin).await?;
        let beside =
            |key: &PartitionKey| pin.slice.holds(key) && !staged.iter().any(|set| set.scope.covers(key));
        let mut files: Vec<File> = view.files_where(beside).map(|(_, file)| file.clone()).collect();
        let mut columns = Arc::clone(self.latest().await?.schema());
        let mut adds = Vec::new();
        for set in staged {
            columns = schema::resolve(&columns, &set.schema, set.schema_policy)?;
            let after = self.after(&view, set, &columns, |key| pin.slice.holds(key)).await;
            let after = after.map_err(|e| match e.kind() {
                ErrorKind::State => {
                    broken(pin, "a merge is staged on other rows than those of the pin").with_source(e)
                }
                _ => e,
            })?;
            files.extend(after.files);
            adds.extend(after.adds);
        }
        self.check_files(pin, &files).await?;
        Ok(Source {
            table: self.clone(),
            view,
            files,
            adds,
            schema: columns,
            as_of: as_of(&pin.slice).cloned(),
        })
    }

    /// The rows of the wanted partitions in a staged set's scope, as they would be with it committed onto a version.
    async fn after(
        &self,
        view: &Arc<View>,
        staged: &Staged,
        columns: &SchemaRef,
        wanted: impl Fn(&PartitionKey) -> bool,
    ) -> Result<Source> {
        let noted = Set::find(self.folder(), staged).await?.content.files;
        let in_scope = |key: &PartitionKey| staged.scope.covers(key) && wanted(key);
        let stays = |key: &PartitionKey, file: &File| match &staged.intent {
            Intent::Replace => false,
            Intent::ReplaceDynamic => !staged.received.contains(key),
            Intent::Merge(_) => !noted.removes(file.path()),
        };
        if let Some(merged) = &noted.merged
            && !merged.is_on(&view.head(&staged.scope)?)
        {
            return Err(self.in_table(
                Error::new(ErrorKind::State, "the table moved under a merge that waits")
                    .with_context("staged", &staged.id)
                    .with_advice("take a new base for it, or stage it again"),
            ));
        }
        let files =
            view.files_where(in_scope).filter(|(key, file)| stays(key, file)).map(|(_, file)| file.clone());
        let partitions = view.partitions()?;
        let mut adds = Vec::new();
        for add in &noted.adds {
            if in_scope(&partitions.key(&partitions.values(&add.partition_values)?)?) {
                adds.push(add.clone());
            }
        }
        let files = files.collect();
        let (schema, view) = (Arc::clone(columns), Arc::clone(view));
        Ok(Source { table: self.clone(), view, files, adds, schema, as_of: None })
    }
}
