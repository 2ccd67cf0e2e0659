//! Staging: rows stream into data files that no version has, guarded and profiled on the way.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use deltalake::datafusion::catalog::TableProvider;
use deltalake::kernel::Add;
use futures::FutureExt;
use futures::future::BoxFuture;
use reprocess_core::Result;
use reprocess_core::ports::reader::{PinnedInput, RowStream};
use reprocess_core::ports::writer::{Intent, MergeKeys, Rows, StageRequest, Staged};
use reprocess_lake::{query, sets, stage};

use super::encode::{Files as Written, Layout};
use super::{merge, schema};
use crate::features::{self, Constraints};
use crate::shadow::{Content, Files, Merged, Set};
use crate::table::DeltaTable;
use crate::view::View;

pub(super) async fn stage(table: &DeltaTable, request: &StageRequest, rows: Rows) -> Result<Staged> {
    stage::check(request, &table.spec().partitioning)?;
    let view = table.latest().await?;
    features::check(&view, matches!(request.intent, Intent::Merge(_)))?;
    let (declared, stream) = match rows {
        Rows::Stream { schema, stream } => (schema, stream),
        Rows::Query(query) => query::run(table.session(), &query, known).await?,
    };
    let columns = stage::columns(view.schema(), &declared, request.schema)?;
    check_types(&columns)?;
    features::check_new(&view, &columns)?;
    let (staged, files) = match &request.intent {
        Intent::Merge(by) => merged(table, &view, request, by, &columns, stream).await?,
        Intent::Replace | Intent::ReplaceDynamic => {
            let layout = Layout::of_table(table, &view, &columns, &request.id.short())?;
            let (staged, adds) = write(table, &view, request, &columns, layout, stream).await?;
            (staged, Files { adds, merged: None })
        }
    };
    let set = Set { content: Content::new(files, &view)?, staged };
    set.keep(table.folder()).await?;
    Ok(set.staged)
}

/// Writes the rows that come beside the table, and merges them with what is there.
async fn merged(
    table: &DeltaTable,
    view: &View,
    request: &StageRequest,
    by: &MergeKeys,
    columns: &SchemaRef,
    stream: RowStream,
) -> Result<(Staged, Files)> {
    reprocess_lake::merge::check(by, columns)?;
    let beside = Layout::beside(table, columns, sets::folder_of_set(&request.id));
    let (staged, incoming) = write(table, view, request, columns, beside, stream).await?;
    match merge::merge(table, view, &request.scope, by, columns, &incoming, &request.id).await {
        Ok((merged, adds)) => Ok((staged, Files { adds, merged: Some(Merged { incoming, ..merged }) })),
        Err(e) => {
            remove(table, &incoming).await;
            Err(e)
        }
    }
}

/// An input that is a table of ours as files, so that a query reads the columns and row groups that it needs.
fn known(input: &PinnedInput) -> BoxFuture<'_, Result<Option<Arc<dyn TableProvider>>>> {
    async move {
        let Some(table) = query::own::<DeltaTable>(input) else { return Ok(None) };
        table.overlaid(&input.staged, &input.pin).await?.provider().await.map(Some)
    }
    .boxed()
}

/// Refuses columns that Delta would keep as another type, and those that cannot be compared.
pub(super) fn check_types(columns: &Schema) -> Result<()> {
    stage::check_types(columns, schema::kept_as)
}

/// Guards, profiles and writes all rows.
async fn write(
    table: &DeltaTable,
    view: &View,
    request: &StageRequest,
    columns: &SchemaRef,
    layout: Layout,
    stream: RowStream,
) -> Result<(Staged, Vec<Add>)> {
    let constraints = Constraints::of(view, table.session(), columns)?;
    let check = |rows: &RecordBatch| constraints.check(rows);
    stage::write(request, &table.spec().partitioning, columns, Written::new(layout), stream, check).await
}

/// Removes files that nobody knows of. What stays is an orphan that a full `VACUUM` takes away.
pub(super) async fn remove(table: &DeltaTable, files: &[Add]) {
    if let Err(e) = table.folder().remove(files.iter().map(crate::view::path_of).collect()).await {
        tracing::warn!(error = %e, table = %table.spec().id, "files that nobody needs could not be removed");
    }
}
