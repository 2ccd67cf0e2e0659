//! Columns of rows against columns of the table.

use std::sync::Arc;

use arrow_array::{Array, RecordBatch, new_null_array};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{Field, Schema, SchemaRef};

use super::request::SchemaPolicy;
use crate::error::{Error, Result};

/// The columns of the table once the rows are committed. Names and types must be those of the table, in any order;
/// nullability is a matter of the values, see [`check_nulls`]. Columns that the policy does not allow are refused by name.
pub fn resolve(table: &SchemaRef, rows: &Schema, policy: SchemaPolicy) -> Result<SchemaRef> {
    if policy == SchemaPolicy::Rebuild {
        let same = differences(table, rows).is_empty() && differences(rows, table).is_empty();
        return Ok(if same { table.clone() } else { Arc::new(rows.clone()) });
    }
    let missing = differences(table, rows);
    if !missing.is_empty() {
        return Err(refuse(&missing, table));
    }
    let added: Vec<_> =
        rows.fields().iter().filter(|field| table.field_with_name(field.name()).is_err()).collect();
    match policy {
        _ if added.is_empty() => Ok(table.clone()),
        SchemaPolicy::AddNullable => {
            let mut fields: Vec<Field> = table.fields().iter().map(|field| field.as_ref().clone()).collect();
            fields.extend(added.iter().map(|field| field.as_ref().clone().with_nullable(true)));
            Ok(Arc::new(Schema::new_with_metadata(fields, table.metadata().clone())))
        }
        _ => Err(refuse(
            &added.iter().map(|f| format!("`{}` is no column of it", f.name())).collect::<Vec<_>>(),
            table,
        )),
    }
}

/// In words, what columns of one schema the other lacks or has with another type.
fn differences(wanted: &Schema, has: &Schema) -> Vec<String> {
    let differs = |field: &Arc<Field>| match has.field_with_name(field.name()) {
        Err(_) => Some(format!("`{}` is missing", field.name())),
        Ok(other) if other.data_type() != field.data_type() => {
            Some(format!("`{}` is {}, not {}", field.name(), other.data_type(), field.data_type()))
        }
        Ok(_) => None,
    };
    wanted.fields().iter().filter_map(differs).collect()
}

fn refuse(differences: &[String], table: &Schema) -> Error {
    let columns: Vec<_> = table.fields().iter().map(|f| format!("{} {}", f.name(), f.data_type())).collect();
    Error::invalid(format!("the rows have other columns than the table: {}", differences.join(", ")))
        .with_advice(format!("its columns are: {}", columns.join(", ")))
}

/// Refuses NULL in columns that take none.
pub fn check_nulls(table: &Schema, rows: &RecordBatch) -> Result<()> {
    for field in table.fields().iter().filter(|field| !field.is_nullable()) {
        let nulls = rows.column_by_name(field.name()).map_or(0, |array| array.logical_null_count());
        if nulls > 0 {
            return Err(Error::invalid(format!(
                "column `{}` takes no NULL, and is NULL in {nulls} of {} rows",
                field.name(),
                rows.num_rows()
            )));
        }
    }
    Ok(())
}

/// The batch with these columns: in their order, a missing one as NULL, another one left out, each cast to its type.
/// Refuses what a type cannot hold.
pub fn conform(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let columns = schema.fields().iter().map(|field| match batch.column_by_name(field.name()) {
        Some(array) if array.data_type() == field.data_type() => Ok(Arc::clone(array)),
        Some(array) => cast_with_options(array, field.data_type(), &options),
        None => Ok(new_null_array(field.data_type(), batch.num_rows())),
    });
    let columns = columns.collect::<Result<Vec<_>, _>>();
    columns
        .and_then(|columns| RecordBatch::try_new(Arc::clone(schema), columns))
        .map_err(|e| Error::invalid("the rows do not fit the columns of the table").with_source(e))
}
