use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, TryStreamExt, stream};

use super::*;
use crate::ErrorKind;
use crate::domain::interval::Grain;
use crate::domain::partition::{PartitionKey, Partitioning};
use crate::domain::profile::ProfileSpec;
use crate::domain::slice::{Base, Kept, Pin, Slice};
use crate::domain::value::{Value, ValueKind};
use crate::memory::fixtures::*;
use crate::ports::reader::SnapshotReader;
use crate::ports::writer::{
    Change, Commit, CommitEntry, CommitOutcome, CommitRequest, Intent, MergeKeys, Op, PartitionWriter, Rows,
    StageRequest, Staged, StagedId, StampId, Visibility,
};

#[path = "commit_tests.rs"]
mod commits;
#[path = "guard_tests.rs"]
mod guards;
#[path = "merge_tests.rs"]
mod merges;
#[path = "reader_tests.rs"]
mod readers;
#[path = "staged_tests.rs"]
mod staged_sets;

const MON: &str = "2026-10-05";
const TUE: &str = "2026-10-06";

/// A table by day and country, with columns and without rows.
async fn table() -> MemoryTable {
    let partitioning = Partitioning::unpartitioned()
        .with_time("day", Grain::Day, chrono_tz::UTC)
        .with_key("country", ValueKind::Text);
    let table = MemoryTable::new(TableSpec::new(TABLE, partitioning));
    table.create(&columns()).await.unwrap();
    table
}

async fn table_with(rows: &[Row]) -> MemoryTable {
    let table = table().await;
    table.append_unmanaged(&batch(rows)).unwrap();
    table
}

fn request(run: &str, scope: &Scope, intent: Intent) -> StageRequest {
    let op = if matches!(intent, Intent::Merge(_)) { Op::Merge } else { Op::Replace };
    let stamp = StampId { run: run.into(), job: JOB.into(), op, scope_digest: scope.digest(), generation: 1 };
    StageRequest {
        id: StagedId { stamp, attempt: 1 },
        scope: scope.clone(),
        intent,
        visibility: Visibility::Direct,
        profile: ProfileSpec::new(),
        schema: SchemaPolicy::Refuse,
        base: Base::new("0".into(), BTreeMap::new()),
    }
}

fn stream_of(batch: RecordBatch) -> Rows {
    Rows::Stream { schema: batch.schema(), stream: stream::iter([Ok(batch)]).boxed() }
}

async fn stage(table: &MemoryTable, request: &StageRequest, rows: &[Row]) -> Result<Staged> {
    table.stage(request, stream_of(batch(rows))).await
}

async fn replace(table: &MemoryTable, run: &str, scope: &Scope, rows: &[Row]) -> CommitEntry {
    apply(stage(table, &request(run, scope, Intent::Replace), rows).await.unwrap())
}

fn apply(staged: Staged) -> CommitEntry {
    CommitEntry {
        scope: staged.scope.clone(),
        stamp: staged.id.stamp.clone(),
        attempt: staged.id.attempt,
        change: Change::Apply(staged),
        finish: finish(Vec::new()),
    }
}

fn restore(run: &str, scope: &Scope, kept: Kept) -> CommitEntry {
    let stamp = StampId { op: Op::Restore, ..request(run, scope, Intent::Replace).id.stamp };
    let (scope, change) = (scope.clone(), Change::Restore(kept));
    CommitEntry { scope, change, stamp, attempt: 1, finish: finish(Vec::new()) }
}

fn asking<'a>(entries: &'a [CommitEntry], base: &'a Base) -> CommitRequest<'a> {
    CommitRequest { entries, base, since: base, fence: None, keep: true, ledger: None }
}

async fn commit_on(table: &MemoryTable, entry: &CommitEntry, base: &Base) -> CommitOutcome {
    table.commit(asking(std::slice::from_ref(entry), base)).await.unwrap()
}

/// Commits on the base of now.
async fn committed(table: &MemoryTable, entry: &CommitEntry) -> Commit {
    let base = table.head(&entry.scope).await.unwrap();
    match commit_on(table, entry, &base).await {
        CommitOutcome::Committed(commit) => commit,
        other => panic!("{other:?}"),
    }
}

async fn rows_of(table: &MemoryTable, slice: Slice) -> Vec<String> {
    let pin = pin(table, slice).await;
    read(table, &pin).await.unwrap()
}

async fn all(table: &MemoryTable) -> Vec<String> {
    rows_of(table, Slice::All).await
}

async fn pin(table: &MemoryTable, slice: Slice) -> Pin {
    let version = table.current().await.unwrap();
    let content = table.slice_versions(&version, std::slice::from_ref(&slice)).await.unwrap().remove(0);
    Pin { table: TABLE.into(), version, slice, content }
}

async fn read(table: &MemoryTable, pin: &Pin) -> Result<Vec<String>> {
    let (_, stream) = table.read(pin).await?;
    Ok(texts(&stream.try_collect::<Vec<_>>().await?))
}

fn version(base: &Base, key: &PartitionKey) -> String {
    base.partitions.get(key).unwrap().to_string()
}
