//! The table as the library underneath has it, without any code of ours: found by the pointer of its catalog, read by the
//! library's own scan, appended to by its own transaction.
#![allow(clippy::disallowed_types, reason = "the library's traits have maps of the standard library")]
#![allow(dead_code, reason = "each of those who share it uses a part")]

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_cast_58::cast;
use arrow_cast_58::display::{ArrayFormatter, FormatOptions};
use async_trait::async_trait;
use futures::TryStreamExt;
use iceberg::arrow::{FieldMatchMode, RecordBatchPartitionSplitter};
use iceberg::io::FileIO;
use iceberg::spec::{
    DataFile, DataFileFormat, PartitionKey, SnapshotRef, TableMetadata, TableMetadataBuilder,
};
use iceberg::table::Table;
use iceberg::transaction::{ApplyTransactionAction, Transaction};
use iceberg::writer::base_writer::data_file_writer::DataFileWriterBuilder;
use iceberg::writer::file_writer::ParquetWriterBuilder;
use iceberg::writer::file_writer::location_generator::{
    DefaultFileNameGenerator, DefaultLocationGenerator, LocationGenerator,
};
use iceberg::writer::file_writer::rolling_writer::RollingFileWriterBuilder;
use iceberg::writer::{IcebergWriter, IcebergWriterBuilder};
use iceberg::{
    Catalog, Error, ErrorKind, MetadataLocation, Namespace, NamespaceIdent, Result, Runtime, TableCommit,
    TableCreation, TableIdent,
};
use parquet_58::file::properties::WriterProperties;
use reprocess_iceberg::iceberg;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection, PgConnection, Row};

/// How many files strangers of this process have written.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// All files in one folder: the library's own generator writes partition values into paths as they are.
#[derive(Clone, Debug)]
struct Flat(DefaultLocationGenerator);

impl LocationGenerator for Flat {
    fn generate_location(&self, _: Option<&PartitionKey>, name: &str) -> String {
        self.0.generate_location(None, name)
    }
}

/// Where the pointer to the current metadata is.
#[derive(Clone, Debug)]
pub(crate) enum Pointer {
    /// A SQL catalog in a SQLite file.
    Sqlite(PathBuf),
    /// A SQL catalog in the PostgreSQL database of an address.
    Postgres(String),
    /// A REST catalog at an address.
    Rest(String),
}

/// A table of a catalog.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    pub(crate) pointer: Pointer,
    pub(crate) name: TableIdent,
}

const FIND: &str =
    "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = $1 AND table_name = $2";
const SWAP: &str = "UPDATE iceberg_tables SET metadata_location = $1, previous_metadata_location = $2
                    WHERE table_namespace = $3 AND table_name = $4 AND metadata_location = $2";

impl Raw {
    pub(crate) fn new(pointer: Pointer, name: &str) -> Self {
        Self { pointer, name: TableIdent::from_strs(name.split('.')).unwrap() }
    }

    pub(crate) fn in_file(file: &Path, name: &str) -> Self {
        Self::new(Pointer::Sqlite(file.to_owned()), name)
    }

    /// The file of the catalog.
    pub(crate) fn file(&self) -> &Path {
        match &self.pointer {
            Pointer::Sqlite(file) => file,
            other => panic!("{other:?} is no file"),
        }
    }

    fn namespace(&self) -> String {
        self.name.namespace().as_ref().join(".")
    }

    /// Where the current metadata is.
    pub(crate) async fn location(&self) -> String {
        match &self.pointer {
            Pointer::Sqlite(file) => {
                let found = sqlx::query(FIND).bind(self.namespace()).bind(self.name.name());
                found.fetch_one(&mut in_sqlite(file).await).await.unwrap().get(0)
            }
            Pointer::Postgres(address) => {
                let found = sqlx::query(FIND).bind(self.namespace()).bind(self.name.name());
                found.fetch_one(&mut PgConnection::connect(address).await.unwrap()).await.unwrap().get(0)
            }
            Pointer::Rest(_) => {
                let answer = reqwest::get(self.address()).await.unwrap().error_for_status().unwrap();
                let answer: serde_json::Value = answer.json().await.unwrap();
                answer["metadata-location"].as_str().unwrap().to_owned()
            }
        }
    }

