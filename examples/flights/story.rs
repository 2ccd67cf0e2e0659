//! The story: three weeks of wrong numbers, corrected.
//!
//! Every chapter looks at the ledger first and does only what is not done yet, so that a story that was interrupted goes
//! on where it was.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use chrono::NaiveDate;
use reprocess::domain::ids::{Actor, BackfillId, TableId, WorkerId};
use reprocess::domain::partition::PartitionKey;
use reprocess::domain::plan::{Plan, RollbackRequest, SkipReason};
use reprocess::domain::request::{Expected, Request, Selection};
use reprocess::domain::validate::{Decision, Expectation, Prediction, Severity, Tolerance};
use reprocess::engine::{Engine, Publication, RunOutcome, RunRequest, Submission};
use reprocess::ports::ledger::{BackfillState, TaskState};
use reprocess::render;

use super::jobs::{self, DAILY, WEEKLY};
use super::numbers::{self, CANCELLED, CARRIERS, SCHEDULED, ensure, grouped};
use super::{Result, data, day, published};

const BACKFILL: &str = "fix-cancelled";
const ROLLBACK: &str = "undo-2013-03-08";
const FIRST: u32 = 4;
const LAST: u32 = 24;
const TAKEN_BACK: u32 = 8;

/// What a telling ended with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// Days of the backfill's range that the same request skips as unchanged.
    pub(crate) unchanged: usize,
    /// Days that it skips since they were rolled back.
    pub(crate) rolled_back: usize,
    /// Rows of the ledger.
    pub(crate) ledger_rows: u64,
}

struct Story {
    engine: Engine,
    db: PathBuf,
    flights: Vec<data::Flight>,
    cancelled: BTreeMap<NaiveDate, i64>,
    author: Actor,
    reviewer: Actor,
    worker: WorkerId,
}

/// Tells the story over a database file.
pub(crate) async fn tell(db: &Path) -> Result<Told> {
    let flights = data::flights()?;
    data::load(db, &flights, false).await?;
    let story = Story {
        engine: jobs::engine(db).await?,
        db: db.to_owned(),
        cancelled: data::cancelled(&flights),
        flights,
        author: Actor::from("analyst"),
        reviewer: Actor::from("reviewer"),
        worker: WorkerId::from("example"),
    };
    println!("Departures from New York, March 2013 · database {}", db.display());
    if story.state(ROLLBACK).await? == Some(BackfillState::Done) {
        return story.told_before().await;
    }
    story.schedule().await?;
    story.plan().await?;
    story.shadow().await?;
    story.meanwhile().await?;
    story.review_and_publish().await?;
    story.carry_on().await?;
    story.explain().await?;
    story.retry().await?;
    story.take_back().await?;
    story.end().await
}

fn chapter(title: &str) {
    println!("\n\n── {title} {}\n", "─".repeat(100_usize.saturating_sub(title.chars().count())));
}

fn key(day: NaiveDate) -> PartitionKey {
    PartitionKey::of("day", day)
}

impl Story {
    async fn state(&self, id: &str) -> Result<Option<BackfillState>> {
        Ok(self.engine.ledger().backfill(&BackfillId::from(id)).await?.map(|b| b.state))
    }

    fn request(&self) -> Request {
        let fewer = |d: u32| (key(day(d)), (-self.cancelled.get(&day(d)).unwrap_or(&0)).into());
        let prediction = Expectation::TotalChanges {
            column: "departures".to_owned(),
            by: Prediction::PerPartition((FIRST..=LAST).map(fewer).collect()),
            tolerance: Tolerance::default(),
        };
        let range = Selection::Range { first: day(FIRST).into(), last: day(LAST).into() };
        let why = "cancelled flights were counted as departures";
        Request::new(BACKFILL, range, why, self.author.clone())
            .with_job(DAILY, "v2")
            .with_concurrency(4)
            .with_expected(Expected { job: None, expectation: prediction, severity: Severity::Abort })
            .with_expectation(Expectation::RowCountUnchanged)
            .with_expectation(Expectation::OnlyColumnsChange { columns: vec!["departures".to_owned()] })
    }

