//! The whole way, command by command.

use serde_json::json;

use super::host::{TestHost, departures};
use crate::cli::Exit;
use crate::domain::partition::PartitionKey;
use crate::domain::scope::Scope;
use crate::domain::value::Value;

const REQUEST: &str =
    "daily_departures@v2 --from 2013-03-04 --to 2013-03-08 --id fix --reason cancelled --by ada";

async fn in_review() -> (TestHost, String) {
    let host = TestHost::new().await;
    let ran = host.run(&format!("backfill {REQUEST} --yes --json")).await.ends(Exit::Waiting);
    let digest = ran.json()["review"]["digest"].as_str().unwrap().to_owned();
    (host, digest)
}

async fn published() -> TestHost {
    let (host, digest) = in_review().await;
    host.run(&format!("approve fix --digest {digest} --by grace --comment fine")).await.ends(Exit::Done);
    host.run("publish fix").await.ends(Exit::Done);
    host
}

#[tokio::test]
async fn a_plan_is_shown_and_nothing_is_written() {
    let host = TestHost::new().await;
    let ran = host.run(&format!("plan {REQUEST}")).await.ends(Exit::Done);
    assert!(ran.out.contains("daily_departures v2: 5 days, day=2013-03-04 … day=2013-03-08"), "{}", ran.out);
    assert!(
        ran.out.contains("weekly_departures: week=2013-03-04, because of 5 changed partitions"),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("dashboard (board@example.org)"), "{}", ran.out);
    let document = host.run(&format!("plan {REQUEST} --json")).await.ends(Exit::Done).json();
    let tasks = document["plan"]["tasks"].as_array().unwrap();
    assert_eq!((tasks.len(), &tasks[5]["job"]), (6, &json!("weekly_departures")));
    let plan = crate::domain::plan::Plan::from_json(&document["plan"].to_string()).unwrap();
    assert_eq!(document["digest"], plan.digest());
    assert_eq!(host.run("status --json").await.json(), json!({"backfills": []}));
    let refused = host.run(&format!("plan {} --json", REQUEST.replace("@v2", "@v9"))).await.ends(Exit::Usage);
    assert!(refused.json()["plan"]["refused"][0]["reason"].as_str().unwrap().contains("v9"), "{refused:?}");
}

#[tokio::test]
async fn a_backfill_goes_from_plan_to_review_to_production_and_back() {
    let (host, digest) = in_review().await;
    let review = host.run("review fix").await.ends(Exit::Done);
    assert!(review.out.contains("30 → 25  -5"), "{}", review.out);
    let document = host.run("review fix --json").await.ends(Exit::Done).json();
    assert_eq!(document["digest"], digest.as_str());
    let diff = host.run("diff fix 0 --samples 3").await.ends(Exit::Done);
    assert!(diff.out.contains("~ carrier=AA"), "{}", diff.out);
    assert!(diff.out.contains("departures 3 → 2"), "{}", diff.out);

    let early = host.run("publish fix --json").await.ends(Exit::Refused);
    assert!(early.error()["advice"].as_str().unwrap().contains(&digest), "{early:?}");
    host.run("approve fix --digest wrong --json").await.ends(Exit::Refused).error();
    let approved =
        host.run(&format!("approve fix --digest {digest} --by grace --json")).await.ends(Exit::Done);
    assert_eq!(approved.json(), json!({"backfill": "fix", "state": "awaiting_review", "digest": digest}));
    let published = host.run("publish fix --json").await.ends(Exit::Done);
    assert_eq!(published.json(), json!({"backfill": "fix", "state": "done"}));
    host.run("publish fix").await.ends(Exit::Done);

    let explained = host.run("explain daily_departures day=2013-03-05 --json").await.ends(Exit::Done).json();
    assert_eq!(explained["current"]["logic"], "v2");
    assert_eq!(explained["current"]["approval"]["by"], "grace");
    assert_eq!(explained["as_left"], true);
    assert_eq!(explained["history"].as_array().unwrap().len(), 2);
    let outside = host.run("explain daily_departures 2013-03-09").await.ends(Exit::Done);
    assert!(outside.out.contains("daily_departures v1, build test"), "{}", outside.out);

    let rolled = host
        .run("rollback fix --partition day=2013-03-05 --reason wrong --yes --by grace --json")
        .await
        .ends(Exit::Done)
        .json();
    assert_eq!((&rolled["backfill"], &rolled["state"]), (&json!("fix.rollback-1"), &json!("done")));
    let explained = host.run("explain daily_departures day=2013-03-05 --json").await.json();
    assert_eq!(
        (&explained["current"]["logic"], &explained["current"]["trigger"]),
        (&json!("v1"), &json!("rollback"))
    );

    let ledger = host.run("ledger --backfill fix --json").await.ends(Exit::Done).json();
    assert_eq!(
        ledger["rows"].as_array().unwrap().len(),
        8,
        "five days and a day that came back, each with the week"
    );
    let text = host.run("ledger --backfill fix").await.ends(Exit::Done).out;
    assert!(text.contains("rollback") && text.contains("day=2013-03-08"), "{text}");
    let closed = host.run("close fix --json").await.ends(Exit::Done).json();
    assert_eq!(closed["state"], "closed");
    assert_eq!(closed["stale"], json!([]));
    host.run("rollback fix --all --reason again --yes").await.ends(Exit::Done);
    let outdated = host.run("outdated --json").await.ends(Exit::Done).json();
    assert_eq!(outdated["outdated"], json!([]), "everything is on v1 again, which the schedule runs");
}

