//! A table: which one of which catalog, and its versions as they were read.

mod orphans;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::execution::context::SessionContext;
use iceberg::TableIdent;
use iceberg::spec::{SchemaId, SnapshotRef};
use reprocess_core::domain::ids::TableVersion;
use reprocess_core::domain::job::TableSpec;
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_lake::session::without_tables;
use reprocess_lake::versions::ABSENT;
use uuid::Uuid;

use crate::catalog::{Answer, IcebergCatalog, Loaded, Proposal};
use crate::commits::Commits;
use crate::config::IcebergConfig;
use crate::manifests::Manifests;
use crate::storage::Stores;
use crate::view::{self, View};

/// How many versions beside the newest are kept in memory.
const VIEWS: usize = 4;

/// An Iceberg table that reprocess writes and jobs read. Clones are the same table, and share what they have read of it.
///
/// Its files hold rows of one partition each: every dimension of the table is told from the values that its files are
/// partitioned by. Files of an older partition spec may hold rows of several; they are read, and where a commit would
/// have to divide one it is refused with the file named.
#[derive(Clone)]
pub struct IcebergTable {
    shared: Arc<Shared>,
}

struct Shared {
    spec: TableSpec,
    name: TableIdent,
    catalog: IcebergCatalog,
    config: IcebergConfig,
    session: SessionContext,
    manifests: Manifests,
    commits: Commits,
    /// With the settings of the table alone.
    stores: Arc<Stores>,
    /// With what the catalog said on top, which may be other credentials the next time.
    told_stores: Mutex<Arc<Stores>>,
    latest: tokio::sync::Mutex<Option<Arc<View>>>,
    /// Other versions, the one that was asked for last at the end.
    views: Mutex<Vec<(Which, Arc<View>)>>,
    /// Commits of this process wait for each other here rather than lose races.
    turn: tokio::sync::Mutex<()>,
}

/// What a version that was read is known by. An id alone is not enough: it follows from the work, and a table that was
/// dropped and made again may have it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Which {
    table: Uuid,
    snapshot: Option<i64>,
    columns: Option<SchemaId>,
}

impl fmt::Debug for IcebergTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IcebergTable")
            .field("spec", self.spec())
            .field("name", &self.shared.name)
            .finish_non_exhaustive()
    }
}

impl IcebergTable {
    /// The table `namespace.name` of a catalog, with the defaults. It need not exist yet.
    pub fn open(catalog: &IcebergCatalog, name: &str, spec: TableSpec) -> Result<Self> {
        Self::open_with(catalog, name, spec, IcebergConfig::default())
    }

    /// As [`open`](Self::open), with settings.
    pub fn open_with(
        catalog: &IcebergCatalog,
        name: &str,
        spec: TableSpec,
        config: IcebergConfig,
    ) -> Result<Self> {
        let session = reprocess_lake::session::session(config.memory_bytes)?;
        Self::open_in(catalog, name, spec, config, &session)
    }

    /// As [`open`](Self::open), with settings and a session of the host: its functions, its settings and its memory are
    /// those of queries. Tables of the session are not seen by them, since they would not be pinned.
    pub fn open_in(
        catalog: &IcebergCatalog,
        name: &str,
        spec: TableSpec,
        config: IcebergConfig,
        session: &SessionContext,
    ) -> Result<Self> {
        spec.partitioning.validate().map_err(|e| e.with_context("table", &spec.id))?;
        let name = ident(name).map_err(|e| e.with_context("table", &spec.id))?;
        let stores = Arc::new(Stores::new(&config.storage_options));
        let shared = Shared {
            name,
            catalog: catalog.clone(),
            session: without_tables(session),
            manifests: Manifests::default(),
            commits: Commits::default(),
            told_stores: Mutex::new(Arc::clone(&stores)),
            stores,
            latest: tokio::sync::Mutex::default(),
            views: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            spec,
            config,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Id and partitioning.
    pub fn spec(&self) -> &TableSpec {
        &self.shared.spec
    }

    /// The folder of the table, as its metadata has it now; `None` where the table does not exist.
    pub async fn location(&self) -> Result<Option<String>> {
        let loaded = self.load().await.map_err(|e| self.in_table(e))?;
        Ok(loaded.map(|loaded| loaded.metadata.location().to_owned()))
    }

    pub(crate) fn name(&self) -> &TableIdent {
        &self.shared.name
    }

    pub(crate) fn catalog(&self) -> &IcebergCatalog {
        &self.shared.catalog
    }

    pub(crate) fn config(&self) -> &IcebergConfig {
        &self.shared.config
    }

    pub(crate) fn session(&self) -> &SessionContext {
        &self.shared.session
    }

    pub(crate) fn manifests(&self) -> &Manifests {
        &self.shared.manifests
    }

    pub(crate) fn commits(&self) -> &Commits {
        &self.shared.commits
    }

    pub(crate) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.shared.turn.lock().await
    }

    pub(crate) fn in_table(&self, error: Error) -> Error {
        error.with_context("table", &self.spec().id)
    }

    /// The stores with the settings of the table, and on top what the catalog says of them.
    pub(crate) fn stores(&self, told: &BTreeMap<String, String>) -> Arc<Stores> {
        let stores = self.shared.stores.with(told);
        let mut last = self.shared.told_stores.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&last, &stores) {
            // Versions that were read reach their files with what was said before, which may have run out.
            self.views().clear();
            *last = Arc::clone(&stores);
        }
        stores
    }

