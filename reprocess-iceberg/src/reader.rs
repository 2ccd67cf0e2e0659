//! Reading at pinned versions.

mod expiry;
mod held;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use iceberg::spec::ManifestFile;
use reprocess_core::domain::ids::{PartitionVersion, TableId, TableVersion};
use reprocess_core::domain::slice::{Pin, Slice};
use reprocess_core::ports::reader::{Availability, RowStream, SnapshotReader};
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_lake::slices::{as_of, broken};

pub(crate) use self::source::{Keys, Source, Written};
use crate::table::IcebergTable;
use crate::view::{File, Listing, View, Wanted};

/// A pin is a snapshot of the table, and the version of a slice the set of its files with the deletes that apply to them: a
/// snapshot that touched other partitions changes nothing of a slice.
#[async_trait]
impl SnapshotReader for IcebergTable {
    fn table(&self) -> &TableId {
        &self.spec().id
    }

    async fn current(&self) -> Result<TableVersion> {
        Ok(self.latest().await.map_err(|e| self.in_table(e))?.version())
    }

    /// A snapshot that the table still has, whose files are all there. Until when it stays is what the table's settings
    /// let an expiry of snapshots do: those on which a tag is stay, and a number of the newest of each branch.
    async fn availability(&self, version: &TableVersion) -> Result<Availability> {
        let view = match self.at(version).await {
            Ok(view) => view,
            Err(e) if e.kind() == ErrorKind::PinBroken => return Ok(Availability::Expired),
            Err(e) => return Err(self.in_table(e)),
        };
        self.available(&view).await.map_err(|e| self.in_table(e))
    }

    async fn slice_versions(
        &self,
        version: &TableVersion,
        slices: &[Slice],
    ) -> Result<Vec<PartitionVersion>> {
        let view = self.at(version).await?;
        let mut versions = Vec::with_capacity(slices.len());
        for slice in slices {
            versions.push(self.slice_version(&view, slice).await?.0);
        }
        Ok(versions)
    }

    /// Notes the pins beside the table, and tags their snapshots, which an expiry of snapshots keeps then. Tables of format
    /// version 1 have no tags, and what they keep is what their settings say.
    async fn hold(&self, pins: &[Pin]) -> Result<()> {
        for pin in pins {
            let source = self.pinned(pin).await?;
            self.check_files(pin, &source).await?;
        }
        held::hold(self, pins).await.map_err(|e| self.in_table(e))
    }

    async fn release(&self, pins: &[Pin]) -> Result<()> {
        held::release(self, pins).await.map_err(|e| self.in_table(e))
    }

    async fn read(&self, pin: &Pin) -> Result<(SchemaRef, RowStream)> {
        let source = self.pinned(pin).await?;
        self.check_files(pin, &source).await?;
        let rows = source.rows().await.map_err(|e| self.in_table(e))?;
        Ok((source.schema, rows))
    }
}

impl IcebergTable {
    /// What a pin names, after a look at whether its version still has that content.
    pub(crate) async fn pinned(&self, pin: &Pin) -> Result<Source> {
        let (view, listing) = self.pinned_view(pin).await?;
        let slice = pin.slice.clone();
        let keys = Keys::new(move |key| slice.holds(key));
        let loose = listing.loose_in(&pin.slice);
        Ok(Source {
            files: listing.in_slice(&pin.slice).into_iter().cloned().collect(),
            loose: loose.into_iter().map(|file| (file.clone(), keys.clone())).collect(),
            as_of: as_of(&pin.slice).cloned(),
            ..Source::of(self, &view, view.schema())
        })
    }

    /// The version of a pin, with the files of its slice. Refuses one whose slice has another content there.
    pub(crate) async fn pinned_view(&self, pin: &Pin) -> Result<(Arc<View>, Listing)> {
        if pin.table != self.spec().id {
            return Err(self.in_table(Error::invalid(format!("the pin is of table `{}`", pin.table))));
        }
        let view = self.at(&pin.version).await?;
        let (content, listing) = self.slice_version(&view, &pin.slice).await?;
        if content == pin.content {
            return Ok((view, listing));
        }
        Err(broken(pin, "the pin names another content than its version has"))
    }

    async fn slice_version(&self, view: &View, slice: &Slice) -> Result<(PartitionVersion, Listing)> {
        let listing = view.listing(self, &Wanted::Slice(slice.clone())).await;
        let listing = listing.map_err(|e| self.in_table(e))?;
        Ok((view.slice_version(&listing, slice)?, listing))
    }

    /// Refuses a pin of which a file is gone.
    pub(crate) async fn check_files(&self, pin: &Pin, source: &Source) -> Result<()> {
        let Some(there) = source.view.known() else { return Ok(()) };
        let files = source.files.iter().chain(source.loose.iter().map(|(file, _)| file));
        let places: BTreeMap<_, _> = files.flat_map(places).collect();
        let missing = there.files.missing(places.into_iter().collect()).await;
        match missing.map_err(|e| self.in_table(e))?.first() {
            None => Ok(()),
            Some(file) => Err(broken(pin, "files of the pinned version are gone").with_context("file", file)),
        }
    }

    async fn available(&self, view: &View) -> Result<Availability> {
        let latest = self.latest().await?;
        let (Some(there), Some(snapshot)) = (view.known(), view.known().and_then(|t| t.snapshot.as_ref()))
        else {
            return Ok(Availability::Readable { until: None });
        };
        if latest.snapshot_id() == Some(snapshot.snapshot_id()) {
            return Ok(Availability::Readable { until: None });
        }
        let removed = self.removed_since(view, &latest).await?;
        if !there.files.missing(removed).await?.is_empty() {
            return Ok(Availability::Expired);
        }
        let until = expiry::until(&latest.there()?.loaded.metadata, snapshot)?;
        Ok(Availability::Readable { until })
    }

    /// The files that a version names and the newest does not, with their sizes. Manifests that both have are passed over.
    async fn removed_since(&self, view: &View, latest: &View) -> Result<Vec<(String, u64)>> {
        let (there, now) = (view.there()?, latest.there()?);
        let paths = |manifests: &[ManifestFile]| -> BTreeSet<String> {
            manifests.iter().map(|manifest| manifest.manifest_path.clone()).collect()
        };
        let (then, still) = (paths(&there.manifests), paths(&now.manifests));
        let mut removed = BTreeMap::new();
        for manifest in there.manifests.iter().filter(|m| !still.contains(&m.manifest_path)) {
            for named in self.manifests().live(&there.files, manifest).await?.iter() {
                removed.insert(named.file.file_path().to_owned(), named.file.file_size_in_bytes());
            }
        }
        for manifest in now.manifests.iter().filter(|m| !then.contains(&m.manifest_path)) {
            if removed.is_empty() {
                break;
            }
            for named in self.manifests().live(&now.files, manifest).await?.iter() {
                removed.remove(named.file.file_path());
            }
        }
        Ok(removed.into_iter().collect())
    }
}

/// A file and those of its deletes, with their sizes in bytes.
fn places(file: &File) -> impl Iterator<Item = (String, u64)> {
    let named = std::iter::once(&file.entry).chain(&file.deletes);
    named.map(|named| (named.file.file_path().to_owned(), named.file.file_size_in_bytes()))
}
