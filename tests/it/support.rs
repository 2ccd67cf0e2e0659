//! One SQLite file with its engine, for one test.

use std::path::PathBuf;
use std::sync::Arc;

use chrono::NaiveDate;
use reprocess::arrow::schema::{DataType, Field, Schema};
use reprocess::domain::ids::{Actor, BackfillId, WorkerId};
use reprocess::domain::interval::Grain;
use reprocess::domain::job::TableSpec;
use reprocess::domain::partition::{PartitionKey, Partitioning};
use reprocess::domain::request::{Request, Selection};
use reprocess::engine::{Engine, Execution, Host, Publication, RunOutcome, RunRequest, Submission};
use reprocess::ports::writer::PartitionWriter;
use reprocess::sqlite::{SqliteDatabase, SqliteLedger, SqliteSource, SqliteTable};
use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tempfile::TempDir;

pub(crate) struct World {
    path: PathBuf,
    db: SqliteDatabase,
    pub(crate) host: Host,
    _dir: TempDir,
}

impl World {
    /// A file in which the statements have been run, by whoever fills the sources.
    pub(crate) async fn with(sql: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("test.db");
        let db = SqliteDatabase::open(&path).await.unwrap();
        let world = Self { path, db, host: Host::new("test"), _dir: dir };
        world.sql(sql).await;
        world
    }

    /// A connection beside the library's own.
    async fn connect(&self) -> SqliteConnection {
        SqliteConnectOptions::new().filename(&self.path).connect().await.unwrap()
    }

    pub(crate) async fn sql(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&mut self.connect().await).await.unwrap();
    }

    /// The first column of every row, which is text.
    pub(crate) async fn rows(&self, select: &'static str) -> Vec<String> {
        sqlx::query_scalar(select).fetch_all(&mut self.connect().await).await.unwrap()
    }

    /// A table of others by day, to which rows are only added; `id` numbers them.
    pub(crate) fn log(&mut self, name: &str) {
        let spec = TableSpec::new(name, daily());
        let source = SqliteSource::append_only(self.db.clone(), spec.clone(), "id");
        self.host.add_source(spec, Arc::new(source)).unwrap();
    }

    /// A table of others that changes in place.
    pub(crate) fn reference(&mut self, name: &str) {
        let spec = TableSpec::new(name, Partitioning::unpartitioned());
        let source = SqliteSource::mutable(self.db.clone(), spec.clone());
        self.host.add_source(spec, Arc::new(source)).unwrap();
    }

    /// A table of ours.
    pub(crate) async fn output(
        &mut self,
        name: &str,
        partitioning: Partitioning,
        columns: &[(&str, DataType)],
    ) {
        let spec = TableSpec::new(name, partitioning);
        let table = SqliteTable::new(self.db.clone(), spec.clone());
        let fields: Vec<_> =
            columns.iter().map(|(name, kind)| Field::new(*name, kind.clone(), true)).collect();
        table.create(&Arc::new(Schema::new(fields))).await.unwrap();
        self.host.add_table(spec, Arc::new(table)).unwrap();
    }

    /// The engine, once everything is declared.
    pub(crate) async fn engine(&mut self) -> Engine {
        let host = std::mem::replace(&mut self.host, Host::new("test"));
        Engine::new(host, Arc::new(SqliteLedger::open(self.db.clone()).await.unwrap()))
    }
}

pub(crate) fn daily() -> Partitioning {
    Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC)
}

/// A day of October 2026.
pub(crate) fn date(day: u32) -> NaiveDate {
    NaiveDate::from_ymd_opt(2026, 10, day).unwrap()
}

pub(crate) fn day(d: u32) -> PartitionKey {
    PartitionKey::of("day", date(d))
}

pub(crate) fn worker() -> WorkerId {
    WorkerId::from("test")
}

/// The days from first to last, both included.
pub(crate) fn request(id: &str, days: (u32, u32)) -> Request {
    let range = Selection::Range { first: date(days.0).into(), last: date(days.1).into() };
    Request::new(id, range, "the test wants it", "analyst")
}

/// One run by schedule; `run` names it.
pub(crate) async fn scheduled(engine: &Engine, run: &str, job: &str, d: u32, logic: &str) -> RunOutcome {
    let request = RunRequest::scheduled(run, job, day(d)).with_logic(logic);
    engine.run(&request, &worker()).await.unwrap()
}

/// One run by schedule of each day.
pub(crate) async fn scheduled_days(engine: &Engine, job: &str, days: (u32, u32), logic: &str) {
    for d in days.0..=days.1 {
        let outcome = scheduled(engine, &format!("{job}-{d}"), job, d, logic).await;
        assert_eq!(outcome, RunOutcome::Committed);
    }
}

/// Plans, submits, approves and executes.
pub(crate) async fn execute(engine: &Engine, request: &Request) -> Execution {
    let plan = engine.plan(request).await.unwrap();
    assert_eq!(
        engine.submit(&plan, &request.requester).await.unwrap(),
        Submission::New,
        "{:?}",
        plan.refused
    );
    engine.approve(&request.id, &plan.digest(), &Actor::from("reviewer"), "").await.unwrap();
    engine.execute(&request.id, &worker(), |_| {}).await.unwrap()
}

/// Approves what is staged, and publishes it.
pub(crate) async fn publish(engine: &Engine, id: &str) {
    let (id, reviewer) = (BackfillId::from(id), Actor::from("reviewer"));
    let review = engine.review(&id).await.unwrap();
    engine.approve(&id, &review.digest, &reviewer, "").await.unwrap();
    assert_eq!(engine.publish(&id, &reviewer, &worker()).await.unwrap(), Publication::Published);
}