    /// The newest version of main, asked of the catalog. Kept where the metadata has not moved.
    pub(crate) async fn latest(&self) -> Result<Arc<View>> {
        let Some(loaded) = self.load().await? else {
            return Ok(Arc::new(View::absent(self.spec())));
        };
        let mut latest = self.shared.latest.lock().await;
        let known = latest.as_ref().filter(|view| view.known().is_some_and(|t| is_same(&t.loaded, &loaded)));
        if let Some(view) = known {
            return Ok(Arc::clone(view));
        }
        let view = Arc::new(View::newest(self, loaded).await?);
        *latest = Some(Arc::clone(&view));
        Ok(view)
    }

    /// A version as it was. What the metadata no longer has is a broken pin.
    pub(crate) async fn at(&self, version: &TableVersion) -> Result<Arc<View>> {
        let snapshot = view::snapshot_of(version).map_err(|e| self.in_table(e))?;
        if version.as_str() == ABSENT {
            return Ok(Arc::new(View::absent(self.spec())));
        }
        let latest = self.latest().await?;
        if latest.version() == *version {
            return Ok(latest);
        }
        let Some(there) = latest.known() else {
            return Err(self.gone(version, "the table is not there any more"));
        };
        let columns = view::schema_of(version);
        let Some(id) = snapshot else {
            return self.read(&there.loaded, None, columns, false).await;
        };
        match there.loaded.metadata.snapshot_by_id(id) {
            Some(snapshot) => self.read(&there.loaded, Some(snapshot), columns, false).await,
            None => Err(self.gone(version, "the table does not have this version, or no longer")),
        }
    }

    /// A snapshot of the newest metadata, of whichever branch, with the columns of then. Its metadata is that of `latest`,
    /// so that a change can be made of it.
    pub(crate) async fn at_snapshot(&self, latest: &View, snapshot: &SnapshotRef) -> Result<Arc<View>> {
        let loaded = &latest.there()?.loaded;
        self.read(loaded, Some(snapshot), None, true).await
    }

    async fn read(
        &self,
        loaded: &Loaded,
        snapshot: Option<&SnapshotRef>,
        columns: Option<SchemaId>,
        newest: bool,
    ) -> Result<Arc<View>> {
        let table = loaded.metadata.uuid();
        let which = Which { table, snapshot: snapshot.map(|snapshot| snapshot.snapshot_id()), columns };
        let good = |view: &Arc<View>| !newest || view.known().is_some_and(|t| is_same(&t.loaded, loaded));
        if let Some(view) = self.remembered(which).filter(good) {
            return Ok(view);
        }
        let view = Arc::new(View::at(self, loaded.clone(), snapshot, columns).await?);
        let mut views = self.views();
        views.retain(|(known, _)| *known != which);
        views.push((which, Arc::clone(&view)));
        if views.len() > VIEWS {
            views.remove(0);
        }
        Ok(view)
    }

    fn remembered(&self, which: Which) -> Option<Arc<View>> {
        let mut views = self.views();
        let place = views.iter().position(|(known, _)| *known == which)?;
        let found = views.remove(place);
        let view = Arc::clone(&found.1);
        views.push(found);
        Some(view)
    }

    fn views(&self) -> MutexGuard<'_, Vec<(Which, Arc<View>)>> {
        self.shared.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a change to the catalog.
    pub(crate) async fn change(&self, view: &View, proposal: Proposal<'_>) -> Result<Answer> {
        self.catalog().inner().change(self.name(), &view.there()?.files, proposal).await
    }

    /// The table's metadata now; `None` where it is not there.
    pub(crate) async fn load(&self) -> Result<Option<Loaded>> {
        self.catalog().inner().load(self.name(), &self.shared.stores).await
    }

    fn gone(&self, version: &TableVersion, why: &str) -> Error {
        Error::new(ErrorKind::PinBroken, why)
            .with_context("table", &self.spec().id)
            .with_context("version", version)
            .with_advice("plan again with current inputs")
    }
}

/// The parts of a name, the last of which is that of the table.
fn ident(name: &str) -> Result<TableIdent> {
    let refused = || {
        Error::invalid(format!("`{name}` does not name a table of a catalog"))
            .with_advice("name its namespace and the table, as in `sales.orders`")
    };
    let parts: Vec<_> = name.split('.').collect();
    if parts.len() < 2 || parts.iter().any(|part| part.is_empty()) {
        return Err(refused());
    }
    TableIdent::from_strs(parts).map_err(|e| refused().with_source(e))
}

/// Whether two answers of a catalog are of one version of a table. A metadata file never changes, so that its location
/// says it; where a catalog does not say one, all is compared.
fn is_same(known: &Loaded, loaded: &Loaded) -> bool {
    let same = Arc::ptr_eq(&known.metadata, &loaded.metadata)
        || match (&known.location, &loaded.location) {
            (Some(known), Some(loaded)) => known == loaded,
            _ => known.metadata == loaded.metadata,
        };
    same && known.metadata.uuid() == loaded.metadata.uuid() && known.config == loaded.config
}

#[cfg(test)]
mod tests {
    use super::ident;

    #[test]
    fn a_name_has_a_namespace_of_one_or_more_parts() {
        assert_eq!(ident("sales.orders").unwrap().to_string(), "sales.orders");
        let nested = ident("shop.sales.orders").unwrap();
        assert_eq!((nested.namespace().as_ref().len(), nested.name()), (2, "orders"));
        for name in ["orders", "", ".orders", "sales.", "sales..orders"] {
            assert!(ident(name).unwrap_err().advice().is_some(), "{name}");
        }
    }
}
