//! Orders, and their sum per day and country; all tables are those of the fixture.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Int64Type};
use arrow_array::{ArrayRef, Date32Array, Int64Array, RecordBatch, StringArray};

use crate::conformance::fixture::{Fixture, Place};
use crate::conformance::world::*;
use crate::domain::ids::BackfillId;
use crate::domain::job::{JobSpec, TableSpec, Window};
use crate::domain::plan::Plan;
use crate::domain::profile::{Profile, ProfileSpec};
use crate::domain::request::{Mode, Request, SchemaPolicy, Selection};
use crate::domain::scope::Scope;
use crate::domain::value::Value;
use crate::engine::{Engine, Host, Job, RunOutcome, RunRequest, Settings, Submission};
use crate::memory::ManualClock;
use crate::ports::clock::Clock;
use crate::ports::delivery::{Delivery, DeliverySink, DeliveryState};
use crate::ports::ledger::{BackfillState, DeliveryFilter, RunLedger};
use crate::ports::transform::{HostError, TaskContext};
use crate::ports::writer::{
    Capabilities, CommitRequest, Intent, PartitionWriter, Rows, StageRequest, StagedId, Visibility,
};

/// Orders with an even number were refunded, and v2 leaves them out.
const ORDERS: [Row; 5] = [
    (MON, Some("FR"), 1, 100),
    (MON, Some("FR"), 2, 50),
    (TUE, Some("FR"), 3, 70),
    (TUE, Some("DE"), 4, 9),
    (WED, Some("FR"), 5, 30),
];

/// What v1 and v2 make of them: day, country, number of orders, sum.
pub(super) const OLD: [Row; 4] =
    [(MON, Some("FR"), 2, 150), (TUE, Some("FR"), 1, 70), (TUE, Some("DE"), 1, 9), (WED, Some("FR"), 1, 30)];
pub(super) const NEW: [Row; 3] =
    [(MON, Some("FR"), 1, 100), (TUE, Some("FR"), 1, 70), (WED, Some("FR"), 1, 30)];

pub(super) struct Shop {
    pub(super) place: Box<dyn Place>,
    pub(super) ledger: Arc<dyn RunLedger>,
    /// Whether leases are taken.
    pub(super) leases: bool,
    /// How often revenue was computed.
    pub(super) computed: Arc<AtomicU32>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) offers: Capabilities,
    /// Whether there are totals by day, which read the revenue.
    carries: bool,
}

pub(super) fn orders() -> TableSpec {
    TableSpec::new("orders", by_day())
}

pub(super) fn revenue() -> TableSpec {
    TableSpec::new("revenue", by_day_and_country())
}

pub(super) fn totals() -> TableSpec {
    TableSpec::new("totals", by_day())
}

impl Shop {
    /// The first days were run on schedule with v1.
    pub(super) async fn open(fixture: &dyn Fixture, leases: bool, days: &[&str]) -> Self {
        let place = fixture.fresh().await;
        let ledger = place.ledger().await;
        let table = place.open(&revenue()).await;
        table.writer.create(&columns()).await.unwrap();
        place.open(&orders()).await.writer.create(&columns()).await.unwrap();
        let clock = Arc::new(ManualClock::new(instant("2026-10-10T00:00:00Z")));
        let offers = table.writer.capabilities();
        let shop = Self { place, ledger, leases, computed: Arc::default(), clock, offers, carries: false };
        shop.order("orders", &Scope::whole_table(), &ORDERS).await;
        for text in days {
            assert_eq!(shop.schedule(&format!("daily-{text}"), text).await, RunOutcome::Committed);
        }
        shop
    }

    /// With totals, which were run on schedule too.
    pub(super) async fn carrying(fixture: &dyn Fixture, leases: bool, days: &[&str]) -> Self {
        let mut shop = Self::open(fixture, leases, days).await;
        shop.place.open(&totals()).await.writer.create(&columns()).await.unwrap();
        shop.carries = true;
        for text in days {
            let run = RunRequest::scheduled(format!("totals-{text}"), "totals", day(text));
            let outcome = shop.engine().await.run(&run, &"schedule".into()).await.unwrap();
            assert_eq!(outcome, RunOutcome::Committed);
        }
        shop
    }

