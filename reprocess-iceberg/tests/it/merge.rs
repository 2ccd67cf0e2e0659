//! Merges against the table in memory.

use std::collections::BTreeMap;

use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::value::Value;
use reprocess_core::memory::MemoryTable;
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_core::ports::writer::{
    CommitOutcome, CommitRequest, Found, Intent, MergeKeys, PartitionWriter,
};

use crate::support::*;

fn by_id() -> MergeKeys {
    MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: None }
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn signed(&mut self, n: u64) -> i64 {
        i64::try_from(self.below(n)).unwrap()
    }
}

async fn in_memory(table: &MemoryTable, run: &str, scope: &Scope, intent: Intent, rows: &[Row<'_>]) {
    let base = table.head(scope).await.unwrap();
    let request = reprocess_core::ports::writer::StageRequest {
        id: reprocess_core::ports::writer::StagedId { stamp: stamp(run, scope, &intent), attempt: 1 },
        scope: scope.clone(),
        intent,
        visibility: reprocess_core::ports::writer::Visibility::Direct,
        profile: reprocess_core::domain::profile::ProfileSpec::new(),
        schema: reprocess_core::domain::request::SchemaPolicy::Refuse,
        base: base.clone(),
    };
    let entries = [apply(&table.stage(&request, batch(rows).into()).await.unwrap())];
    let request = CommitRequest {
        entries: &entries,
        base: &base,
        since: &base,
        fence: None,
        keep: false,
        ledger: None,
    };
    done(table.commit(request).await.unwrap());
}

async fn rows_in_memory(table: &MemoryTable) -> Vec<String> {
    let version = table.current().await.unwrap();
    let slice = reprocess_core::domain::slice::Slice::All;
    let content = table.slice_versions(&version, std::slice::from_ref(&slice)).await.unwrap().remove(0);
    let pin = reprocess_core::domain::slice::Pin { table: spec().id, version, slice, content };
    lines_of(table.read(&pin).await.unwrap().1).await.unwrap()
}

/// Random merges and replaces, some of them in files of many keys: after each both tables hold the same rows.
#[tokio::test]
async fn random_merges_leave_what_they_leave_in_memory() {
    const DAYS: [&str; 4] = [MON, TUE, "2026-10-07", ""];
    const COUNTRIES: [Option<&str>; 3] = [Some("FR"), Some("l'été"), None];
    for seed in 0..6 {
        let (mut dice, sales, memory) = (Dice(seed), Sales::new().await, MemoryTable::new(spec()));
        memory.create(&columns()).await.unwrap();
        for turn in 0..10 {
            let scope = match dice.below(3) {
                0 => days(&[MON]),
                1 => days(&[MON, TUE]),
                _ => Scope::whole_table(),
            };
            let mut rows = BTreeMap::new();
            for _ in 0..dice.below(9) {
                let place = usize::try_from(dice.below(4)).unwrap();
                let country = COUNTRIES[usize::try_from(dice.below(3)).unwrap()];
                let id = dice.signed(8);
                rows.insert(id, (DAYS[place], country, id, dice.signed(4)));
            }
            let inside = |text: &str| scope.is_whole_table() || !text.is_empty() && scope.covers(&day(text));
            let rows: Vec<Row<'_>> = rows.into_values().filter(|row| inside(row.0)).collect();
            let mut keys = by_id();
            let intent = match dice.below(5) {
                0 => Intent::Replace,
                1 => Intent::Merge(keys),
                2 => {
                    keys.newer = Some("amount".into());
                    Intent::Merge(keys)
                }
                _ => {
                    let owner = if dice.below(2) == 0 { Value::from("FR") } else { Value::Null };
                    keys.delete_vanished = Some([("country".to_owned(), owner)].into());
                    Intent::Merge(keys)
                }
            };
            let run = format!("r{turn}");
            sales.write(&run, &scope, intent.clone(), batch(&rows)).await;
            in_memory(&memory, &run, &scope, intent.clone(), &rows).await;
            assert_eq!(
                sales.rows().await,
                rows_in_memory(&memory).await,
                "seed {seed}, turn {turn}: {intent:?} {rows:?}"
            );
        }
    }
}

/// A hundred thousand keys into files of many thousand rows.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_merge_updates_and_adds_what_it_should() {
    let given: Vec<Row<'_>> = (0..60_000).map(|id| (MON, Some("FR"), id, 1)).collect();
    let coming: Vec<Row<'_>> = (20_000..120_000).map(|id| (MON, Some("FR"), id, id % 3)).collect();
    let sales = Sales::with(&given).await;
    sales.write("r1", &days(&[MON]), Intent::Merge(by_id()), batch(&coming)).await;
    let expected: Vec<Row<'_>> = given.into_iter().take(20_000).chain(coming).collect();
    assert_eq!(sales.rows().await, texts(&expected));
}

/// Files in which nothing changes stay; a merge that changes nothing is a version all the same, so that a retry finds it.
#[tokio::test]
async fn what_does_not_change_is_not_written_again() {
    let sales = Sales::with(&[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20), (TUE, None, 3, 30)]).await;
    let files = async || sales.raw().files().await;
    let before = files().await;
    let all = Scope::whole_table();
    let rows = [(TUE, None, 3, 31), (MON, Some("FR"), 1, 10)];
    sales.write("r1", &all, Intent::Merge(by_id()), batch(&rows)).await;
    let after = files().await;
    assert_eq!(before.iter().filter(|file| after.contains(file)).count(), 2, "only the file of id 3 went");
    assert_eq!(after.len(), 3);

    let base = sales.table.head(&all).await.unwrap();
    let snapshots = sales.raw().history().await.len();
    let entry = apply(&stage(&sales.table, "r2", &all, Intent::Merge(by_id()), batch(&rows)).await.unwrap());
    let first = done(commit(&sales.table, std::slice::from_ref(&entry), &base).await.unwrap());
    assert_eq!(files().await, after);
    assert_eq!(sales.raw().history().await.len(), snapshots + 1);
    let found = sales.again().await.find_commit(&entry.stamp, &all, &base).await.unwrap();
    assert_eq!(found, Found::Yes(first.clone()));
    let again = commit(&sales.table, &[entry], &base).await.unwrap();
    assert_eq!(again, CommitOutcome::AlreadyCommitted(first));
}

/// "Keys added by another writer since the base are a conflict", and after a new base the merge meets them.
#[tokio::test]
async fn keys_that_others_add_meanwhile_are_met_on_a_new_base() {
    let (sales, all) = (Sales::with(&[(MON, Some("FR"), 1, 10)]).await, Scope::whole_table());
    let base = sales.table.head(&all).await.unwrap();
    let staged = stage(&sales.table, "slow", &all, Intent::Merge(by_id()), batch(&[(MON, None, 2, 22)]))
        .await
        .unwrap();
    sales.raw().append(&batch(&[(TUE, Some("FR"), 2, 20)])).await;
    let outcome = commit(&sales.table, &[apply(&staged)], &base).await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Conflicted { .. }), "{outcome:?}");
    let now = sales.table.head(&all).await.unwrap();
    let error = commit(&sales.table, &[apply(&staged)], &now).await.unwrap_err();
    assert!(error.to_string().contains("rebase"), "{error}");
    let staged = sales.table.rebase(&staged, &now).await.unwrap();
    done(commit(&sales.table, &[apply(&staged)], &now).await.unwrap());
    assert_eq!(sales.rows().await, texts(&[(MON, Some("FR"), 1, 10), (MON, None, 2, 22)]));
}
