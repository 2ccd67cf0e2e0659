//! What is read of files that are written here by hand.

mod columns;
mod deletes;

use std::collections::BTreeMap;
use std::fs::File as LocalFile;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema as ArrowSchema};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::parquet::arrow::{ArrowWriter, PARQUET_FIELD_ID_META_KEY};
use futures::TryStreamExt;
use iceberg::spec::{
    DataContentType, DataFileBuilder, DataFileFormat, FormatVersion, NestedField, PartitionSpec,
    PartitionSpecRef, PrimitiveType, Schema, SortOrder, Struct, TableMetadataBuilder, Type,
    UnboundPartitionSpec,
};
use reprocess_core::Result;
use reprocess_core::domain::partition::Partitioning;
use tempfile::TempDir;

use super::Scan;
use crate::catalog::Loaded;
use crate::files::Files;
use crate::partitions::Partitions;
use crate::storage::Stores;
use crate::view::{File, Named, There};

/// A table of files that are written one by one.
struct Lake {
    folder: TempDir,
    there: There,
}

impl Lake {
    /// With these columns now.
    fn new(columns: Vec<NestedField>) -> Self {
        Self::with_property(columns, None)
    }

    #[allow(clippy::disallowed_types, reason = "the library takes it")]
    fn with_property(columns: Vec<NestedField>, property: Option<(&str, &str)>) -> Self {
        let folder = TempDir::new().unwrap();
        let location = folder.path().to_str().unwrap().to_owned();
        let columns = schema(columns);
        let properties = property.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let metadata = TableMetadataBuilder::new(
            columns.as_ref().clone(),
            UnboundPartitionSpec::default(),
            SortOrder::unsorted_order(),
            location.clone(),
            FormatVersion::V2,
            properties.collect(),
        );
        let metadata = Arc::new(metadata.unwrap().build().unwrap().metadata);
        let there = There {
            snapshot: None,
            columns,
            partitions: Partitions::new(&Partitioning::unpartitioned(), &metadata).unwrap(),
            files: Files::new(Arc::new(Stores::new(&BTreeMap::new())), &location).unwrap(),
            manifests: Arc::default(),
            loaded: Loaded { metadata, location: None, config: BTreeMap::new() },
        };
        Self { folder, there }
    }

    /// Writes a file of columns with ids, and names it.
    fn write(&self, name: &str, columns: &[(i32, &str, ArrayRef)], about: &About) -> Arc<Named> {
        let fields = columns.iter().map(|(id, name, array)| field(*id, name, array.data_type().clone()));
        let arrays = columns.iter().map(|(_, _, array)| Arc::clone(array)).collect();
        let schema = Arc::new(ArrowSchema::new(fields.collect::<Vec<_>>()));
        self.write_batch(name, &RecordBatch::try_new(schema, arrays).unwrap(), about)
    }

    fn write_batch(&self, name: &str, batch: &RecordBatch, about: &About) -> Arc<Named> {
        let path = self.folder.path().join(name);
        let file = LocalFile::create(&path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(batch).unwrap();
        writer.close().unwrap();
        self.named(name, about)
    }

    /// A file that is there already.
    fn named(&self, name: &str, about: &About) -> Arc<Named> {
        let path = self.path(name);
        let file = DataFileBuilder::default()
            .content(about.content)
            .file_path(path.clone())
            .file_format(DataFileFormat::Parquet)
            .partition(about.partition.clone())
            .record_count(0)
            .file_size_in_bytes(std::fs::metadata(path).unwrap().len())
            .equality_ids(about.equality_ids.clone())
            .build()
            .unwrap();
        Arc::new(Named {
            file,
            manifest: "m.avro".into(),
            spec: Arc::clone(&about.spec),
            schema: about.schema.clone().unwrap_or_else(|| Arc::clone(&self.there.columns)),
            snapshot_id: 1,
            sequence_number: 1,
            file_sequence_number: Some(1),
            first_row_id: None,
        })
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// The rows of files as texts, with the columns that are wanted.
    async fn read(&self, files: &[File], wanted: impl Fn(&str) -> bool) -> Result<Vec<String>> {
        let kept = crate::columns::to_arrow(&self.there.columns)?;
        let scan = Scan::of(&self.there, &kept, wanted)?;
        let tasks = scan.tasks(&self.there, files)?;
        let batches: Vec<RecordBatch> = scan.in_order(tasks).try_collect().await?;
        Ok(batches.iter().flat_map(texts).collect())
    }

    async fn rows(&self, files: &[File]) -> Vec<String> {
        self.read(files, |_| true).await.unwrap()
    }
}

/// What a manifest says of a file.
struct About {
    content: DataContentType,
    spec: PartitionSpecRef,
    partition: Struct,
    equality_ids: Option<Vec<i32>>,
    /// Columns of then, where they are others than those of now.
    schema: Option<Arc<Schema>>,
}

impl About {
    fn data() -> Self {
        Self {
            content: DataContentType::Data,
            spec: Arc::new(PartitionSpec::unpartition_spec()),
            partition: Struct::empty(),
            equality_ids: None,
            schema: None,
        }
    }

    fn positions() -> Self {
        Self { content: DataContentType::PositionDeletes, ..Self::data() }
    }

    fn values(ids: &[i32]) -> Self {
        let content = DataContentType::EqualityDeletes;
        Self { content, equality_ids: Some(ids.to_vec()), ..Self::data() }
    }
}

fn schema(columns: Vec<NestedField>) -> Arc<Schema> {
    Arc::new(Schema::builder().with_fields(columns.into_iter().map(Arc::new)).build().unwrap())
}

fn optional(id: i32, name: &str, of: PrimitiveType) -> NestedField {
    NestedField::optional(id, name, Type::Primitive(of))
}

fn field(id: i32, name: &str, of: DataType) -> Field {
    let id = (PARQUET_FIELD_ID_META_KEY.to_owned(), id.to_string());
    Field::new(name, of, true).with_metadata([id].into())
}

fn live(entry: &Arc<Named>, deletes: &[&Arc<Named>]) -> File {
    File { entry: Arc::clone(entry), deletes: deletes.iter().map(|delete| Arc::clone(delete)).collect() }
}

fn texts(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::new().with_null("NULL");
    let columns = batch.columns().iter();
    let columns: Vec<_> = columns.map(|array| ArrayFormatter::try_new(array, &options).unwrap()).collect();
    let row = |row: usize| columns.iter().map(|c| c.value(row).to_string()).collect::<Vec<_>>().join("|");
    (0..batch.num_rows()).map(row).collect()
}
