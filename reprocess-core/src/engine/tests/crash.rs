//! A process that dies, or loses a reply, at every single port call; another one goes on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::faults::{Fault, FaultyLedger, FaultyTable, Fuse};
use super::shop::{Shop, fix, revenues, worker};
use crate::domain::ids::{Actor, BackfillId};
use crate::domain::request::Mode;
use crate::engine::Publication;
use crate::ports::delivery::DeliveryState;
use crate::ports::ledger::{BackfillState, DeliveryFilter, LedgerReader};

/// What a run leaves: table, ledger rows (partition, digest, attempts aside), deliveries.
async fn left(shop: &Shop) -> (Vec<String>, Vec<String>, Vec<String>) {
    let rows = shop.ledger.changes(&"fix".into()).await.unwrap();
    let mut rows: Vec<_> = rows
        .iter()
        .map(|r| {
            let (before, after) = (r.record.before.as_ref(), r.record.after.as_ref());
            let cents =
                |p: Option<&crate::domain::profile::Profile>| p.and_then(|p| p.totals.get("cents").copied());
            format!("{} {:?} {:?} {:?}", r.record.partition, r.record.status, cents(before), cents(after))
        })
        .collect();
    rows.sort();
    let filter = DeliveryFilter { state: Some(DeliveryState::Suppressed), ..DeliveryFilter::default() };
    let deliveries = shop.ledger.deliveries(&filter).await.unwrap();
    let mut deliveries: Vec<_> = deliveries.into_iter().map(|d| d.delivery.key).collect();
    deliveries.sort();
    (revenues(shop).await, rows, deliveries)
}

/// Runs the backfill with a fault at call `n`, goes on without; answers whether the fault happened.
async fn check(n: i64, fault: Fault, mode: Mode, clean: &(Vec<String>, Vec<String>, Vec<String>)) -> bool {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    let computed_before = shop.switches.computed.load(Ordering::SeqCst);
    let _ = shop.approved(&shop.engine(), &fix(1, 3).with_mode(mode)).await;
    let fuse = Fuse::new(n, fault);
    let ledger = Arc::new(FaultyLedger { inner: shop.ledger.clone(), fuse: fuse.clone() });
    let table = Arc::new(FaultyTable::new(shop.revenue.clone(), fuse.clone()));
    let faulty = shop.engine_over(ledger, table);
    let (id, ann, first) = (BackfillId::from("fix"), Actor::from("ann"), worker("w1"));
    tokio::select! {
        done = faulty.execute(&id, &first, |_| {}) => {
            let _ = done.unwrap_or_else(|e| panic!("call {n}, {fault:?}: {e}"));
        }
        () = fuse.died() => {}
    }
    if mode == Mode::Shadow {
        let _ = shop.engine().execute(&id, &worker("w2"), |_| {}).await.unwrap();
        shop.accept("fix").await;
        tokio::select! {
            done = faulty.publish(&id, &ann, &first) => {
                let done = done.unwrap_or_else(|e| panic!("call {n}, {fault:?}: {e}"));
                assert_eq!(done, Publication::Published, "call {n}, {fault:?}");
            }
            () = fuse.died() => {}
        }
        let done = shop.engine().publish(&id, &"ann".into(), &worker("w2")).await.unwrap();
        assert_eq!(done, Publication::Published, "call {n}, {fault:?}");
    } else {
        let done = shop.engine().execute(&id, &worker("w2"), |_| {}).await.unwrap();
        assert_eq!(done.state, BackfillState::Published, "call {n}, {fault:?}: {:?}", done.tasks);
    }
    assert_eq!(left(&shop).await, *clean, "call {n}, {fault:?}");
    let computed = shop.switches.computed.load(Ordering::SeqCst) - computed_before;
    assert!(computed <= 4, "call {n}, {fault:?}: three days, and the one in flight, but computed {computed}");
    !fuse.is_whole()
}

async fn every_call(fault: Fault, mode: Mode) {
    let shop = Shop::new();
    shop.scheduled("revenue", 1, 3).await;
    let _ = shop.backfill(&fix(1, 3).with_mode(mode)).await;
    if mode == Mode::Shadow {
        shop.accept("fix").await;
        let _ = shop.engine().publish(&"fix".into(), &"ann".into(), &worker("w1")).await.unwrap();
    }
    let clean = left(&shop).await;
    assert_eq!(clean.0, ["01 FR 10000", "02 FR 7000", "03 FR 3000"]);
    assert_eq!(clean.1.len(), 3);
    let mut n = 0;
    while check(n, fault, mode, &clean).await {
        n += 1;
    }
    assert!(n > 20, "only {n} calls: the faults did not reach the engine");
}

#[tokio::test]
async fn a_direct_backfill_survives_a_death_before_any_call() {
    every_call(Fault::DiesBefore, Mode::Direct).await;
}

#[tokio::test]
async fn a_direct_backfill_survives_a_death_after_any_call() {
    every_call(Fault::DiesAfter, Mode::Direct).await;
}

#[tokio::test]
async fn a_direct_backfill_survives_the_loss_of_any_reply() {
    every_call(Fault::LosesReply, Mode::Direct).await;
}

#[tokio::test]
async fn a_shadow_survives_a_death_before_any_call() {
    every_call(Fault::DiesBefore, Mode::Shadow).await;
}

#[tokio::test]
async fn a_shadow_survives_a_death_after_any_call() {
    every_call(Fault::DiesAfter, Mode::Shadow).await;
}

#[tokio::test]
async fn a_shadow_survives_the_loss_of_any_reply() {
    every_call(Fault::LosesReply, Mode::Shadow).await;
}
