//! Tables that others write and jobs read.

mod way;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use reprocess_core::domain::ids::{PartitionVersion, TableId, TableVersion};
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::slice::{Pin, Slice};
use reprocess_core::ports::reader::{Availability, RowStream, SnapshotReader};
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::PgConnection;

use self::way::{Mark, Way};
use super::exported::{ExportedSnapshot, SnapshotId};
use super::{Look, broken, check_table, fingerprint, held, stream};
use crate::catalog::TableName;
use crate::config::{PostgresDatabase, Tx};
use crate::layout::{Layout, readable};
use crate::predicate::Rows;
use crate::sql::{Sql, Statement};

/// A table that others write. It is only read, and nothing is added to it.
///
/// An id like `finance.orders` says the schema; `orders` alone is in the schema `public`, or in
/// [another](Self::with_schema). What Arrow columns are read stands at [`PostgresTable`](crate::PostgresTable); columns
/// that are computed from others are read too.
///
/// Whatever the way to pin, the version of a slice is a fingerprint of its rows, which the server works out each time: as
/// the pin is taken and before each read. Rows that are others by then break the pin
/// ([`PinBroken`](ErrorKind::PinBroken)), they are never read in its name. A fingerprint is of one major version of the
/// server, and an upgrade breaks the pins that were not held by a copy.
///
/// | | what a pin reads | limit |
/// |---|---|---|
/// | [`append_only`](Self::append_only) | the rows of the transactions that had ended when it was taken, whenever it is read | needs a column of type `xid8`; updates and deletes break it |
/// | [`high_water_mark`](Self::high_water_mark) | the rows up to a mark | rows that are committed late below it break it |
/// | [`mutable`](Self::mutable) | the rows as they are, or a copy of them as they were | the copy has a cost |
/// | [`in_snapshot`](Self::in_snapshot) | the rows of one moment | for one run of one process |
///
/// Views, foreign tables and partitioned tables are sources like any other, but for `append_only`, which refuses views and
/// foreign tables.
#[derive(Clone, Debug)]
pub struct PostgresSource {
    database: PostgresDatabase,
    spec: TableSpec,
    name: TableName,
    way: Way,
    columns: Option<SchemaRef>,
}

/// What there is of a source in a transaction.
struct Found {
    layout: Layout,
    mark: Option<Mark>,
}

impl PostgresSource {
    /// A table to which rows are only added, such as a log. Its owner gives it a column that says which transaction
    /// added a row:
    ///
    /// ```sql
    /// ALTER TABLE orders ADD COLUMN added xid8 NOT NULL DEFAULT pg_current_xact_id();
    /// ```
    ///
    /// A pin reads the rows of the transactions that had ended when it was taken. A row that was under way then, however
    /// early its own timestamp or number is, belongs to the next version: it is neither lost nor read twice. Rows that
    /// are changed or deleted under a pin break it.
    ///
    /// Refused, as the source is used: a column of another type (`xmin` has 32 bits and starts again after so many
    /// transactions), one that may be NULL, one without this default, and one with numbers that this server has not
    /// given yet, as after a restore from the dump of another. A standby is refused, since it does not tell which
    /// transactions are under way.
    pub fn append_only(
        database: PostgresDatabase,
        spec: TableSpec,
        xid_column: impl Into<String>,
    ) -> Result<Self> {
        Self::new(database, spec, Way::AppendOnly { column: xid_column.into() })
    }

    /// A table to which rows are only added, each with a mark not below those before it: a number, instant, day, text or
    /// UUID. A pin reads up to the largest mark that was seen when it was taken.
    ///
    /// **Marks are given before rows are committed**, so that a row with a lower mark, or one equal to the largest, can
    /// appear after the pin was taken: numbers of a sequence and `now()` do so as soon as two transactions overlap. Such a
    /// row is not read by that pin unnoticed, nor left out of it unnoticed: it changes the content of the slice, and the
    /// pin breaks. What was computed before does not have it, until its partition is computed again. Where that matters,
    /// use [`append_only`](Self::append_only).
    ///
    /// A row whose mark is NULL would never be read, and is refused as a pin is taken.
    pub fn high_water_mark(
        database: PostgresDatabase,
        spec: TableSpec,
        column: impl Into<String>,
    ) -> Result<Self> {
        Self::new(database, spec, Way::HighWaterMark { column: column.into() })
    }

