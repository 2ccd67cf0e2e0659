//! A backend of one's own: a table is a directory with one Arrow file per partition.
//!
//! It offers what such a directory can do well: read any version that was ever committed, and replace partitions. It has
//! no shadow and keeps nothing to roll back to, and says so in its capabilities; profiles, guards and ledger are supplied.
//!
//! The atomic step is the creation of the next manifest, a file that lists the partitions' files: of two writers one
//! finds that it exists. Nothing else in the directory is ever changed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;

use arrow_ipc::{reader::FileReader, writer::FileWriter};
use async_trait::async_trait;
use chrono::{Datelike, NaiveDate};
use futures::{StreamExt, stream};
use reprocess::arrow::array::types::Date32Type;
use reprocess::arrow::array::{ArrayRef, Date32Array, Int64Array, RecordBatch};
use reprocess::arrow::schema::{Schema, SchemaRef};
use reprocess::domain::ids::{PartitionVersion, TableId, TableVersion, WorkerId};
use reprocess::domain::interval::Grain;
use reprocess::domain::job::{JobSpec, TableSpec};
use reprocess::domain::partition::{PartitionKey, Partitioning};
use reprocess::domain::profile::{Profile, ProfileBuilder, ProfileSpec, ScopeProfiler};
use reprocess::domain::request::{Mode, Request, Selection};
use reprocess::domain::rows::partition_of_rows;
use reprocess::domain::scope::Scope;
use reprocess::domain::slice::{Base, Kept, Pin, Slice};
use reprocess::engine::{Engine, Host, Job, RunRequest};
use reprocess::memory::MemoryLedger;
use reprocess::ports::reader::{Availability, RowStream, SnapshotReader};
use reprocess::ports::staged::StagedReader;
use reprocess::ports::transform::{HostError, TaskContext};
use reprocess::ports::writer::{
    Capabilities, Change, Commit, CommitEntry, CommitOutcome, CommitRequest, Found, Intent, PartitionWriter,
    Rows, StageRequest, Staged, StagedId, StampId,
};
use reprocess::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// A table in a directory.
#[derive(Debug)]
pub(crate) struct DirTable {
    spec: TableSpec,
    dir: PathBuf,
}

/// One version of the table.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Manifest {
    version: u64,
    schema: Option<SchemaRef>,
    parts: BTreeMap<String, Part>,
    /// Every commit by its stamp, so that a repeated one is recognised.
    commits: BTreeMap<String, Commit>,
}

/// A partition's file, and the digest of its rows.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Part {
    file: String,
    content: PartitionVersion,
}

fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Storage, "the directory of the table cannot be used").with_source(source)
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("a table in a directory {what}"))
}

impl DirTable {
    /// Opens the directory, and makes it where there is none.
    pub(crate) fn open(dir: impl Into<PathBuf>, spec: TableSpec) -> Result<Self> {
        let dir = dir.into();
        fs::create_dir_all(&dir).map_err(failed)?;
        Ok(Self { spec, dir })
    }

    fn manifest(&self, version: u64) -> Result<Manifest> {
        if version == 0 {
            return Ok(Manifest::default());
        }
        let text = fs::read(self.dir.join(format!("{version:09}.json"))).map_err(failed)?;
        serde_json::from_slice(&text).map_err(failed)
    }

    fn manifest_at(&self, version: &TableVersion) -> Result<Manifest> {
        let gone = || Error::new(ErrorKind::PinBroken, format!("the table has no version `{version}`"));
        let number: u64 = version.as_str().parse().map_err(|_| gone())?;
        if number > self.latest()?.version { Err(gone()) } else { self.manifest(number) }
    }

    /// The table at a pin, whose content must be what the pin says.
    fn pinned(&self, pin: &Pin) -> Result<Manifest> {
        let manifest = self.manifest_at(&pin.version)?;
        match self.version(self.parts(&manifest, &pin.slice)?) == pin.content {
            true => Ok(manifest),
            false => Err(Error::new(ErrorKind::PinBroken, "the pin names another content")),
        }
    }

    fn latest(&self) -> Result<Manifest> {
        let mut last = 0;
        for file in fs::read_dir(&self.dir).map_err(failed)? {
            let name = file.map_err(failed)?.file_name().to_string_lossy().into_owned();
            last = last.max(name.strip_suffix(".json").and_then(|n| n.parse().ok()).unwrap_or(0));
        }
        self.manifest(last)
    }