#[tokio::test]
async fn the_same_command_again_changes_nothing() {
    let host = published().await;
    let rows = host.run("ledger --json").await.json();
    let again = host.run(&format!("backfill {REQUEST} --yes --json")).await.ends(Exit::Done).json();
    assert_eq!((&again["state"], &again["skipped"]), (&serde_json::Value::Null, &json!(5)));
    let text = host.run(&format!("backfill {REQUEST} --yes")).await.ends(Exit::Done);
    assert!(
        text.out.contains("5 days, day=2013-03-04 … day=2013-03-08: unchanged since run fix.1"),
        "{}",
        text.out
    );
    assert_eq!(host.run("ledger --json").await.json(), rows);
}

#[tokio::test]
async fn a_direct_backfill_is_done_at_once() {
    let host = TestHost::new().await;
    let ran =
        host.run(&format!("backfill {REQUEST} --mode direct --concurrency 2 --yes")).await.ends(Exit::Done);
    assert!(ran.out.contains("Backfill `fix` is done"), "{}", ran.out);
    let rows = host.run("ledger --run fix.1 --json").await.ends(Exit::Done).json();
    let triggers: Vec<_> =
        rows["rows"].as_array().unwrap().iter().map(|row| row["trigger"].as_str().unwrap()).collect();
    assert_eq!(triggers, ["backfill", "backfill", "backfill", "backfill", "backfill", "propagated"]);
    let table = host.run("ledger --table daily_departures --json").await.ends(Exit::Done).json();
    assert_eq!(table["rows"].as_array().unwrap().len(), 7);
    let one = host.run("ledger --table daily_departures --partition 2013-03-04 --json").await.json();
    assert_eq!(one["rows"].as_array().unwrap().len(), 2);
    host.run("ledger --run nobody").await.ends(Exit::Usage);
    let stale = host.run("stale --json").await.ends(Exit::Done).json();
    assert_eq!(stale["stale"], json!([]), "the week was computed again");
    let left = "backfill daily_departures@v2 --from 2013-03-09 --to 2013-03-09 --id more --reason late --mode direct --yes";
    host.run(&format!("{left} --no-propagate")).await.ends(Exit::Done);
    let stale = host.run("stale").await.ends(Exit::Done);
    assert!(stale.out.contains("week=2013-03-04"), "{}", stale.out);
}

