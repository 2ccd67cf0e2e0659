//! Several engines on one file at a time.

use reprocess_core::engine::RunRequest;
use reprocess_core::ports::ledger::{BackfillState, TaskState};

use super::shop::{self, DAYS, Pace};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_engines_share_one_backfill_while_the_schedule_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.db");
    shop::create(&file).await;
    let pace = Pace { computed: folder.path().join("computed"), takes_ms: 1, lease_ttl_ms: 60_000 };
    let first = shop::open(&file, pace.clone()).await;
    shop::start(&first).await;
    let mut workers = Vec::new();
    for n in 0..4 {
        let (file, pace) = (file.clone(), pace.clone());
        workers.push(tokio::spawn(async move {
            let shop = shop::open(&file, pace).await;
            let worker = format!("w{n}");
            shop.engine.execute(&"fix".into(), &worker.as_str().into(), |_| {}).await.unwrap()
        }));
    }
    // The schedule computes the last day meanwhile, as often as it likes.
    for n in 0..5 {
        let run = RunRequest::scheduled(format!("daily-{n}"), "revenue", shop::day(DAYS - 1));
        let _ = first.engine.run(&run, &"schedule".into()).await.unwrap();
    }
    for worker in workers {
        let _ = worker.await.unwrap();
    }
    let done = first.engine.execute(&"fix".into(), &"w0".into(), |_| {}).await.unwrap();
    assert_eq!(shop::contents(&file).await, shop::expected());
    // The day of the schedule either was committed by the backfill, was found unchanged, or had moved since the plan.
    let (last, others) = done.tasks.split_last().unwrap();
    assert!(others.iter().all(|t| t.state == TaskState::Committed), "{others:?}");
    match last.state {
        TaskState::Failed => assert_eq!(done.state, BackfillState::Failed),
        state => assert!(state.is_success(), "{last:?}"),
    }
    let computed = std::fs::read_to_string(folder.path().join("computed")).unwrap().lines().count();
    let days = usize::try_from(DAYS).unwrap();
    assert!(computed <= days + 5, "each day once, the last also by the schedule: {computed}");
}
