//! Removing files, many at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore};
use reprocess_core::Result;

use super::location::Host;
use super::{Place, Stores};
use crate::error::Doing;

const WHAT: &str = "remove a file of the table";

impl Stores {
    /// Removes files; those that are gone already are no error.
    pub(crate) async fn remove(&self, locations: Vec<String>) -> Result<()> {
        let mut by_host: BTreeMap<Host, (Arc<dyn ObjectStore>, Vec<Path>)> = BTreeMap::new();
        for location in locations {
            let Place { host, store, path } = self.place(&location)?;
            by_host.entry(host).or_insert_with(|| (store, Vec::new())).1.push(path);
        }
        for (store, paths) in by_host.into_values() {
            remove_from(&*store, paths).await?;
        }
        Ok(())
    }

    /// Removes all files in a folder.
    pub(crate) async fn remove_folder(&self, location: &str) -> Result<()> {
        let Place { store, path, .. } = self.place(location)?;
        let mut found = store.list(Some(&path)).map_ok(|file| file.location).try_chunks(PAGE);
        while let Some(page) = found.next().await {
            remove_from(&*store, page.map_err(|e| e.1).doing(WHAT)?).await?;
        }
        Ok(())
    }
}

/// As many as one request of S3 takes.
const PAGE: usize = 1000;

async fn remove_from(store: &dyn ObjectStore, paths: Vec<Path>) -> Result<()> {
    let mut removed = store.delete_stream(futures::stream::iter(paths).map(Ok).boxed());
    // All of them are tried before an error is said.
    let mut failed = Ok(());
    while let Some(one) = removed.next().await {
        match one {
            Ok(_) | Err(StoreError::NotFound { .. }) => {}
            Err(e) => failed = failed.and(Err(e)),
        }
    }
    failed.doing(WHAT)
}
