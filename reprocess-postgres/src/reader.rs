//! Reading at pinned versions.

mod exported;
mod fingerprint;
mod held;
mod moment;
mod source;
mod stream;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use async_trait::async_trait;
use reprocess_core::domain::ids::{PartitionVersion, TableId, TableVersion};
use reprocess_core::domain::slice::{Pin, Slice};
use reprocess_core::ports::reader::{Availability, PinnedInput, RowStream, SnapshotReader};
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::PgConnection;

pub use exported::ExportedSnapshot;
pub(crate) use exported::SnapshotId;
pub use source::PostgresSource;
pub(crate) use stream::stream;

use crate::catalog::Managed;
use crate::changes::{Moment, Version};
use crate::config::{PostgresDatabase, Tx};
use crate::layout::Layout;
use crate::sql::Sql;
use crate::writer::PostgresTable;

/// Reads what is there now, where it is still what the pin names: the table keeps no earlier versions. A version that
/// moved is noticed by the log of changes, for writes of others too.
#[async_trait]
impl SnapshotReader for PostgresTable {
    fn table(&self) -> &TableId {
        &self.spec().id
    }

    async fn current(&self) -> Result<TableVersion> {
        let (mut tx, table) = self.look().await?;
        let now = match table {
            Some(table) => table.changes().now(&mut tx, &[]).await?.moment,
            None => Moment::first(),
        };
        tx.rollback().await?;
        Ok(now.table())
    }

    /// A version that was given is readable as long as the content of the pinned slices has not changed, which
    /// `read` and `hold` check.
    async fn availability(&self, version: &TableVersion) -> Result<Availability> {
        let now = self.current().await?;
        Ok(match (Moment::of(version), Moment::of(&now)) {
            (Some(asked), Some(now)) if asked.seq <= now.seq => Availability::Readable { until: None },
            _ => Availability::Expired,
        })
    }

    async fn slice_versions(
        &self,
        version: &TableVersion,
        slices: &[Slice],
    ) -> Result<Vec<PartitionVersion>> {
        let at = Moment::of(version).ok_or_else(|| unknown_version(version, self.spec().id.as_str()))?;
        let (mut tx, table) = self.look().await?;
        let Some(table) = table else {
            tx.rollback().await?;
            return Ok(vec![Version::default().partition(); slices.len()]);
        };
        let mut versions = Vec::with_capacity(slices.len());
        for slice in slices {
            versions.push(table.changes().slice(&mut tx, slice, &at).await?);
        }
        tx.rollback().await?;
        Ok(versions)
    }

    /// Checks the pins and copies nothing: a copy of every input would double the data, and a change is noticed.
    async fn hold(&self, pins: &[Pin]) -> Result<()> {
        let (mut tx, table) = self.look().await?;
        for pin in pins {
            self.pinned(&mut tx, table.as_ref(), pin).await?;
        }
        tx.rollback().await
    }

    async fn release(&self, _pins: &[Pin]) -> Result<()> {
        Ok(())
    }

    async fn read(&self, pin: &Pin) -> Result<(SchemaRef, RowStream)> {
        let (mut tx, table) = self.look().await?;
        let (select, layout) = self.pinned(&mut tx, table.as_ref(), pin).await?;
        Ok(stream(tx, select, layout, ErrorKind::Corrupt, self.database().config().batch_rows))
    }
}

impl PostgresTable {
    /// The statement that selects the rows of a pin, after a look at whether they are still those.
    pub(crate) async fn pinned(
        &self,
        connection: &mut PgConnection,
        table: Option<&Managed>,
        pin: &Pin,
    ) -> Result<(Sql, Layout)> {
        check_table(pin, &self.spec().id)?;
        let Some(table) = table else {
            if pin.content != Version::default().partition() {
                return Err(broken(pin, "the table is not there any more"));
            }
            return Ok((Sql::new("SELECT WHERE false"), Layout::own(Arc::new(Schema::empty()))?));
        };
        let now = table.changes().slice(connection, &pin.slice, &Moment::now()).await?;
        if now != pin.content {
            return Err(broken(pin, "the rows have changed since"));
        }
        Ok((table.rows().select(table.from(), &pin.slice)?, table.layout.clone()))
    }
}

