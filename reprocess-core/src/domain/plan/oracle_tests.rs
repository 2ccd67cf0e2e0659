//! The planner against a slow one that knows nothing of instants: it goes through every day and every partition.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{Days, NaiveDate};
use proptest::prelude::*;

use super::facts::{CurrentRun, Existing, Facts};
use super::tests::facts;
use super::*;
use crate::domain::interval::Grain;
use crate::domain::job::{Catalog, JobSpec, TableSpec, Window};
use crate::domain::partition::Partitioning;
use crate::domain::request::Selection;

const ZONE: chrono_tz::Tz = chrono_tz::America::New_York;
const TABLES: usize = 5;

/// A table is its number; `0` is a source, each other is written by the job of its number.
type Place = (usize, PartitionKey);

#[derive(Clone, Debug)]
struct World {
    /// Whether a table has weeks; days otherwise.
    weekly: Vec<bool>,
    /// Inputs of each job: a table before it, and which part of it.
    inputs: Vec<Vec<(usize, Window)>>,
    reads_itself: Vec<bool>,
    live: Vec<u32>,
    requested: BTreeSet<usize>,
    /// A job that is asked for in a version without code.
    unregistered: Option<usize>,
    first: u32,
    days: u32,
    /// Days before which a job has computed everything, and since which it has not.
    computed: (u32, u32),
    /// Every n-th unit is unchanged as far as the ledger knows, and every m-th was rolled back.
    unchanged: u32,
    rolled_back: u32,
    as_of: u32,
    force: bool,
}

fn world() -> impl Strategy<Value = World> {
    let window = prop_oneof![
        3 => Just(Window::Covering),
        2 => (1..5_u32).prop_map(Window::Trailing),
        2 => (0..3_u32, 0..3_u32).prop_map(|(before, after)| Window::Between { before, after }),
        1 => Just(Window::All),
    ];
    let inputs = prop::collection::vec((0..TABLES, window), 1..3);
    let shape = (
        prop::collection::vec(prop::bool::weighted(0.3), TABLES),
        prop::collection::vec(inputs, TABLES),
        prop::collection::vec(prop::bool::weighted(0.3), TABLES),
        prop::collection::vec(0..3_u32, TABLES),
    );
    let asked = (
        prop::collection::btree_set(1..TABLES, 1..TABLES),
        prop::option::weighted(0.1, 1..TABLES),
        (5..20_u32, 1..9_u32),
        (0..10_u32, 15..35_u32),
        (2..9_u32, 3..20_u32),
        (10..40_u32, any::<bool>()),
    );
    (shape, asked).prop_map(|((weekly, mut inputs, reads_itself, live), asked)| {
        for (job, inputs) in inputs.iter_mut().enumerate() {
            // Only earlier tables, so that no circle comes about; each once.
            inputs.iter_mut().for_each(|(table, _)| *table %= job.max(1));
            let mut seen = BTreeSet::new();
            inputs.retain(|(table, _)| seen.insert(*table));
        }
        let (requested, unregistered, (first, days), computed, (unchanged, rolled_back), (as_of, force)) =
            asked;
        let unregistered = unregistered.filter(|job| requested.contains(job));
        World {
            weekly,
            inputs,
            reads_itself,
            live,
            requested,
            unregistered,
            first,
            days,
            computed,
            unchanged,
            rolled_back,
            as_of,
            force,
        }
    })
}

/// Day `n` of a stretch with a clock change in it; day 0 is a Monday.
fn date(n: u32) -> NaiveDate {
    NaiveDate::from_ymd_opt(2013, 2, 25).unwrap() + Days::new(n.into())
}

fn name(table: usize) -> String {
    format!("t{table}")
}

impl World {
    fn catalog(&self) -> Catalog {
        let mut catalog = Catalog::new();
        for table in 0..TABLES {
            let grain = if self.weekly[table] { Grain::Week } else { Grain::Day };
            let by_time = Partitioning::unpartitioned().with_time("d", grain, ZONE);
            catalog.add_table(TableSpec::new(name(table), by_time)).unwrap();
        }
        for job in 1..TABLES {
            let mut spec = JobSpec::new(name(job), "ops", name(job)).with_live_window(self.live[job]);
            for (table, window) in &self.inputs[job] {
                spec = spec.with_input(name(*table), name(*table), window.clone());
            }
            if self.reads_itself[job] {
                spec = spec.with_input("before", name(job), Window::PreviousOutput);
            }
            catalog.add_job(spec).unwrap();
        }
        catalog
    }

    fn key(&self, table: usize, period: u32) -> PartitionKey {
        PartitionKey::of("d", date(period * self.length(table)))
    }

    fn length(&self, table: usize) -> u32 {
        if self.weekly[table] { 7 } else { 1 }
    }

