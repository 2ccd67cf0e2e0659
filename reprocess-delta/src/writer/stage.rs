//! Staging: rows stream into data files that no version has, guarded and profiled on the way.

use std::collections::BTreeSet;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema, SchemaRef};
use deltalake::kernel::Add;
use futures::TryStreamExt;
use reprocess_core::domain::profile::ScopeProfiler;
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::rows::{CellKind, partition_runs};
use reprocess_core::domain::schema;
use reprocess_core::ports::reader::RowStream;
use reprocess_core::ports::writer::{Intent, Rows, StageRequest, Staged};
use reprocess_core::{Error, Result};

use super::encode::{Encoder, Layout, parts_of};
use super::{merge, query};
use crate::features::{self, Constraints};
use crate::shadow::{Files, Manifest, Merged, staged_folder};
use crate::table::DeltaTable;
use crate::view::View;

pub(super) async fn stage(table: &DeltaTable, request: &StageRequest, rows: Rows) -> Result<Staged> {
    let partitioning = &table.spec().partitioning;
    for key in request.scope.partitions() {
        partitioning.check_key(&key)?;
    }
    if request.schema == SchemaPolicy::Rebuild
        && !(request.scope.is_whole_table() && request.intent == Intent::Replace)
    {
        return Err(Error::invalid("only a replace of the whole table rebuilds it with other columns"));
    }
    let view = table.latest().await?;
    features::check(&view, matches!(request.intent, Intent::Merge(_)))?;
    let (declared, stream) = match rows {
        Rows::Stream { schema, stream } => (schema, stream),
        Rows::Query(query) => query::run(table, &query).await?,
    };
    let columns = staged_columns(view.schema(), &declared, request.schema)?;
    features::check_new(&view, &columns)?;
    if let Intent::Merge(by) = &request.intent {
        merge::check(by, &columns)?;
    }
    let manifest = match &request.intent {
        Intent::Merge(by) => {
            let folder = staged_folder(&request.id);
            let beside = Layout::beside(table, &columns, folder);
            let (staged, incoming) = write(table, &view, request, &columns, beside, stream).await?;
            let merged =
                merge::merge(table, &view, &request.scope, by, &columns, &incoming, &request.id).await;
            let (merged, adds) = match merged {
                Ok(merged) => merged,
                Err(e) => {
                    remove(table, &incoming).await;
                    return Err(e);
                }
            };
            Manifest::new(staged, Files { adds, merged: Some(Merged { incoming, ..merged }) }, &view)?
        }
        Intent::Replace | Intent::ReplaceDynamic => {
            let layout = Layout::of_table(table, &view, &columns, &request.id.short())?;
            let (staged, adds) = write(table, &view, request, &columns, layout, stream).await?;
            Manifest::new(staged, Files { adds, merged: None }, &view)?
        }
    };
    manifest.keep(table).await?;
    Ok(manifest.staged)
}

/// The columns that the files have: those of the rows, in the order and with the types that the table has after the commit.
fn staged_columns(table: &SchemaRef, declared: &SchemaRef, policy: SchemaPolicy) -> Result<SchemaRef> {
    let fields = declared.fields().iter().map(|field| {
        let known = table.field_with_name(field.name()).ok().filter(|_| policy != SchemaPolicy::Rebuild);
        let data_type = match known {
            Some(known) if same_values(field.data_type(), known.data_type()) => known.data_type().clone(),
            _ => plain(field.data_type()).clone(),
        };
        field.as_ref().clone().with_data_type(data_type)
    });
    let declared = Schema::new(fields.collect::<Vec<_>>());
    let after = schema::resolve(table, &declared, policy)?;
    check_types(&after)?;
    Ok(after)
}

/// Whether the two types are layouts of the same values.
fn same_values(a: &DataType, b: &DataType) -> bool {
    plain(a) == plain(b)
        || matches!((a, b), (DataType::Timestamp(x, Some(_)), DataType::Timestamp(y, Some(_))) if x == y)
}

/// The type that the table has for a type that is only another layout.
fn plain(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::LargeUtf8 | DataType::Utf8View => &DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView => &DataType::Binary,
        DataType::Dictionary(_, values) => plain(values),
        other => other,
    }
}

/// Refuses columns that Delta would keep as another type, and those that cannot be compared.
pub(super) fn check_types(columns: &Schema) -> Result<()> {
    for field in columns.fields() {
        let kept = super::schema::kept_as(field)?;
        if kept.data_type() != field.data_type() {
            return Err(Error::invalid(format!(
                "column `{}` is {}, which the table would keep as {}",
                field.name(),
                field.data_type(),
                kept.data_type()
            ))
            .with_advice("cast it before"));
        }
        if CellKind::of(field.data_type()).is_none() {
            return Err(Error::invalid(format!(
                "column `{}` is {}, which cannot be compared",
                field.name(),
                field.data_type()
            )));
        }
    }
    Ok(())
}

/// Guards, profiles and writes all rows.
async fn write(
    table: &DeltaTable,
    view: &View,
    request: &StageRequest,
    columns: &SchemaRef,
    layout: Layout,
    mut stream: RowStream,
) -> Result<(Staged, Vec<Add>)> {
    let partitioning = &table.spec().partitioning;
    let constraints = Constraints::of(view, table.session(), columns)?;
    let mut profiler = ScopeProfiler::new(partitioning, &request.scope, columns, &request.profile)?;
    let mut received = BTreeSet::new();
    let encoder = Encoder::start(layout);
    let mut guard = |batch: &RecordBatch| {
        staged_columns(columns, &batch.schema(), SchemaPolicy::Refuse)?;
        let batch = schema::conform(batch, columns)?;
        schema::check_nulls(columns, &batch)?;
        profiler.push(&batch)?;
        constraints.check(&batch)?;
        received.extend(partition_runs(partitioning, &batch)?.into_iter().map(|(key, _)| key));
        Ok(batch)
    };
    let filled = async {
        while let Some(batch) = stream.try_next().await? {
            if batch.num_rows() == 0 {
                guard(&batch)?;
            }
            for part in parts_of(&batch) {
                encoder.push(&guard(&part)?).await?;
            }
        }
        Ok(())
    }
    .await;
    if let Err(e) = filled {
        encoder.give_up().await;
        return Err(e);
    }
    let adds = encoder.finish().await?;
    Ok((request.staged(columns, received, profiler.finish())?, adds))
}

/// Removes files that nobody knows of. What stays is an orphan that a full `VACUUM` takes away.
pub(super) async fn remove(table: &DeltaTable, files: &[Add]) {
    if let Err(e) = table.folder().remove(files.iter().map(crate::view::path_of).collect()).await {
        tracing::warn!(error = %e, table = %table.spec().id, "files that nobody needs could not be removed");
    }
}
