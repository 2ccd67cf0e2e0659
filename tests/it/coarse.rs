//! Twenty years of days, committed month by month.

use std::collections::BTreeSet;

use chrono::{Datelike, NaiveDate};
use reprocess::arrow::schema::DataType;
use reprocess::domain::interval::Grain;
use reprocess::domain::job::{JobSpec, Window};
use reprocess::domain::request::{Mode, Request, Selection};
use reprocess::engine::Job;
use reprocess::ports::ledger::BackfillState;

use super::support::{World, daily, execute};

/// A visit for each day of 2003 to 2022, and a second one on each 1 January.
const VISITS: &str = "
    CREATE TABLE visits (id INTEGER PRIMARY KEY, day DATE);
    WITH RECURSIVE d (day) AS (SELECT '2003-01-01' UNION ALL SELECT date(day, '+1 day') FROM d WHERE day < '2022-12-31')
    INSERT INTO visits (day) SELECT day FROM d UNION ALL SELECT day FROM d WHERE day LIKE '%-01-01';";

/// From the 1st of January 2003 to the last of December 2022: five leap years.
const DAYS: usize = 20 * 365 + 5;

#[tokio::test]
async fn twenty_years_are_two_hundred_and_forty_commits_with_a_row_for_each_day() {
    let mut world = World::with(VISITS).await;
    world.log("visits");
    world.output("per_day", daily(), &[("day", DataType::Date32), ("visits", DataType::Int64)]).await;
    let job = JobSpec::new("per_day", "ops", "per_day")
        .with_input("visits", "visits", Window::Same)
        .with_partitions_per_commit(31);
    let sql = "SELECT day, count(*) AS visits FROM visits GROUP BY day";
    world.host.add_job(Job::new(job).transform_sql("v1", sql)).unwrap();
    let engine = world.engine().await;
    let date = |year, month, day| NaiveDate::from_ymd_opt(year, month, day).unwrap();
    let range = Selection::Range { first: date(2003, 1, 1).into(), last: date(2022, 12, 31).into() };
    let request = Request::new("all", range, "the first load", "analyst")
        .with_job("per_day", "v1")
        .with_mode(Mode::Direct)
        .with_concurrency(4)
        .with_commit_by(Grain::Month);
    let done = execute(&engine, &request).await;
    assert_eq!((done.state, done.tasks.len()), (BackfillState::Published, 240));

    let rows = engine.ledger().changes(&"all".into()).await.unwrap();
    assert_eq!(rows.len(), DAYS);
    let commits: BTreeSet<_> = rows.iter().map(|row| row.record.output.clone().unwrap()).collect();
    assert_eq!(commits.len(), 240, "versions of the table");
    for row in &rows {
        let profile = row.record.after.as_ref().unwrap();
        assert_eq!(profile.partition, row.record.partition);
        assert_eq!(profile.rows, 1, "{}", row.record.partition);
        let first_of_year = row.record.partition.to_string().ends_with("-01-01");
        let visits = if first_of_year { "2" } else { "1" };
        assert_eq!(profile.totals["visits"].to_string(), visits, "{}", row.record.partition);
    }
    let sums =
        "SELECT substr(day, 1, 4) || ' ' || sum(visits) FROM per_day GROUP BY substr(day, 1, 4) ORDER BY 1";
    let by_year = |year: i32| format!("{year} {}", date(year, 12, 31).ordinal() + 1);
    assert_eq!(world.rows(sums).await, (2003..=2022).map(by_year).collect::<Vec<_>>());
    assert_eq!(engine.plan(&request).await.unwrap().skipped.len(), DAYS);
}
