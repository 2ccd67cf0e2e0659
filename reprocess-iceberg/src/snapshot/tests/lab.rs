//! A table in a folder.

use std::collections::BTreeMap;
use std::sync::Arc;

use iceberg::TableUpdate;
use iceberg::spec::{
    DataContentType, DataFile, DataFileBuilder, DataFileFormat, FormatVersion, Literal, MAIN_BRANCH,
    ManifestContentType, ManifestFile, ManifestStatus, NestedField, Operation, PartitionSpec, PrimitiveType,
    Schema, SnapshotRef, SortOrder, Struct, TableMetadata, TableMetadataBuilder, TableMetadataRef, Type,
};
use tempfile::TempDir;

use super::super::assemble::{Head, Snap};
use super::super::refs::Ground;
use super::super::sheet::{Line, Sheet};
use super::super::summary::Changes;
use super::super::{Assembled, Desk, Draft};
use crate::files::Files;
use crate::manifests::Manifests;
use crate::storage::Stores;
use crate::view::Named;

/// A table with the columns `day` and `amount`, by the day.
pub(super) struct Lab {
    _folder: TempDir,
    pub(super) files: Files,
    pub(super) manifests: Manifests,
    pub(super) metadata: TableMetadataRef,
}

/// What the head of a branch is.
pub(super) struct Tip {
    pub(super) snapshot: Option<SnapshotRef>,
    pub(super) manifests: Vec<ManifestFile>,
}

pub(super) fn schema(columns: &[(i32, &str)]) -> Schema {
    let long = |(id, name): &(i32, &str)| {
        Arc::new(NestedField::optional(*id, *name, Type::Primitive(PrimitiveType::Long)))
    };
    Schema::builder().with_fields(columns.iter().map(long)).build().unwrap()
}

impl Lab {
    pub(super) fn new(format: FormatVersion) -> Self {
        Self::with(format, &[])
    }

    pub(super) fn with(format: FormatVersion, properties: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().unwrap();
        let location = format!("{}/table", folder.path().display());
        let schema = schema(&[(1, "day"), (2, "amount")]);
        let spec =
            PartitionSpec::builder(schema.clone()).add_partition_field("day", "day", identity()).unwrap();
        let properties =
            properties.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let builder = TableMetadataBuilder::new(
            schema,
            spec.build().unwrap().into_unbound(),
            SortOrder::unsorted_order(),
            location.clone(),
            format,
            properties,
        );
        let metadata = Arc::new(builder.unwrap().build().unwrap().metadata);
        let files = Files::new(Arc::new(Stores::new(&BTreeMap::new())), &location).unwrap();
        Self { _folder: folder, files, manifests: Manifests::default(), metadata }
    }

    pub(super) fn path(&self, name: &str) -> String {
        format!("{}/data/{name}.parquet", self.metadata.location())
    }

    /// A data file of a day; its size is ten times its rows.
    pub(super) fn file(&self, day: i64, name: &str, rows: u64) -> DataFile {
        self.file_in(Struct::from_iter([Some(Literal::long(day))]), name, rows)
    }

    pub(super) fn file_in(&self, partition: Struct, name: &str, rows: u64) -> DataFile {
        self.builder(partition, name, rows).build().unwrap()
    }

    /// A file of deletes by position, for all files of a day.
    pub(super) fn deletes(&self, day: i64, name: &str, rows: u64) -> DataFile {
        let mut builder = self.builder(Struct::from_iter([Some(Literal::long(day))]), name, rows);
        builder.content(DataContentType::PositionDeletes).build().unwrap()
    }

    /// A deletion vector for one file of a day, one of several in a file of them.
    pub(super) fn vector(&self, day: i64, name: &str, of: &str, offset: i64) -> DataFile {
        let mut builder = self.builder(Struct::from_iter([Some(Literal::long(day))]), name, 3);
        builder
            .content(DataContentType::PositionDeletes)
            .file_format(DataFileFormat::Puffin)
            .referenced_data_file(Some(self.path(of)))
            .content_offset(Some(offset))
            .content_size_in_bytes(Some(7));
        builder.build().unwrap()
    }

