//! Queries over pinned inputs, run by DataFusion.

use std::any::Any;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use chrono::NaiveDate;
use datafusion::catalog::TableProvider;
use datafusion::common::{ScalarValue, TableReference};
use datafusion::execution::context::{SQLOptions, SessionContext};
use datafusion::logical_expr::LogicalPlan;
use futures::FutureExt;
use futures::future::BoxFuture;
use reprocess_core::domain::value::Value;
use reprocess_core::ports::reader::{PinnedInput, RowStream};
use reprocess_core::ports::writer::Query;
use reprocess_core::{Error, ErrorKind, Result};

use crate::error::Doing;
use crate::session::{conformed, streamed, without_tables};

/// The rows of a query. Its inputs are tables of their names, its parameters are written as `:name`; nothing else can be
/// read, and nothing written.
///
/// `known` answers inputs that are tables of the backend, of which a query reads the columns and row groups that it needs;
/// of `None` all rows are read through the input's own reader.
pub async fn run(
    session: &SessionContext,
    query: &Query,
    known: impl for<'a> Fn(&'a PinnedInput) -> BoxFuture<'a, Result<Option<Arc<dyn TableProvider>>>>,
) -> Result<(SchemaRef, RowStream)> {
    let session = without_tables(session);
    for (name, input) in &query.inputs {
        let rows = match known(input).await {
            Ok(Some(rows)) => Ok(rows),
            Ok(None) => provider(input).await,
            Err(e) => Err(e),
        };
        let rows = rows.map_err(|e| e.with_context("input", name))?;
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
    Ok((Arc::clone(&schema), conformed(rows, schema, "run the query")))
}

/// The table of a backend's own type that an input is read from: its writer, where staged sets are read in place of
/// production, else its reader.
pub fn own<T: Any>(input: &PinnedInput) -> Option<&T> {
    if input.staged.is_empty() {
        return (input.reader.as_ref() as &dyn Any).downcast_ref();
    }
    input.writer.as_deref().and_then(|writer| (writer as &dyn Any).downcast_ref())
}

/// An input of another backend as a table.
async fn provider(input: &PinnedInput) -> Result<Arc<dyn TableProvider>> {
    let (schema, _) = input.read().await?;
    let input = input.clone();
    streamed(schema, move || {
        let input = input.clone();
        async move { Ok(input.read().await?.1) }.boxed()
    })
}

/// A value as DataFusion has it.
pub fn scalar(value: &Value) -> ScalarValue {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use async_trait::async_trait;
    use datafusion::datasource::MemTable;
    use reprocess_core::domain::ids::{PartitionVersion, TableId, TableVersion};
    use reprocess_core::domain::slice::{Pin, Slice};
    use reprocess_core::ports::reader::{Availability, SnapshotReader};

    use super::*;
    use crate::testing::{MON, Row, TUE, batch, columns, lines_of, stream};

    /// Reads the same rows whatever it is asked for.
    #[derive(Debug)]
    struct Rows(TableId, Vec<Row<'static>>);

    #[async_trait]
    impl SnapshotReader for Rows {
        fn table(&self) -> &TableId {
            &self.0
        }

        async fn current(&self) -> Result<TableVersion> {
            Ok("1".into())
        }

        async fn availability(&self, _: &TableVersion) -> Result<Availability> {
            Ok(Availability::Expired)
        }

        async fn slice_versions(&self, _: &TableVersion, _: &[Slice]) -> Result<Vec<PartitionVersion>> {
            Ok(Vec::new())
        }

        async fn hold(&self, _: &[Pin]) -> Result<()> {
            Ok(())
        }

        async fn release(&self, _: &[Pin]) -> Result<()> {
            Ok(())
        }

        async fn read(&self, _: &Pin) -> Result<(SchemaRef, RowStream)> {
            match self.1.as_slice() {
                [] => Err(Error::new(ErrorKind::PinBroken, "gone")),
                rows => Ok((columns(), stream(vec![batch(rows)]))),
            }
        }
    }

    fn input(rows: &[Row<'static>]) -> PinnedInput {
        let reader = Rows("sales".into(), rows.to_vec());
        let pin = Pin { table: "sales".into(), version: "1".into(), slice: Slice::All, content: "c".into() };
        PinnedInput { pin, reader: Arc::new(reader), staged: Vec::new(), writer: None }
    }

    fn query(sql: &str, params: &[(&str, Value)], rows: &[Row<'static>]) -> Query {
        Query {
            sql: sql.to_owned(),
            params: params.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
            inputs: BTreeMap::from([("sales".to_owned(), input(rows))]),
        }
    }

    fn nothing(_: &PinnedInput) -> BoxFuture<'_, Result<Option<Arc<dyn TableProvider>>>> {
        async { Ok(None) }.boxed()
    }

    /// A table of the backend itself, of which it knows better rows than its reader gives.
    fn known(input: &PinnedInput) -> BoxFuture<'_, Result<Option<Arc<dyn TableProvider>>>> {
        async move {
            let Some(Rows(name, _)) = own(input) else { return Ok(None) };
            assert_eq!(name.as_str(), "sales");
            let rows = MemTable::try_new(columns(), vec![vec![batch(&[(MON, 7, None)])]]);
            Ok(Some(Arc::new(rows.doing("make a table")?) as Arc<dyn TableProvider>))
        }
        .boxed()
    }

    const SALES: [Row<'static>; 3] = [(MON, 1, Some("a")), (TUE, 2, None), (TUE, 3, Some("b"))];

    async fn refused(sql: &str) -> Error {
        match run(&SessionContext::new(), &query(sql, &[], &SALES), nothing).await {
            Ok(_) => panic!("{sql}"),
            Err(e) => e,
        }
    }

    #[tokio::test]
    async fn a_query_reads_its_inputs_and_parameters() {
        let tuesday = Value::Date(TUE.parse().unwrap());
        let sql = "SELECT id, name FROM sales WHERE day = :day AND id > :least";
        let found = query(sql, &[("day", tuesday), ("least", Value::Integer(2))], &SALES);
        let (schema, rows) = run(&SessionContext::new(), &found, nothing).await.unwrap();
        assert_eq!(schema.fields().len(), 2);
        assert_eq!(lines_of(rows).await, ["3 b"]);
    }

    #[tokio::test]
    async fn a_table_of_the_backend_is_read_as_it_knows_it() {
        let (_, rows) =
            run(&SessionContext::new(), &query("SELECT id FROM sales", &[], &SALES), known).await.unwrap();
        assert_eq!(lines_of(rows).await, ["7"]);
    }

    #[tokio::test]
    async fn tables_of_the_session_are_not_seen() {
        let session = SessionContext::new();
        session.register_batch("other", batch(&SALES)).unwrap();
        let read = run(&session, &query("SELECT * FROM other", &[], &SALES), nothing).await;
        assert_eq!(read.err().unwrap().kind(), ErrorKind::Invalid);
    }

    #[tokio::test]
    async fn what_writes_or_shows_plans_is_refused() {
        for sql in [
            "CREATE TABLE x AS SELECT * FROM sales",
            "INSERT INTO sales SELECT * FROM sales",
            "COPY sales TO 'sales.csv'",
            "SET datafusion.execution.batch_size = 1",
            "SELECT * FROM sales; SELECT * FROM sales",
            "SELECT * FROM 'sales.parquet'",
            "SELECT * FROM sales WHERE id = :missing",
        ] {
            let error = refused(sql).await;
            assert!(error.to_string().contains("DataFusion refuses the query"), "{sql}: {error}");
        }
        for sql in ["EXPLAIN SELECT * FROM sales", "EXPLAIN ANALYZE SELECT 1", "DESCRIBE sales"] {
            assert!(refused(sql).await.to_string().contains("a plan instead of rows"), "{sql}");
        }
    }

    #[tokio::test]
    async fn an_input_that_cannot_be_read_is_named() {
        let read = run(&SessionContext::new(), &query("SELECT 1", &[], &[]), nothing).await;
        let error = read.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::PinBroken);
        assert!(error.to_string().contains("sales"), "{error}");
    }

    #[test]
    fn values_are_those_of_datafusion() {
        assert_eq!(scalar(&Value::Date("1970-01-03".parse().unwrap())), ScalarValue::Date32(Some(2)));
        let at = Value::Timestamp("1969-12-31T23:59:59Z".parse().unwrap());
        let utc = Some("UTC".into());
        assert_eq!(scalar(&at), ScalarValue::TimestampMicrosecond(Some(-1_000_000), utc));
        assert_eq!(scalar(&Value::Null), ScalarValue::Null);
    }
}
