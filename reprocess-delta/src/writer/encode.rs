//! Writing data files: a bounded number of partitions at once, beside whoever makes the rows.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use arrow_array::{RecordBatch, UInt64Array};
use arrow_schema::{Schema, SchemaRef};
use arrow_select::take::take_record_batch;
use buoyant_kernel::table_properties::DataSkippingNumIndexedCols;
use deltalake::Path;
use deltalake::datafile::writer::{PartitionWriter, PartitionWriterConfig};
use deltalake::kernel::Add;
use deltalake::operations::get_num_idx_cols_and_stats_columns;
use deltalake::parquet::basic::Compression;
use deltalake::parquet::file::properties::WriterProperties;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::rows::partition_runs;
use reprocess_core::{Error, Result};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::error::{Doing, broken_promise};
use crate::partitions::Partitions;
use crate::table::DeltaTable;
use crate::view::View;

/// A row group in memory is written once it has so many bytes, so that a partition that is open costs no more.
const ROW_GROUP_BYTES: usize = 12 << 20;
/// How many batches wait between who makes them and who encodes them.
const WAITING: usize = 2;
/// Larger batches are divided, so that one part is encoded while the next is looked at.
const ROWS_AT_ONCE: usize = 16_384;
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

/// Name of the folders that hold the files of a staged set.
pub(crate) fn folder_name(staged: &str) -> String {
    format!("reprocess-{staged}")
}

/// People who look at the folders find partitions by their names; what could be read as something else is hashed, since
/// nobody may read values from paths.
fn folder_of(values: &PartitionKey, name: &str) -> Path {
    let part = |(column, value): (&str, &reprocess_core::domain::value::Value)| {
        let text = format!("{column}={value}");
        if text.chars().all(|c| c.is_ascii_alphanumeric() || "=-_.".contains(c))
            && !text.starts_with(['_', '.'])
        {
            return text;
        }
        let kind = value.kind().map_or_else(|| "null".to_owned(), |kind| kind.to_string());
        format!("part={}", &blake3::hash(format!("{kind} {text}").as_bytes()).to_hex()[..16])
    };
    values.bound().map(part).chain([name.to_owned()]).collect()
}

/// Writes rows in a task of its own.
#[derive(Debug)]
pub(super) struct Encoder {
    rows: mpsc::Sender<Piece>,
    task: JoinHandle<Result<Vec<Add>>>,
}

#[derive(Debug)]
enum Piece {
    Rows(RecordBatch),
    /// Without it the rows are not all, and what was written is given up.
    End,
}

impl Encoder {
    pub(super) fn start(layout: Layout) -> Self {
        let (rows, received) = mpsc::channel(WAITING);
        Self { rows, task: tokio::spawn(Files::new(layout).write_all(received)) }
    }

    /// Takes rows, which have the columns of the layout's table, as fast as they can be written.
    pub(super) async fn push(&self, batch: &RecordBatch) -> Result<()> {
        for part in parts_of(batch) {
            // Where the task has failed, its error is told by `finish`.
            if self.rows.send(Piece::Rows(part)).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    /// The files, once all rows are in them.
    pub(super) async fn finish(self) -> Result<Vec<Add>> {
        let _ = self.rows.send(Piece::End).await;
        self.task.await.map_err(|e| broken_promise("the task that writes data files ended", e))?
    }

    /// Leaves no open upload behind.
    pub(super) async fn give_up(self) {
        drop(self.rows);
        let _ = self.task.await;
    }
}

/// Parts that are encoded while the next is looked at.
pub(super) fn parts_of(batch: &RecordBatch) -> impl Iterator<Item = RecordBatch> {
    let starts = (0..batch.num_rows()).step_by(ROWS_AT_ONCE);
    starts.map(|start| batch.slice(start, ROWS_AT_ONCE.min(batch.num_rows() - start)))
}

/// The partitions that are open, and the files that are written.
struct Files {
    layout: Layout,
    partitioning: Partitioning,
    open: BTreeMap<PartitionKey, (u64, PartitionWriter)>,
    turn: u64,
    adds: Vec<Add>,
}

impl Files {
    fn new(layout: Layout) -> Self {
        let partitioning = layout.partitions.as_ref().map(Partitions::of_files).unwrap_or_default();
        Self { layout, partitioning, open: BTreeMap::new(), turn: 0, adds: Vec::new() }
    }

    async fn write_all(mut self, mut rows: mpsc::Receiver<Piece>) -> Result<Vec<Add>> {
        let ended = loop {
            match rows.recv().await {
                Some(Piece::Rows(batch)) => {
                    if let Err(e) = self.write(&batch).await {
                        break Err(e);
                    }
                }
                Some(Piece::End) => break Ok(true),
                None => break Ok(false),
            }
        };
        match ended {
            Ok(true) => {
                while let Some((_, (_, writer))) = self.open.pop_first() {
                    self.adds.extend(writer.close().await.doing(WHAT)?);
                }
                Ok(self.adds)
            }
            given_up => {
                while let Some((_, (_, writer))) = self.open.pop_first() {
                    if let Err(e) = writer.abort().await {
                        tracing::warn!(error = %e, "an upload could not be given up");
                    }
                }
                let written = self.adds.iter().map(crate::view::path_of).collect();
                self.layout.table.folder().remove(written).await?;
                given_up.map(|_| Vec::new())
            }
        }
    }

    async fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let runs = partition_runs(&self.partitioning, batch)?;
        let in_file = batch.project(&self.layout.file_columns);
        let in_file = in_file.map_err(|e| broken_promise("rows have other columns than their files", e))?;
        if let [(values, _)] = runs.as_slice() {
            return self.append(values, &in_file).await;
        }
        let mut rows_of = BTreeMap::<_, Vec<u64>>::new();
        for (values, run) in runs {
            rows_of.entry(values).or_default().extend(run.map(|row| u64::try_from(row).unwrap_or(u64::MAX)));
        }
        for (values, rows) in rows_of {
            let rows = take_record_batch(&in_file, &UInt64Array::from(rows));
            self.append(
                &values,
                &rows.map_err(|e| broken_promise("rows of a partition cannot be taken", e))?,
            )
            .await?;
        }
        Ok(())
    }

    async fn append(&mut self, values: &PartitionKey, rows: &RecordBatch) -> Result<()> {
        self.turn += 1;
        if !self.open.contains_key(values) {
            self.make_room().await?;
            let writer = self.layout.open(values)?;
            self.open.insert(values.clone(), (self.turn, writer));
        }
        let Some((turn, writer)) = self.open.get_mut(values) else {
            return Err(Error::internal("a partition that was opened is not open"));
        };
        *turn = self.turn;
        writer.write(rows).await.doing(WHAT)
    }

    /// Closes the partition that waited longest, where as many are open as may be.
    async fn make_room(&mut self) -> Result<()> {
        while self.open.len() >= self.layout.table.config().open_partitions {
            let oldest =
                self.open.iter().min_by_key(|(_, (turn, _))| *turn).map(|(values, _)| values.clone());
            let Some((_, writer)) = oldest.and_then(|values| self.open.remove(&values)) else { break };
            self.adds.extend(writer.close().await.doing(WHAT)?);
        }
        Ok(())
    }
}
