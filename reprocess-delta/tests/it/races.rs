//! Writers that race: ours and others, in one process and in several.

use std::process::{Command, Stdio};

use deltalake::operations::optimize::OptimizeType;
use futures::future::join_all;
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::writer::{CommitOutcome, Intent, MovedBy, PartitionWriter};
use reprocess_delta::{DeltaTable, deltalake};

use crate::support::*;

/// Tells a child where the table is; without it the child's test does nothing.
const PLACE: &str = "REPROCESS_TEST_RACE_PLACE";
const NUMBER: &str = "REPROCESS_TEST_RACE_NUMBER";

fn nth_day(n: usize) -> String {
    format!("2026-{:02}-{:02}", n / 28 + 1, n % 28 + 1)
}

async fn replace_day(table: &DeltaTable, run: &str, text: &str, id: i64) -> CommitOutcome {
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

/// So many at once, each with a handle of its own: all land, and every version is one of theirs.
pub(crate) async fn all_land(sales: &Sales, committers: usize) {
    let tasks = (0..committers).map(|n| {
        let table = sales.again();
        tokio::spawn(async move { replace_day(&table, &format!("r{n}"), &nth_day(n), 1).await })
    });
    for outcome in join_all(tasks).await {
        done(outcome.unwrap());
    }
    assert_eq!(sales.rows().await.len(), committers);
    assert_eq!(sales.raw().await.version(), Some(u64::try_from(committers).unwrap()));
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
        let committers = (0..8_i64).map(|n| {
            let (table, monday, base) = (sales.again(), monday.clone(), base.clone());
            tokio::spawn(async move {
                let rows = batch(&[(MON, Some("FR"), n, round)]);
                let staged =
                    stage(&table, &format!("r{round}.{n}"), &monday, Intent::Replace, rows).await.unwrap();
                (n, commit(&table, &[apply(&staged)], &base).await.unwrap())
            })
        });
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
        (serde_json::from_str::<Place>(&place).unwrap().open(), number.parse().unwrap());
    for n in 0..8 {
        let outcome = replace_day(&table, &format!("p{number}.{n}"), &nth_day(number * 8 + n), 1).await;
        done(outcome);
    }
}

#[tokio::test]
async fn four_processes_lose_nothing() {
    processes_lose_nothing(&Sales::new().await).await;
}

pub(crate) async fn processes_lose_nothing(sales: &Sales) {
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
    assert_eq!(sales.rows().await.len(), 32);
    assert_eq!(sales.raw().await.version(), Some(32));
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
    sales.raw().await.write([more]).await.unwrap();
    let monday = days(&[MON]);
    let base = sales.table.head(&monday).await.unwrap();
    let rows = batch(&[(MON, Some("FR"), 1, 11)]);
    let staged = stage(&sales.table, "slow", &monday, Intent::Replace, rows).await.unwrap();
    if by_rows {
        sales.raw().await.write([batch(&[(touched, Some("FR"), 9, 90)])]).await.unwrap();
    } else {
        let filter = [("day", deltalake::FilterOp::Eq, deltalake::FilterValue::Scalar(touched))];
        let (_, metrics) = sales
            .raw()
            .await
            .optimize()
            .with_type(OptimizeType::Compact)
            .with_filters(&filter)
            .await
            .unwrap();
        assert_eq!((metrics.num_files_removed, metrics.num_files_added), (2, 1));
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
    sales.raw().await.write([batch(&[(TUE, None, 2, 20)])]).await.unwrap();
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
    sales.raw().await.write([batch(&[("2027-01-01", None, 2, 20)])]).await.unwrap();
    done(commit(&sales.table, &[apply(&staged)], &base).await.unwrap());
    assert_eq!(sales.rows().await.len(), 51);
}
