//! Manifests as they are written.

use std::cmp::Ordering;

use iceberg::io::FileIO;
use iceberg::spec::{
    DataFile, FormatVersion, Literal, ManifestContentType, ManifestFile, ManifestWriter,
    ManifestWriterBuilder, PartitionSpecRef, SchemaRef, Struct,
};
use reprocess_core::{Error, ErrorKind, Result};

use super::rebuilt;
use crate::error::Doing;
use crate::view::Named;

/// A manifest to be written.
#[derive(Debug)]
pub(super) struct Sheet<'a> {
    /// Columns and spec of all its files: those of new files for new ones, for others those of the manifest
    /// that they are in. Only these tell what the partition values and bounds of the files mean.
    pub(super) schema: SchemaRef,
    pub(super) spec: PartitionSpecRef,
    pub(super) content: ManifestContentType,
    pub(super) lines: Vec<Line<'a>>,
}

/// What a manifest says of one file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Line<'a> {
    /// It comes with the snapshot.
    Added(&'a DataFile),
    /// It was there before.
    Existing(&'a Named),
    /// It was there before, and goes with the snapshot.
    Deleted(&'a Named),
}

impl Line<'_> {
    pub(super) fn file(&self) -> &DataFile {
        match self {
            Self::Added(file) => file,
            Self::Existing(entry) | Self::Deleted(entry) => &entry.file,
        }
    }
}

impl<'a> Sheet<'a> {
    /// A manifest in the place of another one, of which it has an entry: with the same columns and spec.
    pub(super) fn like(manifest: &ManifestFile, entry: &Named, lines: Vec<Line<'a>>) -> Self {
        // The list is what readers believe about the spec; a header of format version 1 need not name it.
        let spec = match entry.spec.spec_id() == manifest.partition_spec_id {
            true => entry.spec.clone(),
            false => entry.spec.as_ref().clone().with_spec_id(manifest.partition_spec_id).into(),
        };
        Self { schema: entry.schema.clone(), spec, content: manifest.content, lines }
    }

    /// The writer that has all the lines, and has yet to write them to a path as a manifest of a snapshot.
    pub(super) fn writer(
        &self,
        io: &FileIO,
        path: &str,
        snapshot: i64,
        format: FormatVersion,
    ) -> Result<ManifestWriter> {
        let output = io.new_output(path).doing("write a manifest")?;
        let (schema, spec) = (self.schema.clone(), self.spec.as_ref().clone());
        let builder = ManifestWriterBuilder::new(output, Some(snapshot), schema, spec);
        let mut writer = match (format, self.content) {
            (FormatVersion::V1, ManifestContentType::Data) => builder.build_v1(),
            (FormatVersion::V2, ManifestContentType::Data) => builder.build_v2_data(),
            (FormatVersion::V2, ManifestContentType::Deletes) => builder.build_v2_deletes(),
            (FormatVersion::V3, ManifestContentType::Data) => builder.build_v3_data(),
            (FormatVersion::V3, ManifestContentType::Deletes) => builder.build_v3_deletes(),
            (FormatVersion::V1, ManifestContentType::Deletes) => {
                return Err(Error::internal("a table of format version 1 has no files of deletes"));
            }
        };
        for line in &self.lines {
            self.check(line.file())?;
            add(&mut writer, line)?;
        }
        Ok(writer)
    }

    /// The library takes it for granted that the values are those of the spec, and panics where they are not.
    fn check(&self, file: &DataFile) -> Result<()> {
        let values = file.partition().fields();
        let plain = values.iter().flatten().all(|value| matches!(value, Literal::Primitive(_)));
        if plain && values.len() == self.spec.fields().len() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Corrupt, "the partition values of a file are not those of its spec")
            .with_context("file", file.file_path())
            .with_context("spec", self.spec.spec_id()))
    }
}

fn add(writer: &mut ManifestWriter, line: &Line<'_>) -> Result<()> {
    match line {
        // The number is inherited from the list, so that the manifest is right for every attempt.
        Line::Added(file) => writer.add_file((*file).clone(), -1),
        Line::Existing(entry) => writer.add_existing_file(
            rebuilt::moved(entry)?,
            entry.snapshot_id,
            entry.sequence_number,
            Some(file_sequence_number(entry)),
        ),
        Line::Deleted(entry) => writer.add_delete_file(
            rebuilt::moved(entry)?,
            entry.sequence_number,
            Some(file_sequence_number(entry)),
        ),
    }
    .doing("write a manifest")
}

/// Writers from before the number was invented left it out, and `iceberg` 0.10 does not write an entry
/// without it. It is never below that of the data, and above it only where files were compacted.
fn file_sequence_number(entry: &Named) -> i64 {
    entry.file_sequence_number.unwrap_or(entry.sequence_number)
}

/// Files by their partition values, the values in order, those of one value in the order of their paths.
pub(super) fn by_partition<'a>(mut lines: Vec<Line<'a>>) -> Vec<Vec<Line<'a>>> {
    lines.sort_by(|a, b| {
        let values = order(a.file().partition(), b.file().partition());
        values.then_with(|| a.file().file_path().cmp(b.file().file_path()))
    });
    let same = |a: &Line<'a>, b: &Line<'a>| a.file().partition() == b.file().partition();
    lines.chunk_by(same).map(<[Line<'a>]>::to_vec).collect()
}

/// Puts partitions together until there are `most` files in each of the results; only what is larger by
/// itself is divided.
pub(super) fn packed<'a>(partitions: Vec<Vec<Line<'a>>>, most: usize) -> Vec<Vec<Line<'a>>> {
    let most = most.max(1);
    let mut packed: Vec<Vec<Line<'a>>> = Vec::new();
    for partition in partitions {
        match packed.last_mut() {
            Some(last) if last.len() + partition.len() <= most => last.extend(partition),
            _ => packed.extend(partition.chunks(most).map(<[Line<'a>]>::to_vec)),
        }
    }
    packed
}

fn order(a: &Struct, b: &Struct) -> Ordering {
    let value = |value: &Option<Literal>| match value {
        Some(Literal::Primitive(value)) => Some(value.clone()),
        _ => None,
    };
    let pairs = a.fields().iter().zip(b.fields());
    let first = pairs.map(|(a, b)| value(a).partial_cmp(&value(b)).unwrap_or(Ordering::Equal));
    first.into_iter().find(|order| order.is_ne()).unwrap_or_else(|| a.fields().len().cmp(&b.fields().len()))
}
