//! Tables, manifests and files for tests, made with the library alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use iceberg::spec::{
    DataContentType, DataFile, DataFileBuilder, DataFileFormat, FormatVersion, Literal, ManifestContentType,
    ManifestFile, ManifestWriter, ManifestWriterBuilder, NestedField, PartitionSpec, PrimitiveType, Schema,
    SchemaRef, SortOrder, Struct, TableMetadata, TableMetadataBuilder, Transform, Type, UnboundPartitionSpec,
};
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::Partitioning;
use tempfile::TempDir;

use super::{Named, There, View};
use crate::catalog::Loaded;
use crate::columns;
use crate::files::Files;
use crate::manifests::Manifests;
use crate::partitions::Partitions;
use crate::storage::Stores;

/// Columns that may be NULL, with ids from 1 in their order.
pub(crate) fn schema(columns: &[(&str, PrimitiveType)]) -> Schema {
    let fields = columns
        .iter()
        .zip(1..)
        .map(|((name, of), id)| NestedField::optional(id, name, Type::Primitive(of.clone())).into());
    Schema::builder().with_fields(fields).build().unwrap()
}

/// A spec by columns of a schema.
pub(crate) fn spec(schema: &Schema, fields: &[(&str, Transform)]) -> UnboundPartitionSpec {
    fields
        .iter()
        .fold(UnboundPartitionSpec::builder(), |spec, (column, transform)| {
            let name = match transform {
                Transform::Identity => (*column).to_owned(),
                transform => format!("{column}_{transform}").replace(['[', ']'], "_"),
            };
            let id = schema.field_id_by_name(column).unwrap();
            spec.add_partition_field(id, name, *transform).unwrap()
        })
        .build()
}

/// The metadata of a table without a snapshot.
pub(crate) fn metadata(
    version: FormatVersion,
    schema: Schema,
    fields: &[(&str, Transform)],
) -> TableMetadata {
    let spec = spec(&schema, fields);
    let order = SortOrder::unsorted_order();
    let location = "/warehouse/t".to_owned();
    let made = TableMetadataBuilder::new(schema, spec, order, location, version, Default::default());
    made.unwrap().build().unwrap().metadata
}

/// The same table with another default spec.
pub(crate) fn respecced(metadata: TableMetadata, fields: &[(&str, Transform)]) -> TableMetadata {
    let spec = spec(metadata.current_schema(), fields);
    let builder = metadata.into_builder(None).add_default_partition_spec(spec).unwrap();
    builder.build().unwrap().metadata
}

/// A data file of ten rows and a hundred bytes.
pub(crate) fn data(path: &str, partition: impl IntoIterator<Item = Option<Literal>>) -> DataFileBuilder {
    let mut file = DataFileBuilder::default();
    file.content(DataContentType::Data)
        .file_path(path.to_owned())
        .file_format(DataFileFormat::Parquet)
        .partition(Struct::from_iter(partition))
        .record_count(10)
        .file_size_in_bytes(100);
    file
}

/// A file of deletes.
pub(crate) fn deletes(
    content: DataContentType,
    path: &str,
    partition: impl IntoIterator<Item = Option<Literal>>,
) -> DataFileBuilder {
    let mut file = data(path, partition);
    file.content(content);
    if content == DataContentType::EqualityDeletes {
        file.equality_ids(Some(vec![1]));
    }
    file
}

/// An entry as if a manifest had named it.
pub(crate) fn named(
    file: DataFile,
    spec: &PartitionSpec,
    schema: &Schema,
    sequence_number: i64,
) -> Arc<Named> {
    Arc::new(Named {
        file,
        manifest: "m.avro".into(),
        spec: Arc::new(spec.clone()),
        schema: Arc::new(schema.clone()),
        snapshot_id: sequence_number,
        sequence_number,
        file_sequence_number: Some(sequence_number),
        first_row_id: None,
    })
}

/// A folder with manifests.
pub(crate) struct Folder {
    pub(crate) files: Files,
    pub(crate) dir: TempDir,
}

impl Folder {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let stores = Arc::new(Stores::new(&BTreeMap::new()));
        Self { files: Files::new(stores, dir.path().to_str().unwrap()).unwrap(), dir }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes a manifest as a snapshot with the same sequence number would have it.
    pub(crate) async fn manifest(
        &self,
        name: &str,
        (version, content): (FormatVersion, ManifestContentType),
        (schema, spec): (&SchemaRef, &PartitionSpec),
        sequence_number: i64,
        fill: impl FnOnce(&mut ManifestWriter),
    ) -> ManifestFile {
        let output = self.files.io().new_output(self.path(name)).unwrap();
        let builder = ManifestWriterBuilder::new(output, Some(sequence_number), schema.clone(), spec.clone());
        let mut writer = match (version, content) {
            (FormatVersion::V1, _) => builder.build_v1(),
            (FormatVersion::V2, ManifestContentType::Data) => builder.build_v2_data(),
            (FormatVersion::V2, ManifestContentType::Deletes) => builder.build_v2_deletes(),
            (FormatVersion::V3, ManifestContentType::Data) => builder.build_v3_data(),
            (FormatVersion::V3, ManifestContentType::Deletes) => builder.build_v3_deletes(),
        };
        fill(&mut writer);
        let written = writer.write_manifest_file().await.unwrap();
        let sequence_number = if version == FormatVersion::V1 { 0 } else { sequence_number };
        ManifestFile { sequence_number, min_sequence_number: sequence_number, ..written }
    }

    /// A version of a table with these manifests.
    pub(crate) fn view(
        &self,
        dimensions: &Partitioning,
        metadata: TableMetadata,
        manifests: Vec<ManifestFile>,
    ) -> View {
        let columns = metadata.current_schema().clone();
        let there = There {
            partitions: Partitions::new(dimensions, &metadata).unwrap(),
            loaded: Loaded { metadata: Arc::new(metadata), location: None, config: BTreeMap::new() },
            snapshot: None,
            files: self.files.clone(),
            manifests: Arc::new(manifests),
            columns: columns.clone(),
        };
        let schema = columns::to_arrow(&columns).unwrap();
        View { spec: TableSpec::new("t", dimensions.clone()), there: Some(there), schema }
    }
}

/// A version of a table without a snapshot, whose files are nowhere.
pub(crate) fn empty(dimensions: &Partitioning, metadata: TableMetadata) -> View {
    Folder::new().view(dimensions, metadata, Vec::new())
}

/// What was read of no manifest yet.
pub(crate) fn unread() -> Manifests {
    Manifests::default()
}
