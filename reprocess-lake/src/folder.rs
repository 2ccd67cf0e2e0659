//! The folder `_reprocess` of a table: small JSON documents that the format does not know.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode};
use reprocess_core::{Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Doing;

/// How many requests to the store run at once.
const REQUESTS: usize = 16;
const ROOT: &str = "_reprocess";

/// The object store of a table, rooted at its folder.
#[derive(Clone, Debug)]
pub struct Folder {
    store: Arc<dyn ObjectStore>,
}

/// Where a document is.
pub fn place<'a>(parts: impl IntoIterator<Item = &'a str>) -> Path {
    std::iter::once(ROOT).chain(parts).collect()
}

impl Folder {
    /// Of the store of a table, rooted at its folder.
    pub fn new(store: Arc<dyn ObjectStore>) -> Self {
        Self { store }
    }

    /// The store, for the files of the table.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// Writes a document, in place of one that is there.
    pub async fn write(&self, path: &Path, document: &impl Serialize) -> Result<()> {
        let bytes = serde_json::to_vec(document)
            .map_err(|e| Error::internal("a document does not serialise").with_source(e))?;
        self.store.put(path, bytes.into()).await.doing("write into the folder of the table").map(drop)
    }

    /// Writes a word where nothing is yet; answers the word that is there afterwards.
    pub async fn claim(&self, path: &Path, word: &str) -> Result<String> {
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
    pub async fn read<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>> {
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
    pub async fn size(&self, path: &Path) -> Result<Option<u64>> {
        match self.store.head(path).await {
            Ok(found) => Ok(Some(found.size)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(e) => Err(e).doing("look for a file of the table"),
        }
    }

    /// Of files with their sizes those that are not there, or of another size.
    pub async fn missing(&self, files: Vec<(Path, u64)>) -> Result<Vec<Path>> {
        let folder = self.clone();
        let looked = futures::stream::iter(files).map(move |(path, size)| {
            let folder = folder.clone();
            async move { Ok((folder.size(&path).await? != Some(size)).then_some(path)) }
        });
        let missing: Vec<Option<Path>> = looked.buffered(REQUESTS).try_collect().await?;
        Ok(missing.into_iter().flatten().collect())
    }

    /// Everything under a place, in order.
    pub async fn list(&self, under: &Path) -> Result<Vec<Path>> {
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

    /// Names of the folders at a place that have something in them.
    pub async fn folders(&self, under: &Path) -> Result<BTreeSet<String>> {
        let found = self.list(under).await?;
        let name = |path: &Path| {
            let mut parts = path.prefix_match(under)?;
            let name = parts.next()?.as_ref().to_owned();
            parts.next().map(|_| name)
        };
        Ok(found.iter().filter_map(name).collect())
    }

    /// Removes files; those that are gone already are no error.
    pub async fn remove(&self, paths: Vec<Path>) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;

    #[test]
    fn documents_are_in_a_folder_of_their_own() {
        assert_eq!(place(["held", "a/b", "c.json"]).as_ref(), "_reprocess/held/a%2Fb/c.json");
    }

    #[tokio::test]
    async fn what_is_written_is_read_until_it_is_removed() {
        let (folder, path) = (folder(), place(["a.json"]));
        assert_eq!(folder.read::<Vec<u8>>(&path).await.unwrap(), None);
        folder.write(&path, &[1, 2]).await.unwrap();
        folder.write(&path, &[3]).await.unwrap();
        assert_eq!(folder.read::<Vec<u8>>(&path).await.unwrap(), Some(vec![3]));
        assert_eq!(folder.size(&path).await.unwrap(), Some(3));
        let error = folder.read::<String>(&path).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        folder.remove(vec![path.clone(), path.clone()]).await.unwrap();
        assert_eq!(folder.size(&path).await.unwrap(), None);
    }

    #[tokio::test]
    async fn the_first_word_stays() {
        let (folder, path) = (folder(), place(["word"]));
        assert_eq!(folder.claim(&path, "mine").await.unwrap(), "mine");
        assert_eq!(folder.claim(&path, "yours").await.unwrap(), "mine");
        folder.remove(vec![path.clone()]).await.unwrap();
        assert_eq!(folder.claim(&path, "yours").await.unwrap(), "yours");
    }

    #[tokio::test]
    async fn files_that_are_gone_or_of_another_size_are_missing() {
        let folder = folder();
        let [whole, short, gone] = ["whole", "short", "gone"].map(|name| place(["x", name]));
        folder.write(&whole, &"ab").await.unwrap();
        folder.write(&short, &"a").await.unwrap();
        let files = [&whole, &short, &gone].map(|path| (path.clone(), 4)).to_vec();
        assert_eq!(folder.missing(files).await.unwrap(), [short.clone(), gone]);
        assert_eq!(folder.list(&place(["x"])).await.unwrap(), [short, whole]);
        assert_eq!(folder.folders(&place([])).await.unwrap(), BTreeSet::from(["x".to_owned()]));
        assert!(folder.folders(&place(["x"])).await.unwrap().is_empty());
    }
}
