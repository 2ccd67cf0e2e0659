//! Laws of pools: caps that hold over all processes, and who comes next.

use crate::domain::pool::Pool;
use crate::ports::ledger::{RunLedger, SlotAsk, SlotClass};

use super::fixtures::*;
use crate::conformance::Fixture;
use SlotClass::{Backfill, Scheduled};

fn ask(holder: &str, class: SlotClass, slots: u32, for_backfills: u32) -> SlotAsk {
    let pool = Pool::new("db", slots.try_into().unwrap()).with_slots_for_backfills(for_backfills);
    SlotAsk { pool, holder: holder.into(), class, priority: 0 }
}

async fn has(ledger: &dyn RunLedger, ask: &SlotAsk, now: i64) -> bool {
    ledger.ask_slot(ask, TTL, at(now)).await.unwrap()
}

/// "Pools with a concurrency cap, a priority and a guaranteed minimum; scheduled work goes before backfill work" (DESIGN 6).
pub(in crate::conformance) async fn no_more_tasks_have_slots_than_there_are(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    let [a, b, c] = ["a", "b", "c"].map(|holder| ask(holder, Scheduled, 2, 0));
    assert!(has(ledger, &a, 0).await && has(ledger, &b, 1).await);
    assert!(!has(ledger, &c, 2).await);
    assert!(has(ledger, &a, 3).await, "it has one, and asks to keep it");
    let elsewhere = SlotAsk { pool: Pool::new("other", 1.try_into().unwrap()), ..c.clone() };
    assert!(has(ledger, &elsewhere, 4).await, "of another pool");
    ledger.end_slot(&a).await.unwrap();
    ledger.end_slot(&a).await.unwrap();
    assert!(has(ledger, &c, 5).await);
    assert!(!has(ledger, &a, 6).await);
    // The second has not asked again in time; the third has.
    assert!(has(ledger, &c, 59).await && !has(ledger, &a, 60).await);
    assert!(has(ledger, &a, 61).await);
    assert!(!has(ledger, &b, 62).await, "it came back too late");
}

/// Who waits is served in order: the schedule first, backfills as far as slots are theirs, by priority, by time.
pub(in crate::conformance) async fn the_schedule_comes_first_and_backfills_keep_their_slots(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    let [b1, b2, b3] = ["b1", "b2", "b3"].map(|holder| ask(holder, Backfill, 2, 1));
    let [s1, s2] = ["s1", "s2"].map(|holder| ask(holder, Scheduled, 2, 1));
    assert!(has(ledger, &b1, 0).await && has(ledger, &b2, 1).await);
    assert!(!has(ledger, &b3, 2).await && !has(ledger, &s1, 3).await);
    let urgent = SlotAsk { priority: 5, ..s2.clone() };
    assert!(!has(ledger, &urgent, 4).await);
    ledger.end_slot(&b1).await.unwrap();
    assert!(!has(ledger, &b3, 5).await, "it asked first, and the schedule comes before it");
    assert!(!has(ledger, &s1, 6).await, "another is more urgent");
    assert!(has(ledger, &urgent, 7).await);
    ledger.end_slot(&b2).await.unwrap();
    assert!(!has(ledger, &s1, 8).await, "one slot is for backfills");
    assert!(has(ledger, &b3, 9).await);
}
