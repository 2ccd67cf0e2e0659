//! What the histories are about: orders, revenue by day and country, a balance that carries over, customers by merge.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::NaiveDate;

use super::gate::{Port, SimClock};
use super::ledger::SimLedger;
use super::rows::{self, Row};
use super::tables::{SimReader, SimWriter};
use super::{Backend, Table};
use crate::domain::interval::Grain;
use crate::domain::job::{JobSpec, MergeSpec, TableSpec, Window, WriteMode};
use crate::domain::partition::Partitioning;
use crate::domain::profile::ProfileSpec;
use crate::domain::value::ValueKind;
use crate::engine::{Engine, Host, Job, Settings};
use crate::error::Result;
use crate::ports::delivery::Delivery;
use crate::ports::ledger::RunLedger;
use crate::ports::transform::{HostError, TaskContext};
use crate::ports::writer::Rows;

/// The outputs, each written by the job of its name.
pub(super) const JOBS: [&str; 3] = ["revenue", "balance", "customers"];

pub(super) const TTL_MS: u64 = 3_000;

/// The columns of a table.
pub(super) fn columns(table: &str) -> &'static [&'static str] {
    match table {
        "orders" => &["day", "country", "id", "cents"],
        "revenue" => &["day", "country", "cents"],
        "balance" => &["day", "cents"],
        _ => &["country", "id", "cents"],
    }
}

pub(super) fn spec(table: &str) -> TableSpec {
    let by_day = Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
    TableSpec::new(
        table,
        match table {
            "revenue" => by_day.with_key("country", ValueKind::Text),
            "customers" => Partitioning::unpartitioned(),
            _ => by_day,
        },
    )
}

/// The tables and the ledger of one backend, without gates.
#[derive(Clone)]
pub(super) struct Shop {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) orders: Arc<dyn crate::ports::reader::SnapshotReader>,
    pub(super) outputs: BTreeMap<&'static str, Table>,
    pub(super) ledger: Arc<dyn RunLedger>,
    pub(super) leases: bool,
    /// Whether the ledger is one that the backend does not recognise.
    pub(super) foreign: bool,
}

impl Shop {
    pub(super) async fn open(backend: Arc<dyn Backend>, leases: bool, foreign: bool) -> Result<Self> {
        let empty = rows::batch(columns("orders"), &[])?;
        let orders = backend.source(spec("orders"), empty.schema()).await?;
        let mut outputs = BTreeMap::new();
        for job in JOBS {
            outputs.insert(job, backend.table(spec(job)).await?);
        }
        let ledger = backend.ledger().await?;
        Ok(Self { backend, orders, outputs, ledger, leases, foreign })
    }

    /// The engine of one process.
    pub(super) fn engine(&self, port: &Port) -> Result<Engine> {
        let mut host = Host::new("sim");
        let reader = |inner: &Arc<dyn crate::ports::reader::SnapshotReader>| {
            let (inner, backend) = (Arc::clone(inner), Arc::clone(&self.backend));
            Arc::new(SimReader { port: port.clone(), inner, backend })
        };
        host.add_source(spec("orders"), reader(&self.orders))?;
        for (name, table) in &self.outputs {
            let writer = SimWriter {
                port: port.clone(),
                inner: Arc::clone(&table.writer),
                ledger: Arc::clone(&self.ledger),
                foreign: self.foreign,
            };
            host.add_output(spec(name), Arc::new(writer))?;
            host.add_source(spec(name), reader(&table.reader))?;
        }
        for job in JOBS {
            host.add_job(declared(job))?;
        }
        let ledger = SimLedger { port: Some(port.clone()), inner: Arc::clone(&self.ledger) };
        let settings =
            Settings { leases: self.leases, lease_ttl_ms: TTL_MS, attempts: 3, ..Settings::default() };
        Ok(Engine::new(host, Arc::new(ledger))
            .with_clock(Arc::new(SimClock(Arc::clone(&port.world))))
            .with_settings(settings))
    }
}

fn declared(job: &'static str) -> Job {
    let spec = JobSpec::new(job, "ops", job);
    let spec = match job {
        "revenue" => spec
            .with_input("orders", "orders", Window::Same)
            .with_partitions_per_commit(3)
            .with_profile(ProfileSpec::new().with_keys(["day", "country"])),
        "balance" => spec.with_input("revenue", "revenue", Window::Same).with_input(
            "yesterday",
            "balance",
            Window::PreviousOutput,
        ),
        _ => spec
            .with_input("orders", "orders", Window::Same)
            .with_unit(Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC))
            .with_write(WriteMode::Merge(MergeSpec::by(["country"]).newer("id"))),
    };
    let run = move |logic: &'static str, task: TaskContext| transform(job, logic, task);
    Job::new(spec).transform_with("v2", "v2", run).transform_with("v1", "v1", run)
}

async fn transform(job: &'static str, logic: &str, task: TaskContext) -> Result<Rows, HostError> {
    let mut inputs = BTreeMap::new();
    for name in ["orders", "revenue", "yesterday"] {
        if task.input(name).is_ok() {
            inputs.insert(name.to_owned(), rows::of(&[task.collect(name).await?]));
        }
    }
    if job == "revenue" {
        for order in inputs.get("orders").into_iter().flatten() {
            task.deliver(Delivery {
                key: format!("receipt-{}", order.id),
                channel: "mail".into(),
                payload: serde_json::json!({ "cents": order.cents }),
            });
        }
    }
    let days: Vec<NaiveDate> = task
        .units()
        .iter()
        .filter_map(|unit| match unit.get("day") {
            Some(crate::domain::value::Value::Date(day)) => Some(*day),
            _ => None,
        })
        .collect();
    Ok(rows::batch(columns(job), &computed(job, logic, &days, &inputs))?.into())
}

/// What a job makes of its inputs. `v2` leaves out every third order, and counts a balance from one more.
pub(super) fn computed(
    job: &str,
    logic: &str,
    days: &[NaiveDate],
    inputs: &BTreeMap<String, Vec<Row>>,
) -> Vec<Row> {
    let of = |name: &str| inputs.get(name).map(Vec::as_slice).unwrap_or_default();
    let counts = |order: &&Row| logic == "v1" || order.id % 3 != 0;
    match job {
        "revenue" => {
            let mut sums = BTreeMap::<(NaiveDate, String), i64>::new();
            for order in of("orders").iter().filter(counts) {
                *sums.entry((order.day, order.country.clone())).or_default() += order.cents;
            }
            let row = |((day, country), cents)| Row { day, country, cents, id: 0 };
            sums.into_iter().map(row).collect()
        }
        "balance" => {
            let cents: i64 = of("revenue").iter().chain(of("yesterday")).map(|row| row.cents).sum();
            let cents = cents + i64::from(logic == "v2");
            days.iter().map(|day| Row { day: *day, cents, ..Row::default() }).collect()
        }
        _ => {
            let mut last = BTreeMap::<String, Row>::new();
            for order in of("orders").iter().filter(counts) {
                let row = Row { day: NaiveDate::default(), ..order.clone() };
                let known = last.entry(order.country.clone()).or_insert_with(|| row.clone());
                if row.id > known.id {
                    *known = row;
                }
            }
            last.into_values().collect()
        }
    }
}