    /// Of the table in a REST catalog.
    fn address(&self) -> String {
        let Pointer::Rest(uri) = &self.pointer else { panic!("{:?} has no address", self.pointer) };
        format!("{uri}/v1/namespaces/{}/tables/{}", self.namespace(), self.name.name())
    }

    pub(crate) async fn table(&self) -> Table {
        let (location, io) = (self.location().await, FileIO::new_with_fs());
        let metadata = TableMetadata::read_from(&io, &location).await.unwrap();
        Table::builder()
            .identifier(self.name.clone())
            .file_io(io)
            .metadata(metadata)
            .metadata_location(location)
            .runtime(Runtime::try_current().unwrap())
            .build()
            .unwrap()
    }

    pub(crate) async fn metadata(&self) -> TableMetadata {
        self.table().await.metadata().clone()
    }

    /// Writes metadata, and lets the pointer name them if it still names what they were made from.
    async fn swap(&self, pointer: &str, metadata: &TableMetadata, location: &str) -> bool {
        let place = MetadataLocation::from_str(location).unwrap();
        metadata.write_to(&FileIO::new_with_fs(), &place).await.unwrap();
        let (namespace, name) = (self.namespace(), self.name.name());
        let rows = match &self.pointer {
            Pointer::Sqlite(file) => {
                let swap = sqlx::query(SWAP).bind(location).bind(pointer).bind(namespace).bind(name);
                swap.execute(&mut in_sqlite(file).await).await.unwrap().rows_affected()
            }
            Pointer::Postgres(address) => {
                let swap = sqlx::query(SWAP).bind(location).bind(pointer).bind(namespace).bind(name);
                let mut connection = PgConnection::connect(address).await.unwrap();
                swap.execute(&mut connection).await.unwrap().rows_affected()
            }
            Pointer::Rest(_) => panic!("a REST catalog has no pointer that clients swap"),
        };
        rows == 1
    }

    /// Changes the metadata as another program does that nobody races with.
    pub(crate) async fn change(&self, change: impl FnOnce(TableMetadataBuilder) -> TableMetadataBuilder) {
        let before = self.table().await;
        let pointer = before.metadata_location().unwrap().to_owned();
        let builder = before.metadata().clone().into_builder(Some(pointer.clone()));
        let after = change(builder).build().unwrap().metadata;
        let place = MetadataLocation::from_str(&pointer).unwrap().with_next_version();
        let location = place.with_new_metadata(&after).to_string();
        assert!(self.swap(&pointer, &after, &location).await, "another came first");
    }

    /// The snapshots of main, the newest first.
    pub(crate) async fn history(&self) -> Vec<SnapshotRef> {
        let metadata = self.metadata().await;
        let mut snapshots = Vec::new();
        let mut next = metadata.current_snapshot().cloned();
        while let Some(snapshot) = next {
            next = snapshot.parent_snapshot_id().and_then(|id| metadata.snapshot_by_id(id)).cloned();
            snapshots.push(snapshot);
        }
        snapshots
    }

    /// The names of branches and tags.
    pub(crate) async fn refs(&self) -> Vec<String> {
        let metadata = serde_json::to_value(self.metadata().await).unwrap();
        let refs = metadata.get("refs").and_then(serde_json::Value::as_object);
        refs.into_iter().flat_map(|refs| refs.keys().cloned()).collect()
    }

    /// Every row of main, cells joined with `/`, sorted.
    pub(crate) async fn rows(&self) -> Vec<String> {
        self.rows_of(None).await
    }