    fn builder(&self, partition: Struct, name: &str, rows: u64) -> DataFileBuilder {
        let mut builder = DataFileBuilder::default();
        builder
            .content(DataContentType::Data)
            .file_path(self.path(name))
            .file_format(DataFileFormat::Parquet)
            .partition(partition)
            .record_count(rows)
            .file_size_in_bytes(rows * 10);
        builder
    }

    /// A draft for main that changes nothing yet.
    pub(super) fn draft(&self, id: i64) -> Draft {
        Draft {
            id,
            branch: MAIN_BRANCH.to_owned(),
            operation: Operation::Overwrite,
            removed: Vec::new(),
            added: Vec::new(),
            added_spec: self.metadata.default_partition_spec().clone(),
            columns: None,
            summary: BTreeMap::new(),
            refs: Vec::new(),
        }
    }

    /// A draft for main in which files go, by their names, and others come.
    pub(super) async fn replacing(&self, id: i64, removed: &[&str], added: Vec<DataFile>) -> Draft {
        let live = self.live(MAIN_BRANCH).await;
        let removed = removed.iter().map(|name| Arc::clone(&live[*name])).collect();
        Draft { removed, added, ..self.draft(id) }
    }

    pub(super) async fn tip(&self, branch: &str) -> Tip {
        let snapshot = self.metadata.snapshot_for_ref(branch).cloned();
        self.at(snapshot).await
    }

    pub(super) async fn at(&self, snapshot: Option<SnapshotRef>) -> Tip {
        let manifests = match &snapshot {
            Some(snapshot) => {
                self.manifests.list(&self.files, &self.metadata, snapshot).await.unwrap().to_vec()
            }
            None => Vec::new(),
        };
        Tip { snapshot, manifests }
    }

    pub(super) fn head<'a>(&'a self, tip: &'a Tip) -> Head<'a> {
        Head {
            metadata: &self.metadata,
            files: &self.files,
            parent: tip.snapshot.as_ref(),
            manifests: &tip.manifests,
        }
    }

    /// Assembles a draft on the head of its branch.
    pub(super) async fn assembled(&self, desk: &mut Desk, draft: &Draft) -> Assembled {
        let tip = self.tip(&draft.branch).await;
        desk.assemble_on(&self.manifests, self.head(&tip), draft).await.unwrap()
    }

    /// What a catalog does with a change, the way over the wire and the disk among it.
    pub(super) fn change(&mut self, assembled: &Assembled) {
        for requirement in &assembled.requirements {
            requirement.check(Some(&self.metadata)).unwrap();
        }
        let text = serde_json::to_string(&assembled.updates).unwrap();
        let updates: Vec<TableUpdate> = serde_json::from_str(&text).unwrap();
        let location = format!("{}/metadata/00001.metadata.json", self.metadata.location());
        let mut builder = self.metadata.as_ref().clone().into_builder(Some(location));
        for update in updates {
            builder = update.apply(builder).unwrap();
        }
        self.put(builder);
    }

    pub(super) fn put(&mut self, builder: TableMetadataBuilder) {
        let text = serde_json::to_string(&builder.build().unwrap().metadata).unwrap();
        self.metadata = Arc::new(serde_json::from_str::<TableMetadata>(&text).unwrap());
    }

    pub(super) fn builder_of(&self) -> TableMetadataBuilder {
        self.metadata.as_ref().clone().into_builder(None)
    }

    pub(super) async fn commit(&mut self, draft: &Draft) -> Assembled {
        let assembled = self.assembled(&mut Desk::new(), draft).await;
        self.change(&assembled);
        assembled
    }

    /// A commit that only adds files.
    pub(super) async fn append(&mut self, id: i64, added: Vec<DataFile>) -> Assembled {
        self.commit(&Draft { operation: Operation::Append, added, ..self.draft(id) }).await
    }

