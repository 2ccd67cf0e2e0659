//! Rows of a table that can be read again: of live files of one version, and of staged ones.

use std::fmt;
use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch};
use arrow_schema::SchemaRef;
use arrow_select::filter::filter_record_batch;
use datafusion::catalog::TableProvider;
use futures::{FutureExt, StreamExt};
use iceberg::spec::DataFile;
use reprocess_core::Result;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::rows::partition_runs;
use reprocess_core::domain::schema::conform;
use reprocess_core::domain::slice::AsOfSlice;
use reprocess_core::ports::reader::RowStream;
use reprocess_lake::session::streamed;
use reprocess_lake::slices;

use crate::error::broken_promise;
use crate::features;
use crate::files::Files;
use crate::scan;
use crate::table::IcebergTable;
use crate::view::{File, View};

/// Rows of a table that can be read again: those of live files of one version, and those of staged files.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) table: IcebergTable,
    pub(crate) view: Arc<View>,
    /// Live files, whose rows are all wanted.
    pub(crate) files: Vec<File>,
    /// Live files that may hold rows of several partitions, and of which they are wanted.
    pub(crate) loose: Vec<(File, Keys)>,
    pub(crate) staged: Vec<Written>,
    pub(crate) schema: SchemaRef,
    pub(crate) as_of: Option<AsOfSlice>,
}

/// Staged files, with the columns that they were written with.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) files: Files,
    pub(crate) columns: iceberg::spec::SchemaRef,
    pub(crate) data: Vec<DataFile>,
}

/// Which partitions are meant.
#[derive(Clone)]
pub(crate) struct Keys(Arc<dyn Fn(&PartitionKey) -> bool + Send + Sync>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys")
    }
}

impl Keys {
    pub(crate) fn new(hold: impl Fn(&PartitionKey) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(hold))
    }

    pub(crate) fn hold(&self, key: &PartitionKey) -> bool {
        (self.0)(key)
    }

    /// The rows of a batch that lie in them.
    fn rows(&self, partitioning: &Partitioning, batch: &RecordBatch) -> Result<RecordBatch> {
        let mut holds = Vec::with_capacity(batch.num_rows());
        for (key, run) in partition_runs(partitioning, batch)? {
            holds.extend(std::iter::repeat_n(self.hold(&key), run.len()));
        }
        let rows = filter_record_batch(batch, &BooleanArray::from(holds));
        rows.map_err(|e| broken_promise("rows cannot be taken", e))
    }
}

impl Source {
    /// Nothing of a version, with columns.
    pub(crate) fn of(table: &IcebergTable, view: &Arc<View>, schema: &SchemaRef) -> Self {
        Self {
            table: table.clone(),
            view: Arc::clone(view),
            files: Vec::new(),
            loose: Vec::new(),
            staged: Vec::new(),
            schema: Arc::clone(schema),
            as_of: None,
        }
    }

    pub(crate) async fn rows(&self) -> Result<RowStream> {
        slices::effective(self.as_of.as_ref(), || self.all().boxed()).await
    }

    async fn all(&self) -> Result<RowStream> {
        self.check()?;
        let mut parts = vec![scan::committed(&self.view, &self.files).await?];
        for (file, keys) in &self.loose {
            let (keys, partitioning) = (keys.clone(), self.table.spec().partitioning.clone());
            let rows = scan::committed(&self.view, std::slice::from_ref(file)).await?;
            parts.push(rows.map(move |batch| keys.rows(&partitioning, &batch?)).boxed());
        }
        if self.view.schema() != &self.schema {
            parts = parts.into_iter().map(|rows| self.conformed(rows)).collect();
        }
        for written in &self.staged {
            parts.push(self.conformed(scan::staged(&written.files, &written.columns, &written.data)?));
        }
        Ok(futures::stream::iter(parts).flatten().boxed())
    }

    fn conformed(&self, rows: RowStream) -> RowStream {
        let schema = Arc::clone(&self.schema);
        rows.map(move |batch| conform(&batch?, &schema)).boxed()
    }

    /// As a table of DataFusion, which is asked for the columns that a query needs where that is possible.
    pub(crate) async fn provider(self) -> Result<Arc<dyn TableProvider>> {
        self.check()?;
        if self.loose.is_empty() && self.staged.is_empty() && self.as_of.is_none() {
            return scan::provider(&self.view, self.files, &self.schema, None);
        }
        let schema = Arc::clone(&self.schema);
        streamed(schema, move || {
            let source = self.clone();
            async move { source.rows().await }.boxed()
        })
    }

    fn check(&self) -> Result<()> {
        features::check_read(self.files.iter().chain(self.loose.iter().map(|(file, _)| file)))
    }
}
