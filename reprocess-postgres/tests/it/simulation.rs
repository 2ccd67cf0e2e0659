//! The seeded simulation over schemas of PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Int64Type};
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;
use futures::future::BoxFuture;
use reprocess_core::conformance::simulation::{Backend, Simulation, Table};
use reprocess_core::domain::ids::TableVersion;
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::ledger::RunLedger;
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_core::{Error, Result};
use reprocess_postgres::{PostgresConfig, PostgresDatabase, PostgresLedger, PostgresSource, PostgresTable};
use sqlx::{AssertSqlSafe, PgConnection};
use tokio::sync::Mutex;

use crate::server::TestDatabase;

const COMMAND: &str = "scripts/test postgres, or with REPROCESS_TEST_POSTGRES set: cargo test -p reprocess-postgres --test it simulation::histories -- --nocapture";

/// How many histories, unless `REPROCESS_HISTORIES` says.
const HISTORIES: u64 = 100;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Each history is a schema.
struct Postgres {
    database: PostgresDatabase,
    schema: String,
    /// A connection that knows nothing of reprocess.
    other: Mutex<PgConnection>,
}

impl Postgres {
    async fn open(test: Arc<TestDatabase>) -> Result<Arc<dyn Backend>> {
        let schema = format!("history_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let config = PostgresConfig::new().with_schema(format!("{schema}_own"));
        let (database, other) = (config.connect(test.address()).await?, Mutex::new(test.raw().await));
        let postgres = Self { database, schema, other };
        let schema = &postgres.schema;
        postgres.execute(format!("CREATE SCHEMA {schema}; SET search_path = {schema}")).await?;
        Ok(Arc::new(postgres))
    }

    async fn execute(&self, sql: String) -> Result<()> {
        let mut other = self.other.lock().await;
        let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *other).await;
        done.map(drop).map_err(|e| Error::internal("the test's own writer failed").with_source(e))
    }
}

#[async_trait]
impl Backend for Postgres {
    async fn source(&self, spec: TableSpec, schema: SchemaRef) -> Result<Arc<dyn SnapshotReader>> {
        let kind = |kind: &DataType| match kind {
            DataType::Date32 => "date",
            DataType::Int64 => "bigint",
            _ => "text",
        };
        let columns: Vec<_> =
            schema.fields().iter().map(|f| format!("{} {}", f.name(), kind(f.data_type()))).collect();
        self.execute(format!("CREATE TABLE {} ({})", spec.id, columns.join(", "))).await?;
        let source = PostgresSource::mutable(self.database.clone(), spec)?;
        Ok(Arc::new(source.with_schema(&self.schema)?))
    }

    async fn table(&self, spec: TableSpec) -> Result<Table> {
        let table = PostgresTable::open(self.database.clone(), spec).await?;
        Ok(Table::of(Arc::new(table.with_schema(&self.schema)?)))
    }

    async fn ledger(&self) -> Result<Arc<dyn RunLedger>> {
        // The simulation has a clock of its own.
        Ok(Arc::new(PostgresLedger::open(self.database.clone()).await?.with_clock_of_callers()))
    }

    async fn replace_outside(&self, table: &TableSpec, scope: &Scope, rows: &RecordBatch) -> Result<()> {
        let mut sql = String::from("BEGIN;");
        for key in scope.partitions() {
            let bound: Vec<_> = key.bound().map(|(column, value)| format!("{column} = '{value}'")).collect();
            sql += &format!("DELETE FROM {} WHERE {};", table.id, bound.join(" AND "));
        }
        let names: Vec<_> = rows.schema().fields().iter().map(|f| f.name().clone()).collect();
        for row in 0..rows.num_rows() {
            let values: Vec<_> = rows.columns().iter().map(|column| literal(column.as_ref(), row)).collect();
            let (names, values) = (names.join(", "), values.join(", "));
            sql += &format!("INSERT INTO {} ({names}) VALUES ({values});", table.id);
        }
        self.execute(sql + "COMMIT").await
    }

    async fn close(&self) {
        self.database.close().await;
        let schema = &self.schema;
        self.execute(format!("DROP SCHEMA {schema}, {schema}_own CASCADE")).await.unwrap();
    }

    fn is_live(&self, version: &TableVersion) -> bool {
        version.as_str() == "live"
    }
}

fn literal(column: &dyn Array, row: usize) -> String {
    match column.data_type() {
        DataType::Date32 => {
            format!("date '1970-01-01' + {}", column.as_primitive::<Date32Type>().value(row))
        }
        DataType::Int64 => column.as_primitive::<Int64Type>().value(row).to_string(),
        _ => format!("'{}'", column.as_string::<i32>().value(row)),
    }
}

#[test]
fn histories_keep_every_law() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let test = Arc::new(runtime.block_on(TestDatabase::fresh()));
    let open = {
        let test = Arc::clone(&test);
        move || -> BoxFuture<'static, Result<Arc<dyn Backend>>> {
            Box::pin(Postgres::open(Arc::clone(&test)))
        }
    };
    let histories = std::env::var("REPROCESS_HISTORIES").map_or(HISTORIES, |n| n.parse().unwrap());
    let done = Simulation::new(open, COMMAND).check(histories).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{done:?}");
}
