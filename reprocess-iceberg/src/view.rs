//! One version of a table: its columns, and its files by partition.

mod deletes;
#[cfg(test)]
pub(crate) mod fixtures;
mod listing;
mod version;

use std::sync::Arc;

use arrow_schema::SchemaRef;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use iceberg::spec::{DataFile, ManifestFile, PartitionSpecRef, SchemaId, SnapshotRef, TableMetadataRef};
use reprocess_core::domain::ids::{PartitionVersion, TableVersion};
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::{Base, Slice};
use reprocess_core::{Error, ErrorKind, Result};

pub(crate) use self::listing::{File, Listing, Wanted};
pub(crate) use self::version::{schema_of, snapshot_of, version_of};
use crate::catalog::Loaded;
use crate::columns;
use crate::error::Doing;
use crate::files::Files;
use crate::manifests::Manifests;
use crate::partitions::Partitions;
use crate::table::IcebergTable;

/// How many manifests are read at once.
const READS: usize = 16;

/// A table at one snapshot; without metadata a table that is not there.
#[derive(Debug)]
pub(crate) struct View {
    spec: TableSpec,
    there: Option<There>,
    schema: SchemaRef,
}

/// What there is of a table that is there.
#[derive(Debug)]
pub(crate) struct There {
    pub(crate) loaded: Loaded,
    /// `None` where the table has no snapshot yet, and is empty.
    pub(crate) snapshot: Option<SnapshotRef>,
    /// Columns of the snapshot in the words of Iceberg; of the newest version those of the table now.
    pub(crate) columns: iceberg::spec::SchemaRef,
    pub(crate) partitions: Partitions,
    pub(crate) files: Files,
    /// The manifest list of the snapshot.
    pub(crate) manifests: Arc<Vec<ManifestFile>>,
}

/// An entry of a manifest that is live, with what it inherits: a data file, or a file of deletes.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) file: DataFile,
    /// Path of the manifest that names it.
    pub(crate) manifest: Arc<str>,
    /// Of the manifest.
    pub(crate) spec: PartitionSpecRef,
    pub(crate) schema: iceberg::spec::SchemaRef,
    pub(crate) snapshot_id: i64,
    pub(crate) sequence_number: i64,
    pub(crate) file_sequence_number: Option<i64>,
    /// v3: of its first row, also where the entry itself says nothing and the manifest does.
    pub(crate) first_row_id: Option<i64>,
}

impl View {
    pub(crate) fn absent(spec: &TableSpec) -> Self {
        Self { spec: spec.clone(), there: None, schema: Arc::new(arrow_schema::Schema::empty()) }
    }

    /// The newest version of main, with the columns that the table has now.
    pub(crate) async fn newest(table: &IcebergTable, loaded: Loaded) -> Result<Self> {
        let snapshot = loaded.metadata.current_snapshot().cloned();
        let columns = loaded.metadata.current_schema().clone();
        Self::of(table, loaded, snapshot, columns).await.map_err(|e| table.in_table(e))
    }

    /// As it was at a snapshot, or before there was one: with the columns of an id where the version names one, else with
    /// those of then.
    pub(crate) async fn at(
        table: &IcebergTable,
        loaded: Loaded,
        snapshot: Option<&SnapshotRef>,
        columns: Option<SchemaId>,
    ) -> Result<Self> {
        let metadata = &loaded.metadata;
        let columns = match (columns, snapshot) {
            (Some(id), _) => metadata.schema_by_id(id).cloned().ok_or_else(|| {
                Error::new(ErrorKind::PinBroken, "the table no longer has the columns of the version")
                    .with_advice("plan again with current inputs")
            }),
            (None, Some(snapshot)) => snapshot.schema(metadata).doing("find the columns of a snapshot"),
            (None, None) => Ok(metadata.current_schema().clone()),
        };
        let columns = columns.map_err(|e| table.in_table(e))?;
        Self::of(table, loaded, snapshot.cloned(), columns).await.map_err(|e| table.in_table(e))
    }

