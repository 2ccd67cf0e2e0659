//! Columns of Arrow as columns of Delta.

use std::sync::Arc;

use arrow_schema::{Field, Schema, SchemaRef};
use buoyant_kernel::engine::arrow_conversion::{TryIntoArrow, TryIntoKernel};
use deltalake::kernel::{Metadata, MetadataExt, StructField, StructType};
use reprocess_core::{Error, ErrorKind, Result};

use crate::error::broken_promise;

/// The column as the table has it after it was written.
pub(super) fn kept_as(field: &Field) -> Result<Field> {
    let refuse = |e: arrow_schema::ArrowError| {
        Error::invalid(format!(
            "column `{}` is {}, which Delta does not have",
            field.name(),
            field.data_type()
        ))
        .with_source(e)
    };
    let there: StructField = field.try_into_kernel().map_err(refuse)?;
    (&there).try_into_arrow().map_err(refuse)
}

/// The columns in the words of Delta.
pub(super) fn delta_columns(columns: &Schema) -> Result<StructType> {
    columns.try_into_kernel().map_err(|e| Error::invalid("Delta does not have the columns").with_source(e))
}

/// The metadata of the table with other columns; `None` where they are those that it has.
pub(super) fn with_columns(
    metadata: &Metadata,
    known: &SchemaRef,
    after: &SchemaRef,
) -> Result<Option<Metadata>> {
    if Arc::ptr_eq(known, after) || known == after {
        return Ok(None);
    }
    let columns = delta_columns(after)?;
    let changed = metadata.clone().with_schema(&columns);
    changed.map(Some).map_err(|e| broken_promise("the new columns cannot be described", e))
}

/// The metadata of the table with the columns of then, in the words of Delta; `None` where they are those of now.
pub(super) fn with_columns_of(metadata: &Metadata, now: &str, then: &str) -> Result<Option<Metadata>> {
    if now == then {
        return Ok(None);
    }
    let changed = metadata.clone().with_schema(&parsed(then)?);
    changed.map(Some).map_err(|e| broken_promise("the columns of then cannot be described", e))
}

/// Columns in the words of Delta as those of Arrow.
pub(super) fn arrow_columns(columns: &str) -> Result<SchemaRef> {
    let columns: Schema = (&parsed(columns)?).try_into_arrow().map_err(|e| {
        Error::new(ErrorKind::Corrupt, "the columns of a kept version cannot be read").with_source(e)
    })?;
    Ok(Arc::new(columns))
}

fn parsed(columns: &str) -> Result<StructType> {
    serde_json::from_str(columns).map_err(|e| {
        Error::new(ErrorKind::Corrupt, "the columns of a kept version cannot be read").with_source(e)
    })
}