/// How far a pin is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Whether the rows are those of the pin, which may mean to read them.
    AtRows,
    /// Which columns there are.
    AtColumns,
}

/// Who can read an input in this database.
enum Here<'a> {
    Table(&'a PostgresTable),
    Source(&'a PostgresSource),
}

fn here<'a>(database: &PostgresDatabase, input: &'a PinnedInput) -> Result<Here<'a>> {
    let writer = input.writer.as_deref().filter(|_| !input.staged.is_empty());
    let any: &dyn Any = match writer {
        Some(writer) => writer,
        None => input.reader.as_ref(),
    };
    if let Some(table) = any.downcast_ref::<PostgresTable>()
        && table.database().is_same_database(database)
    {
        return Ok(Here::Table(table));
    }
    if let Some(source) = any.downcast_ref::<PostgresSource>()
        && source.database().is_same_database(database)
    {
        return Ok(Here::Source(source));
    }
    Err(Error::new(ErrorKind::Unsupported, "a query reads tables of its own database only")
        .with_context("table", &input.pin.table)
        .with_context("database", database.name())
        .with_advice("write the transform in Rust, or copy the input into the database"))
}

/// The names of those tables of ours among the inputs of a query that are partitioned, after a look at each.
pub(crate) async fn partitioned<'a>(
    database: &PostgresDatabase,
    inputs: &[&'a PinnedInput],
) -> Result<BTreeSet<&'a str>> {
    let mut names = BTreeSet::new();
    for input in inputs {
        if let Here::Table(table) = here(database, input)? {
            let (tx, _) = table.look().await?;
            tx.rollback().await?;
            names.extend(table.partitioned_name());
        }
    }
    Ok(names)
}

/// The statement that selects the rows of an input of a query, and its columns.
pub(crate) async fn pinned(
    database: &PostgresDatabase,
    input: &PinnedInput,
    connection: &mut PgConnection,
    look: Look,
) -> Result<(Sql, Layout)> {
    let table = match here(database, input)? {
        Here::Table(table) => table,
        Here::Source(source) => return source.pinned(connection, &input.pin, look).await,
    };
    let managed = table.looked_at(connection).await?;
    if input.staged.is_empty() {
        table.pinned(connection, managed.as_ref(), &input.pin).await
    } else {
        table.overlaid(connection, managed.as_ref(), &input.staged, &input.pin).await
    }
}

/// A transaction in which all inputs of a query can be read, of which these tables are partitioned: in the exported
/// snapshot, where some are of one.
pub(crate) async fn begin(
    database: &PostgresDatabase,
    inputs: &[&PinnedInput],
    partitioned: &BTreeSet<&str>,
) -> Result<Tx> {
    let mut ids = BTreeMap::new();
    for input in inputs {
        if let Here::Source(source) = here(database, input)?
            && let Some(id) = source.snapshot()
        {
            ids.insert(id, *input);
        }
    }
    let mut ids = ids.into_iter();
    match (ids.next(), ids.next()) {
        (None, _) => database.begin_read_of(partitioned).await,
        (Some((id, input)), None) => {
            let tx = database.begin_in(id).await?;
            tx.ok_or_else(|| broken(&input.pin, "the exported snapshot has ended"))
        }
        (Some(_), Some(_)) => {
            Err(Error::new(ErrorKind::Unsupported, "a query reads in one exported snapshot, not in several")
                .with_advice("export one snapshot for all inputs of the job"))
        }
    }
}

pub(crate) fn check_table(pin: &Pin, table: &TableId) -> Result<()> {
    if pin.table == *table {
        return Ok(());
    }
    Err(Error::invalid(format!("the pin is of table `{}`", pin.table)).with_context("table", table))
}

pub(crate) fn broken(pin: &Pin, why: &str) -> Error {
    Error::new(ErrorKind::PinBroken, format!("the pinned rows cannot be read: {why}"))
        .with_context("table", &pin.table)
        .with_context("slice", &pin.slice)
        .with_context("version", &pin.version)
        .with_advice("plan again with the current inputs")
}

pub(crate) fn unknown_version(version: &TableVersion, table: &str) -> Error {
    Error::new(ErrorKind::PinBroken, format!("`{version}` is no version of the table"))
        .with_context("table", table)
        .with_advice("plan again with the current inputs")
}
