//! A small shop: orders → revenue by day and country, → balance that carries over, → customers by merge.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Int64Type};
use arrow_array::{ArrayRef, BooleanArray, Date32Array, Int64Array, RecordBatch, StringArray};
use chrono::NaiveDate;
use futures::TryStreamExt;

use crate::domain::ids::{BackfillId, TableId, WorkerId};
use crate::domain::interval::Grain;
use crate::domain::job::{JobSpec, MergeSpec, TableSpec, Window, WriteMode};
use crate::domain::partition::{PartitionKey, Partitioning};
use crate::domain::plan::Plan;
use crate::domain::pool::Pool;
use crate::domain::profile::ProfileSpec;
use crate::domain::request::{Mode, Request, Selection};
use crate::domain::rows::Columns;
use crate::domain::slice::{Pin, Slice};
use crate::domain::value::{Value, ValueKind};
use crate::engine::{Engine, Execution, Host, Job, RunRequest, Settings, Submission};
use crate::memory::{ManualClock, MemoryLedger, MemoryTable};
use crate::ports::delivery::{Delivery, DeliverySink};
use crate::ports::ledger::RunLedger;
use crate::ports::reader::SnapshotReader;
use crate::ports::transform::{HostError, TaskContext, Transient};
use crate::ports::writer::{PartitionWriter, Rows};

/// Day of October 2026, id, country, cents, refunded.
pub(super) type Order = (u32, i64, &'static str, i64, bool);

/// Days 1 to 5; the refund of day 1 and the German order of day 2 are what v2 leaves out.
pub(super) const ORDERS: [Order; 7] = [
    (1, 1, "FR", 10_000, false),
    (1, 2, "FR", 5_000, true),
    (2, 3, "FR", 7_000, false),
    (2, 4, "DE", 900, true),
    (3, 5, "FR", 3_000, false),
    (4, 6, "FR", 2_000, false),
    (5, 7, "FR", 1_000, false),
];

/// What tests turn to make transforms misbehave.
#[derive(Debug, Default)]
pub(super) struct Switches {
    /// Day on which `revenue` fails for good; 0 for none.
    pub(super) fails_on: AtomicU32,
    /// How often `revenue` fails before it does not.
    pub(super) transient: AtomicU32,
    /// How often `revenue` was computed.
    pub(super) computed: AtomicU32,
    /// Day on which `revenue` never ends; 0 for none.
    pub(super) hangs_on: AtomicU32,
    /// Day on which `balance` fails for good; 0 for none.
    pub(super) balance_fails_on: AtomicU32,
}

pub(super) struct Shop {
    pub(super) orders: MemoryTable,
    pub(super) revenue: MemoryTable,
    pub(super) balance: MemoryTable,
    pub(super) customers: MemoryTable,
    pub(super) ledger: Arc<MemoryLedger>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) switches: Arc<Switches>,
    /// Who is told.
    pub(super) sinks: Vec<Arc<dyn DeliverySink>>,
    /// What has `report` run, which reads the revenue outside of this library; `None` where there is no such job.
    pub(super) outside: Option<Arc<dyn DeliverySink>>,
}

pub(super) fn day(d: u32) -> PartitionKey {
    PartitionKey::of("day", date(d))
}

pub(super) fn date(d: u32) -> NaiveDate {
    NaiveDate::from_ymd_opt(2026, 10, d).unwrap()
}

pub(super) fn days(first: u32, last: u32) -> Selection {
    Selection::Range { first: Value::Date(date(first)), last: Value::Date(date(last)) }
}

pub(super) fn worker(name: &str) -> WorkerId {
    WorkerId::new(name)
}

fn number(d: u32) -> i32 {
    let epoch = NaiveDate::from_ymd_opt(1970, 1, 1).unwrap();
    i32::try_from((date(d) - epoch).num_days()).unwrap()
}

