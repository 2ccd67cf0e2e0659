//! A table: where it is, and its versions as they were read.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use deltalake::datafusion::execution::context::SessionContext;
use deltalake::kernel::{EagerSnapshot, Metadata};
use deltalake::logstore::LogStoreRef;
use deltalake::operations::vacuum::VacuumMode;
use deltalake::{DeltaTable as Lake, DeltaTableBuilder, DeltaTableError};
use percent_encoding::percent_decode_str;
use reprocess_core::domain::ids::TableVersion;
use reprocess_core::domain::job::TableSpec;
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_lake::Folder;
use reprocess_lake::session::{session, without_tables};

use crate::commits::Commits;
use crate::config::DeltaConfig;
use crate::error::Doing;
use crate::view::{self, View};
use crate::{reader, writer};

/// How many versions beside the newest are kept in memory.
const VIEWS: usize = 4;

/// A Delta table that reprocess writes and jobs read. Clones are the same table, and share what they have read of it.
///
/// Its files hold rows of one partition each: every dimension of the table is a partition column. A time dimension of days
/// or coarser is a column of local dates, one of hours a column of instants.
///
/// What the table's own features ask for is kept, or the write is refused with the feature named before a file is
/// written: see the README.
#[derive(Clone)]
pub struct DeltaTable {
    shared: Arc<Shared>,
}

struct Shared {
    spec: TableSpec,
    config: DeltaConfig,
    log: LogStoreRef,
    folder: Folder,
    commits: Commits,
    session: SessionContext,
    latest: tokio::sync::Mutex<Latest>,
    /// Earlier versions, the one that was asked for last at the end.
    views: Mutex<Vec<Arc<View>>>,
    /// Commits of this process wait for each other here rather than lose races.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Latest {
    lake: Option<Lake>,
    view: Option<Arc<View>>,
}

impl fmt::Debug for DeltaTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeltaTable")
            .field("spec", self.spec())
            .field("location", &self.location())
            .finish_non_exhaustive()
    }
}

impl DeltaTable {
    /// The table in a folder, or at an address of an object store such as `s3://bucket/orders`, with the defaults. It need
    /// not exist yet.
    ///
    /// ```
    /// use reprocess_core::domain::interval::Grain;
    /// use reprocess_core::domain::job::TableSpec;
    /// use reprocess_core::domain::partition::Partitioning;
    /// use reprocess_delta::DeltaTable;
    ///
    /// let by_day = Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let location = folder.path().join("orders");
    /// # let location = location.to_str().unwrap();
    /// let orders = DeltaTable::open(location, TableSpec::new("orders", by_day))?;
    /// # Ok::<(), reprocess_core::Error>(())
    /// ```
    pub fn open(location: &str, spec: TableSpec) -> Result<Self> {
        Self::open_with(location, spec, DeltaConfig::new())
    }

    /// As [`open`](Self::open), with settings.
    pub fn open_with(location: &str, spec: TableSpec, config: DeltaConfig) -> Result<Self> {
        let session = session(config.memory_bytes)?;
        Self::open_in(location, spec, config, &session)
    }

