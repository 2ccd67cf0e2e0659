//! Writing one table.

mod commit;
mod encode;
mod keep;
mod layout;
mod merge;
mod query;
mod stage;
mod within;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema, SchemaRef, TimeUnit};
use async_trait::async_trait;
use futures::TryStreamExt;
use reprocess_core::domain::ids::TableId;
use reprocess_core::domain::profile::{Profile, ProfileSpec, ScopeProfiler};
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::rows::{Columns, partition_of_rows};
use reprocess_core::domain::schema as rows;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::{Base, Kept};
use reprocess_core::ports::staged::StagedReader;
use reprocess_core::ports::writer::{
    Capabilities, CommitOutcome, CommitRequest, Found, Intent, MergeKeys, PartitionWriter, Rows,
    StageRequest, Staged, StagedId, StampId,
};
use reprocess_core::{Error, Result};

pub(crate) use commit::{Changes, Reply, ask, outrun, waits, widened};

use crate::catalog::Creation;
use crate::commits::Search;
use crate::partitions::spec_for;
use crate::shadow::{self, Set};
use crate::table::IcebergTable;
use crate::view::{File, Wanted};
use crate::{columns, features, scan};

/// What a new table says of itself.
const PROPERTIES: [(&str, &str); 2] = [("format-version", "2"), ("write.parquet.compression-codec", "zstd")];

#[async_trait]
impl PartitionWriter for IcebergTable {
    fn table(&self) -> &TableId {
        &self.spec().id
    }

    /// The ledger is written with the data where it is in the database of a SQL catalog.
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        capabilities.ledger_in_commit = self.catalog().inner().has_transactions();
        capabilities
    }

    async fn schema(&self) -> Result<Option<SchemaRef>> {
        Ok(self.latest().await.map_err(|e| self.in_table(e))?.columns().cloned())
    }

    /// Creates the table, partitioned by its dimensions, of format version 2.
    async fn create(&self, schema: &SchemaRef) -> Result<()> {
        self.make(schema).await.map_err(|e| self.in_table(e))
    }

    async fn head(&self, scope: &Scope) -> Result<Base> {
        let head = async {
            let view = self.latest().await?;
            view.head(&view.listing(self, &Wanted::of(scope)).await?, scope)
        };
        head.await.map_err(|e| self.in_table(e))
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

    async fn find_commit(&self, stamp: &StampId, _scope: &Scope, since: &Base) -> Result<Found> {
        let view = self.latest().await.map_err(|e| self.in_table(e))?;
        let search = self.commits().find(&view, stamp, since);
        Ok(match search.map_err(|e| self.in_table(e))? {
            Search::Found(commit) => Found::Yes(*commit),
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

impl IcebergTable {
    async fn make(&self, schema: &SchemaRef) -> Result<()> {
        let partitioning = &self.spec().partitioning;
        let empty = RecordBatch::new_empty(Arc::clone(schema));
        Columns::new(&empty).and_then(|_| partition_of_rows(partitioning, &empty))?;
        if let Some(known) = self.latest().await?.columns() {
            return rows::resolve(known, schema, SchemaPolicy::Refuse).map(drop);
        }
        reprocess_lake::stage::check_types(schema, columns::kept_as)?;
        check_units(schema)?;
        let made = columns::new_schema(schema)?;
        let creation = Creation {
            spec: spec_for(partitioning, &made)?,
            schema: made,
            properties: PROPERTIES.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        };
        let stores = self.stores(&BTreeMap::new());
        if self.catalog().inner().create(self.name(), creation, &stores).await?.is_some() {
            return Ok(());
        }
        // Another made it in between.
        let view = self.latest().await?;
        let known = view.columns().ok_or_else(|| Error::internal("a table was made, and is not there"))?;
        rows::resolve(known, schema, SchemaPolicy::Refuse).map(drop)
    }

    async fn profiles(&self, scope: &Scope, spec: &ProfileSpec) -> Result<(Base, Vec<Profile>)> {
        let view = self.latest().await?;
        let listing = view.listing(self, &Wanted::of(scope)).await?;
        let head = view.head(&listing, scope)?;
        // A table that is not there has no columns for the spec to name.
        let nothing = ProfileSpec::new();
        let spec = if view.columns().is_some() { spec } else { &nothing };
        let partitioning = &self.spec().partitioning;
        let mut profiler = ScopeProfiler::new(partitioning, scope, view.schema(), spec)?;
        let mut files: BTreeMap<&str, &File> = BTreeMap::new();
        for key in scope.partitions() {
            let found = listing.under(&key).into_iter().chain(listing.loose_under(&key));
            files.extend(found.map(|file| (file.path(), file)));
        }
        let files: Vec<File> = files.into_values().cloned().collect();
        features::check_read(&files)?;
        let mut rows = scan::committed(&view, &files).await?;
        while let Some(batch) = rows.try_next().await? {
            let inside = match listing.loose.is_empty() {
                true => batch,
                false => within::within(partitioning, scope, &batch)?,
            };
            profiler.push(&inside)?;
        }
        Ok((head, profiler.finish()))
    }

    async fn merge_again(&self, staged: &Staged, by: &MergeKeys) -> Result<()> {
        let view = self.latest().await?;
        let there = view.there()?;
        let mut set = Set::find(there.files.folder(), staged).await?;
        let Some(merged) = &set.content.merged else {
            return Err(
                Error::internal("a merge was staged without its rows").with_context("staged", &staged.id)
            );
        };
        let listing = view.listing(self, &Wanted::of(&staged.scope)).await?;
        if merged.is_on(&view.head(&listing, &staged.scope)?) {
            return Ok(());
        }
        let after = rows::resolve(view.schema(), &staged.schema, staged.schema_policy)?;
        let schema = stage::schema_of(&view, &staged.visibility, &after)?;
        if schema.as_struct() != set.content.columns().as_struct() {
            // The commit answers that the columns changed, and the rows are staged again.
            return Ok(());
        }
        let files = set.content.incoming()?;
        let incoming = merge::Incoming { columns: &schema, files: &files };
        let again = merge::merge(self, &view, &staged.scope, by, &schema, incoming, &staged.id).await?;
        let merge::Merged { removes, on, added } = again;
        set.content = set.content.again(&view, &schema, &added, (files, removes, on))?;
        set.keep(there.files.folder()).await?;
        stage::show(self, &set).await
    }
}

/// Refuses columns that tables of format version 2 do not have.
fn check_units(columns: &Schema) -> Result<()> {
    let fine = columns
        .fields()
        .iter()
        .find(|field| matches!(field.data_type(), DataType::Timestamp(TimeUnit::Nanosecond, _)));
    match fine {
        None => Ok(()),
        Some(field) => Err(Error::invalid(format!(
            "column `{}` has nanoseconds, which new tables do not have",
            field.name()
        ))
        .with_advice("cast it to microseconds, or make the table of format version 3 with another tool")),
    }
}
