//! What an external scheduler runs. The days from 4 to 10 March and their week are there; it is 2 April.

use serde_json::{Value as Json, json};

use super::host::TestHost;
use crate::cli::Exit;

/// Partitions and how they ended.
fn ended(document: &Json) -> Vec<String> {
    let units = document["units"].as_array().unwrap().iter();
    units.map(|unit| format!("{} {}", unit["partition"], unit["outcome"].as_str().unwrap())).collect()
}

fn of_days(days: impl IntoIterator<Item = u32>, outcome: &str) -> Vec<String> {
    days.into_iter().map(|day| format!(r#"{{"day":{{"date":"2013-03-{day:02}"}}}} {outcome}"#)).collect()
}

#[tokio::test]
async fn an_interval_is_run_once_however_often_it_is_asked_for() {
    let host = TestHost::new().await;
    // A day of New York.
    let command =
        "run daily_departures --interval 2013-03-11T04:00:00+00:00/2013-03-12T00:00:00-04:00 --json";
    for _ in 0..2 {
        let ran = host.run(command).await.ends(Exit::Done).json();
        assert_eq!(ended(&ran), of_days([11], "committed"));
        assert_eq!(ran["units"][0]["run"], "scheduled daily_departures day=2013-03-11");
    }
    let words = ["ledger", "--run", "scheduled daily_departures day=2013-03-11", "--json"];
    let rows = host.run_words(&words, None).await.ends(Exit::Done).json();
    assert_eq!(rows["rows"].as_array().unwrap().len(), 1);
    assert_eq!((&rows["rows"][0]["trigger"], &rows["rows"][0]["logic"]), (&json!("scheduled"), &json!("v1")));
    // Another id is another run, and what is unchanged is not run.
    let other = host.run(&format!("{command} --run again")).await.ends(Exit::Done).json();
    assert_eq!(ended(&other), of_days([11], "skipped"));
    let forced = host.run(&format!("{command} --run forced --force --manual --by ann --reason why")).await;
    assert_eq!(ended(&forced.ends(Exit::Done).json()), of_days([11], "committed"));
    let rows = host.run("ledger --run forced --json").await.ends(Exit::Done).json();
    let row = &rows["rows"][0];
    assert_eq!(
        [&row["trigger"], &row["requester"], &row["reason"]],
        [&json!("manual"), &json!("ann"), &json!("why")]
    );
}

#[tokio::test]
async fn an_interval_may_hold_several_partitions_and_no_part_of_one() {
    let host = TestHost::new().await;
    let three =
        host.run("run daily_departures --interval 2013-03-11/2013-03-14 --json").await.ends(Exit::Done);
    assert_eq!(ended(&three.json()), of_days([11, 12, 13], "committed"));
    let week = host.run("run weekly_departures --interval 2013-03-11/2013-03-18").await.ends(Exit::Done);
    assert_eq!(week.out, "weekly_departures week=2013-03-11: committed\n");
    for (command, word) in [
        ("weekly_departures --interval 2013-03-12/2013-03-19", "cuts the week"),
        ("daily_departures --interval 2013-03-11/2013-03-11T12:00:00Z", "cuts the day"),
        ("daily_departures --interval 2013-03-12/2013-03-11", "no interval"),
        ("daily_departures --interval 2013-03-12/2013-03-12", "no interval"),
        ("daily_departures --interval yesterday/today", "no time"),
        ("daily_departures --interval 2013-03-12", "no interval"),
        ("daily_departures", "--interval"),
        ("nothing --interval 2013-03-11/2013-03-12", "nothing"),
    ] {
        let error = host.run(&format!("run {command} --json")).await.ends(Exit::Usage).error();
        let text = error.to_string();
        assert!(text.contains(word), "{command}: {text}");
    }
}

#[tokio::test]
async fn an_interval_that_has_not_ended_is_left_for_later() {
    let host = TestHost::new().await;
    for command in [
        "run daily_departures --interval 2013-04-02/2013-04-03",
        "run daily_departures --interval 2013-04-01/2013-04-03",
        "catch-up daily_departures --until 2013-04-03",
        "catch-up daily_departures --until 2013-04-02T09:00:01Z",
    ] {
        let error = host.run(&format!("{command} --json")).await.ends(Exit::Temporary).error();
        assert!(error["message"].as_str().unwrap().contains("not yet"), "{command}: {error}");
    }
    host.run("run daily_departures --interval 2013-04-01/2013-04-02").await.ends(Exit::Done);
}

#[tokio::test]
async fn what_nobody_has_produced_is_caught_up() {
    let host = TestHost::new().await;
    host.run("run daily_departures --partition day=2013-03-12").await.ends(Exit::Done);
    // The day of the 14th has not ended at noon.
    let first =
        host.run("catch-up daily_departures --until 2013-03-14T12:00:00Z --json").await.ends(Exit::Done);
    assert_eq!(ended(&first.json()), of_days([11, 13], "committed"));
    let again = host.run("catch-up daily_departures --until 2013-03-14").await.ends(Exit::Done);
    assert_eq!(again.out, "Nothing to run\n");
    let earlier = host.run("catch-up daily_departures --from day=2013-03-02 --until 2013-03-14 --json").await;
    assert_eq!(ended(&earlier.ends(Exit::Done).json()), of_days([2, 3], "committed"));
}