    /// Makes the manifest the next version; `false` where another writer was faster.
    fn publish(&self, next: &Manifest) -> Result<bool> {
        let mut draft = tempfile::NamedTempFile::new_in(&self.dir).map_err(failed)?;
        serde_json::to_writer(&mut draft, next).map_err(failed)?;
        draft.as_file().sync_all().map_err(failed)?;
        match draft.persist_noclobber(self.dir.join(format!("{:09}.json", next.version))) {
            Err(e) if e.error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(failed(e.error)),
            Ok(_) => File::open(&self.dir).and_then(|dir| dir.sync_all()).map(|()| true).map_err(failed),
        }
    }

    fn base(&self, at: &Manifest, scope: &Scope) -> Result<Base> {
        let version = |key: PartitionKey| {
            let parts = self.parts(at, &Slice::Partitions([key.clone()].into()))?;
            Ok((key, self.version(parts)))
        };
        let versions = scope.partitions().into_iter().map(version).collect::<Result<_>>()?;
        Ok(Base::new(TableVersion::new(at.version.to_string()), versions))
    }

    fn version(&self, parts: Vec<(&String, &Part)>) -> PartitionVersion {
        PartitionVersion::of_parts(parts.into_iter().map(|(key, part)| (key.as_str(), &part.content)))
    }

    /// The partitions of a slice.
    fn parts<'m>(&self, at: &'m Manifest, slice: &Slice) -> Result<Vec<(&'m String, &'m Part)>> {
        match slice {
            Slice::AsOf(_) => return Err(unsupported("is not read by effective dates")),
            Slice::Partitions(keys) => {
                keys.iter().try_for_each(|key| self.spec.partitioning.check_key(key).map(drop))?;
            }
            _ => {}
        }
        let mut parts = Vec::new();
        for (key, part) in &at.parts {
            if slice.may_hold(&self.spec.partitioning, &self.spec.partitioning.parse_key(key)?) {
                parts.push((key, part));
            }
        }
        Ok(parts)
    }

    /// Where the digest of a staged set stands, once all its files do.
    fn mark(&self, id: &StagedId) -> PathBuf {
        self.dir.join(format!("{}.staged", id.short()))
    }

    /// The files of what is to be committed, which must still be what was staged.
    fn staged_parts(&self, entry: &CommitEntry) -> Result<BTreeMap<String, Part>> {
        let Change::Apply(staged) = &entry.change else { return Err(unsupported("restores nothing")) };
        match fs::read_to_string(self.mark(&staged.id)) {
            Ok(digest) if digest == staged.digest => {
                serde_json::from_value(staged.payload.clone()).map_err(failed)
            }
            Ok(_) => Err(Error::new(ErrorKind::State, "other rows were staged under this id since")),
            Err(_) => Err(Error::not_found("the staged set is not there any more")),
        }
    }

    fn read_file(&self, part: &Part) -> Result<Vec<RecordBatch>> {
        let file = File::open(self.dir.join(&part.file)).map_err(failed)?;
        FileReader::try_new(file, None).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)
    }

    fn write_file(&self, name: &str, schema: &Schema, batches: &[RecordBatch]) -> Result<()> {
        let file = File::create(self.dir.join(name)).map_err(failed)?;
        let mut writer = FileWriter::try_new(file, schema).map_err(failed)?;
        batches.iter().try_for_each(|batch| writer.write(batch)).map_err(failed)?;
        writer.finish().map_err(failed)?;
        writer.get_ref().sync_all().map_err(failed)
    }
}

#[async_trait]
impl SnapshotReader for DirTable {
    fn table(&self) -> &TableId {
        &self.spec.id
    }

    async fn current(&self) -> Result<TableVersion> {
        Ok(TableVersion::new(self.latest()?.version.to_string()))
    }

    async fn availability(&self, _: &TableVersion) -> Result<Availability> {
        Ok(Availability::Readable { until: None })
    }

    async fn slice_versions(&self, at: &TableVersion, slices: &[Slice]) -> Result<Vec<PartitionVersion>> {
        let manifest = self.manifest_at(at)?;
        slices.iter().map(|slice| Ok(self.version(self.parts(&manifest, slice)?))).collect()
    }

    /// Nothing is ever removed, so what is there stays.
    async fn hold(&self, pins: &[Pin]) -> Result<()> {
        pins.iter().try_for_each(|pin| self.pinned(pin).map(drop))
    }

