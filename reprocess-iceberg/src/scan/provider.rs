//! Live files as a table of DataFusion.

use std::fmt;
use std::sync::Arc;

use arrow_array::{RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::error::{DataFusionError, Result as QueryResult};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, SendableRecordBatchStream};
use futures::{StreamExt, TryStreamExt, stream};
use reprocess_core::Result;
use reprocess_core::domain::schema::conform;
use reprocess_core::ports::reader::RowStream;

use super::Scan;
use super::parquet::batch_of;
use crate::view::{File, View};

/// How many parts are read at once.
const PARTS: usize = 2;

/// Live files of a version, with the columns of a schema and perhaps one of the files' paths, which is the last.
#[derive(Debug)]
pub(super) struct Live {
    view: Arc<View>,
    files: Arc<[File]>,
    schema: SchemaRef,
    file_column: Option<String>,
}

impl Live {
    pub(super) fn new(
        view: &Arc<View>,
        files: Vec<File>,
        schema: &SchemaRef,
        file_column: Option<&str>,
    ) -> Self {
        let file = file_column.map(|name| Arc::new(Field::new(name, DataType::Utf8, false)));
        let fields: Vec<_> = schema.fields().iter().cloned().chain(file).collect();
        Self {
            view: Arc::clone(view),
            files: files.into(),
            schema: Arc::new(Schema::new(fields)),
            file_column: file_column.map(str::to_owned),
        }
    }
}

#[async_trait]
impl TableProvider for Live {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> QueryResult<Arc<dyn ExecutionPlan>> {
        let schema = match projection {
            Some(places) => Arc::new(self.schema.project(places)?),
            None => Arc::clone(&self.schema),
        };
        let each = self.files.len().div_ceil(PARTS).max(1);
        let parts = (0..self.files.len().max(1)).step_by(each).map(|first| {
            let last = first.saturating_add(each).min(self.files.len());
            let (view, files) = (Arc::clone(&self.view), Arc::clone(&self.files));
            let (schema, file_column) = (Arc::clone(&schema), self.file_column.clone());
            Arc::new(Part { view, files, of: first..last, schema, file_column }) as Arc<dyn PartitionStream>
        });
        let parts: Vec<_> = parts.collect();
        Ok(Arc::new(StreamingTableExec::try_new(schema, parts, None, [], false, limit)?))
    }
}

/// Some of the files, and the columns that are asked for.
struct Part {
    view: Arc<View>,
    files: Arc<[File]>,
    of: std::ops::Range<usize>,
    schema: SchemaRef,
    file_column: Option<String>,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part").field("of", &self.of).field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Part {
    fn rows(&self) -> Result<RowStream> {
        let Some(there) = self.view.known() else { return Ok(stream::empty().boxed()) };
        let (schema, file_column) = (Arc::clone(&self.schema), self.file_column.clone());
        let asked = |name: &str| file_column.as_deref() != Some(name) && schema.field_with_name(name).is_ok();
        let scan = Scan::of(there, self.view.schema(), asked)?;
        let tasks = scan.tasks(there, self.files.get(self.of.clone()).unwrap_or_default())?;
        let file_column = file_column.filter(|name| schema.field_with_name(name).is_ok());
        Ok(scan.shaped(tasks, move |path, batch| shaped(batch, &schema, file_column.as_deref(), path)))
    }
}

impl PartitionStream for Part {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let rows = self.rows().unwrap_or_else(|e| stream::once(async { Err(e) }).boxed());
        let rows = rows.map_err(|e| DataFusionError::External(Box::new(e)));
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows))
    }
}

/// Rows of a file with the columns that are asked for, in their order.
fn shaped(
    batch: RecordBatch,
    schema: &SchemaRef,
    file_column: Option<&str>,
    path: &str,
) -> Result<RecordBatch> {
    let rows = batch.num_rows();
    let batch = match file_column {
        Some(name) => {
            let file = Arc::new(Field::new(name, DataType::Utf8, false));
            let fields: Vec<_> = batch.schema().fields().iter().cloned().chain([file]).collect();
            let paths = StringArray::from_iter_values(std::iter::repeat_n(path, rows));
            let (_, mut arrays, _) = batch.into_parts();
            arrays.push(Arc::new(paths));
            batch_of(&Arc::new(Schema::new(fields)), arrays, rows)?
        }
        None => batch,
    };
    if schema.fields().is_empty() {
        return batch_of(schema, Vec::new(), rows);
    }
    conform(&batch, schema)
}
