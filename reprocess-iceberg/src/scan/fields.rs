//! Columns of data files as the table has them now: found by field id, whatever was renamed, moved, added, dropped or
//! widened since the file was written.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, ListArray, MapArray, StructArray, new_null_array};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields};
use datafusion::arrow::compute::{CastOptions, cast_with_options};
use datafusion::common::ScalarValue;
use datafusion::parquet::arrow::PARQUET_FIELD_ID_META_KEY;
use iceberg::spec::{
    LIST_FIELD_NAME, Literal, MAP_KEY_FIELD_NAME, MAP_VALUE_FIELD_NAME, MappedField, NameMapping,
    NestedField, NestedFieldRef, PrimitiveLiteral, Type,
};
use reprocess_core::{Error, ErrorKind, Result};

use crate::error::{Doing, broken_promise};

/// A column to read.
#[derive(Clone, Debug)]
pub(super) struct Column {
    /// What Iceberg says of it.
    pub(super) field: NestedFieldRef,
    /// The same in the words of Arrow.
    pub(super) kept: FieldRef,
    /// What all rows have, whatever is in the file.
    pub(super) constant: Option<ScalarValue>,
}

impl Column {
    pub(super) fn new(field: &NestedFieldRef, kept: &FieldRef) -> Self {
        Self { field: Arc::clone(field), kept: Arc::clone(kept), constant: None }
    }

    /// What rows of a file without the column have.
    pub(super) fn absent(&self, rows: usize) -> Result<ArrayRef> {
        absent(&self.field, &self.kept, rows)
    }
}

/// A field of a file with the id that it has, and those of the fields within it.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) id: Option<i32>,
    within: Vec<Known>,
}

impl Known {
    /// The fields of a file: by the ids in it; where there are none by the names that the table maps to ids, or by their
    /// places, as the format says.
    pub(super) fn of_file(fields: &Fields, mapping: Option<&NameMapping>) -> Vec<Self> {
        match mapping {
            _ if fields.iter().any(|field| id_in(field).is_some()) => {
                fields.iter().map(|field| Self::numbered(field)).collect()
            }
            Some(mapping) => {
                let mapped: Vec<_> = mapping.fields().iter().collect();
                fields.iter().map(|field| Self::named(field.name(), field, &mapped)).collect()
            }
            None => (1..).zip(fields).map(|(id, _)| Self { id: Some(id), within: Vec::new() }).collect(),
        }
    }

    fn numbered(field: &Field) -> Self {
        let within = within(field).into_iter().map(|(_, field)| Self::numbered(field));
        Self { id: id_in(field), within: within.collect() }
    }

    fn named(name: &str, field: &Field, mapped: &[&MappedField]) -> Self {
        let mapped = mapped.iter().find(|mapped| mapped.names().iter().any(|known| known == name));
        let of_members: Vec<_> = mapped.into_iter().flat_map(|m| m.fields()).map(AsRef::as_ref).collect();
        let within = within(field).into_iter().map(|(name, field)| Self::named(name, field, &of_members));
        Self { id: mapped.and_then(|mapped| mapped.field_id()), within: within.collect() }
    }
}

fn id_in(field: &Field) -> Option<i32> {
    field.metadata().get(PARQUET_FIELD_ID_META_KEY)?.parse().ok()
}

