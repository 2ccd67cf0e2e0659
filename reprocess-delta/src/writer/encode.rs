//! Writing data files: a bounded number of partitions at once.

use std::num::NonZeroU64;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use buoyant_kernel::table_properties::DataSkippingNumIndexedCols;
use deltalake::Path;
use deltalake::datafile::writer::{PartitionWriter, PartitionWriterConfig};
use deltalake::kernel::Add;
use deltalake::operations::get_num_idx_cols_and_stats_columns;
use deltalake::parquet::basic::Compression;
use deltalake::parquet::file::properties::WriterProperties;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::{Error, Result};
use reprocess_lake::encode::{Open, ROWS_AT_ONCE, Sink, divided};
use reprocess_lake::placement::{folder_name, folder_of};

use crate::error::{Doing, broken_promise};
use crate::partitions::Partitions;
use crate::table::DeltaTable;
use crate::view::{View, path_of};

/// A row group in memory is written once it has so many bytes, so that a partition that is open costs no more.
const ROW_GROUP_BYTES: usize = 12 << 20;
const WHAT: &str = "write data files";

/// Where data files go, and what their columns are.
#[derive(Clone)]
pub(super) struct Layout {
    table: DeltaTable,
    /// Without partition columns, which are not in the files; `None` where all columns are.
    partitions: Option<Partitions>,
    file_columns: Vec<usize>,
    file_schema: SchemaRef,
    folder: Folder,
    properties: WriterProperties,
    indexed: DataSkippingNumIndexedCols,
    stats_columns: Option<Vec<String>>,
}

/// The folder of files.
#[derive(Clone, Debug)]
enum Folder {
    /// One in the folder of each partition.
    OfPartition(String),
    Fixed(Path),
}

impl Layout {
    /// Data files of the table with the columns of `schema`, in folders that are named by the staged set.
    pub(super) fn of_table(
        table: &DeltaTable,
        view: &View,
        schema: &SchemaRef,
        staged: &str,
    ) -> Result<Self> {
        let partitions = view.partitions()?;
        let in_file = |name: &str| !partitions.names().any(|column| column == name);
        let file_columns = (0..schema.fields().len()).filter(|place| in_file(schema.field(*place).name()));
        let properties = view.snapshot()?.table_properties();
        let (indexed, stats_columns) =
            get_num_idx_cols_and_stats_columns(Some(properties), Default::default());
        Self {
            partitions: Some(partitions.clone()),
            file_columns: file_columns.collect(),
            indexed,
            stats_columns,
            ..Self::plain(table, schema, Path::default())
        }
        .with_folder(Folder::OfPartition(folder_name(staged)), schema)
    }

    /// Files with all columns in one folder, which the table does not know.
    pub(super) fn beside(table: &DeltaTable, schema: &SchemaRef, folder: Path) -> Self {
        Self::plain(table, schema, folder)
    }

    fn plain(table: &DeltaTable, schema: &SchemaRef, folder: Path) -> Self {
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_bytes(Some(ROW_GROUP_BYTES))
            .build();
        Self {
            table: table.clone(),
            partitions: None,
            file_columns: (0..schema.fields().len()).collect(),
            file_schema: Arc::clone(schema),
            folder: Folder::Fixed(folder),
            properties,
            indexed: DataSkippingNumIndexedCols::NumColumns(0),
            stats_columns: None,
        }
    }

    fn with_folder(self, folder: Folder, schema: &Schema) -> Result<Self> {
        let file_schema = schema.project(&self.file_columns);
        let file_schema =
            file_schema.map_err(|e| broken_promise("columns of a file are none of the table", e))?;
        Ok(Self { folder, file_schema: Arc::new(file_schema), ..self })
    }

    fn open(&self, values: &PartitionKey) -> Result<PartitionWriter> {
        let prefix = match &self.folder {
            Folder::Fixed(path) => path.clone(),
            Folder::OfPartition(name) => folder_of(values, name),
        };
        let scalars = self.partitions.as_ref().map(|partitions| partitions.scalars(values)).transpose()?;
        let config = PartitionWriterConfig::try_new(
            Arc::clone(&self.file_schema),
            scalars.unwrap_or_default(),
            Some(self.properties.clone()),
            NonZeroU64::new(self.table.config().target_file_bytes),
            Some(ROWS_AT_ONCE),
            None,
            Some(prefix),
        );
        let store = Arc::clone(self.table.folder().store());
        PartitionWriter::try_with_config(store, config.doing(WHAT)?, self.indexed, self.stats_columns.clone())
            .doing(WHAT)
    }
}

/// The partitions that are open, and the files that are written.
pub(super) struct Files {
    layout: Layout,
    partitioning: Partitioning,
    open: Open<PartitionKey, PartitionWriter>,
    adds: Vec<Add>,
}

impl Files {
    pub(super) fn new(layout: Layout) -> Self {
        let partitioning = layout.partitions.as_ref().map(Partitions::of_files).unwrap_or_default();
        let open = Open::new(layout.table.config().open_partitions);
        Self { layout, partitioning, open, adds: Vec::new() }
    }

    async fn append(&mut self, values: PartitionKey, rows: &RecordBatch) -> Result<()> {
        if self.open.get(&values).is_none() {
            while let Some(writer) = self.open.make_room() {
                self.adds.extend(writer.close().await.doing(WHAT)?);
            }
            self.open.insert(values.clone(), self.layout.open(&values)?);
        }
        let Some(writer) = self.open.get(&values) else {
            return Err(Error::internal("a partition that was opened is not open"));
        };
        writer.write(rows).await.doing(WHAT)
    }
}

impl Sink for Files {
    type File = Add;

    async fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let in_file = batch.project(&self.layout.file_columns);
        let in_file = in_file.map_err(|e| broken_promise("rows have other columns than their files", e))?;
        for (values, rows) in divided(&self.partitioning, batch, &in_file)? {
            self.append(values, &rows).await?;
        }
        Ok(())
    }

    async fn close(&mut self) -> Result<Vec<Add>> {
        while let Some(writer) = self.open.pop() {
            self.adds.extend(writer.close().await.doing(WHAT)?);
        }
        Ok(std::mem::take(&mut self.adds))
    }

    async fn give_up(mut self) -> Result<()> {
        while let Some(writer) = self.open.pop() {
            if let Err(e) = writer.abort().await {
                tracing::warn!(error = %e, "an upload could not be given up");
            }
        }
        self.layout.table.folder().remove(self.adds.iter().map(path_of).collect()).await
    }
}
