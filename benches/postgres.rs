//! Writing to tables of ten and of five million rows in PostgreSQL: `cargo bench --features postgres --bench postgres`.
//!
//! With `replace`, `swap` or `merge` behind `--` only that. It starts a server of its own, unless `BENCH_POSTGRES` is the address of one. `FACT_DAYS` makes the tables smaller; a
//! day has 100,000 rows. What is compared runs by turns, each after a checkpoint, so that what else the machine does
//! meets all; medians of the ratios are told, with the bytes that the server wrote to its log.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "measures, and a bench that cannot go on has failed"
)]

mod support;

use std::time::Instant;

use reprocess::domain::interval::Grain;
use reprocess::domain::job::TableSpec;
use reprocess::domain::partition::{PartitionKey, Partitioning};
use reprocess::domain::scope::Scope;
use reprocess::ports::writer::{Intent, MergeKeys};
use reprocess::postgres::{PostgresDatabase, PostgresTable};
use sqlx::PgPool;
use support::facts::{DAY_STEP, Order, batches, filled, partitioned, schema};
use support::rows::date;
use support::server::{Server, run, wal};
use support::through::Through;
use support::{by_hand, median};
use tokio::runtime::Runtime;

const ROWS: u32 = 100_000;
const DAY: u32 = 40;

fn main() {
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let turns = std::env::var("TURNS").map_or(5, |turns| turns.parse().unwrap());
    let days: u32 = std::env::var("FACT_DAYS").map_or(100, |days| days.parse().unwrap());
    let server = Server::start();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let pool = server.pool().await;
        let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
        let asked = |part: &str| only.as_ref().is_none_or(|only| part == only);
        if asked("replace") {
            replaces(&server, &pool, days, turns).await;
        }
        if asked("swap") {
            swaps(&server, &pool, days, turns).await;
        }
        for keys in [Keys::Late, Keys::Random] {
            if asked("merge") {
                merges(&server, &pool, days / 2, turns, keys).await;
            }
        }
    });
}

/// Times, in seconds, and bytes of log of what is compared, by turns.
#[derive(Debug, Default)]
struct Measured(Vec<(String, Vec<f64>, Vec<f64>)>);

impl Measured {
    async fn add(&mut self, pool: &PgPool, name: &str, work: impl Future<Output = ()>) {
        run(pool, "CHECKPOINT".to_owned()).await;
        let (before, start) = (wal(pool).await, Instant::now());
        work.await;
        let took = start.elapsed().as_secs_f64();
        #[allow(clippy::cast_precision_loss, reason = "a figure to look at")]
        let written = (wal(pool).await - before) as f64;
        if self.0.iter().all(|(known, ..)| known != name) {
            self.0.push((name.to_owned(), Vec::new(), Vec::new()));
        }
        let (_, times, bytes) = self.0.iter_mut().find(|(known, ..)| known == name).unwrap();
        times.push(took);
        bytes.push(written);
    }

    /// Each in milliseconds and megabytes, and as a ratio to the first.
    fn tell(&self, title: &str) {
        println!("{title}");
        let (_, base_times, base_bytes) = &self.0[0];
        let ratio = |of: &[f64], base: &[f64]| median(of.iter().zip(base).map(|(a, b)| a / b).collect());
        for (name, times, bytes) in &self.0 {
            println!(
                "  {name:<36} {:>7.0} ms {:>5.2}   {:>6.1} MB of log {:>5.2}",
                median(times.clone()) * 1e3,
                ratio(times, base_times),
                median(bytes.clone()) / 1e6,
                ratio(bytes, base_bytes)
            );
        }
    }
}

async fn table(
    server: &Server,
    pool: &PgPool,
    name: &str,
    partitioning: Partitioning,
) -> Through<PostgresTable> {
    let database = PostgresDatabase::connect(server.address()).await.unwrap();
    let table = PostgresTable::open(database, TableSpec::new(name, partitioning)).await.unwrap();
    table.adopt().await.unwrap();
    run(pool, format!("ANALYZE {name}")).await;
    Through::new(table)
}

fn daily() -> Partitioning {
    Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC)
}

fn scope(days: impl IntoIterator<Item = u32>) -> Scope {
    Scope::keys(days.into_iter().map(|day| PartitionKey::of("day", date(day)))).unwrap()
}

/// The rows of a day, of which so many hundredths have a salt.
fn day(percent: i64, salt: i64) -> impl Iterator<Item = Order> {
    (0..i64::from(ROWS)).map(move |i| {
        let salt = if i * 37 % 100 < percent { salt } else { 0 };
        Order { day: DAY, id: i64::from(DAY) * DAY_STEP + i, salt }
    })
}

