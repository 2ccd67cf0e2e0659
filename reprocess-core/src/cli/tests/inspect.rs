//! Commands that look for what is not as it should be.

use serde_json::json;

use super::host::{TestHost, departures};
use crate::cli::Exit;
use crate::domain::partition::PartitionKey;
use crate::domain::scope::Scope;
use crate::domain::value::Value;

#[tokio::test]
async fn rows_that_others_have_written_are_named() {
    let host = TestHost::new().await;
    let clean = host.run("drift").await.ends(Exit::Done);
    assert_eq!(clean.out, "Every partition is as the ledger recorded it\n");
    let day = PartitionKey::of("day", Value::Date("2013-03-05".parse().unwrap()));
    let rows = departures("day", 15_769, &[("AA", 9)]);
    host.daily.replace_unmanaged(&Scope::key(day.clone()).unwrap(), &rows).unwrap();
    let found = host.run("drift --json").await.ends(Exit::Done).json();
    let expected = json!([{
        "table": "daily_departures", "partition": day, "run": "daily_departures-day=2013-03-05",
        "rows_recorded": 2, "rows_found": 1,
    }]);
    assert_eq!(found["drift"], expected);
    assert_eq!(host.run("drift weekly_departures --json").await.json()["drift"], json!([]));
    let text = host.run("drift daily_departures").await.ends(Exit::Done).out;
    assert!(
        text.contains("run daily_departures-day=2013-03-05 left 2 rows, and there are 1 others"),
        "{text}"
    );
    host.run("drift nothing").await.ends(Exit::Usage);
}

#[tokio::test]
async fn a_report_becomes_a_request() {
    let host = TestHost::new().await;
    host.run("plan weekly_departures --stale --id x --reason y").await.ends(Exit::Usage);
    let fix = "backfill daily_departures@v2 --from 2013-03-04 --to 2013-03-05 --id fix --reason cancelled --mode direct";
    host.run(&format!("{fix} --yes --no-propagate")).await.ends(Exit::Done);
    let plan =
        host.run("plan weekly_departures --stale --id week --reason stale --json").await.ends(Exit::Done);
    let plan = plan.json();
    assert_eq!(plan["plan"]["request"]["jobs"], json!({ "weekly_departures": "v1" }));
    assert_eq!(plan["plan"]["tasks"].as_array().unwrap().len(), 1);
    assert_eq!(plan["plan"]["tasks"][0]["units"][0]["week"]["date"], "2013-03-04");
    // The schedule runs v1, so that what is on v2 is outdated.
    let plan =
        host.run("plan daily_departures --outdated --id back --reason v1 --json").await.ends(Exit::Done);
    let plan = plan.json();
    let days: Vec<_> =
        plan["plan"]["tasks"].as_array().unwrap().iter().filter(|t| t["job"] == "daily_departures").collect();
    let days: Vec<_> = days.into_iter().map(|task| task["units"][0]["day"]["date"].clone()).collect();
    assert_eq!(days, ["2013-03-04", "2013-03-05"]);
}

#[tokio::test]
async fn a_plan_is_filed_for_somebody_else_to_approve() {
    let host = TestHost::new().await;
    let request = "daily_departures@v2 --from 2013-03-04 --to 2013-03-05 --id fix --reason cancelled";
    let filed = host.run(&format!("submit {request} --json")).await.ends(Exit::Waiting).json();
    assert_eq!(filed["state"], "planned");
    host.run(&format!("submit {request}")).await.ends(Exit::Waiting);
    let digest = filed["plan_digest"].as_str().unwrap();
    host.run(&format!("approve fix --digest {digest} --by grace")).await.ends(Exit::Done);
    let watched = host.run("status fix --watch --json").await;
    assert_eq!(watched.exit, Exit::Temporary, "nobody works on it");
}

#[tokio::test]
async fn costs_lineage_and_determinism_are_told() {
    let host = TestHost::new().await;
    let range = "--from 2013-03-04 --to 2013-03-05 --id x --reason y";
    let estimate =
        host.run(&format!("estimate daily_departures@v2 {range} --json")).await.ends(Exit::Done).json();
    assert_eq!(estimate["estimate"]["tasks"], 2);
    let all = host.run("lineage --json").await.ends(Exit::Done).json();
    let daily = &all["jobs"][0];
    assert_eq!((&daily["job"], &daily["output"]), (&json!("daily_departures"), &json!("daily_departures")));
    assert_eq!((&daily["downstream"], &daily["upstream"]), (&json!(["weekly_departures"]), &json!([])));
    assert_eq!(all["jobs"][1]["exposures"], json!(["dashboard"]));
    let text = host.run("lineage weekly_departures").await.ends(Exit::Done).out;
    assert!(text.contains("upstream    daily_departures"), "{text}");
    host.run("lineage nobody").await.ends(Exit::Usage);
    let checked = host.run("check daily_departures@v2 day=2013-03-04 --json").await.ends(Exit::Done).json();
    assert_eq!(checked["holds"], true);
    host.run("check daily_departures@v2").await.ends(Exit::Usage);
}

#[tokio::test]
async fn a_doctor_names_what_waits() {
    let host = TestHost::new().await;
    let found = host.run("doctor --json").await.ends(Exit::Done).json();
    // The schedule has released seven reports, and the host has no sink.
    let expected = json!([{
        "severity": "warning", "about": "channel mail",
        "text": "7 deliveries wait to be sent, and no sink of this host serves them",
    }]);
    assert_eq!(found["findings"], expected);
    let text = host.run("doctor").await.ends(Exit::Done).out;
    assert!(text.contains("To know of\n  channel mail: 7 deliveries"), "{text}");
}
