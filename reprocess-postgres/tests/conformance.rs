//! Tables and ledger in one PostgreSQL database keep every law of the conformance suite.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a fixture that cannot be made fails"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Int64Type};
use arrow_array::{Array, RecordBatch};
use async_trait::async_trait;
use reprocess_core::conformance::{Fixture, Handle, Hooks, Place};
use reprocess_core::domain::job::TableSpec;
use reprocess_core::ports::ledger::RunLedger;
use reprocess_postgres::{PostgresConfig, PostgresDatabase, PostgresLedger, PostgresTable};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};
use tokio::sync::OnceCell;

#[allow(dead_code, reason = "shared with the other tests")]
#[path = "it/server.rs"]
mod server;

use server::TestDatabase;

reprocess_core::conformance_tests!(Schemas);

/// Each place is a schema of the one database of this process, and each table is opened by a handle of its own, as by
/// another process.
struct Schemas;

static DATABASE: OnceCell<TestDatabase> = OnceCell::const_new();
static NUMBER: AtomicU32 = AtomicU32::new(0);

#[async_trait]
impl Fixture for Schemas {
    fn hooks(&self) -> Hooks {
        Hooks::none().with_ledger().with_strangers()
    }

    async fn fresh(&self) -> Box<dyn Place> {
        let database = DATABASE.get_or_init(TestDatabase::fresh).await;
        let schema = format!("Place {}", NUMBER.fetch_add(1, Ordering::Relaxed));
        database.execute(&format!("CREATE SCHEMA \"{schema}\"")).await;
        Box::new(Schema { database, own: schema.replace(' ', "_"), schema })
    }
}

struct Schema {
    database: &'static TestDatabase,
    schema: String,
    /// Of the tables of the library.
    own: String,
}

impl Schema {
    /// Few rows a batch, so that most laws cross a border between two.
    async fn connect(&self) -> PostgresDatabase {
        let config = PostgresConfig::new().with_batch_rows(3).with_schema(&self.own);
        // With a pooler in front of the server, where `scripts/test` has started one.
        match std::env::var("REPROCESS_TEST_PGBOUNCER") {
            Ok(pooler) => {
                let options: PgConnectOptions = pooler.parse().unwrap();
                config.connect_with(options.database(self.database.name())).await.unwrap()
            }
            Err(_) => config.connect(self.database.address()).await.unwrap(),
        }
    }

    async fn raw(&self) -> PgConnection {
        self.database.raw().await
    }
}

#[async_trait]
impl Place for Schema {
    async fn open(&self, spec: &TableSpec) -> Handle {
        let table = PostgresTable::open(self.connect().await, spec.clone()).await.unwrap();
        Handle::of(table.with_schema(&self.schema).unwrap())
    }

    async fn ledger(&self) -> Arc<dyn RunLedger> {
        // Laws tell the time themselves.
        Arc::new(PostgresLedger::open(self.connect().await).await.unwrap().with_clock_of_callers())
    }

    async fn raw_rows(&self, spec: &TableSpec) -> Vec<String> {
        let mut raw = self.raw().await;
        let sql = format!("SELECT to_jsonb(t)::text FROM \"{}\".\"{}\" AS t", self.schema, spec.id);
        let columns = "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0
                       AND NOT attisdropped ORDER BY attnum";
        let name = format!("\"{}\".\"{}\"", self.schema, spec.id);
        let columns: Vec<(String,)> = sqlx::query_as(columns).bind(name).fetch_all(&mut raw).await.unwrap();
        let rows = raw.fetch_all(AssertSqlSafe(sql)).await.unwrap();
        raw.close().await.unwrap();
        let cell = |value: &serde_json::Value| match value {
            serde_json::Value::Null => "NULL".to_owned(),
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let line = |row: &sqlx::postgres::PgRow| {
            let row: serde_json::Value = serde_json::from_str(row.get(0)).unwrap();
            columns.iter().map(|(column,)| cell(&row[column])).collect::<Vec<_>>().join("/")
        };
        let mut lines: Vec<_> = rows.iter().map(line).collect();
        lines.sort();
        lines
    }

    async fn write_as_stranger(&self, spec: &TableSpec, rows: &RecordBatch) {
        let mut raw = self.raw().await;
        for row in 0..rows.num_rows() {
            let insert = format!(
                "INSERT INTO \"{}\".\"{}\" VALUES ('1970-01-01'::date + $1, $2, $3, $4)",
                self.schema, spec.id
            );
            let mut insert = sqlx::query(AssertSqlSafe(insert));
            let days = rows.column(0).as_primitive::<Date32Type>();
            insert = insert.bind(days.is_valid(row).then(|| days.value(row)));
            let countries = rows.column(1).as_string::<i32>();
            insert = insert.bind(countries.is_valid(row).then(|| countries.value(row).to_owned()));
            for numbers in &rows.columns()[2..] {
                insert = insert.bind(numbers.as_primitive::<Int64Type>().value(row));
            }
            insert.execute(&mut raw).await.unwrap();
        }
        raw.close().await.unwrap();
    }

    async fn expire(&self, _: &TableSpec) {
        unreachable!("a table keeps one version, and a pin breaks as it moves");
    }
}
