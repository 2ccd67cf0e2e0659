//! Batches of the Arrow that `iceberg` has, and of ours. The only `unsafe` code of the workspace.
//!
//! Both speak the [C data interface], a fixed layout in memory by which Arrow libraries hand arrays to each other without
//! copying a value. What goes over is moved, with the callback that frees it: buffers live until whoever took them lets
//! them go, on whichever side that is, and are freed by the side that made them.
//!
//! [C data interface]: https://arrow.apache.org/docs/format/CDataInterface.html
#![allow(unsafe_code, reason = "two majors of Arrow meet here, and what they share is an interface of C")]

use std::mem::{align_of, size_of};
use std::ptr;
use std::sync::Arc;

use reprocess_core::{Error, Result};

use crate::error::Doing;

const WHAT: &str = "hand columns over between two versions of Arrow";

/// That both majors declare a structure of the C data interface alike: each is `#[repr(C)]` with the members that the
/// interface fixes, and a difference in size or alignment would not compile.
macro_rules! same_layout {
    ($ours:ty, $theirs:ty) => {
        const _: () = assert!(size_of::<$ours>() == size_of::<$theirs>());
        const _: () = assert!(align_of::<$ours>() == align_of::<$theirs>());
    };
}
same_layout!(arrow_array::ffi::FFI_ArrowArray, arrow_array_58::ffi::FFI_ArrowArray);
same_layout!(arrow_schema::ffi::FFI_ArrowSchema, arrow_schema_58::ffi::FFI_ArrowSchema);

/// One direction of the bridge.
macro_rules! bridge {
    (
        $from_array:ident, $from_schema:ident => $to_array:ident, $to_schema:ident;
        $(#[doc = $batch_doc:literal])* $batch:ident;
        $(#[doc = $schema_doc:literal])* $schema:ident;
    ) => {
        $(#[doc = $batch_doc])*
        pub(crate) fn $batch(batch: &$from_array::RecordBatch) -> Result<$to_array::RecordBatch> {
            let schema = $schema(batch.schema_ref())?;
            let rows = $from_array::StructArray::from(batch.clone());
            let data = $from_array::Array::into_data(rows);
            let mut exported = $from_array::ffi::FFI_ArrowArray::new(&data);
            // SAFETY: `exported` is valid for reads and writes, and nobody else has it. Both types have the layout of the
            // interface's `ArrowArray`, see `same_layout`, so that the pointer may be read as one to the other type. The
            // interface allows the structure to be moved: `from_raw` leaves an empty one, without a callback, in its
            // place, so that what was exported is released once.
            let moved = unsafe {
                $to_array::ffi::FFI_ArrowArray::from_raw(ptr::from_mut(&mut exported).cast())
            };
            let of_type = $to_schema::DataType::Struct(schema.fields().clone());
            // SAFETY: `moved` was exported from an array of just this type, whose fields came over by the same interface,
            // and that array is valid by its construction. It has its callback, and nobody else has it.
            let data = unsafe { $to_array::ffi::from_ffi_and_data_type(moved, of_type) }.doing(WHAT)?;
            let (_, columns, _) = $to_array::StructArray::from(data).into_parts();
            // Said, since a batch without columns does not know it otherwise.
            let options = $to_array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            $to_array::RecordBatch::try_new_with_options(Arc::new(schema), columns, &options).doing(WHAT)
        }

        $(#[doc = $schema_doc])*
        pub(crate) fn $schema(schema: &$from_schema::Schema) -> Result<$to_schema::Schema> {
            if let Some(field) = schema.flattened_fields().iter().find(|field| field.name().contains('\0')) {
                let name = field.name().escape_default();
                return Err(Error::invalid("the name of a column has a zero byte").with_context("column", name));
            }
            let mut exported = $from_schema::ffi::FFI_ArrowSchema::try_from(schema).doing(WHAT)?;
            // SAFETY: as for the array of a batch; both types have the layout of the interface's `ArrowSchema`.
            let moved = unsafe {
                $to_schema::ffi::FFI_ArrowSchema::from_raw(ptr::from_mut(&mut exported).cast())
            };
            $to_schema::Schema::try_from(&moved).doing(WHAT)
        }
    };
}

bridge! {
    arrow_array, arrow_schema => arrow_array_58, arrow_schema_58;
    /// A batch of ours for `iceberg`; metadata of columns and schema stays.
    to_iceberg;
    /// Columns of ours for `iceberg`, with their metadata.
    schema_to_iceberg;
}

bridge! {
    arrow_array_58, arrow_schema_58 => arrow_array, arrow_schema;
    /// A batch of `iceberg` for us; metadata of columns and schema stays.
    from_iceberg;
    /// Columns of `iceberg` for us, with their metadata.
    schema_from_iceberg;
}

#[cfg(test)]
mod tests;
