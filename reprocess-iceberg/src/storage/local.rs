//! Files of this machine.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path as OsPath, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

/// As [`LocalFileSystem`], which reads and lists for it, but what was written is on the disk, under its name and complete,
/// when it is said to be, and does not get lost or torn when the machine stops. Files come under a name for the time
/// being first, the one that [`LocalFileSystem`] leaves out of its lists.
#[derive(Debug)]
pub(super) struct LocalFiles(LocalFileSystem);

impl LocalFiles {
    pub(super) fn new() -> Self {
        Self(LocalFileSystem::new())
    }
}

impl fmt::Display for LocalFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for LocalFiles {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let path = self.0.path_to_filesystem(path)?;
        let create = match options.mode {
            PutMode::Overwrite => false,
            PutMode::Create => true,
            PutMode::Update(_) => return Err(unsupported("a put with a condition")),
        };
        blocking(move || {
            let mut draft = Draft::begin(&path)?;
            payload.iter().try_for_each(|bytes| draft.file.write_all(bytes)).map_err(|e| failed(e, &path))?;
            draft.finish(create)?;
            Ok(PutResult { e_tag: None, version: None })
        })
        .await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let path = self.0.path_to_filesystem(path)?;
        let draft = blocking(move || Draft::begin(&path)).await?;
        Ok(Box::new(Parts { draft: Arc::new(Mutex::new(Some(draft))), written: 0 }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.get_opts(path, options).await
    }

    async fn get_ranges(&self, path: &Path, ranges: &[std::ops::Range<u64>]) -> Result<Vec<Bytes>> {
        self.0.get_ranges(path, ranges).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(paths)
    }

    fn list(&self, under: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(under)
    }

    fn list_with_offset(&self, under: Option<&Path>, after: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list_with_offset(under, after)
    }

    async fn list_with_delimiter(&self, under: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(under).await
    }

    /// A second name for the same bytes where the file system has such, since nobody changes a file of a table.
    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (from, to) = (self.0.path_to_filesystem(from)?, self.0.path_to_filesystem(to)?);
        let create = options.mode == CopyMode::Create;
        blocking(move || {
            if link(&from, &to, create)? {
                let linked = File::open(&to).and_then(|file| file.sync_data());
                return linked.and_then(|()| sync_folder(parent(&to))).map_err(|e| failed(e, &to));
            }
            let mut source = File::open(&from).map_err(|e| failed(e, &from))?;
            let mut draft = Draft::begin(&to)?;
            io::copy(&mut source, &mut draft.file).map_err(|e| failed(e, &to))?;
            draft.finish(create)
        })
        .await
    }
}

/// Whether a file has a second name now. Not where the file system cannot do that, or something has the name that may be
/// replaced.
fn link(from: &OsPath, to: &OsPath, create: bool) -> Result<bool> {
    let mut linked = fs::hard_link(from, to);
    if matches!(&linked, Err(e) if e.kind() == ErrorKind::NotFound) && from.exists() {
        make_folder(parent(to)).map_err(|e| failed(e, to))?;
        linked = fs::hard_link(from, to);
    }
    match linked {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => Err(failed(e, from)),
        Err(e) if e.kind() == ErrorKind::AlreadyExists && create => Err(failed(e, to)),
        Err(_) => Ok(false),
    }
}

/// A file under its name for the time being, which goes with it unless it is finished.
#[derive(Debug)]
struct Draft {
    file: File,
    at: PathBuf,
    to: PathBuf,
    finished: bool,
}

impl Draft {
    /// Folders that are not there are made.
    fn begin(to: &OsPath) -> Result<Self> {
        let mut number = 1_u32;
        loop {
            let mut at = to.as_os_str().to_owned();
            at.push(format!("#{number}"));
            let at = PathBuf::from(at);
            match OpenOptions::new().write(true).create_new(true).open(&at) {
                Ok(file) => return Ok(Self { file, at, to: to.to_owned(), finished: false }),
                // Of another writer, or of one that did not get to its end.
                Err(e) if e.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    make_folder(parent(to)).map_err(|e| failed(e, to))?;
                }
                Err(e) => return Err(failed(e, to)),
            }
        }
    }

    /// Gives it its name; the bytes are on the disk before, and the name before this returns.
    fn finish(mut self, create: bool) -> Result<()> {
        self.file.sync_data().map_err(|e| failed(e, &self.to))?;
        if create {
            fs::hard_link(&self.at, &self.to).map_err(|e| failed(e, &self.to))?;
        } else {
            fs::rename(&self.at, &self.to).map_err(|e| failed(e, &self.to))?;
            self.finished = true;
        }
        sync_folder(parent(&self.to)).map_err(|e| failed(e, &self.to))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.finished {
            // What stays behind is in nobody's way.
            let _ = fs::remove_file(&self.at);
        }
    }
}

/// A file that is written in parts.
#[derive(Debug)]
struct Parts {
    draft: Arc<Mutex<Option<Draft>>>,
    written: u64,
}

#[async_trait]
impl MultipartUpload for Parts {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        let (draft, start) = (Arc::clone(&self.draft), self.written);
        self.written += payload.content_length() as u64;
        blocking(move || {
            let mut draft = draft.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(draft) = &mut *draft else { return Err(ended()) };
            let written = draft.file.seek(SeekFrom::Start(start));
            let written =
                written.and_then(|_| payload.iter().try_for_each(|bytes| draft.file.write_all(bytes)));
            written.map_err(|e| failed(e, &draft.to))
        })
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let draft = self.take();
        blocking(move || draft.ok_or_else(ended)?.finish(false)).await?;
        Ok(PutResult { e_tag: None, version: None })
    }

    async fn abort(&mut self) -> Result<()> {
        drop(self.take());
        Ok(())
    }
}

impl Parts {
    fn take(&self) -> Option<Draft> {
        self.draft.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Makes a folder and those above it that are not there, each on the disk in the one above it.
fn make_folder(folder: &OsPath) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(e) if e.kind() == ErrorKind::NotFound && folder.parent().is_some() => {
            make_folder(parent(folder))?;
            make_folder(folder)
        }
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
        Ok(()) => sync_folder(parent(folder)),
    }
}

/// Puts the names in a folder on the disk.
#[cfg(unix)]
fn sync_folder(folder: &OsPath) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Other systems cannot open folders, and keep their names safe themselves.
#[cfg(not(unix))]
fn sync_folder(_: &OsPath) -> io::Result<()> {
    Ok(())
}

fn parent(path: &OsPath) -> &OsPath {
    path.parent().unwrap_or(path)
}

/// Work that waits for a disk, beside the tasks of the runtime where there is one.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => runtime.spawn_blocking(work).await?,
        Err(_) => work(),
    }
}

fn failed(source: io::Error, path: &OsPath) -> Error {
    let path = path.to_string_lossy().into_owned();
    match source.kind() {
        ErrorKind::NotFound => Error::NotFound { path, source: source.into() },
        ErrorKind::AlreadyExists => Error::AlreadyExists { path, source: source.into() },
        kind => {
            let source = Box::new(io::Error::new(kind, format!("{path}: {source}")));
            Error::Generic { store: "local files", source }
        }
    }
}

fn ended() -> Error {
    Error::Generic { store: "local files", source: "the file was finished or given up".into() }
}

fn unsupported(what: &str) -> Error {
    Error::NotSupported { source: format!("{what} on local files").into() }
}

#[cfg(test)]
mod tests;
