//! Writing one table.

mod apply;
mod commit;
mod guard;
mod keep;
mod merge;
mod query;
mod stage;
mod stamps;

use arrow_schema::{Schema, SchemaRef};
use async_trait::async_trait;
use reprocess_core::domain::ids::TableId;
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::profile::{Profile, ProfileSpec, ScopeProfiler};
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::{Base, Kept, Slice};
use reprocess_core::ports::staged::StagedReader;
use reprocess_core::ports::writer::{
    Capabilities, CommitOutcome, CommitRequest, Found, PartitionWriter, Rows, StageRequest, Staged, StagedId,
    StampId,
};
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::sqlite::SqliteConnection;

pub(crate) use merge::{in_place_of, owned, takes_over};

use crate::catalog::Managed;
use crate::changes::{NOW, partition_version, table_version};
use crate::config::SqliteDatabase;
use crate::error::Doing;
use crate::layout::{Batches, Layout};
use crate::shadow;
use crate::sql::Sql;

/// A table that is written through reprocess. It keeps one version of its rows; the log of changes knows which
/// partition changed when, also where others wrote to it. A commit makes the table where it does not exist.
///
/// How Arrow columns are stored, which matters to SQL over them:
///
/// | Arrow | SQLite |
/// |---|---|
/// | boolean | 0 or 1 |
/// | integers | integers; unsigned ones up to 2^63 - 1 |
/// | float 32, 64 | floats; NaN as the text `NaN`, which sorts last; the sign of a zero is not kept |
/// | text, binary | texts, blobs |
/// | date 32 | texts like `2026-10-01`, which sort by date; years 0 to 9999 |
/// | timestamp | integers of microseconds since 1970 in UTC, of nanoseconds where that is the unit |
/// | decimal 128, 256 | texts of the exact digits, as many behind the point as the column has |
///
/// Columns of other types are refused by name. In a query, a parameter that is an instant is an integer of microseconds.
#[derive(Clone, Debug)]
pub struct SqliteTable {
    database: SqliteDatabase,
    spec: TableSpec,
}

impl SqliteTable {
    /// The table of this id and partitioning. It need not exist yet.
    pub fn new(database: SqliteDatabase, spec: TableSpec) -> Self {
        Self { database, spec }
    }

    /// The file.
    pub fn database(&self) -> &SqliteDatabase {
        &self.database
    }

    /// Id and partitioning.
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    fn in_table(&self, error: Error) -> Error {
        error.with_context("table", &self.spec.id)
    }

    /// Profiles of the rows of a scope in `from`, which has the columns of the layout.
    pub(crate) async fn profiles(
        &self,
        connection: &mut SqliteConnection,
        from: Sql,
        layout: &Layout,
        scope: &Scope,
        spec: &ProfileSpec,
    ) -> Result<Vec<Profile>> {
        let mut profiler = ScopeProfiler::new(&self.spec.partitioning, scope, layout.schema(), spec)?;
        let rows = crate::predicate::Rows { layout, partitioning: &self.spec.partitioning };
        let select = rows.select(from, &slice_of(scope))?;
        let batch_rows = self.database.config().batch_rows;
        let mut batches =
            Batches::new(select.stream(connection)?, layout.clone(), ErrorKind::Corrupt, batch_rows);
        while let Some(batch) = batches.next().await? {
            profiler.push(&batch)?;
        }
        Ok(profiler.finish())
    }
}

/// The slice that holds the rows of a scope.
pub(crate) fn slice_of(scope: &Scope) -> Slice {
    if scope.is_whole_table() {
        Slice::All
    } else {
        Slice::Partitions(scope.partitions().into_iter().collect())
    }
}

/// Versions of keys, in the transaction of the connection.
async fn base_of(
    connection: &mut SqliteConnection,
    table: Option<&Managed>,
    keys: &[PartitionKey],
) -> Result<Base> {
    let (seq, versions) = match table {
        Some(table) => {
            let changes = table.changes();
            (changes.seq(connection).await?, changes.versions(connection, keys, NOW).await?)
        }
        None => (0, vec![0; keys.len()]),
    };
    let versions = versions.into_iter().map(partition_version);
    Ok(Base::new(table_version(seq), keys.iter().cloned().zip(versions).collect()))
}

