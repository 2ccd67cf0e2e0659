//! Pinned inputs: what a task reads, at a version that was written down before.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::domain::ids::{PartitionVersion, TableId, TableVersion};
use crate::domain::interval::Interval;
use crate::domain::slice::{Pin, Slice};
use crate::error::{Error, ErrorKind, Result};
use crate::ports::writer::{PartitionWriter, Staged};

/// Rows on their way; owns what it reads from, so it outlives the call that made it.
pub type RowStream = BoxStream<'static, Result<RecordBatch>>;

/// Whether a version of a table can be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// It can be read.
    Readable {
        /// Until when, as far as the storage system says; `None` where nothing ends it.
        until: Option<DateTime<Utc>>,
    },
    /// It is gone.
    Expired,
}

/// Reads a table at pinned versions.
///
/// Contract, each line a law of the conformance suite:
/// - what [`read`](Self::read) gives for a pin is the same rows every time, in any order, or
///   [`PinBroken`](crate::ErrorKind::PinBroken), never other rows;
/// - [`slice_versions`](Self::slice_versions) answers one version for each slice, in order, and another version
///   whenever the content of the slice is another;
/// - a slice that holds no rows is read as an empty stream with a schema; a table that does not exist is read as one
///   without rows and columns.
#[async_trait]
pub trait SnapshotReader: Any + Send + Sync + fmt::Debug {
    /// The table.
    fn table(&self) -> &TableId;

    /// The version that a pin taken now would have.
    async fn current(&self) -> Result<TableVersion>;

    /// Whether a version can be read, and until when.
    async fn availability(&self, version: &TableVersion) -> Result<Availability>;

    /// Versions of the content of slices at a version of the table.
    async fn slice_versions(&self, version: &TableVersion, slices: &[Slice])
    -> Result<Vec<PartitionVersion>>;

    /// Makes pins readable until they are released, where the storage system can: by a copy of the slice, a tag, a hold.
    /// Refuses, with `PinBroken`, a pin whose content is no longer what it names. Idempotent.
    async fn hold(&self, pins: &[Pin]) -> Result<()>;

    /// Ends the hold of pins. Idempotent.
    async fn release(&self, pins: &[Pin]) -> Result<()>;

    /// The rows of a pin.
    async fn read(&self, pin: &Pin) -> Result<(SchemaRef, RowStream)>;
}

/// A source of events that can say which span of time it holds.
#[async_trait]
pub trait Coverage: SnapshotReader {
    /// Of which time it holds all, at a version; `None` where of none. Of a log it is the time at which it took the events, up
    /// to which it has come; of an archive the time at which the events happened.
    async fn coverage(&self, version: &TableVersion) -> Result<Option<Interval>>;
}

/// A pin, and who can read it.
#[derive(Clone, Debug)]
pub struct PinnedInput {
    /// What to read.
    pub pin: Pin,
    /// Who reads it. A backend that runs SQL recognises its own readers through [`Any`].
    pub reader: Arc<dyn SnapshotReader>,
    /// Staged sets of the same table that are read in place of production within their scopes; mostly empty.
    pub staged: Vec<Staged>,
    /// The table's writer, where there are staged sets.
    pub writer: Option<Arc<dyn PartitionWriter>>,
}

impl PinnedInput {
    /// Production at the pin, with the staged sets in place.
    pub async fn read(&self) -> Result<(SchemaRef, RowStream)> {
        let Some(writer) = self.writer.as_ref().filter(|_| !self.staged.is_empty()) else {
            return self.reader.read(&self.pin).await;
        };
        let staged = writer.staged().ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "the backend does not read staged sets")
                .with_context("table", &self.pin.table)
        })?;
        staged.read_overlaid(&self.staged, &self.pin).await
    }
}
