//! What queries and merges of a table run in, and rows as tables of DataFusion.

use std::fmt;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::catalog::{
    CatalogProvider, CatalogProviderList, MemoryCatalogProvider, MemoryCatalogProviderList,
    MemorySchemaProvider, TableProvider,
};
use datafusion::error::DataFusionError;
use datafusion::execution::context::SessionContext;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionStateBuilder, TaskContext};
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::SessionConfig;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use reprocess_core::Result;
use reprocess_core::domain::schema;
use reprocess_core::ports::reader::RowStream;

use crate::error::Doing;

/// A rule of DataFusion 55 that is left out: of an outer join of two tables with columns of one name it pushes `IS NULL`
/// of the one into the scan of the other, where whole row groups are then passed over. Conditions still reach scans by the
/// logical plan.
const WRONG_RULE: &str = "FilterPushdown";

/// What queries and merges of a table run in, with as much memory as its settings allow.
pub fn session(memory_bytes: usize) -> Result<SessionContext> {
    let pool = Arc::new(FairSpillPool::new(memory_bytes));
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc().doing("set up queries")?;
    let settings = SessionConfig::new().with_information_schema(false);
    Ok(SessionContext::new_with_config_rt(settings, runtime))
}

/// A session with the functions, settings and memory of another, and without its tables.
pub fn without_tables(session: &SessionContext) -> SessionContext {
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

/// A stream of DataFusion as one of ours, with the types of a schema.
pub fn conformed(rows: SendableRecordBatchStream, schema: SchemaRef, what: &'static str) -> RowStream {
    rows.map(move |batch| schema::conform(&batch.doing(what)?, &schema)).boxed()
}

/// Rows that can be read again and again, as a table of DataFusion.
pub fn streamed(
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

#[cfg(test)]
mod tests {
    use arrow_schema::{Field, Schema};
    use reprocess_core::{Error, ErrorKind};

    use super::*;
    use crate::testing::{MON, TUE, batch, columns, lines_of, stream};

    #[tokio::test]
    async fn rows_are_read_again_for_each_query() {
        let rows = || async { Ok(stream(vec![batch(&[(MON, 1, None)]), batch(&[(TUE, 2, None)])])) }.boxed();
        let session = session(1 << 20).unwrap();
        session.register_table("s", streamed(columns(), rows).unwrap()).unwrap();
        let sql = "SELECT a.id FROM s AS a JOIN s AS b ON a.id = b.id + 1";
        let found = session.sql(sql).await.unwrap().execute_stream().await.unwrap();
        let schema = found.schema();
        assert_eq!(lines_of(conformed(found, schema, "read")).await, ["2"]);
    }

    #[tokio::test]
    async fn an_error_of_a_stream_is_the_error_of_the_query() {
        let broken = || async { Err(Error::new(ErrorKind::PinBroken, "gone")) }.boxed();
        let session = session(1 << 20).unwrap();
        session.register_table("s", streamed(columns(), broken).unwrap()).unwrap();
        let found = session.sql("SELECT id FROM s").await.unwrap().execute_stream().await.unwrap();
        let rows = conformed(found, columns(), "read").try_collect::<Vec<_>>().await;
        assert_eq!(rows.unwrap_err().kind(), ErrorKind::PinBroken);
    }

    #[tokio::test]
    async fn settings_stay_and_tables_do_not() {
        let config = SessionConfig::new().with_batch_size(17);
        let host = SessionContext::new_with_config(config);
        host.register_batch("theirs", batch(&[])).unwrap();
        let ours = without_tables(&host);
        assert_eq!(ours.state().config().batch_size(), 17);
        assert!(ours.table("theirs").await.is_err());
        ours.register_batch("ours", batch(&[])).unwrap();
        assert!(host.table("ours").await.is_err());
    }

    /// Of rows without a match in an outer join the columns of the other side are NULL, also where both have the same
    /// names: the reason for a rule that is left out.
    #[tokio::test]
    async fn rows_without_a_match_are_found_by_null() {
        let session = without_tables(&SessionContext::new());
        let field = |name: &str| Field::new(name, arrow_schema::DataType::Int64, true);
        let schema = Arc::new(Schema::new(vec![field("id"), field("x")]));
        let rows = |ids: Vec<i64>| {
            let ids: arrow_array::ArrayRef = Arc::new(arrow_array::Int64Array::from(ids));
            arrow_array::RecordBatch::try_new(Arc::clone(&schema), vec![Arc::clone(&ids), ids]).unwrap()
        };
        session.register_batch("s", rows(vec![1])).unwrap();
        session.register_batch("t", rows(vec![1, 2])).unwrap();
        let sql = "SELECT t.id, t.x FROM s RIGHT JOIN t ON s.id = t.id WHERE s.id IS NULL";
        let found = session.sql(sql).await.unwrap().execute_stream().await.unwrap();
        assert_eq!(lines_of(conformed(found, Arc::clone(&schema), "read")).await, ["2 2"]);
    }
}