    async fn of(
        table: &IcebergTable,
        loaded: Loaded,
        snapshot: Option<SnapshotRef>,
        columns: iceberg::spec::SchemaRef,
    ) -> Result<Self> {
        let spec = table.spec();
        let partitions = Partitions::new(&spec.partitioning, &loaded.metadata)?;
        let files = Files::new(table.stores(&loaded.config), loaded.metadata.location())?;
        let manifests = match &snapshot {
            Some(snapshot) => table.manifests().list(&files, &loaded.metadata, snapshot).await?,
            None => Arc::default(),
        };
        let schema = columns::to_arrow(&columns)?;
        let there = There { loaded, snapshot, columns, partitions, files, manifests };
        Ok(Self { spec: spec.clone(), there: Some(there), schema })
    }

    /// The columns; `None` where the table is not there.
    pub(crate) fn columns(&self) -> Option<&SchemaRef> {
        self.there.as_ref().map(|_| &self.schema)
    }

    /// The columns, none where the table is not there. Without field ids.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Refuses a table that is not there.
    pub(crate) fn there(&self) -> Result<&There> {
        self.there.as_ref().ok_or_else(|| {
            Error::not_found("the table does not exist")
                .with_context("table", &self.spec.id)
                .with_advice("create it first")
        })
    }

    /// `None` where the table is not there.
    pub(crate) fn known(&self) -> Option<&There> {
        self.there.as_ref()
    }

    /// Id of the snapshot; `None` where there is none.
    pub(crate) fn snapshot_id(&self) -> Option<i64> {
        self.there.as_ref()?.snapshot.as_ref().map(|snapshot| snapshot.snapshot_id())
    }

    pub(crate) fn version(&self) -> TableVersion {
        let there = self.there.as_ref();
        version::version(there.map(|there| (there.snapshot.as_deref(), there.columns.schema_id())))
    }

    pub(crate) fn metadata(&self) -> Result<&TableMetadataRef> {
        Ok(&self.there()?.loaded.metadata)
    }

    /// The live files of what is wanted.
    pub(crate) async fn listing(&self, table: &IcebergTable, wanted: &Wanted) -> Result<Listing> {
        self.listed(table.manifests(), wanted).await.map_err(|e| table.in_table(e))
    }

    async fn listed(&self, manifests: &Manifests, wanted: &Wanted) -> Result<Listing> {
        let Some(there) = &self.there else { return Ok(Listing::default()) };
        let named = there.manifests.iter().filter(|manifest| there.may_name(manifest, wanted));
        let reads: Vec<_> = named.map(|manifest| manifests.live(&there.files, manifest).boxed()).collect();
        let live: Vec<_> = stream::iter(reads).buffered(READS).try_collect().await?;
        Listing::of(&there.partitions, wanted, &live)
    }

    /// Versions of the keys of a scope.
    pub(crate) fn head(&self, listing: &Listing, scope: &Scope) -> Result<Base> {
        let keys = scope.partitions().into_iter().map(|key| {
            let known = self.spec.partitioning.check_key(&key)?;
            let files = listing.under(&known).into_iter().chain(listing.loose_under(&known));
            Ok((key, version_of(files.map(File::identity))))
        });
        Ok(Base::new(self.version(), keys.collect::<Result<_>>()?))
    }

    /// Version of the content of a slice.
    pub(crate) fn slice_version(&self, listing: &Listing, slice: &Slice) -> Result<PartitionVersion> {
        slice.check(&self.spec.partitioning).map_err(|e| e.with_context("table", &self.spec.id))?;
        let files = listing.in_slice(slice).into_iter().chain(listing.loose_in(slice));
        Ok(version_of(files.map(File::identity)))
    }
}

impl There {
    /// Whether a manifest may name a live file that is wanted. Errs on `true`.
    fn may_name(&self, manifest: &ManifestFile, wanted: &Wanted) -> bool {
        if !manifest.has_added_files() && !manifest.has_existing_files() {
            return false;
        }
        let spec = self.loaded.metadata.partition_spec_by_id(manifest.partition_spec_id);
        spec.is_none_or(|spec| self.partitions.may_name(spec, manifest.partitions.as_deref(), wanted))
    }
}

#[cfg(test)]
mod tests;
