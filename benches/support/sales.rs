//! A table of sales in SQLite, the library's way to write it and the way by hand.

use std::path::Path;

use super::rows::{batches, date, schema};
use super::through::Through;
use reprocess::arrow::array::{Array, Date32Array, Float64Array, Int64Array, RecordBatch, StringArray};
use reprocess::domain::interval::Grain;
use reprocess::domain::job::TableSpec;
use reprocess::domain::partition::{PartitionKey, Partitioning};
use reprocess::domain::profile::ProfileSpec;
use reprocess::domain::scope::Scope;
use reprocess::domain::slice::{Base, Kept};
use reprocess::ports::writer::{Intent, MergeKeys, PartitionWriter, Staged};
use reprocess::sqlite::{SqliteConfig, SqliteDatabase, SqliteTable};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};

/// The table through the library.
#[derive(Debug)]
pub(crate) struct Sales {
    writes: Through<SqliteTable>,
}

impl Sales {
    /// Opens the table, and fills as many days as it lacks.
    pub(crate) async fn open(path: &Path, days: u32, rows: u32) -> Self {
        let db = SqliteConfig::new().open(path).await.unwrap();
        let daily = Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
        let table = SqliteTable::new(db, TableSpec::new("sales", daily));
        table.create(&schema()).await.unwrap();
        let mut sales = Self { writes: Through::new(table) };
        for day in 0..days {
            let head = sales.writes.table.head(&scope(day)).await.unwrap();
            if head.partitions.values().any(|version| version.as_str() == "0") {
                sales.replace(day, rows, 0, false).await;
            }
        }
        sales
    }

    pub(crate) fn database(&self) -> &SqliteDatabase {
        self.writes.table.database()
    }

    /// Stages, with the profile, and commits.
    pub(crate) async fn replace(&mut self, day: u32, rows: u32, salt: i64, keep: bool) -> Option<Kept> {
        self.write(day, rows, salt, keep, Intent::Replace).await
    }

    /// Updates and inserts by id.
    pub(crate) async fn merge(&mut self, day: u32, rows: u32, salt: i64, keep: bool) -> Option<Kept> {
        let keys = MergeKeys { keys: vec!["day".into(), "id".into()], newer: None, delete_vanished: None };
        self.write(day, rows, salt, keep, Intent::Merge(keys)).await
    }

    async fn write(&mut self, day: u32, rows: u32, salt: i64, keep: bool, intent: Intent) -> Option<Kept> {
        self.writes.write(&scope(day), intent, schema(), batches(day, rows, salt), keep).await
    }

    pub(crate) async fn stage(&mut self, day: u32, rows: u32, salt: i64, intent: Intent) -> Staged {
        self.writes.stage(&scope(day), intent, schema(), batches(day, rows, salt)).await
    }

    /// Commits staged sets at once: one is a write, many are a publication.
    pub(crate) async fn commit(&self, staged: &[Staged], base: &Base, keep: bool) -> Option<Kept> {
        self.writes.commit(staged, base, keep).await
    }

    /// The profile of what is there, as the engine takes it before a replace.
    pub(crate) async fn profile(&self, day: u32) {
        self.writes.table.profile(&scope(day), &ProfileSpec::new()).await.unwrap();
    }

    pub(crate) async fn base(&self, days: impl Iterator<Item = u32>) -> Base {
        let keys = days.map(|day| PartitionKey::of("day", date(day)));
        self.writes.table.head(&Scope::keys(keys).unwrap()).await.unwrap()
    }

    pub(crate) async fn forget(&self, kept: &Kept) {
        self.writes.forget(kept).await;
    }
}

fn scope(day: u32) -> Scope {
    Scope::key(PartitionKey::of("day", date(day))).unwrap()
}

/// What one would write by hand: the same columns and index, no library.
#[derive(Debug)]
pub(crate) struct ByHand {
    connection: SqliteConnection,
}

impl ByHand {
    /// Copies the rows of the library's table, once.
    pub(crate) async fn open(path: &Path, sales: &Sales) -> Self {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full);
        let mut connection = options.connect().await.unwrap();
        let there: bool = sqlx::query_scalar("SELECT count(*) FROM sqlite_schema WHERE name = 'sales_day'")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        if !there {
            let from = sales.database().path().display();
            let sql = format!(
                "ATTACH '{from}' AS theirs;
                 CREATE TABLE IF NOT EXISTS sales
                     (day DATE NOT NULL, id INTEGER NOT NULL, customer TEXT, cents INTEGER, weight REAL);
                 INSERT INTO sales SELECT * FROM theirs.sales;
                 CREATE INDEX sales_day ON sales (day);
                 DETACH theirs;"
            );
            connection.execute(AssertSqlSafe(sql)).await.unwrap();
        }
        Self { connection }
    }

    /// `DELETE` and multi-row `INSERT` in one transaction.
    pub(crate) async fn replace(&mut self, day: u32, rows: u32, salt: i64) {
        let mut tx = self.connection.begin_with("BEGIN IMMEDIATE").await.unwrap();
        sqlx::query("DELETE FROM sales WHERE day = ?")
            .bind(date(day).to_string())
            .execute(&mut *tx)
            .await
            .unwrap();
        for batch in batches(day, rows, salt) {
            let mut from = 0;
            while from < batch.num_rows() {
                let part = batch.slice(from, (batch.num_rows() - from).min(1_000));
                from += part.num_rows();
                insert(&mut tx, &part).await;
            }
        }
        tx.commit().await.unwrap();
    }
}

async fn insert(connection: &mut SqliteConnection, batch: &RecordBatch) {
    let places = vec!["(?, ?, ?, ?, ?)"; batch.num_rows()].join(", ");
    let sql = format!("INSERT INTO sales (day, id, customer, cents, weight) VALUES {places}");
    let mut query = sqlx::query(AssertSqlSafe(sql));
    let column = |n: usize| batch.column(n).as_any();
    let days = column(0).downcast_ref::<Date32Array>().unwrap();
    let ids = column(1).downcast_ref::<Int64Array>().unwrap();
    let customers = column(2).downcast_ref::<StringArray>().unwrap();
    let cents = column(3).downcast_ref::<Int64Array>().unwrap();
    let weights = column(4).downcast_ref::<Float64Array>().unwrap();
    for row in 0..batch.num_rows() {
        query = query
            .bind(days.value_as_date(row).unwrap().to_string())
            .bind(ids.value(row))
            .bind(customers.value(row).to_owned())
            .bind(cents.value(row))
            .bind(weights.value(row));
    }
    query.execute(connection).await.unwrap();
}
