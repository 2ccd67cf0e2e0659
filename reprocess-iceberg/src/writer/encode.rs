//! Writing data files: those of a bounded number of partitions at once, each with the values that the spec of the table
//! gives its rows.

mod metrics;
mod properties;
mod values;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::{RecordBatch, UInt64Array};
use arrow_schema::SchemaRef;
use arrow_select::take::take_record_batch;
use iceberg::arrow::schema_to_arrow_schema;
use iceberg::spec::{DataFile, PartitionKey, PartitionSpec, PartitionSpecRef, Schema, Struct};
use iceberg::writer::base_writer::data_file_writer::{DataFileWriter, DataFileWriterBuilder};
use iceberg::writer::file_writer::ParquetWriterBuilder;
use iceberg::writer::file_writer::location_generator::{FileNameGenerator, LocationGenerator};
use iceberg::writer::file_writer::rolling_writer::RollingFileWriterBuilder;
use iceberg::writer::{IcebergWriter, IcebergWriterBuilder};
use object_store::path::Path;
use reprocess_core::Result;
use reprocess_core::domain::schema;
use reprocess_core::ports::clock::{Clock, SystemClock};
use reprocess_lake::encode::{Open, Sink};

use crate::bridge;
use crate::config::IcebergConfig;
use crate::error::{Doing, broken_promise};
use crate::files::Files;
use crate::table::IcebergTable;
use crate::view::View;

use metrics::{MeasuredBuilder, Metrics};
use properties::Properties;
use values::{Key, Values};

const WHAT: &str = "write data files";

/// Where data files go, and what they are like.
#[derive(Debug)]
pub(super) struct Layout {
    files: Files,
    /// What they are partitioned by; `None` for files that no version of the table will have.
    spec: Option<PartitionSpecRef>,
    values: Values,
    folder: Folder,
    columns: Arc<Schema>,
    /// The same columns as files have them, with field ids.
    ours: SchemaRef,
    theirs: arrow_schema_58::SchemaRef,
    writer: MeasuredBuilder,
    target_bytes: usize,
    open_partitions: usize,
}

/// The folder of files.
#[derive(Clone, Debug)]
enum Folder {
    /// One of a name in the folder of each partition, under a root.
    OfPartition {
        root: String,
        name: String,
    },
    Fixed(String),
}

impl Layout {
    /// Data files of the table with columns, which have the ids that they will have there, in folders of a name.
    pub(super) fn of_table(
        table: &IcebergTable,
        view: &View,
        columns: &Schema,
        folder: &str,
    ) -> Result<Self> {
        let there = view.there()?;
        let metadata = &there.loaded.metadata;
        let properties = Properties::from(metadata.as_ref());
        let spec = Arc::clone(there.partitions.spec());
        let values = Values::new(&spec, columns)?;
        let metrics = Metrics::new(&properties, columns, metadata.default_sort_order());
        let root = properties.data_root(metadata.location());
        let folder = Folder::OfPartition { root, name: folder.to_owned() };
        let plain = Self::plain(table.config(), &there.files, columns, folder, &properties, metrics)?;
        Ok(Self { spec: Some(spec), values, ..plain })
    }

    /// Files with all columns in one folder beside the table's, which it does not know.
    pub(super) fn beside(table: &IcebergTable, view: &View, columns: &Schema, folder: &Path) -> Result<Self> {
        let files = &view.there()?.files;
        let folder = Folder::Fixed(format!("{}/{folder}", files.root()));
        Self::plain(table.config(), files, columns, folder, &Properties::default(), Metrics::default())
    }

    fn plain(
        config: &IcebergConfig,
        files: &Files,
        columns: &Schema,
        folder: Folder,
        properties: &Properties,
        metrics: Metrics,
    ) -> Result<Self> {
        let theirs = Arc::new(schema_to_arrow_schema(columns).doing(WHAT)?);
        let columns = Arc::new(columns.clone());
        let writer = ParquetWriterBuilder::new(properties.parquet()?, Arc::clone(&columns));
        let target = properties.number("write.target-file-size-bytes")?;
        let target = target.unwrap_or(config.target_file_bytes);
        Ok(Self {
            files: files.clone(),
            spec: None,
            values: Values::default(),
            folder,
            ours: Arc::new(bridge::schema_from_iceberg(&theirs)?),
            theirs,
            columns,
            writer: MeasuredBuilder::new(writer, metrics),
            target_bytes: usize::try_from(target).unwrap_or(usize::MAX),
            open_partitions: config.open_partitions,
        })
    }

    /// Rows as the library writes them.
    fn bridged(&self, rows: &RecordBatch) -> Result<arrow_array_58::RecordBatch> {
        let bridged = bridge::to_iceberg(rows)?;
        arrow_array_58::RecordBatch::try_new(Arc::clone(&self.theirs), bridged.columns().to_vec())
            .map_err(|e| broken_promise("rows have other columns than their files", e))
    }

    /// Where a file of the table with these partition values goes.
    pub(super) fn location(&self, partition: &Struct, file_name: &str) -> String {
        format!("{}/{file_name}", self.folder_of(&Key::of(partition)))
    }

    fn folder_of(&self, key: &Key) -> String {
        match &self.folder {
            Folder::Fixed(folder) => folder.clone(),
            Folder::OfPartition { root, name } => {
                let parts = [root.clone()].into_iter().chain(self.values.folders(key)).chain([name.clone()]);
                parts.collect::<Vec<_>>().join("/")
            }
        }
    }
}

