//! Processes that are told to stop.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use reprocess_core::cli::{Console, run_with};
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::clock::{Clock, SystemClock};
use reprocess_core::ports::ledger::{BackfillState, LedgerReader, RunLedger, TaskRecord, TaskState};

use super::shop::{self, DAYS, Pace, Shop};

/// Tells the child where to work; without it the child's test does nothing.
const FOLDER: &str = "REPROCESS_TEST_SIGNAL_FOLDER";

/// Tells the child what to do.
const COMMAND: &str = "REPROCESS_TEST_SIGNAL_COMMAND";

/// Tells the child how long a day takes it.
const TAKES: &str = "REPROCESS_TEST_SIGNAL_TAKES_MS";

/// How long a lease is asked for.
const TTL: Duration = Duration::from_secs(1);

/// What each of three tasks that run at a time takes longer than any test waits.
const FOREVER_MS: u64 = 600_000;

async fn open(folder: &Path, takes_ms: u64) -> Shop {
    let pace = Pace { computed: folder.join("computed"), takes_ms, lease_ttl_ms: 60_000 };
    shop::open(&folder.join("shop.db"), pace).await
}

#[tokio::test]
async fn a_process_that_is_told_to_stop() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let shop = open(&folder, std::env::var(TAKES).unwrap().parse().unwrap()).await;
    let command = std::env::var(COMMAND).unwrap();
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let console = Console::new(&mut out, &mut err).with_signals();
    let exit = run_with(&shop.engine, "child", command.split(' '), console).await;
    std::process::exit(exit.code().into());
}

fn spawn(folder: &Path, command: &str, takes_ms: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "engine::signals::a_process_that_is_told_to_stop", "--nocapture"])
        .env(FOLDER, folder)
        .env(COMMAND, format!("host {command}"))
        .env(TAKES, takes_ms.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
}

fn computed(folder: &Path) -> usize {
    std::fs::read_to_string(folder.join("computed")).unwrap_or_default().lines().count()
}

/// An approved backfill of sixty days, three at a time, in a fresh file.
async fn started(folder: &Path) -> Shop {
    shop::create(&folder.join("shop.db")).await;
    let shop = open(folder, 0).await;
    shop::start(&shop).await;
    shop
}

/// Starts a process, waits until it is at work, tells it to stop, and answers what it exits with.
async fn stopped(folder: &Path, command: &str, takes_ms: u64, signals: &[&str]) -> Option<i32> {
    let mut child = spawn(folder, command, takes_ms);
    while computed(folder) < 3 {
        assert_eq!(child.try_wait().unwrap(), None, "it ended before it began");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for name in signals {
        signal(&child, name);
    }
    child.wait().unwrap().code()
}

async fn tasks(shop: &Shop) -> Vec<TaskRecord> {
    shop.ledger.tasks(&"fix".into()).await.unwrap()
}

fn count(tasks: &[TaskRecord], state: TaskState) -> usize {
    tasks.iter().filter(|task| task.state == state).count()
}

#[tokio::test]
async fn a_worker_that_is_told_to_stop_finishes_what_it_has_begun() {
    for (command, exit) in [("work", 0), ("backfill --resume fix", 75)] {
        let folder = tempfile::tempdir().unwrap();
        let shop = started(folder.path()).await;
        assert_eq!(stopped(folder.path(), command, 300, &["TERM"]).await, Some(exit), "{command}");
        let tasks = tasks(&shop).await;
        let begun = computed(folder.path());
        assert_eq!(count(&tasks, TaskState::Committed), begun, "{command}");
        assert_eq!(count(&tasks, TaskState::Pending), usize::try_from(DAYS).unwrap() - begun, "{command}");
    }
}

#[tokio::test]
async fn a_worker_that_is_told_twice_leaves_what_it_has_begun_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let shop = started(folder.path()).await;
    assert_eq!(stopped(folder.path(), "work", FOREVER_MS, &["INT", "TERM"]).await, Some(0));
    let left = tasks(&shop).await;
    assert_eq!(count(&left, TaskState::Pending), usize::try_from(DAYS).unwrap());
    let notes = left.iter().filter(|task| task.note.as_deref() == Some("the worker was stopped"));
    assert_eq!(notes.count(), 3);
    // Leases last for a minute, and would be waited for.
    let (table, scope, other, now) =
        ("revenue".into(), Scope::whole_table(), "other".into(), SystemClock.now());
    let held = shop.ledger.acquire(&table, &scope, &other, TTL, now).await.unwrap();
    let held = held.expect("no lease is left");
    shop.ledger.release(&held).await.unwrap();
    let done = shop.engine.execute(&"fix".into(), &"other".into(), |_| {}).await.unwrap();
    assert_eq!(done.state, BackfillState::Published);
    assert_eq!(shop::contents(&folder.path().join("shop.db")).await, shop::expected());
}
