//! Staging: rows stream into data files that no version has, guarded and profiled on the way.

use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use iceberg::spec::DataFile;
use reprocess_core::Result;
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::ports::reader::RowStream;
use reprocess_core::ports::writer::{Intent, MergeKeys, Rows, StageRequest, Staged, Visibility};
use reprocess_lake::merge as merges;
use reprocess_lake::placement::folder_name;
use reprocess_lake::sets::folder_of_set;
use reprocess_lake::stage;

use super::encode::{DataFiles, Layout, paths};
use super::merge::{self, Incoming};
use super::query;
use crate::shadow::{self, Content, Set};
use crate::table::IcebergTable;
use crate::view::View;
use crate::{columns, features};

pub(super) async fn stage(table: &IcebergTable, request: &StageRequest, rows: Rows) -> Result<Staged> {
    stage::check(request, &table.spec().partitioning)?;
    let view = table.latest().await?;
    features::check_write(&view, matches!(request.intent, Intent::Merge(_)))?;
    if matches!(request.visibility, Visibility::Shadow(_)) {
        features::check_refs(&view)?;
    }
    let (declared, stream) = match rows {
        Rows::Stream { schema, stream } => (schema, stream),
        Rows::Query(query) => query::run(table, &query).await?,
    };
    let after = columns_after(&view, &declared, request.schema)?;
    let schema = schema_of(&view, &request.visibility, &after)?;
    let work = Work { table, view: &view, request, after, schema };
    let (staged, content) = match &request.intent {
        Intent::Merge(by) => work.merge(by, stream).await?,
        Intent::Replace | Intent::ReplaceDynamic => work.replace(stream).await?,
    };
    let set = Set { staged, content };
    set.keep(view.there()?.files.folder()).await?;
    show(table, &set).await?;
    Ok(set.staged)
}

/// Lets every engine see a set that is part of a shadow.
pub(super) async fn show(table: &IcebergTable, set: &Set) -> Result<()> {
    match set.staged.visibility {
        Visibility::Shadow(_) => shadow::branch::show(table, set).await,
        Visibility::Direct => Ok(()),
    }
}

/// The columns that the table has after the commit of rows with declared ones.
fn columns_after(view: &View, declared: &Schema, policy: SchemaPolicy) -> Result<SchemaRef> {
    let after = stage::columns(view.schema(), declared, policy)?;
    stage::check_types(&after, columns::kept_as)?;
    features::check_new(view, &after)?;
    Ok(after)
}

/// The same columns with the ids that they will have. Two sets of a shadow that add a column add the same one.
pub(super) fn schema_of(
    view: &View,
    visibility: &Visibility,
    after: &Schema,
) -> Result<iceberg::spec::Schema> {
    let there = view.there()?;
    let known = match visibility {
        Visibility::Direct => Arc::clone(&there.columns),
        Visibility::Shadow(backfill) => shadow::branch::columns(view, backfill)?,
    };
    columns::extended(&known, there.loaded.metadata.last_column_id(), after)
}

/// What one request comes to on a version of the table.
struct Work<'a> {
    table: &'a IcebergTable,
    view: &'a Arc<View>,
    request: &'a StageRequest,
    /// The columns of the table afterwards.
    after: SchemaRef,
    schema: iceberg::spec::Schema,
}

impl Work<'_> {
    async fn replace(&self, stream: RowStream) -> Result<(Staged, Content)> {
        let folder = folder_name(&self.request.id.short());
        let layout = Layout::of_table(self.table, self.view, &self.schema, &folder)?;
        let (staged, added) = self.write(layout, stream).await?;
        Ok((staged, Content::new(self.view, &self.schema, &added, None)?))
    }

    async fn merge(&self, by: &MergeKeys, stream: RowStream) -> Result<(Staged, Content)> {
        merges::check(by, &self.after)?;
        let folder = folder_of_set(&self.request.id);
        let layout = Layout::beside(self.table, self.view, &self.schema, &folder)?;
        let (staged, files) = self.write(layout, stream).await?;
        let incoming = Incoming { columns: &self.schema, files: &files };
        let (scope, id) = (&self.request.scope, &self.request.id);
        match merge::merge(self.table, self.view, scope, by, &self.schema, incoming, id).await {
            Ok(merge::Merged { removes, on, added }) => {
                Ok((staged, Content::new(self.view, &self.schema, &added, Some((files, removes, on)))?))
            }
            Err(e) => {
                self.remove(&files).await;
                Err(e)
            }
        }
    }

    /// Guards, profiles and writes all rows.
    async fn write(&self, layout: Layout, stream: RowStream) -> Result<(Staged, Vec<DataFile>)> {
        let (partitioning, sink) = (&self.table.spec().partitioning, DataFiles::new(layout));
        stage::write(self.request, partitioning, &self.after, sink, stream, |_| Ok(())).await
    }

    /// Removes files that nobody knows of. What stays is an orphan.
    async fn remove(&self, files: &[DataFile]) {
        let removed = match self.view.there() {
            Ok(there) => there.files.remove(paths(files)).await,
            Err(e) => Err(e),
        };
        if let Err(e) = removed {
            let table = &self.table.spec().id;
            tracing::warn!(error = %e, %table, "files that nobody needs could not be removed");
        }
    }
}
