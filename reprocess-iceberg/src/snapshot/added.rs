//! Manifests of new files. One for each partition, so that the next commit to a partition writes again only
//! what it has to.

use iceberg::spec::{DataFile, ManifestContentType, PartitionSpecRef, SchemaRef};

use super::sheet::{Line, Sheet, by_partition, packed};

/// A commit to more partitions than this puts several into one manifest.
const PARTITIONS: usize = 100;
/// How many files a manifest of several partitions names: to write an entry again takes some 50 µs.
pub(super) const FILES: usize = 300;

/// What a manifest of new files is remembered by: ids of columns and spec, and the paths.
pub(super) type Key = (i32, i32, Vec<String>);

/// The manifests that name new files.
pub(super) fn sheets<'a>(
    files: &'a [DataFile],
    schema: &SchemaRef,
    spec: &PartitionSpecRef,
) -> Vec<(Key, Sheet<'a>)> {
    let mut groups = by_partition(files.iter().map(Line::Added).collect());
    if groups.len() > PARTITIONS {
        groups = packed(groups, FILES);
    }
    let sheet = |lines: Vec<Line<'a>>| {
        let paths = lines.iter().map(|line| line.file().file_path().to_owned()).collect();
        let key = (schema.schema_id(), spec.spec_id(), paths);
        let sheet =
            Sheet { schema: schema.clone(), spec: spec.clone(), content: ManifestContentType::Data, lines };
        (key, sheet)
    };
    groups.into_iter().map(sheet).collect()
}
