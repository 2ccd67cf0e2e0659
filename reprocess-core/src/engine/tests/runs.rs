use std::sync::atomic::Ordering;

use super::shop::{Shop, day, fix, orders, revenue_table, revenues, worker};
use crate::domain::decimal::Decimal;
use crate::domain::request::WhenLeased;
use crate::domain::scope::Scope;
use crate::engine::{RunOutcome, RunRequest};
use crate::error::ErrorKind;
use crate::ports::clock::Clock;
use crate::ports::ledger::{LedgerReader, RunLedger, RunStatus};

#[tokio::test]
async fn the_same_run_id_again_is_the_same_run() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 1).await;
    shop.orders.append_unmanaged(&orders(&[(1, 8, "FR", 1, false)])).unwrap();
    let again = RunRequest::scheduled("revenue-1", "revenue", day(1));
    assert_eq!(shop.engine().run(&again, &worker("w")).await.unwrap(), RunOutcome::Committed);
    assert_eq!(revenues(&shop).await, ["01 FR 15000"], "adopted, not run again");
    assert_eq!(shop.rows_in_ledger().await, 1);
    let next = RunRequest::scheduled("revenue-1b", "revenue", day(1));
    let _ = shop.engine().run(&next, &worker("w")).await.unwrap();
    assert_eq!(revenues(&shop).await, ["01 FR 15001"]);
}

#[tokio::test]
async fn an_unchanged_partition_is_skipped_unless_the_table_moved() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 1).await;
    let next = |run: &str| RunRequest::scheduled(run, "revenue", day(1));
    let outcome = shop.engine().run(&next("b"), &worker("w")).await.unwrap();
    assert_eq!(outcome, RunOutcome::Skipped("unchanged since run revenue-1".into()));
    // Somebody else writes the same rows again: another version, the same content.
    let same = super::shop::contents(&shop.revenue).await;
    let scope = Scope::key(day(1)).unwrap();
    let version = crate::ports::reader::SnapshotReader::current(&shop.revenue).await.unwrap();
    let batch = read_revenue(&shop).await;
    shop.revenue.replace_unmanaged(&scope, &batch).unwrap();
    assert_ne!(crate::ports::reader::SnapshotReader::current(&shop.revenue).await.unwrap(), version);
    let outcome = shop.engine().run(&next("c"), &worker("w")).await.unwrap();
    assert_eq!(outcome, RunOutcome::Skipped("unchanged since run revenue-1".into()));
    assert_eq!(super::shop::contents(&shop.revenue).await, same);
    // Somebody else empties the day.
    shop.revenue.replace_unmanaged(&scope, &batch.slice(0, 0)).unwrap();
    assert_eq!(shop.engine().run(&next("d"), &worker("w")).await.unwrap(), RunOutcome::Committed);
    assert_eq!(super::shop::contents(&shop.revenue).await, same);
}

async fn read_revenue(shop: &Shop) -> arrow_array::RecordBatch {
    use crate::domain::slice::{Pin, Slice};
    use crate::ports::reader::SnapshotReader;
    use futures::TryStreamExt;
    let version = shop.revenue.current().await.unwrap();
    let content = shop.revenue.slice_versions(&version, &[Slice::All]).await.unwrap().remove(0);
    let pin = Pin { table: revenue_table(), version, slice: Slice::All, content };
    let (schema, rows) = shop.revenue.read(&pin).await.unwrap();
    let batches: Vec<_> = rows.try_collect().await.unwrap();
    arrow_select::concat::concat_batches(&schema, &batches).unwrap()
}

