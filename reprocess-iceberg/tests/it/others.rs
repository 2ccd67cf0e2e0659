//! What other programs do to a table, written with nothing but the library's public builders.
#![allow(clippy::disallowed_types, reason = "the library's summaries are maps of the standard library")]

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::types::Date32Type;
use arrow_array_58::{ArrayRef, Int64Array, RecordBatch, StringArray};
use iceberg::spec::{
    DataContentType, DataFile, DataFileBuilder, DataFileFormat, FormatVersion, Literal, ManifestContentType,
    ManifestFile, ManifestListWriter, ManifestWriter, ManifestWriterBuilder, Operation, PrimitiveLiteral,
    Snapshot, Struct, Summary, TableMetadata,
};
use iceberg::table::Table;
use parquet_58::arrow::ArrowWriter;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::value::Value;
use reprocess_iceberg::iceberg;

use crate::raw::Raw;

/// Field ids of the two columns of a file of position deletes, as the specification fixes them.
const FILE_PATH: i32 = 2_147_483_546;
const POS: i32 = 2_147_483_545;

/// Writes the files of the partition of some rows as one file with those rows, and says that no row is another.
pub(crate) async fn compact(raw: &Raw, rows: &arrow_array::RecordBatch) {
    let files = raw.write(rows).await;
    let [file] = files.as_slice() else { panic!("rows of one partition") };
    let partition = file.partition().clone();
    let gone = |existing: &DataFile| *existing.partition() == partition;
    snapshot(raw, Operation::Replace, gone, &files, &[]).await;
}

/// Lets the partitions under the keys of a scope hold exactly some rows.
pub(crate) async fn replace(raw: &Raw, scope: &Scope, rows: &arrow_array::RecordBatch) {
    let files = if rows.num_rows() == 0 { Vec::new() } else { raw.write(rows).await };
    let metadata = raw.metadata().await;
    let fields: Vec<_> =
        metadata.default_partition_spec().fields().iter().map(|field| field.name.clone()).collect();
    let keys = scope.partitions();
    let gone = |file: &DataFile| {
        keys.iter().any(|key| {
            key.bound().all(|(column, value)| {
                let place = fields.iter().position(|field| field == column).unwrap();
                same(file.partition()[place].as_ref(), value)
            })
        })
    };
    snapshot(raw, Operation::Overwrite, gone, &files, &[]).await;
}

/// Whether a value of a partition is one of ours.
fn same(literal: Option<&Literal>, value: &Value) -> bool {
    let Some(Literal::Primitive(literal)) = literal else { return *value == Value::Null };
    match (literal, value) {
        (PrimitiveLiteral::Int(a), Value::Integer(b)) => i64::from(*a) == *b,
        (PrimitiveLiteral::Int(a), Value::Date(b)) => *a == Date32Type::from_naive_date(*b),
        (PrimitiveLiteral::Long(a), Value::Integer(b)) => a == b,
        (PrimitiveLiteral::Long(a), Value::Timestamp(b)) => *a == b.timestamp_micros(),
        (PrimitiveLiteral::String(a), Value::Text(b)) => a == b,
        (PrimitiveLiteral::Boolean(a), Value::Boolean(b)) => a == b,
        _ => false,
    }
}

/// Deletes rows of a file by their positions.
pub(crate) async fn delete_positions(raw: &Raw, file: &str, positions: &[i64]) {
    let existing = file_of(raw, file).await;
    let paths: ArrayRef = Arc::new(StringArray::from(vec![file; positions.len()]));
    let positions: ArrayRef = Arc::new(Int64Array::from(positions.to_vec()));
    let rows = rows_with_ids(&[("file_path", FILE_PATH, paths), ("pos", POS, positions)]);
    let deletes = written(raw, "positions", &rows, existing.partition(), |builder| {
        builder.content(DataContentType::PositionDeletes)
    });
    snapshot(raw, Operation::Delete, |_| false, &[], &[deletes]).await;
}

/// Deletes the rows with these ids, in the partition of a file.
pub(crate) async fn delete_ids(raw: &Raw, file: &str, ids: &[i64]) {
    let existing = file_of(raw, file).await;
    let id = raw.metadata().await.current_schema().field_by_name("id").unwrap().id;
    let ids: ArrayRef = Arc::new(Int64Array::from(ids.to_vec()));
    let deletes = written(raw, "ids", &rows_with_ids(&[("id", id, ids)]), existing.partition(), |builder| {
        builder.content(DataContentType::EqualityDeletes).equality_ids(Some(vec![id]))
    });
    snapshot(raw, Operation::Delete, |_| false, &[], &[deletes]).await;
}

