//! Writing one table.

mod apply;
mod commit;
mod difference;
mod forget;
mod guard;
mod keep;
mod ledger;
mod lock;
mod look;
mod merge;
mod query;
mod stage;
mod stamps;
mod swap;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

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
use sqlx::PgConnection;

pub(crate) use apply::equal;
pub(crate) use merge::{in_place_of, owned, takes_over};
pub(crate) use stamps::digest as stamp_digest;

use crate::catalog::{COMPONENT, Managed, STEPS, TableName};
use crate::changes::{Moment, Versions};
use crate::config::PostgresDatabase;
use crate::layout::{self, Layout};
use crate::shadow;
use crate::sql::Sql;

/// A table that is written through reprocess. It keeps one version of its rows; the log of changes knows which
/// partition changed when, also where others wrote to it. A commit makes the table where it does not exist.
///
/// An id like `finance.sales` says the schema; `sales` alone is in the schema `public`, or in [another](Self::with_schema).
///
/// How Arrow columns are stored:
///
/// | Arrow | PostgreSQL |
/// |---|---|
/// | boolean | `boolean` |
/// | int 8 and 16, uint 8; int 32, uint 16; int 64, uint 32; uint 64 | `smallint`; `integer`; `bigint`; `numeric(20,0)` |
/// | float 32, 64 | `real`, `double precision`, to the last bit |
/// | text, binary | `text` without the character NUL, `bytea` |
/// | date 32 | `date` |
/// | timestamp with and without a zone | `timestamp with` and `without time zone`; whole microseconds, whatever the unit |
/// | decimal 128, 256 | `numeric(precision,scale)` |
///
/// Columns of other types are refused by name, and so are values that the column does not hold. In a table that was
/// [adopted](Self::adopt) columns may have any type; read the other way round, and further:
///
/// | PostgreSQL | Arrow |
/// |---|---|
/// | `varchar(n)` | text of at most n characters |
/// | `char(n)` | text without the spaces at its end, which are padding |
/// | `uuid` | fixed size binary of 16 bytes |
/// | `jsonb` | text, in the form in which PostgreSQL stores it |
/// | `json`, enums | text |
/// | domains | as the type below them; what they check is checked at staging |
/// | `numeric` without a precision, arrays, intervals, times, ranges and all others | text, exactly as PostgreSQL writes it |
/// | `money` | refused |
/// | columns that are computed from others | left out |
///
/// What a table promises, and what it cannot:
///
/// | promise | how, and its limit |
/// |---|---|
/// | a commit is atomic, and readers of every level see all of it or nothing | rows are deleted, changed and inserted, in one transaction; the table is never truncated. Partitions are swapped where [`with_swap`](Self::with_swap) asks for it, which says what readers see then |
/// | a partition that moved since the base conflicts | a log of changes per key, looked at before and after the rows are written. What others insert and commit between the last look and the end of the commit stays beside it, and moves the version; [`with_locked_table`](Self::with_locked_table) excludes it |
/// | writes of others are noticed | by triggers, for every statement; not where someone disables or drops them, or alters the table: then a commit answers that the columns changed |
/// | partitions that others attach, detach, make or drop are noticed | at the next look at the table, by keys where their bounds say them; a reader of ours that is under way may see rows of one that is attached meanwhile. The role must own the table to take a new one on |
/// | commits to different partitions run beside each other | until the last moment; those that may overlap wait for each other |
/// | nothing beside the scope is touched | foreign keys that would take rows elsewhere along are refused; what triggers of the user do is theirs |
/// | staged rows survive the process | not a crash of the server, which is noticed: they are staged again |
/// | rollback | of what was kept at the commit: all rows of a replaced partition, the changed rows of a merge |
///
/// Infinite dates and instants, and NaN in a decimal column, have no place in Arrow: reading them is an error that names
/// the column.
#[derive(Clone, Debug)]
pub struct PostgresTable {
    database: PostgresDatabase,
    spec: TableSpec,
    name: TableName,
    locks_table: bool,
    kept_for: Option<Duration>,
    swaps: bool,
    /// Whether it was found to be partitioned.
    partitioned: Arc<AtomicBool>,
}

impl PostgresTable {
    /// The table of this id and partitioning. It need not exist yet; our own tables are made where they are absent.
    pub async fn open(database: PostgresDatabase, spec: TableSpec) -> Result<Self> {
        let name = TableName::of(&spec.id, "public")?;
        database.migrate(COMPONENT, STEPS).await?;
        Ok(Self {
            database,
            spec,
            name,
            locks_table: false,
            kept_for: None,
            swaps: false,
            partitioned: Arc::default(),
        })
    }

