//! Staged sets: where they are kept, and how production would look with them.

mod overlay;
mod set;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_trait::async_trait;
use reprocess_core::domain::diff::{self, Diff, DiffSpec};
use reprocess_core::domain::ids::RunId;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::profile::{Profile, ProfileSpec};
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Pin;
use reprocess_core::ports::reader::RowStream;
use reprocess_core::ports::staged::StagedReader;
use reprocess_core::ports::writer::{Staged, StagedId};
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::PgConnection;

use set::find;
pub(crate) use set::{Staging, discard, strike_committed, sweep, take};

use crate::changes::Moment;
use crate::layout::{self, Layout};
use crate::predicate::Rows;
use crate::reader::{broken, check_table, stream, unknown_version};
use crate::sql::Sql;
use crate::writer::{PostgresTable, slice_of};

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
        let mut tx = self.database().begin_read().await?;
        let (select, layout) = self.overlaid(&mut tx, staged, pin).await?;
        Ok(stream(tx, select, layout, ErrorKind::Corrupt, self.database().config().batch_rows))
    }

    async fn profile_after(&self, staged: &Staged, spec: &ProfileSpec) -> Result<Vec<Profile>> {
        let mut tx = self.database().begin_read().await?;
        let table = self.managed(&mut tx).await?;
        let overlay = overlay::of(self, &mut tx, table.as_ref(), std::slice::from_ref(staged)).await?;
        self.profiles(&mut tx, overlay.from, &overlay.layout, &staged.scope, spec).await
    }

    /// Holds the rows of one key at a time in memory.
    async fn diff(&self, staged: &Staged, spec: &DiffSpec) -> Result<Vec<Diff>> {
        let mut tx = self.database().begin_read().await?;
        let table = self.managed(&mut tx).await?;
        let overlay = overlay::of(self, &mut tx, table.as_ref(), std::slice::from_ref(staged)).await?;
        let mut diffs = Vec::new();
        for key in staged.scope.partitions() {
            let before = match &table {
                Some(table) => self.rows_of(&mut tx, table.from(), &table.layout, &key).await?,
                None => Vec::new(),
            };
            let after = self.rows_of(&mut tx, overlay.from.clone(), &overlay.layout, &key).await?;
            diffs.push(diff::diff(key, &before, &after, spec)?);
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
        staged: &[Staged],
        pin: &Pin,
    ) -> Result<(Sql, Layout)> {
        check_table(pin, &self.spec().id)?;
        if staged.is_empty() {
            return self.pinned(connection, pin).await;
        }
        let after =
            Moment::of(&pin.version).ok_or_else(|| unknown_version(&pin.version, self.spec().id.as_str()))?;
        let table = self.managed(connection).await?;
        if let Some(table) = &table {
            for key in table.changes().since(connection, &after).await? {
                let replaced = staged.iter().any(|staged| staged.scope.covers(&key));
                if !replaced && pin.slice.may_hold(&self.spec().partitioning, &key) {
                    return Err(broken(pin, &format!("partition {key} has changed since")));
                }
            }
        }
        let overlay = overlay::of(self, connection, table.as_ref(), staged).await?;
        let rows = Rows { layout: &overlay.layout, partitioning: &self.spec().partitioning };
        Ok((rows.select(overlay.from, &pin.slice)?, overlay.layout))
    }

    async fn rows_of(
        &self,
        connection: &mut PgConnection,
        from: Sql,
        layout: &Layout,
        key: &PartitionKey,
    ) -> Result<Vec<RecordBatch>> {
        let scope = if key.is_whole() { Scope::whole_table() } else { Scope::key(key.clone())? };
        let rows = Rows { layout, partitioning: &self.spec().partitioning };
        let select = rows.select(from, &slice_of(&scope))?;
        let batch_rows = self.database().config().batch_rows;
        let mut batches = layout::read(connection, select, layout, ErrorKind::Corrupt, batch_rows).await?;
        let mut all = Vec::new();
        while let Some(batch) = batches.next().await? {
            all.push(batch);
        }
        Ok(all)
    }
}

/// The staged set is not there any more, or another took its place.
pub(crate) fn gone(id: &StagedId) -> Error {
    Error::not_found("the staged rows are gone, or others were staged in their place")
        .with_context("staged", id)
        .with_advice("stage them again")
}
