//! Looking at staged sets before they are committed.

use arrow_schema::SchemaRef;
use async_trait::async_trait;

use super::reader::RowStream;
use super::writer::{Staged, StagedId};
use crate::domain::diff::{Diff, DiffSpec};
use crate::domain::ids::RunId;
use crate::domain::profile::{Profile, ProfileSpec};
use crate::domain::slice::Pin;
use crate::error::Result;

/// Reads, lists and compares staged sets of one table.
#[async_trait]
pub trait StagedReader: Send + Sync {
    /// The staged sets of a run that are intact, in the order of their ids.
    async fn list(&self, run: &RunId) -> Result<Vec<StagedId>>;

    /// A staged set by its id; `None` where it is not there or not intact.
    async fn open(&self, id: &StagedId) -> Result<Option<Staged>>;

    /// The table at a pin as it would be with the staged sets committed. Within their scopes the pin's content is not
    /// compared, since those rows come from the staged sets.
    async fn read_overlaid(&self, staged: &[Staged], pin: &Pin) -> Result<(SchemaRef, RowStream)>;

    /// One profile for each key of the staged set's scope, in order: production as it would be after the commit.
    async fn profile_after(&self, staged: &Staged, spec: &ProfileSpec) -> Result<Vec<Profile>>;

    /// One difference for each key of the staged set's scope, in order: from production now to what it would be.
    async fn diff(&self, staged: &Staged, spec: &DiffSpec) -> Result<Vec<Diff>>;
}