    /// The days of a range as asked for: whole weeks where nobody asks for days.
    fn range(&self) -> (u32, u32) {
        let (first, last) = (self.first, self.first + self.days - 1);
        match self.requested.iter().all(|job| self.weekly[*job]) {
            true => (first / 7 * 7, last / 7 * 7),
            false => (first, last),
        }
    }

    fn request(&self) -> Request {
        let (first, last) = self.range();
        let range = Selection::Range { first: date(first).into(), last: date(last).into() };
        let mut request = Request::new("fix", range, "random", "ann");
        for job in &self.requested {
            let logic = if self.unregistered == Some(*job) { "v9" } else { "v1" };
            request = request.with_job(name(*job), logic);
        }
        if self.force { request.with_force() } else { request }
    }

    /// Numbers of the periods that hold one of the days.
    fn periods(&self, table: usize, days: (u32, u32)) -> std::ops::RangeInclusive<u32> {
        days.0 / self.length(table)..=days.1 / self.length(table)
    }

    fn days_of(&self, table: usize, period: u32) -> (u32, u32) {
        (period * self.length(table), (period + 1) * self.length(table) - 1)
    }

    fn computed(&self, table: usize) -> Vec<u32> {
        let (first, last) = self.computed;
        self.periods(table, (first, last)).collect()
    }

    /// Whether the unit of a job reads a period of an input.
    fn reads(&self, job: usize, unit: u32, input: &(usize, Window), period: u32) -> bool {
        let own = self.periods(input.0, self.days_of(job, unit));
        let (first, last, period) = (i64::from(*own.start()), i64::from(*own.end()), i64::from(period));
        let (before, after) = match input.1 {
            Window::Trailing(n) => (i64::from(n) - 1, 0),
            Window::Between { before, after } => (i64::from(before), i64::from(after)),
            Window::All => return true,
            _ => (0, 0),
        };
        (first - before..=last + after).contains(&period)
    }
}

/// What a plan says, without order.
#[derive(Debug, Default, PartialEq)]
struct Outline {
    /// Each task, and whose output it reads.
    tasks: BTreeMap<Place, BTreeSet<Place>>,
    skipped: BTreeMap<Place, &'static str>,
    refused: BTreeSet<usize>,
    downstream: BTreeMap<Place, BTreeSet<Place>>,
    /// Each downstream task, and the tasks that it comes after.
    followed: BTreeMap<Place, BTreeSet<Place>>,
}

/// Day by day.
fn naive(world: &World) -> Outline {
    let mut outline = Outline::default();
    let mut tasks: BTreeMap<usize, BTreeSet<u32>> = BTreeMap::new();
    let asked = world.range();
    // A range by weeks names its last week by its first day.
    let asked = match world.requested.iter().all(|job| world.weekly[*job]) {
        true => (asked.0, asked.1 + 6),
        false => asked,
    };
    for &job in &world.requested {
        if world.unregistered == Some(job) {
            outline.refused.insert(job);
            continue;
        }
        for unit in world.periods(job, asked) {
            let place = (job, world.key(job, unit));
            let now = world.as_of / world.length(job);
            if world.live[job] > 0 && unit + world.live[job] > now {
                outline.skipped.insert(place, "live");
                continue;
            }
            if !world.force && unit % world.rolled_back == 0 {
                outline.skipped.insert(place, "rolled back");
                continue;
            }
            let mut from = BTreeSet::new();
            for input in &world.inputs[job] {
                let produced = tasks.get(&input.0).into_iter().flatten();
                let read = produced.filter(|period| world.reads(job, unit, input, **period));
                from.extend(read.map(|period| (input.0, world.key(input.0, *period))));
            }
            let before = unit.checked_sub(1).filter(|_| world.reads_itself[job]);
            if let Some(before) = before.filter(|before| tasks.get(&job).is_some_and(|t| t.contains(before)))
            {
                from.insert((job, world.key(job, before)));
            }
            if from.is_empty() && !world.force && unit % world.unchanged == 0 {
                outline.skipped.insert(place, "unchanged");
                continue;
            }
            tasks.entry(job).or_default().insert(unit);
            outline.tasks.insert(place, from);
        }
    }
    let mut changed = tasks.clone();
    for job in 1..TABLES {
        for unit in world.computed(job) {
            let mut causes = BTreeSet::new();
            for input in &world.inputs[job] {
                let changed = changed.get(&input.0).into_iter().flatten();
                let read = changed.filter(|period| world.reads(job, unit, input, **period));
                causes.extend(read.map(|period| (input.0, world.key(input.0, *period))));
            }
            let before = unit.checked_sub(1).filter(|_| world.reads_itself[job]);
            if let Some(before) =
                before.filter(|before| changed.get(&job).is_some_and(|t| t.contains(before)))
            {
                causes.insert((job, world.key(job, before)));
            }
            if causes.is_empty() || tasks.get(&job).is_some_and(|tasks| tasks.contains(&unit)) {
                continue;
            }
            changed.entry(job).or_default().insert(unit);
            if let Some(after) = followed(world, job, unit, &causes, &outline) {
                outline.followed.insert((job, world.key(job, unit)), after);
            }
            outline.downstream.insert((job, world.key(job, unit)), causes);
        }
    }
    outline
}