type Writer = DataFileWriter<MeasuredBuilder, Place, Names>;
type WriterBuilder = DataFileWriterBuilder<MeasuredBuilder, Place, Names>;

/// The partitions that are open, and the files that are written.
#[derive(Debug)]
pub(super) struct DataFiles {
    layout: Layout,
    names: Names,
    /// Every path that was given, whether a file came to be there or not.
    given: Arc<Mutex<Vec<String>>>,
    open: Open<Key, Writer>,
    written: Vec<DataFile>,
}

impl DataFiles {
    pub(super) fn new(layout: Layout) -> Self {
        let open = Open::new(layout.open_partitions);
        Self { layout, names: Names::new(), given: Arc::default(), open, written: Vec::new() }
    }

    async fn append(&mut self, key: &Key, rows: arrow_array_58::RecordBatch) -> Result<()> {
        if let Some(writer) = self.open.get(key) {
            return writer.write(rows).await.doing(WHAT);
        }
        while let Some(mut writer) = self.open.make_room() {
            self.written.extend(writer.close().await.doing(WHAT)?);
        }
        let (builder, partition) = self.begin(key);
        let mut writer = builder.build(partition).await.doing(WHAT)?;
        // An error leaves what was begun to `give_up`.
        let written = writer.write(rows).await.doing(WHAT);
        self.open.insert(key.clone(), writer);
        written
    }

    fn begin(&self, key: &Key) -> (WriterBuilder, Option<PartitionKey>) {
        let layout = &self.layout;
        let place = Place { folder: layout.folder_of(key), given: Arc::clone(&self.given) };
        let rolling = RollingFileWriterBuilder::new(
            layout.writer.clone(),
            layout.target_bytes,
            layout.files.io().clone(),
            place,
            self.names.clone(),
        );
        let partition = layout.spec.as_deref().map(|spec: &PartitionSpec| {
            PartitionKey::new(spec.clone(), Arc::clone(&layout.columns), key.values())
        });
        (DataFileWriterBuilder::new(rolling), partition)
    }
}

impl Sink for DataFiles {
    type File = DataFile;

    async fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        let rows = schema::conform(rows, &self.layout.ours)?;
        let bridged = self.layout.bridged(&rows)?;
        let mut runs = self.layout.values.runs(&bridged)?;
        if runs.len() == 1 {
            return match runs.pop() {
                Some((key, _)) => self.append(&key, bridged).await,
                None => Ok(()),
            };
        }
        let mut rows_of = BTreeMap::<_, Vec<u64>>::new();
        for (key, run) in runs {
            rows_of.entry(key).or_default().extend(run.filter_map(|row| u64::try_from(row).ok()));
        }
        for (key, places) in rows_of {
            let part = take_record_batch(&rows, &UInt64Array::from(places));
            let part = part.map_err(|e| broken_promise("rows of a partition cannot be taken", e))?;
            let part = self.layout.bridged(&part)?;
            self.append(&key, part).await?;
        }
        Ok(())
    }

    async fn close(&mut self) -> Result<Vec<DataFile>> {
        while let Some(mut writer) = self.open.pop() {
            self.written.extend(writer.close().await.doing(WHAT)?);
        }
        let mut written = std::mem::take(&mut self.written);
        written.sort_by(|a, b| a.file_path().cmp(b.file_path()));
        Ok(written)
    }

    async fn give_up(mut self) -> Result<()> {
        // The library cannot give up an upload, so each is ended, and its file removed.
        while let Some(mut writer) = self.open.pop() {
            if let Err(e) = writer.close().await {
                tracing::warn!(error = %e, "an upload could not be ended");
            }
        }
        let given = std::mem::take(&mut *self.given.lock().unwrap_or_else(PoisonError::into_inner));
        self.layout.files.remove(given).await
    }
}

/// Gives paths in one folder, and notes them.
#[derive(Clone, Debug)]
struct Place {
    folder: String,
    given: Arc<Mutex<Vec<String>>>,
}

impl LocationGenerator for Place {
    /// The one of the library lets values of partitions lead out of the table.
    fn generate_location(&self, _: Option<&PartitionKey>, file_name: &str) -> String {
        let path = format!("{}/{file_name}", self.folder);
        self.given.lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
        path
    }
}

/// Numbers files.
#[derive(Clone, Debug)]
struct Names {
    /// Tells files from those of any other staging, also of the same id: what is staged again must not be written over
    /// files that the table may have by then.
    of: String,
    next: Arc<AtomicU64>,
}

impl Names {
    fn new() -> Self {
        static STAGINGS: AtomicU64 = AtomicU64::new(0);
        let number = STAGINGS.fetch_add(1, Ordering::Relaxed);
        let what = format!("{:?} {} {number}", SystemClock.now(), std::process::id());
        Self { of: blake3::hash(what.as_bytes()).to_hex()[..8].to_owned(), next: Arc::default() }
    }
}

impl FileNameGenerator for Names {
    fn generate_file_name(&self) -> String {
        format!("{:05}-{}.parquet", self.next.fetch_add(1, Ordering::Relaxed), self.of)
    }
}

/// Paths of files.
pub(super) fn paths(files: &[DataFile]) -> Vec<String> {
    files.iter().map(|file| file.file_path().to_owned()).collect()
}

#[cfg(test)]
mod tests;
