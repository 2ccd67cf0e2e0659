//! The numbers that the examples tell.

#[allow(dead_code, reason = "the example's own entry point is not used here")]
#[path = "../../examples/flights/main.rs"]
pub(crate) mod flights;
#[allow(dead_code, reason = "the example's own entry point is not used here")]
#[path = "../../examples/orders.rs"]
mod orders;

#[tokio::test]
async fn the_flights_are_corrected_once_and_a_second_telling_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("flights.db");
    let first = flights::story::tell(&db).await.unwrap();
    let second = flights::story::tell(&db).await.unwrap();
    assert_eq!((first.unchanged, first.rolled_back), (20, 1));
    // 31 days and 5 weeks by schedule, one day and its week again, 21 days corrected and their 3 weeks, one day taken back
    // and its week.
    assert_eq!(first.ledger_rows, 31 + 5 + 2 + 21 + 3 + 1 + 1);
    assert_eq!(second, first);
}

#[tokio::test]
async fn refunded_orders_leave_the_revenue_of_the_days_that_were_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (lines, ledger_rows) = orders::correct_twice(&dir.path().join("orders.db")).await.unwrap();
    assert_eq!(lines, ["2026-10-01 100.00 v2", "2026-10-02 70.00 v2", "2026-10-03 30.00 v1"]);
    assert_eq!(ledger_rows, 2);
}