/// Forgets every snapshot that no branch and no tag needs, as an expiry does, and removes their files.
pub(crate) async fn expire(raw: &Raw) {
    let table = raw.table().await;
    let refs = serde_json::to_value(table.metadata()).unwrap();
    let heads = refs["refs"].as_object().into_iter().flatten();
    let heads: Vec<i64> = heads.map(|(_, head)| head["snapshot-id"].as_i64().unwrap()).collect();
    let needed = files_of(&table, &heads).await;
    let all: Vec<_> = table.metadata().snapshots().map(|snapshot| snapshot.snapshot_id()).collect();
    let known = files_of(&table, &all).await;
    let gone: Vec<_> = all.into_iter().filter(|id| !heads.contains(id)).collect();
    raw.change(|builder| builder.remove_snapshots(&gone)).await;
    for file in known.into_iter().filter(|file| !needed.contains(file)) {
        table.file_io().delete(&file).await.unwrap();
    }
}

async fn files_of(table: &Table, snapshots: &[i64]) -> Vec<String> {
    let mut files = Vec::new();
    for id in snapshots {
        let snapshot = table.metadata().snapshot_by_id(*id).unwrap();
        for manifest in table.manifest_list_reader(snapshot).load().await.unwrap().entries() {
            let (entries, _) = manifest.load_manifest(table.file_io()).await.unwrap().into_parts();
            files.extend(entries.iter().filter(|entry| entry.is_alive()).map(|e| e.file_path().to_owned()));
        }
    }
    files
}

async fn file_of(raw: &Raw, path: &str) -> DataFile {
    let table = raw.table().await;
    let snapshot = table.metadata().current_snapshot().unwrap();
    for manifest in table.manifest_list_reader(snapshot).load().await.unwrap().entries() {
        let (entries, _) = manifest.load_manifest(table.file_io()).await.unwrap().into_parts();
        if let Some(entry) = entries.iter().find(|entry| entry.is_alive() && entry.file_path() == path) {
            return entry.data_file().clone();
        }
    }
    panic!("{path} is not live")
}

fn rows_with_ids(columns: &[(&str, i32, ArrayRef)]) -> RecordBatch {
    let fields: Vec<_> = columns
        .iter()
        .map(|(name, id, array)| {
            let field = arrow_schema_58::Field::new(*name, array.data_type().clone(), false);
            field.with_metadata(HashMap::from([("PARQUET:field_id".to_owned(), id.to_string())]))
        })
        .collect();
    let arrays = columns.iter().map(|(.., array)| Arc::clone(array)).collect();
    RecordBatch::try_new(Arc::new(arrow_schema_58::Schema::new(fields)), arrays).unwrap()
}

/// A file of deletes beside the catalog.
fn written(
    raw: &Raw,
    name: &str,
    rows: &RecordBatch,
    partition: &Struct,
    content: impl FnOnce(&mut DataFileBuilder) -> &mut DataFileBuilder,
) -> DataFile {
    let folder = raw.file().parent().unwrap();
    let number = std::fs::read_dir(folder).unwrap().count();
    let path = folder.join(format!("{name}-{number}.parquet"));
    let mut writer =
        ArrowWriter::try_new(std::fs::File::create(&path).unwrap(), rows.schema(), None).unwrap();
    writer.write(rows).unwrap();
    writer.close().unwrap();
    let mut builder = DataFileBuilder::default();
    builder
        .file_path(path.to_str().unwrap().to_owned())
        .file_format(DataFileFormat::Parquet)
        .partition(partition.clone())
        .partition_spec_id(0)
        .record_count(u64::try_from(rows.num_rows()).unwrap())
        .file_size_in_bytes(std::fs::metadata(&path).unwrap().len());
    content(&mut builder).build().unwrap()
}