    /// Runs every day and week that the ledger does not have, as a scheduler would.
    async fn schedule(&self) -> Result<()> {
        chapter("1 · The schedule has run every day and week of March, with logic v1");
        let days = (1..=31).map(|d| (DAILY, key(day(d))));
        let mondays = [25 - 28, 4, 11, 18, 25].map(|d: i64| day(1) + chrono::Duration::days(d - 1));
        let weeks = mondays.map(|monday| (WEEKLY, PartitionKey::of("week", monday)));
        let mut ran = BTreeMap::from([(DAILY, 0), (WEEKLY, 0)]);
        for (job, unit) in days.chain(weeks) {
            let known =
                self.engine.ledger().current(&TableId::from(job), std::slice::from_ref(&unit)).await?;
            if known.iter().all(Option::is_none) {
                let _ = self.scheduled(job, unit, "").await?;
                *ran.entry(job).or_default() += 1;
            }
        }
        println!(
            "ran {} days and {} weeks; the ledger has {} rows",
            ran[DAILY],
            ran[WEEKLY],
            self.rows().await?
        );
        let (scheduled, departures) = numbers::sums(&numbers::days(&self.db, day(1), day(31)).await?);
        println!("March as published: {} scheduled, {} departures", grouped(scheduled), grouped(departures));
        println!(
            "Nothing was ever cancelled? The file says that {} flights were.",
            self.cancelled.values().sum::<i64>()
        );
        Ok(())
    }

    async fn scheduled(&self, job: &str, unit: PartitionKey, suffix: &str) -> Result<RunOutcome> {
        let run = format!("{job}/{unit}{suffix}");
        let request = RunRequest::scheduled(run, job, unit).with_logic("v1");
        Ok(self.engine.run(&request, &self.worker).await?)
    }

    async fn plan(&self) -> Result<()> {
        if !matches!(self.state(BACKFILL).await?, None | Some(BackfillState::Planned)) {
            return Ok(());
        }
        chapter("2 · The request becomes a plan");
        let plan = match self.engine.ledger().backfill(&BackfillId::from(BACKFILL)).await? {
            Some(filed) => filed.plan,
            None => self.engine.plan(&self.request()).await?,
        };
        println!("{}", render::plan(&plan, render::SHOWN));
        let weeks = plan.tasks.iter().filter(|task| task.is_downstream()).count();
        ensure("days, and weeks downstream", (plan.tasks.len() - weeks, weeks), (21, 3))?;
        let submitted = self.engine.submit(&plan, &self.author).await?;
        self.engine
            .approve(&plan.request.id, &plan.digest(), &self.reviewer, "three weeks, as agreed")
            .await?;
        println!("{} submits it ({submitted:?}), {} approves it.", self.author, self.reviewer);
        Ok(())
    }

    async fn shadow(&self) -> Result<()> {
        use BackfillState::{Approved, Failed, Running, Stale};
        if !matches!(self.state(BACKFILL).await?, Some(Approved | Running | Stale | Failed)) {
            return Ok(());
        }
        chapter("3 · The tasks run in a shadow: production keeps its numbers");
        let id = BackfillId::from(BACKFILL);
        let execution = self.engine.execute(&id, &self.worker, |_| {}).await?;
        let staged = execution.in_state(TaskState::Staged).count();
        println!("{staged} tasks are staged; the backfill is {}", execution.state);
        ensure("state after the tasks", execution.state, BackfillState::AwaitingReview)?;
        let (scheduled, departures) = self.range().await?;
        println!(
            "4 to 24 March in production: {} scheduled, {} departures",
            grouped(scheduled),
            grouped(departures)
        );
        ensure("production under the shadow", (scheduled, departures), (SCHEDULED, SCHEDULED))
    }

