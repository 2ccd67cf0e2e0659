//! What metadata tells of the values of a column, in a file and in the files of a manifest.

use chrono::{DateTime, Duration, NaiveDate, NaiveTime, Utc};
use iceberg::spec::{
    DataContentType, DataFile, Datum, FieldSummary, Literal, PartitionField, PartitionSpec, PrimitiveLiteral,
    PrimitiveType, Schema, Transform, Type,
};
use reprocess_core::domain::value::Value;
use reprocess_core::{Error, ErrorKind, Result};

use super::Column;
use super::reach::Span;

/// The year that transforms count from.
const EPOCH: i32 = 1970;

/// The values of a column in a file; `None` where nothing is known of them.
pub(super) fn of_file(
    column: &Column,
    spec: &PartitionSpec,
    schema: &Schema,
    file: &DataFile,
) -> Result<Option<Span>> {
    let Some(known) = schema.field_by_id(column.id) else {
        // There was no such column when the manifest was written, unless its statistics say otherwise.
        let has_not = is_data(file) && !file.value_counts().contains_key(&column.id);
        return Ok(column.before.clone().filter(|_| has_not).map(Span::one));
    };
    let Type::Primitive(of) = known.field_type.as_ref() else { return Ok(None) };
    let bounds = of_bounds(column.id, file);
    let Some((place, field)) = field_of(spec, column.id) else { return Ok(bounds) };
    let value = file.partition().fields().get(place).ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, "a file of the table has other partition values than its spec")
            .with_context("spec", spec.spec_id())
    })?;
    let told = match value {
        None => Some(Span::one(Value::Null)),
        Some(Literal::Primitive(value)) => values(field.transform, of, value)
            .map(|(least, most)| Span { values: Some((least, most)), null: false }),
        Some(_) => None,
    };
    Ok(match told {
        // Bounds may be cut short, and tell no more than the value itself.
        Some(told) if told.single().is_some() => Some(told),
        Some(told) => Some(told.narrowed(bounds)),
        None => bounds,
    })
}

fn is_data(file: &DataFile) -> bool {
    file.content_type() == DataContentType::Data
}

/// The values of a column in the files of a manifest; `None` where nothing is known of them.
pub(super) fn of_summaries(
    column: &Column,
    spec: &PartitionSpec,
    summaries: &[FieldSummary],
) -> Option<Span> {
    let (place, field) = field_of(spec, column.id)?;
    let summary = summaries.get(place)?;
    let Ok(Type::Primitive(of)) = field.transform.result_type(&Type::Primitive(column.of.clone())) else {
        return None;
    };
    let end = |bytes: &[u8]| Datum::try_from_bytes(bytes, of.clone()).ok().map(PrimitiveLiteral::from);
    let values = match (&summary.lower_bound, &summary.upper_bound) {
        (Some(lower), Some(upper)) => {
            let lower = match end(lower)? {
                // The period before, for the sake of writers that put instants before 1970 into the one after theirs.
                PrimitiveLiteral::Int(number) if number <= 0 && field.transform != Transform::Identity => {
                    PrimitiveLiteral::Int(number.checked_sub(1)?)
                }
                lower => lower,
            };
            let least = values(field.transform, &column.of, &lower)?.0;
            Some((least, values(field.transform, &column.of, &end(upper)?)?.1))
        }
        (None, None) if summary.contains_null => None,
        _ => return None,
    };
    Some(Span { values, null: summary.contains_null })
}

/// The field of a spec that tells most of a column, and its place.
pub(super) fn field_of(spec: &PartitionSpec, column: i32) -> Option<(usize, &PartitionField)> {
    let fineness = |transform| match transform {
        Transform::Identity => Some(0),
        Transform::Hour => Some(1),
        Transform::Day => Some(2),
        Transform::Month => Some(3),
        Transform::Year => Some(4),
        // The others keep no order that could be told from, or nothing at all.
        _ => None,
    };
    let fields = spec.fields().iter().enumerate().filter(|(_, field)| field.source_id == column);
    let fields = fields.filter_map(|(place, field)| Some((fineness(field.transform)?, place, field)));
    fields.min_by_key(|(fineness, place, _)| (*fineness, *place)).map(|(_, place, field)| (place, field))
}