    /// A table whose rows change in place. `hold` copies the pinned slices into a table of ours, which is logged and so
    /// outlives a crash, and `release` drops it; without a copy a change breaks the pin.
    pub fn mutable(database: PostgresDatabase, spec: TableSpec) -> Result<Self> {
        Self::new(database, spec, Way::Mutable)
    }

    /// A table as it is in one moment, for as long as the snapshot is there. Nothing is copied, however large the slices
    /// and however many others write. Refuses a snapshot of another database.
    pub fn in_snapshot(
        database: PostgresDatabase,
        spec: TableSpec,
        snapshot: &ExportedSnapshot,
    ) -> Result<Self> {
        if !snapshot.database().is_same_database(&database) {
            return Err(Error::invalid("the snapshot is of another database")
                .with_context("table", &spec.id)
                .with_context("database", database.name()));
        }
        Self::new(database, spec, Way::InSnapshot { id: snapshot.id().clone() })
    }

    fn new(database: PostgresDatabase, spec: TableSpec, way: Way) -> Result<Self> {
        let name = TableName::of(&spec.id, "public")?;
        spec.partitioning.validate()?;
        Ok(Self { database, spec, name, way, columns: None })
    }

    /// Sets the schema of the table, where its id says none; without it that is `public`.
    pub fn with_schema(mut self, schema: &str) -> Result<Self> {
        self.name = TableName::of(&self.spec.id, schema)?;
        Ok(self)
    }

    /// Reads only the columns of this schema, with its types: changes of other columns then leave the pins whole. Those of
    /// the partitioning have to be among them.
    #[must_use]
    pub fn with_columns(mut self, columns: SchemaRef) -> Self {
        self.columns = Some(columns);
        self
    }

    pub(crate) fn database(&self) -> &PostgresDatabase {
        &self.database
    }

    /// The snapshot in which it has to be read, where there is one.
    pub(crate) fn snapshot(&self) -> Option<&SnapshotId> {
        match &self.way {
            Way::InSnapshot { id } => Some(id),
            _ => None,
        }
    }

    /// The statement that selects the rows of a pin; after a look at whether they are still those, unless it is for the
    /// columns alone.
    pub(crate) async fn pinned(
        &self,
        connection: &mut PgConnection,
        pin: &Pin,
        look: Look,
    ) -> Result<(Sql, Layout)> {
        check_table(pin, &self.spec.id)?;
        if matches!(self.way, Way::Mutable)
            && let Some(found) = held::find(connection, self.database.schema(), pin).await?
        {
            return Ok(found);
        }
        let found = self.find(connection).await?;
        let select = self.select(&found, &pin.version, &pin.slice)?;
        if look == Look::AtRows {
            fingerprint::check(connection, pin, select.clone(), &found.layout).await?;
        }
        Ok((select, found.layout))
    }

    /// A transaction in which it can be read.
    async fn begin(&self) -> Result<Option<Tx>> {
        match self.snapshot() {
            Some(id) => self.database.begin_in(id).await,
            None => self.database.begin_read().await.map(Some),
        }
    }

    async fn begin_for(&self, pin: &Pin) -> Result<Tx> {
        self.begin().await?.ok_or_else(|| broken(pin, "the exported snapshot has ended"))
    }

    async fn find(&self, connection: &mut PgConnection) -> Result<Found> {
        let (relation,): (Option<i64>,) = Statement::new("SELECT to_regclass($1)::oid::bigint")
            .bind(self.name.quoted())
            .one(connection, "look for the table")
            .await?;
        let found = match relation {
            Some(relation) => self.found(connection, relation).await,
            None => Err(Error::not_found("there is no such table")),
        };
        found.map_err(|e| e.with_context("table", &self.spec.id))
    }

    async fn found(&self, connection: &mut PgConnection, relation: i64) -> Result<Found> {
        let layout = readable(connection, relation, self.columns.as_deref()).await?;
        layout.check_partitioning(&self.spec.partitioning)?;
        let mark = self.way.check(connection, relation).await?;
        Ok(Found { layout, mark })
    }

    fn select(&self, found: &Found, version: &TableVersion, slice: &Slice) -> Result<Sql> {
        let from = self.way.from(&self.name, found.mark.as_ref(), version);
        let from = from.map_err(|e| e.with_context("table", &self.spec.id))?;
        self.rows(found).select(from, slice)
    }

