//! Commands that look for what is not as it should be.

use serde_json::json;

use super::host::{TestHost, departures, flights_of};
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

#[tokio::test]
async fn what_a_source_has_corrected_becomes_a_request() {
    let host = TestHost::new().await;
    let none = host.run("corrections").await.ends(Exit::Done);
    assert_eq!(none.out, "No source has changed under what was computed\n");
    let request = "plan daily_departures --corrected --id late --reason late";
    host.run(request).await.ends(Exit::Usage);
    // Flights of 5 March come late, and the first ones of 11 March, of which nothing was computed yet.
    host.flights.append_unmanaged(&flights_of(15_769..15_770)).unwrap();
    host.flights.append_unmanaged(&flights_of(15_775..15_776)).unwrap();
    let found = host.run("corrections --json").await.ends(Exit::Done).json();
    let all = found["corrections"].as_array().unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(
        [&all[0]["job"], &all[0]["partition"]["day"]["date"], &all[0]["source"], &all[0]["run"]],
        [
            &json!("daily_departures"),
            &json!("2013-03-05"),
            &json!("flights"),
            &json!("daily_departures-day=2013-03-05")
        ]
    );
    let text = host.run("corrections daily_departures").await.ends(Exit::Done).out;
    assert!(text.contains("day=2013-03-05: flights has changed since daily_departures read it"), "{text}");
    assert_eq!(host.run("corrections weekly_departures --json").await.json()["corrections"], json!([]));
    host.run("corrections nothing").await.ends(Exit::Usage);
    let plan = host.run(&format!("{request} --json")).await.ends(Exit::Done).json();
    let planned: Vec<_> = plan["plan"]["tasks"].as_array().unwrap().iter().map(|t| &t["job"]).collect();
    assert_eq!(planned, ["daily_departures", "weekly_departures"]);
    host.run(&format!("{request} --mode direct").replace("plan", "backfill --yes")).await.ends(Exit::Done);
    assert_eq!(host.run("corrections --json").await.json()["corrections"], json!([]));
}

#[tokio::test]
async fn totals_of_layers_agree_or_are_named() {
    let host = TestHost::new().await;
    let agrees = host.run("reconcile").await.ends(Exit::Done);
    assert_eq!(agrees.out, "weekly_departures: departures = departures of daily: agrees in 1 partition\n");
    let fix = "backfill daily_departures@v2 --from 2013-03-04 --to 2013-03-05 --id fix --reason cancelled --mode direct";
    host.run(&format!("{fix} --yes --no-propagate")).await.ends(Exit::Done);
    // Six departures on each of seven days, and one less on two of them.
    let differs = host.run("reconcile weekly_departures").await.ends(Exit::Failed);
    assert!(differs.out.contains("differs in 1 of 1 partition"), "{}", differs.out);
    assert!(differs.out.contains("week=2013-03-04: 42, and below 40"), "{}", differs.out);
    let document = host.run("reconcile --json").await.ends(Exit::Failed).json();
    assert_eq!(document["agrees"], false);
    assert_eq!(
        host.run("reconcile daily_departures").await.ends(Exit::Done).out,
        "No job declares a total that has to agree\n"
    );
    host.run("reconcile nothing").await.ends(Exit::Usage);
}

#[tokio::test]
async fn what_was_not_ready_in_time_is_named_with_what_went_on_beside_it() {
    // Each day is to be there 20 days after it ends. It is 2 April, and the days from 4 to 10 March were computed now.
    let host = TestHost::new().await;
    let found = host.run("readiness --since 2013-03-01 --json").await.ends(Exit::Done).json();
    let unready = found["readiness"]["unready"].as_array().unwrap();
    let lines: Vec<_> = unready
        .iter()
        .map(|u| {
            let day = u["partition"]["day"]["date"].as_str().unwrap();
            format!("{day} {} {}", u["lateness"].as_str().unwrap(), u["due_at"].as_str().unwrap())
        })
        .collect();
    // The day ends at 5 o'clock in winter, and from 10 March on at 4.
    let expected = [
        "2013-02-28 missing 2013-03-21T05:00:00Z",
        "2013-03-01 missing 2013-03-22T05:00:00Z",
        "2013-03-02 missing 2013-03-23T05:00:00Z",
        "2013-03-03 missing 2013-03-24T05:00:00Z",
        "2013-03-04 late 2013-03-25T05:00:00Z",
        "2013-03-05 late 2013-03-26T05:00:00Z",
        "2013-03-06 late 2013-03-27T05:00:00Z",
        "2013-03-07 late 2013-03-28T05:00:00Z",
        "2013-03-08 late 2013-03-29T05:00:00Z",
        "2013-03-09 late 2013-03-30T05:00:00Z",
        "2013-03-10 late 2013-03-31T04:00:00Z",
        "2013-03-11 missing 2013-04-01T04:00:00Z",
        "2013-03-12 missing 2013-04-02T04:00:00Z",
    ];
    assert_eq!(lines, expected);
    assert!(unready.iter().all(|u| u["beside"] == json!([])));
    assert_eq!(found["readiness"]["waits"]["scheduled"]["rows"], 8);
    // An hour later the 11th is made by a backfill that was submitted before.
    let late = "daily_departures@v2 --from 2013-03-11 --to 2013-03-11 --id late --reason late --mode direct";
    let filed = host.run(&format!("submit {late} --json")).await.ends(Exit::Waiting).json();
    let digest = filed["plan_digest"].as_str().unwrap();
    host.run(&format!("approve late --digest {digest}")).await.ends(Exit::Done);
    host.clock.advance(std::time::Duration::from_secs(3600));
    host.run("backfill --resume late").await.ends(Exit::Done);
    let text = host.run("sla --since 2013-03-12T04:00:00Z").await.ends(Exit::Done).out;
    let expected =
        "day=2013-03-11 of daily_departures: 30 h 0 min late, was due 2013-04-01 04:00:00Z, beside late";
    assert!(text.lines().any(|line| line.trim() == expected), "{text}");
    assert!(text.contains("scheduled       8   0 ms"), "{text}");
    host.run("readiness --since monday").await.ends(Exit::Usage);
}

#[tokio::test]
async fn what_was_made_before_its_interval_ended_is_not_ready() {
    let host = TestHost::new().await;
    host.clock.set("2013-03-11T12:00:00Z".parse().unwrap());
    host.run("run daily_departures --partition day=2013-03-11 --run early").await.ends(Exit::Done);
    host.clock.set("2013-03-13T12:00:00Z".parse().unwrap());
    host.run("run daily_departures --partition day=2013-03-12 --run in-time").await.ends(Exit::Done);
    host.clock.set("2013-04-02T09:00:00Z".parse().unwrap());
    let found = host.run("readiness --since 2013-03-12T04:00:00Z --json").await.ends(Exit::Done).json();
    let unready = found["readiness"]["unready"].as_array().unwrap();
    let days: Vec<_> = unready.iter().map(|u| (&u["partition"]["day"]["date"], &u["lateness"])).collect();
    assert_eq!(days, [(&json!("2013-03-11"), &json!("missing"))], "half a day is no day");
}
