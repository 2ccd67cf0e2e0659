//! Processes that work on the backfill.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::shop;

/// Tells the process which database it works in; without it its test does nothing.
const ADDRESS: &str = "REPROCESS_TEST_CRASH_ADDRESS";

/// How long one day takes a process, in milliseconds.
const TAKES_MS: u64 = 20;

pub(super) struct Worker(Child);

impl Worker {
    /// This very test binary, asked to run only the test below.
    pub(super) fn spawn(address: &str) -> Self {
        Self::spawn_test(address, "crash::worker::a_process_that_works_until_it_is_stopped")
    }

    /// One that takes up every backfill that there is.
    pub(super) fn spawn_for_all(address: &str) -> Self {
        Self::spawn_test(address, "crash::worker::a_process_that_works_on_whatever_there_is")
    }

    fn spawn_test(address: &str, test: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(ADDRESS, address)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    pub(super) fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Whether it ended well, at its end.
    pub(super) async fn wait(mut self) -> bool {
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.success();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(super) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub(super) fn freeze(&self) {
        self.signal("-STOP");
    }

    pub(super) fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        // The shell's own, since the command may be absent.
        let kill = format!("kill {signal} {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_works_until_it_is_stopped() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let shop = shop::open(&address, TAKES_MS).await;
    let worker = format!("pid-{}", std::process::id());
    let _ = shop.engine.execute(&"fix".into(), &worker.as_str().into(), |_| {}).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_works_on_whatever_there_is() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let shop = shop::open_patient(&address).await;
    let worker = format!("pid-{}", std::process::id());
    shop.engine.work(&worker.as_str().into(), true, |_, _| {}).await.unwrap();
}