    /// Sets the schema of the table, where its id says none; without it that is `public`.
    pub fn with_schema(mut self, schema: &str) -> Result<Self> {
        self.name = TableName::of(&self.spec.id, schema)?;
        self.partitioned = Arc::default();
        Ok(self)
    }

    /// Makes each commit wait for the transactions of others that write the table, and others for each commit. Without it
    /// they write beside a commit, which then conflicts if it sees what they wrote.
    #[must_use]
    pub fn with_locked_table(mut self) -> Self {
        self.locks_table = true;
        self
    }

    /// Frees replaced rows that were kept for longer, as later commits come: what they replaced cannot be restored any
    /// more. Without it they are kept until they are forgotten, as `close --forget` does.
    #[must_use]
    pub fn with_kept_for(mut self, kept_for: Duration) -> Self {
        self.kept_for = Some(kept_for);
        self
    }

    /// Replaces a partition of a table that others have partitioned by a table that takes its place, where it holds all
    /// rows of the replaced key and no others: the child of that day or month, or of that one value. The rows are staged
    /// into a table that has its indexes already, so that the commit writes none. Where a swap is not possible the
    /// rows are deleted and inserted as they are without this, and an event of tracing says why.
    ///
    /// What a swap costs: a transaction of REPEATABLE READ or SERIALIZABLE that began before the commit and looks at the
    /// partition after it sees the new rows, where without a swap it would see the old ones. It never sees none: the
    /// commit waits until those have ended that began before the rows were staged. For that it has to see
    /// transactions of others, as members of `pg_read_all_stats` do. For a moment the commit keeps everyone from the table, and from
    /// those that its foreign keys refer to, and so waits behind readers of any partition, 200 ms at a time, and others behind it; when
    /// [`swap_timeout_ms`](crate::PostgresConfig::swap_timeout_ms) has passed it deletes and inserts instead. Staged
    /// rows are logged and indexed, which takes longer than staging without it, and a staged set that is not committed
    /// was so for nothing.
    ///
    /// Each of several partitions in one commit is swapped where it was staged by itself; a set of rows for several keys is
    /// inserted. Whether a swap is possible is looked at for each partition as its rows are staged and again as they
    /// are committed, since it may change in between, and so not refused here. It is not where the partition or the
    /// table has triggers or is published, since a swap fires and publishes nothing; where foreign keys refer to it; where
    /// the partition has what would not come along, as grants, policies, rules, storage parameters, statistics, comments,
    /// another owner, and views of it alone; where a default partition is larger than 8 MB, which would be read while
    /// everyone waits; and where a column has a type that is staged as text. Its name, indexes, constraints and foreign keys
    /// are as before, and so is everything that belongs to the table itself.
    #[must_use]
    pub fn with_swap(mut self) -> Self {
        self.swaps = true;
        self
    }

    /// The database.
    pub fn database(&self) -> &PostgresDatabase {
        &self.database
    }

    /// Id and partitioning.
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// Takes on a table that others made, and gives it the triggers that notice what others write. Again after they
    /// changed its columns, or after the database was restored from a dump: every version that was known of it is then
    /// another. A partitioned table is taken on with its partitions, also those that others attach or detach later; one
    /// partition alone is refused, and so are tables with heirs.
    pub async fn adopt(&self) -> Result<()> {
        let mut tx = self.database.begin().await?;
        lock::whole_table(&mut tx, self).await?;
        let adopted = Managed::adopt(&mut tx, self.database.schema(), &self.spec, &self.name).await;
        adopted.map_err(|e| self.in_table(e))?;
        tx.commit().await
    }

    pub(crate) fn locks_table(&self) -> bool {
        self.locks_table
    }

    fn kept_for(&self) -> Option<Duration> {
        self.kept_for
    }

    pub(crate) async fn managed(&self, connection: &mut PgConnection) -> Result<Option<Managed>> {
        let table = Managed::load(connection, self.database.schema(), &self.spec, &self.name).await;
        table.map_err(|e| self.in_table(e))
    }

    pub(crate) fn name(&self) -> &TableName {
        &self.name
    }

    fn in_table(&self, error: Error) -> Error {
        error.with_context("table", &self.spec.id)
    }