/// The tasks that a downstream unit comes after; `None` where it is left to the schedule, or where none of its causes runs.
fn followed(
    world: &World,
    job: usize,
    unit: u32,
    causes: &BTreeSet<Place>,
    outline: &Outline,
) -> Option<BTreeSet<Place>> {
    let now = world.as_of / world.length(job);
    let live = world.live[job] > 0 && unit + world.live[job] > now;
    let runs = |place: &&Place| outline.tasks.contains_key(place) || outline.followed.contains_key(place);
    let after: BTreeSet<Place> = causes.iter().filter(runs).cloned().collect();
    (!live && !after.is_empty()).then_some(after)
}

fn outline(plan: &Plan) -> Outline {
    let number = |name: &str| name[1..].parse::<usize>().unwrap();
    let mut outline = Outline::default();
    for task in &plan.tasks {
        let place = (number(task.job.as_str()), task.units[0].clone());
        if let Action::Propagate { .. } = &task.action {
            let after = task.after.iter().map(|id| {
                let other = plan.task(*id).unwrap();
                (number(other.job.as_str()), other.units[0].clone())
            });
            assert!(outline.followed.insert(place, after.collect()).is_none(), "twice: {task:?}");
            continue;
        }
        let Action::Compute { inputs, .. } = &task.action else { panic!("a backfill computes") };
        let from = inputs.values().flat_map(|input| &input.produced_by).map(|id| {
            let other = plan.task(*id).unwrap();
            (number(other.job.as_str()), other.units[0].clone())
        });
        let twice = outline.tasks.insert(place, from.collect());
        assert!(twice.is_none() && task.units.len() == 1, "{task:?}");
        assert!(task.after.iter().all(|before| before.0 < task.id.0));
    }
    for skipped in &plan.skipped {
        let reason = match skipped.reason {
            SkipReason::LiveWindow => "live",
            SkipReason::RolledBack { .. } => "rolled back",
            SkipReason::Unchanged { .. } => "unchanged",
        };
        outline.skipped.insert((number(skipped.job.as_str()), skipped.partition.clone()), reason);
    }
    outline.refused = plan.refused.iter().map(|refused| number(refused.job.as_str())).collect();
    for reached in &plan.downstream {
        let causes = reached.causes.iter().map(|(table, key)| (number(table.as_str()), key.clone()));
        let place = (number(reached.job.as_str()), reached.partition.clone());
        assert!(outline.downstream.insert(place, causes.collect()).is_none(), "reached twice: {reached:?}");
    }
    outline
}

/// The current runs that make every n-th unit unchanged and every m-th rolled back.
fn remember(world: &World, catalog: &Catalog, facts: &mut Facts, existing: &Existing) {
    let (first, last) = world.range();
    for &job in &world.requested {
        let mut runs = BTreeMap::new();
        for unit in world.periods(job, (first, last + 6)) {
            let key = world.key(job, unit);
            let fingerprint =
                (unit % world.unchanged == 0).then(|| alone(job, &key, catalog, existing)).flatten();
            let rolled_back = (unit % world.rolled_back == 0).then(|| "fix".into());
            runs.insert(
                key,
                CurrentRun {
                    run: "r".into(),
                    position: 1,
                    fingerprint,
                    output: Some("1".into()),
                    rolled_back,
                },
            );
        }
        facts.current.insert(name(job).into(), runs);
    }
}

/// The fingerprint of a unit that is planned by itself.
fn alone(job: usize, key: &PartitionKey, catalog: &Catalog, existing: &Existing) -> Option<Fingerprint> {
    let request =
        Request::new("fix", Selection::Keys([key.clone()].into()), "alone", "ann").with_job(name(job), "v1");
    let facts = facts(&request, catalog, existing.clone());
    let plan = plan(&request, catalog, &facts, "2033-01-01T00:00:00Z".parse().unwrap()).unwrap();
    match &plan.tasks.first()?.action {
        Action::Compute { fingerprint, .. } => fingerprint.clone(),
        other => panic!("{other:?} is none of a backfill's own"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_planner_finds_what_going_through_every_day_finds(world in world()) {
        let catalog = world.catalog();
        let existing: Existing = (1..TABLES)
            .map(|job| (name(job).into(), world.computed(job).iter().map(|unit| world.key(job, *unit)).collect()))
            .collect();
        let request = world.request();
        let mut facts = facts(&request, &catalog, existing.clone());
        remember(&world, &catalog, &mut facts, &existing);
        // Noon of the day, by the clock of the zone.
        let as_of = date(world.as_of).and_hms_opt(17, 0, 0).unwrap().and_utc();
        let plan = plan(&request, &catalog, &facts, as_of).unwrap();
        prop_assert_eq!(outline(&plan), naive(&world));
    }
}