    async fn release(&self, _: &[Pin]) -> Result<()> {
        Ok(())
    }

    async fn read(&self, pin: &Pin) -> Result<(SchemaRef, RowStream)> {
        let manifest = self.pinned(pin)?;
        let mut batches = Vec::new();
        for (_, part) in self.parts(&manifest, &pin.slice)? {
            batches.extend(self.read_file(part)?.into_iter().map(Ok));
        }
        Ok((manifest.schema.unwrap_or_else(|| Schema::empty().into()), stream::iter(batches).boxed()))
    }
}

#[async_trait]
impl PartitionWriter for DirTable {
    fn table(&self) -> &TableId {
        &self.spec.id
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    async fn schema(&self) -> Result<Option<SchemaRef>> {
        Ok(self.latest()?.schema)
    }

    async fn create(&self, schema: &SchemaRef) -> Result<()> {
        partition_of_rows(&self.spec.partitioning, &RecordBatch::new_empty(schema.clone()))?;
        loop {
            let mut next = self.latest()?;
            match &next.schema {
                Some(known) if known == schema => return Ok(()),
                Some(_) => return Err(Error::invalid("the table has other columns")),
                None => next.schema = Some(schema.clone()),
            }
            next.version += 1;
            if self.publish(&next)? {
                return Ok(());
            }
        }
    }

    async fn head(&self, scope: &Scope) -> Result<Base> {
        self.base(&self.latest()?, scope)
    }

    async fn profile(&self, scope: &Scope, spec: &ProfileSpec) -> Result<(Base, Vec<Profile>)> {
        let latest = self.latest()?;
        let schema = latest.schema.clone().ok_or_else(|| Error::not_found("the table does not exist"))?;
        let mut profiler = ScopeProfiler::new(&self.spec.partitioning, scope, &schema, spec)?;
        let keys = scope.partitions().into_iter().collect();
        for (_, part) in self.parts(&latest, &Slice::Partitions(keys))? {
            self.read_file(part)?.iter().try_for_each(|batch| profiler.push(batch))?;
        }
        Ok((self.base(&latest, scope)?, profiler.finish()))
    }

    async fn stage(&self, request: &StageRequest, rows: Rows) -> Result<Staged> {
        let latest = self.latest()?;
        let schema = latest.schema.as_ref().ok_or_else(|| Error::not_found("the table does not exist"))?;
        self.base(&latest, &request.scope)?;
        if request.intent != Intent::Replace {
            return Err(unsupported("is replaced, partition by partition"));
        }
        let gathered = request.gather(&self.spec.partitioning, schema, rows).await?;
        let mut parts = BTreeMap::new();
        for (key, batches) in &gathered.parts {
            let mut profile = ProfileBuilder::new(schema, &ProfileSpec::new())?;
            batches.iter().try_for_each(|batch| profile.push(batch))?;
            let content = PartitionVersion::from(profile.finish(key.clone()).content.value.as_str());
            // Named by what it holds: staging again never writes over what may be committed.
            let file = format!("{}-{}-{content}.arrow", request.id.short(), parts.len());
            self.write_file(&file, schema, batches)?;
            parts.insert(key.to_string(), Part { file, content });
        }
        let mut staged = request.staged(schema, gathered.parts.into_keys(), gathered.profiles)?;
        staged.payload = serde_json::to_value(parts).map_err(failed)?;
        fs::write(self.mark(&request.id), &staged.digest).map_err(failed)?;
        Ok(staged)
    }

    async fn rebase(&self, staged: &Staged, _: &Base) -> Result<Staged> {
        Ok(staged.clone())
    }

    async fn discard(&self, id: &StagedId) -> Result<()> {
        let committed = |commit: &Commit| commit.attempts.contains(&(id.stamp.clone(), id.attempt));
        if self.latest()?.commits.get(&id.stamp.to_string()).is_some_and(committed) {
            return Err(Error::new(ErrorKind::State, "what is committed cannot be discarded"));
        }
        for file in fs::read_dir(&self.dir).map_err(failed)? {
            let file = file.map_err(failed)?;
            if file.file_name().to_string_lossy().starts_with(&id.short()) {
                fs::remove_file(file.path()).map_err(failed)?;
            }
        }
        Ok(())
    }

    async fn commit(&self, request: CommitRequest<'_>) -> Result<CommitOutcome> {
        request.check(&self.spec.id)?;
        loop {
            let mut next = self.latest()?;
            let (open, mut earlier) = request.left(|stamp| next.commits.get(&stamp.to_string()).cloned());
            earlier.sort_by_key(|commit| commit.version.as_str().parse::<u64>().ok());
            let all = Scope::union_of(request.entries.iter().map(|entry| &entry.scope));
            let Some(all) = all.filter(|_| !open.is_empty()) else {
                let said = Commit::sum(earlier).ok_or_else(|| Error::internal("nothing was committed"))?;
                return Ok(CommitOutcome::AlreadyCommitted(said));
            };
            if let Some(refusal) = request.refusal(&open, &self.base(&next, &all)?).await? {
                return Ok(refusal);
            }
            next.version += 1;
            for entry in &open {
                let keys = entry.scope.partitions().into_iter().collect();
                let replaced = self.parts(&next, &Slice::Partitions(keys))?;
                let replaced: Vec<_> = replaced.into_iter().map(|(key, _)| key.clone()).collect();
                next.parts.retain(|key, _| !replaced.contains(key));
                next.parts.extend(self.staged_parts(entry)?);
            }
            let commit = Commit::of(&open, &earlier, &request, self.base(&next, &all)?);
            next.commits.extend(open.iter().map(|entry| (entry.stamp.to_string(), commit.clone())));
            if self.publish(&next)? {
                return Ok(CommitOutcome::Committed(commit));
            }
        }
    }

    async fn find_commit(&self, stamp: &StampId, _: &Scope, _: &Base) -> Result<Found> {
        let found = self.latest()?.commits.remove(&stamp.to_string());
        Ok(found.map_or(Found::No, Found::Yes))
    }

    async fn forget(&self, _: &Kept) -> Result<()> {
        Ok(())
    }

    fn staged(&self) -> Option<&dyn StagedReader> {
        None
    }
}

/// Visits of one day, for the host below.
fn visits(task: &TaskContext, robots: i64) -> Result<Rows, HostError> {
    let day = task.date().ok_or("a day is a date")?;
    let columns: [(&str, ArrayRef); 2] = [
        ("day", Arc::new(Date32Array::from(vec![Date32Type::from_naive_date(day)]))),
        ("visits", Arc::new(Int64Array::from(vec![100 + i64::from(day.day()) - robots]))),
    ];
    Ok(RecordBatch::try_from_iter(columns)?.into())
}

#[tokio::main]
async fn main() -> Result<()> {
    let dir = tempfile::tempdir().map_err(failed)?;
    let day = |d| NaiveDate::from_ymd_opt(2026, 10, d).ok_or_else(|| Error::invalid("no such day"));
    let daily = Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
    let table = TableSpec::new("visits", daily);
    let job = Job::new(JobSpec::new("visits", "web@example.org", "visits"))
        .transform_blocking("v1", |task, _| visits(task, 0))
        .transform_blocking("v2", |task, _| visits(task, 40));
    let mut host = Host::new("example");
    host.add_table(table.clone(), Arc::new(DirTable::open(dir.path(), table)?))?;
    host.add_job(job)?;
    let (engine, worker) = (Engine::new(host, Arc::new(MemoryLedger::new())), WorkerId::from("example"));
    for d in 1..=3 {
        let unit = PartitionKey::of("day", day(d)?);
        let run = RunRequest::scheduled(format!("visits-{d}"), "visits", unit).with_logic("v1");
        println!("{} by schedule: {:?}", day(d)?, engine.run(&run, &worker).await?);
    }
    let range = Selection::Range { first: day(1)?.into(), last: day(2)?.into() };
    let request = Request::new("robots", range, "robots were counted as visitors", "analyst")
        .with_job("visits", "v2")
        .with_mode(Mode::Direct)
        .without_kept_rows();
    let plan = engine.plan(&request).await?;
    println!("backfill: {:?}", engine.submit(&plan, &request.requester).await?);
    engine.approve(&request.id, &plan.digest(), &request.requester, "the robots are gone").await?;
    println!("backfill: {}", engine.execute(&request.id, &worker, |_| {}).await?.state);
    for row in engine.ledger().changes(&request.id).await? {
        let visits = |profile: &Option<Profile>| profile.as_ref().map(|p| p.totals["visits"].to_string());
        let total = |profile| visits(profile).unwrap_or_default();
        let (before, after) = (total(&row.record.before), total(&row.record.after));
        println!("{}: {before} -> {after} visits", row.record.partition);
    }
    Ok(())
}
