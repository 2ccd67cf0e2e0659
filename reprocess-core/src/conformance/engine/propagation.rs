//! Corrections carried downstream: orders → revenue by day and country → totals by day.

use super::shop::{Shop, totals};
use crate::conformance::fixture::Fixture;
use crate::conformance::world::*;
use crate::domain::request::Mode;
use crate::engine::Publication;
use crate::ports::ledger::{BackfillState, RunStatus};

/// What v1 and v2 of the revenue add up to.
const OLD: [Row; 3] = [(MON, None, 2, 150), (TUE, None, 2, 79), (WED, None, 1, 30)];
const NEW: [Row; 3] = [(MON, None, 1, 100), (TUE, None, 1, 70), (WED, None, 1, 30)];

async fn rows(shop: &Shop) -> Vec<String> {
    shop.place.raw_rows(&totals()).await
}

/// What the run has committed, in order.
async fn committed(shop: &Shop) -> Vec<String> {
    let rows = shop.ledger.run(&"fix.1".into()).await.unwrap().into_iter().map(|row| row.record);
    let rows = rows.filter(|record| record.status == RunStatus::Committed);
    rows.map(|record| format!("{} {} {}", record.table, record.partition, record.trigger)).collect()
}

/// "Everything built from a corrected partition is recomputed, in dependency order, and only where the content really
/// changed" (DESIGN 1, "propagated"; FIELD 13).
pub(in crate::conformance) async fn what_reads_a_corrected_day_is_computed_once_and_no_other(
    f: &dyn Fixture,
) {
    for leases in [true, false] {
        let shop = Shop::carrying(f, leases, &[MON, TUE, WED]).await;
        assert_eq!(rows(&shop).await, lines(&OLD));
        assert_eq!(shop.backfill(&shop.fix(MON, WED, Mode::Direct)).await, BackfillState::Done);
        assert_eq!(rows(&shop).await, lines(&NEW));
        let mut found = committed(&shop).await;
        let place = |line: &str| found.iter().position(|known| known == line).unwrap();
        for text in [MON, TUE] {
            let day = format!("day={text}");
            let (cause, effect) = (format!("revenue {day} backfill"), format!("totals {day} propagated"));
            assert!(place(&cause) < place(&effect), "{found:?}");
        }
        found.retain(|line| line.starts_with("totals"));
        assert_eq!(found.len(), 2, "Wednesday came out as it was: {found:?}");
        assert_eq!(shop.ledger.stale().await.unwrap(), []);
        let position = shop.ledger.position().await.unwrap();
        assert_eq!(shop.execute(&"fix".into()).await, BackfillState::Done);
        assert_eq!(shop.ledger.position().await.unwrap(), position);
    }
}

/// Downstream of a shadow nothing happens before it is published (DESIGN 6).
pub(in crate::conformance) async fn a_shadow_is_carried_on_after_its_publication(f: &dyn Fixture) {
    let shop = Shop::carrying(f, true, &[MON, TUE, WED]).await;
    let request = shop.fix(MON, WED, Mode::Shadow);
    assert_eq!(shop.backfill(&request).await, BackfillState::AwaitingReview);
    shop.accept(&request.id).await;
    assert_eq!(rows(&shop).await, lines(&OLD));
    let engine = shop.engine().await;
    let published = engine.publish(&request.id, &"ann".into(), &"w1".into()).await.unwrap();
    assert_eq!(published, Publication::Published);
    assert_eq!(rows(&shop).await, lines(&OLD));
    assert_eq!(shop.execute(&request.id).await, BackfillState::Done);
    assert_eq!(rows(&shop).await, lines(&NEW));
    let found = committed(&shop).await;
    assert_eq!(found.iter().filter(|line| line.starts_with("totals")).count(), 2, "{found:?}");
}
