//! Reading at pinned versions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use chrono::{DateTime, Utc};
use deltalake::datafusion::catalog::TableProvider;
use deltalake::kernel::Add;
use deltalake::table::config::TablePropertiesExt;
use deltalake::table::state::DeltaTableState;
use futures::{FutureExt, StreamExt, TryStreamExt};
use reprocess_core::domain::ids::{PartitionVersion, TableId, TableVersion};
use reprocess_core::domain::schema;
use reprocess_core::domain::slice::{AsOfSlice, Pin, Slice};
use reprocess_core::ports::reader::{Availability, RowStream, SnapshotReader};
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_lake::session::streamed;
use reprocess_lake::slices::{self, as_of, broken};
use reprocess_lake::{Folder, held};

use crate::error::Doing;
use crate::scan;
use crate::table::DeltaTable;
use crate::view::{File, View, location};

/// A pin is a version of the table, and the version of a slice the set of its files: a version that touched other
/// partitions changes nothing of a slice.
#[async_trait]
impl SnapshotReader for DeltaTable {
    fn table(&self) -> &TableId {
        &self.spec().id
    }

    async fn current(&self) -> Result<TableVersion> {
        Ok(self.latest().await.map_err(|e| self.in_table(e))?.version())
    }

    /// A version that the log still has, whose files are all there. Those that a later version removed stay until the
    /// table's `delta.deletedFileRetentionDuration` has passed, a week where nothing is set.
    async fn availability(&self, version: &TableVersion) -> Result<Availability> {
        let view = match self.at(version).await {
            Ok(view) => view,
            Err(e) if e.kind() == ErrorKind::PinBroken => return Ok(Availability::Expired),
            Err(e) => return Err(self.in_table(e)),
        };
        self.available(&view).await.map_err(|e| self.in_table(e))
    }

    async fn slice_versions(
        &self,
        version: &TableVersion,
        slices: &[Slice],
    ) -> Result<Vec<PartitionVersion>> {
        let view = self.at(version).await?;
        slices.iter().map(|slice| view.slice_version(slice)).collect()
    }

    /// Notes the versions of the pins beside the table, for [`DeltaTable::vacuum`] and
    /// [`DeltaTable::needed_versions`] to keep.
    async fn hold(&self, pins: &[Pin]) -> Result<()> {
        for pin in pins {
            let source = self.pinned(pin).await?;
            self.check_files(pin, &source.files).await?;
        }
        held::hold(self.folder(), pins).await.map_err(|e| self.in_table(e))
    }

    async fn release(&self, pins: &[Pin]) -> Result<()> {
        held::release(self.folder(), pins).await.map_err(|e| self.in_table(e))
    }

    async fn read(&self, pin: &Pin) -> Result<(SchemaRef, RowStream)> {
        let source = self.pinned(pin).await?;
        self.check_files(pin, &source.files).await?;
        let rows = source.rows().await.map_err(|e| self.in_table(e))?;
        Ok((source.schema, rows))
    }
}

/// Rows of a table that can be read again: those of live files of one version, and those of staged files.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) table: DeltaTable,
    pub(crate) view: Arc<View>,
    pub(crate) files: Vec<File>,
    pub(crate) adds: Vec<Add>,
    pub(crate) schema: SchemaRef,
    pub(crate) as_of: Option<AsOfSlice>,
}

impl Source {
    pub(crate) async fn rows(&self) -> Result<RowStream> {
        slices::effective(self.as_of.as_ref(), || self.all().boxed()).await
    }

    async fn all(&self) -> Result<RowStream> {
        let files: Vec<_> = self.files.iter().collect();
        let mut rows = scan::committed(&self.table, &self.view, &files).await?;
        if self.view.schema() != &self.schema {
            let schema = Arc::clone(&self.schema);
            rows = rows.map(move |batch| schema::conform(&batch?, &schema)).boxed();
        }
        if self.adds.is_empty() {
            return Ok(rows);
        }
        let staged = scan::staged(&self.table, self.view.partitions()?, &self.schema, &self.adds)?;
        Ok(rows.chain(staged).boxed())
    }

