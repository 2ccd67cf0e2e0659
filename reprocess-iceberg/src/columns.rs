//! Columns of Arrow as columns of Iceberg, and the other way round.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema as ArrowSchema, SchemaRef, TimeUnit};
use iceberg::spec::{NestedField, NestedFieldRef, PrimitiveType, Schema, Type};
use reprocess_core::{Error, ErrorKind, Result};

/// Time zone of columns of instants.
const ZONE: &str = "UTC";
/// Name of the pairs of a map, as the library has it.
const PAIRS: &str = "key_value";

/// Columns as rows of a table have them, without field ids.
pub(crate) fn to_arrow(schema: &Schema) -> Result<SchemaRef> {
    let fields = schema.as_struct().fields().iter().map(|field| {
        arrow_field(field).ok_or_else(|| {
            let message =
                format!("column `{}` is {}, which Arrow does not have", field.name, field.field_type);
            Error::new(ErrorKind::Unsupported, message).with_advice("drop the column from the table")
        })
    });
    Ok(Arc::new(ArrowSchema::new(fields.collect::<Result<Fields>>()?)))
}

/// The column as the table has it after it was written.
pub(crate) fn kept_as(field: &Field) -> Result<Field> {
    let kept = NestedField::new(0, field.name(), iceberg_type(field)?, !field.is_nullable());
    arrow_field(&kept).ok_or_else(|| refused(field, field.data_type()))
}

/// The columns of a new table, with ids from 1.
pub(crate) fn new_schema(columns: &ArrowSchema) -> Result<Schema> {
    let fields = columns.fields().iter().zip(1..).map(|(field, id)| new_field(field, id));
    built(Schema::builder().with_fields(fields.collect::<Result<Vec<_>>>()?).build())
}

/// The columns that a table has once they are `after`: known ones keep what Iceberg says of them, new ones get the ids
/// after the last that the table ever gave. The schema still has the id of the known one, since only the metadata of the
/// table can give it another.
pub(crate) fn extended(known: &Schema, last_column_id: i32, after: &ArrowSchema) -> Result<Schema> {
    let mut last = last_column_id;
    let mut fields = Vec::with_capacity(after.fields().len());
    for field in after.fields() {
        let kept = known.as_struct().field_by_name(field.name()).and_then(|known| kept(known, field));
        fields.push(match kept {
            Some(kept) => kept,
            None => {
                last = last
                    .checked_add(1)
                    .ok_or_else(|| Error::invalid("the table has no ids left for columns"))?;
                new_field(field, last)?
            }
        });
    }
    let required: BTreeSet<_> = fields.iter().filter(|field| field.required).map(|field| field.id).collect();
    let identifiers: Vec<_> = known.identifier_field_ids().filter(|id| required.contains(id)).collect();
    let builder = Schema::builder().with_schema_id(known.schema_id()).with_fields(fields);
    built(builder.with_identifier_field_ids(identifiers).build())
}

/// A known column with the type and the nullability of `after`; `None` where its files could not be read as that.
fn kept(known: &NestedField, after: &Field) -> Option<NestedFieldRef> {
    let same = arrow_type(&known.field_type).as_ref() == Some(after.data_type());
    let field_type = match same {
        true => known.field_type.as_ref().clone(),
        false => iceberg_type(after).ok().filter(|wider| widens(&known.field_type, wider))?,
    };
    let kept =
        NestedField { required: !after.is_nullable(), field_type: Box::new(field_type), ..known.clone() };
    Some(Arc::new(kept))
}

/// Whether Iceberg reads files with a column of a type as if it had the other, see "Schema Evolution" in the
/// specification.
fn widens(from: &Type, to: &Type) -> bool {
    match (from, to) {
        (Type::Primitive(from), Type::Primitive(to)) => match (from, to) {
            (PrimitiveType::Int, PrimitiveType::Long) | (PrimitiveType::Float, PrimitiveType::Double) => true,
            (
                PrimitiveType::Decimal { precision, scale },
                PrimitiveType::Decimal { precision: wider, scale: same },
            ) => precision <= wider && scale == same,
            _ => false,
        },
        _ => false,
    }
}

fn new_field(field: &Field, id: i32) -> Result<NestedFieldRef> {
    Ok(Arc::new(NestedField::new(id, field.name(), iceberg_type(field)?, !field.is_nullable())))
}

fn built(schema: iceberg::Result<Schema>) -> Result<Schema> {
    schema.map_err(|e| Error::invalid("Iceberg does not have the columns").with_source(e))
}