    /// Profiles of the rows of a scope in `from`, which has the columns of the layout.
    pub(crate) async fn profiles(
        &self,
        connection: &mut PgConnection,
        from: Sql,
        layout: &Layout,
        scope: &Scope,
        spec: &ProfileSpec,
    ) -> Result<Vec<Profile>> {
        let mut profiler = ScopeProfiler::new(&self.spec.partitioning, scope, layout.schema(), spec)?;
        let rows = crate::predicate::Rows { layout, partitioning: &self.spec.partitioning };
        let select = rows.select(from, &slice_of(scope))?;
        let batch_rows = self.database.config().batch_rows;
        let mut batches = layout::read(connection, select, layout, ErrorKind::Corrupt, batch_rows).await?;
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
async fn versions_of(
    connection: &mut PgConnection,
    table: Option<&Managed>,
    keys: &[PartitionKey],
) -> Result<Versions> {
    match table {
        Some(table) => table.changes().now(connection, keys).await,
        None => Ok(Versions { keys: vec![Default::default(); keys.len()], moment: Moment::first() }),
    }
}

fn base_of(keys: &[PartitionKey], versions: &Versions) -> Base {
    let versions_of_keys = versions.keys.iter().map(|version| version.partition());
    Base::new(versions.moment.table(), keys.iter().cloned().zip(versions_of_keys).collect())
}

#[async_trait]
impl PartitionWriter for PostgresTable {
    fn table(&self) -> &TableId {
        &self.spec.id
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    async fn schema(&self) -> Result<Option<SchemaRef>> {
        let (tx, table) = self.look().await?;
        tx.rollback().await?;
        Ok(table.map(|table| SchemaRef::clone(table.layout.schema())))
    }

    async fn create(&self, schema: &SchemaRef) -> Result<()> {
        let mut tx = self.database.begin().await?;
        lock::whole_table(&mut tx, self).await?;
        match self.managed(&mut tx).await? {
            Some(table) if table.layout.has_columns_of(schema) => tx.rollback().await,
            Some(_) => Err(self
                .in_table(Error::invalid("the table exists with other columns").with_advice(
                    "commit rows with a schema policy that adds columns or rebuilds the table",
                ))),
            None => {
                let created =
                    Managed::create(&mut tx, self.database.schema(), &self.spec, &self.name, schema).await;
                created.map_err(|e| self.in_table(e))?;
                tx.commit().await
            }
        }
    }

    async fn head(&self, scope: &Scope) -> Result<Base> {
        let keys = scope.partitions();
        for key in &keys {
            self.spec.partitioning.check_key(key).map_err(|e| self.in_table(e))?;
        }
        let (mut tx, table) = self.look().await?;
        let versions = versions_of(&mut tx, table.as_ref(), &keys).await.map_err(|e| self.in_table(e))?;
        tx.rollback().await?;
        Ok(base_of(&keys, &versions))
    }

    async fn profile(&self, scope: &Scope, spec: &ProfileSpec) -> Result<(Base, Vec<Profile>)> {
        let (mut tx, table) = self.look().await?;
        let keys = scope.partitions();
        let base = base_of(&keys, &versions_of(&mut tx, table.as_ref(), &keys).await?);
        let profiles = match table {
            Some(table) => self.profiles(&mut tx, table.from(), &table.layout, scope, spec).await,
            // Without a table there are no columns for the spec to name.
            None => ScopeProfiler::new(&self.spec.partitioning, scope, &Schema::empty(), &ProfileSpec::new())
                .map(ScopeProfiler::finish),
        };
        let profiles = profiles.map_err(|e| self.in_table(e))?;
        tx.rollback().await?;
        Ok((base, profiles))
    }

    async fn stage(&self, request: &StageRequest, rows: Rows) -> Result<Staged> {
        stage::stage(self, request, rows).await.map_err(|e| self.in_table(e))
    }

    /// Nothing to do: rows are merged at the commit.
    async fn rebase(&self, staged: &Staged, _onto: &Base) -> Result<Staged> {
        Ok(staged.clone())
    }

    async fn discard(&self, id: &StagedId) -> Result<()> {
        let mut tx = self.database.begin().await?;
        let found = stamps::find(&mut tx, self, std::slice::from_ref(&id.stamp)).await?;
        if found.iter().flatten().any(|done| done.attempt == id.attempt) {
            return Err(self.in_table(
                Error::new(ErrorKind::State, "the staged set is committed").with_context("staged", id),
            ));
        }
        shadow::discard(&mut tx, self, id).await?;
        tx.commit().await?;
        shadow::sweep(&self.database).await;
        Ok(())
    }

    async fn commit(&self, request: CommitRequest<'_>) -> Result<CommitOutcome> {
        commit::commit(self, request).await.map_err(|e| self.in_table(e))
    }

    async fn find_commit(&self, stamp: &StampId, _scope: &Scope, _since: &Base) -> Result<Found> {
        let mut tx = self.database.begin_read().await?;
        let found = stamps::find(&mut tx, self, std::slice::from_ref(stamp)).await?;
        tx.rollback().await?;
        Ok(match found.into_iter().next().flatten() {
            Some(done) => Found::Yes(done.commit),
            None => Found::No,
        })
    }

    async fn forget(&self, kept: &Kept) -> Result<()> {
        forget::forget(self, kept).await.map_err(|e| self.in_table(e))
    }

    fn staged(&self) -> Option<&dyn StagedReader> {
        Some(self)
    }
}
