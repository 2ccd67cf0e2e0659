//! Tables that others write and jobs read.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use reprocess_core::domain::ids::{PartitionVersion, TableId, TableVersion};
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::profile::{ProfileBuilder, ProfileSpec};
use reprocess_core::domain::slice::{Pin, Slice};
use reprocess_core::ports::reader::{Availability, RowStream, SnapshotReader};
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use super::{broken, check_table, held, stream, unknown_version};
use crate::catalog::table_name;
use crate::config::SqliteDatabase;
use crate::error::Doing;
use crate::layout::{Batches, Layout, declared_schema};
use crate::predicate::Rows;
use crate::sql::{Arg, Sql, ident};

/// Version of a table that is changed in place: its slices tell their versions, the table has none.
const LIVE: &str = "live";

/// A table that others write. It is only read; the version of a slice is the digest of its rows.
///
/// Dates are texts like `2026-10-01`. Instants are texts that SQLite's own functions read, or integers that count the
/// unit of the column from 1970; text without a zone is UTC.
#[derive(Clone, Debug)]
pub struct SqliteSource {
    database: SqliteDatabase,
    spec: TableSpec,
    growth: Growth,
    schema: Option<SchemaRef>,
}

#[derive(Clone, Debug)]
enum Growth {
    /// Rows are added, each with a mark not below those before it, and never changed.
    AppendOnly { mark: String },
    /// Rows are added, changed and deleted.
    Mutable,
}

impl SqliteSource {
    /// A table to which rows are only added, such as a log: `mark` is a column that never falls, for example the row's
    /// number. A pin reads up to the mark that was the last when it was taken. Rows that were changed under it all the
    /// same break it.
    pub fn append_only(database: SqliteDatabase, spec: TableSpec, mark: impl Into<String>) -> Self {
        let growth = Growth::AppendOnly { mark: mark.into() };
        Self { database, spec, growth, schema: None }
    }

    /// A table whose rows change in place. `hold` copies the pinned slices; without it a change breaks the pin.
    pub fn mutable(database: SqliteDatabase, spec: TableSpec) -> Self {
        Self { database, spec, growth: Growth::Mutable, schema: None }
    }

    /// Sets the columns and types to read, in place of those that follow from the declared types.
    #[must_use]
    pub fn with_schema(mut self, schema: SchemaRef) -> Self {
        self.schema = Some(schema);
        self
    }

    pub(crate) fn database(&self) -> &SqliteDatabase {
        &self.database
    }

    /// The statement that selects the rows of a pin, after a look at whether they are still those.
    pub(crate) async fn pinned(&self, connection: &mut SqliteConnection, pin: &Pin) -> Result<(Sql, Layout)> {
        check_table(pin, &self.spec.id)?;
        if let Some((select, schema)) = held::find(connection, pin).await? {
            return Ok((select, Layout::foreign(schema)?));
        }
        let layout = self.layout(connection).await?;
        let select = self.select(&layout, &pin.version, &pin.slice)?;
        if self.digest(connection, select.clone(), &layout).await? != pin.content {
            return Err(broken(pin, "the rows have changed since"));
        }
        Ok((select, layout))
    }

    async fn layout(&self, connection: &mut SqliteConnection) -> Result<Layout> {
        let schema = match &self.schema {
            Some(schema) => Arc::clone(schema),
            None => declared_schema(connection, &self.spec.id).await?,
        };
        Layout::foreign(schema).map_err(|e| e.with_context("table", &self.spec.id))
    }

    fn select(&self, layout: &Layout, version: &TableVersion, slice: &Slice) -> Result<Sql> {
        let rows = Rows { layout, partitioning: &self.spec.partitioning };
        let name = table_name(&self.spec.id);
        let from = match &self.growth {
            Growth::Mutable if version.as_str() == LIVE => Sql::new(format!("main.{name}")),
            Growth::Mutable => return Err(unknown_version(version, self.spec.id.as_str())),
            Growth::AppendOnly { mark } => {
                Sql::new(format!("(SELECT * FROM main.{name} AS m WHERE m.{} <= ", ident(mark)))
                    .bind(mark_of(version).ok_or_else(|| unknown_version(version, self.spec.id.as_str()))?)
                    .text(")")
            }
        };
        rows.select(from, slice)
    }

    async fn digest(
        &self,
        connection: &mut SqliteConnection,
        select: Sql,
        layout: &Layout,
    ) -> Result<PartitionVersion> {
        digest(connection, select, layout, self.database.config().batch_rows)
            .await
            .map_err(|e| e.with_context("table", &self.spec.id))
    }

