//! What the command line takes, and how it refuses the rest.

use clap::{CommandFactory, Parser};
use proptest::prelude::*;

use super::host::TestHost;
use crate::cli::args::{Cli, Command, PlanArgs};
use crate::cli::{Exit, request};
use crate::domain::interval::Grain;
use crate::domain::partition::{PartitionKey, Partitioning};
use crate::domain::request::{Inputs, Mode, Order, Request, SchemaPolicy, Selection, WhenLeased, WhenMoved};
use crate::domain::validate::{Expectation, Severity};
use crate::domain::value::{Value, ValueKind};
use crate::error::Result;

#[test]
fn the_definition_of_the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn help_tells_the_exit_codes() {
    let help = Cli::command().render_help().to_string();
    for code in ["0  done", "1  failed", "2  bad", "3  refused", "4  waits", "5  production", "75  temporary"]
    {
        assert!(help.contains(code), "{help}");
    }
}

const COMMON: &str = "--logic v2 --id fix --reason cancelled";

fn plan_args(words: &str) -> PlanArgs {
    let args = ["host", "plan"].into_iter().chain(words.split_whitespace());
    match Cli::try_parse_from(args).unwrap().command {
        Command::Plan(args) => args,
        other => panic!("{other:?}"),
    }
}

async fn request_of(words: &str) -> Result<Request> {
    let host = TestHost::new().await;
    request::request(&host.engine, &plan_args(words), &"ada".into()).await
}

fn date(text: &str) -> Value {
    Value::Date(text.parse().unwrap())
}

#[tokio::test]
async fn a_range_is_read_by_the_calendar_of_the_job() {
    let request = request_of(&format!("daily_departures --from 2013-03-04 --to day=2013-03-08 {COMMON}"))
        .await
        .unwrap();
    let expected = Request::new(
        "fix",
        Selection::Range { first: date("2013-03-04"), last: date("2013-03-08") },
        "cancelled",
        "ada",
    )
    .with_job("daily_departures", "v2");
    assert_eq!(request, expected);
}

#[tokio::test]
async fn every_option_reaches_the_request() {
    let words = "daily_departures@v2 weekly_departures --logic v1 --partition day=2013-03-04 2013-03-05 --id fix \
                 --reason why --mode direct --concurrency 3 --order oldest-first --force --no-propagate --deliver \
                 --inputs-of run-1 --partitions-per-commit 2 --no-keep --when-moved overwrite --when-leased skip \
                 --schema add-nullable --param minimum=1 --expect \"row_count_unchanged\" \
                 --expect [{\"expectation\":{\"rows_added_at_most\":2},\"severity\":\"abort\"}]";
    let request = request_of(words).await.unwrap();
    let keys = ["2013-03-04", "2013-03-05"].map(|d| PartitionKey::of("day", date(d)));
    assert_eq!(request.selection, Selection::Keys(keys.into()));
    let jobs: Vec<_> = request.jobs.iter().map(|(j, v)| format!("{j} {v}")).collect();
    assert_eq!(jobs, ["daily_departures v2", "weekly_departures v1"]);
    assert_eq!((request.mode, request.order, request.concurrency), (Mode::Direct, Order::OldestFirst, 3));
    assert_eq!(
        (request.force, request.propagate, request.deliver, request.keep_replaced),
        (true, false, true, false)
    );
    assert_eq!(request.inputs, Inputs::Recorded { by: "run-1".into() });
    assert_eq!((request.when_moved, request.when_leased), (WhenMoved::Overwrite, WhenLeased::Skip));
    assert_eq!((request.schema, request.partitions_per_commit), (SchemaPolicy::AddNullable, 2));
    assert_eq!(request.parameters["minimum"], 1);
    assert_eq!(request.expectations[0].expectation, Expectation::RowCountUnchanged);
    assert_eq!(request.expectations[0].severity, Severity::Review);
    assert_eq!(request.expectations[1].expectation, Expectation::RowsAddedAtMost(2));
    assert_eq!(request.expectations[1].severity, Severity::Abort);
}