/// What the statistics of a file say. Those of deletes say nothing of the rows that go.
fn of_bounds(column: i32, file: &DataFile) -> Option<Span> {
    if !is_data(file) {
        return None;
    }
    let nulls = file.null_value_counts().get(&column);
    if nulls.is_some_and(|nulls| *nulls > 0 && *nulls == file.record_count()) {
        return Some(Span::one(Value::Null));
    }
    let end = |bound: &Datum| value(bound.data_type(), bound.literal());
    let least = file.lower_bounds().get(&column).and_then(end)?;
    let most = file.upper_bounds().get(&column).and_then(end)?;
    (least <= most).then(|| Span { values: Some((least, most)), null: nulls.is_none_or(|nulls| *nulls > 0) })
}

/// The least and the greatest value of a column that a partition value stands for.
fn values(transform: Transform, of: &PrimitiveType, value_of: &PrimitiveLiteral) -> Option<(Value, Value)> {
    if transform == Transform::Identity {
        let value = value(of, value_of)?;
        return Some((value.clone(), value));
    }
    let PrimitiveLiteral::Int(number) = value_of else { return None };
    let (first, next) = (start(transform, *number)?, start(transform, number.checked_add(1)?)?);
    match of {
        PrimitiveType::Date if transform != Transform::Hour => {
            Some((Value::Date(first.date_naive()), Value::Date(next.date_naive().pred_opt()?)))
        }
        PrimitiveType::Timestamp | PrimitiveType::Timestamptz => {
            let last = next.checked_sub_signed(Duration::nanoseconds(1))?;
            Some((Value::Timestamp(first), Value::Timestamp(last)))
        }
        _ => None,
    }
}

/// The first instant of the period with a number, counted from the one in which 1970 began.
fn start(transform: Transform, number: i32) -> Option<DateTime<Utc>> {
    let date = match transform {
        Transform::Year => NaiveDate::from_ymd_opt(EPOCH.checked_add(number)?, 1, 1)?,
        Transform::Month => {
            let month = u32::try_from(number.rem_euclid(12)).ok()? + 1;
            NaiveDate::from_ymd_opt(EPOCH + number.div_euclid(12), month, 1)?
        }
        Transform::Day => date(number)?,
        Transform::Hour => return DateTime::from_timestamp(i64::from(number) * 3600, 0),
        _ => return None,
    };
    Some(date.and_time(NaiveTime::MIN).and_utc())
}

fn date(days: i32) -> Option<NaiveDate> {
    NaiveDate::default().checked_add_signed(Duration::days(days.into()))
}

/// A value of Iceberg as one of ours; `None` where no partition has it.
pub(super) fn value(of: &PrimitiveType, value: &PrimitiveLiteral) -> Option<Value> {
    Some(match (of, value) {
        (PrimitiveType::Boolean, PrimitiveLiteral::Boolean(value)) => Value::Boolean(*value),
        (PrimitiveType::Int | PrimitiveType::Long, PrimitiveLiteral::Int(value)) => {
            Value::Integer(i64::from(*value))
        }
        (PrimitiveType::Long, PrimitiveLiteral::Long(value)) => Value::Integer(*value),
        (PrimitiveType::String, PrimitiveLiteral::String(value)) => Value::Text(value.clone()),
        (PrimitiveType::Date, PrimitiveLiteral::Int(days)) => Value::Date(date(*days)?),
        (PrimitiveType::Timestamp | PrimitiveType::Timestamptz, PrimitiveLiteral::Long(micros)) => {
            Value::Timestamp(DateTime::from_timestamp_micros(*micros)?)
        }
        _ => return None,
    })
}
