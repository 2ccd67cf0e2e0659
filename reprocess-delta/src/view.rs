//! One version of a table: its columns, and its files by partition.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use deltalake::Path;
use deltalake::kernel::{Add, DeletionVectorDescriptor, EagerSnapshot, LogicalFileView, Remove};
use reprocess_core::domain::ids::{PartitionVersion, TableVersion};
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::{Base, Slice};
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_lake::versions::{ABSENT, version_of};

use crate::partitions::Partitions;

/// A table at one version; without a snapshot a table that is not there.
#[derive(Debug)]
pub(crate) struct View {
    spec: TableSpec,
    there: Option<There>,
    /// Every live file by its partition, the paths in order.
    files: BTreeMap<PartitionKey, Vec<File>>,
    schema: SchemaRef,
}

#[derive(Debug)]
struct There {
    snapshot: Arc<EagerSnapshot>,
    partitions: Partitions,
}

/// A live data file.
#[derive(Clone)]
pub(crate) struct File {
    view: LogicalFileView,
    path: Path,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.path.as_ref())
    }
}

impl File {
    /// Where it is, from the folder of the table, as the object store takes it.
    pub(crate) fn path(&self) -> &str {
        self.path.as_ref()
    }

    /// Where it is, and its size in bytes.
    pub(crate) fn place(&self) -> (Path, u64) {
        (self.path.clone(), u64::try_from(self.view.size()).unwrap_or(0))
    }

    pub(crate) fn identity(&self) -> String {
        identity(self.path(), self.view.deletion_vector_descriptor().as_ref())
    }

    /// Statistics as JSON, where the log has some.
    pub(crate) fn stats(&self) -> Option<String> {
        self.view.stats()
    }

    #[allow(
        deprecated,
        reason = "to add a file again all of its action is needed, which no other call gives"
    )]
    pub(crate) fn add(&self) -> Add {
        self.view.add_action()
    }

    pub(crate) fn remove(&self) -> Remove {
        self.view.remove_action(true)
    }
}

impl View {
    pub(crate) fn absent(spec: &TableSpec) -> Self {
        Self { spec: spec.clone(), there: None, files: BTreeMap::new(), schema: Arc::new(Schema::empty()) }
    }

    pub(crate) fn new(spec: &TableSpec, snapshot: EagerSnapshot) -> Result<Self> {
        let schema = snapshot.arrow_schema();
        let partitions =
            Partitions::new(&spec.partitioning, snapshot.metadata().partition_columns(), &schema)
                .map_err(|e| e.with_context("table", &spec.id))?;
        let mut files = BTreeMap::<_, Vec<_>>::new();
        for view in snapshot.log_data().iter() {
            let values = partitions.values(&view.partition_values_map())?;
            let path = view.object_store_path();
            files.entry(partitions.key(&values)?).or_default().push(File { view, path });
        }
        files.values_mut().for_each(|files| files.sort_by(|a, b| a.path.cmp(&b.path)));
        let there = Some(There { snapshot: Arc::new(snapshot), partitions });
        Ok(Self { spec: spec.clone(), there, files, schema })
    }

    /// The columns; `None` where the table is not there.
    pub(crate) fn columns(&self) -> Option<&SchemaRef> {
        self.there.as_ref().map(|_| &self.schema)
    }

    /// The columns, none where the table is not there.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The snapshot. Refuses a table that is not there.
    pub(crate) fn snapshot(&self) -> Result<&Arc<EagerSnapshot>> {
        self.there().map(|there| &there.snapshot)
    }

    /// The partition columns. Refuses a table that is not there.
    pub(crate) fn partitions(&self) -> Result<&Partitions> {
        self.there().map(|there| &there.partitions)
    }

    fn there(&self) -> Result<&There> {
        self.there.as_ref().ok_or_else(|| {
            Error::not_found("the table does not exist")
                .with_context("table", &self.spec.id)
                .with_advice("create it first")
        })
    }

