//! Reading files: those of a version through the library, staged ones directly.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;
use buoyant_kernel::expressions::Scalar;
use deltalake::datafile::DataFileReader;
use deltalake::datafile::reader::ParquetFileReader;
use deltalake::datafusion::catalog::TableProvider;
use deltalake::datafusion::physical_plan::execute_stream;
use deltalake::delta_datafusion::{DeltaScanNext, FileSelection};
use deltalake::kernel::Add;
use futures::{StreamExt, TryStreamExt, stream};
use indexmap::IndexMap;
use reprocess_core::Result;
use reprocess_core::domain::schema;
use reprocess_core::ports::reader::RowStream;
use reprocess_lake::session::conformed;

use crate::error::{Doing, broken_promise};
use crate::partitions::Partitions;
use crate::table::DeltaTable;
use crate::view::{File, View, path_of};

/// The rows of live files as a table of DataFusion, with a column of file names where one is asked for.
pub(crate) async fn provider(
    table: &DeltaTable,
    view: &View,
    files: &[&File],
    file_column: Option<&str>,
) -> Result<Arc<dyn TableProvider>> {
    let adds = files.iter().map(|file| file.add());
    let mut builder = DeltaScanNext::builder()
        .with_log_store(Arc::clone(table.log()))
        .with_eager_snapshot(Arc::clone(view.snapshot()?))
        .with_file_selection(FileSelection::from_adds(adds));
    if let Some(column) = file_column {
        builder = builder.with_file_column(column);
    }
    Ok(Arc::new(builder.build().await.doing("look at files of the table")?))
}

/// The rows of live files of a version, with its columns.
pub(crate) async fn committed(table: &DeltaTable, view: &View, files: &[&File]) -> Result<RowStream> {
    if files.is_empty() {
        return Ok(stream::empty().boxed());
    }
    let what = "read files of the table";
    let provider = provider(table, view, files, None).await?;
    let state = table.session().state();
    let plan = provider.scan(&state, None, &[], None).await.doing(what)?;
    let rows = execute_stream(plan, state.task_ctx()).doing(what)?;
    Ok(conformed(rows, Arc::clone(view.schema()), what))
}

/// The rows of files that we wrote and that no version has yet, with the columns of a schema; those that the files do not
/// have are NULL.
pub(crate) fn staged(
    table: &DeltaTable,
    partitions: &Partitions,
    schema: &SchemaRef,
    adds: &[Add],
) -> Result<RowStream> {
    let reader = ParquetFileReader::new(Arc::clone(table.folder().store()));
    let files = adds
        .iter()
        .map(|add| Ok((path_of(add), partitions.scalars(&partitions.values(&add.partition_values)?)?)));
    let files = files.collect::<Result<Vec<_>>>()?;
    let schema = Arc::clone(schema);
    let rows = stream::iter(files).map(Ok).and_then(move |(path, values)| {
        let (reader, schema) = (reader.clone(), Arc::clone(&schema));
        async move {
            let what = "read a staged file";
            let rows = reader.read_file(path).await.doing(what)?;
            Ok(rows.map(move |batch| schema::conform(&with_values(&batch.doing(what)?, &values)?, &schema)))
        }
    });
    Ok(rows.try_flatten().boxed())
}

/// The rows of a file with its partition columns, which are not in it.
fn with_values(batch: &RecordBatch, values: &IndexMap<String, Scalar>) -> Result<RecordBatch> {
    let known = batch.schema();
    let mut columns: Vec<(&str, ArrayRef, bool)> = Vec::new();
    for (field, array) in known.fields().iter().zip(batch.columns()) {
        columns.push((field.name(), Arc::clone(array), true));
    }
    for (name, value) in values {
        let array = value.to_array(batch.num_rows());
        columns.push((name, array.map_err(|e| broken_promise("a partition value has no array", e))?, true));
    }
    RecordBatch::try_from_iter_with_nullable(columns)
        .map_err(|e| broken_promise("a staged file cannot be read", e))
}
