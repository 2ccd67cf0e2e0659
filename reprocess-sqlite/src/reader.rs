//! Reading at pinned versions.

mod held;
mod source;
mod stream;

use std::any::Any;
use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use async_trait::async_trait;
use reprocess_core::domain::ids::{PartitionVersion, TableId, TableVersion};
use reprocess_core::domain::slice::{Pin, Slice};
use reprocess_core::ports::reader::{Availability, PinnedInput, RowStream, SnapshotReader};
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::sqlite::SqliteConnection;

pub use source::SqliteSource;
pub(crate) use stream::stream;

use crate::catalog::Managed;
use crate::changes::{NOW, partition_version, seq_of, table_version};
use crate::config::SqliteDatabase;
use crate::layout::Layout;
use crate::sql::Sql;
use crate::writer::SqliteTable;

/// Reads what is there now, where it is still what the pin names: the file keeps no earlier versions. A version that
/// moved is noticed by the log of changes, for writes of others too.
#[async_trait]
impl SnapshotReader for SqliteTable {
    fn table(&self) -> &TableId {
        &self.spec().id
    }

    async fn current(&self) -> Result<TableVersion> {
        let mut tx = self.database().begin_read().await?;
        match Managed::load(&mut tx, self.spec()).await? {
            Some(table) => Ok(table_version(table.changes().seq(&mut tx).await?)),
            None => Ok(table_version(0)),
        }
    }

    /// A version that was given is readable as long as the content of the pinned slices has not changed, which
    /// `read` and `hold` check.
    async fn availability(&self, version: &TableVersion) -> Result<Availability> {
        let now = self.current().await?;
        Ok(match (seq_of(version), seq_of(&now)) {
            (Some(asked), Some(now)) if asked <= now => Availability::Readable { until: None },
            _ => Availability::Expired,
        })
    }

    async fn slice_versions(
        &self,
        version: &TableVersion,
        slices: &[Slice],
    ) -> Result<Vec<PartitionVersion>> {
        let at = seq_of(version).ok_or_else(|| unknown_version(version, self.spec().id.as_str()))?;
        let mut tx = self.database().begin_read().await?;
        let Some(table) = Managed::load(&mut tx, self.spec()).await? else {
            return Ok(vec![partition_version(0); slices.len()]);
        };
        let mut versions = Vec::with_capacity(slices.len());
        for slice in slices {
            versions.push(partition_version(table.changes().slice(&mut tx, slice, at).await?));
        }
        Ok(versions)
    }

    /// Checks the pins and copies nothing: a copy of every input would double the file, and a change is noticed.
    async fn hold(&self, pins: &[Pin]) -> Result<()> {
        let mut tx = self.database().begin_read().await?;
        for pin in pins {
            self.pinned(&mut tx, pin).await?;
        }
        Ok(())
    }

    async fn release(&self, _pins: &[Pin]) -> Result<()> {
        Ok(())
    }

    async fn read(&self, pin: &Pin) -> Result<(SchemaRef, RowStream)> {
        let mut tx = self.database().begin_read().await?;
        let (select, layout) = self.pinned(&mut tx, pin).await?;
        Ok(stream(tx, select, layout, ErrorKind::Corrupt, self.database().config().batch_rows))
    }
}

impl SqliteTable {
    /// The statement that selects the rows of a pin, after a look at whether they are still those.
    pub(crate) async fn pinned(&self, connection: &mut SqliteConnection, pin: &Pin) -> Result<(Sql, Layout)> {
        check_table(pin, &self.spec().id)?;
        let Some(table) = Managed::load(connection, self.spec()).await? else {
            if pin.content != partition_version(0) {
                return Err(broken(pin, "the table is not there any more"));
            }
            return Ok((Sql::new("SELECT NULL WHERE 0"), Layout::own(Arc::new(Schema::empty()))?));
        };
        let now = table.changes().slice(connection, &pin.slice, NOW).await?;
        if partition_version(now) != pin.content {
            return Err(broken(pin, "the rows have changed since"));
        }
        Ok((table.rows().select(table.from(), &pin.slice)?, table.layout))
    }
}

/// The statement that selects the rows of an input of a query, and its columns. Readers are those of this file.
pub(crate) async fn pinned(
    database: &SqliteDatabase,
    input: &PinnedInput,
    connection: &mut SqliteConnection,
) -> Result<(Sql, Layout)> {
    let writer = input.writer.as_deref().filter(|_| !input.staged.is_empty());
    if let Some(writer) = writer {
        let any: &dyn Any = writer;
        if let Some(table) = any.downcast_ref::<SqliteTable>().filter(|t| t.database().is_same_file(database))
        {
            return table.overlaid(connection, &input.staged, &input.pin).await;
        }
    } else {
        let any: &dyn Any = input.reader.as_ref();
        if let Some(table) = any.downcast_ref::<SqliteTable>().filter(|t| t.database().is_same_file(database))
        {
            return table.pinned(connection, &input.pin).await;
        }
        if let Some(source) =
            any.downcast_ref::<SqliteSource>().filter(|s| s.database().is_same_file(database))
        {
            return source.pinned(connection, &input.pin).await;
        }
    }
    Err(Error::new(ErrorKind::Unsupported, "a query reads tables of its own file only")
        .with_context("table", &input.pin.table)
        .with_context("file", database.path().display())
        .with_advice("write the transform in Rust, or copy the input into the file"))
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
