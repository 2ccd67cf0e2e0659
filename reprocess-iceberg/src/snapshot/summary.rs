//! What a snapshot says of itself: what came and went, the totals after it, and where the table asks for it
//! what changed in each partition. The keys are those of Iceberg.

use std::collections::BTreeMap;

use iceberg::spec::{
    DataContentType, DataFile, DataFileFormat, Literal, PartitionSpec, Schema, Summary, TableMetadata,
    TableProperties,
};
use url::form_urlencoded::byte_serialize;

use super::Draft;

/// Keys of counts: of what came, of what went, and of the total, where there is one.
const KEYS: [(&str, &str, Option<&str>); 9] = [
    ("added-data-files", "deleted-data-files", Some("total-data-files")),
    ("added-records", "deleted-records", Some("total-records")),
    ("added-files-size", "removed-files-size", Some("total-files-size")),
    ("added-delete-files", "removed-delete-files", Some("total-delete-files")),
    ("added-position-delete-files", "removed-position-delete-files", None),
    ("added-position-deletes", "removed-position-deletes", Some("total-position-deletes")),
    ("added-equality-delete-files", "removed-equality-delete-files", None),
    ("added-equality-deletes", "removed-equality-deletes", Some("total-equality-deletes")),
    ("added-dvs", "removed-dvs", None),
];

/// Counts in the order of [`KEYS`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts([u64; KEYS.len()]);

/// What came and went.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    added: Counts,
    removed: Counts,
}

/// What a snapshot changes.
#[derive(Debug, Default)]
pub(super) struct Changes {
    all: Moved,
    /// By the path that Iceberg has for a partition; the empty one is that of a table without partitions.
    partitions: BTreeMap<String, Moved>,
}

impl Counts {
    fn count(&mut self, file: &DataFile) {
        let vector = file.file_format() == DataFileFormat::Puffin;
        // A vector is a part of its file.
        let part = file.content_size_in_bytes().and_then(|size| u64::try_from(size).ok());
        let size = part.filter(|_| vector).unwrap_or_else(|| file.file_size_in_bytes());
        let records = file.record_count();
        let counted = match file.content_type() {
            DataContentType::Data => [1, records, size, 0, 0, 0, 0, 0, 0],
            DataContentType::PositionDeletes if vector => [0, 0, size, 1, 0, records, 0, 0, 1],
            DataContentType::PositionDeletes => [0, 0, size, 1, 1, records, 0, 0, 0],
            DataContentType::EqualityDeletes => [0, 0, size, 1, 0, 0, 1, records, 0],
        };
        for (sum, value) in self.0.iter_mut().zip(counted) {
            *sum = sum.saturating_add(value);
        }
    }
}

impl Moved {
    /// Keys and values of what is not nothing.
    fn told(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let added = KEYS.iter().map(|(key, ..)| *key).zip(self.added.0);
        let removed = KEYS.iter().map(|(_, key, _)| *key).zip(self.removed.0);
        added.chain(removed).filter(|(_, count)| *count > 0)
    }
}

impl Changes {
    /// What a draft changes. `schema` is the one that the new files are written with; those that go are told
    /// by the columns and the spec of their manifests, since the table may no longer have what they are
    /// partitioned by.
    pub(super) fn of(draft: &Draft, schema: &Schema) -> Self {
        let mut changes = Self::default();
        for file in &draft.added {
            let path = path_of(&draft.added_spec, schema, file);
            changes.all.added.count(file);
            changes.partitions.entry(path).or_default().added.count(file);
        }
        for entry in &draft.removed {
            let path = path_of(&entry.spec, &entry.schema, &entry.file);
            changes.all.removed.count(&entry.file);
            changes.partitions.entry(path).or_default().removed.count(&entry.file);
        }
        changes
    }

    /// The summary of a snapshot on a parent: what the draft says, and over it what was counted.
    pub(super) fn summary(
        &self,
        draft: &Draft,
        metadata: &TableMetadata,
        parent: Option<&Summary>,
    ) -> Summary {
        let mut told = draft.summary.clone();
        // A total of ours that is no longer known would be wrong, so that none may come from the draft
        // either.
        told.retain(|key, _| !KEYS.iter().any(|(_, _, total)| *total == Some(key.as_str())));
        told.extend(self.all.told().map(|(key, count)| (key.to_owned(), count.to_string())));
        told.insert("changed-partition-count".into(), self.partitions.len().to_string());
        told.extend(self.by_partition(limit(metadata)));
        told.extend(self.totals(parent));
        Summary { operation: draft.operation.clone(), additional_properties: told.into_iter().collect() }
    }

    /// What changed in each partition, where they are few enough.
    fn by_partition(&self, limit: usize) -> BTreeMap<String, String> {
        let partitioned = self.partitions.keys().any(|path| !path.is_empty());
        if !partitioned || self.partitions.len() > limit {
            return BTreeMap::new();
        }
        let changed = self.partitions.iter().filter(|(path, _)| !path.is_empty());
        let told = changed.map(|(path, moved)| {
            let told: Vec<_> = moved.told().map(|(key, count)| format!("{key}={count}")).collect();
            (format!("partitions.{path}"), told.join(","))
        });
        told.chain([("partition-summaries-included".to_owned(), "true".to_owned())]).collect()
    }

    /// The totals after it. One that the parent does not tell stays untold, and so does one that cannot be
    /// right: to begin at nothing there would make it wrong for ever.
    fn totals(&self, parent: Option<&Summary>) -> BTreeMap<String, String> {
        let counts = KEYS.iter().zip(self.all.added.0).zip(self.all.removed.0);
        let totals = counts.filter_map(|(((_, _, key), added), removed)| {
            let key = (*key)?;
            let before = match parent {
                Some(parent) => parent.additional_properties.get(key)?.parse::<u64>().ok()?,
                None => 0,
            };
            let after = before.checked_add(added)?.checked_sub(removed)?;
            Some((key.to_owned(), after.to_string()))
        });
        totals.collect()
    }
}

/// Up to how many partitions are told of one by one: none, where the table says nothing.
fn limit(metadata: &TableMetadata) -> usize {
    let limit = metadata.properties().get(TableProperties::PROPERTY_WRITE_PARTITION_SUMMARY_LIMIT);
    limit.and_then(|limit| limit.parse().ok()).unwrap_or(0)
}

/// The path of a file's partition, names and values encoded. Empty where there are none, or where they cannot
/// be told: the library's own way to tell them panics there.
fn path_of(spec: &PartitionSpec, schema: &Schema, file: &DataFile) -> String {
    let Ok(kinds) = spec.partition_type(schema) else { return String::new() };
    let values = file.partition().fields();
    if values.len() != spec.fields().len() || kinds.fields().len() != spec.fields().len() {
        return String::new();
    }
    let parts = spec.fields().iter().zip(kinds.fields()).zip(values).map(|((field, kind), value)| {
        let fits = match (value, kind.field_type.as_primitive_type()) {
            (Some(Literal::Primitive(value)), Some(kind)) => kind.compatible(value),
            (value, _) => value.is_none(),
        };
        let value = value.as_ref().filter(|_| fits);
        let text = field.transform.to_human_string(&kind.field_type, value);
        format!("{}={}", encoded(&field.name), encoded(&text))
    });
    parts.collect::<Vec<_>>().join("/")
}

fn encoded(text: &str) -> String {
    byte_serialize(text.as_bytes()).collect()
}
