//! Eight clients beside each other, each of whose answers is checked. Behind a pooler in transaction mode, where
//! `scripts/test` has started one, they share two connections to the server: a statement that were prepared on one and run
//! on the other would answer with what another client asked for.

use std::sync::Arc;

use reprocess_core::domain::ids::{PartitionVersion, TableId};
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::profile::ProfileSpec;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::ledger::LedgerReader;
use reprocess_core::ports::writer::{CommitRequest, Intent, PartitionWriter};
use reprocess_postgres::{PostgresLedger, PostgresTable};

use crate::ledger::fixtures as runs;
use crate::server::TestDatabase;
use crate::tables::support::*;

const CLIENTS: u32 = 8;
const OPERATIONS: u32 = 200;

/// A client with a partition of its own, and what it knows to be there.
struct Client {
    number: u32,
    table: PostgresTable,
    ledger: PostgresLedger,
    day: String,
    key: PartitionKey,
    scope: Scope,
    run: String,
    rows: Vec<String>,
    version: PartitionVersion,
}

impl Client {
    async fn new(database: &TestDatabase, number: u32) -> Self {
        let db = database.connect().await;
        let (table, ledger) =
            (table_of(&db, "sales", by_day_and_country()).await, PostgresLedger::open(db).await.unwrap());
        let key = runs::day(number + 1);
        let (day, scope, run) = (format!("2026-10-{:02}", number + 1), scope(key.clone()), String::new());
        Self { number, table, ledger, day, key, scope, run, rows: vec![], version: "0".into() }
    }

    /// Replaces the partition, and the ledger's row with it.
    async fn commit(&mut self, turn: u32) -> bool {
        self.run = format!("r{}.{turn}", self.number);
        let amount = i64::from(self.number * 1_000 + turn);
        let rows: Vec<Row<'_>> =
            (0..i64::from(turn % 4)).map(|id| (self.day.as_str(), "FR", id, amount, 0)).collect();
        self.rows =
            rows.iter().map(|(day, c, id, amount, rev)| format!("{day}/{c}/{id}/{amount}/{rev}")).collect();
        let staging = request(&self.run, &self.scope, Intent::Replace);
        let staged = self.table.stage(&staging, of(batch(&rows))).await.unwrap();
        let base = self.table.head(&self.scope).await.unwrap();
        let mut entry = apply(&staged);
        entry.finish = runs::finish(vec![runs::record(&self.run, &self.key)]);
        let ledger = Some(&self.ledger as &_);
        let request =
            CommitRequest { entries: &[entry], base: &base, since: &base, fence: None, keep: false, ledger };
        let done = committed(self.table.commit(request).await.unwrap());
        self.version = done.partitions.partitions[&self.key].clone();
        done.recorded
    }

    /// The version of the partition, its rows, their number, and the run that the ledger says wrote it.
    async fn ask(&self, turn: u32) -> bool {
        let of_day = || Slice::Partitions([self.key.clone()].into());
        match turn % 5 {
            1 => self.table.head(&self.scope).await.unwrap().partitions[&self.key] == self.version,
            2 => {
                let (base, profiles) = self.table.profile(&self.scope, &ProfileSpec::new()).await.unwrap();
                let rows: u64 = profiles.iter().map(|profile| profile.rows).sum();
                base.partitions[&self.key] == self.version && rows == self.rows.len() as u64
            }
            3 => {
                let table = TableId::from("sales");
                let rows = self.ledger.current(&table, std::slice::from_ref(&self.key)).await.unwrap();
                rows.len() == 1 && rows[0].as_ref().is_some_and(|row| row.record.run.as_str() == self.run)
            }
            _ => {
                let pin = pin(&self.table, of_day()).await.unwrap();
                read(&self.table, &pin).await.unwrap() == self.rows
            }
        }
    }

    /// How many answers were right.
    async fn work(mut self) -> u32 {
        let mut right = 0;
        for turn in 0..OPERATIONS {
            let is_right = if turn % 5 == 0 { self.commit(turn).await } else { self.ask(turn).await };
            right += u32::from(is_right);
        }
        right
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_hundred_answers_of_eight_clients_are_right() {
    let database = Arc::new(TestDatabase::fresh().await);
    let clients = (0..CLIENTS).map(|number| Client::new(&database, number));
    let clients = futures::future::join_all(clients).await;
    let working: Vec<_> = clients.into_iter().map(|client| tokio::spawn(client.work())).collect();
    let mut right = 0;
    for working in working {
        right += working.await.unwrap();
    }
    println!("{right} of {} answers are right", CLIENTS * OPERATIONS);
    assert_eq!(right, CLIENTS * OPERATIONS);
}
