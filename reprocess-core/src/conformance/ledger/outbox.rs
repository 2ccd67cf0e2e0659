//! Laws of deliveries on their way out: "a delivery is sent at most once per confirmed key; a crash between sending and
//! confirming is resolved by asking the partner, else left `unknown` for a person" (DESIGN 1).

use crate::conformance::Fixture;
use crate::ports::delivery::{DeliveryClaim, DeliveryDecision, DeliveryEnd, DeliveryOrigin, DeliveryState};
use crate::ports::ledger::{DeliveryFilter, RunLedger, TaskFinish};

use super::fixtures::*;
use DeliveryState::{Dead, Duplicate, Released, Sending, Sent, Suppressed, Unknown};

/// Deliveries of these keys are released.
async fn released(ledger: &dyn RunLedger, keys: &[&str]) {
    ended(ledger, "r1", keys, true, None).await;
    assert_eq!(deliveries(ledger).await, vec![Released; keys.len()]);
}

/// A run prepares deliveries and ends.
async fn ended(ledger: &dyn RunLedger, run: &str, keys: &[&str], deliver: bool, backfill: Option<&str>) {
    let batch: Vec<_> = keys.iter().map(|key| mail(key)).collect();
    let backfill = backfill.map(Into::into);
    ledger.prepare_deliveries(&staged(run, 1), backfill.as_ref(), &batch, at(1)).await.unwrap();
    let mut told = entry(TaskFinish { deliver, ..finish(vec![record(run, &day(1))]) }, 1);
    told.finish.records[0].backfill = backfill;
    ledger.finish(&commit("1", &told, 1), &[told]).await.unwrap();
}

async fn take(ledger: &dyn RunLedger, worker: &str, limit: u32, now: i64) -> Vec<DeliveryClaim> {
    let channels = ["mail".to_owned(), "letter".to_owned()];
    ledger.claim_deliveries(&channels, &worker.into(), limit, TTL, at(now)).await.unwrap()
}

fn keys(claims: &[DeliveryClaim]) -> Vec<&str> {
    claims.iter().map(|claim| claim.delivery.key.as_str()).collect()
}

fn again(due: i64, in_doubt: bool) -> DeliveryEnd {
    DeliveryEnd::Again { due_at: at(due), in_doubt, note: "busy".into() }
}

pub(in crate::conformance) async fn a_delivery_is_taken_by_one_and_after_its_time_by_another_who_doubts(
    f: &dyn Fixture,
) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    released(ledger, &["a", "b", "c"]).await;
    let first = take(ledger, "w1", 2, 20).await;
    assert_eq!(keys(&first), ["a", "b"], "the oldest first, and no more than asked for");
    assert_eq!((first[0].attempt, first[0].in_doubt, first[0].worker.as_str()), (1, false, "w1"));
    assert_eq!(first[0].delivery, mail("a"));
    assert_eq!(deliveries(ledger).await, [Sending, Sending, Released]);
    let other = ledger.claim_deliveries(&["fax".to_owned()], &"w2".into(), 9, TTL, at(21)).await.unwrap();
    assert_eq!(keys(&other), [""; 0], "channels that nobody asked for are left");
    let second = take(ledger, "w2", 9, 21).await;
    assert_eq!(keys(&second), ["c"]);
    let sent = DeliveryEnd::Sent { note: Some("no. 7".into()) };
    assert!(ledger.end_delivery(&first[1], &sent, at(22)).await.unwrap());
    // The first one has not come back.
    let late = 20 + i64::try_from(TTL.as_secs()).unwrap();
    assert_eq!(keys(&take(ledger, "w2", 9, late - 1).await), [""; 0]);
    let third = take(ledger, "w3", 9, late).await;
    assert_eq!(keys(&third), ["a"]);
    assert_eq!((third[0].attempt, third[0].in_doubt), (2, true));
    let told =
        ledger.deliveries(&DeliveryFilter { state: Some(Sent), ..DeliveryFilter::default() }).await.unwrap();
    assert_eq!(told[0].delivery.key, "b");
    assert_eq!((told[0].changed_at, told[0].attempts, told[0].note.as_deref()), (at(22), 1, Some("no. 7")));
}

pub(in crate::conformance) async fn only_who_took_a_delivery_last_says_how_it_ended(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    released(ledger, &["a"]).await;
    let first = take(ledger, "w1", 1, 20).await.remove(0);
    let late = 20 + i64::try_from(TTL.as_secs()).unwrap();
    let second = take(ledger, "w2", 1, late).await.remove(0);
    let sent = DeliveryEnd::Sent { note: None };
    assert!(!ledger.end_delivery(&first, &sent, at(late)).await.unwrap());
    let namesake = DeliveryClaim { worker: "w1".into(), ..second.clone() };
    assert!(!ledger.end_delivery(&namesake, &sent, at(late)).await.unwrap());
    assert_eq!(deliveries(ledger).await, [Sending]);
    let unknown = DeliveryEnd::Unknown { note: "no answer".into() };
    assert!(ledger.end_delivery(&second, &unknown, at(late)).await.unwrap());
    assert!(!ledger.end_delivery(&second, &sent, at(late)).await.unwrap(), "it has ended");
    assert_eq!(deliveries(ledger).await, [Unknown]);
    assert_eq!(keys(&take(ledger, "w3", 1, late * 9).await), [""; 0]);
}

