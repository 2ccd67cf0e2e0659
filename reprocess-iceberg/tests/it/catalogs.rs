//! The same steps on tables of every catalog.

use std::sync::Arc;

use reprocess_core::domain::ids::WorkerId;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::{Pin, Slice};
use reprocess_core::ports::ledger::{Fence, RunLedger};
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_core::ports::writer::{CommitOutcome, CommitRequest, Intent, PartitionWriter};
use reprocess_iceberg::{IcebergCatalog, IcebergTable, RestConfig};
use reprocess_postgres::PostgresLedger;
use reprocess_sqlite::{SqliteDatabase, SqliteLedger};
use serde_json::json;
use tempfile::TempDir;

use crate::postgres::TestDatabase;
use crate::rest_server::RestServer;
use crate::support::*;

/// A catalog, a ledger that is in its database or in a file, and all that has to stay while they are used.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) catalog: IcebergCatalog,
    ledger: Arc<dyn RunLedger>,
    _folder: TempDir,
    _server: Option<RestServer>,
    _database: Option<TestDatabase>,
}

impl Kind {
    async fn sqlite() -> Self {
        let folder = TempDir::new().unwrap();
        let file = SqliteDatabase::open(folder.path().join("catalog.db")).await.unwrap();
        let catalog = IcebergCatalog::sqlite(&file, "test", &warehouse(&folder)).await.unwrap();
        let ledger = Arc::new(SqliteLedger::open(file).await.unwrap());
        Self { name: "SQLite", catalog, ledger, _folder: folder, _server: None, _database: None }
    }

    async fn postgres() -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let database = TestDatabase::fresh().await?;
        let connected = database.connect().await;
        let catalog = IcebergCatalog::postgres(&connected, "test", &warehouse(&folder)).await.unwrap();
        let ledger = Arc::new(PostgresLedger::open(connected).await.unwrap());
        Some(Self {
            name: "PostgreSQL",
            catalog,
            ledger,
            _folder: folder,
            _server: None,
            _database: Some(database),
        })
    }

    async fn rest() -> Self {
        let folder = TempDir::new().unwrap();
        let server = RestServer::start(&folder.path().join("warehouse")).await;
        let catalog = IcebergCatalog::rest(RestConfig::new(server.uri())).await.unwrap();
        let file = SqliteDatabase::open(folder.path().join("ledger.db")).await.unwrap();
        let ledger = Arc::new(SqliteLedger::open(file).await.unwrap());
        Self { name: "REST", catalog, ledger, _folder: folder, _server: Some(server), _database: None }
    }

    async fn all() -> Vec<Self> {
        let mut all = vec![Self::sqlite().await, Self::rest().await];
        all.extend(Self::postgres().await);
        all
    }

    fn open(&self) -> IcebergTable {
        IcebergTable::open(&self.catalog, NAME, spec()).unwrap()
    }

    async fn table(&self) -> IcebergTable {
        let table = self.open();
        table.create(&columns()).await.unwrap();
        table
    }

    async fn lease(&self, scope: &Scope) -> Fence {
        let now = "2026-10-07T00:00:00Z".parse().unwrap();
        let ttl = std::time::Duration::from_secs(600);
        self.ledger.acquire(&spec().id, scope, &WorkerId::from("w1"), ttl, now).await.unwrap().unwrap()
    }

    async fn runs(&self, run: &str) -> usize {
        self.ledger.run(&run.into()).await.unwrap().len()
    }
}

fn warehouse(folder: &TempDir) -> String {
    folder.path().join("warehouse").to_str().unwrap().to_owned()
}

