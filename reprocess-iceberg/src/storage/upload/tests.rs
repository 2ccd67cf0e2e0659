use std::fmt;
use std::ops::Range;
use std::sync::Mutex;

use async_trait::async_trait;
use futures::FutureExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, ObjectMeta, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, UploadPart,
};
use reprocess_core::ErrorKind;

use super::super::Stores;
use super::*;

/// A store in memory that counts what was begun and not ended, and fails when it is told to.
#[derive(Debug, Default)]
struct Watched {
    inner: InMemory,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    puts: usize,
    /// Sizes of the parts.
    parts: Vec<usize>,
    open: usize,
    at_once: usize,
    most_at_once: usize,
    fails: Option<Fails>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fails {
    Part(usize),
    Complete,
}

fn broken() -> object_store::Error {
    object_store::Error::Generic { store: "watched", source: "told to".into() }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("watched")
    }
}

#[async_trait]
impl ObjectStore for Watched {
    async fn put_opts(
        &self,
        path: &Path,
        bytes: PutPayload,
        how: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.seen.lock().unwrap().puts += 1;
        self.inner.put_opts(path, bytes, how).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        how: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.seen.lock().unwrap().open += 1;
        let inner = self.inner.put_multipart_opts(path, how).await?;
        Ok(Box::new(WatchedUpload { inner, seen: Arc::clone(&self.seen) }))
    }

    async fn get_opts(&self, path: &Path, how: GetOptions) -> object_store::Result<GetResult> {
        self.inner.get_opts(path, how).await
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> object_store::Result<Vec<Bytes>> {
        self.inner.get_ranges(path, ranges).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, under: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list(under)
    }

    async fn list_with_delimiter(&self, under: Option<&Path>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(under).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, how: CopyOptions) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, how).await
    }
}

#[derive(Debug)]
struct WatchedUpload {
    inner: Box<dyn MultipartUpload>,
    seen: Arc<Mutex<Seen>>,
}

#[async_trait]
impl MultipartUpload for WatchedUpload {
    fn put_part(&mut self, bytes: PutPayload) -> UploadPart {
        let seen = Arc::clone(&self.seen);
        let fails = {
            let mut seen = seen.lock().unwrap();
            seen.parts.push(bytes.content_length());
            seen.fails == Some(Fails::Part(seen.parts.len()))
        };
        let put = self.inner.put_part(bytes);
        async move {
            {
                let mut seen = seen.lock().unwrap();
                seen.at_once += 1;
                seen.most_at_once = seen.most_at_once.max(seen.at_once);
            }
            tokio::task::yield_now().await;
            put.await?;
            seen.lock().unwrap().at_once -= 1;
            if fails { Err(broken()) } else { Ok(()) }
        }
        .boxed()
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        if self.seen.lock().unwrap().fails == Some(Fails::Complete) {
            return Err(broken());
        }
        let done = self.inner.complete().await?;
        self.seen.lock().unwrap().open -= 1;
        Ok(done)
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        self.inner.abort().await?;
        self.seen.lock().unwrap().open -= 1;
        Ok(())
    }
}

const LOCATION: &str = "s3://tables/flights/data/1.parquet";

fn watched(fails: Option<Fails>) -> (Arc<Watched>, Arc<Stores>) {
    let store = Arc::new(Watched::default());
    store.seen.lock().unwrap().fails = fails;
    let stores = Stores::default().with_store(LOCATION, Arc::clone(&store) as Arc<dyn ObjectStore>);
    (store, Arc::new(stores))
}

