//! Writing to an Iceberg table of ten million rows: `cargo bench --features iceberg --bench iceberg`.
//!
//! With `replace`, `merge`, `publish`, `growth` or `memory` behind `--` only that. `SALES_DAYS` makes the table smaller; a
//! day has 100,000 rows. `BENCH_PYTHON` is a Python with `pyiceberg[sql-sqlite,pyarrow]`, whose writes take their turns in
//! the same run over a table of their own. Medians are told, and the time on cores.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "measures, and a bench that cannot go on has failed"
)]

mod support;

use std::path::PathBuf;
use std::time::Instant;

use reprocess::arrow::array::RecordBatch;
use reprocess::domain::interval::Grain;
use reprocess::domain::job::TableSpec;
use reprocess::domain::partition::{PartitionKey, Partitioning};
use reprocess::domain::scope::Scope;
use reprocess::iceberg::{IcebergCatalog, IcebergTable};
use reprocess::ports::writer::{Intent, MergeKeys, PartitionWriter};
use reprocess::sqlite::SqliteDatabase;
use support::cached;
use support::measured::{Measured, Python};
use support::memory;
use support::rows::{batches, date, schema};
use support::through::Through;
use tokio::runtime::Runtime;

const ROWS: u32 = 100_000;
const DAY: u32 = 40;

fn main() {
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let days: u32 = std::env::var("SALES_DAYS").map_or(100, |days| days.parse().unwrap());
    let turns: i64 = std::env::var("TURNS").map_or(11, |turns| turns.parse().unwrap());
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let asked = |part: &str| only.as_ref().is_none_or(|only| part == only);
    Runtime::new().unwrap().block_on(async {
        if asked("replace") {
            replaces(days, turns).await;
        }
        if asked("merge") {
            merges(days, turns).await;
        }
        if asked("publish") {
            publishes(days, turns).await;
        }
        if asked("growth") {
            growth(turns).await;
        }
        if asked("memory") {
            for rows in [500_000, 5_000_000, 50_000_000] {
                replace_of(rows).await;
            }
        }
    });
}

fn spec() -> TableSpec {
    TableSpec::new("sales", Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC))
}

fn key(day: u32) -> PartitionKey {
    PartitionKey::of("day", date(day))
}

fn scope(day: u32) -> Scope {
    Scope::key(key(day)).unwrap()
}

fn folder(name: &str) -> PathBuf {
    cached(&format!("iceberg_{name}"))
}

/// A table in a new catalog of its own.
async fn empty(name: &str) -> Through<IcebergTable> {
    let folder = folder(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let db = SqliteDatabase::open(folder.join("catalog.db")).await.unwrap();
    let warehouse = folder.join("warehouse");
    let catalog = IcebergCatalog::sqlite(&db, "bench", warehouse.to_str().unwrap()).await.unwrap();
    let table = Through::new(IcebergTable::open(&catalog, "shop.sales", spec()).unwrap());
    table.table.create(&schema()).await.unwrap();
    table
}

async fn filled(name: &str, days: u32) -> Through<IcebergTable> {
    let table = empty(name).await;
    for day in 0..days {
        table.write(&scope(day), Intent::Replace, schema(), batches(day, ROWS, 0), false).await;
    }
    table
}

/// PyIceberg over the table of a name.
fn python(name: &str) -> Option<Python> {
    let address = format!("sqlite:///{}", folder(name).join("catalog.db").display());
    Python::start("iceberg.py", &[&address, "shop.sales"])
}

async fn replaces(days: u32, turns: i64) {
    println!("replace 1 of {days} partitions of {ROWS} rows");
    let ours = filled("ours", days).await;
    filled("python", days).await;
    let mut python = python("python");
    let mut measured = Measured::default();
    for turn in 0..turns {
        let rows: Vec<RecordBatch> = batches(DAY, ROWS, turn).collect();
        if let Some(python) = &mut python {
            python.turn(
                &mut measured,
                "PyIceberg dynamic_partition_overwrite",
                &format!("replace {DAY} {turn}"),
            );
        }
        for (name, keep) in [("ours, with profile and digests", false), ("ours, and kept", true)] {
            let rows = rows.clone().into_iter();
            measured
                .time(name, async {
                    ours.write(&scope(DAY), Intent::Replace, schema(), rows, keep).await;
                })
                .await;
        }
    }
    measured.tell();
}

/// Late corrections: a thousand keys of three days, against PyIceberg's upsert.
async fn merges(days: u32, turns: i64) {
    println!("merge 999 keys of 3 days into {} rows", days * ROWS);
    let ours = filled("merge", days).await;
    filled("merge_python", days).await;
    let mut python = python("merge_python");
    let mut measured = Measured::default();
    for turn in 1..=turns.min(5) {
        let rows: Vec<_> = (DAY..DAY + 3).flat_map(|day| batches(day, 333, turn)).collect();
        if let Some(python) = &mut python {
            python.turn(&mut measured, "PyIceberg upsert", &format!("upsert {DAY} 3 333 {turn}"));
        }
        measured
            .time("ours", async {
                let keys = MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: None };
                let rows = rows.into_iter();
                ours.write(&Scope::whole_table(), Intent::Merge(keys), schema(), rows, false).await;
            })
            .await;
    }
    measured.tell();
}