    async fn meanwhile(&self) -> Result<()> {
        if self.state(BACKFILL).await? != Some(BackfillState::AwaitingReview) {
            return Ok(());
        }
        chapter("4 · Meanwhile the schedule goes on");
        let before = numbers::days(&self.db, day(25), day(25)).await?;
        let late = data::load(&self.db, &self.flights, true).await?;
        let outcome = self.scheduled(DAILY, key(day(25)), "/late").await?;
        let week = self.scheduled(WEEKLY, PartitionKey::of("week", day(25)), "/late").await?;
        let after = numbers::days(&self.db, day(25), day(25)).await?;
        println!("{late} flights of the evening of 25 March arrive late.");
        println!(
            "The schedule runs that day again ({outcome:?}) and its week ({week:?}), and waits for nobody:"
        );
        println!("{} -> {} flights", grouped(numbers::sums(&before).0), grouped(numbers::sums(&after).0));
        ensure("25 March with its late flights", numbers::sums(&after), (978, 978))
    }

    async fn review_and_publish(&self) -> Result<()> {
        let id = BackfillId::from(BACKFILL);
        if self.state(BACKFILL).await? == Some(BackfillState::AwaitingReview) {
            chapter("5 · The review");
            let review = self.engine.review(&id).await?;
            println!("{}", render::review(&review, render::SHOWN));
            ensure("verdict", review.decision, Decision::Approve)?;
            ensure("reviewed days", review.outputs.len(), 21)?;
            self.engine.approve(&id, &review.digest, &self.reviewer, "exactly the cancelled flights").await?;
            println!("{} approves the outputs.", self.reviewer);
        }
        if !matches!(
            self.state(BACKFILL).await?,
            Some(BackfillState::AwaitingReview | BackfillState::Publishing)
        ) {
            return Ok(());
        }
        let published = self.engine.publish(&id, &self.reviewer, &self.worker).await?;
        ensure("publication", published, Publication::Published)?;
        let (scheduled, departures) = self.range().await?;
        println!("Published: {} scheduled, {} departures.", grouped(scheduled), grouped(departures));
        ensure("published range", (scheduled, departures), (SCHEDULED, SCHEDULED - CANCELLED))
    }

    async fn carry_on(&self) -> Result<()> {
        let id = BackfillId::from(BACKFILL);
        if !matches!(self.state(BACKFILL).await?, Some(BackfillState::Published | BackfillState::Propagating))
        {
            return Ok(());
        }
        chapter("6 · The weeks follow the days that they read");
        let execution = self.engine.execute(&id, &self.worker, |_| {}).await?;
        println!("{}", render::status(&self.engine.status(&id).await?, render::SHOWN));
        ensure("state after the weeks", execution.state, BackfillState::Done)
    }

    async fn explain(&self) -> Result<()> {
        chapter("7 · Where does a number come from?");
        let explanation = self.engine.explain(&TableId::from(DAILY), &key(day(TAKEN_BACK))).await?;
        println!("{}", render::explanation(&explanation, render::SHOWN));
        Ok(())
    }

    async fn retry(&self) -> Result<()> {
        if self.state(ROLLBACK).await?.is_some() {
            return Ok(());
        }
        chapter("8 · The same request again changes nothing");
        let told = self.again().await?;
        ensure("days that are skipped as unchanged", told.unchanged, 21)
    }

    /// Plans the same request again, and shows that nothing is left to do.
    async fn again(&self) -> Result<Told> {
        let before = self.rows().await?;
        let plan = self.engine.plan(&self.request()).await?;
        let count = |of: fn(&SkipReason) -> bool| plan.skipped.iter().filter(|s| of(&s.reason)).count();
        let unchanged = count(|r| matches!(r, SkipReason::Unchanged { .. }));
        let rolled_back = count(|r| matches!(r, SkipReason::RolledBack { .. }));
        println!("{}", render::plan(&plan, render::SHOWN));
        let submitted = self.engine.submit(&plan, &self.author).await?;
        ensure("submission", submitted, Submission::NothingToDo)?;
        let after = self.rows().await?;
        println!("{unchanged} days are skipped as unchanged, {rolled_back} as rolled back: nothing to do.");
        println!("Rows of the ledger before and after: {before} and {after}");
        ensure("rows of the ledger", after, before)?;
        Ok(Told { unchanged, rolled_back, ledger_rows: after })
    }

