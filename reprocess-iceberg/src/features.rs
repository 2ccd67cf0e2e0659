//! What a table asks of those who write and read it, and what is refused by name.

use arrow_schema::{DataType, Schema, TimeUnit};
use iceberg::spec::{DataFileFormat, FormatVersion, TableMetadata, Transform};
use reprocess_core::domain::rows::CellKind;
use reprocess_core::{Error, ErrorKind, Result};
use serde_json::Value;

use crate::columns;
use crate::view::{File, Named, View};

/// The newest version of the format that is read and written here.
const NEWEST: FormatVersion = FormatVersion::V3;

/// Property that names the format of new data files.
const FORMAT: &str = "write.format.default";
/// Property that names the key that a table is encrypted with.
const KEY: &str = "encryption.key-id";

/// Why metadata cannot be read: where they are of a newer version of the format that, else what was said. `version` is
/// where the version stands in the JSON.
pub(crate) fn unreadable(json: &[u8], version: &str, error: Error) -> Error {
    let json: Value = serde_json::from_slice(json).unwrap_or_default();
    let newest = NEWEST as u64;
    match json.pointer(version).and_then(Value::as_u64).filter(|version| *version > newest) {
        None => error,
        Some(version) => {
            let message = format!(
                "the table is of format version {version}, and {newest} is the newest that is known here"
            );
            refused(message).with_advice("read and write it with a tool that knows that version")
        }
    }
}

/// Refuses a table that cannot be written right, naming why. `rewrites` says whether rows that do not change are written
/// again, as a merge does.
pub(crate) fn check_write(view: &View, rewrites: bool) -> Result<()> {
    let metadata = view.metadata()?;
    check_encryption(metadata)?;
    if let Some(format) =
        metadata.properties().get(FORMAT).filter(|format| !format.eq_ignore_ascii_case("parquet"))
    {
        return Err(refused(format!("the table wants data files of the format {format} (`{FORMAT}`)"))
            .with_advice(
                "only Parquet is written here: set the property to `parquet`, or write with another tool",
            ));
    }
    if rewrites && metadata.format_version() >= FormatVersion::V3 {
        return Err(refused(
            "the table is of format version 3, and a merge would give rows that did not change new ids",
        )
        .with_advice("replace partitions instead, or merge with a tool that keeps the ids of rows"));
    }
    for field in view.schema().fields() {
        if CellKind::of(field.data_type()).is_none() {
            return Err(refused(format!(
                "column `{}` is {}, which cannot be compared",
                field.name(),
                field.data_type()
            ))
            .with_advice("write the table with another tool, or drop the column"));
        }
    }
    Ok(())
}

/// Refuses columns that the table could not have after a commit.
pub(crate) fn check_new(view: &View, after: &Schema) -> Result<()> {
    let (there, metadata) = (view.there()?, view.metadata()?);
    let fine = |field: &&arrow_schema::FieldRef| {
        matches!(field.data_type(), DataType::Timestamp(TimeUnit::Nanosecond, _))
    };
    if let Some(field) = after.fields().iter().find(fine)
        && metadata.format_version() < FormatVersion::V3
    {
        return Err(refused(format!(
            "column `{}` has nanoseconds, which tables have from format version 3 on",
            field.name()
        ))
        .with_advice("cast it to microseconds, or upgrade the table"));
    }
    let extended = columns::extended(&there.columns, metadata.last_column_id(), after)?;
    let fields = metadata.default_partition_spec().fields().iter();
    let partitions = fields.filter(|field| field.transform != Transform::Void).map(|field| field.source_id);
    let sorted = metadata.default_sort_order().fields.iter().map(|field| field.source_id);
    for (source, what) in partitions.map(|id| (id, "partitioned")).chain(sorted.map(|id| (id, "sorted"))) {
        if extended.field_by_id(source).is_some() {
            continue;
        }
        let name = there.columns.name_by_field_id(source).unwrap_or("a column that is gone");
        return Err(Error::invalid(format!(
            "the table is {what} by `{name}`, which the new columns do not have with that type"
        ))
        .with_advice("keep the column, or change what the table is partitioned or sorted by first"));
    }
    Ok(())
}

/// Refuses files whose rows cannot be read right here, naming why.
pub(crate) fn check_read<'a>(files: impl IntoIterator<Item = &'a File>) -> Result<()> {
    for file in files {
        check_file(&file.entry)?;
        file.deletes.iter().try_for_each(|delete| check_file(delete))?;
    }
    Ok(())
}

fn check_file(entry: &Named) -> Result<()> {
    let file = &entry.file;
    let refused = match file.file_format() {
        _ if file.key_metadata().is_some() => encrypted(),
        DataFileFormat::Parquet => return Ok(()),
        DataFileFormat::Puffin => refused("the table has deletion vectors, which are not read here").with_advice(
            "have another tool rewrite the files that they are for (`rewrite_data_files`), or replace whole partitions",
        ),
        format => refused(format!("the table has files of the format {format}, which are not read here"))
            .with_advice("have another tool rewrite them as Parquet (`rewrite_data_files`)"),
    };
    Err(refused.with_context("file", file.file_path()))
}

/// Refuses tags and branches of a table whose metadata does not hold them.
pub(crate) fn check_refs(view: &View) -> Result<()> {
    if view.metadata()?.format_version() >= FormatVersion::V2 {
        return Ok(());
    }
    Err(refused("the table is of format version 1, whose tags and branches are not kept").with_advice(
        "upgrade the table to format version 2: pins are then held, replaced rows kept and shadows shown",
    ))
}

fn check_encryption(metadata: &TableMetadata) -> Result<()> {
    match metadata.properties().contains_key(KEY) || metadata.encryption_keys_iter().len() > 0 {
        true => Err(encrypted()),
        false => Ok(()),
    }
}

/// The error about a table with encrypted files.
pub(crate) fn encrypted() -> Error {
    refused("the table is encrypted, and its keys are not known here")
        .with_advice("read and write it with a tool that has its keys")
}

fn refused(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}

#[cfg(test)]
mod tests;