async fn publishes(days: u32, turns: i64) {
    const STAGED: u32 = 21;
    println!("publish {STAGED} staged partitions of {ROWS} rows after main has moved, against writing them");
    let table = filled("publish", days.max(STAGED + 1)).await;
    let all = Scope::keys((0..STAGED).map(key)).unwrap();
    let mut measured = Measured::default();
    let mut copied = Vec::new();
    for turn in 1..=turns.min(5) {
        let mut staged = Vec::new();
        measured
            .time("staged, one by one", async {
                for day in 0..STAGED {
                    let rows = batches(day, ROWS, turn);
                    staged.push(table.stage(&scope(day), Intent::Replace, schema(), rows).await);
                }
            })
            .await;
        table.write(&scope(STAGED), Intent::Replace, schema(), batches(STAGED, ROWS, turn), false).await;
        let (base, before) = (table.table.head(&all).await.unwrap(), data_files("publish"));
        measured
            .time("published at once", async {
                table.commit(&staged, &base, false).await;
            })
            .await;
        copied.push(data_files("publish").difference(&before).count());
    }
    measured.tell();
    println!("  data files that the publications wrote: {copied:?}");
}

fn data_files(name: &str) -> std::collections::BTreeSet<PathBuf> {
    fn below(folder: PathBuf, found: &mut std::collections::BTreeSet<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                below(path, found);
            } else if path.extension().is_some_and(|extension| extension == "parquet") {
                found.insert(path);
            }
        }
    }
    let mut found = std::collections::BTreeSet::new();
    below(folder(name), &mut found);
    found
}

/// One small partition is replaced in tables of more and more data files.
async fn growth(turns: i64) {
    for files in [100, 1_000, 5_000] {
        println!("replace 1 partition of 100 rows among {files} data files");
        let table = empty("growth").await;
        let all = Scope::keys((0..files).map(key)).unwrap();
        let rows = (0..files).flat_map(|day| batches(day, 100, 0));
        table.write(&all, Intent::Replace, schema(), rows, false).await;
        let mut measured = Measured::default();
        for turn in 0..turns {
            measured
                .time("a handle that knows the table", async {
                    table.write(&scope(DAY), Intent::Replace, schema(), batches(DAY, 100, turn), false).await;
                })
                .await;
        }
        let db = SqliteDatabase::open(folder("growth").join("catalog.db")).await.unwrap();
        let warehouse = folder("growth").join("warehouse");
        let catalog = IcebergCatalog::sqlite(&db, "bench", warehouse.to_str().unwrap()).await.unwrap();
        for turn in 0..turns {
            let fresh = Through::new(IcebergTable::open(&catalog, "shop.sales", spec()).unwrap());
            measured
                .time("a new handle", async {
                    fresh.write(&scope(DAY), Intent::Replace, schema(), batches(DAY, 100, turn), false).await;
                })
                .await;
        }
        measured.tell();
    }
}

/// Memory while one partition is replaced by a stream of so many rows.
async fn replace_of(rows: u32) {
    let table = empty("memory").await;
    memory::reset_peak();
    let (before, start) = (memory::resident(), Instant::now());
    table.write(&scope(0), Intent::Replace, schema(), batches(0, rows, 1), true).await;
    let (took, peak) = (start.elapsed(), memory::peak().saturating_sub(before));
    println!("replace of {rows} streamed rows: {} MB at the most, {took:.1?}", peak >> 20);
}
