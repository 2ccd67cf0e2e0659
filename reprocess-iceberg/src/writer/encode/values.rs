//! The partition values of rows, as the transforms of a spec give them.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use arrow_array_58::cast::AsArray;
use arrow_array_58::types::{
    Date32Type, Int32Type, Int64Type, TimestampMicrosecondType, TimestampNanosecondType,
};
use arrow_array_58::{ArrayRef, Date32Array, Int32Array, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow_schema_58::{DataType, Field, TimeUnit};
use chrono::{Days, NaiveDate};
use iceberg::arrow::arrow_primitive_to_literal;
use iceberg::spec::{
    Literal, PartitionSpec, PrimitiveLiteral, PrimitiveType, Schema, Struct, Transform, Type,
};
use iceberg::transform::create_transform_function;
use reprocess_core::domain::rows::Column;
use reprocess_core::domain::value::Value;
use reprocess_core::{Error, Result};
use reprocess_lake::placement::part;

use crate::bridge;
use crate::error::{Doing, broken_promise};

const WHAT: &str = "compute partition values";
const HOURS_PER_DAY: i64 = 24;

/// The values of one partition, in the order of the fields of a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key(Vec<Option<PrimitiveLiteral>>);

impl Key {
    /// As a file names it.
    pub(super) fn of(values: &Struct) -> Self {
        Self(values.iter().map(|value| value.and_then(Literal::as_primitive_literal)).collect())
    }

    /// As files name them.
    pub(super) fn values(&self) -> Struct {
        self.0.iter().map(|value| value.clone().map(Literal::Primitive)).collect()
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        // Values of one field are of one type, and those are always comparable.
        self.0.partial_cmp(&other.0).unwrap_or(Ordering::Equal)
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// How the partition values of rows are computed.
#[derive(Clone, Debug, Default)]
pub(super) struct Values {
    fields: Vec<PartitionField>,
}

#[derive(Clone, Debug)]
struct PartitionField {
    name: String,
    /// `None` for a field that was dropped from a spec, whose value is NULL.
    source: Option<Source>,
}

#[derive(Clone, Debug)]
struct Source {
    /// Of the column among those of the files.
    place: usize,
    transform: Transform,
    /// Of the values.
    result: Type,
}

impl Values {
    /// By a spec, of files with columns of a schema.
    pub(super) fn new(spec: &PartitionSpec, schema: &Schema) -> Result<Self> {
        let columns = schema.as_struct().fields();
        let field = |field: &iceberg::spec::PartitionField| {
            let source = match field.transform {
                Transform::Void => None,
                transform => {
                    let place =
                        columns.iter().position(|column| column.id == field.source_id).ok_or_else(|| {
                            Error::invalid("the table is partitioned by a column that the rows do not have")
                                .with_context("partition_field", &field.name)
                                .with_advice("keep the column and its type, or partition the table anew")
                        })?;
                    let result = transform.result_type(&columns[place].field_type).doing(WHAT)?;
                    Some(Source { place, transform, result })
                }
            };
            Ok(PartitionField { name: field.name.clone(), source })
        };
        Ok(Self { fields: spec.fields().iter().map(field).collect::<Result<_>>()? })
    }

    /// The partitions of a batch, each with the run of consecutive rows that lie in it; one comes again where its rows do
    /// not stand together.
    pub(super) fn runs(&self, rows: &RecordBatch) -> Result<Vec<(Key, Range<usize>)>> {
        let computed = self.compute(rows)?;
        let columns = comparable(&computed)?;
        let begins = |row: &usize| {
            *row == 0 || columns.iter().any(|column| column.cell(*row) != column.cell(*row - 1))
        };
        let starts: Vec<_> = (0..rows.num_rows()).filter(begins).collect();
        let ends = starts.iter().skip(1).copied().chain([rows.num_rows()]);
        let run = |(start, end): (&usize, usize)| Ok((self.key(&computed, *start)?, *start..end));
        starts.iter().zip(ends).map(run).collect()
    }

    /// The values of every row, for the fields that have a source.
    fn compute(&self, rows: &RecordBatch) -> Result<Vec<ArrayRef>> {
        let sources = self.fields.iter().filter_map(|field| field.source.as_ref());
        sources.map(|source| transformed(&source.transform, rows.column(source.place)).doing(WHAT)).collect()
    }

    fn key(&self, computed: &[ArrayRef], row: usize) -> Result<Key> {
        let mut computed = computed.iter();
        let value = |field: &PartitionField| match field
            .source
            .as_ref()
            .and_then(|source| Some((source, computed.next()?)))
        {
            Some((source, values)) => {
                let value = arrow_primitive_to_literal(&values.slice(row, 1), &source.result).doing(WHAT)?;
                Ok(value.into_iter().next().flatten().and_then(|value| value.as_primitive_literal()))
            }
            None => Ok(None),
        };
        Ok(Key(self.fields.iter().map(value).collect::<Result<_>>()?))
    }

    /// The folders of a partition, one for each field.
    pub(super) fn folders(&self, key: &Key) -> Vec<String> {
        let fields = self.fields.iter().zip(&key.0);
        let value = |field: &PartitionField, value: &Option<PrimitiveLiteral>| match (&field.source, value) {
            (Some(source), Some(value)) => shown(&source.result, value),
            _ => Value::Null,
        };
        fields.map(|(field, literal)| part(&field.name, &value(field, literal))).collect()
    }
}

/// A partition value for people who look at folders.
fn shown(of: &Type, value: &PrimitiveLiteral) -> Value {
    let date = |days: i32| {
        let distance = Days::new(days.unsigned_abs().into());
        let epoch = NaiveDate::default();
        if days < 0 { epoch.checked_sub_days(distance) } else { epoch.checked_add_days(distance) }
    };
    match (of, value) {
        (_, PrimitiveLiteral::Boolean(b)) => Value::Boolean(*b),
        (Type::Primitive(PrimitiveType::Date), PrimitiveLiteral::Int(days)) => {
            date(*days).map_or_else(|| Value::Integer((*days).into()), Value::Date)
        }
        (_, PrimitiveLiteral::Int(i)) => Value::Integer((*i).into()),
        (Type::Primitive(PrimitiveType::Long), PrimitiveLiteral::Long(i)) => Value::Integer(*i),
        (_, PrimitiveLiteral::String(text)) => Value::Text(text.clone()),
        (_, other) => Value::Text(format!("{other:?}")),
    }
}

/// Arrays as columns whose values can be compared.
fn comparable(arrays: &[ArrayRef]) -> Result<Vec<Column>> {
    if arrays.is_empty() {
        return Ok(Vec::new());
    }
    let fields = arrays.iter().zip(0..).map(|(array, place): (_, usize)| {
        Arc::new(Field::new(place.to_string(), array.data_type().clone(), true))
    });
    let fields: Vec<_> = fields.collect();
    let batch = RecordBatch::try_new(Arc::new(arrow_schema_58::Schema::new(fields)), arrays.to_vec())
        .map_err(|e| broken_promise("partition values are no columns", e))?;
    let ours = bridge::from_iceberg(&batch)?;
    let named = ours.schema();
    named.fields().iter().zip(ours.columns()).map(|(field, array)| Column::new(field.name(), array)).collect()
}

/// The values of a transform.
///
/// Those of time are computed here: the ones of `iceberg` 0.10 are a day off for some instants before 1970, and do not know
/// hours of nanoseconds. So are those that truncate integers, which overflow there, and buckets of nanoseconds, which are
/// rounded the wrong way there before 1970.
fn transformed(transform: &Transform, values: &ArrayRef) -> iceberg::Result<ArrayRef> {
    let found = match transform {
        Transform::Identity => Some(Arc::clone(values)),
        Transform::Year | Transform::Month | Transform::Day | Transform::Hour => periods(transform, values),
        Transform::Truncate(width) => truncated(*width, values),
        Transform::Bucket(_) => match values.data_type() {
            DataType::Timestamp(TimeUnit::Nanosecond, _) => {
                let nanos = values.as_primitive::<TimestampNanosecondType>();
                let micros: TimestampMicrosecondArray = nanos.unary(|nanos| nanos.div_euclid(1_000));
                Some(create_transform_function(transform)?.transform(Arc::new(micros))?)
            }
            _ => None,
        },
        _ => None,
    };
    match found {
        Some(found) => Ok(found),
        None => create_transform_function(transform)?.transform(Arc::clone(values)),
    }
}

/// Integers rounded down to multiples of a width; `None` for other types.
fn truncated(width: u32, values: &ArrayRef) -> Option<ArrayRef> {
    let width = i64::from(width);
    let below = |value: i64| value.wrapping_sub(value.checked_rem_euclid(width).unwrap_or(0));
    match values.data_type() {
        DataType::Int32 => {
            let narrow = |value: i32| {
                let rest = i64::from(value).checked_rem_euclid(width).unwrap_or(0);
                value.wrapping_sub(i32::try_from(rest).unwrap_or(0))
            };
            let found: Int32Array = values.as_primitive::<Int32Type>().unary(narrow);
            Some(Arc::new(found))
        }
        DataType::Int64 => {
            let found: Int64Array = values.as_primitive::<Int64Type>().unary(below);
            Some(Arc::new(found))
        }
        _ => None,
    }
}

/// The periods since 1970 in which dates or instants lie; `None` for other types.
fn periods(transform: &Transform, values: &ArrayRef) -> Option<ArrayRef> {
    // In hours, so that one number serves all of them.
    let hours: Int64Array = match values.data_type() {
        DataType::Date32 => values.as_primitive::<Date32Type>().unary(|days| i64::from(days) * HOURS_PER_DAY),
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            values.as_primitive::<TimestampMicrosecondType>().unary(|v| v.div_euclid(3_600_000_000))
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            values.as_primitive::<TimestampNanosecondType>().unary(|v| v.div_euclid(3_600_000_000_000))
        }
        _ => return None,
    };
    let narrow = |period: i64| i32::try_from(period).unwrap_or(if period < 0 { i32::MIN } else { i32::MAX });
    let day = |hours: i64| hours.div_euclid(HOURS_PER_DAY);
    let found: Int32Array = match transform {
        Transform::Hour => hours.unary(narrow),
        Transform::Day => {
            let days: Date32Array = hours.unary(|hours| narrow(day(hours)));
            return Some(Arc::new(days));
        }
        Transform::Month => hours.unary(|hours| narrow(month_of(day(hours)))),
        Transform::Year => hours.unary(|hours| narrow(month_of(day(hours)).div_euclid(12))),
        _ => return None,
    };
    Some(Arc::new(found))
}

/// Months since January 1970 of a day since 1970, by the calculation of Howard Hinnant: years begin in March there, so that
/// the day of a leap year comes last.
fn month_of(days: i64) -> i64 {
    const DAYS_PER_400_YEARS: i64 = 146_097;
    let since_march_of_0 = days + 719_468;
    let era = since_march_of_0.div_euclid(DAYS_PER_400_YEARS);
    let day_of_era = since_march_of_0.rem_euclid(DAYS_PER_400_YEARS);
    let year = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let months_since_0 = (era * 400 + year) * 12 + month_from_march + 2;
    months_since_0 - 1_970 * 12
}

#[cfg(test)]
mod tests;