    fn rows<'a>(&'a self, found: &'a Found) -> Rows<'a> {
        Rows { layout: &found.layout, partitioning: &self.spec.partitioning }
    }

    /// Refuses a slice some of whose rows no pin would ever read, or not the right ones.
    async fn check_slice(&self, connection: &mut PgConnection, found: &Found, slice: &Slice) -> Result<()> {
        let Some((from, refusal)) = self.way.unreadable(&self.name, found.mark.as_ref()) else {
            return Ok(());
        };
        let (some,): (bool,) = Sql::new("SELECT EXISTS (")
            .then(self.rows(found).select(from, slice)?)
            .text(")")
            .statement()
            .one(connection, "look for rows that no pin can read")
            .await?;
        if some {
            Err(refusal.with_context("table", &self.spec.id).with_context("slice", slice))
        } else {
            Ok(())
        }
    }

    async fn hold_copy(&self, pin: &Pin) -> Result<()> {
        let mut tx = self.database.begin().await?;
        let (select, layout) = self.pinned(&mut tx, pin, Look::AtColumns).await?;
        held::copy(&mut tx, self.database.schema(), pin, select, &layout).await?;
        tx.commit().await
    }
}

#[async_trait]
impl SnapshotReader for PostgresSource {
    fn table(&self) -> &TableId {
        &self.spec.id
    }

    async fn current(&self) -> Result<TableVersion> {
        let Some(mut tx) = self.begin().await? else { return Err(ended(&self.spec.id)) };
        let found = self.find(&mut tx).await?;
        let version = self.way.current(&mut tx, &self.name, found.mark.as_ref()).await?;
        tx.rollback().await?;
        Ok(version)
    }

    /// A version that was given is readable as long as the content of the pinned slices has not changed, which `read` and
    /// `hold` check, and that of an exported snapshot as long as that is there.
    async fn availability(&self, version: &TableVersion) -> Result<Availability> {
        let Some(mut tx) = self.begin().await? else { return Ok(Availability::Expired) };
        let known = self.way.knows(&mut tx, version).await?;
        tx.rollback().await?;
        Ok(if known { Availability::Readable { until: None } } else { Availability::Expired })
    }

    async fn slice_versions(
        &self,
        version: &TableVersion,
        slices: &[Slice],
    ) -> Result<Vec<PartitionVersion>> {
        let Some(mut tx) = self.begin().await? else { return Err(ended(&self.spec.id)) };
        let found = self.find(&mut tx).await?;
        let mut versions = Vec::with_capacity(slices.len());
        for slice in slices {
            let select = self.select(&found, version, slice)?;
            self.check_slice(&mut tx, &found, slice).await?;
            versions.push(fingerprint::of(&mut tx, select, &found.layout).await?);
        }
        tx.rollback().await?;
        Ok(versions)
    }

    /// Copies the slices of a mutable table; those of others are checked and need no copy.
    async fn hold(&self, pins: &[Pin]) -> Result<()> {
        if matches!(self.way, Way::Mutable) {
            held::prepare(&self.database).await?;
            for pin in pins {
                self.hold_copy(pin).await?;
            }
            return Ok(());
        }
        for pin in pins {
            let mut tx = self.begin_for(pin).await?;
            self.pinned(&mut tx, pin, Look::AtRows).await?;
            tx.rollback().await?;
        }
        Ok(())
    }

    async fn release(&self, pins: &[Pin]) -> Result<()> {
        if !matches!(self.way, Way::Mutable) {
            return Ok(());
        }
        for pin in pins {
            let mut tx = self.database.begin().await?;
            held::forget(&mut tx, self.database.schema(), pin).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    /// Reads the slice twice in one moment: once for its fingerprint, once for its rows.
    async fn read(&self, pin: &Pin) -> Result<(SchemaRef, RowStream)> {
        let mut tx = self.begin_for(pin).await?;
        let (select, layout) = self.pinned(&mut tx, pin, Look::AtRows).await?;
        Ok(stream(tx, select, layout, ErrorKind::Corrupt, self.database.config().batch_rows))
    }
}

fn ended(table: &TableId) -> Error {
    Error::new(ErrorKind::PinBroken, "the exported snapshot has ended")
        .with_context("table", table)
        .with_advice("export another, and plan again")
}

#[cfg(test)]
mod tests;