#[async_trait]
impl PartitionWriter for SqliteTable {
    fn table(&self) -> &TableId {
        &self.spec.id
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    async fn schema(&self) -> Result<Option<SchemaRef>> {
        let mut tx = self.database.begin_read().await?;
        let table = Managed::load(&mut tx, &self.spec).await.map_err(|e| self.in_table(e))?;
        Ok(table.map(|table| SchemaRef::clone(table.layout.schema())))
    }

    async fn create(&self, schema: &SchemaRef) -> Result<()> {
        let mut tx = self.database.begin_write().await?;
        match Managed::load(&mut tx, &self.spec).await? {
            Some(table) if table.layout.has_columns_of(schema) => Ok(()),
            Some(_) => Err(self
                .in_table(Error::invalid("the table exists with other columns").with_advice(
                    "commit rows with a schema policy that adds columns or rebuilds the table",
                ))),
            None => {
                Managed::create(&mut tx, &self.spec, schema).await.map_err(|e| self.in_table(e))?;
                tx.commit().await.doing("create the table")
            }
        }
    }

    async fn head(&self, scope: &Scope) -> Result<Base> {
        let mut tx = self.database.begin_read().await?;
        let table = Managed::load(&mut tx, &self.spec).await?;
        base_of(&mut tx, table.as_ref(), &scope.partitions()).await.map_err(|e| self.in_table(e))
    }

    async fn profile(&self, scope: &Scope, spec: &ProfileSpec) -> Result<(Base, Vec<Profile>)> {
        let mut tx = self.database.begin_read().await?;
        let table = Managed::load(&mut tx, &self.spec).await?;
        let base = base_of(&mut tx, table.as_ref(), &scope.partitions()).await?;
        let profiles = match table {
            Some(table) => self.profiles(&mut tx, table.from(), &table.layout, scope, spec).await,
            // Without a table there are no columns for the spec to name.
            None => ScopeProfiler::new(&self.spec.partitioning, scope, &Schema::empty(), &ProfileSpec::new())
                .map(ScopeProfiler::finish),
        };
        Ok((base, profiles.map_err(|e| self.in_table(e))?))
    }

    async fn stage(&self, request: &StageRequest, rows: Rows) -> Result<Staged> {
        stage::stage(self, request, rows).await.map_err(|e| self.in_table(e))
    }

    /// Nothing to do: rows are merged at the commit.
    async fn rebase(&self, staged: &Staged, _onto: &Base) -> Result<Staged> {
        Ok(staged.clone())
    }

    async fn discard(&self, id: &StagedId) -> Result<()> {
        let mut tx = self.database.begin_read().await?;
        if stamps::committed_attempt(&mut tx, &self.spec, &id.stamp).await? == Some(id.attempt) {
            return Err(self.in_table(
                Error::new(ErrorKind::State, "the staged set is committed").with_context("staged", id),
            ));
        }
        drop(tx);
        shadow::discard(&self.database, &self.spec.id, id).await
    }

    async fn commit(&self, request: CommitRequest<'_>) -> Result<CommitOutcome> {
        commit::commit(self, request).await.map_err(|e| self.in_table(e))
    }

    async fn find_commit(&self, stamp: &StampId, _scope: &Scope, _since: &Base) -> Result<Found> {
        let mut tx = self.database.begin_read().await?;
        let found = stamps::find(&mut tx, &self.spec, std::slice::from_ref(stamp)).await?;
        Ok(match found.into_iter().next().flatten() {
            Some(done) => Found::Yes(done.commit),
            None => Found::No,
        })
    }

    async fn forget(&self, kept: &Kept) -> Result<()> {
        keep::forget(self, kept).await.map_err(|e| self.in_table(e))
    }

    fn staged(&self) -> Option<&dyn StagedReader> {
        Some(self)
    }
}