    async fn take_back(&self) -> Result<()> {
        chapter("9 · One day is taken back, and its week follows");
        let request = RollbackRequest {
            id: BackfillId::from(ROLLBACK),
            of: BackfillId::from(BACKFILL),
            partitions: Some([key(day(TAKEN_BACK))].into()),
            reason: "the airport disputes the cancellations of that day".to_owned(),
            requester: self.author.clone(),
        };
        let plan: Plan = match self.engine.ledger().backfill(&request.id).await? {
            Some(filed) => filed.plan,
            None => self.engine.plan_rollback(&request).await?,
        };
        println!("{}", render::plan(&plan, render::SHOWN));
        if self.state(ROLLBACK).await?.is_none() {
            ensure("submission", self.engine.submit(&plan, &self.author).await?, Submission::New)?;
        }
        if self.state(ROLLBACK).await? == Some(BackfillState::Planned) {
            self.engine.approve(&request.id, &plan.digest(), &self.reviewer, "until it is settled").await?;
        }
        let execution = self.engine.execute(&request.id, &self.worker, |_| {}).await?;
        println!("The rollback is {}.", execution.state);
        ensure("state of the rollback", execution.state, BackfillState::Done)
    }

    async fn end(&self) -> Result<Told> {
        chapter("10 · What is published");
        self.published().await?;
        self.check().await?;
        chapter("11 · The ledger of the backfill");
        let rows = self.engine.ledger().changes(&BackfillId::from(BACKFILL)).await?;
        println!("{}", render::ledger(&rows, render::SHOWN));
        // 21 days and 3 weeks; the day that came back, and its week.
        ensure("rows of the backfill and its rollback", rows.len(), 26)?;
        let stale = self.engine.ledger().stale().await?;
        println!("{}", render::stale(&stale, render::SHOWN));
        ensure("what is left stale", stale.len(), 0)?;
        println!("{}", render::outdated(&self.engine.outdated().await?, render::SHOWN));
        println!("Run the example again: the same backfill finds nothing to do.");
        let ledger_rows = self.rows().await?;
        Ok(Told { unchanged: 20, rolled_back: 1, ledger_rows })
    }

    async fn told_before(&self) -> Result<Told> {
        chapter("The story was told on this database before: the same request again");
        let told = self.again().await?;
        ensure("days that are skipped", (told.unchanged, told.rolled_back), (20, 1))?;
        chapter("What is published");
        self.published().await?;
        Ok(told)
    }

    /// Every published day with the run behind it, and every airline.
    async fn published(&self) -> Result<()> {
        published::days(&self.engine, &numbers::days(&self.db, day(1), day(31)).await?).await?;
        let carriers = numbers::carriers(&self.db, day(FIRST), day(LAST)).await?;
        published::carriers(&carriers, self.range().await?);
        ensure("carriers", carriers.len(), CARRIERS)
    }

    /// The days of the range are corrected but for the one taken back, and no other day is.
    async fn check(&self) -> Result<()> {
        let corrected: BTreeSet<_> = (FIRST..=LAST).filter(|d| *d != TAKEN_BACK).map(day).collect();
        for d in numbers::days(&self.db, day(1), day(31)).await? {
            let left = if corrected.contains(&d.day) { self.cancelled[&d.day] } else { 0 };
            ensure(&format!("cancelled on {}", d.day), d.scheduled - d.departures, left)?;
        }
        let expected = SCHEDULED - CANCELLED + self.cancelled[&day(TAKEN_BACK)];
        ensure("range without the day taken back", self.range().await?, (SCHEDULED, expected))?;
        let outdated = self.engine.outdated().await?;
        ensure("days that are not on v2", outdated.len(), 31 - corrected.len())
    }

    /// Scheduled flights and departures of the backfill's range in production.
    async fn range(&self) -> Result<(i64, i64)> {
        Ok(numbers::sums(&numbers::days(&self.db, day(FIRST), day(LAST)).await?))
    }

    /// Rows of the ledger: each has a position, counted from 1.
    async fn rows(&self) -> Result<u64> {
        Ok(self.engine.ledger().position().await?)
    }
}
