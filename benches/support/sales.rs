//! A table of sales in SQLite, the library's way to write it and the way by hand.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::rows::{batches, date, schema};
use futures::{StreamExt, stream};
use reprocess::arrow::array::{Array, Date32Array, Float64Array, Int64Array, RecordBatch, StringArray};
use reprocess::domain::interval::Grain;
use reprocess::domain::job::TableSpec;
use reprocess::domain::partition::{PartitionKey, Partitioning};
use reprocess::domain::profile::ProfileSpec;
use reprocess::domain::request::SchemaPolicy;
use reprocess::domain::scope::Scope;
use reprocess::domain::slice::{Base, Kept};
use reprocess::ports::ledger::TaskFinish;
use reprocess::ports::writer::{
    Change, CommitEntry, CommitOutcome, CommitRequest, Intent, MergeKeys, Op, PartitionWriter, Rows,
    StageRequest, Staged, StagedId, StampId, Visibility,
};
use reprocess::sqlite::{SqliteConfig, SqliteDatabase, SqliteTable};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};

/// The table through the library.
#[derive(Debug)]
pub(crate) struct Sales {
    table: SqliteTable,
    runs: u64,
}

impl Sales {
    /// Opens the table, and fills as many days as it lacks.
    pub(crate) async fn open(path: &Path, days: u32, rows: u32) -> Self {
        let db = SqliteConfig::new().open(path).await.unwrap();
        let daily = Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
        let table = SqliteTable::new(db, TableSpec::new("sales", daily));
        table.create(&schema()).await.unwrap();
        let mut sales = Self { table, runs: u64::from(std::process::id()) << 32 };
        for day in 0..days {
            let head = sales.table.head(&scope(day)).await.unwrap();
            if head.partitions.values().any(|version| version.as_str() == "0") {
                sales.replace(day, rows, 0, false).await;
            }
        }
        sales
    }

    pub(crate) fn database(&self) -> &SqliteDatabase {
        self.table.database()
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
        let base = self.table.head(&scope(day)).await.unwrap();
        let staged = self.stage(day, rows, salt, intent).await;
        self.commit(&[staged], &base, keep).await
    }

    pub(crate) async fn stage(&mut self, day: u32, rows: u32, salt: i64, intent: Intent) -> Staged {
        self.runs += 1;
        let scope = scope(day);
        let op = if matches!(intent, Intent::Merge(_)) { Op::Merge } else { Op::Replace };
        let stamp = StampId {
            run: format!("run.{}", self.runs).into(),
            job: "sales".into(),
            op,
            scope_digest: scope.digest(),
            generation: 1,
        };
        let request = StageRequest {
            id: StagedId { stamp, attempt: 1 },
            scope,
            intent,
            visibility: Visibility::Direct,
            profile: ProfileSpec::new(),
            schema: SchemaPolicy::Refuse,
            base: Base::new("0".into(), BTreeMap::new()),
        };
        let stream = stream::iter(batches(day, rows, salt).map(Ok)).boxed();
        self.table.stage(&request, Rows::Stream { schema: schema(), stream }).await.unwrap()
    }

    /// Commits staged sets at once: one is a write, many are a publication.
    pub(crate) async fn commit(&self, staged: &[Staged], base: &Base, keep: bool) -> Option<Kept> {
        let finish = || TaskFinish {
            records: vec![],
            task: None,
            deliver: false,
            stale: vec![],
            reads: Default::default(),
            pinned_at: 0,
        };
        let entries: Vec<_> = staged
            .iter()
            .map(|staged| CommitEntry {
                scope: staged.scope.clone(),
                change: Change::Apply(staged.clone()),
                stamp: staged.id.stamp.clone(),
                attempt: staged.id.attempt,
                finish: finish(),
            })
            .collect();
        let request = CommitRequest { entries: &entries, base, since: base, fence: None, keep, ledger: None };
        match self.table.commit(request).await.unwrap() {
            CommitOutcome::Committed(commit) => commit.kept,
            other => panic!("not committed: {other:?}"),
        }
    }

    /// The profile of what is there, as the engine takes it before a replace.
    pub(crate) async fn profile(&self, day: u32) {
        self.table.profile(&scope(day), &ProfileSpec::new()).await.unwrap();
    }

    pub(crate) async fn base(&self, days: impl Iterator<Item = u32>) -> Base {
        let keys = days.map(|day| PartitionKey::of("day", date(day)));
        self.table.head(&Scope::keys(keys).unwrap()).await.unwrap()
    }

    pub(crate) async fn forget(&self, kept: &Kept) {
        self.table.forget(kept).await.unwrap();
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

/// Where large tables are kept from one run to the next.
pub(crate) fn cached(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("benches");
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}
