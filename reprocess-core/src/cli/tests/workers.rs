//! Workers, pauses and selectors.

use serde_json::json;

use super::host::TestHost;
use crate::cli::Exit;

const FIX: &str = "backfill daily_departures@v2 --from 2013-03-04 --to 2013-03-06 --id fix --reason cancelled --mode direct";

/// A backfill that is approved and that nobody works on.
async fn approved() -> TestHost {
    let host = TestHost::new().await;
    let planned = host.run(&format!("{FIX} --json")).await.ends(Exit::Waiting).json();
    let digest = planned["plan_digest"].as_str().unwrap();
    host.run(&format!("approve fix --digest {digest} --by grace")).await.ends(Exit::Done);
    host
}

#[tokio::test]
async fn a_worker_does_what_is_approved_and_says_what_it_did() {
    let host = approved().await;
    let done = host.run("work --until-idle --worker w7 --json").await.ends(Exit::Done).json();
    assert_eq!(done, json!({ "worker": "w7", "backfills": { "fix": { "committed": 4 } } }));
    let status = host.run("status fix --json").await.ends(Exit::Done).json();
    assert_eq!(status["backfill"]["state"], "done");
    assert_eq!(status["tasks"][0]["worker"], "w7");
    let idle = host.run("work --until-idle").await.ends(Exit::Done);
    assert_eq!(idle.out, "No task was run\n");
}

#[tokio::test]
async fn a_paused_backfill_waits_until_it_is_resumed() {
    let host = approved().await;
    let paused = host.run("pause fix --by ada --json").await.ends(Exit::Done).json();
    assert_eq!(paused, json!({ "backfill": "fix", "concurrency": 1, "paused_by": "ada" }));
    host.run("work --until-idle").await.ends(Exit::Done);
    let waits = host.run("backfill --resume fix").await.ends(Exit::Temporary);
    assert!(waits.err.contains("it is paused; next: resume fix"), "{}", waits.err);
    let more = host.run("concurrency fix 3 --json").await.ends(Exit::Done).json();
    assert_eq!(more, json!({ "backfill": "fix", "concurrency": 3, "paused_by": "ada" }));
    let resumed = host.run("resume fix").await.ends(Exit::Done);
    assert_eq!(resumed.out, "Backfill `fix` is no longer paused; workers go on with it\n");
    host.run("work --until-idle").await.ends(Exit::Done);
    assert_eq!(host.run("status fix --json").await.json()["backfill"]["state"], "done");
    host.run("concurrency fix 0").await.ends(Exit::Usage);
    host.run("pause nobody").await.ends(Exit::Usage);
}

#[tokio::test]
async fn jobs_upstream_and_downstream_are_named_by_a_plus() {
    let host = TestHost::new().await;
    let jobs = async |selector: &str| {
        let range = "--from 2013-03-04 --to 2013-03-10 --id x --reason y --json";
        let plan = host.run(&format!("plan {selector} {range}")).await.ends(Exit::Done).json();
        plan["plan"]["request"]["jobs"].clone()
    };
    let both = json!({ "daily_departures": "v2", "weekly_departures": "v1" });
    assert_eq!(jobs("daily_departures@v2").await, json!({ "daily_departures": "v2" }));
    assert_eq!(jobs("daily_departures@v2+").await, both);
    assert_eq!(
        jobs("+daily_departures@v2").await,
        json!({ "daily_departures": "v2" }),
        "nothing is upstream"
    );
    let upstream = json!({ "daily_departures": "v1", "weekly_departures": "v1" });
    assert_eq!(jobs("+weekly_departures@v1").await, upstream, "as the schedule runs it");
    host.run("plan nobody+ --logic v1 --from 2013-03-04 --to 2013-03-04 --id x --reason y")
        .await
        .ends(Exit::Usage);
}
