//! Our own schema: its name, and the versions of what is in it.

use std::fmt;

use reprocess_core::{Error, ErrorKind, Result};
use sqlx::{AssertSqlSafe, raw_sql};

use crate::config::PostgresDatabase;
use crate::error::Doing;
use crate::sql::{Statement, ident};

const META: &str = "
    CREATE TABLE reprocess.schema_version (
        component text   NOT NULL PRIMARY KEY,
        version   bigint NOT NULL CHECK (version >= 0)
    )";

/// The name of our schema. Statements are written with `reprocess.`, the default, in front of the names of our tables.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Schema {
    name: String,
    /// Quoted, with the dot.
    prefix: String,
}

impl Schema {
    pub(crate) fn new(name: &str) -> Result<Self> {
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !plain || name.starts_with("pg_") {
            return Err(Error::invalid(format!(
                "`{}` cannot be the name of our schema",
                name.escape_debug()
            ))
            .with_advice("use ASCII letters, digits and `_`, and not `pg_` at its start"));
        }
        Ok(Self { name: name.to_owned(), prefix: format!("{}.", ident(name)?) })
    }

    /// The text of statements in the schema.
    pub(crate) fn text(&self, sql: &str) -> String {
        sql.replace("reprocess.", &self.prefix)
    }

    /// A statement in the schema.
    pub(crate) fn sql(&self, sql: &str) -> Statement {
        Statement::new(self.text(sql))
    }

    /// The name, without quotes.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl PostgresDatabase {
    /// Brings the tables of a component to the newest version: step `n` leads from version `n` to `n + 1`. Refuses a
    /// database in which a newer library wrote. All in one transaction, one process after the other.
    pub(crate) async fn migrate(&self, component: &str, steps: &[&str]) -> Result<()> {
        let schema = self.schema();
        let mut tx = self.begin().await?;
        Statement::new("SELECT pg_advisory_xact_lock(hashtextextended('reprocess schema ' || $1, 0))")
            .bind(schema.name())
            .execute(&mut tx, "wait for its turn to make our tables")
            .await?;
        // Looked for first: to make what is there already asks for permissions that a plain user need not have.
        let (schema_there, versions_there): (bool, bool) =
            Statement::new("SELECT to_regnamespace($1) IS NOT NULL, to_regclass($2) IS NOT NULL")
                .bind(ident(schema.name())?)
                .bind(schema.text("reprocess.schema_version"))
                .one(&mut tx, "look for our tables")
                .await?;
        if !schema_there {
            let create = format!("CREATE SCHEMA {}", ident(schema.name())?);
            Statement::new(create).execute(&mut tx, "make our schema").await?;
        }
        if !versions_there {
            schema.sql(META).execute(&mut tx, "make our tables").await?;
        }
        let version: Option<(i64,)> = schema
            .sql("SELECT version FROM reprocess.schema_version WHERE component = $1")
            .bind(component)
            .first(&mut tx, "read the version of our tables")
            .await?;
        let version = version.map_or(0, |(version,)| version);
        let newest = i64::try_from(steps.len()).unwrap_or(i64::MAX);
        let done = usize::try_from(version).ok().filter(|done| *done <= steps.len());
        let Some(done) = done else {
            let message = format!(
                "the database holds {component} of version {version}, and this library knows {newest}"
            );
            return Err(Error::new(ErrorKind::Corrupt, message)
                .with_context("schema", schema.name())
                .with_advice("a newer release of reprocess wrote here; use that one"));
        };
        if version == newest {
            return tx.rollback().await;
        }
        for step in &steps[done..] {
            let step = AssertSqlSafe(schema.text(step));
            raw_sql(step).execute(&mut *tx).await.doing("make our tables")?;
        }
        schema
            .sql(
                "INSERT INTO reprocess.schema_version (component, version) VALUES ($1, $2)
                 ON CONFLICT (component) DO UPDATE SET version = excluded.version",
            )
            .bind(component)
            .bind(newest)
            .execute(&mut tx, "write the version of our tables")
            .await?;
        tx.commit().await
    }
}

#[cfg(test)]
mod tests;
