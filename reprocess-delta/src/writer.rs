//! Writing one table.

mod commit;
mod encode;
mod keep;
mod layout;
mod merge;
mod schema;
mod stage;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_trait::async_trait;
use deltalake::DeltaTableError;
use deltalake::kernel::transaction::TransactionError;
use deltalake::operations::create::CreateBuilder;
use deltalake::protocol::SaveMode;
use futures::TryStreamExt;
use reprocess_core::domain::ids::TableId;
use reprocess_core::domain::profile::{Profile, ProfileSpec, ScopeProfiler};
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::rows::{Columns, partition_of_rows};
use reprocess_core::domain::schema as columns;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::{Base, Kept};
use reprocess_core::ports::staged::StagedReader;
use reprocess_core::ports::writer::{
    Capabilities, CommitOutcome, CommitRequest, Found, Intent, MergeKeys, PartitionWriter, Rows,
    StageRequest, Staged, StagedId, StampId,
};
use reprocess_core::{Error, Result};

pub(crate) use keep::kept_versions;

use crate::commits::Search;
use crate::error::Doing;
use crate::partitions::Partitions;
use crate::scan;
use crate::shadow::{self, Set};
use crate::table::DeltaTable;

#[async_trait]
impl PartitionWriter for DeltaTable {
    fn table(&self) -> &TableId {
        &self.spec().id
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        capabilities.ledger_in_commit = false;
        capabilities
    }

    async fn schema(&self) -> Result<Option<SchemaRef>> {
        Ok(self.latest().await.map_err(|e| self.in_table(e))?.columns().cloned())
    }

    /// Creates the table with its dimensions as partition columns.
    async fn create(&self, schema: &SchemaRef) -> Result<()> {
        self.make(schema).await.map_err(|e| self.in_table(e))
    }

    async fn head(&self, scope: &Scope) -> Result<Base> {
        let view = self.latest().await.map_err(|e| self.in_table(e))?;
        view.head(scope).map_err(|e| self.in_table(e))
    }

    async fn profile(&self, scope: &Scope, spec: &ProfileSpec) -> Result<(Base, Vec<Profile>)> {
        self.profiles(scope, spec).await.map_err(|e| self.in_table(e))
    }

    async fn stage(&self, request: &StageRequest, rows: Rows) -> Result<Staged> {
        stage::stage(self, request, rows).await.map_err(|e| self.in_table(e))
    }

    /// A merge is computed on what is there; the base that is asked for decides at the commit. A replace stays as it is.
    async fn rebase(&self, staged: &Staged, _onto: &Base) -> Result<Staged> {
        if let Intent::Merge(by) = &staged.intent {
            self.merge_again(staged, by).await.map_err(|e| self.in_table(e))?;
        }
        Ok(staged.clone())
    }

    async fn discard(&self, id: &StagedId) -> Result<()> {
        shadow::discard(self, id).await.map_err(|e| self.in_table(e))
    }

    async fn commit(&self, request: CommitRequest<'_>) -> Result<CommitOutcome> {
        commit::commit(self, request).await.map_err(|e| self.in_table(e))
    }

    async fn find_commit(&self, stamp: &StampId, scope: &Scope, since: &Base) -> Result<Found> {
        let view = self.latest().await.map_err(|e| self.in_table(e))?;
        let search = self.commits().find(self.log().as_ref(), &view, stamp, scope, since).await;
        Ok(match search.map_err(|e| self.in_table(e))? {
            Search::Found(commit) => Found::Yes(commit),
            Search::NotThere => Found::No,
            Search::Expired => Found::HistoryExpired,
        })
    }

    async fn forget(&self, kept: &Kept) -> Result<()> {
        keep::forget(self, kept).await.map_err(|e| self.in_table(e))
    }

    fn staged(&self) -> Option<&dyn StagedReader> {
        Some(self)
    }
}

impl DeltaTable {
    async fn make(&self, schema: &SchemaRef) -> Result<()> {
        let partitioning = &self.spec().partitioning;
        let empty = RecordBatch::new_empty(Arc::clone(schema));
        Columns::new(&empty).and_then(|_| partition_of_rows(partitioning, &empty))?;
        stage::check_types(schema)?;
        let dimensions: Vec<_> = partitioning.dimensions().iter().map(|d| d.column().to_owned()).collect();
        Partitions::new(partitioning, &dimensions, schema)?;
        if let Some(known) = self.latest().await?.columns() {
            return columns::resolve(known, schema, SchemaPolicy::Refuse).map(drop);
        }
        let made = CreateBuilder::new()
            .with_log_store(Arc::clone(self.log()))
            .with_save_mode(SaveMode::ErrorIfExists)
            .with_columns(schema::delta_columns(schema)?.fields().cloned())
            .with_partition_columns(dimensions)
            .await;
        match made {
            Ok(_) => Ok(()),
            // Another made it in between.
            Err(
                DeltaTableError::VersionAlreadyExists(_)
                | DeltaTableError::Transaction {
                    source: TransactionError::CommitConflict(_) | TransactionError::MaxCommitAttempts(_),
                },
            ) => {
                let view = self.latest().await?;
                let known =
                    view.columns().ok_or_else(|| Error::internal("a table was made, and is not there"))?;
                columns::resolve(known, schema, SchemaPolicy::Refuse).map(drop)
            }
            Err(e) => Err(e).doing("create the table"),
        }
    }

    async fn profiles(&self, scope: &Scope, spec: &ProfileSpec) -> Result<(Base, Vec<Profile>)> {
        let view = self.latest().await?;
        let head = view.head(scope)?;
        // A table that is not there has no columns for the spec to name.
        let nothing = ProfileSpec::new();
        let spec = if view.columns().is_some() { spec } else { &nothing };
        let mut profiler = ScopeProfiler::new(&self.spec().partitioning, scope, view.schema(), spec)?;
        let mut rows = scan::committed(self, &view, &view.files_in(scope)?).await?;
        while let Some(batch) = rows.try_next().await? {
            profiler.push(&batch)?;
        }
        Ok((head, profiler.finish()))
    }

    async fn merge_again(&self, staged: &Staged, by: &MergeKeys) -> Result<()> {
        let mut set = Set::find(self.folder(), staged).await?;
        let view = self.latest().await?;
        let Some(merged) = &set.content.files.merged else {
            return Err(
                Error::internal("a merge was staged without its rows").with_context("staged", &staged.id)
            );
        };
        if merged.is_on(&view.head(&staged.scope)?) {
            return Ok(());
        }
        let incoming = merged.incoming.clone();
        let columns = columns::resolve(view.schema(), &staged.schema, staged.schema_policy)?;
        let (merged, adds) =
            merge::merge(self, &view, &staged.scope, by, &columns, &incoming, &staged.id).await?;
        set.content.files = shadow::Files { adds, merged: Some(shadow::Merged { incoming, ..merged }) };
        set.keep(self.folder()).await
    }
}
