//! The folder `_reprocess` of a table: small JSON documents that Delta does not know.

use std::sync::Arc;

use deltalake::logstore::object_store::{Error as StoreError, ObjectStore, ObjectStoreExt, PutMode};
use deltalake::{ObjectMeta, Path};
use futures::{StreamExt, TryStreamExt};
use reprocess_core::{Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Doing;

/// How many requests to the store run at once.
const REQUESTS: usize = 16;
const ROOT: &str = "_reprocess";

/// The object store of a table, rooted at its folder.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    store: Arc<dyn ObjectStore>,
}

/// Where a document is.
pub(crate) fn place<'a>(parts: impl IntoIterator<Item = &'a str>) -> Path {
    std::iter::once(ROOT).chain(parts).collect()
}

impl Folder {
    pub(crate) fn new(store: Arc<dyn ObjectStore>) -> Self {
        Self { store }
    }

    pub(crate) fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    pub(crate) async fn write(&self, path: &Path, document: &impl Serialize) -> Result<()> {
        let bytes = serde_json::to_vec(document)
            .map_err(|e| Error::internal("a document does not serialise").with_source(e))?;
        self.store.put(path, bytes.into()).await.doing("write into the folder of the table").map(drop)
    }

    /// Writes a word where nothing is yet; answers the word that is there afterwards.
    pub(crate) async fn claim(&self, path: &Path, word: &str) -> Result<String> {
        let what = "claim a staged set";
        let created = self.store.put_opts(path, word.to_owned().into(), PutMode::Create.into()).await;
        match created {
            Ok(_) => Ok(word.to_owned()),
            Err(StoreError::AlreadyExists { .. }) => {
                let there = self.store.get(path).await.doing(what)?.bytes().await.doing(what)?;
                Ok(String::from_utf8_lossy(&there).into_owned())
            }
            Err(e) => Err(e).doing(what),
        }
    }

    /// The document; `None` where there is none.
    pub(crate) async fn read<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>> {
        let what = "read from the folder of the table";
        let found = match self.store.get(path).await {
            Ok(found) => found,
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(e).doing(what),
        };
        let bytes = found.bytes().await.doing(what)?;
        let document = serde_json::from_slice(&bytes).map_err(|e| {
            Error::new(ErrorKind::Corrupt, "a document of ours cannot be read")
                .with_context("path", path)
                .with_source(e)
                .with_advice("a newer release of reprocess wrote it; use that one")
        })?;
        Ok(Some(document))
    }

    /// Size of a file in bytes; `None` where there is none.
    pub(crate) async fn size(&self, path: &Path) -> Result<Option<u64>> {
        match self.store.head(path).await {
            Ok(found) => Ok(Some(found.size)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(e) => Err(e).doing("look for a file of the table"),
        }
    }

    /// Of files with their sizes those that are not there, or of another size.
    pub(crate) async fn missing(&self, files: Vec<(Path, u64)>) -> Result<Vec<Path>> {
        let folder = self.clone();
        let looked = futures::stream::iter(files).map(move |(path, size)| {
            let folder = folder.clone();
            async move { Ok((folder.size(&path).await? != Some(size)).then_some(path)) }
        });
        let missing: Vec<Option<Path>> = looked.buffered(REQUESTS).try_collect().await?;
        Ok(missing.into_iter().flatten().collect())
    }

    /// Everything under a place, in order.
    pub(crate) async fn list(&self, under: &Path) -> Result<Vec<Path>> {
        let mut found: Vec<Path> = match self
            .store
            .list(Some(under))
            .map_ok(|ObjectMeta { location, .. }| location)
            .try_collect()
            .await
        {
            Ok(found) => found,
            Err(StoreError::NotFound { .. }) => Vec::new(),
            Err(e) => return Err(e).doing("list the folder of the table"),
        };
        found.sort();
        Ok(found)
    }

    /// Removes files; those that are gone already are no error.
    pub(crate) async fn remove(&self, paths: Vec<Path>) -> Result<()> {
        let store = Arc::clone(&self.store);
        let removed = futures::stream::iter(paths).map(move |path| {
            let store = Arc::clone(&store);
            async move {
                match store.delete(&path).await {
                    Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
                    Err(e) => Err(e).doing("remove a file of the table"),
                }
            }
        });
        removed.buffer_unordered(REQUESTS).try_collect().await
    }
}