#[tokio::test]
async fn a_lease_that_another_holds_is_waited_for_left_or_refused() {
    let shop = Shop::new();
    let engine = shop.engine();
    let scope = Scope::key(day(1)).unwrap();
    let ttl = std::time::Duration::from_secs(60);
    let (table, other) = (revenue_table(), worker("other"));
    let hold = || shop.ledger.acquire(&table, &scope, &other, ttl, shop.clock.now());
    hold().await.unwrap().unwrap();
    let run = |policy| RunRequest::scheduled("r", "revenue", day(1)).with_when_leased(policy);
    let left = engine.run(&run(WhenLeased::Skip), &worker("w")).await.unwrap();
    assert_eq!(left, RunOutcome::Skipped("another run holds the partition".into()));
    let error = engine.run(&run(WhenLeased::Fail), &worker("w")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::State);
    // Waiting moves the clock, so the other's lease runs out.
    assert_eq!(engine.run(&run(WhenLeased::Wait), &worker("w")).await.unwrap(), RunOutcome::Committed);
    let other_day = RunRequest::scheduled("r2", "revenue", day(2)).with_when_leased(WhenLeased::Fail);
    hold().await.unwrap().unwrap();
    assert_eq!(engine.run(&other_day, &worker("w")).await.unwrap(), RunOutcome::Committed);
}

#[tokio::test]
async fn a_failed_run_is_recorded_and_may_succeed_later() {
    let shop = Shop::new();
    shop.switches.fails_on.store(1, Ordering::SeqCst);
    let run = RunRequest::scheduled("r", "revenue", day(1));
    assert!(shop.engine().run(&run, &worker("w")).await.is_err());
    let rows = shop.ledger.run(&"r".into()).await.unwrap();
    assert_eq!((rows.len(), rows[0].record.status), (1, RunStatus::Failed));
    shop.switches.fails_on.store(0, Ordering::SeqCst);
    let _ = shop.engine().run(&run, &worker("w")).await.unwrap();
    let rows = shop.ledger.run(&"r".into()).await.unwrap();
    assert_eq!((rows.len(), rows[0].record.status), (1, RunStatus::Committed));
}

#[tokio::test]
async fn the_ledger_explains_a_partition_and_what_is_outdated() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    let _ = shop.backfill(&fix(1, 2)).await;
    let engine = shop.engine();
    let why = engine.explain(&revenue_table(), &day(1)).await.unwrap();
    let current = why.current.unwrap().record;
    assert_eq!((current.run.as_str(), current.reason.as_str()), ("fix.1", "refunds were counted"));
    assert_eq!(why.as_left, Some(true));
    assert_eq!(why.history.len(), 2);
    // The schedule runs v1, the last one that was registered.
    let outdated: Vec<_> = engine.outdated().await.unwrap().into_iter().map(|o| o.partition).collect();
    assert_eq!(outdated, [day(1), day(2)]);
}

#[tokio::test]
async fn totals_of_two_layers_reconcile_or_not() {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 2).await;
    shop.scheduled("balance", 1, 2).await;
    let found = shop.engine().reconcile(&"balance".into(), "revenue", "cents", "cents").await.unwrap();
    let of = |cents: i64| Some(Decimal::from(cents));
    assert_eq!((found[0].upper, found[0].lower, found[0].agrees), (of(15_000), of(15_000), true));
    assert_eq!((found[1].upper, found[1].lower, found[1].agrees), (of(22_900), of(7_900), false));
}

#[tokio::test]
async fn a_check_of_determinism_leaves_nothing_behind() {
    let shop = Shop::new();
    let engine = shop.engine();
    let found =
        engine.check_determinism(&"revenue".into(), &"v1".into(), &day(1), &worker("w")).await.unwrap();
    assert!(found.holds(), "{found}");
    assert_eq!(shop.rows_in_ledger().await, 0);
    assert!(revenues(&shop).await.is_empty());
}

#[tokio::test]
async fn a_run_never_passes_for_the_run_of_a_backfill() {
    let shop = Shop::new();
    let run = |id: &str| RunRequest::scheduled(id, "revenue", day(1));
    let _ = shop.engine().run(&run("fix.1"), &worker("schedule")).await.unwrap();
    let engine = shop.engine();
    let plan = engine.plan(&fix(1, 2)).await.unwrap();
    let error = engine.submit(&plan, &"ann".into()).await.unwrap_err();
    assert_eq!(error.message(), "a run outside of any backfill is called `fix.1`");
    let mut other = fix(1, 2);
    other.id = "other".into();
    let _ = shop.backfill(&other).await;
    let error = engine.run(&run("other.2"), &worker("schedule")).await.unwrap_err();
    assert_eq!(error.message(), "run ids like `other.1` are those of the backfill `other`");
}
