//! What owners and schedulers are told.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::{Value as Json, json};

use super::shop::*;
use crate::conformance::faults::{Fault, FaultyLedger, Fuse};
use crate::domain::ids::BackfillId;
use crate::engine::deliver::check_keys;
use crate::error::{ErrorKind, Result};
use crate::ports::delivery::{Answer, Delivery, DeliverySink, Known};
use crate::ports::ledger::BackfillState;
use crate::ports::notify::{EVENTS, NOTICES};

#[derive(Debug)]
struct Listener {
    channel: &'static str,
    heard: Mutex<Vec<Delivery>>,
}

impl Listener {
    fn of(channel: &'static str) -> Arc<Self> {
        Arc::new(Self { channel, heard: Mutex::default() })
    }

    fn payloads(&self) -> Vec<Json> {
        self.heard.lock().unwrap().iter().map(|delivery| delivery.payload.clone()).collect()
    }
}

#[async_trait]
impl DeliverySink for Listener {
    fn channel(&self) -> &str {
        self.channel
    }

    async fn send(&self, delivery: &Delivery) -> Result<Answer> {
        self.heard.lock().unwrap().push(delivery.clone());
        Ok(Answer::Accepted { note: None })
    }

    async fn ask(&self, delivery: &Delivery) -> Result<Known> {
        let heard = self.heard.lock().unwrap().iter().any(|known| known.key == delivery.key);
        Ok(if heard { Known::Received } else { Known::NotReceived })
    }
}

fn of_state(notices: &[Json], state: &str) -> Vec<Json> {
    notices.iter().filter(|notice| notice["state"] == state).cloned().collect()
}

#[tokio::test]
async fn owners_are_told_once_what_changed() {
    let mut shop = Shop::new();
    let notices = Listener::of(NOTICES);
    shop.sinks.push(notices.clone());
    shop.scheduled("revenue", 1, 2).await;
    shop.scheduled("balance", 1, 2).await;
    let _ = shop.backfill(&fix(1, 2)).await;
    let published = of_state(&notices.payloads(), "published");
    let owners: Vec<_> = published.iter().map(|notice| &notice["owner"]).collect();
    assert_eq!(owners, ["finance", "ops"], "of the job, and of what reads its table");
    let told = &published[1];
    assert_eq!(
        (&told["backfill"], &told["generation"], &told["reason"]),
        (&json!("fix"), &json!(1), &json!("refunds were counted"))
    );
    assert_eq!(told["changes"].as_array().unwrap().len(), 1);
    let changes = &told["changes"][0];
    assert_eq!(changes["table"], "revenue");
    // 15,000 of day 1, 7,000 and 900 of day 2; without the refunds 10,000 and 7,000.
    let before = json!({ "rows": 3, "totals": { "cents": { "exact": "22900" } } });
    let after = json!({ "rows": 2, "totals": { "cents": { "exact": "17000" } } });
    assert_eq!(changes["all"], json!({ "before": before, "after": after }));
    let second = &changes["partitions"][1];
    assert_eq!(second[1]["before"], json!({ "rows": 2, "totals": { "cents": { "exact": "7900" } } }));
    assert_eq!(second[1]["after"], json!({ "rows": 1, "totals": { "cents": { "exact": "7000" } } }));
    let _ = shop.engine().execute(&"fix".into(), &worker("w2"), |_| {}).await.unwrap();
    assert_eq!(of_state(&notices.payloads(), "published").len(), 2);
}