fn manifest(table: &Table, id: i64, name: &str, content: ManifestContentType) -> ManifestWriter {
    let metadata = table.metadata();
    let path = format!("{}/metadata/others-{id}-{name}.avro", metadata.location());
    let builder = ManifestWriterBuilder::new(
        table.file_io().new_output(path).unwrap(),
        Some(id),
        metadata.current_schema().clone(),
        metadata.default_partition_spec().as_ref().clone(),
    );
    match (metadata.format_version(), content) {
        (FormatVersion::V1, _) => builder.build_v1(),
        (FormatVersion::V2, ManifestContentType::Data) => builder.build_v2_data(),
        (FormatVersion::V2, ManifestContentType::Deletes) => builder.build_v2_deletes(),
        (_, ManifestContentType::Data) => builder.build_v3_data(),
        (_, ManifestContentType::Deletes) => builder.build_v3_deletes(),
    }
}

/// One snapshot of main in which data files go and come.
async fn snapshot(
    raw: &Raw,
    operation: Operation,
    gone: impl Fn(&DataFile) -> bool,
    added: &[DataFile],
    deletes: &[DataFile],
) {
    let table = raw.table().await;
    let metadata = table.metadata();
    let head = metadata.current_snapshot();
    let id =
        7_000_000_000 + metadata.last_sequence_number() + i64::try_from(metadata.snapshots().len()).unwrap();
    let mut manifests = Vec::new();
    if let Some(head) = head {
        for known in table.manifest_list_reader(head).load().await.unwrap().entries() {
            manifests.push(without(&table, id, manifests.len(), known, &gone).await);
        }
    }
    for (name, content, files) in
        [("added", ManifestContentType::Data, added), ("deletes", ManifestContentType::Deletes, deletes)]
    {
        if files.is_empty() {
            continue;
        }
        let mut writer = manifest(&table, id, name, content);
        for file in files {
            writer.add_file(file.clone(), -1).unwrap();
        }
        manifests.push(writer.write_manifest_file().await.unwrap());
    }
    let list = format!("{}/metadata/others-{id}.avro", metadata.location());
    let sequence = metadata.next_sequence_number();
    let parent = head.map(|head| head.snapshot_id());
    let output = table.file_io().new_output(&list).unwrap().writer().await.unwrap();
    let mut writer = match metadata.format_version() {
        FormatVersion::V1 => ManifestListWriter::v1(output, id, parent),
        FormatVersion::V2 => ManifestListWriter::v2(output, id, parent, sequence),
        _ => ManifestListWriter::v3(output, id, parent, sequence, Some(metadata.next_row_id())),
    };
    writer.add_manifests(manifests.into_iter()).unwrap();
    let next = writer.next_row_id();
    writer.close().await.unwrap();
    let snapshot = described(metadata, id, parent, list, operation, next);
    raw.change(|builder| builder.set_branch_snapshot(snapshot, "main").unwrap()).await;
}

/// A manifest as it is where nothing of it goes, else one that says what went.
async fn without(
    table: &Table,
    id: i64,
    number: usize,
    known: &ManifestFile,
    gone: &impl Fn(&DataFile) -> bool,
) -> ManifestFile {
    let (entries, about) = known.load_manifest(table.file_io()).await.unwrap().into_parts();
    let data = about.content == ManifestContentType::Data;
    if !data || !entries.iter().any(|entry| entry.is_alive() && gone(entry.data_file())) {
        return known.clone();
    }
    let mut writer = manifest(table, id, &format!("kept-{number}"), ManifestContentType::Data);
    for entry in entries.iter().filter(|entry| entry.is_alive()) {
        let (file, sequence) = (entry.data_file().clone(), entry.sequence_number().unwrap());
        if gone(&file) {
            writer.add_delete_file(file, sequence, entry.file_sequence_number).unwrap();
        } else {
            let since = entry.snapshot_id().unwrap();
            writer.add_existing_file(file, since, sequence, entry.file_sequence_number).unwrap();
        }
    }
    writer.write_manifest_file().await.unwrap()
}

fn described(
    metadata: &TableMetadata,
    id: i64,
    parent: Option<i64>,
    list: String,
    operation: Operation,
    next_row: Option<u64>,
) -> Snapshot {
    let builder = Snapshot::builder()
        .with_snapshot_id(id)
        .with_parent_snapshot_id(parent)
        .with_sequence_number(metadata.next_sequence_number())
        .with_timestamp_ms(metadata.last_updated_ms() + 1)
        .with_manifest_list(list)
        .with_summary(Summary { operation, additional_properties: HashMap::new() })
        .with_schema_id(metadata.current_schema_id());
    match next_row {
        Some(next) => builder.with_row_range(metadata.next_row_id(), next - metadata.next_row_id()).build(),
        None => builder.build(),
    }
}