#[tokio::test]
async fn a_plan_waits_for_its_approval_by_another_person() {
    let host = TestHost::new().await;
    let ran = host.run(&format!("backfill {REQUEST} --json")).await.ends(Exit::Waiting).json();
    let digest = ran["plan_digest"].as_str().unwrap();
    assert_eq!(ran["state"], "planned");
    let other = REQUEST.replace("cancelled", "other");
    let error = host.run(&format!("backfill {other} --yes --json")).await.ends(Exit::Refused).error();
    assert!(error["advice"].as_str().unwrap().contains("--resume fix"), "{error}");
    let overlapping = host.run(&format!("backfill {} --yes --json", REQUEST.replace("fix", "fix2"))).await;
    let overlapping = overlapping.ends(Exit::Refused).error();
    assert!(overlapping["message"].as_str().unwrap().contains("`fix` (planned) holds"), "{overlapping}");
    host.run(&format!("approve fix --digest {digest} --by grace")).await.ends(Exit::Done);
    let resumed = host.run("backfill --resume fix --json").await.ends(Exit::Waiting).json();
    assert_eq!(resumed["state"], "awaiting_review");
    let status = host.run("status fix --json").await.ends(Exit::Done).json();
    assert_eq!(status["backfill"]["approvals"][0]["by"], "grace");
    let aborted = host.run("abort fix --why wrong --json").await.ends(Exit::Done).json();
    assert_eq!(aborted, json!({"backfill": "fix", "state": "aborted"}));
    host.run("backfill --resume fix").await.ends(Exit::Failed);
    let text = host.run("status").await.ends(Exit::Done).out;
    assert!(text.contains("aborted"), "{text}");
    host.run("close fix").await.ends(Exit::Done);
    host.run("cancel fix --why late --json").await.ends(Exit::Refused).error();
}

#[tokio::test]
async fn a_person_at_the_terminal_is_asked() {
    let host = TestHost::new().await;
    let command = format!("backfill {REQUEST}");
    let words: Vec<_> = command.split_whitespace().collect();
    let no = host.run_words(&words, Some(false)).await.ends(Exit::Refused);
    assert!(no.err.contains("nothing is run"), "{no:?}");
    assert_eq!(host.run("status --json").await.json(), json!({"backfills": []}));
    let yes = host.run_words(&words, Some(true)).await.ends(Exit::Waiting);
    assert!(yes.out.contains("Review of backfill `fix`"), "{yes:?}");
    assert!(yes.err.contains("next: approve fix --digest"), "{yes:?}");
    let again = host.run_words(&words, Some(true)).await.ends(Exit::Waiting);
    assert!(again.out.contains("Review of backfill `fix`"), "{again:?}");
}