    /// As of a branch or tag; of main where none is named.
    pub(crate) async fn rows_of(&self, reference: Option<&str>) -> Vec<String> {
        let table = self.table().await;
        let scan = match reference {
            None => table.scan(),
            Some(name) => {
                let snapshot = table.metadata().snapshot_for_ref(name).expect("no such reference");
                table.scan().snapshot_id(snapshot.snapshot_id())
            }
        };
        let batches = scan.build().unwrap().to_arrow().await.unwrap();
        let batches: Vec<arrow_array_58::RecordBatch> = batches.try_collect().await.unwrap();
        let mut rows: Vec<_> = batches.iter().flat_map(lines).collect();
        rows.sort();
        rows
    }

    /// Paths of the live data files.
    pub(crate) async fn files(&self) -> Vec<String> {
        let table = self.table().await;
        let tasks = table.scan().build().unwrap().plan_files().await.unwrap();
        let mut paths: Vec<_> = tasks.map_ok(|task| task.data_file_path).try_collect().await.unwrap();
        paths.sort();
        paths
    }

    /// How many deletes are read beside the live data files.
    pub(crate) async fn deletes(&self) -> usize {
        let tasks = self.table().await.scan().build().unwrap().plan_files().await.unwrap();
        let deletes: Vec<_> = tasks.map_ok(|task| task.deletes.len()).try_collect().await.unwrap();
        deletes.into_iter().sum()
    }

    /// Appends as another program does, whose rows have the columns of the table in their order.
    pub(crate) async fn append(&self, rows: &arrow_array::RecordBatch) {
        let files = self.write(rows).await;
        loop {
            let tx = Transaction::new(&self.table().await);
            let append = tx.fast_append().add_data_files(files.clone());
            match append.apply(tx).unwrap().commit(self).await {
                Ok(_) => return,
                Err(e) if e.kind() == ErrorKind::CatalogCommitConflicts => {}
                Err(e) => panic!("{e}"),
            }
        }
    }

    /// Data files with rows, by the library's own writers, which the table does not know yet.
    pub(crate) async fn write(&self, rows: &arrow_array::RecordBatch) -> Vec<DataFile> {
        let table = self.table().await;
        let metadata = table.metadata();
        let (schema, spec) = (metadata.current_schema(), metadata.default_partition_spec());
        let rows = carried(rows);
        let fields = Arc::new(iceberg::arrow::schema_to_arrow_schema(schema).unwrap());
        let columns = fields.fields().iter().zip(rows.columns());
        let columns = columns.map(|(field, column)| cast(column, field.data_type()).unwrap()).collect();
        let rows = arrow_array_58::RecordBatch::try_new(fields, columns).unwrap();
        let parts: Vec<(Option<PartitionKey>, _)> = if spec.is_unpartitioned() {
            vec![(None, rows)]
        } else {
            let splitter =
                RecordBatchPartitionSplitter::try_new_with_computed_values(schema.clone(), spec.clone());
            let parts = splitter.unwrap().split(&rows).unwrap();
            parts.into_iter().map(|(key, rows)| (Some(key), rows)).collect()
        };
        let mut files = Vec::new();
        for (key, rows) in parts {
            let parquet = ParquetWriterBuilder::new_with_match_mode(
                WriterProperties::default(),
                schema.clone(),
                FieldMatchMode::Name,
            );
            let name = format!("stranger-{}-{}", std::process::id(), WRITTEN.fetch_add(1, Ordering::Relaxed));
            let names = DefaultFileNameGenerator::new(name, None, DataFileFormat::Parquet);
            let folder =
                Flat(DefaultLocationGenerator::with_data_location(format!("{}/data", metadata.location())));
            let rolling = RollingFileWriterBuilder::new_with_default_file_size(
                parquet,
                table.file_io().clone(),
                folder,
                names,
            );
            let mut writer = DataFileWriterBuilder::new(rolling).build(key).await.unwrap();
            writer.write(rows).await.unwrap();
            files.extend(writer.close().await.unwrap());
        }
        files
    }
}

async fn in_sqlite(file: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(file).busy_timeout(std::time::Duration::from_secs(30));
    SqliteConnection::connect_with(&options).await.unwrap()
}

