//! A file on its way into a store.

use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayloadMut};
use reprocess_core::{Error, Result};
use tokio::task::JoinSet;

use super::Place;
use crate::error::Doing;

/// What is gathered before it is sent. Some stores want all parts but the last of one size, and at least 5 MB.
const PART_BYTES: usize = 8 << 20;
/// How many parts are on their way at once.
const PARTS: usize = 4;

/// Writes a file in parts. It is in the store, complete and durable, when [`finish`](Self::finish) has returned; nothing is
/// seen of it before, nor where it is given up or dropped.
pub(crate) struct Upload {
    store: Arc<dyn ObjectStore>,
    path: Path,
    gathered: PutPayloadMut,
    /// Once there was enough for a part.
    sent: Option<Sent>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Open,
    /// Something failed, or was not waited for to its end, so that bytes may be missing.
    Broken,
    Finished,
}

/// Parts that were sent.
struct Sent {
    upload: Box<dyn MultipartUpload>,
    under_way: JoinSet<object_store::Result<()>>,
}

impl Upload {
    pub(crate) fn new(place: Place) -> Self {
        let Place { store, path, .. } = place;
        Self { store, path, gathered: PutPayloadMut::new(), sent: None, state: State::Open }
    }

    /// Adds bytes. After an error all that was sent is withdrawn.
    pub(crate) async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.begin()?;
        let written = self.gather(bytes).await;
        self.end(written, State::Open).await
    }

    /// Sends what is left, and gives the file its name.
    pub(crate) async fn finish(&mut self) -> Result<()> {
        self.begin()?;
        let finished = self.send_rest().await;
        self.end(finished, State::Finished).await
    }

    /// Broken until the work is through, so that one that was dropped half-way is not taken for whole.
    fn begin(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.state, State::Broken) {
            State::Open => Ok(()),
            State::Broken => Err(Error::internal("a file of which a part was lost is written on")),
            State::Finished => {
                self.state = State::Finished;
                Err(Error::internal("a file that was finished is written on"))
            }
        }
    }

    async fn end(&mut self, done: object_store::Result<()>, state: State) -> Result<()> {
        match done {
            Ok(()) => self.state = state,
            Err(_) => self.give_up().await,
        }
        done.doing("write a file of the table").map_err(|e| e.with_context("file", &self.path))
    }

    async fn gather(&mut self, mut bytes: Bytes) -> object_store::Result<()> {
        while !bytes.is_empty() {
            let room = PART_BYTES - self.gathered.content_length();
            self.gathered.push(bytes.split_to(room.min(bytes.len())));
            if self.gathered.content_length() == PART_BYTES {
                self.send().await?;
            }
        }
        Ok(())
    }

    async fn send(&mut self) -> object_store::Result<()> {
        let part = std::mem::take(&mut self.gathered).freeze();
        let sent = match &mut self.sent {
            Some(sent) => sent,
            none => {
                let upload = self.store.put_multipart(&self.path).await?;
                none.insert(Sent { upload, under_way: JoinSet::new() })
            }
        };
        sent.at_most(PARTS - 1).await?;
        sent.under_way.spawn(sent.upload.put_part(part));
        Ok(())
    }

    async fn send_rest(&mut self) -> object_store::Result<()> {
        if self.sent.is_none() {
            let whole = std::mem::take(&mut self.gathered).freeze();
            return self.store.put(&self.path, whole).await.map(drop);
        }
        if self.gathered.content_length() > 0 {
            self.send().await?;
        }
        if let Some(sent) = &mut self.sent {
            sent.at_most(0).await?;
            sent.upload.complete().await?;
        }
        self.sent = None;
        Ok(())
    }

    /// Withdraws what was sent.
    async fn give_up(&mut self) {
        if let Some(sent) = self.sent.take() {
            sent.withdraw(&self.path).await;
        }
    }
}

impl Drop for Upload {
    /// In the background, as far as there is still a runtime: a store may keep parts of what nobody ended.
    fn drop(&mut self) {
        if let (Some(sent), Ok(runtime)) = (self.sent.take(), tokio::runtime::Handle::try_current()) {
            let path = self.path.clone();
            runtime.spawn(async move { sent.withdraw(&path).await });
        }
    }
}

impl Sent {
    /// Waits until no more parts than these are under way.
    async fn at_most(&mut self, parts: usize) -> object_store::Result<()> {
        while self.under_way.len() > parts {
            if let Some(part) = self.under_way.join_next().await {
                part??;
            }
        }
        Ok(())
    }

    async fn withdraw(mut self, path: &Path) {
        self.under_way.shutdown().await;
        if let Err(e) = self.upload.abort().await {
            tracing::warn!(file = %path, error = %e, "parts of a file that was given up are left in the store");
        }
    }
}

#[cfg(test)]
mod tests;
