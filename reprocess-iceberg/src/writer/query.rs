//! Queries over pinned inputs, run by DataFusion.

use arrow_schema::SchemaRef;
use futures::FutureExt;
use reprocess_core::Result;
use reprocess_core::ports::reader::RowStream;
use reprocess_core::ports::writer::Query;
use reprocess_lake::query;

use crate::table::IcebergTable;

/// The rows of a query. Inputs that are Iceberg tables of ours are read by files, with the columns that the query needs.
pub(super) async fn run(table: &IcebergTable, query: &Query) -> Result<(SchemaRef, RowStream)> {
    query::run(table.session(), query, |input| {
        async move {
            let Some(table) = query::own::<IcebergTable>(input) else { return Ok(None) };
            table.overlaid(&input.staged, &input.pin).await?.provider().await.map(Some)
        }
        .boxed()
    })
    .await
}
