//! SQLite keeps every law of the conformance suite.
#![allow(clippy::unwrap_used, reason = "a fixture that cannot be made fails the law that asks for it")]

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Int64Type};
use arrow_array::{Array, RecordBatch};
use async_trait::async_trait;
use reprocess_core::conformance::{Fixture, Handle, Hooks, Place};
use reprocess_core::domain::job::TableSpec;
use reprocess_core::ports::ledger::RunLedger;
use reprocess_sqlite::{Durability, SqliteConfig, SqliteDatabase, SqliteLedger, SqliteTable};
use sqlx::sqlite::{SqliteConnectOptions, SqliteRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, Row, SqliteConnection};
use tempfile::TempDir;

reprocess_core::conformance_tests!(Files);

/// Each place is a file, and each table is opened by a handle of its own, as by another process.
struct Files;

#[async_trait]
impl Fixture for Files {
    fn hooks(&self) -> Hooks {
        Hooks::none().with_ledger().with_strangers()
    }

    async fn fresh(&self) -> Box<dyn Place> {
        Box::new(File { folder: TempDir::new().unwrap() })
    }
}

struct File {
    folder: TempDir,
}

impl File {
    /// Few rows a batch, so that most laws cross a border between two.
    async fn database(&self) -> SqliteDatabase {
        let config = SqliteConfig::new().with_batch_rows(3).with_durability(Durability::Normal);
        config.open(self.folder.path().join("a file?.db")).await.unwrap()
    }

    async fn raw(&self) -> SqliteConnection {
        let file = self.folder.path().join("a file?.db");
        SqliteConnectOptions::new().filename(file).connect().await.unwrap()
    }
}

#[async_trait]
impl Place for File {
    async fn open(&self, spec: &TableSpec) -> Handle {
        Handle::of(SqliteTable::new(self.database().await, spec.clone()))
    }

    async fn ledger(&self) -> Arc<dyn RunLedger> {
        Arc::new(SqliteLedger::open(self.database().await).await.unwrap())
    }

    async fn raw_rows(&self, spec: &TableSpec) -> Vec<String> {
        let mut raw = self.raw().await;
        let sql = format!("SELECT * FROM \"{}\"", spec.id);
        let rows = raw.fetch_all(AssertSqlSafe(sql)).await.unwrap();
        raw.close().await.unwrap();
        let cell = |row: &SqliteRow, place| match row.try_get::<Option<i64>, _>(place) {
            Ok(number) => number.map_or("NULL".to_owned(), |n| n.to_string()),
            Err(_) => row.try_get::<Option<String>, _>(place).unwrap().unwrap_or("NULL".to_owned()),
        };
        let line =
            |row: &SqliteRow| (0..row.len()).map(|place| cell(row, place)).collect::<Vec<_>>().join("/");
        let mut lines: Vec<_> = rows.iter().map(line).collect();
        lines.sort();
        lines
    }

    async fn write_as_stranger(&self, spec: &TableSpec, rows: &RecordBatch) {
        let mut raw = self.raw().await;
        for row in 0..rows.num_rows() {
            let insert = format!("INSERT INTO \"{}\" VALUES (?, ?, ?, ?)", spec.id);
            let mut insert = sqlx::query(AssertSqlSafe(insert));
            let days = rows.column(0).as_primitive::<Date32Type>();
            insert =
                insert.bind(days.value_as_date(row).filter(|_| days.is_valid(row)).map(|d| d.to_string()));
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
        unreachable!("a table in a file keeps one version, and a pin breaks as it moves");
    }
}