    /// The orders of a scope are these.
    async fn order(&self, run: &str, scope: &Scope, rows: &[Row]) {
        let writer = self.place.open(&orders()).await.writer;
        let base = writer.head(scope).await.unwrap();
        let request = StageRequest {
            id: StagedId { stamp: stamp(run, scope, &Intent::Replace), attempt: 1 },
            scope: scope.clone(),
            intent: Intent::Replace,
            visibility: Visibility::Direct,
            profile: ProfileSpec::new(),
            schema: SchemaPolicy::Refuse,
            base: base.clone(),
        };
        let entries = [apply(&writer.stage(&request, batch(rows).into()).await.unwrap())];
        let (fence, ledger) = (None, None);
        let request =
            CommitRequest { entries: &entries, base: &base, since: &base, fence, keep: false, ledger };
        done(writer.commit(request).await.unwrap());
    }

    /// One more order of its day.
    pub(super) async fn one_more(&self, row: Row) {
        let of_day: Vec<_> = ORDERS.into_iter().filter(|order| order.0 == row.0).chain([row]).collect();
        self.order("late", &days(&[row.0]), &of_day).await;
    }

    /// Runs v1 of a day.
    pub(super) async fn schedule(&self, run: &str, text: &str) -> RunOutcome {
        let mut run = RunRequest::scheduled(run, "revenue", day(text)).with_logic("v1");
        run.deliver = false;
        self.engine().await.run(&run, &"schedule".into()).await.unwrap()
    }

    /// An engine as of another process.
    pub(super) async fn engine(&self) -> Engine {
        let writer = self.place.open(&revenue()).await.writer;
        self.engine_over(self.place.ledger().await, writer).await
    }

    /// An engine with another ledger or writer, to put faults between.
    pub(super) async fn engine_over(
        &self,
        ledger: Arc<dyn RunLedger>,
        writer: Arc<dyn PartitionWriter>,
    ) -> Engine {
        self.engine_of(ledger, writer, None).await
    }

    /// An engine that sends mails, with a ledger to put faults before.
    pub(super) async fn engine_that_sends(
        &self,
        ledger: Arc<dyn RunLedger>,
        sink: Arc<dyn DeliverySink>,
    ) -> Engine {
        let writer = self.place.open(&revenue()).await.writer;
        self.engine_of(ledger, writer, Some(sink)).await
    }

    async fn engine_of(
        &self,
        ledger: Arc<dyn RunLedger>,
        writer: Arc<dyn PartitionWriter>,
        sink: Option<Arc<dyn DeliverySink>>,
    ) -> Engine {
        let mut host = Host::new("build");
        if let Some(sink) = sink {
            host.add_sink(sink).unwrap();
        }
        host.add_source(orders(), self.place.open(&orders()).await.reader).unwrap();
        host.add_output(revenue(), writer).unwrap();
        host.add_source(revenue(), self.place.open(&revenue()).await.reader).unwrap();
        let spec = JobSpec::new("revenue", "ops", "revenue").with_input("orders", "orders", Window::Same);
        let job = Job::new(spec)
            .transform_with("v2", Arc::clone(&self.computed), |computed, task| {
                revenue_of(computed, task, true)
            })
            .transform_with("v1", Arc::clone(&self.computed), |computed, task| {
                revenue_of(computed, task, false)
            });
        host.add_job(job).unwrap();
        if self.carries {
            let table = self.place.open(&totals()).await;
            host.add_output(totals(), table.writer).unwrap();
            host.add_source(totals(), table.reader).unwrap();
            let spec = JobSpec::new("totals", "bi", "totals").with_input("revenue", "revenue", Window::Same);
            host.add_job(Job::new(spec).transform_with("v1", (), |(), task| totals_of(task))).unwrap();
        }
        let settings = Settings {
            leases: self.leases,
            lease_ttl_ms: 3_000,
            send_ttl_ms: 3_000,
            poll_ms: 20,
            backoff_min_ms: 5,
            ..Settings::default()
        };
        Engine::new(host, ledger).with_clock(Arc::clone(&self.clock)).with_settings(settings)
    }

    /// The backfill with v2; rows are kept where that is offered.
    pub(super) fn fix(&self, first: &str, last: &str, mode: Mode) -> Request {
        let date = |text: &str| Value::Date(text.parse().unwrap());
        let selection = Selection::Range { first: date(first), last: date(last) };
        let request = Request::new("fix", selection, "refunds were counted", "ann").with_job("revenue", "v2");
        let request = request.with_mode(mode);
        if self.offers.restore { request } else { request.without_kept_rows() }
    }

    pub(super) async fn approved(&self, request: &Request) -> Plan {
        let engine = self.engine().await;
        let plan = engine.plan(request).await.unwrap();
        assert_eq!(engine.submit(&plan, &"ann".into()).await.unwrap(), Submission::New);
        engine.approve(&plan.request.id, &plan.digest(), &"bob".into(), "fine").await.unwrap();
        plan
    }

