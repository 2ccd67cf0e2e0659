//! What programs read: the document of every command, held by snapshots, and its description.

use std::collections::{BTreeMap, BTreeSet};

use clap::{CommandFactory, Parser};
use serde_json::Value as Json;

use super::host::{TestHost, departures, flights_of};
use crate::cli::args::Cli;
use crate::domain::partition::PartitionKey;
use crate::domain::scope::Scope;
use crate::domain::value::Value;

const DESCRIPTION: &str = include_str!("../json.md");

/// What the host of the tests calls its own.
const OF_HOST: [&str; 12] = [
    "carrier",
    "daily",
    "daily_departures",
    "day",
    "departures",
    "fix",
    "flights",
    "more",
    "to",
    "week",
    "weekly_departures",
    "two",
];

struct Story {
    host: TestHost,
    documents: BTreeMap<String, Json>,
}

impl Story {
    /// Runs a command and keeps its document under the command's name.
    async fn told(&mut self, command: &str) -> Json {
        let name = command
            .split_whitespace()
            .take_while(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
        let name: Vec<_> = name.take(if command.starts_with("deliveries") { 2 } else { 1 }).collect();
        self.told_as(&name.join(" "), command).await
    }

    /// Runs a command whose document is of no interest.
    async fn done(&self, command: &str) -> Json {
        let ran = self.host.run(&format!("{command} --json --by ada --worker w1")).await;
        assert!(!ran.out.is_empty(), "{command}: {ran:?}");
        ran.json()
    }

    async fn told_as(&mut self, name: &str, command: &str) -> Json {
        let ran = self.host.run(&format!("{command} --json --by ada --worker w1")).await;
        let document = if ran.out.is_empty() { ran.error() } else { ran.json() };
        self.documents.insert(name.to_owned(), document.clone());
        document
    }
}

/// The document of every command.
async fn documents() -> BTreeMap<String, Json> {
    let day = "--from 2013-03-04 --to 2013-03-04 --reason cancelled";
    let fix = format!("daily_departures@v2 --id fix {day}");
    let mut story = Story { host: TestHost::new().await, documents: BTreeMap::new() };
    story.told(&format!("plan {fix}")).await;
    story.told(&format!("estimate {fix}")).await;
    story.told(&format!("submit {fix}")).await;
    story.told("pause fix").await;
    story.told("resume fix").await;
    story.told("concurrency fix 2").await;
    story.told("cancel fix --why mistaken").await;
    story.told("close fix").await;
    let staged = story.told(&format!("backfill {fix} --yes")).await;
    story.told_as("status ID", "status fix").await;
    story.told("status").await;
    story.told_as("error", "approve fix --digest wrong").await;
    story.told("review fix").await;
    story.told("diff fix 0").await;
    story.told(&format!("approve fix --digest {}", staged["review"]["digest"].as_str().unwrap())).await;
    let moved = departures("day", 15_768, &[("AA", 9)]);
    let first = PartitionKey::of("day", Value::Date("2013-03-04".parse().unwrap()));
    story.host.daily.replace_unmanaged(&Scope::key(first).unwrap(), &moved).unwrap();
    story.told("drift").await;
    story.told("publish fix").await;
    let again = story.told_as("backfill --resume", "backfill --resume fix").await;
    let digest = again["review"]["digest"].as_str().unwrap().to_owned();
    story.done(&format!("approve fix --digest {digest}")).await;
    story.told_as("publish done", "publish fix").await;
    story.told("explain daily_departures day=2013-03-04").await;
    story.told("ledger --backfill fix").await;
    story.told("outdated").await;
    story.told("rollback fix --all --reason disputed --yes").await;
    // Direct, and without what is downstream of it.
    let late = "backfill daily_departures@v2 --id late --from 2013-03-05 --to 2013-03-05 --reason late --mode direct";
    story.done(&format!("{late} --yes --no-propagate")).await;
    story.told("stale").await;
    story.told("reconcile").await;
    story.told_as("close stale", "close late").await;
    story.host.flights.append_unmanaged(&flights_of(15_770..15_771)).unwrap();
    story.told("corrections").await;
    story.told("readiness --since 2013-03-10").await;
    story.told("lineage").await;
    story.told("check daily_departures@v2 day=2013-03-05").await;
    story.told("run daily_departures --interval 2013-03-11/2013-03-12").await;
    story.told("catch-up daily_departures --until 2013-03-14").await;
    let two = format!(
        "backfill daily_departures@v2 --id two {} --yes",
        day.replace("to 2013-03-04", "to 2013-03-06")
    );
    story.done(&two).await;
    story.told("discard two 1 --why disputed").await;
    story.told("abort two --why disputed").await;
    let more = "daily_departures@v2 --id more --from 2013-03-20 --to 2013-03-20 --reason more --mode direct";
    let filed = story.done(&format!("submit {more}")).await;
    story.done(&format!("approve more --digest {}", filed["plan_digest"].as_str().unwrap())).await;
    story.told("work --until-idle").await;
    story.told("doctor").await;
    story.told("deliveries list --backfill more").await;
    story.told("deliveries release more").await;
    story.told("deliveries send").await;
    story.told("deliveries decide report/2013-03-04 --as again").await;
    story.documents
}

/// The names of all commands, those of groups after that of the group.
fn commands() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for command in Cli::command().get_subcommands() {
        let name = command.get_name();
        match command.has_subcommands() {
            true => names.extend(command.get_subcommands().map(|sub| format!("{name} {}", sub.get_name()))),
            false => drop(names.insert(name.to_owned())),
        }
    }
    names
}

