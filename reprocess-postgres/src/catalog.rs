//! The tables that this library writes: what is known of them, and how they are made.

mod bounds;
mod children;
mod columns;
mod exclusive;
mod name;
mod triggers;

pub(crate) use exclusive::Exclusive;
pub(crate) use name::TableName;
pub(crate) use triggers::{QUARTER_SECONDS, WRITING};

use std::sync::Arc;

use arrow_schema::{Schema as Columns, SchemaRef};
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::Partitioning;
use reprocess_core::{Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::PgConnection;

use crate::changes::Changes;
use crate::layout::{Layout, declared, quoted};
use crate::predicate::Rows;
use crate::schema::Schema;
use crate::sql::{Sql, Statement};

/// The component under which the versions of these tables are counted.
pub(crate) const COMPONENT: &str = "tables";

/// Tables of the library beside those of its users, by version. `t` is the number of a table.
pub(crate) const STEPS: &[&str] = &[include_str!("catalog/v1.sql")];

/// A table as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct Managed {
    /// Its number.
    pub(crate) t: i64,
    /// The number of the relation.
    pub(crate) relation: i64,
    pub(crate) name: TableName,
    /// Whether others made it.
    pub(crate) adopted: bool,
    /// Whether its rows are in partitions of its own.
    pub(crate) partitioned: bool,
    pub(crate) layout: Layout,
    pub(crate) partitioning: Partitioning,
    /// Where our own tables are.
    pub(crate) schema: Schema,
}

/// What is found of a table under its id.
type Found = (i64, i64, bool, bool, String, String);

impl Managed {
    /// The table; `None` where it does not exist, or is another than the one that was registered. Refuses one that was
    /// declared with another partitioning.
    pub(crate) async fn load(
        connection: &mut PgConnection,
        schema: &Schema,
        spec: &TableSpec,
        name: &TableName,
    ) -> Result<Option<Self>> {
        let row: Option<Found> = schema
            .sql(
                "SELECT r.t, r.relation::bigint, r.adopted, c.relkind = 'p', r.columns, r.partitioning
                 FROM reprocess.table_registry AS r
                 JOIN pg_class AS c ON c.oid = r.relation AND c.relname = $3
                 JOIN pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = $2
                 WHERE r.table_id = $1",
            )
            .bind(spec.id.as_str())
            .bind(name.schema())
            .bind(name.table())
            .first(connection, "read the catalog")
            .await?;
        let Some((t, relation, adopted, partitioned, columns, partitioning)) = row else { return Ok(None) };
        let partitioning: Partitioning = from_json(&partitioning)?;
        if partitioning != spec.partitioning {
            return Err(Error::invalid("the table was created with another partitioning")
                .with_context("table", &spec.id)
                .with_advice("declare the table as it was created, or create another"));
        }
        let (layout, schema, name) = (from_json(&columns)?, schema.clone(), name.clone());
        Ok(Some(Self { t, relation, name, adopted, partitioned, layout, partitioning, schema }))
    }

    /// Makes the table, with its index and triggers, in the caller's transaction.
    pub(crate) async fn create(
        connection: &mut PgConnection,
        schema: &Schema,
        spec: &TableSpec,
        name: &TableName,
        columns: &SchemaRef,
    ) -> Result<Self> {
        let layout = Layout::own(Arc::clone(columns))?;
        if columns.fields().is_empty() {
            return Err(Error::invalid("a table needs a column"));
        }
        layout.check_partitioning(&spec.partitioning)?;
        if relation(connection, name).await?.is_some() {
            return Err(Error::invalid(
                "the database has something of this name that reprocess did not make",
            )
            .with_context("table", &spec.id)
            .with_advice("adopt it with `PostgresTable::adopt`, or choose another name"));
        }
        let definitions = layout.definitions().join(", ");
        Statement::new(format!("CREATE TABLE {} ({definitions})", name.quoted()))
            .execute(connection, "create the table")
            .await?;
        Self::register(connection, schema, spec, name, Some(columns)).await
    }

