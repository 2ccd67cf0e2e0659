//! Transforms: the host's code, from pinned inputs to rows.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use async_trait::async_trait;
use chrono::{DateTime, NaiveDate, Utc};
use futures::{StreamExt, TryStreamExt};
use rand_chacha::ChaCha8Rng;

use super::delivery::Delivery;
use super::reader::{PinnedInput, RowStream};
use super::throttle::Throttle;
use super::writer::{Query, Rows};
use crate::domain::determinism;
use crate::domain::ids::{JobName, LogicVersion, RunId, TableId};
use crate::domain::interval::Interval;
use crate::domain::partition::PartitionKey;
use crate::domain::value::Value;
use crate::error::{Error, ErrorKind, Result};

/// Any error of the host; permanent unless it is a [`Transient`].
pub type HostError = Box<dyn std::error::Error + Send + Sync>;

/// Marks a host error as one that a retry may get past.
#[derive(Debug)]
pub struct Transient(pub HostError);

impl fmt::Display for Transient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Transient {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// What the host computes for one task.
#[async_trait]
pub trait Transform: Send + Sync {
    /// Computes the rows of the task. It is told its interval, reads pinned inputs, and has no clock.
    async fn run(&self, task: TaskContext) -> Result<Rows, HostError>;

    /// The text, where the transform is SQL; part of the fingerprint.
    fn sql(&self) -> Option<&str> {
        None
    }
}

/// A transform from an async closure with state of its own.
pub(crate) struct Closure<S, F> {
    pub(crate) state: S,
    pub(crate) run: F,
}

#[async_trait]
impl<S, F, Fut> Transform for Closure<S, F>
where
    S: Clone + Send + Sync + 'static,
    F: Fn(S, TaskContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Rows, HostError>> + Send + 'static,
{
    async fn run(&self, task: TaskContext) -> Result<Rows, HostError> {
        (self.run)(self.state.clone(), task).await
    }
}

/// A transform from a closure that keeps a core busy; it runs on a thread of its own, over collected inputs.
pub(crate) struct Blocking<F>(pub(crate) Arc<F>);

#[async_trait]
impl<F> Transform for Blocking<F>
where
    F: Fn(&TaskContext, BTreeMap<String, RecordBatch>) -> Result<Rows, HostError> + Send + Sync + 'static,
{
    async fn run(&self, task: TaskContext) -> Result<Rows, HostError> {
        let mut inputs = BTreeMap::new();
        let names: Vec<_> = task.inputs.keys().cloned().collect();
        for name in names {
            inputs.insert(name.clone(), task.collect(&name).await?);
        }
        let run = Arc::clone(&self.0);
        match tokio::task::spawn_blocking(move || run(&task, inputs)).await {
            // Goes on here, where a panic of any transform is caught and told.
            Err(e) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
            joined => joined?,
        }
    }
}

/// A transform in the SQL of the table's own engine. Inputs are tables of their names; parameters are bound as
/// `:name`, beside `:interval_start`, `:interval_end` and `:date` of the task, its `:logic`, and `:run` (see
/// [`TaskContext::run`]).
#[derive(Clone, Debug)]
pub struct Sql(pub String);

#[async_trait]
impl Transform for Sql {
    async fn run(&self, task: TaskContext) -> Result<Rows, HostError> {
        let mut params = BTreeMap::new();
        for (name, value) in &task.parameters {
            params.insert(name.clone(), parameter(name, value)?);
        }
        let own = [
            ("logic", Some(Value::Text(task.logic.to_string()))),
            ("run", Some(Value::Text(task.run.to_string()))),
            ("interval_start", task.interval.map(|interval| Value::Timestamp(interval.start()))),
            ("interval_end", task.interval.map(|interval| Value::Timestamp(interval.end()))),
            ("date", task.date.map(Value::Date)),
        ];
        for (name, value) in own {
            let Some(value) = value else { continue };
            if params.insert(name.to_owned(), value).is_some() {
                let message = format!("the job has a parameter `{name}`, which each task has of its own");
                return Err(Error::invalid(message).with_context("job", &task.job).into());
            }
        }
        Ok(Rows::Query(Query { sql: self.0.clone(), params, inputs: task.inputs }))
    }

    fn sql(&self) -> Option<&str> {
        Some(&self.0)
    }
}

fn parameter(name: &str, value: &serde_json::Value) -> Result<Value> {
    let refuse = || Error::invalid(format!("parameter `{name}` is {value}, which SQL cannot be given"));
    match value {
        serde_json::Value::Null => Ok(Value::Null),
        serde_json::Value::Bool(b) => Ok(Value::Boolean(*b)),
        serde_json::Value::Number(n) => n.as_i64().map(Value::Integer).ok_or_else(refuse),
        serde_json::Value::String(text) => Ok(Value::Text(text.clone())),
        _ => Err(refuse()),
    }
}

/// What a transform is given: owned, so that it can move into a task of its own.
#[derive(Clone, Debug)]
pub struct TaskContext {
    pub(crate) job: JobName,
    pub(crate) logic: LogicVersion,
    pub(crate) run: RunId,
    pub(crate) units: Vec<PartitionKey>,
    pub(crate) interval: Option<Interval>,
    pub(crate) date: Option<NaiveDate>,
    pub(crate) parameters: BTreeMap<String, serde_json::Value>,
    pub(crate) inputs: BTreeMap<String, PinnedInput>,
    pub(crate) seen: Seen,
}

/// What the engine learns from a transform beside its rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) deliveries: Arc<Mutex<Vec<Delivery>>>,
    pub(crate) read_bytes: Arc<AtomicU64>,
    /// What reads of a table pass through, where they are limited.
    pub(crate) throttles: Arc<BTreeMap<TableId, Throttle>>,
}

impl TaskContext {
    /// The job.
    pub fn job(&self) -> &JobName {
        &self.job
    }

