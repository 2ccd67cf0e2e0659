//! The files of one table: through the library, and as objects beside it.

use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt};
use iceberg::io::FileIO;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{CopyMode, CopyOptions, Error as StoreError, ObjectStore, ObjectStoreExt};
use reprocess_core::{Error, Result};
use reprocess_lake::Folder;

use crate::error::Doing;
use crate::storage::{Place, Stores, Upload};

/// How many requests to the stores run at once.
const REQUESTS: usize = 16;
/// What stores copy in one request.
const COPIED_BYTES: u64 = 5 << 30;
const COPY: &str = "copy a file of the table";

/// A file that was found in a folder.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) location: String,
    /// In its store, where every way to write the location is the same.
    pub(crate) path: Path,
    pub(crate) modified: DateTime<Utc>,
}

/// How a table's files are reached. Locations are as Iceberg writes them: full, with a scheme or an absolute path.
#[derive(Clone)]
pub(crate) struct Files {
    stores: Arc<Stores>,
    io: FileIO,
    folder: Folder,
    root: String,
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files")
            .field("root", &self.root)
            .field("stores", &self.stores)
            .finish_non_exhaustive()
    }
}

impl Files {
    /// The files of a table in a folder, with the settings of stores.
    pub(crate) fn new(stores: Arc<Stores>, root: &str) -> Result<Self> {
        let root = root.trim_end_matches('/').to_owned();
        let Place { store, path, .. } = stores.place(&root)?;
        let folder = Folder::new(Arc::new(PrefixStore::new(store, path)));
        Ok(Self { io: stores.io(), stores, folder, root })
    }

    /// For the library underneath.
    pub(crate) fn io(&self) -> &FileIO {
        &self.io
    }

    /// The folder of the table, with the documents of ours under `_reprocess` in it.
    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The folder of the table, without a slash at its end.
    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// Copies a file where nothing is yet, inside the store where both are in one, else through here. What is already
    /// there with the same size stays.
    pub(crate) async fn copy(&self, from: &str, to: &str) -> Result<()> {
        let Some(size) = self.size(from).await? else {
            return Err(Error::not_found("a file of the table is gone").with_context("file", from));
        };
        if self.size(to).await? == Some(size) {
            return Ok(());
        }
        let (source, target) = (self.stores.place(from)?, self.stores.place(to)?);
        let copied = if source.host == target.host && size <= COPIED_BYTES {
            let options = CopyOptions::new().with_mode(CopyMode::Overwrite);
            source.store.copy_opts(&source.path, &target.path, options).await.doing(COPY)
        } else {
            through_here(source, target).await
        };
        copied.map_err(|e| e.with_context("from", from).with_context("to", to))
    }

    /// Removes files; those that are gone already are no error.
    pub(crate) async fn remove(&self, locations: Vec<String>) -> Result<()> {
        self.stores.remove(locations).await
    }

    /// Of files with their sizes in bytes those that are not there, or of another size.
    pub(crate) async fn missing(&self, files: Vec<(String, u64)>) -> Result<Vec<String>> {
        let all = self.clone();
        let looked = files.into_iter().map(move |(location, size)| {
            let all = all.clone();
            async move { Ok((all.size(&location).await? != Some(size)).then_some(location)) }
        });
        let missing: Vec<Option<String>> =
            futures::stream::iter(looked).buffered(REQUESTS).try_collect().await?;
        Ok(missing.into_iter().flatten().collect())
    }

    /// Everything in a folder and the folders below it, in any order.
    pub(crate) async fn list(&self, folder: &str) -> Result<Vec<Listed>> {
        let folder = folder.trim_end_matches('/');
        let Place { store, path: under, .. } = self.stores.place(folder)?;
        let listed = store.list(Some(&under)).map_ok(|found| {
            let parts = found.location.prefix_match(&under);
            let rest: Vec<_> = parts.into_iter().flatten().map(|part| part.as_ref().to_owned()).collect();
            let location = format!("{folder}/{}", rest.join("/"));
            Listed { location, path: found.location, modified: found.last_modified }
        });
        match listed.try_collect().await {
            Ok(listed) => Ok(listed),
            Err(StoreError::NotFound { .. }) => Ok(Vec::new()),
            Err(e) => {
                Err(e).doing("list a folder of the table").map_err(|e| e.with_context("folder", folder))
            }
        }
    }

    /// Where a file is in its store.
    pub(crate) fn path_of(&self, location: &str) -> Result<Path> {
        Ok(self.stores.place(location)?.path)
    }

    /// Size of a file in bytes; `None` where there is none.
    pub(crate) async fn size(&self, location: &str) -> Result<Option<u64>> {
        let Place { store, path, .. } = self.stores.place(location)?;
        match store.head(&path).await {
            Ok(found) => Ok(Some(found.size)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(e) => {
                Err(e).doing("look for a file of the table").map_err(|e| e.with_context("file", location))
            }
        }
    }
}

async fn through_here(from: Place, to: Place) -> Result<()> {
    let mut bytes = from.store.get(&from.path).await.doing(COPY)?.into_stream();
    let mut upload = Upload::new(to);
    while let Some(some) = bytes.try_next().await.doing(COPY)? {
        upload.write(some).await?;
    }
    upload.finish().await
}

#[cfg(test)]
mod tests;
