//! Trying laws, and telling what came of it.

use std::any::Any;
use std::fmt;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;

use super::fixture::{Fixture, Offer};
use super::registry::{Law, laws};
use super::world::by_day_and_country;
use crate::domain::job::TableSpec;

/// What came of one law.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// It holds.
    Held,
    /// What it needs is not offered.
    NotOffered,
    /// It does not hold, and why.
    Failed(String),
}

/// What came of the laws; displays one line for each.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Report {
    /// Room, law and outcome, in the order of [`laws`].
    pub outcomes: Vec<(&'static str, &'static str, Outcome)>,
}

impl Report {
    /// The laws that do not hold.
    pub fn failed(&self) -> Vec<&'static str> {
        let failed = |(_, name, outcome): &(_, &'static str, Outcome)| match outcome {
            Outcome::Failed(_) => Some(*name),
            Outcome::Held | Outcome::NotOffered => None,
        };
        self.outcomes.iter().filter_map(failed).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (room, name, outcome) in &self.outcomes {
            let said = match outcome {
                Outcome::Held => "ok",
                Outcome::NotOffered => "not offered",
                Outcome::Failed(why) => &format!("FAILED: {why}"),
            };
            writeln!(f, "{room}::{name} ... {said}")?;
        }
        Ok(())
    }
}

/// Tries every law, printing a line for each as it ends.
pub fn run_all(fixture: &dyn Fixture) -> Report {
    run_matching(fixture, |_| true)
}

/// Tries the laws that are chosen.
pub fn run_matching(fixture: &dyn Fixture, chosen: impl Fn(&Law) -> bool) -> Report {
    let mut report = Report::default();
    for law in laws().iter().filter(|law| chosen(law)) {
        let tried = Report { outcomes: vec![(law.room, law.name, attempt(fixture, law))] };
        print!("{tried}");
        report.outcomes.extend(tried.outcomes);
    }
    report
}

/// Tries one law by its name, and panics where it does not hold. What is not offered holds.
pub fn check(fixture: &dyn Fixture, room: &str, name: &str) {
    let law =
        laws().into_iter().find(|law| law.room == room && law.name == name).expect("a law of this name");
    match attempt(fixture, &law) {
        Outcome::Held => {}
        Outcome::NotOffered => println!("{room}::{name} ... not offered"),
        Outcome::Failed(why) => panic!("{room}::{name} does not hold: {why}"),
    }
}

fn attempt(fixture: &dyn Fixture, law: &Law) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let trying = async {
        let place = fixture.fresh().await;
        let spec = TableSpec::new("offer", by_day_and_country());
        let capabilities = place.open(&spec).await.writer.capabilities();
        drop(place);
        if !(law.needs)(&Offer { capabilities, hooks: fixture.hooks() }) {
            return Outcome::NotOffered;
        }
        (law.run)(fixture).await;
        Outcome::Held
    };
    let tried = runtime.expect("a runtime").block_on(AssertUnwindSafe(trying).catch_unwind());
    tried.unwrap_or_else(|panic| Outcome::Failed(said(&*panic)))
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}
