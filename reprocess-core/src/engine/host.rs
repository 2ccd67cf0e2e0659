//! What a host brings: its catalog, the code of its jobs, and who reads and writes its tables.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use arrow_array::RecordBatch;

use crate::domain::ids::{Build, JobName, LogicVersion, TableId};
use crate::domain::job::{Catalog, Exposure, JobSpec, TableSpec};
use crate::domain::plan::EXTERNAL;
use crate::domain::pool::{Pool, ReadLimit};
use crate::error::{Error, Result};
use crate::ports::delivery::DeliverySink;
use crate::ports::reader::SnapshotReader;
use crate::ports::transform::{Blocking, Closure, HostError, Sql, TaskContext, Transform};
use crate::ports::writer::{PartitionWriter, Rows};

/// A job with its code, one transform for each logic version. The version added last is the one that the schedule runs.
pub struct Job {
    pub(crate) spec: JobSpec,
    pub(crate) versions: BTreeMap<LogicVersion, Arc<dyn Transform>>,
    pub(crate) current: Option<LogicVersion>,
}

impl Job {
    /// A job without code yet.
    pub fn new(spec: JobSpec) -> Self {
        Self { spec, versions: BTreeMap::new(), current: None }
    }

    /// Adds a logic version.
    #[must_use]
    pub fn with_version(
        mut self,
        version: impl Into<LogicVersion>,
        transform: impl Transform + 'static,
    ) -> Self {
        let version = version.into();
        self.versions.insert(version.clone(), Arc::new(transform));
        self.current = Some(version);
        self
    }

    /// Adds a logic version as an async closure. It gets the context and a clone of `state`, both its own; errors of
    /// any type pass with `?` and are permanent unless wrapped in [`Transient`](crate::ports::transform::Transient).
    #[must_use]
    pub fn transform_with<S, F, Fut>(self, version: impl Into<LogicVersion>, state: S, run: F) -> Self
    where
        S: Clone + Send + Sync + 'static,
        F: Fn(S, TaskContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Rows, HostError>> + Send + 'static,
    {
        self.with_version(version, Closure { state, run })
    }

    /// Adds a logic version as a closure that keeps a core busy: it runs on a thread of its own, over its inputs as one
    /// batch each.
    #[must_use]
    pub fn transform_blocking<F>(self, version: impl Into<LogicVersion>, run: F) -> Self
    where
        F: Fn(&TaskContext, BTreeMap<String, RecordBatch>) -> Result<Rows, HostError> + Send + Sync + 'static,
    {
        self.with_version(version, Blocking(Arc::new(run)))
    }

    /// Adds a logic version as SQL of the table's own engine; see [`Sql`].
    #[must_use]
    pub fn transform_sql(self, version: impl Into<LogicVersion>, sql: impl Into<String>) -> Self {
        self.with_version(version, Sql(sql.into()))
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("spec", &self.spec)
            .field("versions", &self.versions.keys())
            .finish_non_exhaustive()
    }
}

/// Everything that the engine needs of a host application.
pub struct Host {
    catalog: Catalog,
    build: Build,
    jobs: BTreeMap<JobName, Job>,
    readers: BTreeMap<TableId, Arc<dyn SnapshotReader>>,
    writers: BTreeMap<TableId, Arc<dyn PartitionWriter>>,
    sinks: BTreeMap<String, Arc<dyn DeliverySink>>,
    triggers: BTreeMap<JobName, Arc<dyn DeliverySink>>,
    pools: BTreeMap<String, Pool>,
    read_limits: BTreeMap<TableId, ReadLimit>,
}

impl Host {
    /// A host without tables. `build` says what is running, for example a git commit; it is recorded, not compared.
    pub fn new(build: impl Into<Build>) -> Self {
        Self {
            catalog: Catalog::new(),
            build: build.into(),
            jobs: BTreeMap::new(),
            readers: BTreeMap::new(),
            writers: BTreeMap::new(),
            sinks: BTreeMap::new(),
            triggers: BTreeMap::new(),
            pools: BTreeMap::new(),
            read_limits: BTreeMap::new(),
        }
    }