pub(in crate::conformance) async fn what_was_not_taken_is_tried_again_when_it_is_due(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    released(ledger, &["a"]).await;
    for (n, doubts) in [(1, false), (2, true), (3, true), (4, false)] {
        let claim = take(ledger, "w1", 1, 100 * n).await.remove(0);
        assert_eq!((claim.attempt, claim.in_doubt), (u32::try_from(n).unwrap(), n == 3 || n == 4), "{n}");
        assert!(ledger.end_delivery(&claim, &again(100 * (n + 1), doubts), at(100 * n)).await.unwrap());
        assert_eq!(keys(&take(ledger, "w1", 1, 100 * (n + 1) - 1).await), [""; 0], "it is not due");
        let waits = ledger.deliveries(&DeliveryFilter::default()).await.unwrap().remove(0);
        assert_eq!((waits.state, waits.due_at), (Released, Some(at(100 * (n + 1)))));
        assert_eq!(waits.note.as_deref(), Some("busy"));
    }
    let claim = take(ledger, "w1", 1, 900).await.remove(0);
    assert!(!claim.in_doubt, "the last one was told not to have it");
}

pub(in crate::conformance) async fn a_person_decides_about_what_is_unknown_or_dead(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    released(ledger, &["a", "b", "c", "d"]).await;
    let claims = take(ledger, "w1", 4, 20).await;
    let (unknown, dead) = (
        DeliveryEnd::Unknown { note: "no answer".into() },
        DeliveryEnd::Dead { note: "no such address".into() },
    );
    for (claim, end) in claims.iter().zip([&unknown, &unknown, &dead, &DeliveryEnd::Sent { note: None }]) {
        assert!(ledger.end_delivery(claim, end, at(21)).await.unwrap());
    }
    let decide = async |names: &[&str], decision| {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        ledger.decide_deliveries(&names, decision, &me(), at(30)).await.unwrap()
    };
    assert_eq!(decide(&["a", "d", "e"], DeliveryDecision::Sent).await, 1, "d was sent, and e is not there");
    assert_eq!(decide(&["b", "c"], DeliveryDecision::Never).await, 1, "c is dead already");
    assert_eq!(deliveries(ledger).await, [Sent, Dead, Dead, Sent]);
    assert_eq!(decide(&["c", "a"], DeliveryDecision::Again).await, 1, "a was sent");
    assert_eq!(deliveries(ledger).await, [Sent, Dead, Released, Sent]);
    let claim = take(ledger, "w2", 9, 30).await.remove(0);
    assert_eq!((claim.delivery.key.as_str(), claim.attempt, claim.in_doubt), ("c", 1, false));
}

pub(in crate::conformance) async fn a_key_is_taken_for_good_and_waits_where_a_backfill_suppressed_it(
    f: &dyn Fixture,
) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    released(ledger, &["a", "b", "c"]).await;
    let claims = take(ledger, "w1", 2, 20).await;
    assert!(ledger.end_delivery(&claims[0], &DeliveryEnd::Sent { note: None }, at(21)).await.unwrap());
    let dead = DeliveryEnd::Dead { note: "no".into() };
    assert!(ledger.end_delivery(&claims[1], &dead, at(21)).await.unwrap());
    ended(ledger, "r2", &["a", "b", "c"], true, None).await;
    assert_eq!(deliveries(ledger).await[3..], [Duplicate; 3], "sent, dead or released: not once more");
    ended(ledger, "fix.1", &["x", "y"], false, Some("fix")).await;
    ended(ledger, "r3", &["x"], true, None).await;
    assert_eq!(
        deliveries(ledger).await[6..],
        [Suppressed, Suppressed, Suppressed],
        "a live run sends no suppressed key"
    );
    ended(ledger, "again.1", &["y"], true, Some("again")).await;
    assert_eq!(deliveries(ledger).await[9..], [Released], "a backfill that is to deliver does");
    assert_eq!(ledger.release_deliveries(&["x".into(), "y".into()], &me(), at(40)).await.unwrap(), 1);
    assert_eq!(deliveries(ledger).await[6..], [Duplicate, Duplicate, Released, Released], "the latest x");
}

pub(in crate::conformance) async fn what_is_announced_is_filed_once(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    let origin = DeliveryOrigin { staged: None, run: Some("fix.1".into()), backfill: Some("fix".into()) };
    assert_eq!(ledger.announce(&origin, &[mail("n1"), mail("n2"), mail("n1")], at(1)).await.unwrap(), 2);
    assert_eq!(ledger.announce(&origin, &[mail("n2"), mail("n3")], at(2)).await.unwrap(), 1);
    assert_eq!(deliveries(ledger).await, [Released; 3]);
    let announce = vec![mail("e1"), mail("n1")];
    let told = entry(TaskFinish { announce, ..finish(vec![record("r1", &day(1))]) }, 1);
    for _ in 0..2 {
        ledger.finish(&commit("1", &told, 1), std::slice::from_ref(&told)).await.unwrap();
    }
    let of_run = DeliveryFilter { run: Some("r1".into()), ..DeliveryFilter::default() };
    let found = ledger.deliveries(&of_run).await.unwrap();
    assert_eq!(found.iter().map(|d| d.delivery.key.as_str()).collect::<Vec<_>>(), ["e1"]);
    assert_eq!((found[0].state, &found[0].staged, found[0].changed_at), (Released, &None, at(15)));
    let of_backfill = DeliveryFilter { backfill: Some("fix".into()), ..DeliveryFilter::default() };
    assert_eq!(ledger.deliveries(&of_backfill).await.unwrap().len(), 3);
    assert_eq!(keys(&take(ledger, "w1", 9, 20).await), ["n1", "n2", "n3", "e1"]);
}