/// The fields within a field, by the names that Iceberg has for them.
fn within(field: &Field) -> Vec<(&str, &Field)> {
    match field.data_type() {
        DataType::Struct(fields) => fields.iter().map(|f| (f.name().as_str(), f.as_ref())).collect(),
        DataType::List(element) => vec![(LIST_FIELD_NAME, element.as_ref())],
        DataType::Map(pair, _) => match pair.data_type() {
            DataType::Struct(fields) if fields.len() == 2 => {
                vec![(MAP_KEY_FIELD_NAME, fields[0].as_ref()), (MAP_VALUE_FIELD_NAME, fields[1].as_ref())]
            }
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// An array of a file as the table has the column.
pub(super) fn evolved(
    array: &ArrayRef,
    known: &Known,
    field: &NestedField,
    kept: &Field,
) -> Result<ArrayRef> {
    let refused = || refused(field, array.data_type(), kept.data_type());
    match (field.field_type.as_ref(), kept.data_type()) {
        (Type::Primitive(_), wanted) => {
            widened(array, wanted).map_err(|e| refused().with_source(e))?.ok_or_else(refused)
        }
        (Type::Struct(of), DataType::Struct(wanted)) => {
            let there = array.as_struct_opt().ok_or_else(refused)?;
            let members = members(there, known, of.fields(), wanted)?;
            let array = StructArray::try_new(wanted.clone(), members, there.nulls().cloned());
            array.map(|array| Arc::new(array) as ArrayRef).map_err(|e| refused().with_source(e))
        }
        (Type::List(of), DataType::List(wanted)) => {
            let there = array.as_list_opt::<i32>().ok_or_else(refused)?;
            let known = known.within.first().ok_or_else(refused)?;
            let elements = evolved(there.values(), known, &of.element_field, wanted)?;
            let (offsets, nulls) = (there.offsets().clone(), there.nulls().cloned());
            let array = ListArray::try_new(Arc::clone(wanted), offsets, elements, nulls);
            array.map(|array| Arc::new(array) as ArrayRef).map_err(|e| refused().with_source(e))
        }
        (Type::Map(of), DataType::Map(pair, sorted)) => {
            let (DataType::Struct(wanted), Some(there)) = (pair.data_type(), array.as_map_opt()) else {
                return Err(refused());
            };
            let fields = [Arc::clone(&of.key_field), Arc::clone(&of.value_field)];
            let pairs = members(there.entries(), known, &fields, wanted)?;
            let pairs =
                StructArray::try_new(wanted.clone(), pairs, None).map_err(|e| refused().with_source(e))?;
            let (offsets, nulls) = (there.offsets().clone(), there.nulls().cloned());
            let array = MapArray::try_new(Arc::clone(pair), offsets, pairs, nulls, *sorted);
            array.map(|array| Arc::new(array) as ArrayRef).map_err(|e| refused().with_source(e))
        }
        _ => Err(refused()),
    }
}

/// The fields within a struct.
fn members(
    there: &StructArray,
    known: &Known,
    fields: &[NestedFieldRef],
    kept: &Fields,
) -> Result<Vec<ArrayRef>> {
    if known.within.iter().all(|known| known.id.is_none()) {
        let message = "a data file has no ids for the fields within its columns";
        return Err(Error::new(ErrorKind::Unsupported, message)
            .with_advice("give the table a name mapping, or write the file again"));
    }
    let member = |(field, kept): (&NestedFieldRef, &FieldRef)| match known
        .within
        .iter()
        .position(|known| known.id == Some(field.id))
    {
        Some(place) => evolved(there.column(place), &known.within[place], field, kept),
        None => absent(field, kept, there.len()),
    };
    fields.iter().zip(kept).map(member).collect()
}

/// What rows have that were written before the field was added.
fn absent(field: &NestedField, kept: &Field, rows: usize) -> Result<ArrayRef> {
    match &field.initial_default {
        None => Ok(new_null_array(kept.data_type(), rows)),
        Some(Literal::Primitive(value)) => {
            constant(value, kept.data_type())?.to_array_of_size(rows).doing("repeat the default of a column")
        }
        Some(_) => {
            let message = format!("the default of column `{}` is of a nested type", field.name);
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

/// A value as the table has it in a column of a type.
pub(super) fn constant(value: &PrimitiveLiteral, of: &DataType) -> Result<ScalarValue> {
    let impossible = || Error::internal("a value does not fit its column").with_context("type", of);
    let scalar = match (value, of) {
        (PrimitiveLiteral::Boolean(value), _) => ScalarValue::Boolean(Some(*value)),
        (PrimitiveLiteral::Int(value), _) => ScalarValue::Int32(Some(*value)),
        (PrimitiveLiteral::Long(value), _) => ScalarValue::Int64(Some(*value)),
        (PrimitiveLiteral::Float(value), _) => ScalarValue::Float32(Some(value.0)),
        (PrimitiveLiteral::Double(value), _) => ScalarValue::Float64(Some(value.0)),
        (PrimitiveLiteral::String(value), _) => ScalarValue::Utf8(Some(value.clone())),
        (PrimitiveLiteral::Binary(value), DataType::FixedSizeBinary(width)) => {
            ScalarValue::FixedSizeBinary(*width, Some(value.clone()))
        }
        (PrimitiveLiteral::Binary(value), _) => ScalarValue::Binary(Some(value.clone())),
        (PrimitiveLiteral::UInt128(value), DataType::FixedSizeBinary(16)) => {
            ScalarValue::FixedSizeBinary(16, Some(value.to_be_bytes().to_vec()))
        }
        (PrimitiveLiteral::Int128(value), DataType::Decimal128(precision, scale)) => {
            ScalarValue::Decimal128(Some(*value), *precision, *scale)
        }
        _ => return Err(impossible()),
    };
    // Dates, times and instants are numbers there, and columns may have been widened since.
    scalar
        .cast_to(of)
        .map_err(|e| broken_promise("a value does not fit its column", e).with_context("type", of))
}

/// An array with the type of the column; `None` where files with the one are not read as the other.
fn widened(array: &ArrayRef, wanted: &DataType) -> Result<Option<ArrayRef>, ArrowError> {
    use DataType as T;
    if array.data_type() == wanted {
        return Ok(Some(Arc::clone(array)));
    }
    let reads = match (array.data_type(), wanted) {
        (T::Int8 | T::Int16 | T::UInt8 | T::UInt16, T::Int32 | T::Int64) => true,
        (T::Int32 | T::UInt32, T::Int64) => true,
        (T::Float16, T::Float32 | T::Float64) | (T::Float32, T::Float64) => true,
        (T::Decimal128(precision, scale), T::Decimal128(wider, same)) => precision <= wider && scale == same,
        (T::Date32, T::Timestamp(_, None)) => true,
        (T::Time32(_) | T::Time64(_), T::Time64(_)) => true,
        (T::Timestamp(..), T::Timestamp(..)) => true,
        // What was written without saying that it is text.
        (T::Binary, T::Utf8) => true,
        _ => false,
    };
    if !reads {
        return Ok(None);
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let array = match (array.data_type(), wanted) {
        (T::Timestamp(_, there), T::Timestamp(unit, zone)) if there != zone => {
            // Both are counted in UTC, so that no hour moves.
            let array = cast_with_options(array, &T::Timestamp(*unit, there.clone()), &options)?;
            cast_with_options(&array, &T::Int64, &options)?
        }
        _ => Arc::clone(array),
    };
    cast_with_options(&array, wanted, &options).map(Some)
}

fn refused(field: &NestedField, there: &DataType, wanted: &DataType) -> Error {
    let message = format!("column `{}` is {there} in a data file, and {wanted} in the table", field.name);
    Error::new(ErrorKind::Unsupported, message).with_advice("write the file again with another engine")
}