    /// Copies one slice. The write lock is held for the copy alone; what was copied is checked afterwards.
    async fn hold_one(&self, pin: &Pin) -> Result<()> {
        let mut tx = self.database.begin_read().await?;
        if held::find(&mut tx, pin).await?.is_some() {
            return Ok(());
        }
        let layout = self.layout(&mut tx).await?;
        drop(tx);
        let select = self.select(&layout, &pin.version, &pin.slice)?;
        let held = held::copy(&self.database, pin, select, layout.schema()).await?;
        let mut tx = self.database.begin_read().await?;
        let content = self.digest(&mut tx, held::select(held, layout.schema()), &layout).await?;
        drop(tx);
        if content != pin.content {
            held::forget(&self.database, pin).await?;
            return Err(broken(pin, "the rows have changed since"));
        }
        held::complete(&self.database, held).await
    }
}

#[async_trait]
impl SnapshotReader for SqliteSource {
    fn table(&self) -> &TableId {
        &self.spec.id
    }

    async fn current(&self) -> Result<TableVersion> {
        let Growth::AppendOnly { mark } = &self.growth else { return Ok(TableVersion::from(LIVE)) };
        let what = "read the last mark";
        let mut tx = self.database.begin_read().await?;
        let row =
            Sql::new(format!("SELECT quote(max({})) FROM main.{}", ident(mark), table_name(&self.spec.id)))
                .first(&mut tx, what)
                .await?
                .ok_or_else(|| Error::internal("a maximum has no row"))?;
        Ok(TableVersion::new(row.try_get::<String, _>(0).doing(what)?))
    }

    async fn availability(&self, version: &TableVersion) -> Result<Availability> {
        let known = match &self.growth {
            Growth::AppendOnly { .. } => mark_of(version).is_some(),
            Growth::Mutable => version.as_str() == LIVE,
        };
        Ok(if known { Availability::Readable { until: None } } else { Availability::Expired })
    }

    async fn slice_versions(
        &self,
        version: &TableVersion,
        slices: &[Slice],
    ) -> Result<Vec<PartitionVersion>> {
        let mut tx = self.database.begin_read().await?;
        let layout = self.layout(&mut tx).await?;
        let mut versions = Vec::with_capacity(slices.len());
        for slice in slices {
            let select = self.select(&layout, version, slice)?;
            versions.push(self.digest(&mut tx, select, &layout).await?);
        }
        Ok(versions)
    }

    /// Copies the slices of a mutable table into the file; the pins of an append-only one need no copy.
    async fn hold(&self, pins: &[Pin]) -> Result<()> {
        for pin in pins {
            match self.growth {
                Growth::Mutable => self.hold_one(pin).await?,
                Growth::AppendOnly { .. } => {
                    let mut tx = self.database.begin_read().await?;
                    self.pinned(&mut tx, pin).await?;
                }
            }
        }
        Ok(())
    }

    async fn release(&self, pins: &[Pin]) -> Result<()> {
        for pin in pins {
            held::forget(&self.database, pin).await?;
        }
        Ok(())
    }

    /// Reads the slice twice in one snapshot: once for its digest, once for its rows.
    async fn read(&self, pin: &Pin) -> Result<(SchemaRef, RowStream)> {
        let mut tx = self.database.begin_read().await?;
        let (select, layout) = self.pinned(&mut tx, pin).await?;
        Ok(stream(tx, select, layout, ErrorKind::Corrupt, self.database.config().batch_rows))
    }
}

/// Digest of the rows of a statement.
async fn digest(
    connection: &mut SqliteConnection,
    select: Sql,
    layout: &Layout,
    batch_rows: usize,
) -> Result<PartitionVersion> {
    let mut builder = ProfileBuilder::new(layout.schema(), &ProfileSpec::new())?;
    let mut batches =
        Batches::new(select.stream(connection)?, layout.clone(), ErrorKind::Corrupt, batch_rows);
    while let Some(batch) = batches.next().await? {
        builder.push(&batch)?;
    }
    Ok(PartitionVersion::new(builder.finish(PartitionKey::whole()).content.value))
}

/// The mark in a version: a literal of SQLite. `None` where it is none.
fn mark_of(version: &TableVersion) -> Option<Arg> {
    let text = version.as_str();
    if text == "NULL" {
        return Some(Arg::Null);
    }
    if let Some(quoted) = text.strip_prefix('\'') {
        return Some(Arg::Text(quoted.strip_suffix('\'')?.replace("''", "'")));
    }
    text.parse().map(Arg::Integer).ok().or_else(|| text.parse().map(Arg::Real).ok())
}