fn refused(field: &Field, data_type: &DataType) -> Error {
    Error::invalid(format!("column `{}` is {data_type}, which is not written to Iceberg here", field.name()))
        .with_advice("cast it to a boolean, number, text, binary, date or timestamp, or leave it out")
}

/// The type that Iceberg has for the values of a column, where several layouts of Arrow may have the same.
fn iceberg_type(field: &Field) -> Result<Type> {
    let of = |data_type: &DataType| primitive(data_type).map(Type::Primitive);
    of(field.data_type()).ok_or_else(|| refused(field, field.data_type()))
}

fn primitive(data_type: &DataType) -> Option<PrimitiveType> {
    use DataType as T;
    Some(match data_type {
        T::Boolean => PrimitiveType::Boolean,
        T::Int8 | T::Int16 | T::Int32 | T::UInt8 | T::UInt16 => PrimitiveType::Int,
        T::Int64 | T::UInt32 => PrimitiveType::Long,
        T::Float32 => PrimitiveType::Float,
        T::Float64 => PrimitiveType::Double,
        T::Decimal32(precision, scale) | T::Decimal64(precision, scale) | T::Decimal128(precision, scale) => {
            let scale = u8::try_from(*scale).ok().filter(|scale| scale <= precision)?;
            PrimitiveType::Decimal { precision: (*precision).into(), scale: scale.into() }
        }
        T::Date32 | T::Date64 => PrimitiveType::Date,
        T::Time32(_) | T::Time64(_) => PrimitiveType::Time,
        T::Timestamp(TimeUnit::Nanosecond, None) => PrimitiveType::TimestampNs,
        T::Timestamp(TimeUnit::Nanosecond, Some(_)) => PrimitiveType::TimestamptzNs,
        T::Timestamp(_, None) => PrimitiveType::Timestamp,
        T::Timestamp(_, Some(_)) => PrimitiveType::Timestamptz,
        T::Utf8 | T::LargeUtf8 | T::Utf8View => PrimitiveType::String,
        T::Binary | T::LargeBinary | T::BinaryView => PrimitiveType::Binary,
        T::FixedSizeBinary(width) => PrimitiveType::Fixed(u64::try_from(*width).ok()?),
        T::Dictionary(_, values) => primitive(values)?,
        T::RunEndEncoded(_, values) => primitive(values.data_type())?,
        _ => return None,
    })
}

fn arrow_field(field: &NestedField) -> Option<Field> {
    Some(Field::new(&field.name, arrow_type(&field.field_type)?, !field.required))
}

fn arrow_type(of: &Type) -> Option<DataType> {
    let fields =
        |fields: &[NestedFieldRef]| fields.iter().map(|f| arrow_field(f)).collect::<Option<Fields>>();
    Some(match of {
        Type::Primitive(of) => arrow_primitive(of)?,
        Type::Struct(of) => DataType::Struct(fields(of.fields())?),
        Type::List(of) => DataType::List(Arc::new(arrow_field(&of.element_field)?)),
        Type::Map(of) => {
            let pair = DataType::Struct(fields(&[of.key_field.clone(), of.value_field.clone()])?);
            DataType::Map(Arc::new(Field::new(PAIRS, pair, false)), false)
        }
    })
}

fn arrow_primitive(of: &PrimitiveType) -> Option<DataType> {
    let zone = || Some(ZONE.into());
    Some(match of {
        PrimitiveType::Boolean => DataType::Boolean,
        PrimitiveType::Int => DataType::Int32,
        PrimitiveType::Long => DataType::Int64,
        PrimitiveType::Float => DataType::Float32,
        PrimitiveType::Double => DataType::Float64,
        PrimitiveType::Decimal { precision, scale } => {
            DataType::Decimal128(u8::try_from(*precision).ok()?, i8::try_from(*scale).ok()?)
        }
        PrimitiveType::Date => DataType::Date32,
        PrimitiveType::Time => DataType::Time64(TimeUnit::Microsecond),
        PrimitiveType::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, None),
        PrimitiveType::Timestamptz => DataType::Timestamp(TimeUnit::Microsecond, zone()),
        PrimitiveType::TimestampNs => DataType::Timestamp(TimeUnit::Nanosecond, None),
        PrimitiveType::TimestamptzNs => DataType::Timestamp(TimeUnit::Nanosecond, zone()),
        PrimitiveType::String => DataType::Utf8,
        PrimitiveType::Uuid => DataType::FixedSizeBinary(16),
        PrimitiveType::Fixed(width) => DataType::FixedSizeBinary(i32::try_from(*width).ok()?),
        PrimitiveType::Binary => DataType::Binary,
    })
}

#[cfg(test)]
mod tests;
