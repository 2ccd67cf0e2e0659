//! Writers that race: ours and others, in one process and in several.

use std::process::{Command, Stdio};

use futures::future::join_all;
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::writer::{CommitOutcome, Intent, MovedBy, PartitionWriter};
use reprocess_iceberg::IcebergTable;

use crate::others;
use crate::support::*;

/// Tells a child where the table is; without it the child's test does nothing.
const PLACE: &str = "REPROCESS_TEST_RACE_PLACE";
const NUMBER: &str = "REPROCESS_TEST_RACE_NUMBER";

fn nth_day(n: usize) -> String {
    format!("2026-{:02}-{:02}", n / 28 + 1, n % 28 + 1)
}

async fn replace_day(table: &IcebergTable, run: &str, text: &str, id: i64) -> CommitOutcome {
    let scope = days(&[text]);
    let base = table.head(&scope).await.unwrap();
    let staged =
        stage(table, run, &scope, Intent::Replace, batch(&[(text, Some("FR"), id, 1)])).await.unwrap();
    commit(table, &[apply(&staged)], &base).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_committers_of_different_partitions_all_land() {
    all_land(&Sales::new().await, 100).await;
}

/// So many days were replaced, each in one snapshot and with one data file that was written once.
async fn landed(sales: &Sales, days: usize) {
    assert_eq!(sales.rows().await.len(), days);
    assert_eq!(sales.raw().history().await.len(), days);
    assert_eq!(data_files(sales), sales.raw().files().await.len(), "no data file is written again");
    assert_eq!(sales.raw().files().await.len(), days);
}

/// Data files in the folder, whether the table knows them or not.
pub(crate) fn data_files(sales: &Sales) -> usize {
    walk(sales.folder()).into_iter().filter(|path| path.ends_with(".parquet")).count()
}

async fn all_land(sales: &Sales, committers: usize) {
    race(sales, committers).await;
    landed(sales, committers).await;
}

/// So many at once, each with a day and a handle of its own.
pub(crate) async fn race(sales: &Sales, committers: usize) {
    let mut tasks = Vec::new();
    for n in 0..committers {
        let table = sales.again().await;
        tasks.push(tokio::spawn(async move { replace_day(&table, &format!("r{n}"), &nth_day(n), 1).await }));
    }
    for outcome in join_all(tasks).await {
        done(outcome.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_committers_to_one_partition_one_wins_per_base() {
    one_wins_per_base(&Sales::new().await).await;
}

/// Of eight with one base one wins, whether the partition was empty or not; the others learn it.
pub(crate) async fn one_wins_per_base(sales: &Sales) {
    let monday = days(&[MON]);
    for round in 0..3_i64 {
        let base = sales.table.head(&monday).await.unwrap();
        let mut committers = Vec::new();
        for n in 0..8_i64 {
            let (table, monday, base) = (sales.again().await, monday.clone(), base.clone());
            committers.push(tokio::spawn(async move {
                let rows = batch(&[(MON, Some("FR"), n, round)]);
                let staged =
                    stage(&table, &format!("r{round}.{n}"), &monday, Intent::Replace, rows).await.unwrap();
                (n, commit(&table, &[apply(&staged)], &base).await.unwrap())
            }));
        }
        let outcomes: Vec<_> = join_all(committers).await.into_iter().map(Result::unwrap).collect();
        let winners: Vec<_> = outcomes
            .iter()
            .filter(|(_, o)| matches!(o, CommitOutcome::Committed(_)))
            .map(|(n, _)| *n)
            .collect();
        let conflicts =
            outcomes.iter().filter(|(_, o)| matches!(o, CommitOutcome::Conflicted { .. })).count();
        assert_eq!((winners.len(), conflicts), (1, 7), "{outcomes:?}");
        assert_eq!(sales.rows().await, texts(&[(MON, Some("FR"), winners[0], round)]));
    }
}

/// Does nothing but as the child of the test below.
#[tokio::test]
async fn a_process_that_replaces_days_of_its_own() {
    let (Ok(place), Ok(number)) = (std::env::var(PLACE), std::env::var(NUMBER)) else { return };
    let (table, number): (_, usize) =
        (serde_json::from_str::<Place>(&place).unwrap().open().await, number.parse().unwrap());
    for n in 0..8 {
        let outcome = replace_day(&table, &format!("p{number}.{n}"), &nth_day(number * 8 + n), 1).await;
        done(outcome);
    }
}

#[tokio::test]
async fn four_processes_lose_nothing() {
    let sales = Sales::new().await;
    race_of_processes(&sales).await;
    landed(&sales, 32).await;
}

/// Four processes, each with eight days of its own.
pub(crate) async fn race_of_processes(sales: &Sales) {
    let place = serde_json::to_string(sales.place()).unwrap();
    let children: Vec<_> = (0..4)
        .map(|number: u32| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "races::a_process_that_replaces_days_of_its_own", "--nocapture"])
                .env(PLACE, &place)
                .env(NUMBER, number.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}

#[tokio::test]
async fn appends_and_compactions_conflict_where_they_touch() {
    for (touched, by_rows) in [(MON, true), (MON, false), (TUE, true), (TUE, false)] {
        conflicts_where_touched(&Sales::new().await, touched, by_rows).await;
    }
}

/// What others append or compact in the partition is a conflict, and it is told which; elsewhere it is none.
pub(crate) async fn conflicts_where_touched(sales: &Sales, touched: &str, by_rows: bool) {
    let given = [(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)];
    sales.replace("given", &Scope::whole_table(), &given).await;
    // A second file in each partition, so that there is something to compact.
    let more = batch(&[(MON, Some("FR"), 3, 30), (TUE, Some("FR"), 4, 40)]);
    sales.raw().append(&more).await;
    let monday = days(&[MON]);
    let base = sales.table.head(&monday).await.unwrap();
    let rows = batch(&[(MON, Some("FR"), 1, 11)]);
    let staged = stage(&sales.table, "slow", &monday, Intent::Replace, rows).await.unwrap();
    if by_rows {
        sales.raw().append(&batch(&[(touched, Some("FR"), 9, 90)])).await;
    } else {
        let (first, second) = if touched == MON { (1, 3) } else { (2, 4) };
        let rows =
            batch(&[(touched, Some("FR"), first, first * 10), (touched, Some("FR"), second, second * 10)]);
        others::compact(&sales.raw(), &rows).await;
    }
    let before = sales.rows().await;
    let outcome = commit(&sales.table, &[apply(&staged)], &base).await.unwrap();
    if touched == TUE {
        done(outcome);
        assert!(sales.rows().await.contains(&"2026-10-05/FR/1/11".to_owned()));
        return;
    }
    let CommitOutcome::Conflicted { moved } = outcome else { panic!("no conflict: {outcome:?}") };
    let by = if by_rows { MovedBy::Content } else { MovedBy::Layout };
    assert_eq!(moved.iter().map(|m| (m.partition.clone(), m.by)).collect::<Vec<_>>(), [(day(MON), by)]);
    assert_eq!(sales.rows().await, before);
}

/// A full rebuild notices what is appended or compacted meanwhile, anywhere.
#[tokio::test]
async fn a_full_rebuild_notices_what_others_write_anywhere() {
    let sales = Sales::with(&[(MON, Some("FR"), 1, 10)]).await;
    let all = Scope::whole_table();
    let base = sales.table.head(&all).await.unwrap();
    let staged = stage(&sales.table, "all", &all, Intent::Replace, batch(&[])).await.unwrap();
    sales.raw().append(&batch(&[(TUE, None, 2, 20)])).await;
    let outcome = commit(&sales.table, &[apply(&staged)], &base).await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Conflicted { .. }), "{outcome:?}");
    assert_eq!(sales.rows().await, texts(&[(MON, Some("FR"), 1, 10), (TUE, None, 2, 20)]));
}

/// Fifty partitions in one commit conflict by partition, not as a list that is too long to be looked at.
#[tokio::test]
async fn a_commit_of_fifty_partitions_conflicts_with_none_beside_them() {
    let (sales, names) = (Sales::new().await, (0..50).map(nth_day).collect::<Vec<_>>());
    let scope = Scope::keys(names.iter().map(|name| day(name))).unwrap();
    let base = sales.table.head(&scope).await.unwrap();
    let rows: Vec<_> = names.iter().map(|name| (name.as_str(), Some("FR"), 1, 1)).collect();
    let staged = stage(&sales.table, "many", &scope, Intent::Replace, batch(&rows)).await.unwrap();
    sales.raw().append(&batch(&[("2027-01-01", None, 2, 20)])).await;
    done(commit(&sales.table, &[apply(&staged)], &base).await.unwrap());
    assert_eq!(sales.rows().await.len(), 51);
}

/// Eight replace days of their own while another program appends to a day that nobody of them writes: nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn appends_of_others_beside_our_commits_lose_nothing() {
    let sales = Sales::new().await;
    let mut tasks = Vec::new();
    for n in 0..8 {
        let table = sales.again().await;
        tasks.push(tokio::spawn(async move {
            for round in 0..4_i64 {
                done(replace_day(&table, &format!("r{n}.{round}"), &nth_day(n), round).await);
            }
        }));
    }
    let raw = sales.raw();
    tasks.push(tokio::spawn(async move {
        for id in 0..12_i64 {
            raw.append(&batch(&[("2027-01-01", None, id, 1)])).await;
        }
    }));
    for task in join_all(tasks).await {
        task.unwrap();
    }
    let mut expected: Vec<_> = (0..8).map(|n| format!("{}/FR/3/1", nth_day(n))).collect();
    expected.extend((0..12).map(|id| format!("2027-01-01/NULL/{id}/1")));
    expected.sort();
    assert_eq!(sales.rows().await, expected);
    assert_eq!(sales.raw().history().await.len(), 8 * 4 + 12);
}
