//! Queries over pinned inputs, run by DataFusion.

use std::any::Any;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use chrono::NaiveDate;
use deltalake::datafusion::catalog::TableProvider;
use deltalake::datafusion::common::{ScalarValue, TableReference};
use deltalake::datafusion::execution::context::SQLOptions;
use deltalake::datafusion::logical_expr::LogicalPlan;
use futures::FutureExt;
use reprocess_core::domain::value::Value;
use reprocess_core::ports::reader::{PinnedInput, RowStream};
use reprocess_core::ports::writer::Query;
use reprocess_core::{Error, ErrorKind, Result};

use crate::error::Doing;
use crate::scan;
use crate::table::DeltaTable;

/// The rows of a query. Its inputs are tables of their names, its parameters are written as `:name`; nothing else can be
/// read, and nothing written.
pub(super) async fn run(table: &DeltaTable, query: &Query) -> Result<(SchemaRef, RowStream)> {
    let session = scan::without_tables(table.session());
    for (name, input) in &query.inputs {
        let rows = provider(input).await.map_err(|e| e.with_context("input", name))?;
        session
            .register_table(TableReference::bare(name.as_str()), rows)
            .doing("look at an input of a query")?;
    }
    let refused = |e: Error| match e.kind() {
        ErrorKind::Invalid | ErrorKind::Internal => Error::invalid("DataFusion refuses the query")
            .with_source(e)
            .with_advice("inputs are tables of their names, parameters are written as :name"),
        _ => e,
    };
    let what = "understand the query";
    let options = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    let plan = session.sql_with_options(&query.sql, options).await.doing(what).map_err(refused)?;
    if matches!(
        plan.logical_plan(),
        LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) | LogicalPlan::DescribeTable(_)
    ) {
        return Err(Error::invalid("the query gives a plan instead of rows"));
    }
    let values: Vec<_> = query.params.iter().map(|(name, value)| (name.as_str(), scalar(value))).collect();
    let plan =
        if values.is_empty() { plan } else { plan.with_param_values(values).doing(what).map_err(refused)? };
    let rows = plan.execute_stream().await.doing(what).map_err(refused)?;
    let schema = rows.schema();
    Ok((Arc::clone(&schema), scan::conformed(rows, schema, "run the query")))
}

/// An input as a table: of files where it is one of ours, so that a query reads the columns and row groups that it needs.
async fn provider(input: &PinnedInput) -> Result<Arc<dyn TableProvider>> {
    let writer = input.writer.as_deref().filter(|_| !input.staged.is_empty());
    let of_writer = writer.and_then(|writer| (writer as &dyn Any).downcast_ref::<DeltaTable>());
    let of_reader = (input.reader.as_ref() as &dyn Any).downcast_ref::<DeltaTable>();
    if let Some(table) = of_writer.or(of_reader.filter(|_| input.staged.is_empty())) {
        return table.overlaid(&input.staged, &input.pin).await?.provider().await;
    }
    let (schema, _) = input.read().await?;
    let input = input.clone();
    scan::streamed(schema, move || {
        let input = input.clone();
        async move { Ok(input.read().await?.1) }.boxed()
    })
}

/// A value as DataFusion has it.
pub(super) fn scalar(value: &Value) -> ScalarValue {
    match value {
        Value::Null => ScalarValue::Null,
        Value::Boolean(b) => ScalarValue::Boolean(Some(*b)),
        Value::Integer(i) => ScalarValue::Int64(Some(*i)),
        Value::Text(t) => ScalarValue::Utf8(Some(t.clone())),
        Value::Date(d) => {
            let days = d.signed_duration_since(NaiveDate::default()).num_days();
            ScalarValue::Date32(i32::try_from(days).ok())
        }
        Value::Timestamp(t) => {
            ScalarValue::TimestampMicrosecond(Some(t.timestamp_micros()), Some("UTC".into()))
        }
    }
}
