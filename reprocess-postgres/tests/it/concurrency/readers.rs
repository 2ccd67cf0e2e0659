//! Readers of both usual levels beside each way in which a commit writes: they never see an empty or a mixed partition.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use reprocess_core::ports::writer::{Change, CommitEntry, Intent, Op, PartitionWriter};
use sqlx::{Connection, Executor};
use tokio::task::JoinHandle;

use crate::server::rounds;
use crate::tables::support::*;

const DAY: &str = "2026-10-01";
const ROWS: i64 = 40;
/// As few as let only the difference be written.
const FEW: i64 = 5;

/// Rows whose first few are of one run, and the others of one too.
fn rows_of(run: i64, all: bool) -> Vec<Row<'static>> {
    (0..ROWS).map(|id| (DAY, "FR", id, if all || id < FEW { run } else { 0 }, 0)).collect()
}

/// How many rows there are, and of how many runs those of either kind.
const LOOK: &str = "SELECT count(*), count(DISTINCT amount) FILTER (WHERE id < 5), count(DISTINCT amount) FILTER (WHERE id >= 5),
                           coalesce(sum(amount), 0)::bigint FROM sales WHERE day = '2026-10-01'";

/// Looks again and again until told to stop; at one moment, where it is said so, for several looks.
fn reader(
    f: &Fixture,
    begin: &'static str,
    stop: &Arc<AtomicBool>,
    looks: &Arc<AtomicU64>,
) -> JoinHandle<()> {
    let (stop, looks, address) = (Arc::clone(stop), Arc::clone(looks), f.database.address().to_owned());
    tokio::spawn(async move {
        let mut reader = sqlx::PgConnection::connect(&address).await.unwrap();
        reader.execute("SET search_path = public").await.unwrap();
        while !stop.load(Ordering::SeqCst) {
            reader.execute(begin).await.unwrap();
            let mut first = None;
            for _ in 0..5 {
                let seen: (i64, i64, i64, i64) = sqlx::query_as(LOOK).fetch_one(&mut reader).await.unwrap();
                assert_eq!((seen.0, seen.1, seen.2), (ROWS, 1, 1), "{begin}: {seen:?}");
                if begin.contains("REPEATABLE") {
                    assert_eq!(*first.get_or_insert(seen), seen, "the snapshot moved");
                }
                looks.fetch_add(1, Ordering::SeqCst);
            }
            reader.execute("COMMIT").await.unwrap();
        }
        reader.close().await.unwrap();
    })
}

/// Four readers, and each commit after at least one look at what the one before has left.
async fn check(f: Fixture, mut write: impl AsyncFnMut(&Fixture, i64)) {
    f.replace("first", &days(&[DAY]), &rows_of(0, true)).await;
    let (stop, looks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let levels = ["BEGIN ISOLATION LEVEL READ COMMITTED", "BEGIN ISOLATION LEVEL REPEATABLE READ"];
    let readers: Vec<_> =
        levels.iter().flat_map(|level| [level; 2]).map(|level| reader(&f, level, &stop, &looks)).collect();
    for number in 1..=i64::try_from(rounds(6)).unwrap() {
        let before = looks.load(Ordering::SeqCst);
        write(&f, number).await;
        while looks.load(Ordering::SeqCst) == before && !readers.iter().any(JoinHandle::is_finished) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    stop.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.unwrap();
    }
}

/// A table of others has a key, so that only the difference is written.
async fn with_a_key() -> Fixture {
    let mut f = fixture().await;
    f.sql(
        "DROP TABLE sales; CREATE TABLE sales
         (day date, country text, id bigint, amount bigint, rev bigint, PRIMARY KEY (day, id))",
    )
    .await;
    f.table = table_of(&f.db, "sales", by_day_and_country()).await;
    f.table.adopt().await.unwrap();
    f
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_difference_is_written() {
    check(with_a_key().await, async |f, n| {
        f.replace(&format!("r{n}"), &days(&[DAY]), &rows_of(n, false)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_all_rows_are_deleted_and_inserted() {
    check(fixture().await, async |f, n| {
        f.replace(&format!("r{n}"), &days(&[DAY]), &rows_of(n, true)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_rows_are_merged() {
    check(fixture().await, async |f, n| {
        f.write(&format!("r{n}"), &days(&[DAY]), Intent::Merge(by_id()), &rows_of(n, n % 2 == 0)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_partition_is_restored() {
    check(fixture().await, async |f, n| {
        let scope = days(&[DAY]);
        let done = f.replace(&format!("r{n}"), &scope, &rows_of(n, n % 2 == 0)).await;
        let back = CommitEntry {
            scope: scope.clone(),
            change: Change::Restore(done.kept.unwrap()),
            stamp: stamp(&format!("back{n}"), &scope, Op::Restore),
            attempt: 1,
            finish: finish(),
        };
        let base = f.table.head(&scope).await.unwrap();
        committed(commit(&f.table, &[back], &base, true).await.unwrap());
    })
    .await;
}
