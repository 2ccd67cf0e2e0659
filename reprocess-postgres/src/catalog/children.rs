//! The partitions of a table that others have partitioned.
//!
//! Everything is read and written through the table, and so a partition matters for two things: others may write to it
//! directly, which triggers of its own notice; and others may attach, detach, make or drop one, which no trigger notices.
//! So the partitions are compared with those that were registered whenever the table is looked at. Keys of one that came
//! with rows, or that went, count as changed, and one that came is given the triggers.

use std::collections::BTreeSet;

use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::PgConnection;

use super::{Managed, bounds, triggers};
use crate::layout::quoted;
use crate::sql::Statement;

const WHAT: &str = "look for the partitions of the table";

/// All partitions below the table `$1`.
const CHILDREN: &str = "
    WITH RECURSIVE tree (relation, parent) AS (
        SELECT inhrelid, inhparent FROM pg_inherits WHERE inhparent = $1::oid AND NOT inhdetachpending
        UNION ALL
        SELECT i.inhrelid, i.inhparent FROM pg_inherits AS i JOIN tree AS t ON i.inhparent = t.relation
        WHERE NOT i.inhdetachpending),
    actual AS (
        SELECT c.oid AS relation, t.parent, n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind,
               (SELECT a.attname::text FROM pg_partitioned_table AS p
                JOIN pg_attribute AS a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
                WHERE p.partrelid = t.parent AND p.partnatts = 1 AND p.partattrs[0] > 0) AS by_column,
               coalesce(pg_get_expr(c.relpartbound, c.oid), '') AS bounds
        FROM tree AS t JOIN pg_class AS c ON c.oid = t.relation JOIN pg_namespace AS n ON n.oid = c.relnamespace)";

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) relation: i64,
    /// The number of the table right above.
    pub(super) parent: i64,
    pub(crate) schema: String,
    pub(crate) name: String,
    /// As `pg_class.relkind` has it.
    kind: String,
    /// The one column by which the table above it is partitioned, where it is one.
    pub(super) by_column: Option<String>,
    pub(super) bounds: String,
}

type Row = (i64, i64, String, String, String, Option<String>, String);

impl Child {
    /// For statements.
    pub(crate) fn quoted(&self) -> String {
        quoted_name(&self.schema, &self.name)
    }
}

pub(super) fn quoted_name(schema: &str, name: &str) -> String {
    format!("{}.{}", quoted(schema), quoted(name))
}

impl Managed {
    /// The partitions that there are.
    pub(super) async fn children(&self, connection: &mut PgConnection) -> Result<Vec<Child>> {
        let rows: Vec<Row> = Statement::new(format!(
            "{CHILDREN} SELECT relation::bigint, parent::bigint, schema, name, kind, by_column, bounds FROM actual ORDER BY schema, name"
        ))
        .bind(self.relation)
        .all(connection, WHAT)
        .await?;
        let child = |(relation, parent, schema, name, kind, by_column, bounds)| Child {
            relation,
            parent,
            schema,
            name,
            kind,
            by_column,
            bounds,
        };
        Ok(rows.into_iter().map(child).collect())
    }

