//! The tables that this library writes: what is known of them, and how they are made.

mod triggers;

pub(crate) use triggers::QUARTER_SECONDS;

use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use reprocess_core::domain::ids::TableId;
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::Partitioning;
use reprocess_core::{Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use crate::changes::Changes;
use crate::error::Doing;
use crate::layout::{Layout, check_name, definition};
use crate::predicate::Rows;
use crate::sql::{Sql, ident};

/// Tables of the library beside those of its users, by version. `t` is the number of a table.
pub(crate) const STEPS: &[&str] = &["
CREATE TABLE reprocess_table (
    t INTEGER PRIMARY KEY,
    table_id TEXT NOT NULL UNIQUE,
    partitioning TEXT NOT NULL,
    columns TEXT NOT NULL
);
CREATE TABLE reprocess_seq (t INTEGER PRIMARY KEY, seq INTEGER NOT NULL, blurred INTEGER NOT NULL DEFAULT 0);
CREATE TABLE reprocess_guard (one INTEGER PRIMARY KEY CHECK (one = 1), writing INTEGER NOT NULL);
INSERT INTO reprocess_guard (one, writing) VALUES (1, 0);
CREATE TABLE reprocess_change (
    t INTEGER NOT NULL,
    shape TEXT NOT NULL,
    partition TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (t, shape, partition, seq)
) WITHOUT ROWID;
CREATE INDEX reprocess_change_by_seq ON reprocess_change (t, seq);
CREATE TABLE reprocess_foreign (
    t INTEGER NOT NULL,
    key TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (t, key)
) WITHOUT ROWID;
CREATE TABLE reprocess_commit (
    t INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    PRIMARY KEY (t, seq)
) WITHOUT ROWID;
CREATE TABLE reprocess_stamp (
    t INTEGER NOT NULL,
    stamp TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (t, stamp)
) WITHOUT ROWID;
CREATE TABLE reprocess_kept (
    t INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    detail TEXT NOT NULL,
    kept_rows INTEGER NOT NULL,
    PRIMARY KEY (t, seq, entry)
) WITHOUT ROWID;
CREATE TABLE reprocess_kept_rows (
    kept_rows INTEGER PRIMARY KEY,
    t INTEGER NOT NULL,
    columns TEXT NOT NULL,
    UNIQUE (t, columns)
);
CREATE TABLE reprocess_held (
    held INTEGER PRIMARY KEY AUTOINCREMENT,
    pin TEXT NOT NULL UNIQUE,
    columns TEXT NOT NULL,
    complete INTEGER NOT NULL
);
"];

/// A table as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct Managed {
    /// Its number.
    pub(crate) t: i64,
    /// Its quoted name.
    pub(crate) name: String,
    pub(crate) layout: Layout,
    pub(crate) partitioning: Partitioning,
}

impl Managed {
    /// The table; `None` where it does not exist. Refuses one that was declared with another partitioning.
    pub(crate) async fn load(connection: &mut SqliteConnection, spec: &TableSpec) -> Result<Option<Self>> {
        let what = "read the catalog";
        let row = Sql::new(
            "SELECT t, columns, partitioning FROM main.reprocess_table
             WHERE EXISTS (SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = table_id)
             AND table_id = ",
        )
        .bind(spec.id.as_str())
        .first(connection, what)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let schema: Schema = from_json(&row.try_get::<String, _>(1).doing(what)?)?;
        let partitioning: Partitioning = from_json(&row.try_get::<String, _>(2).doing(what)?)?;
        if partitioning != spec.partitioning {
            return Err(Error::invalid("the table was created with another partitioning")
                .with_context("table", &spec.id)
                .with_advice("declare the table as it was created, or create another"));
        }
        let t = row.try_get(0).doing(what)?;
        Ok(Some(Self { t, name: table_name(&spec.id), layout: Layout::own(Arc::new(schema))?, partitioning }))
    }

    /// Makes the table, with its index and triggers, in the caller's transaction.
    pub(crate) async fn create(
        connection: &mut SqliteConnection,
        spec: &TableSpec,
        schema: &SchemaRef,
    ) -> Result<Self> {
        check_name("table", spec.id.as_str())?;
        let layout = Layout::own(Arc::clone(schema))?;
        if schema.fields().is_empty() {
            return Err(Error::invalid("a table needs a column"));
        }
        layout.check_partitioning(&spec.partitioning)?;
        let row = Sql::new("SELECT type FROM main.sqlite_schema WHERE name = ")
            .bind(spec.id.as_str())
            .text(" COLLATE NOCASE")
            .first(connection, "look for the table")
            .await?;
        if row.is_some() {
            return Err(Error::invalid("the file has something of this name that reprocess did not make")
                .with_context("table", &spec.id)
                .with_advice("read it as a source, or choose another name"));
        }
        let t = Self::register(connection, spec, &layout).await?;
        let table = Self { t, name: table_name(&spec.id), layout, partitioning: spec.partitioning.clone() };
        table.build(connection).await?;
        Ok(table)
    }

    async fn register(connection: &mut SqliteConnection, spec: &TableSpec, layout: &Layout) -> Result<i64> {
        let what = "register the table";
        let row = Sql::new("INSERT INTO main.reprocess_table (table_id, partitioning, columns) VALUES (")
            .bind(spec.id.as_str())
            .text(", ")
            .bind(to_json(&spec.partitioning)?)
            .text(", ")
            .bind(to_json(layout.schema().as_ref())?)
            .text(
                ") ON CONFLICT (table_id) DO UPDATE SET partitioning = excluded.partitioning,
                columns = excluded.columns RETURNING t",
            )
            .first(connection, what)
            .await?
            .ok_or_else(|| Error::internal("a table got no number"))?;
        let t: i64 = row.try_get(0).doing(what)?;
        let made = Sql::new("INSERT INTO main.reprocess_seq (t, seq) VALUES (")
            .bind(t)
            .text(", 0) ON CONFLICT (t) DO NOTHING")
            .execute(connection, what)
            .await?;
        if made == 0 {
            // It was there once and was dropped by others: everything that was known of it may be another now.
            Changes { t, partitioning: &spec.partitioning }.log_whole(connection).await?;
        }
        Ok(t)
    }

    async fn build(&self, connection: &mut SqliteConnection) -> Result<()> {
        let columns = self.layout.definitions()?.join(", ");
        Sql::new(format!("CREATE TABLE main.{} ({columns})", self.name))
            .execute(connection, "create the table")
            .await?;
        let dimensions: Vec<_> = self.partitioning.dimensions().iter().map(|d| ident(d.column())).collect();
        if !dimensions.is_empty() {
            Sql::new(format!(
                "CREATE INDEX main.reprocess_partition_{} ON {} ({})",
                self.t,
                self.name,
                dimensions.join(", ")
            ))
            .execute(connection, "create an index")
            .await?;
        }
        for trigger in triggers::statements(self)? {
            Sql::new(trigger).execute(connection, "create a trigger").await?;
        }
        Ok(())
    }

    /// Makes the table anew with other columns; it is empty afterwards.
    pub(crate) async fn rebuild(&mut self, connection: &mut SqliteConnection, layout: Layout) -> Result<()> {
        layout.check_partitioning(&self.partitioning)?;
        Sql::new(format!("DROP TABLE main.{}", self.name)).execute(connection, "drop the table").await?;
        self.layout = layout;
        self.save_columns(connection).await?;
        self.build(connection).await
    }

    /// Adds the columns of the layout that the table lacks.
    pub(crate) async fn extend(&mut self, connection: &mut SqliteConnection, layout: &Layout) -> Result<()> {
        for field in layout.schema().fields() {
            if self.layout.field(field.name()).is_err() {
                let column = definition(field)?;
                Sql::new(format!("ALTER TABLE main.{} ADD COLUMN {column}", self.name))
                    .execute(connection, "add a column")
                    .await?;
            }
        }
        self.layout = self.layout.extended(layout)?;
        self.save_columns(connection).await
    }

    async fn save_columns(&self, connection: &mut SqliteConnection) -> Result<()> {
        Sql::new("UPDATE main.reprocess_table SET columns = ")
            .bind(to_json(self.layout.schema().as_ref())?)
            .text(" WHERE t = ")
            .bind(self.t)
            .execute(connection, "write the columns")
            .await?;
        Ok(())
    }

    pub(crate) fn changes(&self) -> Changes<'_> {
        Changes { t: self.t, partitioning: &self.partitioning }
    }

    pub(crate) fn rows(&self) -> Rows<'_> {
        Rows { layout: &self.layout, partitioning: &self.partitioning }
    }

    /// The table to select from.
    pub(crate) fn from(&self) -> Sql {
        Sql::new(format!("main.{}", self.name))
    }
}

pub(crate) fn table_name(id: &TableId) -> String {
    ident(id.as_str())
}

pub(crate) fn to_json<T: Serialize + ?Sized>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::internal("a record does not serialise").with_source(e))
}

pub(crate) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text)
        .map_err(|e| Error::new(ErrorKind::Corrupt, "a stored record cannot be read").with_source(e))
}
