//! Commits that are held until all of them are on their way.

use std::time::Duration;

use reprocess_core::domain::slice::Base;
use reprocess_core::ports::writer::{CommitOutcome, PartitionWriter, Staged};
use reprocess_postgres::PostgresTable;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::task::JoinHandle;

use crate::server::TestDatabase;
use crate::tables::support::{apply, commit};

/// A run whose rows are staged.
pub(crate) struct Racer {
    pub(crate) table: PostgresTable,
    pub(crate) staged: Staged,
    pub(crate) base: Base,
}

impl Racer {
    /// Commits, on the new base where something had moved. Answers how often it had.
    async fn commit(self) -> u32 {
        let (mut base, mut conflicts) = (self.base, 0);
        loop {
            match commit(&self.table, &[apply(&self.staged)], &base, true).await.unwrap() {
                CommitOutcome::Committed(_) => return conflicts,
                CommitOutcome::Conflicted { .. } => conflicts += 1,
                other => panic!("{other:?}"),
            }
            base = self.table.head(&self.staged.scope).await.unwrap();
        }
    }
}

/// Lets all commit at once: somebody keeps every writer of the table waiting until the last of them waits, for him or for
/// another. Answers how often each met a conflict.
pub(crate) async fn race(database: &TestDatabase, table: &str, racers: Vec<Racer>) -> Vec<u32> {
    race_past(database, &format!("LOCK TABLE public.{table} IN SHARE MODE"), racers).await
}

/// The same past a transaction of others that does something else and commits.
pub(crate) async fn race_past(database: &TestDatabase, others: &str, racers: Vec<Racer>) -> Vec<u32> {
    let mut gate = database.raw().await;
    gate.execute(AssertSqlSafe(format!("BEGIN; {others}"))).await.unwrap();
    let going: Vec<_> = racers.into_iter().map(|racer| tokio::spawn(racer.commit())).collect();
    let mut look = database.raw().await;
    wait_for(&mut look, i64::try_from(going.len()).unwrap(), &going).await;
    gate.execute("COMMIT").await.unwrap();
    let mut conflicts = Vec::new();
    for going in going {
        conflicts.push(going.await.unwrap());
    }
    gate.close().await.unwrap();
    look.close().await.unwrap();
    conflicts
}

async fn wait_for(look: &mut PgConnection, count: i64, going: &[JoinHandle<u32>]) {
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut *look).await.unwrap() < count {
        assert!(!going.iter().any(JoinHandle::is_finished), "a commit did not wait");
        // Those who are on their way need the processor more.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
