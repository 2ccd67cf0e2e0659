//! Backfills of two days, in which the connection ends at one word of all that are said to the server.

use reprocess_core::ports::ledger::BackfillState;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use super::shop;
use super::wire::{End, Wire};
use crate::server::{TestDatabase, in_database, rounds};

const DAYS: u64 = 2;

/// One of so many words is tried in each round.
const STRIDE: u64 = 64;

/// Copies of a database with an approved backfill.
struct Copies {
    approved: TestDatabase,
    copy: String,
}

impl Copies {
    async fn new() -> Self {
        let approved = TestDatabase::fresh().await;
        shop::create(approved.address(), DAYS).await;
        shop::start(approved.address(), DAYS).await;
        let copy = format!("{}_copy", approved.name());
        Self { approved, copy }
    }

    async fn fresh(&self) -> String {
        self.drop_the_last().await;
        let create = format!("CREATE DATABASE {} TEMPLATE {}", self.copy, self.approved.name());
        self.server(&create).await;
        in_database(&self.copy)
    }

    async fn drop_the_last(&self) {
        self.server(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.copy)).await;
    }

    async fn server(&self, sql: &str) {
        let mut server = PgConnection::connect(&in_database("postgres")).await.unwrap();
        server.execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
        server.close().await.unwrap();
    }
}

/// Works on the backfill over a way that ends at a word, and completes it over another. Answers how many words were said.
async fn work(address: &str, end: End, word: u64) -> u64 {
    let wire = Wire::before(address, end).await;
    let shop = shop::open(wire.address(), 0).await;
    wire.end_at(word);
    let _ = shop.engine.execute(&"fix".into(), &"first".into(), |_| {}).await;
    let said = wire.said();
    wire.end_at(0);
    let other = shop::open(address, 0).await;
    let done = other.engine.execute(&"fix".into(), &"second".into(), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Published, "{end:?} {word}");
    for shop in [shop, other] {
        shop.database.close().await;
    }
    said
}

async fn every_word(end: End) {
    let copies = Copies::new().await;
    let words = work(&copies.fresh().await, end, 0).await;
    let stride = (STRIDE / rounds(1)).max(1);
    let mut tried = 0;
    for word in (1 + words % stride..=words).step_by(usize::try_from(stride).unwrap()) {
        let address = copies.fresh().await;
        work(&address, end, word).await;
        assert_eq!(shop::contents(&address).await, shop::expected(DAYS), "{end:?} {word} of {words}");
        assert_eq!(shop::counts(&address).await, [2; 5], "{end:?} {word} of {words}");
        tried += 1;
    }
    copies.drop_the_last().await;
    println!("{end:?}: {tried} of {words} words");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_ends_before_any_word_leaves_nothing_half_done() {
    every_word(End::BeforeTheWord).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_lost_after_any_word_is_found_or_asked_for_again() {
    every_word(End::AfterTheWord).await;
}
