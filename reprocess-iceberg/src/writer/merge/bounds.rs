//! Which files can hold a key, by what their entries say of their values.

use std::collections::BTreeMap;

use datafusion::common::ScalarValue;
use iceberg::spec::{Datum, PrimitiveLiteral, PrimitiveType, Schema};

use crate::view::File;

/// The files that can hold a key of the incoming rows, which lie between ends. A key without ends says nothing.
pub(super) fn candidates<'a>(
    files: Vec<&'a File>,
    columns: &Schema,
    ends: &BTreeMap<String, (ScalarValue, ScalarValue)>,
) -> Vec<&'a File> {
    let mut candidates = files;
    for (key, (least, most)) in ends {
        let (Some(least), Some(most)) = (Bound::of(least), Bound::of(most)) else { continue };
        let Some(id) = columns.as_struct().field_by_name(key).map(|field| field.id) else { continue };
        candidates.retain(|file| {
            let data = &file.entry.file;
            let from = data.lower_bounds().get(&id).and_then(Bound::of_datum);
            let to = data.upper_bounds().get(&id).and_then(Bound::of_datum);
            !(from.is_some_and(|from| from.is_after(&most)) || to.is_some_and(|to| least.is_after(&to)))
        });
    }
    candidates
}

/// A value that can be told apart from others. Floats and UUIDs are none: NaN is beside their bounds, and engines do not
/// agree on the order of UUIDs.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
enum Bound {
    Bool(bool),
    Integer(i64),
    /// Unscaled, and its scale.
    Decimal(i8, i128),
    Days(i32),
    Nanos(i128),
    Text(String),
    Bytes(Vec<u8>),
}

impl Bound {
    /// Of values of two kinds nothing can be said.
    fn is_after(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Decimal(scale, a), Self::Decimal(same, b)) => scale == same && a > b,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other) && self > other,
        }
    }

    fn of(value: &ScalarValue) -> Option<Self> {
        Some(match value {
            ScalarValue::Boolean(Some(b)) => Self::Bool(*b),
            ScalarValue::Int32(Some(i)) => Self::Integer((*i).into()),
            ScalarValue::Int64(Some(i)) => Self::Integer(*i),
            ScalarValue::Decimal128(Some(unscaled), _, scale) => Self::Decimal(*scale, *unscaled),
            ScalarValue::Date32(Some(days)) => Self::Days(*days),
            ScalarValue::TimestampMicrosecond(Some(micros), _) => Self::Nanos(i128::from(*micros) * 1_000),
            ScalarValue::TimestampNanosecond(Some(nanos), _) => Self::Nanos((*nanos).into()),
            ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)) => Self::Text(text.clone()),
            ScalarValue::Binary(Some(bytes)) | ScalarValue::BinaryView(Some(bytes)) => {
                Self::Bytes(bytes.clone())
            }
            ScalarValue::FixedSizeBinary(_, Some(bytes)) => Self::Bytes(bytes.clone()),
            _ => return None,
        })
    }

    fn of_datum(bound: &Datum) -> Option<Self> {
        Some(match (bound.data_type(), bound.literal()) {
            (PrimitiveType::Boolean, PrimitiveLiteral::Boolean(b)) => Self::Bool(*b),
            (PrimitiveType::Int, PrimitiveLiteral::Int(i)) => Self::Integer((*i).into()),
            (PrimitiveType::Long, PrimitiveLiteral::Long(i)) => Self::Integer(*i),
            (PrimitiveType::Decimal { scale, .. }, PrimitiveLiteral::Int128(unscaled)) => {
                Self::Decimal(i8::try_from(*scale).ok()?, *unscaled)
            }
            (PrimitiveType::Date, PrimitiveLiteral::Int(days)) => Self::Days(*days),
            (PrimitiveType::Timestamp | PrimitiveType::Timestamptz, PrimitiveLiteral::Long(micros)) => {
                Self::Nanos(i128::from(*micros) * 1_000)
            }
            (PrimitiveType::TimestampNs | PrimitiveType::TimestamptzNs, PrimitiveLiteral::Long(nanos)) => {
                Self::Nanos((*nanos).into())
            }
            (PrimitiveType::String, PrimitiveLiteral::String(text)) => Self::Text(text.clone()),
            (PrimitiveType::Binary | PrimitiveType::Fixed(_), PrimitiveLiteral::Binary(bytes)) => {
                Self::Bytes(bytes.clone())
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
