//! Runs of the schedule under which production moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::shop::{ORDERS, contents, day, orders as rows, worker};
use crate::domain::interval::Grain;
use crate::domain::job::{JobSpec, TableSpec, Window};
use crate::domain::partition::Partitioning;
use crate::domain::scope::Scope;
use crate::engine::{Engine, Host, Job, RunOutcome, RunRequest, Settings};
use crate::memory::{MemoryLedger, MemoryTable};
use crate::ports::delivery::{Delivery, DeliveryState};
use crate::ports::ledger::{DeliveryFilter, LedgerReader};
use crate::ports::transform::{HostError, TaskContext};
use crate::ports::writer::{PartitionWriter, Rows};

/// A run of one day under which, while it is computed for the first time, another run with the same inputs commits, or somebody
/// else writes. Answers how it ended, and the shop.
async fn moved_under(by_run: bool) -> (RunOutcome, MovedUnder) {
    let by_day = || Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
    let (orders, copy) = (TableSpec::new("orders", by_day()), TableSpec::new("copy", by_day()));
    let source = MemoryTable::new(orders.clone());
    source.append_unmanaged(&rows(&ORDERS)).unwrap();
    let table = MemoryTable::new(copy.clone());
    let ledger = Arc::new(MemoryLedger::new());
    let times = Arc::new(AtomicU32::new(0));
    let engine = |times: Option<Arc<AtomicU32>>| {
        let mut host = Host::new("test");
        host.add_source(orders.clone(), Arc::new(source.clone())).unwrap();
        host.add_table(copy.clone(), Arc::new(table.clone())).unwrap();
        let job = JobSpec::new("copy", "ops", "copy").with_input("orders", "orders", Window::Same);
        let state = (times, table.clone());
        host.add_job(Job::new(job).transform_with("v1", state, copied)).unwrap();
        let settings = Settings { leases: false, ..Settings::default() };
        Engine::new(host, ledger.clone()).with_settings(settings)
    };
    let other = engine(None);
    let outer = engine(Some(Arc::clone(&times)));
    let meanwhile = async {
        while times.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        if by_run {
            let run = RunRequest::scheduled("other", "copy", day(1));
            assert_eq!(other.run(&run, &worker("w2")).await.unwrap(), RunOutcome::Committed);
        } else {
            let rows = rows(&[(1, 99, "DE", 1, false)]);
            table.replace_unmanaged(&Scope::key(day(1)).unwrap(), &rows).unwrap();
        }
        times.fetch_add(1, Ordering::SeqCst);
    };
    let run = RunRequest::scheduled("own", "copy", day(1));
    let me = worker("w1");
    let (outcome, ()) = futures::join!(outer.run(&run, &me), meanwhile);
    (outcome.unwrap(), MovedUnder { table, ledger })
}

struct MovedUnder {
    table: MemoryTable,
    ledger: Arc<MemoryLedger>,
}

/// Says that it has begun, and waits until something has happened.
async fn copied(
    (times, _table): (Option<Arc<AtomicU32>>, MemoryTable),
    task: TaskContext,
) -> Result<Rows, HostError> {
    let rows = task.collect("orders").await?;
    task.deliver(Delivery { key: "copied".into(), channel: "mail".into(), payload: serde_json::json!({}) });
    if let Some(times) = times
        && times.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    {
        while times.load(Ordering::SeqCst) == 1 {
            tokio::task::yield_now().await;
        }
    }
    Ok(rows.into())
}

#[tokio::test]
async fn a_run_under_which_others_wrote_is_planned_anew_and_commits() {
    let (outcome, left) = moved_under(false).await;
    assert_eq!(outcome, RunOutcome::Committed);
    let current = left.ledger.current(&"copy".into(), &[day(1)]).await.unwrap().remove(0).unwrap();
    assert_eq!((current.record.run.as_str(), current.record.after.unwrap().rows), ("own", 2));
    assert_eq!(contents(&left.table).await.len(), 2);
}

#[tokio::test]
async fn a_run_that_another_made_needless_leaves_nothing_behind() {
    let (outcome, left) = moved_under(true).await;
    assert_eq!(outcome, RunOutcome::Skipped("unchanged since run other".to_owned()));
    assert_eq!(left.ledger.run(&"own".into()).await.unwrap(), []);
    assert_eq!(left.table.staged().unwrap().list(&"own".into()).await.unwrap(), []);
    let filter = DeliveryFilter { run: Some("own".into()), ..DeliveryFilter::default() };
    let prepared = left.ledger.deliveries(&filter).await.unwrap();
    assert!(prepared.iter().all(|delivery| delivery.state == DeliveryState::Withdrawn), "{prepared:?}");
}
