//! Partitions: which partition of ours a file of Iceberg belongs to, and what a table is partitioned by.

mod check;
mod reach;
mod told;

use iceberg::spec::{
    DataFile, FieldSummary, PartitionSpec, PartitionSpecRef, PrimitiveType, Schema, TableMetadata, Transform,
    UnboundPartitionSpec,
};
use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::partition::{Dimension, PartitionKey, Partitioning};
use reprocess_core::domain::value::Value;
use reprocess_core::{Error, Result};

pub(crate) use self::reach::Reach;
use self::reach::Span;
use crate::view::Wanted;

/// The dimensions of a table, and how they are told from the partition values of its files.
#[derive(Clone, Debug)]
pub(crate) struct Partitions {
    dimensions: Partitioning,
    spec: PartitionSpecRef,
    /// Of each dimension, in their order.
    columns: Vec<Column>,
}

/// The column of a dimension, as Iceberg knows it.
#[derive(Clone, Debug)]
struct Column {
    id: i32,
    of: PrimitiveType,
    /// What the rows of files have that were written before there was the column; `None` where that is no value of a
    /// partition.
    before: Option<Value>,
}

/// Where a file's rows lie.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Placed {
    /// All of them in one partition.
    In(PartitionKey),
    /// In several, or it cannot be told: its spec is an older one that does not divide the dimensions, and its bounds do
    /// not show that they lie in one.
    Among(Reach),
}

impl Partitions {
    /// Refuses a table whose default spec lets a file hold rows of several partitions, and dimensions that cannot be
    /// told from it, with advice.
    pub(crate) fn new(dimensions: &Partitioning, metadata: &TableMetadata) -> Result<Self> {
        let (schema, spec) = (metadata.current_schema(), metadata.default_partition_spec());
        let columns = dimensions.dimensions().iter().map(|dimension| check::column(dimension, schema, spec));
        Ok(Self {
            columns: columns.collect::<Result<_>>()?,
            dimensions: dimensions.clone(),
            spec: spec.clone(),
        })
    }

    /// The spec that new files are written by: the default one.
    pub(crate) fn spec(&self) -> &PartitionSpecRef {
        &self.spec
    }

    pub(crate) fn dimensions(&self) -> &Partitioning {
        &self.dimensions
    }

    /// Where the rows of a file lie, which was written by a spec for columns of a schema.
    pub(crate) fn place(&self, spec: &PartitionSpec, schema: &Schema, file: &DataFile) -> Result<Placed> {
        let spans = self.parts().map(|(dimension, column)| {
            let span = told::of_file(column, spec, schema, file)
                .map_err(|e| e.with_context("file", file.file_path()))?;
            Ok(span.and_then(|span| keyed(dimension, &span)))
        });
        let spans = spans.collect::<Result<Vec<_>>>()?;
        let mut key = PartitionKey::whole();
        for (dimension, span) in self.dimensions.dimensions().iter().zip(&spans) {
            let Some(value) = span.as_ref().and_then(Span::single) else {
                return Ok(Placed::Among(Reach::new(&self.dimensions, spans)));
            };
            key = key.and(dimension.column(), value.clone());
        }
        Ok(Placed::In(key))
    }

    /// Whether a manifest of a spec with these summaries of partition values may name a file that is wanted. Errs on
    /// `true`.
    pub(crate) fn may_name(
        &self,
        spec: &PartitionSpec,
        summaries: Option<&[FieldSummary]>,
        wanted: &Wanted,
    ) -> bool {
        let Some(summaries) = summaries.filter(|summaries| summaries.len() == spec.fields().len()) else {
            return true;
        };
        let spans = self.parts().map(|(dimension, column)| {
            let span = told::of_summaries(column, spec, summaries)?;
            keyed(dimension, &span)
        });
        wanted.may_reach(&Reach::new(&self.dimensions, spans.collect()))
    }

    fn parts(&self) -> impl Iterator<Item = (&Dimension, &Column)> {
        self.dimensions.dimensions().iter().zip(&self.columns)
    }
}

/// The values of a column as those of keys; `None` where not all of them have one.
fn keyed(dimension: &Dimension, span: &Span) -> Option<Span> {
    let key = |value: &Value| match (dimension, value) {
        (Dimension::Time { calendar, .. }, Value::Date(date)) => calendar.key_of_date(*date),
        (Dimension::Time { calendar, .. }, Value::Timestamp(instant)) => calendar.key_at(*instant),
        (Dimension::Key { kind, .. }, value) => (value.kind() == Some(*kind)).then(|| value.clone()),
        _ => None,
    };
    let values = match &span.values {
        None => None,
        Some((least, most)) if least == most => {
            let only = key(least)?;
            Some((only.clone(), only))
        }
        // Periods follow each other as the dates and instants in them do.
        Some((least, most)) => Some((key(least)?, key(most)?)),
    };
    Some(Span { values, null: span.null })
}

/// What a new table with these dimensions is partitioned by: each by its own column, and that by periods where it has
/// more values than the dimension.
pub(crate) fn spec_for(dimensions: &Partitioning, schema: &Schema) -> Result<UnboundPartitionSpec> {
    // Servers refuse a spec without an id.
    let mut spec = UnboundPartitionSpec::builder().with_spec_id(0);
    for dimension in dimensions.dimensions() {
        let (field, of) = check::field(dimension, schema)?;
        let transform = transform_for(dimension, of);
        let mut name = match transform {
            Transform::Identity => field.name.clone(),
            transform => format!("{}_{transform}", field.name),
        };
        while transform != Transform::Identity && schema.field_id_by_name(&name).is_some() {
            name.push('_');
        }
        spec = spec.add_partition_field(field.id, name, transform).map_err(of_spec)?;
    }
    let spec = spec.build();
    let bound = spec.clone().bind(schema.clone()).map_err(of_spec)?;
    for dimension in dimensions.dimensions() {
        check::column(dimension, schema, &bound)?;
    }
    Ok(spec)
}

fn of_spec(error: iceberg::Error) -> Error {
    Error::invalid("the table cannot be partitioned by its dimensions").with_source(error)
}

fn transform_for(dimension: &Dimension, of: &PrimitiveType) -> Transform {
    let Dimension::Time { calendar, .. } = dimension else { return Transform::Identity };
    match (calendar.grain, of) {
        (Grain::Hour, _) => Transform::Hour,
        (Grain::Day | Grain::Week, PrimitiveType::Date) => Transform::Identity,
        (Grain::Day | Grain::Week, _) => Transform::Day,
        (Grain::Month | Grain::Quarter, _) => Transform::Month,
        (Grain::Year, _) => Transform::Year,
    }
}

#[cfg(test)]
mod tests;