fn bytes(length: usize) -> Bytes {
    (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

#[tokio::test]
async fn a_small_file_is_one_request() {
    let (store, stores) = watched(None);
    let mut upload = Upload::new(stores.place(LOCATION).unwrap());
    upload.write("a ".into()).await.unwrap();
    upload.write("b".into()).await.unwrap();
    upload.finish().await.unwrap();
    assert_eq!(stores.io().new_input(LOCATION).unwrap().read().await.unwrap(), "a b");
    let seen = store.seen.lock().unwrap();
    assert_eq!((seen.puts, seen.parts.len()), (1, 0));
}

#[tokio::test]
async fn a_file_without_bytes_is_there() {
    let (_, stores) = watched(None);
    Upload::new(stores.place(LOCATION).unwrap()).finish().await.unwrap();
    assert_eq!(stores.io().new_input(LOCATION).unwrap().metadata().await.unwrap().size, 0);
}

#[tokio::test]
async fn a_large_file_goes_in_parts_of_one_size_a_few_at_once() {
    let (store, stores) = watched(None);
    let whole = bytes(6 * PART_BYTES + 3);
    let mut upload = Upload::new(stores.place(LOCATION).unwrap());
    for some in whole.chunks(3 * PART_BYTES / 2) {
        upload.write(Bytes::copy_from_slice(some)).await.unwrap();
    }
    assert!(!stores.io().exists(LOCATION).await.unwrap());
    upload.finish().await.unwrap();
    assert_eq!(stores.io().new_input(LOCATION).unwrap().read().await.unwrap(), whole);
    let seen = store.seen.lock().unwrap();
    assert_eq!(seen.parts, [PART_BYTES, PART_BYTES, PART_BYTES, PART_BYTES, PART_BYTES, PART_BYTES, 3]);
    assert_eq!((seen.puts, seen.open), (0, 0));
    assert!(seen.most_at_once <= PARTS, "{}", seen.most_at_once);
}

#[tokio::test]
async fn a_write_that_fails_leaves_neither_a_file_nor_an_open_upload() {
    for fails in [Fails::Part(1), Fails::Part(3), Fails::Complete] {
        let (store, stores) = watched(Some(fails));
        let mut upload = Upload::new(stores.place(LOCATION).unwrap());
        let written = async {
            upload.write(bytes(3 * PART_BYTES)).await?;
            upload.finish().await
        };
        let error = written.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("flights/data/1.parquet"), "{error}");
        assert_eq!(store.seen.lock().unwrap().open, 0, "{fails:?}");
        assert!(!stores.io().exists(LOCATION).await.unwrap());
        // And it stays so.
        assert_eq!(upload.finish().await.unwrap_err().kind(), ErrorKind::Internal);
        assert!(!stores.io().exists(LOCATION).await.unwrap());
    }
}

#[tokio::test]
async fn what_is_dropped_is_withdrawn() {
    let (store, stores) = watched(None);
    let mut upload = Upload::new(stores.place(LOCATION).unwrap());
    upload.write(bytes(2 * PART_BYTES)).await.unwrap();
    assert_eq!(store.seen.lock().unwrap().open, 1);
    drop(upload);
    while store.seen.lock().unwrap().open > 0 {
        tokio::task::yield_now().await;
    }
    assert!(!stores.io().exists(LOCATION).await.unwrap());
}

#[tokio::test]
async fn a_write_that_was_not_waited_for_makes_no_file_with_a_hole() {
    let (_, stores) = watched(None);
    let mut upload = Upload::new(stores.place(LOCATION).unwrap());
    upload.write(bytes(PARTS * PART_BYTES)).await.unwrap();
    assert!(upload.write(bytes(PART_BYTES)).now_or_never().is_none());
    assert_eq!(upload.finish().await.unwrap_err().kind(), ErrorKind::Internal);
    assert!(!stores.io().exists(LOCATION).await.unwrap());
}

#[tokio::test]
async fn a_file_is_finished_once() {
    let (_, stores) = watched(None);
    let mut upload = Upload::new(stores.place(LOCATION).unwrap());
    upload.write("rows".into()).await.unwrap();
    upload.finish().await.unwrap();
    assert_eq!(upload.finish().await.unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(upload.write("more".into()).await.unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(stores.io().new_input(LOCATION).unwrap().read().await.unwrap(), "rows");
}
