//! Commits that the ledger is told of late.

use std::sync::Arc;

use super::shop::{Shop, day, worker};
use crate::conformance::faults::{Fault, FaultyLedger, FaultyTable, Fuse};
use crate::domain::scope::Scope;
use crate::engine::RunRequest;
use crate::ports::ledger::LedgerReader;
use crate::ports::writer::PartitionWriter;

/// A run dies after a call, another one runs over its partition, then the first is started again.
async fn check(n: i64) -> bool {
    let shop = Shop::new();
    shop.scheduled("revenue", 2, 2).await;
    let fuse = Fuse::new(n, Fault::DiesAfter);
    let ledger = Arc::new(FaultyLedger { inner: shop.ledger.clone(), fuse: fuse.clone() });
    let table = Arc::new(FaultyTable::new(Arc::new(shop.revenue.clone()), fuse.clone()));
    let first = RunRequest::scheduled("first", "revenue", day(2)).with_logic("v2");
    let (dying, w1) = (shop.engine_over(ledger, table), worker("w1"));
    tokio::select! {
        done = dying.run(&first, &w1) => drop(done.unwrap()),
        () = fuse.died() => {}
    }
    let second = RunRequest::scheduled("second", "revenue", day(2)).with_logic("v1");
    let _ = shop.engine().run(&second, &worker("w2")).await.unwrap();
    let _ = shop.engine().run(&first, &worker("w1")).await.unwrap();
    let head = shop.revenue.head(&Scope::key(day(2)).unwrap()).await.unwrap();
    let current = shop.ledger.current(&"revenue".into(), &[day(2)]).await.unwrap().remove(0).unwrap();
    let (run, output) = (current.record.run, current.record.output_partition);
    assert_eq!(output.as_ref(), head.partitions.get(&day(2)), "call {n}: {run}");
    !fuse.is_whole()
}

#[tokio::test]
async fn a_run_that_was_superseded_before_the_ledger_knew_of_it_never_becomes_current() {
    let mut n = 0;
    while check(n).await {
        n += 1;
    }
    assert!(n > 8, "only {n} calls: the faults did not reach the engine");
}