async fn replaces(server: &Server, pool: &PgPool, days: u32, turns: i64) {
    for name in ["plain", "ours"] {
        run(pool, filled(name, "day, id", days, ROWS)).await;
    }
    let ours = table(server, pool, "ours", daily()).await;
    let scope = scope([DAY]);
    let mut measured = Measured::default();
    let mut salt = 0;
    for _ in 0..turns {
        salt += 1;
        measured.add(pool, "by hand", by_hand::replace(pool, "plain", DAY, batches(day(100, salt)))).await;
        for (percent, keep) in [(100, false), (100, true), (25, false), (5, false), (0, false)] {
            // What differs is what this turn changes.
            ours.write(&scope, Intent::Replace, schema(), batches(day(100, 0)), false).await;
            let name = format!("{percent} % changed{}", if keep { ", kept" } else { "" });
            let rows = batches(day(percent, salt));
            measured
                .add(pool, &name, async {
                    ours.write(&scope, Intent::Replace, schema(), rows, keep).await;
                })
                .await;
        }
    }
    measured.tell(&format!("replace {ROWS} of {} rows, against DELETE and COPY by hand", days * ROWS));
    run(pool, "DROP TABLE plain, ours".to_owned()).await;
}

/// One partition of a table that others have partitioned, put in the place of the old one.
async fn swaps(server: &Server, pool: &PgPool, days: u32, turns: i64) {
    run(pool, partitioned("ours", days, ROWS)).await;
    let ours = table(server, pool, "ours", daily()).await;
    let ours = Through::new(ours.table.with_swap());
    let scope = scope([DAY]);
    let mut measured = Measured::default();
    for salt in 1..=turns {
        measured.add(pool, "load, then index", by_hand::load(pool, "loaded", batches(day(100, salt)))).await;
        run(pool, "DROP TABLE loaded".to_owned()).await;
        for keep in [false, true] {
            let name = if keep { "swap, kept" } else { "swap" };
            let rows = batches(day(100, salt));
            measured
                .add(pool, name, async {
                    ours.write(&scope, Intent::Replace, schema(), rows, keep).await;
                })
                .await;
        }
    }
    measured.tell(&format!("swap a partition of {ROWS} rows, against what loading and indexing takes"));
    let swapped: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'kept_%'")
        .fetch_one(pool)
        .await
        .unwrap();
    assert!(swapped >= turns, "{swapped} partitions were swapped and kept");
    run(pool, "DROP TABLE ours".to_owned()).await;
}

/// Where the keys of a merge lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    /// In three days; 20 % changed, 10 % new.
    Late,
    /// All over the table; 50 % changed, 20 % new.
    Random,
}

impl Keys {
    /// New ones are other ones in each turn.
    fn orders(self, days: u32, turn: i64) -> impl Iterator<Item = Order> {
        let (changed, new) = if self == Self::Late { (20, 10) } else { (50, 20) };
        (0..i64::from(ROWS)).map(move |i| {
            let (day, place) = match self {
                Self::Late => (DAY / 2 + u32::try_from(i % 3).unwrap(), i),
                Self::Random => {
                    let day = u32::try_from(i * 7_919 % i64::from(days)).unwrap();
                    (day, i * 104_729 % i64::from(ROWS))
                }
            };
            let kind = i * 61 % 100;
            let place = if kind < new { i64::from(ROWS) * turn + i } else { place };
            let salt = if kind < new + changed { turn } else { 0 };
            Order { day, id: i64::from(day) * DAY_STEP + place, salt }
        })
    }
}

async fn merges(server: &Server, pool: &PgPool, days: u32, turns: i64, keys: Keys) {
    for name in ["plain", "merged", "ours"] {
        run(pool, filled(name, "id", days, ROWS)).await;
    }
    let ours = table(server, pool, "ours", daily()).await;
    let merge = MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: None };
    let scope = match keys {
        Keys::Late => scope([DAY / 2, DAY / 2 + 1, DAY / 2 + 2]),
        Keys::Random => Scope::whole_table(),
    };
    let columns: Vec<_> = schema().fields().iter().map(|field| field.name().clone()).collect();
    let set = |from: &str| {
        let set: Vec<_> =
            columns.iter().filter(|c| *c != "id").map(|c| format!("{c} = {from}.{c}")).collect();
        set.join(", ")
    };
    let conflict = format!(
        "INSERT INTO plain SELECT * FROM incoming ON CONFLICT (id) DO UPDATE SET {}",
        set("excluded")
    );
    let statement = format!(
        "MERGE INTO merged AS t USING incoming AS s ON t.id = s.id
         WHEN MATCHED THEN UPDATE SET {} WHEN NOT MATCHED THEN INSERT VALUES ({})",
        set("s"),
        columns.iter().map(|c| format!("s.{c}")).collect::<Vec<_>>().join(", ")
    );
    let mut measured = Measured::default();
    for turn in 1..=turns {
        let rows = || batches(keys.orders(days, turn));
        measured.add(pool, "INSERT … ON CONFLICT", by_hand::merge(pool, &conflict, rows())).await;
        measured.add(pool, "MERGE", by_hand::merge(pool, &statement, rows())).await;
        for keep in [false, true] {
            // With rows kept it is measured on rows that another turn changed.
            let rows = batches(keys.orders(days, if keep { turn + turns } else { turn }));
            let (intent, name) = (Intent::Merge(merge.clone()), if keep { "ours, kept" } else { "ours" });
            measured
                .add(pool, name, async {
                    ours.write(&scope, intent, schema(), rows, keep).await;
                })
                .await;
        }
    }
    measured.tell(&format!("merge {ROWS} rows into {}, {keys:?} keys", days * ROWS));
    run(pool, "DROP TABLE plain, merged, ours".to_owned()).await;
}
