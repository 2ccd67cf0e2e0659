//! The stores as `iceberg` wants to be given them.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use iceberg::io::{
    FileMetadata, FileRead, FileWrite, InputFile, OutputFile, Storage, StorageConfig, StorageFactory,
};
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt};
use reprocess_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::{Place, Stores, Upload};
use crate::error::{Doing, carried};

const READ: &str = "read a file of the table";

/// What `iceberg` reads and writes through, and makes it by. Serialised with the settings, since whoever is sent it has to
/// reach the same files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Objects {
    stores: Arc<Stores>,
}

impl Objects {
    pub(super) fn new(stores: Arc<Stores>) -> Self {
        Self { stores }
    }

    async fn metadata_of(&self, location: &str) -> Result<FileMetadata> {
        let Place { store, path, .. } = self.stores.place(location)?;
        let size = store.head(&path).await.doing("look for a file of the table").map_err(of(&path))?.size;
        Ok(FileMetadata { size })
    }

    async fn whole(&self, location: &str) -> Result<Bytes> {
        let Place { store, path, .. } = self.stores.place(location)?;
        let read = async { store.get(&path).await?.bytes().await };
        read.await.doing(READ).map_err(of(&path))
    }

    async fn put(&self, location: &str, bytes: Bytes) -> Result<()> {
        let Place { store, path, .. } = self.stores.place(location)?;
        store.put(&path, bytes.into()).await.doing("write a file of the table").map_err(of(&path))?;
        Ok(())
    }
}

#[typetag::serde(name = "reprocess")]
impl StorageFactory for Objects {
    fn build(&self, config: &StorageConfig) -> iceberg::Result<Arc<dyn Storage>> {
        let more = config.props().iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        Ok(Arc::new(Self::new(self.stores.with(&more))))
    }
}

#[async_trait]
#[typetag::serde(name = "reprocess")]
impl Storage for Objects {
    async fn exists(&self, location: &str) -> iceberg::Result<bool> {
        match self.metadata_of(location).await {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(carried(e)),
        }
    }

    async fn metadata(&self, location: &str) -> iceberg::Result<FileMetadata> {
        self.metadata_of(location).await.map_err(carried)
    }

    async fn read(&self, location: &str) -> iceberg::Result<Bytes> {
        self.whole(location).await.map_err(carried)
    }

    async fn reader(&self, location: &str) -> iceberg::Result<Box<dyn FileRead>> {
        let Place { store, path, .. } = self.stores.place(location).map_err(carried)?;
        Ok(Box::new(Ranges { store, path }))
    }

    async fn write(&self, location: &str, bytes: Bytes) -> iceberg::Result<()> {
        self.put(location, bytes).await.map_err(carried)
    }

    async fn writer(&self, location: &str) -> iceberg::Result<Box<dyn FileWrite>> {
        Ok(Box::new(Upload::new(self.stores.place(location).map_err(carried)?)))
    }

    async fn delete(&self, location: &str) -> iceberg::Result<()> {
        self.stores.remove(vec![location.to_owned()]).await.map_err(carried)
    }

    async fn delete_prefix(&self, location: &str) -> iceberg::Result<()> {
        self.stores.remove_folder(location).await.map_err(carried)
    }

    async fn delete_stream(&self, locations: BoxStream<'static, String>) -> iceberg::Result<()> {
        let mut some = locations.ready_chunks(REMOVED_AT_ONCE);
        while let Some(locations) = some.next().await {
            self.stores.remove(locations).await.map_err(carried)?;
        }
        Ok(())
    }

    fn new_input(&self, location: &str) -> iceberg::Result<InputFile> {
        Ok(InputFile::new(Arc::new(self.clone()), location.to_owned()))
    }

    fn new_output(&self, location: &str) -> iceberg::Result<OutputFile> {
        Ok(OutputFile::new(Arc::new(self.clone()), location.to_owned()))
    }
}

/// As many as one request of S3 takes.
const REMOVED_AT_ONCE: usize = 1000;

/// Reads parts of a file.
struct Ranges {
    store: Arc<dyn ObjectStore>,
    path: Path,
}

#[async_trait]
impl FileRead for Ranges {
    async fn read(&self, range: Range<u64>) -> iceberg::Result<Bytes> {
        self.range(range).await.map_err(carried)
    }
}

impl Ranges {
    /// Stores answer with less where a file ends before the range does; readers of the library take the length for
    /// granted.
    async fn range(&self, range: Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let length = range.end - range.start;
        match self.store.get_range(&self.path, range.clone()).await {
            Ok(bytes) if bytes.len() as u64 == length => Ok(bytes),
            Ok(_) => Err(self.too_short()),
            Err(e @ StoreError::NotFound { .. }) => Err(e).doing(READ).map_err(of(&self.path)),
            Err(e) => match self.store.head(&self.path).await {
                Ok(file) if file.size < range.end => Err(self.too_short()),
                _ => Err(e).doing(READ).map_err(of(&self.path)),
            },
        }
    }

    fn too_short(&self) -> Error {
        Error::new(ErrorKind::Corrupt, "a file of the table is shorter than the table says")
            .with_context("file", &self.path)
            .with_advice("restore it, or compute its partition again")
    }
}

#[async_trait]
impl FileWrite for Upload {
    async fn write(&mut self, bytes: Bytes) -> iceberg::Result<()> {
        Self::write(self, bytes).await.map_err(carried)
    }

    async fn close(&mut self) -> iceberg::Result<()> {
        self.finish().await.map_err(carried)
    }
}

/// Says of an error which file it was.
fn of(path: &Path) -> impl FnOnce(Error) -> Error {
    move |error| error.with_context("file", path)
}
