use iceberg::spec::{
    DataContentType, FormatVersion, Literal, ManifestContentType, ManifestListWriter, Operation,
    PrimitiveType, Summary, Transform,
};

use super::*;
use crate::view::fixtures::{Folder, data, deletes, metadata, schema, unread};

fn table(version: FormatVersion) -> TableMetadata {
    metadata(version, schema(&[("id", PrimitiveType::Long)]), &[("id", Transform::Identity)])
}

/// A manifest with an added, an existing, another added and a deleted file.
async fn manifest(folder: &Folder, version: FormatVersion) -> ManifestFile {
    let made = table(version);
    let about = (made.current_schema(), made.default_partition_spec().as_ref());
    let file = |name: &str| data(name, [Some(Literal::long(7))]).build().unwrap();
    let kind = (version, ManifestContentType::Data);
    let written = folder.manifest("m.avro", kind, about, 5, |writer| {
        writer.add_file(file("a"), -1).unwrap();
        let known = data("b", [Some(Literal::long(7))]).first_row_id(Some(3)).build().unwrap();
        writer.add_existing_file(known, 2, 2, Some(1)).unwrap();
        writer.add_file(file("c"), 4).unwrap();
        writer.add_delete_file(file("d"), 3, Some(3)).unwrap();
    });
    written.await
}

/// Path, snapshot, sequence number, that of the file, and first row.
type Told<'a> = (&'a str, i64, i64, Option<i64>, Option<i64>);

fn told(live: &[Arc<Named>]) -> Vec<Told<'_>> {
    let told = live.iter().map(|entry| {
        let (numbers, row) = ((entry.sequence_number, entry.file_sequence_number), entry.first_row_id);
        (entry.file.file_path(), entry.snapshot_id, numbers.0, numbers.1, row)
    });
    told.collect()
}

#[tokio::test]
async fn live_entries_inherit_what_they_do_not_say() {
    let folder = Folder::new();
    let written = manifest(&folder, FormatVersion::V2).await;
    let live = unread().live(&folder.files, &written).await.unwrap();
    assert_eq!(
        told(&live),
        [("a", 5, 5, Some(5), None), ("b", 2, 2, Some(1), Some(3)), ("c", 5, 4, Some(5), None)]
    );
    assert_eq!(&*live[0].manifest, written.manifest_path);
    assert_eq!(live[0].spec.fields()[0].transform, Transform::Identity);
    assert_eq!(live[0].schema.field_id_by_name("id"), Some(1));
}

#[tokio::test]
async fn files_of_the_first_format_are_older_than_all_others() {
    let folder = Folder::new();
    let written = manifest(&folder, FormatVersion::V1).await;
    let live = unread().live(&folder.files, &written).await.unwrap();
    assert_eq!(
        told(&live),
        [("a", 5, 0, Some(0), None), ("b", 2, 0, Some(0), None), ("c", 5, 0, Some(0), None)]
    );
}

#[tokio::test]
async fn rows_are_numbered_from_what_the_manifest_says_where_a_file_does_not() {
    let folder = Folder::new();
    let written = ManifestFile { first_row_id: Some(100), ..manifest(&folder, FormatVersion::V3).await };
    let live = unread().live(&folder.files, &written).await.unwrap();
    let ids: Vec<_> = live.iter().map(|entry| (entry.file.file_path(), entry.first_row_id)).collect();
    assert_eq!(ids, [("a", Some(100)), ("b", Some(3)), ("c", Some(110))]);
    assert_eq!(live[0].file.first_row_id(), None);
}

#[tokio::test]
async fn deletes_have_no_rows_that_are_numbered() {
    let folder = Folder::new();
    let made = table(FormatVersion::V3);
    let about = (made.current_schema(), made.default_partition_spec().as_ref());
    let kind = (FormatVersion::V3, ManifestContentType::Deletes);
    let written = folder.manifest("d.avro", kind, about, 6, |writer| {
        let file = deletes(DataContentType::PositionDeletes, "p", [Some(Literal::long(7))]);
        writer.add_file(file.build().unwrap(), -1).unwrap();
    });
    let written = ManifestFile { first_row_id: Some(100), ..written.await };
    let live = unread().live(&folder.files, &written).await.unwrap();
    assert_eq!(told(&live), [("p", 6, 6, Some(6), None)]);
}

#[tokio::test]
async fn a_manifest_is_read_once_and_shares_columns_and_spec_with_others() {
    let folder = Folder::new();
    let (first, manifests) = (manifest(&folder, FormatVersion::V2).await, unread());
    let live = manifests.live(&folder.files, &first).await.unwrap();
    let second = ManifestFile { sequence_number: 9, ..first.clone() };
    let other = manifests.live(&folder.files, &second).await.unwrap();
    assert!(Arc::ptr_eq(&live[0].spec, &other[0].spec) && Arc::ptr_eq(&live[0].schema, &other[0].schema));
    assert_eq!((live[0].sequence_number, other[0].sequence_number), (5, 9));

    std::fs::remove_file(&first.manifest_path).unwrap();
    assert!(Arc::ptr_eq(&live, &manifests.live(&folder.files, &first).await.unwrap()));
    let error = unread().live(&folder.files, &first).await.unwrap_err();
    assert!(error.to_string().contains(&first.manifest_path), "{error}");
}

fn snapshot(list: &str) -> Snapshot {
    let summary = Summary { operation: Operation::Append, additional_properties: Default::default() };
    Snapshot::builder()
        .with_snapshot_id(5)
        .with_sequence_number(5)
        .with_timestamp_ms(0)
        .with_manifest_list(list)
        .with_summary(summary)
        .build()
}

#[tokio::test]
async fn the_manifests_of_a_snapshot_are_those_of_its_list() {
    let folder = Folder::new();
    let (made, manifests) = (table(FormatVersion::V2), unread());
    let written = manifest(&folder, FormatVersion::V2).await;
    let path = folder.path("list.avro");
    let output = folder.files.io().new_output(&path).unwrap().writer().await.unwrap();
    let mut list = ManifestListWriter::v2(output, 5, None, 5);
    list.add_manifests([written.clone()].into_iter()).unwrap();
    list.close().await.unwrap();

    let snapshot = snapshot(&path);
    let read = manifests.list(&folder.files, &made, &snapshot).await.unwrap();
    assert_eq!(read.as_slice(), [written]);
    std::fs::remove_file(&path).unwrap();
    assert!(Arc::ptr_eq(&read, &manifests.list(&folder.files, &made, &snapshot).await.unwrap()));
    assert!(unread().list(&folder.files, &made, &snapshot).await.is_err());
}

#[tokio::test]
async fn encrypted_manifests_are_refused_by_name() {
    let folder = Folder::new();
    let written = manifest(&folder, FormatVersion::V2).await;
    let locked = ManifestFile { key_metadata: Some(vec![1]), ..written };
    let error = unread().live(&folder.files, &locked).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("the table is encrypted"), "{error}");
}
