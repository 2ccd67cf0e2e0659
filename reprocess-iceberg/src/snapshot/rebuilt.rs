//! Data files with something about them changed. `iceberg` 0.10 has no setters, so they are built anew from
//! all that they say.

use iceberg::spec::{DataFile, DataFileBuilder};
use reprocess_core::Result;

use crate::error::broken_promise;
use crate::view::Named;

/// The same rows under another path, as a file that was not in the table before: v3 gives them new row ids.
///
/// The id of the spec is not among what a file tells, and not among what a manifest says of each file either:
/// it stands once for all of them. The manifest that the file comes to says it.
pub(crate) fn with_path(file: &DataFile, path: &str) -> Result<DataFile> {
    built(builder(file).file_path(path.to_owned()).first_row_id(None))
}

/// The file of an entry as another manifest has to name it: with the row ids that it has had until now, which
/// it would else inherit anew from the place where it stands.
pub(super) fn moved(entry: &Named) -> Result<DataFile> {
    if entry.first_row_id == entry.file.first_row_id() {
        return Ok(entry.file.clone());
    }
    let spec = entry.spec.spec_id();
    built(builder(&entry.file).partition_spec_id(spec).first_row_id(entry.first_row_id))
}

fn built(builder: &DataFileBuilder) -> Result<DataFile> {
    builder.build().map_err(|e| broken_promise("a data file cannot be named again", e))
}

fn builder(file: &DataFile) -> DataFileBuilder {
    let mut builder = DataFileBuilder::default();
    builder
        .content(file.content_type())
        .file_path(file.file_path().to_owned())
        .file_format(file.file_format())
        .partition(file.partition().clone())
        .record_count(file.record_count())
        .file_size_in_bytes(file.file_size_in_bytes())
        .column_sizes(file.column_sizes().clone())
        .value_counts(file.value_counts().clone())
        .null_value_counts(file.null_value_counts().clone())
        .nan_value_counts(file.nan_value_counts().clone())
        .lower_bounds(file.lower_bounds().clone())
        .upper_bounds(file.upper_bounds().clone())
        .key_metadata(file.key_metadata().map(<[u8]>::to_vec))
        .split_offsets(file.split_offsets().map(<[i64]>::to_vec))
        .equality_ids(file.equality_ids())
        .first_row_id(file.first_row_id())
        .referenced_data_file(file.referenced_data_file())
        .content_offset(file.content_offset())
        .content_size_in_bytes(file.content_size_in_bytes());
    if let Some(order) = file.sort_order_id() {
        builder.sort_order_id(order);
    }
    builder
}
