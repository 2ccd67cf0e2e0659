//! Writing to a Delta table of ten million rows: `cargo bench --features delta --bench delta`.
//!
//! With `replace`, `publish`, `merge` or `memory` behind `--` only that. `SALES_DAYS` makes the table smaller; a day has
//! 100,000 rows. `BENCH_PYTHON` is a Python with `deltalake` and `pyarrow`, whose `write_deltalake` takes its turns in the
//! same run. What is compared runs by turns over one table each, so that what else the machine does meets all; medians are
//! told, and the time on cores where that differs.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "measures, and a bench that cannot go on has failed"
)]

mod support;

use std::path::Path;
use std::time::Instant;

use reprocess::arrow::array::RecordBatch;
use reprocess::delta::deltalake::protocol::SaveMode;
use reprocess::delta::{DeltaTable, deltalake};
use reprocess::domain::interval::Grain;
use reprocess::domain::job::TableSpec;
use reprocess::domain::partition::{PartitionKey, Partitioning};
use reprocess::domain::scope::Scope;
use reprocess::ports::writer::{Intent, MergeKeys, PartitionWriter};
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
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        if asked("replace") {
            replaces(days, turns).await;
        }
        if asked("publish") {
            publishes(days, turns).await;
        }
        if asked("merge") {
            merges(days, turns).await;
        }
        if asked("memory") {
            for rows in [500_000, 5_000_000, 50_000_000] {
                replace_of(rows).await;
            }
            mixed_partitions().await;
        }
    });
}

fn spec() -> TableSpec {
    TableSpec::new("sales", Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC))
}

fn scope(day: u32) -> Scope {
    Scope::key(PartitionKey::of("day", date(day))).unwrap()
}

/// A table of so many days, made anew.
async fn filled(name: &str, days: u32) -> Through<DeltaTable> {
    let path = cached(name);
    let _ = std::fs::remove_dir_all(&path);
    let table = Through::new(DeltaTable::open(path.to_str().unwrap(), spec()).unwrap());
    table.table.create(&schema()).await.unwrap();
    for day in 0..days {
        table.write(&scope(day), Intent::Replace, schema(), batches(day, ROWS, 0), false).await;
    }
    table
}

async fn opened(path: &Path) -> deltalake::DeltaTable {
    deltalake::open_table(deltalake::ensure_table_uri(path.to_str().unwrap()).unwrap()).await.unwrap()
}

async fn replaces(days: u32, turns: i64) {
    println!("replace 1 of {days} partitions of {ROWS} rows");
    let ours = filled("delta_ours", days).await;
    filled("delta_theirs", days).await;
    filled("delta_python", days).await;
    let path = cached("delta_python");
    let mut python = Python::start("delta.py", &[path.to_str().unwrap(), &date(DAY).to_string()]);
    let mut measured = Measured::default();
    for turn in 0..turns {
        let rows: Vec<RecordBatch> = batches(DAY, ROWS, turn).collect();
        let (plain, again, theirs) = (rows.clone().into_iter(), rows.clone().into_iter(), rows);
        let table = opened(&cached("delta_theirs")).await;
        measured
            .time("deltalake replaceWhere", async {
                let written = table.write(theirs).with_save_mode(SaveMode::Overwrite);
                written.with_replace_where(format!("day = '{}'", date(DAY))).await.unwrap();
            })
            .await;
        if let Some(python) = &mut python {
            python.turn(&mut measured, "Python write_deltalake(predicate)", &turn.to_string());
        }
        measured
            .time("ours, with profile and digests", async {
                ours.write(&scope(DAY), Intent::Replace, schema(), plain, false).await;
            })
            .await;
        measured
            .time("ours, with profile and digests, kept", async {
                ours.write(&scope(DAY), Intent::Replace, schema(), again, true).await;
            })
            .await;
    }
    measured.tell();
}

async fn publishes(days: u32, turns: i64) {
    const STAGED: u32 = 21;
    println!("publish {STAGED} staged partitions of {ROWS} rows, against writing them");
    let table = filled("delta_publish", days.max(STAGED)).await;
    let all = Scope::keys((0..STAGED).map(|day| PartitionKey::of("day", date(day)))).unwrap();
    let mut measured = Measured::default();
    for turn in 1..=turns.min(5) {
        let mut staged = Vec::new();
        measured
            .time("staged, one by one", async {
                for day in 0..STAGED {
                    staged.push(
                        table.stage(&scope(day), Intent::Replace, schema(), batches(day, ROWS, turn)).await,
                    );
                }
            })
            .await;
        let base = table.table.head(&all).await.unwrap();
        measured
            .time("published at once", async {
                table.commit(&staged, &base, false).await;
            })
            .await;
    }
    measured.tell();
}

/// Late corrections: a thousand keys of three days, against the library's own MERGE.
async fn merges(days: u32, turns: i64) {
    println!("merge 1,000 keys of 3 days into {} rows", days * ROWS);
    let ours = filled("delta_merge", days).await;
    filled("delta_merge_theirs", days).await;
    let mut measured = Measured::default();
    for turn in 1..=turns.min(5) {
        let rows: Vec<_> = (DAY..DAY + 3).flat_map(|day| batches(day, 333, turn)).collect();
        let session = deltalake::datafusion::prelude::SessionContext::new();
        let source = session.read_batches(rows.clone()).unwrap();
        let table = opened(&cached("delta_merge_theirs")).await;
        measured
            .time("deltalake MERGE", async {
                let all = ["day", "id", "customer", "cents", "weight"];
                let merge = table.merge(source, "s.id = t.id").with_source_alias("s").with_target_alias("t");
                let merge = merge.when_matched_update(|update| {
                    all.iter().skip(2).fold(update, |update, name| update.update(*name, format!("s.{name}")))
                });
                let merge = merge.unwrap().when_not_matched_insert(|insert| {
                    all.iter().fold(insert, |insert, name| insert.set(*name, format!("s.{name}")))
                });
                merge.unwrap().await.unwrap();
            })
            .await;
        measured
            .time("ours", async {
                let keys = MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: None };
                ours.write(&Scope::whole_table(), Intent::Merge(keys), schema(), rows.into_iter(), false)
                    .await;
            })
            .await;
    }
    measured.tell();
}

/// Memory while one partition is replaced by a stream of so many rows.
async fn replace_of(rows: u32) {
    let table = filled("delta_memory", 0).await;
    memory::reset_peak();
    let (before, start) = (memory::resident(), Instant::now());
    table.write(&scope(0), Intent::Replace, schema(), batches(0, rows, 1), true).await;
    let (took, peak) = (start.elapsed(), memory::peak().saturating_sub(before));
    println!("replace of {rows} streamed rows: {} MB at the most, {took:.1?}", peak >> 20);
}

/// Memory while rows of fifty partitions come mixed.
async fn mixed_partitions() {
    const DAYS: u32 = 50;
    let table = filled("delta_mixed", 0).await;
    let all = Scope::keys((0..DAYS).map(|day| PartitionKey::of("day", date(day)))).unwrap();
    let mut each: Vec<_> = (0..DAYS).map(|day| batches(day, 40 * 8_192, 1)).collect();
    let mixed =
        (0..40).flat_map(move |_| each.iter_mut().map(|rows| rows.next().unwrap()).collect::<Vec<_>>());
    memory::reset_peak();
    let before = memory::resident();
    table.write(&all, Intent::Replace, schema(), mixed, false).await;
    let peak = memory::peak().saturating_sub(before);
    println!("replace of {DAYS} partitions whose rows come mixed: {} MB at the most", peak >> 20);
}