    /// Declares a table that jobs only read.
    pub fn add_source(&mut self, table: TableSpec, reader: Arc<dyn SnapshotReader>) -> Result<()> {
        check_table(&table.id, reader.table())?;
        self.readers.insert(table.id.clone(), reader);
        self.catalog.add_table(table)
    }

    /// Declares a table that a job writes and others may read.
    pub fn add_table<T: SnapshotReader + PartitionWriter>(
        &mut self,
        table: TableSpec,
        backend: Arc<T>,
    ) -> Result<()> {
        self.add_output(table.clone(), Arc::clone(&backend) as Arc<dyn PartitionWriter>)?;
        self.add_source(table, backend)
    }

    /// Declares a table that a job writes and none reads.
    pub fn add_output(&mut self, table: TableSpec, writer: Arc<dyn PartitionWriter>) -> Result<()> {
        check_table(&table.id, writer.table())?;
        self.writers.insert(table.id.clone(), writer);
        self.catalog.add_table(table)
    }

    /// Declares a job. Its tables must be declared, its inputs must have readers and its output a writer.
    pub fn add_job(&mut self, job: Job) -> Result<()> {
        for input in &job.spec.inputs {
            self.catalog.table(&input.table)?;
            self.reader(&input.table).map_err(|e| e.with_context("job", &job.spec.name))?;
        }
        self.check_pool(&job.spec)?;
        self.catalog.table(&job.spec.output)?;
        self.writer(&job.spec.output).map_err(|e| e.with_context("job", &job.spec.name))?;
        self.catalog.add_job(job.spec.clone())?;
        self.jobs.insert(job.spec.name.clone(), job);
        Ok(())
    }

    /// Declares a job that runs outside of this library, and what has it run where a correction reaches it. Its tables must
    /// be declared: those that other jobs read with a reader, the others with
    /// [`declare_table`](Self::declare_table).
    ///
    /// The trigger is sent a [`Start`](crate::ports::notify::Start) for each partition, and its answer says that the job has
    /// run to its end. It is sent again where a process dies before it could note that, so the job must be one that can run
    /// again. Its sink's channel is of no meaning here.
    pub fn add_external(&mut self, job: JobSpec, trigger: Arc<dyn DeliverySink>) -> Result<()> {
        self.check_pool(&job)?;
        self.catalog.table(&job.output)?;
        for input in &job.inputs {
            self.catalog.table(&input.table)?;
        }
        let name = job.name.clone();
        self.catalog.add_job(job.with_external())?;
        self.triggers.insert(name, trigger);
        Ok(())
    }

    /// Declares a pool, which jobs name. Every process that shares the ledger declares it alike.
    pub fn add_pool(&mut self, pool: Pool) -> Result<()> {
        pool.check()?;
        match self.pools.get(&pool.name) {
            Some(known) if *known != pool => {
                Err(Error::invalid(format!("the pool `{}` is declared twice, and differently", pool.name)))
            }
            _ => {
                self.pools.insert(pool.name.clone(), pool);
                Ok(())
            }
        }
    }

    /// Limits how fast tasks of this process read a table, taken together.
    pub fn limit_reads(&mut self, table: &TableId, limit: ReadLimit) -> Result<()> {
        self.reader(table)?;
        self.read_limits.insert(table.clone(), limit);
        Ok(())
    }

    pub(crate) fn read_limits(&self) -> &BTreeMap<TableId, ReadLimit> {
        &self.read_limits
    }

    fn check_pool(&self, job: &JobSpec) -> Result<()> {
        match &job.pool {
            Some(name) if !self.pools.contains_key(name) => {
                Err(Error::not_found(format!("the pool `{name}` is not declared"))
                    .with_context("job", &job.name))
            }
            _ => Ok(()),
        }
    }

