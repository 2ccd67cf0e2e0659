//! Backfills of sixty days during which a process is killed, its connections are ended and the server dies, at any time;
//! and at last a process hangs for longer than its lease, while another completes its work.

use std::time::Duration;

use sqlx::{Connection, Executor, PgConnection};

use super::server::Server;
use super::shop;
use super::worker::Worker;
use crate::server::rounds;

const DAYS: u64 = 60;

/// How often a process may end before its work is done, in one backfill.
const MOST_PROCESSES: u32 = 40;

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Terminate,
    Crash,
}

/// A generator with a fixed start.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    async fn wait(&mut self, from_ms: u64, to_ms: u64) {
        tokio::time::sleep(Duration::from_millis(from_ms + self.below(to_ms - from_ms))).await;
    }

    fn faults(&mut self) -> Vec<Fault> {
        let mut faults = vec![Fault::Kill, Fault::Terminate, Fault::Crash, Fault::Kill, Fault::Terminate];
        for last in (1..faults.len()).rev() {
            let with = usize::try_from(self.below(u64::try_from(last + 1).unwrap())).unwrap();
            faults.swap(last, with);
        }
        faults
    }
}

/// Every connection to the database but this one.
async fn terminate(address: &str) {
    let mut raw = PgConnection::connect(address).await.unwrap();
    raw.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    .await
    .unwrap();
    raw.close().await.unwrap();
}

async fn is_done(address: &str) -> bool {
    let mut raw = PgConnection::connect(address).await.unwrap();
    let state: String =
        sqlx::query_scalar("SELECT state FROM reprocess.backfill").fetch_one(&mut raw).await.unwrap();
    raw.close().await.unwrap();
    state == "published"
}

/// A backfill with its faults. Answers how many met a process at work.
async fn disturb(server: &Server, address: &str, chance: &mut Chance) -> u32 {
    let (mut worker, mut met) = (Worker::spawn(address), 0);
    for fault in chance.faults() {
        chance.wait(150, 700).await;
        if worker.has_ended() {
            worker = Worker::spawn(address);
            chance.wait(150, 700).await;
        }
        met += u32::from(!worker.has_ended());
        match fault {
            Fault::Kill => {
                worker.kill();
                worker = Worker::spawn(address);
            }
            Fault::Terminate => terminate(address).await,
            Fault::Crash => server.crash(),
        }
    }
    chance.wait(0, 300).await;
    worker.freeze();
    finish(address).await;
    let before = (shop::contents(address).await, shop::counts(address).await);
    worker.thaw();
    // It finds the work done, or an error where its connection was.
    worker.wait().await;
    assert_eq!((shop::contents(address).await, shop::counts(address).await), before, "the zombie wrote");
    met
}

async fn finish(address: &str) {
    for _ in 0..MOST_PROCESSES {
        Worker::spawn(address).wait().await;
        if is_done(address).await {
            return;
        }
    }
    panic!("the backfill is not done by {MOST_PROCESSES} processes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_dies_the_rest_is_as_after_a_clean_run() {
    let server = Server::start();
    let clean = server.database("clean").await;
    shop::create(&clean, DAYS).await;
    shop::start(&clean, DAYS).await;
    finish(&clean).await;
    assert_eq!(shop::contents(&clean).await, shop::expected(DAYS));
    let ledger = shop::recorded(&shop::open(&clean, 0).await).await;
    assert_eq!(ledger.len(), usize::try_from(DAYS).unwrap());
    let mut met = 0;
    for number in 0..rounds(3) {
        let address = server.database(&format!("round_{number}")).await;
        shop::create(&address, DAYS).await;
        shop::start(&address, DAYS).await;
        met += disturb(&server, &address, &mut Chance(number)).await;
        assert_eq!(shop::contents(&address).await, shop::expected(DAYS), "round {number}");
        let shop = shop::open(&address, 0).await;
        assert_eq!(shop::recorded(&shop).await, ledger, "round {number}");
        let days = i64::try_from(DAYS).unwrap();
        assert_eq!(shop::counts(&address).await, [days; 5], "round {number}");
        shop.database.close().await;
    }
    println!("{met} faults met a process at work, in {} backfills", rounds(3));
    assert!(u64::from(met) >= 3 * rounds(3), "faults come too late to meet a process at work: {met}");
}
