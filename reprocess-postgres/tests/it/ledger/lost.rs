//! The answer to a COMMIT is lost: whether it happened is found by looking, and the same again changes nothing.

use std::time::Duration;

use reprocess_core::ErrorKind;
use reprocess_core::ports::ledger::{BackfillState, Leave, LedgerReader, RunLedger, Submitted, Transition};
use reprocess_postgres::PostgresLedger;

use super::fixtures::*;
use crate::proxy::Proxy;
use crate::server::TestDatabase;
use BackfillState::{Approved, Planned};

/// Makes a call whose answer is lost, and checks what its error says.
macro_rules! lost {
    ($proxy:ident, $call:expr) => {{
        $proxy.lose_the_next();
        let error = $call.await.unwrap_err();
        assert!($proxy.has_lost());
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{error}");
        assert!(error.advice().unwrap().contains("may have been committed"), "{error}");
    }};
}

#[tokio::test]
async fn what_was_done_is_found_done() {
    let database = TestDatabase::fresh().await;
    let proxy = Proxy::before(database.address()).await;
    let db = reprocess_postgres::PostgresDatabase::connect(proxy.address()).await.unwrap();
    let ledger = PostgresLedger::open(db).await.unwrap();

    let filed = plan("fix", &days(2), &[]);
    lost!(proxy, ledger.submit(&filed, &me(), at(0)));
    assert_eq!(ledger.submit(&filed, &me(), at(0)).await.unwrap(), Submitted::Already(Planned));

    let (fix, approve) = ("fix".into(), change(Planned, Approved));
    lost!(proxy, ledger.transition(&fix, &approve, at(1)));
    assert_eq!(ledger.transition(&fix, &approve, at(1)).await.unwrap(), Transition::Elsewhere(Approved));
    move_to(&ledger, "fix", Approved, BackfillState::Running, 2).await;

    lost!(proxy, ledger.claim(&fix, &"w1".into(), &can_run(), 1, Duration::ZERO, at(3)));
    let claimed = claim(&ledger, "w1", 1, 4).await.remove(0);
    assert_eq!((claimed.task.0, claimed.attempt), (0, 2), "the claim that nobody heard of has run out");

    let staged = || Leave::Staged(Box::new(result()));
    lost!(proxy, ledger.leave(&claimed, staged(), at(5)));
    assert!(!ledger.leave(&claimed, staged(), at(5)).await.unwrap());

    let told = entry(finish(vec![record("r1", &day(1))]), 1);
    lost!(proxy, ledger.finish(&commit("1", &told, 1), std::slice::from_ref(&told)));
    ledger.finish(&commit("1", &told, 1), std::slice::from_ref(&told)).await.unwrap();
    assert_eq!(ledger.history(&TABLE.into(), &day(1), 9).await.unwrap().len(), 1);
    assert_eq!(ledger.position().await.unwrap(), 1);

    let (table, scope) = (TABLE.into(), scope(&day(1)));
    lost!(proxy, ledger.acquire(&table, &scope, &"w1".into(), TTL, at(6)));
    assert_eq!(ledger.acquire(&table, &scope, &"w2".into(), TTL, at(6)).await.unwrap(), None);
    let fence = ledger.acquire(&table, &scope, &"w1".into(), TTL, at(6)).await.unwrap().unwrap();
    assert!(ledger.is_current(&fence).await.unwrap());
}
