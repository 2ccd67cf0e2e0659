//! Tables and ledger in one PostgreSQL database keep every law of the conformance suite. With
//! `REPROCESS_TEST_PARTITIONED=1` the tables are partitioned by their first dimension as they are made, and partitions are
//! swapped.
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
        let database = DATABASE.get_or_init(database).await;
        let schema = format!("Place {}", NUMBER.fetch_add(1, Ordering::Relaxed));
        database.execute(&format!("CREATE SCHEMA \"{schema}\"")).await;
        Box::new(Schema { database, own: schema.replace(' ', "_"), schema })
    }
}

fn is_partitioned() -> bool {
    std::env::var("REPROCESS_TEST_PARTITIONED").is_ok()
}

async fn database() -> TestDatabase {
    let database = TestDatabase::fresh().await;
    if is_partitioned() {
        database.execute(PARTITIONING).await;
    }
    database
}

/// Makes a partitioned table of each plain one that is to be: with a partition for each of the first days of October,
/// or for some countries, and one for the rest.
const PARTITIONING: &str = r"
    CREATE TABLE public.to_partition (schema text, name text, by_column text);
    CREATE FUNCTION public.partition() RETURNS event_trigger LANGUAGE plpgsql AS $$
    DECLARE made record; value text;
    BEGIN
        FOR made IN
            SELECT n.nspname AS schema, c.relname AS name, p.by_column, format_type(a.atttypid, NULL) AS kind
            FROM pg_event_trigger_ddl_commands() AS d
            JOIN pg_class AS c ON c.oid = d.objid AND c.relkind = 'r' AND NOT c.relispartition
            JOIN pg_namespace AS n ON n.oid = c.relnamespace
            JOIN (SELECT DISTINCT * FROM public.to_partition) AS p ON p.schema = n.nspname AND p.name = c.relname
            JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = p.by_column
            WHERE d.object_type = 'table'
        LOOP
            EXECUTE format('ALTER TABLE %I.%I RENAME TO made_plain', made.schema, made.name);
            EXECUTE format('CREATE TABLE %1$I.%2$I (LIKE %1$I.made_plain INCLUDING ALL) PARTITION BY %3$s (%4$I)',
                made.schema, made.name, CASE made.kind WHEN 'date' THEN 'RANGE' ELSE 'LIST' END, made.by_column);
            EXECUTE format('DROP TABLE %I.made_plain', made.schema);
            EXECUTE format('CREATE TABLE %1$I.%3$I PARTITION OF %1$I.%2$I DEFAULT', made.schema, made.name, made.name || ' rest');
            IF made.kind = 'date' THEN
                FOR day IN 1..9 LOOP
                    EXECUTE format('CREATE TABLE %1$I.%3$I PARTITION OF %1$I.%2$I FOR VALUES FROM (%4$L) TO (%5$L)',
                        made.schema, made.name, made.name || ' ' || day, date '2026-09-30' + day, date '2026-10-01' + day);
                END LOOP;
            ELSIF made.kind = 'text' THEN
                FOREACH value IN ARRAY ARRAY['FR', 'DE'] LOOP
                    EXECUTE format('CREATE TABLE %1$I.%3$I PARTITION OF %1$I.%2$I FOR VALUES IN (%4$L)',
                        made.schema, made.name, made.name || ' ' || value, value);
                END LOOP;
            END IF;
        END LOOP;
    END $$;
    CREATE EVENT TRIGGER partition ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION public.partition()";

struct Schema {
    database: &'static TestDatabase,
    schema: String,
    /// Of the tables of the library.
    own: String,
}

impl Schema {
    /// Few rows a batch, so that most laws cross a border between two.
    async fn connect(&self) -> PostgresDatabase {
        let config =
            PostgresConfig::new().with_batch_rows(3).with_schema(&self.own).with_swap_timeout_ms(500);
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
        let table = table.with_schema(&self.schema).unwrap();
        if !is_partitioned() {
            return Handle::of(table);
        }
        if let Some(first) = spec.partitioning.dimensions().first() {
            let mut raw = self.raw().await;
            let insert = sqlx::query("INSERT INTO public.to_partition VALUES ($1, $2, $3)");
            let insert = insert.bind(&self.schema).bind(spec.id.as_str()).bind(first.column());
            insert.execute(&mut raw).await.unwrap();
            raw.close().await.unwrap();
        }
        Handle::of(table.with_swap())
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