#[tokio::test]
async fn of_what_is_carried_on_owners_are_told_once_and_of_all_of_it() {
    let mut shop = Shop::new();
    let notices = Listener::of(NOTICES);
    shop.sinks.push(notices.clone());
    shop.scheduled("revenue", 1, 2).await;
    shop.scheduled("balance", 1, 2).await;
    let mut request = fix(1, 2);
    request.propagate = true;
    assert_eq!(shop.backfill(&request).await.state, BackfillState::Done);
    assert_eq!(of_state(&notices.payloads(), "published"), [json!(null); 0]);
    let done = of_state(&notices.payloads(), "done");
    let owners: Vec<_> = done.iter().map(|notice| &notice["owner"]).collect();
    assert_eq!(owners, ["finance", "ops"]);
    let tables: Vec<_> =
        done[0]["changes"].as_array().unwrap().iter().map(|change| &change["table"]).collect();
    assert_eq!(tables, ["balance", "revenue"]);
    // 15,000 and 22,900 carried over; without the refunds 10,000 and 17,000.
    let before = json!({ "rows": 2, "totals": { "cents": { "exact": "37900" } } });
    let after = json!({ "rows": 2, "totals": { "cents": { "exact": "27000" } } });
    assert_eq!(done[0]["changes"][0]["all"], json!({ "before": before, "after": after }));
}

#[tokio::test]
async fn schedulers_are_told_of_every_partition_that_was_published() {
    let mut shop = Shop::new();
    let events = Listener::of(EVENTS);
    shop.sinks.push(events.clone());
    shop.scheduled("revenue", 1, 2).await;
    // The same again publishes nothing.
    shop.scheduled("revenue", 1, 2).await;
    let _ = shop.backfill(&fix(2, 2)).await;
    let all = events.payloads();
    let interval = (&all[1]["data_interval_start"], &all[1]["data_interval_end"]);
    assert_eq!(interval, (&json!("2026-10-02T00:00:00Z"), &json!("2026-10-03T00:00:00Z")));
    let told: Vec<_> = all
        .iter()
        .map(|event| format!("{} {} {} {}", event["table"], event["run"], event["trigger"], event["logic"]))
        .collect();
    let expected = [
        r#""revenue" "revenue-1" "scheduled" "v1""#,
        r#""revenue" "revenue-2" "scheduled" "v1""#,
        r#""revenue" "fix.1" "backfill" "v2""#,
    ];
    assert_eq!(told, expected);
}

/// A process dies, or loses a reply, at each call in turn, and another goes on.
#[tokio::test]
async fn owners_and_schedulers_are_told_once_also_after_a_crash() {
    for fault in [Fault::DiesBefore, Fault::DiesAfter, Fault::LosesReply] {
        for n in 0.. {
            let mut shop = Shop::new();
            let (notices, events) = (Listener::of(NOTICES), Listener::of(EVENTS));
            shop.scheduled("revenue", 1, 2).await;
            shop.sinks.extend([notices.clone() as Arc<dyn DeliverySink>, events.clone()]);
            let (engine, id) = (shop.engine(), BackfillId::from("fix"));
            let _ = shop.approved(&engine, &fix(1, 2)).await;
            let fuse = Fuse::new(n, fault);
            let ledger = Arc::new(FaultyLedger { inner: shop.ledger.clone(), fuse: Arc::clone(&fuse) });
            let faulty = shop.engine_over(ledger, Arc::new(shop.revenue.clone()));
            let first = worker("w1");
            tokio::select! {
                biased;
                () = fuse.died() => {}
                done = faulty.execute(&id, &first, |_| {}) => {
                    let _ = done.unwrap();
                }
            }
            let done = engine.execute(&id, &worker("w2"), |_| {}).await.unwrap();
            assert_eq!(done.state, BackfillState::Published, "{fault:?} at call {n}");
            // What the one who died had taken is free again.
            shop.clock.advance(std::time::Duration::from_secs(4));
            let _ = engine.dispatch(&worker("w2")).await.unwrap();
            let told = (of_state(&notices.payloads(), "published").len(), events.payloads().len());
            assert_eq!(told, (1, 2), "{fault:?} at call {n}");
            if fuse.is_whole() {
                assert!(n > 20, "only {n} calls");
                break;
            }
        }
    }
}

#[test]
fn keys_of_our_own_are_refused() {
    check_keys(["receipt-1", "reprocessed", ""]).unwrap();
    let error = check_keys(["receipt-1", "reprocess/notice/fix"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("reprocess/notice/fix"), "{error}");
}