    /// The pool that a job's tasks run in.
    pub(crate) fn pool(&self, job: &JobSpec) -> Option<&Pool> {
        self.pools.get(job.pool.as_ref()?)
    }

    /// Declares a table that no job of this library reads or writes.
    pub fn declare_table(&mut self, table: TableSpec) -> Result<()> {
        self.catalog.add_table(table)
    }

    /// Declares something outside that consumes tables.
    pub fn add_exposure(&mut self, exposure: Exposure) {
        self.catalog.add_exposure(exposure);
    }

    /// Declares who sends the deliveries of a channel. That of [`NOTICES`](crate::ports::notify::NOTICES) tells owners of
    /// backfills, that of [`EVENTS`](crate::ports::notify::EVENTS) schedulers of published partitions; without a sink nobody
    /// is told.
    pub fn add_sink(&mut self, sink: Arc<dyn DeliverySink>) -> Result<()> {
        let channel = sink.channel().to_owned();
        if self.sinks.contains_key(&channel) {
            return Err(Error::invalid(format!("the channel `{channel}` has two sinks")));
        }
        self.sinks.insert(channel, sink);
        Ok(())
    }

    /// The declared tables, jobs and exposures.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    pub(crate) fn build(&self) -> &Build {
        &self.build
    }

    pub(crate) fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values()
    }

    pub(crate) fn transform(&self, job: &JobName, logic: &LogicVersion) -> Result<&Arc<dyn Transform>> {
        self.jobs.get(job).and_then(|j| j.versions.get(logic)).ok_or_else(|| {
            Error::not_found(format!("logic version `{logic}` is not registered")).with_context("job", job)
        })
    }

    /// The version that the schedule runs.
    pub(crate) fn current_logic(&self, job: &JobName) -> Result<&LogicVersion> {
        self.catalog.job(job)?;
        self.jobs
            .get(job)
            .and_then(|j| j.current.as_ref())
            .ok_or_else(|| Error::not_found("no logic version is registered").with_context("job", job))
    }

    /// What this process has code for.
    pub(crate) fn can_run(&self) -> Vec<(JobName, LogicVersion)> {
        let versions = |job: &Job| {
            let name = job.spec.name.clone();
            job.versions.keys().map(move |v| (name.clone(), v.clone())).collect::<Vec<_>>()
        };
        let outside = self.triggers.keys().map(|job| (job.clone(), LogicVersion::from(EXTERNAL)));
        self.jobs.values().flat_map(versions).chain(outside).collect()
    }

    /// The channels that can be served.
    pub(crate) fn channels(&self) -> Vec<String> {
        self.sinks.keys().cloned().collect()
    }

    pub(crate) fn sink(&self, channel: &str) -> Option<&dyn DeliverySink> {
        self.sinks.get(channel).map(AsRef::as_ref)
    }

    /// What has a job run outside of this library.
    pub(crate) fn trigger(&self, job: &JobName) -> Result<&Arc<dyn DeliverySink>> {
        self.triggers
            .get(job)
            .ok_or_else(|| Error::not_found("no trigger is declared for the job").with_context("job", job))
    }

    pub(crate) fn reader(&self, table: &TableId) -> Result<&Arc<dyn SnapshotReader>> {
        self.readers.get(table).ok_or_else(|| {
            Error::not_found("no reader is declared for the table").with_context("table", table)
        })
    }

    pub(crate) fn writer(&self, table: &TableId) -> Result<&Arc<dyn PartitionWriter>> {
        self.writers.get(table).ok_or_else(|| {
            Error::not_found("no writer is declared for the table").with_context("table", table)
        })
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("build", &self.build).field("jobs", &self.jobs).finish_non_exhaustive()
    }
}

fn check_table(declared: &TableId, served: &TableId) -> Result<()> {
    match declared == served {
        true => Ok(()),
        false => {
            Err(Error::invalid(format!("the backend serves table `{served}`"))
                .with_context("table", declared))
        }
    }
}