    /// Plans, approves and executes.
    pub(super) async fn backfill(&self, request: &Request) -> BackfillState {
        let plan = self.approved(request).await;
        self.execute(&plan.request.id).await
    }

    pub(super) async fn execute(&self, id: &BackfillId) -> BackfillState {
        self.engine().await.execute(id, &"w2".into(), |_| {}).await.unwrap().state
    }

    /// Approves what is staged.
    pub(super) async fn accept(&self, id: &BackfillId) {
        let engine = self.engine().await;
        let review = engine.review(id).await.unwrap();
        engine.approve(id, &review.digest, &"bob".into(), "as predicted").await.unwrap();
    }

    pub(super) async fn rows(&self) -> Vec<String> {
        self.place.raw_rows(&revenue()).await
    }

    pub(super) fn computed(&self) -> u32 {
        self.computed.load(Ordering::SeqCst)
    }

    /// The keys of deliveries in a state, in order.
    pub(super) async fn deliveries(&self, state: DeliveryState) -> Vec<String> {
        let filter = DeliveryFilter { state: Some(state), ..DeliveryFilter::default() };
        let found = self.ledger.deliveries(&filter).await.unwrap();
        let mut keys: Vec<_> = found.into_iter().map(|d| d.delivery.key).collect();
        keys.sort();
        keys
    }

    /// What the ledger says the backfill did: partition, status, rows before and after.
    pub(super) async fn changes(&self) -> Vec<String> {
        let rows = self.ledger.changes(&"fix".into()).await.unwrap();
        let mut lines: Vec<_> = rows
            .iter()
            .map(|row| {
                let content = |p: Option<&Profile>| p.map(|p| (p.rows, p.content.clone()));
                let (before, after) =
                    (content(row.record.before.as_ref()), content(row.record.after.as_ref()));
                format!("{} {:?} {before:?} {after:?}", row.record.partition, row.record.status)
            })
            .collect();
        lines.sort();
        lines
    }
}

async fn revenue_of(computed: Arc<AtomicU32>, task: TaskContext, leave_out: bool) -> Result<Rows, HostError> {
    computed.fetch_add(1, Ordering::SeqCst);
    let batch = task.collect("orders").await?;
    let numbers = |name: &str| {
        Ok::<_, HostError>(batch.column_by_name(name).ok_or("a column")?.as_primitive::<Int64Type>())
    };
    let (ids, amounts) = (numbers("id")?, numbers("amount")?);
    let days = batch.column_by_name("day").ok_or("day")?.as_primitive::<Date32Type>();
    let countries = batch.column_by_name("country").ok_or("country")?.as_string::<i32>();
    let mut sums = BTreeMap::<(i32, String), (i64, i64)>::new();
    for row in 0..batch.num_rows() {
        let id = ids.value(row);
        if leave_out && id % 2 == 0 {
            continue;
        }
        let sum = sums.entry((days.value(row), countries.value(row).to_owned())).or_default();
        *sum = (sum.0 + 1, sum.1 + amounts.value(row));
        let payload = serde_json::json!({ "amount": amounts.value(row) });
        task.deliver(Delivery { key: format!("receipt-{id}"), channel: "mail".into(), payload });
    }
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(sums.keys().map(|k| Some(k.0)).collect::<Date32Array>()),
        Arc::new(sums.keys().map(|k| Some(k.1.clone())).collect::<StringArray>()),
        Arc::new(sums.values().map(|v| Some(v.0)).collect::<Int64Array>()),
        Arc::new(sums.values().map(|v| Some(v.1)).collect::<Int64Array>()),
    ];
    Ok(RecordBatch::try_new(columns(), arrays)?.into())
}

/// One row for the day: no country, the number of orders and their sum.
async fn totals_of(task: TaskContext) -> Result<Rows, HostError> {
    let batch = task.collect("revenue").await?;
    let sum = |name: &str| {
        let column = batch.column_by_name(name).ok_or("a column")?.as_primitive::<Int64Type>();
        Ok::<i64, HostError>(column.iter().flatten().sum())
    };
    let days = batch.column_by_name("day").ok_or("day")?.as_primitive::<Date32Type>();
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(days.iter().take(1).collect::<Date32Array>()),
        Arc::new(StringArray::from(vec![None::<&str>])),
        Arc::new(Int64Array::from(vec![sum("id")?])),
        Arc::new(Int64Array::from(vec![sum("amount")?])),
    ];
    Ok(RecordBatch::try_new(columns(), arrays)?.into())
}
