//! Changes that a ledger in the same database is told of.

use reprocess_core::domain::ids::WorkerId;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::{Base, Kept};
use reprocess_core::domain::value::Value;
use reprocess_core::ports::ledger::{Fence, RunLedger, TaskFinish};
use reprocess_core::ports::writer::{Change, Commit, CommitEntry, Op, StampId};
use reprocess_postgres::{PostgresDatabase, PostgresLedger};
use reprocess_sqlite::{SqliteDatabase, SqliteLedger};
use serde_json::json;

use super::super::Told;
use super::*;

/// A catalog, a ledger beside it, and one elsewhere.
struct Both {
    place: Place,
    ledger: Arc<dyn RunLedger>,
    elsewhere: Arc<dyn RunLedger>,
}

async fn all() -> Vec<Both> {
    let elsewhere = TempDir::new().unwrap();
    let other = SqliteDatabase::open(elsewhere.path().join("ledger.db")).await.unwrap();
    let elsewhere: Arc<dyn RunLedger> = Arc::new(SqliteLedger::open(other).await.unwrap());
    let place = Place::in_sqlite().await;
    let file = SqliteDatabase::open(place.folder.path().join("catalog.db")).await.unwrap();
    let ledger: Arc<dyn RunLedger> = Arc::new(SqliteLedger::open(file).await.unwrap());
    let mut all = vec![Both { place, ledger, elsewhere: Arc::clone(&elsewhere) }];
    if let Some(place) = Place::in_postgres().await {
        let database: PostgresDatabase = place.database.as_ref().unwrap().connect().await;
        let ledger: Arc<dyn RunLedger> = Arc::new(PostgresLedger::open(database).await.unwrap());
        all.push(Both { place, ledger, elsewhere });
    }
    all
}

fn scope() -> Scope {
    Scope::keys([key()]).unwrap()
}

fn key() -> PartitionKey {
    PartitionKey::of("day", Value::Date("2026-10-05".parse().unwrap()))
}

fn finish(run: &str) -> CommitEntry {
    let stamp = StampId {
        run: run.into(),
        job: "daily".into(),
        op: Op::Replace,
        scope_digest: scope().digest(),
        generation: 1,
    };
    let at = "2026-10-06T00:00:00Z";
    let record = json!({
        "run": run, "job": "daily", "table": "orders", "partition": key(), "scope": scope(), "stamp": stamp,
        "attempt": 1, "status": "committed", "trigger": "scheduled", "reason": "", "requester": "ada",
        "logic": "v1", "build": "abc", "parameters": {}, "inputs": {}, "queued_at": at, "started_at": at,
        "finished_at": at, "worker": "w1",
    });
    let finish =
        TaskFinish { records: vec![serde_json::from_value(record).unwrap()], ..TaskFinish::default() };
    CommitEntry {
        scope: scope(),
        change: Change::Restore(Kept(serde_json::Value::Null)),
        stamp,
        attempt: 1,
        finish,
    }
}

fn commit(entry: &CommitEntry, version: i64) -> Commit {
    let keys = [(key(), "files".into())];
    Commit {
        version: version.to_string().into(),
        partitions: Base::new(version.to_string().into(), keys.into()),
        attempts: vec![(entry.stamp.clone(), 1)],
        kept: None,
        recorded: true,
        order: 0,
    }
}

impl Both {
    /// Appends, and tells the ledger of a run.
    async fn append(
        &self,
        ledger: &dyn RunLedger,
        base: &Loaded,
        (run, id): (&str, i64),
        fence: Option<&Fence>,
    ) -> reprocess_core::Result<Answer> {
        let entries = [finish(run)];
        let commit = commit(&entries[0], id);
        let told = Some(Told { ledger, fence, commit: &commit, entries: &entries });
        self.place.change(&orders(), Proposal { told, ..append(base, id) }).await
    }

    async fn lease(&self) -> Fence {
        let now = "2026-10-06T00:00:00Z".parse().unwrap();
        let ttl = std::time::Duration::from_secs(600);
        self.ledger
            .acquire(&"orders".into(), &scope(), &WorkerId::from("w1"), ttl, now)
            .await
            .unwrap()
            .unwrap()
    }

    async fn runs(&self, run: &str) -> Vec<Option<String>> {
        let rows = self.ledger.run(&run.into()).await.unwrap();
        rows.into_iter().map(|row| row.record.output.map(|version| version.to_string())).collect()
    }
}

#[tokio::test]
async fn a_ledger_in_the_same_database_is_told_with_the_change() {
    for both in all().await {
        assert!(both.place.catalog.inner().holds(&*both.ledger));
        let base = both.place.create(&orders(), &[]).await.unwrap();
        let fence = both.lease().await;
        let now = done(both.append(&*both.ledger, &base, ("one", 1), Some(&fence)).await);
        assert_eq!(both.runs("one").await, [Some("1".to_owned())]);
        // What came too late is in neither.
        let late = both.append(&*both.ledger, &base, ("two", 2), Some(&fence)).await.unwrap();
        assert!(matches!(late, Answer::CameFirst), "{late:?}");
        assert_eq!(both.place.load(&orders()).await.unwrap().location, now.location);
        assert!(both.runs("two").await.is_empty());
    }
}

#[tokio::test]
async fn nothing_happens_under_a_lease_that_another_has_taken() {
    for both in all().await {
        let base = both.place.create(&orders(), &[]).await.unwrap();
        let fence = both.lease().await;
        both.lease().await;
        let answer = both.append(&*both.ledger, &base, ("one", 1), Some(&fence)).await.unwrap();
        assert!(matches!(answer, Answer::Fenced), "{answer:?}");
        assert_eq!(both.place.load(&orders()).await.unwrap().location, base.location);
        assert!(both.runs("one").await.is_empty());
        let metadata = both.place.folder.path().join("warehouse/shop/orders/metadata");
        assert_eq!(documents(&metadata).len(), 1);
    }
}

#[tokio::test]
async fn a_ledger_elsewhere_is_not_told() {
    for both in all().await {
        assert!(!both.place.catalog.inner().holds(&*both.elsewhere));
        let base = both.place.create(&orders(), &[]).await.unwrap();
        let error = both.append(&*both.elsewhere, &base, ("one", 1), None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert_eq!(both.place.load(&orders()).await.unwrap().location, base.location);
    }
    let rest = Place::behind_rest().await;
    assert!(!rest.catalog.inner().holds(&*all().await[0].ledger));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_ledger_has_a_row_for_each_of_many_at_once() {
    for both in all().await {
        both.place.create(&orders(), &[]).await.unwrap();
        let both = Arc::new(both);
        let tasks = (0..6).map(|task| {
            let both = Arc::clone(&both);
            tokio::spawn(async move {
                for number in 1..=3 {
                    let id = task * 10 + number;
                    let run = format!("run {id}");
                    loop {
                        let base = both.place.load(&orders()).await.unwrap();
                        match both.append(&*both.ledger, &base, (&run, id), None).await.unwrap() {
                            Answer::Done(_) => break,
                            Answer::CameFirst => {}
                            Answer::Fenced => panic!("there is no fence"),
                        }
                    }
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        let ids = history(&both.place.load(&orders()).await.unwrap().metadata);
        assert_eq!(ids.len(), 18);
        for id in ids {
            assert_eq!(both.runs(&format!("run {id}")).await, [Some(id.to_string())]);
        }
    }
}
