//! Reading files: those of a version through the library, staged ones directly; and what queries run in.

use std::fmt;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;
use buoyant_kernel::expressions::Scalar;
use deltalake::datafile::DataFileReader;
use deltalake::datafile::reader::ParquetFileReader;
use deltalake::datafusion::catalog::streaming::StreamingTable;
use deltalake::datafusion::catalog::{
    CatalogProvider, CatalogProviderList, MemoryCatalogProvider, MemoryCatalogProviderList,
    MemorySchemaProvider, TableProvider,
};
use deltalake::datafusion::error::DataFusionError;
use deltalake::datafusion::execution::context::SessionContext;
use deltalake::datafusion::execution::memory_pool::FairSpillPool;
use deltalake::datafusion::execution::runtime_env::RuntimeEnvBuilder;
use deltalake::datafusion::execution::{SessionStateBuilder, TaskContext};
use deltalake::datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use deltalake::datafusion::physical_plan::streaming::PartitionStream;
use deltalake::datafusion::physical_plan::{SendableRecordBatchStream, execute_stream};
use deltalake::datafusion::prelude::SessionConfig;
use deltalake::delta_datafusion::{DeltaScanNext, FileSelection};
use deltalake::kernel::Add;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use indexmap::IndexMap;
use reprocess_core::Result;
use reprocess_core::domain::schema;
use reprocess_core::ports::reader::RowStream;

use crate::config::DeltaConfig;
use crate::error::{Doing, broken_promise};
use crate::partitions::Partitions;
use crate::table::DeltaTable;
use crate::view::{File, View, path_of};

/// A rule of DataFusion 55 that is left out: of an outer join of two tables with columns of one name it pushes `IS NULL`
/// of the one into the scan of the other, where whole row groups are then passed over. Conditions still reach scans by the
/// logical plan.
const WRONG_RULE: &str = "FilterPushdown";

/// What queries and merges of a table run in, with as much memory as its settings allow.
pub(crate) fn session(config: &DeltaConfig) -> Result<SessionContext> {
    let pool = Arc::new(FairSpillPool::new(config.memory_bytes));
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc().doing("set up queries")?;
    let settings = SessionConfig::new().with_information_schema(false);
    Ok(SessionContext::new_with_config_rt(settings, runtime))
}

/// A session with the functions, settings and memory of another, and without its tables.
pub(crate) fn without_tables(session: &SessionContext) -> SessionContext {
    let (schema, catalog, catalogs) =
        (MemorySchemaProvider::new(), MemoryCatalogProvider::new(), MemoryCatalogProviderList::new());
    let state = session.state();
    let names = &state.config_options().catalog;
    // Neither can fail, since both are empty.
    let _ = catalog.register_schema(&names.default_schema, Arc::new(schema));
    catalogs.register_catalog(names.default_catalog.clone(), Arc::new(catalog));
    let rules = state.physical_optimizers().iter().filter(|rule| !rule.name().starts_with(WRONG_RULE));
    let rules = rules.cloned().collect();
    let state = SessionStateBuilder::new_from_existing(state)
        .with_catalog_list(Arc::new(catalogs))
        .with_physical_optimizer_rules(rules)
        .build();
    SessionContext::new_with_state(state)
}

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

/// A stream of DataFusion as one of ours, with the types of a schema.
pub(crate) fn conformed(rows: SendableRecordBatchStream, schema: SchemaRef, what: &'static str) -> RowStream {
    rows.map(move |batch| schema::conform(&batch.doing(what)?, &schema)).boxed()
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

/// Rows that can be read again and again, as a table of DataFusion.
pub(crate) fn streamed(
    schema: SchemaRef,
    rows: impl Fn() -> BoxFuture<'static, Result<RowStream>> + Send + Sync + 'static,
) -> Result<Arc<dyn TableProvider>> {
    let part = Arc::new(Part { schema: Arc::clone(&schema), rows: Box::new(rows) });
    Ok(Arc::new(StreamingTable::try_new(schema, vec![part]).doing("look at rows as a table")?))
}

struct Part {
    schema: SchemaRef,
    rows: Box<dyn Fn() -> BoxFuture<'static, Result<RowStream>> + Send + Sync>,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl PartitionStream for Part {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let schema = Arc::clone(&self.schema);
        let rows = (self.rows)().into_stream().try_flatten();
        let rows = rows.map(move |batch| schema::conform(&batch?, &schema));
        let rows = rows.map_err(|e| DataFusionError::External(Box::new(e)));
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows))
    }
}
