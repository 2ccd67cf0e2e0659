//! A catalog of chains: the first job of each reads a source, each further one the output of the job before.

use std::collections::BTreeSet;

use chrono::{DateTime, NaiveDate, Utc};
use reprocess::domain::estimate::Sample;
use reprocess::domain::ids::{JobName, TableId};
use reprocess::domain::interval::{Calendar, Grain, Interval};
use reprocess::domain::job::{Catalog, JobSpec, TableSpec, Window};
use reprocess::domain::partition::{PartitionKey, Partitioning};
use reprocess::domain::plan::facts::{CurrentRun, Existing, Facts, Offer, Registered};
use reprocess::domain::plan::{Plan, expand, plan};
use reprocess::domain::request::{Request, Selection};
use reprocess::domain::scope::Scope;
use reprocess::domain::slice::Base;

/// Jobs of one chain.
pub(crate) const CHAIN: usize = 20;

const ZONE: chrono_tz::Tz = chrono_tz::America::New_York;

/// A catalog of daily jobs, and what has been computed of them.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) catalog: Catalog,
    pub(crate) existing: Existing,
    pub(crate) last: NaiveDate,
}

impl World {
    /// So many chains of [`CHAIN`] jobs, with so many days computed.
    pub(crate) fn new(chains: usize, days: u32) -> Self {
        let daily = || Partitioning::unpartitioned().with_time("day", Grain::Day, ZONE);
        let mut catalog = Catalog::new();
        let mut existing = Existing::new();
        let last = first() + chrono::Days::new(u64::from(days) - 1);
        let computed: BTreeSet<_> = keys(last).collect();
        for chain in 0..chains {
            catalog.add_table(TableSpec::new(format!("source_{chain:02}"), daily())).unwrap();
            for link in 0..CHAIN {
                let name = job(chain, link);
                catalog.add_table(TableSpec::new(name.clone(), daily())).unwrap();
                let input = match link {
                    0 => format!("source_{chain:02}"),
                    _ => job(chain, link - 1),
                };
                // Mostly the same day; one in ten reads a week.
                let window = if link % 10 == 5 { Window::Trailing(7) } else { Window::Same };
                let spec = JobSpec::new(name.clone(), "ops", name.clone()).with_input("input", input, window);
                catalog.add_job(spec).unwrap();
                existing.insert(name.into(), computed.clone());
            }
        }
        Self { catalog, existing, last }
    }

    /// Asks for every day of the first `jobs` jobs of each of the first `chains` chains.
    pub(crate) fn request(&self, chains: usize, jobs: usize) -> Request {
        let selection = Selection::Range { first: first().into(), last: self.last.into() };
        let mut request = Request::new("fix", selection, "a wrong rate", "ann").with_concurrency(20);
        for chain in 0..chains {
            for link in 0..jobs {
                request = request.with_job(job(chain, link), "v2");
            }
        }
        request
    }

    /// What an engine would gather: every partition has a current run of other logic, and thirty runs tell the cost.
    pub(crate) fn facts(&self, request: &Request) -> Facts {
        let needs = expand(request, &self.catalog, &self.existing).unwrap();
        let mut facts = Facts { existing: self.existing.clone(), ..Facts::default() };
        for (table, slices) in needs.slices {
            facts.pins.insert(table.clone(), "9".into());
            facts.slices.insert(table, slices.into_iter().map(|slice| (slice, "7".into())).collect());
        }
        let all = Offer {
            merge: true,
            replace_dynamic: true,
            query: true,
            restore: true,
            schema_change: true,
            shadow: true,
        };
        for (table, scopes) in needs.bases {
            let partitions = scopes.iter().flat_map(Scope::partitions).map(|key| (key, "7".into())).collect();
            facts.bases.insert(table.clone(), Base::new("9".into(), partitions));
            facts.offers.insert(table, all);
        }
        for (job, units) in needs.units {
            let run = || CurrentRun {
                run: "nightly.7".into(),
                fingerprint: None,
                output: Some("7".into()),
                rolled_back: None,
                position: 1,
            };
            for unit in units.iter().rev().take(30) {
                facts.history.add(job.clone(), unit.clone(), Sample::new(60_000, 1_000));
            }
            facts.current.insert(job, units.into_iter().map(|unit| (unit, run())).collect());
        }
        for job in self.catalog.jobs() {
            let versions = [("v1".into(), None), ("v2".into(), None)].into();
            facts.registered.insert(job.name.clone(), Registered { versions, current: None });
        }
        facts
    }

    /// Both steps of planning.
    pub(crate) fn plan(&self, request: &Request, facts: &Facts) -> Plan {
        expand(request, &self.catalog, &self.existing).unwrap();
        plan(request, &self.catalog, facts, as_of()).unwrap()
    }
}

/// The name of a job and of its table.
pub(crate) fn job(chain: usize, link: usize) -> String {
    format!("job_{chain:02}_{link:02}")
}

/// The job's name as an id.
pub(crate) fn job_name(chain: usize, link: usize) -> JobName {
    job(chain, link).into()
}

/// The table's name as an id.
pub(crate) fn table(chain: usize, link: usize) -> TableId {
    job(chain, link).into()
}

fn first() -> NaiveDate {
    NaiveDate::from_ymd_opt(2014, 1, 1).unwrap()
}

fn as_of() -> DateTime<Utc> {
    "2026-10-01T00:00:00Z".parse().unwrap()
}

fn keys(last: NaiveDate) -> impl Iterator<Item = PartitionKey> {
    let calendar = Calendar::new(Grain::Day, ZONE);
    let start = calendar.interval(&first().into()).unwrap();
    let end = calendar.interval(&last.into()).unwrap();
    let all = Interval::new(start.start(), end.end()).unwrap();
    calendar.keys_in(&all).map(|value| PartitionKey::of("day", value))
}
