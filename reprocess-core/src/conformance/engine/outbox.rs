//! What receivers get: each event once, whenever a process dies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;

use super::faults::{Fault, FaultyLedger, Fuse};
use super::shop::Shop;
use crate::conformance::fixture::Fixture;
use crate::conformance::world::*;
use crate::domain::ids::{RunId, WorkerId};
use crate::domain::request::Mode;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::ports::delivery::{Answer, Delivery, DeliveryOrigin, DeliverySink, DeliveryState, Known};
use crate::ports::ledger::{BackfillState, DeliveryFilter};

/// A receiver of mails that counts them. Each call is one that its sender may die around.
#[derive(Debug)]
struct Receiver {
    got: Mutex<BTreeMap<String, u32>>,
    /// Whether it knows what it has got.
    remembers: bool,
}

impl Receiver {
    fn new(remembers: bool) -> Arc<Self> {
        Arc::new(Self { got: Mutex::default(), remembers })
    }

    fn got(&self) -> BTreeMap<String, u32> {
        self.got.lock().unwrap().clone()
    }
}

#[derive(Debug)]
struct Line {
    to: Arc<Receiver>,
    fuse: Arc<Fuse>,
}

#[async_trait]
impl DeliverySink for Line {
    fn channel(&self) -> &str {
        "mail"
    }

    async fn send(&self, delivery: &Delivery) -> Result<Answer> {
        let received = async {
            *self.to.got.lock().unwrap().entry(delivery.key.clone()).or_default() += 1;
            Ok(Answer::Accepted { note: None })
        };
        self.fuse.around(received).await
    }

    async fn ask(&self, delivery: &Delivery) -> Result<Known> {
        if !self.to.remembers {
            return Ok(Known::CannotTell);
        }
        match self.to.got.lock().unwrap().contains_key(&delivery.key) {
            true => Ok(Known::Received),
            false => Ok(Known::NotReceived),
        }
    }
}

/// A backfill of two days has receipts that may be sent.
async fn released(f: &dyn Fixture) -> Shop {
    let shop = Shop::open(f, true, &[]).await;
    let request = shop.fix(MON, TUE, Mode::Direct).with_job("revenue", "v1").with_deliveries();
    assert_eq!(shop.backfill(&request).await, BackfillState::Published);
    shop
}

/// The keys of a run's deliveries in a state.
async fn keys(shop: &Shop, run: &RunId, state: DeliveryState) -> Vec<String> {
    let filter = DeliveryFilter { run: Some(run.clone()), state: Some(state), backfill: None };
    let found = shop.ledger.deliveries(&filter).await.unwrap();
    found.into_iter().map(|record| record.delivery.key).collect()
}

/// Dispatches until nothing of a run is left that may be sent, without faults, as another process.
async fn go_on(shop: &Shop, run: &RunId, engine: &Engine) {
    for _ in 0..20 {
        let _ = engine.dispatch(&"w2".into()).await.unwrap();
        let mut left = 0;
        for state in [DeliveryState::Released, DeliveryState::Sending] {
            left += keys(shop, run, state).await.len();
        }
        if left == 0 {
            return;
        }
        shop.clock.sleep(Duration::from_secs(2)).await;
    }
    panic!("deliveries are left");
}

/// Dies, or loses a reply, at each call in turn; answers how often that left a delivery to a person.
async fn every_call(f: &dyn Fixture, fault: Fault, remembers: bool) -> usize {
    let (shop, receiver) = (Shop::open(f, true, &[]).await, Receiver::new(remembers));
    let whole = Arc::new(Line { to: Arc::clone(&receiver), fuse: Fuse::new(i64::MAX, fault) });
    let engine = shop.engine_that_sends(shop.place.ledger().await, whole).await;
    let mut unknown = 0;
    for n in 0.. {
        let run = RunId::new(format!("run-{n}"));
        let names: Vec<_> = (0..4).map(|mail| format!("{run}-{mail}")).collect();
        let mail = |key: &String| Delivery { key: key.clone(), channel: "mail".into(), payload: json!({}) };
        let origin = DeliveryOrigin { staged: None, run: Some(run.clone()), backfill: None };
        let batch: Vec<_> = names.iter().map(mail).collect();
        assert_eq!(shop.ledger.announce(&origin, &batch, shop.clock.now()).await.unwrap(), 4);
        let fuse = Fuse::new(n, fault);
        let ledger = Arc::new(FaultyLedger { inner: shop.place.ledger().await, fuse: Arc::clone(&fuse) });
        let line = Arc::new(Line { to: Arc::clone(&receiver), fuse: Arc::clone(&fuse) });
        let (faulty, first) = (shop.engine_that_sends(ledger, line).await, WorkerId::from("w1"));
        tokio::select! {
            biased;
            () = fuse.died() => {}
            done = faulty.dispatch(&first) => { let _ = done.unwrap(); }
        }
        go_on(&shop, &run, &engine).await;
        let got = receiver.got();
        let sent = keys(&shop, &run, DeliveryState::Sent).await;
        let left = keys(&shop, &run, DeliveryState::Unknown).await;
        assert!(got.values().all(|times| *times == 1), "{fault:?} at call {n}: {got:?}");
        assert!(sent.iter().all(|key| got.contains_key(key)), "{fault:?} at call {n}: {sent:?} of {got:?}");
        assert_eq!(sent.len() + left.len(), names.len(), "{fault:?} at call {n}");
        unknown += left.len();
        if remembers {
            assert_eq!(sent, names, "{fault:?} at call {n}");
        }
        if fuse.is_whole() {
            assert!(n > 5, "only {n} calls");
            break;
        }
    }
    unknown
}

pub(in crate::conformance) async fn each_event_is_received_once_whenever_its_sender_dies(f: &dyn Fixture) {
    for fault in [Fault::DiesBefore, Fault::DiesAfter, Fault::LosesReply] {
        assert_eq!(every_call(f, fault, true).await, 0, "a receiver that knows is asked");
    }
}

pub(in crate::conformance) async fn no_event_is_received_twice_where_the_receiver_cannot_tell(
    f: &dyn Fixture,
) {
    for fault in [Fault::DiesBefore, Fault::DiesAfter, Fault::LosesReply] {
        assert!(every_call(f, fault, false).await > 0, "what may have been sent is left to a person");
    }
}

/// Sinks may fail in every way, and none of them stops the others.
pub(in crate::conformance) async fn a_receiver_that_refuses_or_fails_holds_up_no_other(f: &dyn Fixture) {
    #[derive(Debug)]
    struct Moody;

    #[async_trait]
    impl DeliverySink for Moody {
        fn channel(&self) -> &str {
            "mail"
        }

        async fn send(&self, delivery: &Delivery) -> Result<Answer> {
            match delivery.key.as_str() {
                "receipt-1" => Ok(Answer::Refused { why: "no such address".into() }),
                "receipt-3" => Err(Error::new(ErrorKind::Unavailable, "the line went dead")),
                _ => Ok(Answer::Accepted { note: None }),
            }
        }
    }

    let shop = released(f).await;
    let engine = shop.engine_that_sends(shop.place.ledger().await, Arc::new(Moody)).await;
    let done = engine.dispatch(&"w1".into()).await.unwrap();
    assert_eq!((done.sent, done.again, done.unknown, done.dead), (2, 0, 1, 1));
    assert_eq!(shop.deliveries(DeliveryState::Sent).await, ["receipt-2", "receipt-4"]);
    assert_eq!(shop.deliveries(DeliveryState::Dead).await, ["receipt-1"]);
    assert_eq!(shop.deliveries(DeliveryState::Unknown).await, ["receipt-3"]);
}