pub(super) fn orders(rows: &[Order]) -> RecordBatch {
    let columns: [(&str, ArrayRef); 5] = [
        ("day", Arc::new(rows.iter().map(|r| Some(number(r.0))).collect::<Date32Array>())),
        ("id", Arc::new(rows.iter().map(|r| Some(r.1)).collect::<Int64Array>())),
        ("country", Arc::new(rows.iter().map(|r| Some(r.2)).collect::<StringArray>())),
        ("cents", Arc::new(rows.iter().map(|r| Some(r.3)).collect::<Int64Array>())),
        ("refunded", Arc::new(rows.iter().map(|r| Some(r.4)).collect::<BooleanArray>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
}

impl Shop {
    pub(super) fn new() -> Self {
        let by_day = || Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
        let table = |id: &str, partitioning| MemoryTable::new(TableSpec::new(id, partitioning));
        let shop = Self {
            orders: table("orders", by_day()),
            revenue: table("revenue", by_day().with_key("country", ValueKind::Text)),
            balance: table("balance", by_day()),
            customers: table("customers", Partitioning::unpartitioned()),
            ledger: Arc::default(),
            clock: Arc::new(ManualClock::new("2026-10-10T00:00:00Z".parse().unwrap())),
            switches: Arc::default(),
            sinks: Vec::new(),
            outside: None,
        };
        shop.orders.append_unmanaged(&orders(&ORDERS)).unwrap();
        shop
    }

    pub(super) fn engine(&self) -> Engine {
        self.engine_over(self.ledger.clone(), Arc::new(self.revenue.clone()))
    }

    /// An engine with another ledger or another writer of `revenue`, to put faults between.
    pub(super) fn engine_over(
        &self,
        ledger: Arc<dyn RunLedger>,
        revenue: Arc<dyn PartitionWriter>,
    ) -> Engine {
        self.engine_writing(ledger, revenue, Arc::new(self.balance.clone()))
    }

    /// An engine with another ledger and another writer of `balance`.
    pub(super) fn engine_with_balance(
        &self,
        ledger: Arc<dyn RunLedger>,
        balance: Arc<dyn PartitionWriter>,
    ) -> Engine {
        self.engine_writing(ledger, Arc::new(self.revenue.clone()), balance)
    }

    fn engine_writing(
        &self,
        ledger: Arc<dyn RunLedger>,
        revenue: Arc<dyn PartitionWriter>,
        balance: Arc<dyn PartitionWriter>,
    ) -> Engine {
        let by_day = || Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
        let mut host = Host::new("build-1");
        // Never full: tests of deaths and lost replies find the calls about its slots.
        host.add_pool(pool()).unwrap();
        for sink in &self.sinks {
            host.add_sink(Arc::clone(sink)).unwrap();
        }
        host.add_source(TableSpec::new("orders", by_day()), Arc::new(self.orders.clone())).unwrap();
        let spec = TableSpec::new("revenue", by_day().with_key("country", ValueKind::Text));
        host.add_output(spec.clone(), revenue).unwrap();
        host.add_source(spec, Arc::new(self.revenue.clone())).unwrap();
        host.add_output(TableSpec::new("balance", by_day()), balance).unwrap();
        host.add_source(TableSpec::new("balance", by_day()), Arc::new(self.balance.clone())).unwrap();
        let customers = TableSpec::new("customers", Partitioning::unpartitioned());
        host.add_table(customers, Arc::new(self.customers.clone())).unwrap();
        host.add_job(self.revenue_job()).unwrap();
        host.add_job(balance_job(self.switches.clone())).unwrap();
        if let Some(outside) = &self.outside {
            host.declare_table(TableSpec::new("report", by_day())).unwrap();
            let spec = JobSpec::new("report", "bi", "report").with_input("revenue", "revenue", Window::Same);
            host.add_external(spec, Arc::clone(outside)).unwrap();
        }
        host.add_job(customers_job(MergeSpec::by(["country"]).newer("id"))).unwrap();
        self.engine_of(host, ledger)
    }

    fn engine_of(&self, host: Host, ledger: Arc<dyn RunLedger>) -> Engine {
        let settings = Settings { lease_ttl_ms: 3_000, send_ttl_ms: 3_000, ..Settings::default() };
        Engine::new(host, ledger).with_clock(self.clock.clone()).with_settings(settings)
    }

    /// An engine that has only `customers`, merged as given.
    pub(super) fn engine_merging(&self, merge: MergeSpec) -> Engine {
        let by_day = Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
        let mut host = Host::new("build-1");
        host.add_source(TableSpec::new("orders", by_day), Arc::new(self.orders.clone())).unwrap();
        let customers = TableSpec::new("customers", Partitioning::unpartitioned());
        host.add_table(customers, Arc::new(self.customers.clone())).unwrap();
        host.add_job(customers_job(merge)).unwrap();
        self.engine_of(host, self.ledger.clone())
    }

    /// An engine that knows `revenue` without any code for it.
    pub(super) fn engine_without_code(&self) -> Engine {
        let by_day = || Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
        let mut host = Host::new("build-2");
        host.add_pool(pool()).unwrap();
        host.add_source(TableSpec::new("orders", by_day()), Arc::new(self.orders.clone())).unwrap();
        let spec = TableSpec::new("revenue", by_day().with_key("country", ValueKind::Text));
        host.add_table(spec, Arc::new(self.revenue.clone())).unwrap();
        host.add_job(Job::new(self.revenue_job().spec)).unwrap();
        self.engine_of(host, self.ledger.clone())
    }

    fn revenue_job(&self) -> Job {
        let spec = JobSpec::new("revenue", "ops", "revenue")
            .with_input("orders", "orders", Window::Same)
            .with_partitions_per_commit(10)
            .with_pool("db")
            .with_profile(ProfileSpec::new().with_keys(["day", "country"]));
        Job::new(spec)
            .transform_with("v2", self.switches.clone(), |switches, task| revenue(switches, task, true))
            .transform_with("v1", self.switches.clone(), |switches, task| revenue(switches, task, false))
    }

    /// Runs v1 of a job on schedule.
    pub(super) async fn scheduled(&self, job: &str, first: u32, last: u32) {
        for d in first..=last {
            let run = RunRequest::scheduled(format!("{job}-{d}"), job, day(d));
            let _ = self.engine().run(&run, &worker("schedule")).await.unwrap();
        }
    }

    /// Plans, submits, approves and executes.
    pub(super) async fn backfill(&self, request: &Request) -> Execution {
        let engine = self.engine();
        let plan = self.approved(&engine, request).await;
        engine.execute(&plan.request.id, &worker("w1"), |_| {}).await.unwrap()
    }

    pub(super) async fn approved(&self, engine: &Engine, request: &Request) -> Plan {
        let plan = engine.plan(request).await.unwrap();
        assert_eq!(engine.submit(&plan, &"ann".into()).await.unwrap(), Submission::New);
        engine.approve(&plan.request.id, &plan.digest(), &"bob".into(), "fine").await.unwrap();
        plan
    }

    /// Approves what is staged.
    pub(super) async fn accept(&self, id: &str) {
        let (engine, id) = (self.engine(), BackfillId::from(id));
        let review = engine.review(&id).await.unwrap();
        engine.approve(&id, &review.digest, &"bob".into(), "as predicted").await.unwrap();
    }

    pub(super) async fn rows_in_ledger(&self) -> u64 {
        use crate::ports::ledger::LedgerReader;
        self.ledger.position().await.unwrap()
    }
}

fn pool() -> Pool {
    Pool::new("db", 64.try_into().unwrap()).with_slots_for_backfills(8)
}

pub(super) fn fix(first: u32, last: u32) -> Request {
    Request::new("fix", days(first, last), "refunds were counted", "ann")
        .with_job("revenue", "v2")
        .with_mode(Mode::Direct)
        .without_propagation()
}

/// Every row of a table as text, sorted.
pub(super) async fn contents(table: &MemoryTable) -> Vec<String> {
    let version = table.current().await.unwrap();
    let content = table.slice_versions(&version, &[Slice::All]).await.unwrap().remove(0);
    let pin = Pin { table: SnapshotReader::table(table).clone(), version, slice: Slice::All, content };
    let (_, rows) = table.read(&pin).await.unwrap();
    let batches: Vec<RecordBatch> = rows.try_collect().await.unwrap();
    let mut lines = Vec::new();
    for batch in &batches {
        let columns = Columns::new(batch).unwrap();
        for row in 0..columns.rows() {
            // In the order of names.
            let cells = columns.columns().iter().map(|c| c.cell(row).to_string());
            lines.push(cells.collect::<Vec<_>>().join(" "));
        }
    }
    lines.sort();
    lines
}

/// The revenue of the table as `day country cents`.
pub(super) async fn revenues(shop: &Shop) -> Vec<String> {
    let lines = contents(&shop.revenue).await;
    let mut lines: Vec<String> = lines
        .iter()
        .map(|line| {
            let parts: Vec<&str> = line.split(' ').collect();
            format!("{} {} {}", &parts[2][8..], parts[1], parts[0])
        })
        .collect();
    lines.sort();
    lines
}

async fn revenue(switches: Arc<Switches>, task: TaskContext, leave_out: bool) -> Result<Rows, HostError> {
    let first = task.date().ok_or("a day")?;
    if switches.transient.load(Ordering::SeqCst) > 0 {
        switches.transient.fetch_sub(1, Ordering::SeqCst);
        return Err(Transient("the network is down".into()).into());
    }
    match switches.fails_on.load(Ordering::SeqCst) {
        99 => panic!("out of cheese"),
        d if d > 0 && date(d) == first => return Err("the logic is broken".into()),
        _ => {}
    }
    let hangs_on = switches.hangs_on.load(Ordering::SeqCst);
    if hangs_on > 0 && date(hangs_on) == first {
        std::future::pending::<()>().await;
    }
    switches.computed.fetch_add(1, Ordering::SeqCst);
    let batch = task.collect("orders").await?;
    let mut sums = BTreeMap::<(i32, String), i64>::new();
    for row in 0..batch.num_rows() {
        let refunded = batch.column_by_name("refunded").ok_or("refunded")?.as_boolean().value(row);
        if leave_out && refunded {
            continue;
        }
        let date = batch.column_by_name("day").ok_or("day")?.as_primitive::<Date32Type>().value(row);
        let country = batch.column_by_name("country").ok_or("country")?.as_string::<i32>().value(row);
        let cents = batch.column_by_name("cents").ok_or("cents")?.as_primitive::<Int64Type>().value(row);
        *sums.entry((date, country.to_owned())).or_default() += cents;
        let id = batch.column_by_name("id").ok_or("id")?.as_primitive::<Int64Type>().value(row);
        task.deliver(Delivery {
            key: format!("receipt-{id}"),
            channel: "mail".into(),
            payload: serde_json::json!({ "cents": cents }),
        });
    }
    Ok(summed(&sums).into())
}

fn summed(sums: &BTreeMap<(i32, String), i64>) -> RecordBatch {
    let columns: [(&str, ArrayRef); 3] = [
        ("day", Arc::new(sums.keys().map(|k| Some(k.0)).collect::<Date32Array>())),
        ("country", Arc::new(sums.keys().map(|k| Some(k.1.clone())).collect::<StringArray>())),
        ("cents", Arc::new(sums.values().copied().map(Some).collect::<Int64Array>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
}

/// Yesterday's balance and today's revenue.
fn balance_job(switches: Arc<Switches>) -> Job {
    let spec = JobSpec::new("balance", "finance", "balance")
        .with_input("revenue", "revenue", Window::Same)
        .with_input("yesterday", "balance", Window::PreviousOutput);
    let sum = |batch: &RecordBatch| -> i64 {
        let cents =
            batch.column_by_name("cents").map(|c| c.as_primitive::<Int64Type>().iter().flatten().sum());
        cents.unwrap_or(0)
    };
    let run = move |switches: Arc<Switches>, task: TaskContext| async move {
        let fails_on = switches.balance_fails_on.load(Ordering::SeqCst);
        if fails_on > 0 && task.date() == Some(date(fails_on)) {
            return Err("the logic is broken".into());
        }
        let cents = sum(&task.collect("yesterday").await?) + sum(&task.collect("revenue").await?);
        let epoch = NaiveDate::from_ymd_opt(1970, 1, 1).ok_or("epoch")?;
        let day = i32::try_from((task.date().ok_or("a day")? - epoch).num_days())?;
        let columns: [(&str, ArrayRef); 2] = [
            ("day", Arc::new(Date32Array::from(vec![day]))),
            ("cents", Arc::new(Int64Array::from(vec![cents]))),
        ];
        let batch =
            RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)))?;
        Ok(batch.into())
    };
    Job::new(spec).transform_with("v1", switches, run)
}

/// The last order of each country: key `country`.
fn customers_job(merge: MergeSpec) -> Job {
    let unit = Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
    let spec = JobSpec::new("customers", "crm", "customers")
        .with_input("orders", "orders", Window::Same)
        .with_unit(unit)
        .with_write(WriteMode::Merge(merge));
    let run = |_: (), task: TaskContext| async move {
        let batch = task.collect("orders").await?;
        let mut last = BTreeMap::<String, (i64, i64)>::new();
        for row in 0..batch.num_rows() {
            let country = batch.column_by_name("country").ok_or("country")?.as_string::<i32>().value(row);
            let id = batch.column_by_name("id").ok_or("id")?.as_primitive::<Int64Type>().value(row);
            let cents = batch.column_by_name("cents").ok_or("cents")?.as_primitive::<Int64Type>().value(row);
            let entry = last.entry(country.to_owned()).or_default();
            *entry = (*entry).max((id, cents));
        }
        let columns: [(&str, ArrayRef); 3] = [
            ("country", Arc::new(last.keys().map(Some).collect::<StringArray>())),
            ("id", Arc::new(last.values().map(|v| Some(v.0)).collect::<Int64Array>())),
            ("cents", Arc::new(last.values().map(|v| Some(v.1)).collect::<Int64Array>())),
        ];
        let batch =
            RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)))?;
        Ok(batch.into())
    };
    Job::new(spec).transform_with("v1", (), run)
}

pub(super) fn revenue_table() -> TableId {
    TableId::from("revenue")
}