/// Cells joined with `/`, NULL as `NULL`.
pub(crate) fn lines(batch: &arrow_array_58::RecordBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let columns: Vec<_> =
        batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
    let line = |row| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join("/");
    (0..batch.num_rows()).map(line).collect()
}

/// A batch of ours as one of the library's Arrow, by the bytes of IPC: not by the bridge that is tested.
pub(crate) fn carried(batch: &arrow_array::RecordBatch) -> arrow_array_58::RecordBatch {
    let mut bytes = Vec::new();
    let mut writer = arrow_ipc::writer::StreamWriter::try_new(&mut bytes, &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.finish().unwrap();
    drop(writer);
    let mut reader = arrow_ipc_58::reader::StreamReader::try_new(bytes.as_slice(), None).unwrap();
    reader.next().unwrap().unwrap()
}

fn none<T>() -> Result<T> {
    Err(Error::new(ErrorKind::FeatureUnsupported, "a test does not need it"))
}

/// As much of a catalog as a transaction of the library needs: it loads the table, and swaps its pointer.
#[async_trait]
impl Catalog for Raw {
    async fn load_table(&self, _: &TableIdent) -> Result<Table> {
        Ok(self.table().await)
    }

    async fn update_table(&self, mut commit: TableCommit) -> Result<Table> {
        if matches!(self.pointer, Pointer::Rest(_)) {
            let (requirements, updates) = (commit.take_requirements(), commit.take_updates());
            let body = serde_json::json!({ "requirements": requirements, "updates": updates });
            let answer = reqwest::Client::new().post(self.address()).json(&body).send().await.unwrap();
            if answer.status() != reqwest::StatusCode::CONFLICT {
                answer.error_for_status().unwrap();
                return Ok(self.table().await);
            }
            let lost = Error::new(ErrorKind::CatalogCommitConflicts, "another came first");
            return Err(lost.with_retryable(true));
        }
        let before = self.table().await;
        let pointer = before.metadata_location().unwrap().to_owned();
        let after = commit.apply(before)?;
        let location = after.metadata_location().unwrap().to_owned();
        if self.swap(&pointer, after.metadata(), &location).await {
            return Ok(after);
        }
        let lost = Error::new(ErrorKind::CatalogCommitConflicts, "another came first");
        Err(lost.with_retryable(true))
    }

    async fn list_namespaces(&self, _: Option<&NamespaceIdent>) -> Result<Vec<NamespaceIdent>> {
        none()
    }

    async fn create_namespace(&self, _: &NamespaceIdent, _: HashMap<String, String>) -> Result<Namespace> {
        none()
    }

    async fn get_namespace(&self, _: &NamespaceIdent) -> Result<Namespace> {
        none()
    }

    async fn namespace_exists(&self, _: &NamespaceIdent) -> Result<bool> {
        none()
    }

    async fn update_namespace(&self, _: &NamespaceIdent, _: HashMap<String, String>) -> Result<()> {
        none()
    }

    async fn drop_namespace(&self, _: &NamespaceIdent) -> Result<()> {
        none()
    }

    async fn list_tables(&self, _: &NamespaceIdent) -> Result<Vec<TableIdent>> {
        none()
    }

    async fn create_table(&self, _: &NamespaceIdent, _: TableCreation) -> Result<Table> {
        none()
    }

    async fn drop_table(&self, _: &TableIdent) -> Result<()> {
        none()
    }

    async fn purge_table(&self, _: &TableIdent) -> Result<()> {
        none()
    }

    async fn table_exists(&self, _: &TableIdent) -> Result<bool> {
        none()
    }

    async fn rename_table(&self, _: &TableIdent, _: &TableIdent) -> Result<()> {
        none()
    }

    async fn register_table(&self, _: &TableIdent, _: String) -> Result<Table> {
        none()
    }
}

/// A summary of a snapshot as sorted pairs.
pub(crate) fn summary(snapshot: &SnapshotRef) -> BTreeMap<String, String> {
    let properties = snapshot.summary().additional_properties.iter();
    properties.map(|(key, value)| (key.clone(), value.clone())).collect()
}