    /// A commit of another engine that adds files of deletes.
    pub(super) async fn append_deletes(&mut self, id: i64, deletes: &[DataFile]) {
        let sheet = Sheet {
            schema: self.metadata.current_schema().clone(),
            spec: self.metadata.default_partition_spec().clone(),
            content: ManifestContentType::Deletes,
            lines: deletes.iter().map(Line::Added).collect(),
        };
        let (path, list) =
            (self.in_metadata(&format!("{id}-d.avro")), self.in_metadata(&format!("snap-{id}.avro")));
        let writer = sheet.writer(self.files.io(), &path, id, self.metadata.format_version()).unwrap();
        let mut tip = self.tip(MAIN_BRANCH).await;
        tip.manifests.push(writer.write_manifest_file().await.unwrap());
        let head = self.head(&tip);
        let draft = Draft { added: deletes.to_vec(), ..self.draft(id) };
        let ground = Ground::new(head.metadata, &draft).unwrap();
        let parent = tip.snapshot.as_ref().map(|parent| parent.summary());
        let summary = Changes::of(&draft, &ground.schema).summary(&draft, head.metadata, parent);
        let manifests = tip.manifests.clone();
        let assembled = Snap { head, ground, summary, manifests, list }.assembled(&draft).await.unwrap();
        self.change(&assembled);
    }

    pub(super) fn in_metadata(&self, name: &str) -> String {
        format!("{}/metadata/{name}", self.metadata.location())
    }

    /// Name of a file, without its folder.
    pub(super) fn name(path: &str) -> String {
        path.rsplit('/').next().unwrap().trim_end_matches(".parquet").to_owned()
    }

    /// The live entries of a branch by the names of their files; a vector's has its place in the file.
    pub(super) async fn live(&self, branch: &str) -> BTreeMap<String, Arc<Named>> {
        self.live_of(&self.tip(branch).await).await
    }

    pub(super) async fn live_of(&self, tip: &Tip) -> BTreeMap<String, Arc<Named>> {
        let mut found = BTreeMap::new();
        for manifest in &tip.manifests {
            for entry in self.manifests.live(&self.files, manifest).await.unwrap().iter() {
                let place = entry.file.content_offset().map(|place| format!("@{place}")).unwrap_or_default();
                let name = Self::name(entry.file.file_path()) + &place;
                assert!(found.insert(name, Arc::clone(entry)).is_none(), "a file is named twice");
            }
        }
        found
    }

    pub(super) async fn names(&self, branch: &str) -> Vec<String> {
        self.live(branch).await.into_keys().collect()
    }

    /// Snapshot, sequence number and first row of the live files of main.
    pub(super) async fn entries(&self) -> BTreeMap<String, (i64, i64, Option<i64>)> {
        let live = self.live(MAIN_BRANCH).await.into_iter();
        live.map(|(name, entry)| (name, (entry.snapshot_id, entry.sequence_number, entry.first_row_id)))
            .collect()
    }

    /// What the manifests of main's head say has gone with it, as they stand: name, snapshot and sequence
    /// number.
    pub(super) async fn deleted(&self) -> Vec<(String, i64, i64)> {
        let mut deleted = Vec::new();
        for manifest in self.tip(MAIN_BRANCH).await.manifests {
            for entry in manifest.load_manifest(self.files.io()).await.unwrap().entries() {
                if entry.status() == ManifestStatus::Deleted {
                    let name = Self::name(entry.file_path());
                    deleted.push((name, entry.snapshot_id().unwrap(), entry.sequence_number().unwrap()));
                }
            }
        }
        deleted.sort();
        deleted
    }

    pub(super) async fn paths(&self) -> Vec<String> {
        self.tip(MAIN_BRANCH).await.manifests.into_iter().map(|manifest| manifest.manifest_path).collect()
    }

    /// Names of the files in the folder for metadata.
    pub(super) fn written(&self) -> Vec<String> {
        let folder = std::fs::read_dir(self.in_metadata("")).unwrap();
        let mut names: Vec<_> =
            folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn identity() -> iceberg::spec::Transform {
    iceberg::spec::Transform::Identity
}
