//! Whether the dimensions of a table are told from the partition values of its files.

use iceberg::spec::{Literal, NestedFieldRef, PartitionSpec, PrimitiveType, Schema, Transform, Type};
use reprocess_core::domain::interval::{Calendar, Grain};
use reprocess_core::domain::partition::Dimension;
use reprocess_core::domain::value::{Value, ValueKind};
use reprocess_core::{Error, ErrorKind, Result};

use super::{Column, told};

/// Names of zones whose local time is UTC and always was.
const UTC: [&str; 12] = [
    "UTC",
    "Etc/UTC",
    "UCT",
    "Etc/UCT",
    "Universal",
    "Etc/Universal",
    "Zulu",
    "Etc/Zulu",
    "GMT",
    "Etc/GMT",
    "Etc/GMT0",
    "Etc/Greenwich",
];

pub(super) fn is_utc(zone: &str) -> bool {
    UTC.contains(&zone)
}

/// The column of a dimension. Refuses a spec by which a file could hold rows of several partitions.
pub(super) fn column(dimension: &Dimension, schema: &Schema, spec: &PartitionSpec) -> Result<Column> {
    let (field, of) = field(dimension, schema)?;
    let name = dimension.column();
    let Some((_, by)) = told::field_of(spec, field.id) else {
        return Err(Error::invalid(format!("the table is not partitioned by the dimension `{name}`"))
            .with_advice(
                "a file of it could hold rows of several partitions; make the dimension a partition field",
            ));
    };
    match dimension {
        Dimension::Key { .. } => check_key(name, of, by.transform)?,
        Dimension::Time { calendar, .. } => check_time(name, calendar, of, by.transform)?,
    }
    let before = match &field.initial_default {
        None => Some(Value::Null),
        Some(Literal::Primitive(value)) => told::value(of, value),
        Some(_) => None,
    };
    Ok(Column { id: field.id, of: of.clone(), before })
}

/// The column of a dimension and its type. Refuses a type that cannot have its values.
pub(super) fn field<'a>(
    dimension: &Dimension,
    schema: &'a Schema,
) -> Result<(&'a NestedFieldRef, &'a PrimitiveType)> {
    let name = dimension.column();
    let columns = schema.as_struct();
    let Some(field) = columns.field_by_name(name) else {
        let known: Vec<_> = columns.fields().iter().map(|field| field.name.as_str()).collect();
        return Err(Error::invalid(format!("the table has no column for the dimension `{name}`"))
            .with_advice(format!("its columns are: {}", known.join(", "))));
    };
    let Some((of, kind)) = kind(&field.field_type) else {
        let message = format!("the column of the dimension `{name}` is {}", field.field_type);
        return Err(Error::new(ErrorKind::Unsupported, message)
            .with_advice("partition by booleans, integers, texts, dates or timestamps"));
    };
    match dimension {
        Dimension::Key { kind: wanted, .. } if *wanted == kind => Ok((field, of)),
        Dimension::Key { kind: wanted, .. } => {
            Err(Error::invalid(format!("the dimension `{name}` is a {wanted}, and the column a {kind}")))
        }
        Dimension::Time { .. } if kind == ValueKind::Timestamp => Ok((field, of)),
        Dimension::Time { calendar, .. } if kind == ValueKind::Date && calendar.grain != Grain::Hour => {
            Ok((field, of))
        }
        Dimension::Time { calendar, .. } => {
            Err(Error::invalid(format!("no {calendar} can be told from the column `{name}`, a {kind}"))
                .with_advice(
                    "the time column holds timestamps, or local dates where the grain is a day or more",
                ))
        }
    }
}

fn kind(of: &Type) -> Option<(&PrimitiveType, ValueKind)> {
    let of = of.as_primitive_type()?;
    let kind = match of {
        PrimitiveType::Boolean => ValueKind::Boolean,
        PrimitiveType::Int | PrimitiveType::Long => ValueKind::Integer,
        PrimitiveType::String => ValueKind::Text,
        PrimitiveType::Date => ValueKind::Date,
        PrimitiveType::Timestamp | PrimitiveType::Timestamptz => ValueKind::Timestamp,
        _ => return None,
    };
    Some((of, kind))
}

fn check_key(name: &str, of: &PrimitiveType, by: Transform) -> Result<()> {
    // Each day is a period of its own.
    if by == Transform::Identity || (by == Transform::Day && *of == PrimitiveType::Date) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the table is partitioned by {by}(`{name}`), and the dimension by its values"
    ))
    .with_advice(format!("partition by `{name}` itself")))
}

fn check_time(name: &str, calendar: &Calendar, of: &PrimitiveType, by: Transform) -> Result<()> {
    let of_dates = *of == PrimitiveType::Date;
    if by == Transform::Identity {
        return Ok(());
    }
    if !of_dates && calendar.grain != Grain::Hour && !is_utc(calendar.zone.name()) {
        return Err(Error::invalid(format!(
            "the table is partitioned by {by}(`{name}`), and a transform in UTC cannot serve a {calendar}"
        ))
        .with_advice("partition by a column of local dates"));
    }
    let fine = match by {
        Transform::Hour => true,
        Transform::Day => calendar.grain >= Grain::Day,
        Transform::Month => calendar.grain >= Grain::Month,
        Transform::Year => calendar.grain >= Grain::Year,
        _ => false,
    };
    if fine {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "no {calendar} can be told from {by}(`{name}`), by which the table is partitioned"
    ))
    .with_advice("partition by periods that are as short as those of the dimension"))
}
