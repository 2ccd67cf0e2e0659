//! Staged sets: where they are kept, and how production would look with them.

mod difference;
mod overlay;
mod set;
mod waiting;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use reprocess_core::domain::diff::{Diff, DiffSpec};
use reprocess_core::domain::ids::RunId;
use reprocess_core::domain::profile::{Profile, ProfileSpec};
use reprocess_core::domain::slice::Pin;
use reprocess_core::ports::reader::RowStream;
use reprocess_core::ports::staged::StagedReader;
use reprocess_core::ports::writer::{Staged, StagedId};
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::PgConnection;

pub(crate) use set::{Found, Staging, discard, find, rows_name, strike_committed, sweep, take};
pub(crate) use waiting::{BOUNDS, index_name};

use crate::catalog::Managed;
use crate::changes::Moment;
use crate::layout::Layout;
use crate::predicate::Rows;
use crate::reader::{broken, check_table, stream, unknown_version};
use crate::sql::Sql;
use crate::writer::PostgresTable;

#[async_trait]
impl StagedReader for PostgresTable {
    async fn list(&self, run: &RunId) -> Result<Vec<StagedId>> {
        let mut tx = self.database().begin_read().await?;
        set::list(&mut tx, self, run).await
    }

    async fn open(&self, id: &StagedId) -> Result<Option<Staged>> {
        let mut tx = self.database().begin_read().await?;
        Ok(find(&mut tx, self, id).await?.map(|found| found.staged))
    }

    async fn read_overlaid(&self, staged: &[Staged], pin: &Pin) -> Result<(SchemaRef, RowStream)> {
        let (mut tx, table) = self.look().await?;
        let (select, layout) = self.overlaid(&mut tx, table.as_ref(), staged, pin).await?;
        Ok(stream(tx, select, layout, ErrorKind::Corrupt, self.database().config().batch_rows))
    }

    async fn profile_after(&self, staged: &Staged, spec: &ProfileSpec) -> Result<Vec<Profile>> {
        let (mut tx, table) = self.look().await?;
        let overlay = overlay::of(self, &mut tx, table.as_ref(), std::slice::from_ref(staged)).await?;
        self.profiles(&mut tx, overlay.from, &overlay.layout, &staged.scope, spec).await
    }

    /// Holds in memory the rows of one key that differ.
    async fn diff(&self, staged: &Staged, spec: &DiffSpec) -> Result<Vec<Diff>> {
        let (mut tx, table) = self.look().await?;
        let overlay = overlay::of(self, &mut tx, table.as_ref(), std::slice::from_ref(staged)).await?;
        let mut diffs = Vec::new();
        for key in staged.scope.partitions() {
            diffs.push(difference::of(self, &mut tx, table.as_ref(), &overlay, key, spec).await?);
        }
        Ok(diffs)
    }
}

impl PostgresTable {
    /// The statement that selects the rows of a pin as they would be with staged sets committed, and its columns.
    /// Outside of the scopes of the sets nothing may have changed since the pin was taken.
    pub(crate) async fn overlaid(
        &self,
        connection: &mut PgConnection,
        table: Option<&Managed>,
        staged: &[Staged],
        pin: &Pin,
    ) -> Result<(Sql, Layout)> {
        check_table(pin, &self.spec().id)?;
        if staged.is_empty() {
            return self.pinned(connection, table, pin).await;
        }
        let after =
            Moment::of(&pin.version).ok_or_else(|| unknown_version(&pin.version, self.spec().id.as_str()))?;
        if let Some(table) = table {
            for key in table.changes().since(connection, &after).await? {
                let replaced = staged.iter().any(|staged| staged.scope.covers(&key));
                if !replaced && pin.slice.may_hold(&self.spec().partitioning, &key) {
                    return Err(broken(pin, &format!("partition {key} has changed since")));
                }
            }
        }
        let overlay = overlay::of(self, connection, table, staged).await?;
        let rows = Rows { layout: &overlay.layout, partitioning: &self.spec().partitioning };
        Ok((rows.select(overlay.from, &pin.slice)?, overlay.layout))
    }
}

/// The staged set is not there any more, or another took its place.
pub(crate) fn gone(id: &StagedId) -> Error {
    Error::not_found("the staged rows are gone, or others were staged in their place")
        .with_context("staged", id)
        .with_advice("stage them again")
}