    /// Registers a table that others made. What was known of it before may be another now.
    pub(crate) async fn adopt(
        connection: &mut PgConnection,
        schema: &Schema,
        spec: &TableSpec,
        name: &TableName,
    ) -> Result<Self> {
        let found: Option<(String, bool, bool)> = Statement::new(
            "SELECT relkind::text, relispartition OR EXISTS (SELECT 1 FROM pg_inherits AS i WHERE i.inhrelid = c.oid),
                    EXISTS (SELECT 1 FROM pg_inherits AS i WHERE i.inhparent = c.oid)
             FROM pg_class AS c WHERE c.oid = to_regclass($1)",
        )
        .bind(name.quoted())
        .first(connection, "look for the table")
        .await?;
        let Some((kind, is_heir, has_heirs)) = found else {
            return Err(Error::not_found("there is no such table"));
        };
        match kind.as_str() {
            "p" if !is_heir => {}
            "r" if !is_heir && !has_heirs => {}
            "r" | "p" if is_heir => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "the table is a partition or an heir of another",
                )
                .with_advice("adopt the partitioned table above it; heirs cannot be adopted"));
            }
            _ => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "the relation is neither a plain nor a partitioned table",
                )
                .with_advice("views, foreign tables and tables with heirs cannot be adopted"));
            }
        }
        Self::register(connection, schema, spec, name, None).await
    }

    /// Without columns the table is one of others.
    async fn register(
        connection: &mut PgConnection,
        schema: &Schema,
        spec: &TableSpec,
        name: &TableName,
        columns: Option<&Columns>,
    ) -> Result<Self> {
        let adopted = columns.is_none();
        let found = relation(connection, name).await?;
        let (relation, partitioned) = found.ok_or_else(|| Error::not_found("there is no such table"))?;
        let layout = declared(connection, relation, columns).await?;
        layout.check_partitioning(&spec.partitioning)?;
        let (t, is_new): (i64, bool) = schema
            .sql(
                "INSERT INTO reprocess.table_registry (table_id, relation, adopted, partitioning, columns)
                 VALUES ($1, $2::oid, $3, $4, $5)
                 ON CONFLICT (table_id) DO UPDATE SET relation = excluded.relation, adopted = excluded.adopted,
                     partitioning = excluded.partitioning, columns = excluded.columns
                 RETURNING t, xmax = 0",
            )
            .bind(spec.id.as_str())
            .bind(relation)
            .bind(adopted)
            .bind(to_json(&spec.partitioning)?)
            .bind(to_json(&layout)?)
            .one(connection, "register the table")
            .await?;
        let (partitioning, schema, name) = (spec.partitioning.clone(), schema.clone(), name.clone());
        let table = Self { t, relation, name, adopted, partitioned, layout, partitioning, schema };
        if is_new {
            let numbers = table.schema.sql("INSERT INTO reprocess.table_seq (t, seq) VALUES ($1, 0)");
            numbers.bind(t).execute(connection, "register the table").await?;
        } else {
            table.changes().log_whole(connection).await?;
        }
        table.check_dependants(connection).await?;
        table.build(connection).await?;
        Ok(table)
    }

    /// Index and triggers, those of the partitions too.
    async fn build(&self, connection: &mut PgConnection) -> Result<()> {
        let dimensions: Vec<_> = self.partitioning.dimensions().iter().map(|d| quoted(d.column())).collect();
        if !dimensions.is_empty() && !self.adopted {
            Statement::new(format!(
                "CREATE INDEX IF NOT EXISTS reprocess_partition_{} ON {} ({})",
                self.relation,
                self.name.quoted(),
                dimensions.join(", ")
            ))
            .execute(connection, "create an index")
            .await?;
        }
        for statement in triggers::statements(self)? {
            Statement::new(statement).execute(connection, "create a trigger").await?;
        }
        self.build_children(connection).await
    }

    pub(crate) fn changes(&self) -> Changes<'_> {
        Changes { t: self.t, partitioning: &self.partitioning, schema: &self.schema }
    }

    pub(crate) fn rows(&self) -> Rows<'_> {
        Rows { layout: &self.layout, partitioning: &self.partitioning }
    }

    /// The table to select from.
    pub(crate) fn from(&self) -> Sql {
        Sql::new(self.name.quoted())
    }
}

/// The number of a relation, and whether it is partitioned.
async fn relation(connection: &mut PgConnection, name: &TableName) -> Result<Option<(i64, bool)>> {
    Statement::new("SELECT oid::bigint, relkind = 'p' FROM pg_class WHERE oid = to_regclass($1)")
        .bind(name.quoted())
        .first(connection, "look for the table")
        .await
}

pub(crate) fn to_json<T: Serialize + ?Sized>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::internal("a record does not serialise").with_source(e))
}

pub(crate) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text)
        .map_err(|e| Error::new(ErrorKind::Corrupt, "a stored record cannot be read").with_source(e))
}