    /// The logic version that runs.
    pub fn logic(&self) -> &LogicVersion {
        &self.logic
    }

    /// The run. Rows that hold it are others in each run, so that nothing is found unchanged, neither by a check of
    /// determinism nor where only what differs is written; the ledger says of each partition which run made it.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// The units to compute: one, or several with coarsening.
    pub fn units(&self) -> &[PartitionKey] {
        &self.units
    }

    /// What the task is responsible for in time; `None` where its units have no time.
    pub fn interval(&self) -> Option<Interval> {
        self.interval
    }

    /// The logical date: the first local date of the interval, in the zone of the job's unit.
    pub fn date(&self) -> Option<NaiveDate> {
        self.date
    }

    /// A parameter.
    pub fn parameter(&self, name: &str) -> Option<&serde_json::Value> {
        self.parameters.get(name)
    }

    /// A random generator with a named algorithm (ChaCha8), seeded from job, units and logic version: the same task
    /// draws the same numbers on every run.
    pub fn rng(&self) -> ChaCha8Rng {
        determinism::rng(&self.job, &self.units, &self.logic)
    }

    /// The pin of an input.
    pub fn input(&self, name: &str) -> Result<&PinnedInput> {
        self.inputs.get(name).ok_or_else(|| {
            let known: Vec<_> = self.inputs.keys().map(String::as_str).collect();
            Error::invalid(format!("the job has no input `{name}`"))
                .with_context("job", &self.job)
                .with_advice(format!("its inputs are: {}", known.join(", ")))
        })
    }

    /// The rows of an input's pinned slice.
    pub async fn read(&self, name: &str) -> Result<(SchemaRef, RowStream)> {
        let input = self.input(name)?;
        let (schema, rows) = input.read().await.map_err(|e| e.with_context("input", name))?;
        let read_bytes = Arc::clone(&self.seen.read_bytes);
        let counted = rows.inspect_ok(move |batch| {
            let size_bytes = u64::try_from(batch.get_array_memory_size()).unwrap_or(u64::MAX);
            read_bytes.fetch_add(size_bytes, Ordering::Relaxed);
        });
        let throttles = Arc::clone(&self.seen.throttles);
        let table = input.pin.table.clone();
        if !throttles.contains_key(&table) {
            return Ok((schema, counted.boxed()));
        }
        let throttled = counted.and_then(move |batch| {
            let (throttles, table) = (Arc::clone(&throttles), table.clone());
            async move {
                if let Some(throttle) = throttles.get(&table) {
                    throttle.pass(&batch).await;
                }
                Ok(batch)
            }
        });
        Ok((schema, throttled.boxed()))
    }

    /// The rows of an input's pinned slice as one batch; for slices that fit into memory.
    pub async fn collect(&self, name: &str) -> Result<RecordBatch> {
        let (schema, rows) = self.read(name).await?;
        let batches: Vec<_> = rows.try_collect().await?;
        concat_batches(&schema, &batches)
            .map_err(|e| Error::internal("batches of one input do not fit together").with_source(e))
    }

    /// Prepares a delivery: it is written to the ledger with the staged output, and sent only after the commit.
    pub fn deliver(&self, delivery: Delivery) {
        self.seen.deliveries.lock().unwrap_or_else(PoisonError::into_inner).push(delivery);
    }
}

impl Rows {
    /// A stream of batches.
    pub fn stream(schema: SchemaRef, stream: RowStream) -> Self {
        Self::Stream { schema, stream }
    }

    /// Batches that are there already; `schema` is needed since there may be none.
    pub fn batches(schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        Self::Stream { schema, stream: futures::stream::iter(batches.into_iter().map(Ok)).boxed() }
    }
}

impl From<RecordBatch> for Rows {
    fn from(batch: RecordBatch) -> Self {
        Self::batches(batch.schema(), vec![batch])
    }
}

/// The error that a transform's failure is reported as.
pub(crate) fn host_error(error: HostError) -> Error {
    match error.downcast::<Error>() {
        Ok(ours) => *ours,
        Err(other) => {
            let transient = other.is::<Transient>();
            Error::new(ErrorKind::Transform, "the transform failed").with_source(other).with_retry(transient)
        }
    }
}

/// The logical date of an interval in a zone.
pub(crate) fn logical_date(start: DateTime<Utc>, zone: chrono_tz::Tz) -> NaiveDate {
    start.with_timezone(&zone).date_naive()
}