    /// As [`open`](Self::open), with settings and a session of the host: its functions, its settings and its memory are
    /// those of queries. Tables of the session are not seen by them, since they would not be pinned.
    pub fn open_in(
        location: &str,
        spec: TableSpec,
        config: DeltaConfig,
        session: &SessionContext,
    ) -> Result<Self> {
        let wrong = |e: DeltaTableError| {
            Error::invalid("the location of the table cannot be understood")
                .with_source(e)
                .with_context("table", &spec.id)
                .with_advice(
                    "name a folder, or an address such as s3://bucket/folder with the feature of its store",
                )
        };
        spec.partitioning.validate().map_err(|e| e.with_context("table", &spec.id))?;
        let url = deltalake::ensure_table_uri(location).map_err(wrong)?;
        // The library decodes the names of folders once more than they were encoded.
        if url.path().contains("%25") {
            return Err(Error::invalid(
                "the location of the table has a `%` in it, which the library does not read",
            )
            .with_context("table", &spec.id)
            .with_advice("name the folder without it"));
        }
        let options = config.storage_options.clone().into_iter().collect();
        let builder = DeltaTableBuilder::from_url(url).map_err(wrong)?.with_storage_options(options);
        let log = builder.build_storage().map_err(wrong)?;
        let shared = Shared {
            folder: Folder::new(log.object_store(None)),
            commits: Commits::default(),
            session: without_tables(session),
            latest: tokio::sync::Mutex::default(),
            views: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            spec,
            config,
            log,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Id and partitioning.
    pub fn spec(&self) -> &TableSpec {
        &self.shared.spec
    }

    /// Where it is.
    pub fn location(&self) -> String {
        let mut url = self.shared.log.root_url().clone();
        // An address may carry a password.
        let _ = url.set_password(None);
        url.to_string()
    }

    /// Removes files that no version of the last `retention` and no pin, kept commit or version of ours needs any more,
    /// and answers their paths. With `dry_run` only the paths.
    ///
    /// Another tool that vacuums the table knows nothing of pins that are held: give it
    /// [`needed_versions`](Self::needed_versions) to keep, or a retention that is longer than any plan runs.
    pub async fn vacuum(&self, retention: chrono::Duration, dry_run: bool) -> Result<Vec<String>> {
        let what = "remove files that nobody needs";
        let mut lake = Lake::new(self.log().clone());
        lake.load().await.doing(what)?;
        let (_, removed) = lake
            .vacuum()
            .with_mode(VacuumMode::Lite)
            .with_retention_period(retention)
            .with_enforce_retention_duration(false)
            .with_keep_versions(&self.needed_versions().await?)
            .with_dry_run(dry_run)
            .await
            .doing(what)?;
        Ok(removed.files_deleted)
    }

    /// Versions whose files must stay: those of pins that are held, and those that commits kept to be restored.
    pub async fn needed_versions(&self) -> Result<Vec<u64>> {
        let mut versions = reader::held_versions(self.folder()).await?;
        versions.extend(writer::kept_versions(self.folder()).await?);
        Ok(versions.into_iter().collect())
    }

    /// Where a file is from the folder of the table, by its address.
    pub(crate) fn path_in(&self, address: &str) -> Result<String> {
        let root = self.log().root_url();
        let unknown =
            || Error::internal("a file is not in the folder of its table").with_context("file", address);
        let url = root.join(address).map_err(|e| unknown().with_source(e))?;
        let path = url.path().strip_prefix(root.path().trim_end_matches('/')).ok_or_else(unknown)?;
        let path = percent_decode_str(path.trim_start_matches('/')).decode_utf8();
        path.map(Into::into).map_err(|e| unknown().with_source(e))
    }

    pub(crate) fn config(&self) -> &DeltaConfig {
        &self.shared.config
    }

    pub(crate) fn log(&self) -> &LogStoreRef {
        &self.shared.log
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.shared.folder
    }

    pub(crate) fn commits(&self) -> &Commits {
        &self.shared.commits
    }

    pub(crate) fn session(&self) -> &SessionContext {
        &self.shared.session
    }

    pub(crate) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.shared.turn.lock().await
    }

    pub(crate) fn in_table(&self, error: Error) -> Error {
        error.with_context("table", &self.spec().id)
    }

    /// The newest version.
    pub(crate) async fn latest(&self) -> Result<Arc<View>> {
        let mut latest = self.shared.latest.lock().await;
        let what = "read the log of the table";
        match &mut latest.lake {
            Some(lake) => lake.update_state().await.doing(what)?,
            None if !self.log().is_delta_table_location().await.doing(what)? => {
                return Ok(Arc::new(View::absent(self.spec())));
            }
            None => {
                let mut lake = Lake::new(self.log().clone());
                lake.load().await.doing(what)?;
                latest.lake = Some(lake);
            }
        }
        let known = latest.view.as_ref().and_then(|view| view.number());
        let Some(lake) = latest.lake.as_ref().filter(|lake| lake.version() != known || known.is_none())
        else {
            return latest
                .view
                .clone()
                .ok_or_else(|| Error::internal("a table was read, and has no version"));
        };
        let snapshot = lake.snapshot().doing(what)?.snapshot().clone();
        let view = Arc::new(View::new(self.spec(), snapshot)?);
        latest.view = Some(Arc::clone(&view));
        Ok(view)
    }

    /// A version as it was. What the log no longer has is a broken pin.
    pub(crate) async fn at(&self, version: &TableVersion) -> Result<Arc<View>> {
        let Some(number) = view::number(version).map_err(|e| self.in_table(e))? else {
            return Ok(Arc::new(View::absent(self.spec())));
        };
        if let Some(view) = self.remembered(number) {
            return Ok(view);
        }
        let latest = self.latest().await?;
        if latest.number() == Some(number) {
            return Ok(latest);
        }
        if latest.number().is_none_or(|newest| newest < number) {
            return Err(self.gone(version, "the table never had this version"));
        }
        let view = match EagerSnapshot::try_new(self.log().as_ref(), Some(number)).await {
            Ok(snapshot) => Arc::new(View::new(self.spec(), snapshot)?),
            Err(
                e @ (DeltaTableError::KernelError(_)
                | DeltaTableError::NotATable(_)
                | DeltaTableError::InvalidVersion(_)),
            ) => {
                return Err(self.gone(version, "the log no longer has this version").with_source(e));
            }
            Err(e) => return Err(e).doing("read an earlier version of the table"),
        };
        let mut views = self.views();
        views.push(Arc::clone(&view));
        if views.len() > VIEWS {
            views.remove(0);
        }
        Ok(view)
    }

    fn remembered(&self, number: u64) -> Option<Arc<View>> {
        let mut views = self.views();
        let place = views.iter().position(|view| view.number() == Some(number))?;
        let view = views.remove(place);
        views.push(Arc::clone(&view));
        Some(view)
    }

    fn views(&self) -> std::sync::MutexGuard<'_, Vec<Arc<View>>> {
        self.shared.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gone(&self, version: &TableVersion, why: &str) -> Error {
        Error::new(ErrorKind::PinBroken, why)
            .with_context("table", &self.spec().id)
            .with_context("version", version)
            .with_advice("plan again with current inputs")
    }
}

/// The settings that the table was made with.
pub(crate) fn property<'a>(metadata: &'a Metadata, name: &str) -> Option<&'a str> {
    metadata.configuration().get(name).map(String::as_str)
}
