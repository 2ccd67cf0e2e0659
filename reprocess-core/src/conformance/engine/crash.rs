//! A process dies, or loses a reply, at every single call of a port, and another one goes on: "a process that dies between
//! any two steps leaves work that another completes without recomputing what is staged and intact" (DESIGN 6; FIELD 16, 17,
//! 19). Each law is tried with leases on and off.

use std::sync::Arc;

use super::faults::{Fault, FaultyLedger, FaultyTable, Fuse};
use super::shop::{NEW, Shop, revenue};
use crate::conformance::fixture::Fixture;
use crate::conformance::world::*;
use crate::domain::ids::{Actor, BackfillId, WorkerId};
use crate::domain::request::Mode;
use crate::engine::Publication;
use crate::ports::delivery::DeliveryState;
use crate::ports::ledger::BackfillState;

pub(in crate::conformance) async fn a_direct_backfill_survives_a_death_before_any_call(f: &dyn Fixture) {
    every_call(f, true, Fault::DiesBefore, Mode::Direct).await;
}

pub(in crate::conformance) async fn a_direct_backfill_survives_a_death_after_any_call(f: &dyn Fixture) {
    every_call(f, true, Fault::DiesAfter, Mode::Direct).await;
}

pub(in crate::conformance) async fn a_direct_backfill_survives_the_loss_of_any_reply(f: &dyn Fixture) {
    every_call(f, true, Fault::LosesReply, Mode::Direct).await;
}

pub(in crate::conformance) async fn without_leases_it_survives_a_death_before_any_call(f: &dyn Fixture) {
    every_call(f, false, Fault::DiesBefore, Mode::Direct).await;
}

pub(in crate::conformance) async fn without_leases_it_survives_a_death_after_any_call(f: &dyn Fixture) {
    every_call(f, false, Fault::DiesAfter, Mode::Direct).await;
}

pub(in crate::conformance) async fn without_leases_it_survives_the_loss_of_any_reply(f: &dyn Fixture) {
    every_call(f, false, Fault::LosesReply, Mode::Direct).await;
}

pub(in crate::conformance) async fn a_shadow_survives_a_death_before_any_call(f: &dyn Fixture) {
    every_call(f, true, Fault::DiesBefore, Mode::Shadow).await;
}

pub(in crate::conformance) async fn a_shadow_survives_a_death_after_any_call(f: &dyn Fixture) {
    every_call(f, true, Fault::DiesAfter, Mode::Shadow).await;
}

pub(in crate::conformance) async fn a_shadow_survives_the_loss_of_any_reply(f: &dyn Fixture) {
    every_call(f, true, Fault::LosesReply, Mode::Shadow).await;
}

pub(in crate::conformance) async fn without_leases_a_shadow_survives_a_death_after_any_call(f: &dyn Fixture) {
    every_call(f, false, Fault::DiesAfter, Mode::Shadow).await;
}

/// The table, what the ledger says was changed, and the deliveries that wait.
type Left = (Vec<String>, Vec<String>, Vec<String>);

async fn left(shop: &Shop) -> Left {
    (shop.rows().await, shop.changes().await, shop.deliveries(DeliveryState::Suppressed).await)
}

async fn every_call(f: &dyn Fixture, leases: bool, fault: Fault, mode: Mode) {
    let shop = Shop::open(f, leases, &[MON, TUE]).await;
    let _ = shop.backfill(&shop.fix(MON, TUE, mode)).await;
    if mode == Mode::Shadow {
        shop.accept(&"fix".into()).await;
        publish(&shop).await;
    }
    let clean = left(&shop).await;
    assert_eq!(clean.0, lines(&NEW[..2]));
    assert_eq!(clean.1.len(), 2, "one row for each partition");
    let of_schedule_and_backfill = [1, 1, 2, 3, 3, 4].map(|id| format!("receipt-{id}"));
    assert_eq!(clean.2, of_schedule_and_backfill);
    let mut n = 0;
    while survives(f, leases, (n, fault), mode, &clean).await {
        n += 1;
    }
    assert!(n > 12, "only {n} calls: the faults did not reach the engine");
}

async fn publish(shop: &Shop) {
    let done = shop.engine().await.publish(&"fix".into(), &"ann".into(), &"w2".into()).await.unwrap();
    assert_eq!(done, Publication::Published);
}

/// Runs the backfill with a fault at one call, goes on without; answers whether there was such a call.
async fn survives(f: &dyn Fixture, leases: bool, (n, fault): (i64, Fault), mode: Mode, clean: &Left) -> bool {
    let shop = Shop::open(f, leases, &[MON, TUE]).await;
    let before = shop.computed();
    let _ = shop.approved(&shop.fix(MON, TUE, mode)).await;
    let fuse = Fuse::new(n, fault);
    let ledger = Arc::new(FaultyLedger { inner: shop.place.ledger().await, fuse: Arc::clone(&fuse) });
    let writer = shop.place.open(&revenue()).await.writer;
    let faulty = shop.engine_over(ledger, Arc::new(FaultyTable::new(writer, Arc::clone(&fuse)))).await;
    let (id, ann, first) = (BackfillId::from("fix"), Actor::from("ann"), WorkerId::from("w1"));
    tokio::select! {
        done = faulty.execute(&id, &first, |_| {}) => {
            let _ = done.unwrap_or_else(|e| panic!("call {n}, {fault:?}: {e}"));
        }
        () = fuse.died() => {}
    }
    if mode == Mode::Shadow {
        let _ = shop.execute(&id).await;
        shop.accept(&id).await;
        tokio::select! {
            done = faulty.publish(&id, &ann, &first) => {
                let done = done.unwrap_or_else(|e| panic!("call {n}, {fault:?}: {e}"));
                assert_eq!(done, Publication::Published, "call {n}, {fault:?}");
            }
            () = fuse.died() => {}
        }
        publish(&shop).await;
    } else {
        assert_eq!(shop.execute(&id).await, BackfillState::Published, "call {n}, {fault:?}");
    }
    assert_eq!(left(&shop).await, *clean, "call {n}, {fault:?}");
    let computed = shop.computed() - before;
    assert!(computed <= 3, "call {n}, {fault:?}: two days, and the one in flight, but computed {computed}");
    !fuse.is_whole()
}