#[tokio::test]
async fn what_is_missing_or_wrong_is_named() {
    let host = TestHost::new().await;
    let check = |words: String, expected: &'static str| {
        let host = &host;
        async move {
            let ran = host.run(&format!("plan {words} --json")).await.ends(Exit::Usage);
            let error = ran.error();
            let text = format!("{} {}", error["message"], error["advice"]);
            assert!(text.contains(expected), "{words}: {text}");
            assert_eq!(error["retryable"], false);
        }
    };
    let range = "--from 2013-03-04 --to 2013-03-08";
    check(format!("daily_departures --from 2013-03-08 --to 2013-03-04 {COMMON}"), "ends before it begins")
        .await;
    check(format!("dailydepartures {range} {COMMON}"), "declared jobs: daily_departures").await;
    check(format!("daily_departures --from yesterday --to 2013-03-04 {COMMON}"), "no relative dates").await;
    check(format!("daily_departures --from 2013-02-30 --to 2013-03-04 {COMMON}"), "2013-02-30").await;
    check(format!("daily_departures --partition country=FR {COMMON}"), "is no dimension").await;
    check(
        "weekly_departures@v1 --from 2013-03-05 --to 2013-03-11 --id x --reason y".to_owned(),
        "begins at 2013-03-04",
    )
    .await;
    check(format!("daily_departures {range} --id fix --reason x"), "the host has: v1, v2").await;
    check(format!("daily_departures@v1 {range} {COMMON}"), "of no use").await;
    check(format!("daily_departures daily_departures {range} {COMMON}"), "named twice").await;
    check(format!("daily_departures {COMMON}"), "no partition is selected").await;
    check(format!("{range} {COMMON}"), "no job is named").await;
    check(format!("daily_departures {range} --logic v2 --reason x"), "no name").await;
    check(format!("daily_departures {range} --logic v2 --id fix"), "no reason").await;
    check(format!("daily_departures {range} {COMMON} --param minimum"), "is no parameter").await;
    check(format!("daily_departures {range} {COMMON} --param minimum=one"), "quotes").await;
    check(format!("daily_departures {range} {COMMON} --expect {{}}"), "is no expectation").await;
    check(format!("daily_departures {range} {COMMON} --expect @/no/such/file"), "cannot be read").await;
    check(format!("daily_departures --from 2013-03-04 {COMMON}"), "--to").await;
    check(format!("daily_departures {range} --whole-table {COMMON}"), "cannot be used with").await;
    check(format!("daily_departures {range} {COMMON} --concurrency 0"), "--concurrency").await;
    check(format!("daily_departures {range} {COMMON} --mode sideways"), "direct, shadow").await;
}

#[tokio::test]
async fn usage_errors_end_with_two_and_help_with_zero() {
    let host = TestHost::new().await;
    let ran = host.run("").await.ends(Exit::Usage);
    assert!(ran.err.contains("Usage:") && ran.out.is_empty(), "{ran:?}");
    let ran = host.run("plan --help").await.ends(Exit::Done);
    assert!(ran.out.contains("--from <KEY>") && ran.err.is_empty(), "{ran:?}");
    let ran = host.run("destroy").await.ends(Exit::Usage);
    assert!(ran.err.contains("unrecognized subcommand"), "{ran:?}");
    let ran = host.run("rollback fix --reason x").await.ends(Exit::Usage);
    assert!(ran.err.contains("--all"), "{ran:?}");
    let ran = host.run("rollback fix --reason x --all --partition 2013-03-04").await.ends(Exit::Usage);
    assert!(ran.err.contains("cannot be used with"), "{ran:?}");
    host.run("backfill daily_departures --resume fix").await.ends(Exit::Usage);
}

fn partitionings() -> [Partitioning; 4] {
    let zone = chrono_tz::America::New_York;
    let of = |grain| Partitioning::unpartitioned().with_time("day", grain, zone);
    [
        of(Grain::Hour),
        of(Grain::Day).with_key("country", ValueKind::Text),
        of(Grain::Quarter),
        Partitioning::unpartitioned().with_key("shard", ValueKind::Integer),
    ]
}

proptest! {
    #[test]
    fn no_text_of_a_range_or_key_panics(
        from in "\\PC{0,24}|[-+]?[0-9]{1,7}-[0-9]{1,2}-[0-9]{1,2}(T[0-9]{2}:00:00Z)?",
        to in "\\PC{0,24}|[-+]?[0-9]{1,7}-[0-9]{1,2}-[0-9]{1,2}(T[0-9]{2}:00:00Z)?",
        key in "\\PC{0,24}|(day|country|shard|%..)=[-+0-9%a-z_]{0,12}(/country=.{0,6})?",
    ) {
        let all = partitionings();
        let mut args = plan_args("daily_departures");
        args.partition = vec![key];
        for unit in &all {
            let _ = request::selection(&args, &[unit]);
        }
        args.from = Some(from);
        args.to = Some(to);
        for unit in &all {
            let _ = request::selection(&args, &[unit]);
        }
        let together: Vec<_> = all.iter().collect();
        let _ = request::selection(&args, &together);
    }

    #[test]
    fn no_command_line_panics(words in proptest::collection::vec("\\PC{0,12}|--[a-z-]{0,12}|plan|ledger", 0..6)) {
        let _ = Cli::try_parse_from(["host".to_owned()].into_iter().chain(words));
    }
}
