//! The seeded simulation over files of SQLite.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Int64Type};
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;
use chrono::{Days, NaiveDate};
use futures::future::BoxFuture;
use reprocess_core::conformance::simulation::{Backend, Simulation, Table};
use reprocess_core::domain::ids::TableVersion;
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::ledger::RunLedger;
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_core::{Error, Result};
use reprocess_sqlite::{Durability, SqliteConfig, SqliteDatabase, SqliteLedger, SqliteSource, SqliteTable};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions};
use tokio::sync::Mutex;

const COMMAND: &str = "cargo test -p reprocess-sqlite simulation::histories -- --nocapture";

struct Sqlite {
    database: SqliteDatabase,
    /// A connection that knows nothing of reprocess.
    other: Mutex<SqliteConnection>,
    _folder: tempfile::TempDir,
}

impl Sqlite {
    async fn open() -> Result<Arc<dyn Backend>> {
        let folder = tempfile::tempdir().map_err(failed)?;
        let file = folder.path().join("shop.db");
        let database = SqliteConfig::new().with_durability(Durability::Normal).open(&file).await?;
        let options = SqliteConnectOptions::new().filename(&file).synchronous(SqliteSynchronous::Normal);
        let other = Mutex::new(options.connect().await.map_err(failed)?);
        Ok(Arc::new(Self { database, other, _folder: folder }))
    }

    async fn execute(&self, sql: String) -> Result<()> {
        let mut other = self.other.lock().await;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *other).await.map(drop).map_err(failed)
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::internal("the test's own writer failed").with_source(error)
}

#[async_trait]
impl Backend for Sqlite {
    async fn source(&self, spec: TableSpec, schema: SchemaRef) -> Result<Arc<dyn SnapshotReader>> {
        let kind = |kind: &DataType| match kind {
            DataType::Date32 => "DATE",
            DataType::Int64 => "INTEGER",
            _ => "TEXT",
        };
        let columns: Vec<_> =
            schema.fields().iter().map(|f| format!("{} {}", f.name(), kind(f.data_type()))).collect();
        self.execute(format!("CREATE TABLE {} ({})", spec.id, columns.join(", "))).await?;
        Ok(Arc::new(SqliteSource::mutable(self.database.clone(), spec)))
    }

    async fn table(&self, spec: TableSpec) -> Result<Table> {
        Ok(Table::of(Arc::new(SqliteTable::new(self.database.clone(), spec))))
    }

    async fn ledger(&self) -> Result<Arc<dyn RunLedger>> {
        Ok(Arc::new(SqliteLedger::open(self.database.clone()).await?))
    }

    async fn replace_outside(&self, table: &TableSpec, scope: &Scope, rows: &RecordBatch) -> Result<()> {
        let mut sql = String::from("BEGIN IMMEDIATE;");
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
    }

    fn is_live(&self, version: &TableVersion) -> bool {
        version.as_str() == "live"
    }
}

fn literal(column: &dyn Array, row: usize) -> String {
    match column.data_type() {
        DataType::Date32 => {
            let days = u64::try_from(column.as_primitive::<Date32Type>().value(row)).unwrap();
            format!("'{}'", NaiveDate::default().checked_add_days(Days::new(days)).unwrap())
        }
        DataType::Int64 => column.as_primitive::<Int64Type>().value(row).to_string(),
        _ => format!("'{}'", column.as_string::<i32>().value(row)),
    }
}

fn sqlite() -> Simulation {
    let open = || -> BoxFuture<'static, Result<Arc<dyn Backend>>> { Box::pin(Sqlite::open()) };
    Simulation::new(open, COMMAND)
}

#[test]
fn histories_keep_every_law() {
    let done = sqlite().check(500).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{done:?}");
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 0..10 {
        sqlite().check_replay(seed).unwrap();
    }
}