/// Without what any change of a column or an id would change too.
fn without_digests(document: &mut Json) {
    match document {
        Json::String(text) => {
            let words = text.split(|c: char| !c.is_ascii_alphanumeric());
            if words.into_iter().any(|word| word.len() >= 16 && word.bytes().all(|b| b.is_ascii_hexdigit())) {
                *text = "(digest)".to_owned();
            }
        }
        Json::Array(items) => items.iter_mut().for_each(without_digests),
        Json::Object(fields) => fields.values_mut().for_each(without_digests),
        _ => {}
    }
}

#[tokio::test]
async fn documents_stay_as_programs_know_them() {
    let mut documents = documents().await;
    let told: BTreeSet<_> = documents.keys().cloned().collect();
    let untold: Vec<_> = commands().into_iter().filter(|name| !told.contains(name)).collect();
    assert_eq!(untold, Vec::<String>::new(), "commands without a document");
    for (name, document) in &mut documents {
        without_digests(document);
        let name = name.replace([' ', '-'], "_");
        insta::assert_snapshot!(name, serde_json::to_string_pretty(document).unwrap());
    }
}

/// The names of all fields.
fn fields(document: &Json, found: &mut BTreeSet<String>) {
    match document {
        Json::Array(items) => items.iter().for_each(|item| fields(item, found)),
        Json::Object(object) => {
            for (name, value) in object {
                found.insert(name.clone());
                fields(value, found);
            }
        }
        _ => {}
    }
}

#[tokio::test]
async fn every_field_is_described() {
    let mut found = BTreeSet::new();
    documents().await.values().for_each(|document| fields(document, &mut found));
    found.retain(|name| !OF_HOST.contains(&name.as_str()));
    let missing: Vec<_> = found.iter().filter(|name| !DESCRIPTION.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in json.md: {missing:#?}");
    for name in commands() {
        assert!(DESCRIPTION.contains(&format!("`{name}`")), "json.md does not name the command {name}");
    }
}

/// The words of a command line, as a shell divides them.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut quoted) = (vec![String::new()], false);
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    words
}

#[test]
fn every_command_has_an_example_that_can_be_typed() {
    fn check(command: &clap::Command, path: &str) {
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            let name = format!("{path}{}", sub.get_name());
            if sub.has_subcommands() {
                check(sub, &format!("{name} "));
                continue;
            }
            let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
            let example = help.lines().find_map(|line| line.strip_prefix("Example: "));
            let example = example.unwrap_or_else(|| panic!("{name} has no example"));
            assert!(example.starts_with(&name), "{name}: {example}");
            let typed = ["host".to_owned()].into_iter().chain(words(example));
            Cli::try_parse_from(typed).unwrap_or_else(|error| panic!("{example}: {error}"));
        }
    }
    check(&Cli::command(), "");
}
