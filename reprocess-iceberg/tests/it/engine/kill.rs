//! Processes that are killed at random points, and others that go on where they were.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use reprocess_core::ports::ledger::BackfillState;

use super::shop::{self, DAYS, Pace, Shop};

/// Tells the child where to work; without it the child's test does nothing.
const FOLDER: &str = "REPROCESS_TEST_KILL_FOLDER";

/// Tells the child how long its leases last.
const LEASES: &str = "REPROCESS_TEST_KILL_LEASE_TTL_MS";

/// How many tasks one process works on at a time.
const AT_A_TIME: usize = 3;

/// Leases that run out soon after a process was killed.
const SHORT_MS: u64 = 400;

fn pace(folder: &Path, takes_ms: u64, lease_ttl_ms: u64) -> Pace {
    Pace { computed: folder.join("computed"), takes_ms, lease_ttl_ms }
}

/// This very test binary, asked to run only the test below.
fn spawn(folder: &Path, lease_ttl_ms: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "engine::kill::a_process_that_works_until_it_is_killed", "--nocapture"])
        .env(FOLDER, folder)
        .env(LEASES, lease_ttl_ms.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn a_process_that_works_until_it_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let lease_ttl_ms = std::env::var(LEASES).unwrap().parse().unwrap();
    let shop = shop::open(&folder, pace(&folder, 25, lease_ttl_ms)).await;
    let worker = format!("pid-{}", std::process::id());
    let _ = shop.engine.execute(&"fix".into(), &worker.as_str().into(), |_| {}).await.unwrap();
}

/// One backfill, its processes killed after the given waits, at most so many. Answers how many were killed at work.
async fn kill_through(folder: &Path, waits: &mut impl Iterator<Item = Duration>, at_most: usize) -> usize {
    shop::create(folder).await;
    let first = shop::open(folder, pace(folder, 0, SHORT_MS)).await;
    shop::start(&first).await;
    first.database.close().await;
    let mut kills = 0;
    while kills < at_most {
        let Some(wait) = waits.next() else { break };
        let mut child = spawn(folder, SHORT_MS);
        tokio::time::sleep(wait).await;
        let ended_by_itself = child.try_wait().unwrap().is_some();
        child.kill().unwrap();
        child.wait().unwrap();
        if ended_by_itself {
            break;
        }
        kills += 1;
    }
    kills
}

async fn finish(folder: &Path) -> Shop {
    let last = shop::open(folder, pace(folder, 0, SHORT_MS)).await;
    let done = last.engine.execute(&"fix".into(), &"last".into(), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Published);
    last
}

/// Thirty SIGKILLs over backfills of sixty partitions; each backfill ends as one that nobody disturbed.
#[tokio::test(flavor = "multi_thread")]
async fn thirty_kills_leave_what_a_clean_run_leaves() {
    let clean = tempfile::tempdir().unwrap();
    kill_through(clean.path(), &mut std::iter::empty(), 0).await;
    let clean_ledger = shop::recorded(&finish(clean.path()).await).await;
    assert_eq!(shop::contents(clean.path()).await, shop::expected());
    assert_eq!(clean_ledger.len(), usize::try_from(DAYS).unwrap());
    assert_eq!(shop::committed(clean.path()).await, clean_ledger.keys().cloned().collect::<Vec<_>>());
    // Waits from 60 to 400 ms, from a generator with a fixed start.
    let mut state = 0x2026_1129_u64;
    let mut waits = std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis(60 + (state >> 33) % 340)
    });
    let (mut kills, mut rounds) = (0, 0);
    while kills < 30 {
        let folder = tempfile::tempdir().unwrap();
        let killed = kill_through(folder.path(), &mut waits, 30 - kills).await;
        let shop = finish(folder.path()).await;
        assert_eq!(shop::contents(folder.path()).await, shop::expected(), "after {killed} kills");
        assert_eq!(shop::recorded(&shop).await, clean_ledger, "after {killed} kills");
        let committed = shop::committed(folder.path()).await;
        assert_eq!(committed, clean_ledger.keys().cloned().collect::<Vec<_>>(), "after {killed} kills");
        let computed = std::fs::read_to_string(folder.path().join("computed")).unwrap().lines().count();
        let days = usize::try_from(DAYS).unwrap();
        assert!(
            computed <= days + AT_A_TIME * killed,
            "computed {computed} times for {days} days and {killed} kills"
        );
        kills += killed;
        rounds += 1;
        assert!(rounds < 30, "processes end before they can be killed");
    }
    println!("{kills} kills over {rounds} backfills");
    assert_eq!(kills, 30);
}