#[tokio::test]
async fn a_failing_task_ends_with_one_and_is_tried_again() {
    let host = TestHost::new().await;
    let command = format!("backfill {REQUEST} --yes --mode direct --param fail_on=\"2013-03-06\"");
    let failed = host.run(&command).await.ends(Exit::Failed);
    assert!(failed.out.contains("the host's code failed"), "{}", failed.out);
    assert!(failed.err.contains("--resume fix"), "{}", failed.err);
    let again = host.run("backfill --resume fix --json").await.ends(Exit::Failed).json();
    let states: Vec<_> =
        again["tasks"].as_array().unwrap().iter().map(|t| t["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["committed", "committed", "failed", "committed", "committed", "blocked"]);
    host.run("cancel fix --why enough").await.ends(Exit::Done);
}

#[tokio::test]
async fn a_shadow_under_which_production_moved_is_staged_again() {
    let (host, digest) = in_review().await;
    host.run(&format!("approve fix --digest {digest}")).await.ends(Exit::Done);
    let day = PartitionKey::of("day", Value::Date("2013-03-05".parse().unwrap()));
    let rows = departures("day", 15_769, &[("AA", 9)]);
    host.daily.replace_unmanaged(&Scope::key(day).unwrap(), &rows).unwrap();
    let stale = host.run("publish fix --json").await.ends(Exit::Stale).json();
    assert_eq!(stale["state"], "stale");
    assert_eq!(stale["moved"].as_array().unwrap().len(), 1);
    assert_eq!(stale["stage_again"], json!([1]));
    let again = host.run("backfill --resume fix --json").await.ends(Exit::Waiting).json();
    let digest = again["review"]["digest"].as_str().unwrap();
    host.run(&format!("approve fix --digest {digest}")).await.ends(Exit::Done);
    host.run("publish fix").await.ends(Exit::Done);
}

#[tokio::test]
async fn deliveries_wait_until_they_are_released_by_name() {
    let host = published().await;
    let list = async |options: &str| {
        let list = host.run(&format!("deliveries list {options} --json")).await.ends(Exit::Done).json();
        list["deliveries"].as_array().unwrap().len()
    };
    assert_eq!(list("--backfill fix").await, 5);
    assert_eq!(list("--backfill fix --state duplicate").await, 5, "the schedule has released their keys");
    let more = "backfill daily_departures@v2 --id more --reason late --from 2013-03-11 --to 2013-03-13 --mode direct --yes";
    host.run(more).await.ends(Exit::Done);
    assert_eq!(list("--backfill more --state suppressed").await, 3);
    let error = host.run("deliveries release --key report/2013-03-11 nothing --json").await;
    assert_eq!(error.ends(Exit::Usage).error()["kind"], "not_found");
    let released = host.run("deliveries release more --key report/2013-03-11").await.ends(Exit::Done);
    assert_eq!(released.out, "Released: 1\n");
    let rest = host.run("deliveries release more --json").await.ends(Exit::Done).json();
    assert_eq!(rest["changed"], 2, "all that the backfill held back");
    assert_eq!(list("--backfill more --state suppressed").await, 0);
    // The host has no sink.
    let sent = host.run("deliveries send --json").await.ends(Exit::Done).json();
    assert_eq!(sent, json!({ "sent": 0, "again": 0, "unknown": 0, "dead": 0 }));
    let decided =
        host.run("deliveries decide report/2013-03-11 --as sent --json").await.ends(Exit::Done).json();
    assert_eq!(decided["changed"], 0, "it is not unknown");
    host.run("deliveries decide nothing --as never").await.ends(Exit::Usage);
    host.run("deliveries release").await.ends(Exit::Usage);
}

#[tokio::test]
async fn what_is_not_known_is_a_bad_input() {
    let host = TestHost::new().await;
    for command in [
        "status nobody",
        "review nobody",
        "diff nobody 0",
        "publish nobody",
        "close nobody",
        "rollback nobody --all --reason x",
        "backfill --resume nobody",
        "explain nothing day=2013-03-04",
        "explain daily_departures",
        "explain daily_departures day=monday",
        "ledger --backfill nobody",
        "deliveries release nobody",
    ] {
        let ran = host.run(&format!("{command} --json")).await.ends(Exit::Usage);
        assert!(!ran.error()["message"].as_str().unwrap().is_empty(), "{command}");
    }
}

#[tokio::test]
async fn one_output_is_taken_out_of_a_review() {
    let (host, digest) = in_review().await;
    let left = host.run("discard fix 1 --why disputed --json").await.ends(Exit::Waiting).json();
    let new = left["digest"].as_str().unwrap().to_owned();
    assert_ne!(new, digest);
    assert_eq!(left["state"], "awaiting_review");
    host.run(&format!("approve fix --digest {digest} --by grace")).await.ends(Exit::Refused);
    host.run(&format!("approve fix --digest {new} --by grace")).await.ends(Exit::Done);
    host.run("publish fix").await.ends(Exit::Done);
    let rows = host.run("ledger --backfill fix --json").await.ends(Exit::Done).json();
    assert_eq!(rows["rows"].as_array().unwrap().len(), 5, "four days and their week");
}