    /// As a table of DataFusion, which is asked for the columns and rows that a query needs where that is possible.
    pub(crate) async fn provider(self) -> Result<Arc<dyn TableProvider>> {
        if self.adds.is_empty() && self.as_of.is_none() && self.view.columns() == Some(&self.schema) {
            let files: Vec<_> = self.files.iter().collect();
            return scan::provider(&self.table, &self.view, &files, None).await;
        }
        let schema = Arc::clone(&self.schema);
        streamed(schema, move || {
            let source = self.clone();
            async move { source.rows().await }.boxed()
        })
    }
}

impl DeltaTable {
    /// What a pin names, after a look at whether its version still has that content.
    pub(crate) async fn pinned(&self, pin: &Pin) -> Result<Source> {
        let view = self.pinned_view(pin).await?;
        let files = view.files_where(|key| pin.slice.holds(key)).map(|(_, file)| file.clone()).collect();
        let as_of = as_of(&pin.slice).cloned();
        Ok(Source {
            table: self.clone(),
            files,
            adds: Vec::new(),
            schema: Arc::clone(view.schema()),
            as_of,
            view,
        })
    }

    /// The version of a pin. Refuses one whose slice has another content there.
    pub(crate) async fn pinned_view(&self, pin: &Pin) -> Result<Arc<View>> {
        if pin.table != self.spec().id {
            return Err(self.in_table(Error::invalid(format!("the pin is of table `{}`", pin.table))));
        }
        let view = self.at(&pin.version).await?;
        if view.slice_version(&pin.slice)? == pin.content {
            return Ok(view);
        }
        Err(broken(pin, "the pin names another content than its version has"))
    }

    /// Refuses a pin of which a file is gone.
    pub(crate) async fn check_files(&self, pin: &Pin, files: &[File]) -> Result<()> {
        let missing = self.folder().missing(files.iter().map(File::place).collect()).await;
        let missing = missing.map_err(|e| self.in_table(e))?;
        match missing.first() {
            None => Ok(()),
            Some(file) => Err(broken(pin, "files of the pinned version are gone").with_context("file", file)),
        }
    }

    async fn available(&self, view: &View) -> Result<Availability> {
        let latest = self.latest().await?;
        let live: BTreeSet<_> = latest.files_where(|_| true).map(|(_, file)| file.path()).collect();
        let removed =
            view.files_where(|_| true).map(|(_, file)| file).filter(|file| !live.contains(file.path()));
        let removed: Vec<_> = removed.collect();
        if removed.is_empty() {
            return Ok(Availability::Readable { until: None });
        }
        if !self.folder().missing(removed.iter().map(|file| file.place()).collect()).await?.is_empty() {
            return Ok(Availability::Expired);
        }
        let retention = latest.snapshot()?.table_properties().deleted_file_retention_duration();
        let gone = self.removals(&latest).await?;
        // A removal that the log forgot is longer ago than files are kept.
        let ends = removed.iter().map(|file| gone.get(file.path()).map(|at| *at + retention));
        Ok(match ends.collect::<Option<Vec<_>>>() {
            Some(ends) => Availability::Readable { until: ends.into_iter().min() },
            None => Availability::Expired,
        })
    }

    /// When files were removed, as far as the log knows.
    async fn removals(&self, latest: &View) -> Result<BTreeMap<String, DateTime<Utc>>> {
        let state = DeltaTableState::new(latest.snapshot()?.as_ref().clone());
        let removals = state.all_tombstones(self.log().as_ref()).map_ok(|removal| {
            let at = removal.deletion_timestamp().and_then(DateTime::from_timestamp_millis);
            at.map(|at| (location(&removal.path()).to_string(), at))
        });
        let removals: Vec<Option<(String, DateTime<Utc>)>> =
            removals.try_collect().await.doing("look for removed files in the log")?;
        Ok(removals.into_iter().flatten().collect())
    }
}

/// The versions that pins are held of.
pub(crate) async fn held_versions(folder: &Folder) -> Result<BTreeSet<u64>> {
    Ok(held::versions(folder).await?.iter().filter_map(|version| version.parse().ok()).collect())
}