pub(crate) async fn replace(
    table: &IcebergTable,
    run: &str,
    scope: &Scope,
    rows: &[Row<'_>],
) -> CommitOutcome {
    let staged = stage(table, run, scope, Intent::Replace, batch(rows)).await.unwrap();
    let base = table.head(scope).await.unwrap();
    commit(table, &[apply(&staged)], &base).await.unwrap()
}

pub(crate) async fn rows(table: &IcebergTable) -> Vec<String> {
    let version = table.current().await.unwrap();
    let content = table.slice_versions(&version, &[Slice::All]).await.unwrap().remove(0);
    let pin = Pin { table: spec().id, version, slice: Slice::All, content };
    lines_of(table.read(&pin).await.unwrap().1).await.unwrap()
}

#[tokio::test]
async fn partitions_are_replaced_alike_in_every_catalog() {
    for kind in Kind::all().await {
        let table = kind.table().await;
        let monday = [(MON, Some("FR"), 1, 10), (MON, None, 2, 20)];
        done(replace(&table, "r1", &days(&[MON]), &monday).await);
        done(replace(&kind.open(), "r2", &days(&[TUE]), &[(TUE, Some("FR"), 3, 30)]).await);
        done(replace(&table, "r3", &days(&[MON]), &[(MON, Some("DE"), 1, 11)]).await);
        assert_eq!(rows(&table).await, ["2026-10-05/DE/1/11", "2026-10-06/FR/3/30"], "{}", kind.name);
        done(replace(&table, "r4", &days(&[MON]), &[]).await);
        assert_eq!(rows(&kind.open()).await, ["2026-10-06/FR/3/30"], "{}", kind.name);
        let again = replace(&table, "r4", &days(&[MON]), &[]).await;
        assert!(matches!(again, CommitOutcome::AlreadyCommitted(_)), "{}: {again:?}", kind.name);
    }
}

#[tokio::test]
async fn a_ledger_beside_the_catalog_has_the_run_with_the_data_and_one_elsewhere_has_not() {
    for kind in Kind::all().await {
        let table = kind.table().await;
        let scope = days(&[MON]);
        let base = table.head(&scope).await.unwrap();
        let staged =
            stage(&table, "r1", &scope, Intent::Replace, batch(&[(MON, None, 1, 10)])).await.unwrap();
        let mut entry = apply(&staged);
        entry.finish.records = vec![record("r1", &entry.stamp, &scope)];
        let entries = [entry];
        let fence = kind.lease(&scope).await;
        let request = |fence| CommitRequest {
            entries: &entries,
            base: &base,
            since: &base,
            fence,
            keep: false,
            ledger: Some(&*kind.ledger),
        };
        // Another has taken the lease.
        let newer = kind.lease(&scope).await;
        let fenced = table.commit(request(Some(&fence))).await.unwrap();
        assert!(matches!(fenced, CommitOutcome::Fenced), "{}: {fenced:?}", kind.name);
        assert_eq!((rows(&table).await.len(), kind.runs("r1").await), (0, 0), "{}", kind.name);
        let commit = done(table.commit(request(Some(&newer))).await.unwrap());
        let beside = table.capabilities().ledger_in_commit;
        assert_eq!(beside, kind.name != "REST");
        assert_eq!((commit.recorded, kind.runs("r1").await), (beside, usize::from(beside)), "{}", kind.name);
        assert_eq!(rows(&table).await, texts(&[(MON, None, 1, 10)]), "{}", kind.name);
    }
}

fn record(
    run: &str,
    stamp: &reprocess_core::ports::writer::StampId,
    scope: &Scope,
) -> reprocess_core::ports::ledger::RunRecord {
    let at = "2026-10-07T00:00:00Z";
    let record = json!({
        "run": run, "job": "daily", "table": spec().id, "partition": day(MON), "scope": scope, "stamp": stamp,
        "attempt": 1, "status": "committed", "trigger": "scheduled", "reason": "", "requester": "ada",
        "logic": "v1", "build": "abc", "parameters": {}, "inputs": {}, "queued_at": at, "started_at": at,
        "finished_at": at, "worker": "w1",
    });
    serde_json::from_value(record).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_of_different_days_all_land_in_every_catalog() {
    for kind in Kind::all().await {
        kind.table().await;
        let kind = Arc::new(kind);
        let writers = (1..=8).map(|number| {
            let kind = Arc::clone(&kind);
            tokio::spawn(async move {
                // A handle of its own, as another process would have.
                let (table, text) = (kind.open(), format!("2026-10-{number:02}"));
                done(replace(&table, &text, &days(&[&text]), &[(&text, None, number, 1)]).await);
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap();
        }
        assert_eq!(rows(&kind.open()).await.len(), 8, "{}", kind.name);
    }
}