    /// Number of the version; `None` where the table is not there.
    pub(crate) fn number(&self) -> Option<u64> {
        self.there.as_ref().map(|there| there.snapshot.version())
    }

    pub(crate) fn version(&self) -> TableVersion {
        version(self.number())
    }

    /// The files of the partitions that are wanted, with those.
    pub(crate) fn files_where(
        &self,
        wanted: impl Fn(&PartitionKey) -> bool,
    ) -> impl Iterator<Item = (&PartitionKey, &File)> {
        let parts = self.files.iter().filter(move |(key, _)| wanted(key));
        parts.flat_map(|(key, files)| files.iter().map(move |file| (key, file)))
    }

    /// The files under a key of a scope.
    pub(crate) fn files_of(&self, key: &PartitionKey) -> Result<Vec<&File>> {
        let known = self.spec.partitioning.check_key(key)?;
        // A full key is looked up; where it leaves a dimension open, every partition is asked.
        if known.bound().len() == self.spec.partitioning.dimensions().len() {
            return Ok(self.files.get(&known).into_iter().flatten().collect());
        }
        Ok(self.files_where(|partition| known.covers(partition)).map(|(_, file)| file).collect())
    }

    /// The files of a scope.
    pub(crate) fn files_in(&self, scope: &Scope) -> Result<Vec<&File>> {
        let mut files = BTreeMap::new();
        for key in scope.partitions() {
            files.extend(self.files_of(&key)?.into_iter().map(|file| (file.path(), file)));
        }
        Ok(files.into_values().collect())
    }

    /// Versions of the keys of a scope.
    pub(crate) fn head(&self, scope: &Scope) -> Result<Base> {
        let keys = scope.partitions().into_iter();
        let partitions = keys.map(|key| {
            let version = version_of(self.files_of(&key)?.into_iter().map(File::identity));
            Ok((key, version))
        });
        Ok(Base::new(self.version(), partitions.collect::<Result<_>>()?))
    }

    /// Version of the content of a slice.
    pub(crate) fn slice_version(&self, slice: &Slice) -> Result<PartitionVersion> {
        slice.check(&self.spec.partitioning).map_err(|e| e.with_context("table", &self.spec.id))?;
        Ok(version_of(self.files_where(|key| slice.holds(key)).map(|(_, file)| file.identity())))
    }

    /// Whether a file in a folder of this name is live.
    pub(crate) fn has_file_in(&self, folder: &str) -> bool {
        self.files.values().flatten().any(|file| file.path.parts().any(|part| part.as_ref() == folder))
    }
}

/// Where the file of an action is, as the object store takes it; the same as of a live file.
pub(crate) fn path_of(add: &Add) -> Path {
    location(&add.path)
}

/// A path of the log as the object store takes it.
pub(crate) fn location(path: &str) -> Path {
    Path::parse(path).unwrap_or_else(|_| Path::from(path))
}

/// What tells the content of a file from that of others: files are never changed, but rows are taken out of them.
pub(crate) fn identity_of(add: &Add) -> String {
    identity(path_of(add).as_ref(), add.deletion_vector.as_ref())
}

fn identity(path: &str, deleted: Option<&DeletionVectorDescriptor>) -> String {
    match deleted {
        Some(deleted) => {
            let (place, offset) = (&deleted.path_or_inline_dv, deleted.offset);
            format!("{path}\n{:?}{place}{offset:?}", deleted.storage_type)
        }
        None => path.to_owned(),
    }
}

pub(crate) fn version(number: Option<u64>) -> TableVersion {
    number.map_or_else(|| ABSENT.into(), |number| TableVersion::new(number.to_string()))
}

/// The number of a version; `None` for a table that was not there.
pub(crate) fn number(version: &TableVersion) -> Result<Option<u64>> {
    if version.as_str() == ABSENT {
        return Ok(None);
    }
    version.as_str().parse().map(Some).map_err(|_| {
        Error::new(ErrorKind::PinBroken, format!("`{version}` is no version of the table"))
            .with_advice("plan again with current inputs")
    })
}