    /// Whether others have changed which partitions there are since they were taken on.
    pub(crate) async fn has_other_children(&self, connection: &mut PgConnection) -> Result<bool> {
        if !self.partitioned {
            return Ok(false);
        }
        let statement = format!(
            "{CHILDREN} SELECT EXISTS (
                 SELECT 1 FROM actual AS a
                 FULL JOIN (SELECT * FROM reprocess.table_child WHERE t = $2) AS k ON k.relation = a.relation
                 WHERE k.relation IS NULL OR a.relation IS NULL OR k.bounds <> a.bounds
                    OR k.by_column IS DISTINCT FROM a.by_column)"
        );
        let statement = self.schema.sql(&statement).bind(self.relation).bind(self.t);
        let (other,): (bool,) = statement.one(connection, WHAT).await?;
        Ok(other)
    }

    /// Takes the partitions on that there are, in place of those that there were. Answers the keys that may have other
    /// rows by that.
    pub(crate) async fn take_on(&self, connection: &mut PgConnection) -> Result<Vec<PartitionKey>> {
        let known: Vec<(i64, Option<String>, String)> = self
            .schema
            .sql("SELECT relation::bigint, by_column, bounds FROM reprocess.table_child WHERE t = $1")
            .bind(self.t)
            .all(connection, WHAT)
            .await?;
        let children = if self.partitioned { self.children(connection).await? } else { Vec::new() };
        let same = |child: &Child, known: &(i64, Option<String>, String)| {
            (child.relation, &child.by_column, &child.bounds) == (known.0, &known.1, &known.2)
        };
        let mut touched = BTreeSet::new();
        let mut touch = |by_column: Option<&str>, bounds: &str| {
            let keys = bounds::keys(&self.partitioning, by_column, bounds);
            touched.extend(keys.unwrap_or_else(|| vec![PartitionKey::whole()]));
        };
        for (_, by_column, bounds) in known.iter().filter(|known| !children.iter().any(|c| same(c, known))) {
            touch(by_column.as_deref(), bounds);
        }
        for child in children.iter().filter(|child| !known.iter().any(|k| same(child, k))) {
            // Waits for those who write to it: what comes later is noticed.
            for statement in triggers::of_child(self, &child.quoted()) {
                Statement::new(statement).execute(connection, "create a trigger").await?;
            }
            // A level between has no rows but those of the partitions below.
            if child.kind != "p" && has_rows(connection, child).await? {
                touch(child.by_column.as_deref(), &child.bounds);
            }
        }
        self.register_children(connection, &children).await?;
        if touched.contains(&PartitionKey::whole()) {
            return Ok(vec![PartitionKey::whole()]);
        }
        Ok(touched.into_iter().collect())
    }

    /// The statements that have a table watched as the partitions are.
    pub(crate) fn watch(&self, child: &str) -> Vec<String> {
        triggers::of_child(self, child)
    }

    /// Has every partition the triggers, and registers them.
    pub(super) async fn build_children(&self, connection: &mut PgConnection) -> Result<()> {
        let children = if self.partitioned { self.children(connection).await? } else { Vec::new() };
        if let Some(child) = children.iter().find(|child| child.kind != "r" && child.kind != "p") {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("the partition `{}` is no plain table", child.name),
            )
            .with_advice("foreign tables cannot be among the partitions: writes to them go unnoticed"));
        }
        for child in &children {
            for statement in triggers::of_child(self, &child.quoted()) {
                Statement::new(statement).execute(connection, "create a trigger").await?;
            }
        }
        self.register_children(connection, &children).await
    }

    /// Notes that the last of two tables took the place of the first among the partitions.
    pub(crate) async fn exchange_child(
        &self,
        connection: &mut PgConnection,
        old: i64,
        new: i64,
    ) -> Result<()> {
        self.schema
            .sql("UPDATE reprocess.table_child SET relation = $3::oid WHERE t = $1 AND relation = $2::oid")
            .bind(self.t)
            .bind(old)
            .bind(new)
            .execute(connection, "register a partition of the table")
            .await?;
        Ok(())
    }

    async fn register_children(&self, connection: &mut PgConnection, children: &[Child]) -> Result<()> {
        let what = "register the partitions of the table";
        let forget = self.schema.sql("DELETE FROM reprocess.table_child WHERE t = $1").bind(self.t);
        forget.execute(connection, what).await?;
        for child in children {
            self.register_child(connection, child.relation, child.by_column.as_deref(), &child.bounds)
                .await?;
        }
        Ok(())
    }

    async fn register_child(
        &self,
        connection: &mut PgConnection,
        relation: i64,
        by_column: Option<&str>,
        bounds: &str,
    ) -> Result<()> {
        self.schema
            .sql("INSERT INTO reprocess.table_child (t, relation, by_column, bounds) VALUES ($1, $2::oid, $3, $4)")
            .bind(self.t)
            .bind(relation)
            .bind(by_column)
            .bind(bounds)
            .execute(connection, "register a partition of the table")
            .await?;
        Ok(())
    }
}

async fn has_rows(connection: &mut PgConnection, child: &Child) -> Result<bool> {
    let (any,): (bool,) = Statement::new(format!("SELECT EXISTS (SELECT 1 FROM ONLY {})", child.quoted()))
        .one(connection, WHAT)
        .await?;
    Ok(any)
}
