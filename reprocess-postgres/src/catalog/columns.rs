//! Other columns for a table that is there, and what the server says of those it has.

use reprocess_core::{Error, ErrorKind, Result};
use sqlx::PgConnection;

use super::{Managed, to_json};
use crate::layout::{Layout, declared, quoted};
use crate::sql::Statement;

const CHANGE: &str = "change the columns of the table";

impl Managed {
    /// Whether the columns are still those that are known.
    pub(crate) async fn is_as_known(&self, connection: &mut PgConnection) -> Result<bool> {
        let columns: Vec<(String, i64, i32, bool)> = Statement::new(
            "SELECT attname::text, atttypid::bigint, atttypmod, attnotnull FROM pg_attribute
             WHERE attrelid = $1::oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
        )
        .bind(self.relation)
        .all(connection, "read the columns of a table")
        .await?;
        let known = self.layout.columns();
        // A domain may refuse NULL where the column itself does not.
        let same =
            |(column, known): (&(String, i64, i32, bool), (&arrow_schema::Field, &crate::layout::Store))| {
                let (name, oid, modifier, not_null) = column;
                let (field, store) = known;
                (name, *oid, *modifier) == (field.name(), store.oid, store.modifier)
                    && !(*not_null && field.is_nullable())
            };
        Ok(columns.len() == self.layout.stores().len() && columns.iter().zip(known).all(same))
    }

    /// Refuses a table of which others copy the fate of its rows: replaced rows would take rows elsewhere with them.
    pub(crate) async fn check_dependants(&self, connection: &mut PgConnection) -> Result<()> {
        let following: Option<(String, String)> = Statement::new(
            "WITH RECURSIVE tree (relation) AS (
                 SELECT $1::oid UNION ALL
                 SELECT i.inhrelid FROM pg_inherits AS i JOIN tree AS t ON i.inhparent = t.relation)
             SELECT conname::text, conrelid::regclass::text FROM pg_constraint
             WHERE confrelid IN (SELECT relation FROM tree) AND contype = 'f' AND confdeltype IN ('c', 'n', 'd')
             ORDER BY 1 LIMIT 1",
        )
        .bind(self.relation)
        .first(connection, "look for foreign keys to the table")
        .await?;
        let Some((key, other)) = following else { return Ok(()) };
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("rows of `{other}` go or change with rows of the table, by the foreign key `{key}`"),
        )
        .with_advice("make it ON DELETE NO ACTION, so that nothing beside the scope is touched"))
    }

    /// The keys of the table: columns that are never NULL and together unique at each statement, the primary key first.
    pub(crate) async fn keys(&self, connection: &mut PgConnection) -> Result<Vec<Vec<String>>> {
        let keys: Vec<(Vec<String>,)> = Statement::new(
            "SELECT array_agg(a.attname::text ORDER BY k.place)
             FROM pg_index AS i
             CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (attnum, place)
             JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
             WHERE i.indrelid = $1::oid AND i.indisunique AND i.indimmediate AND i.indisvalid
               AND i.indpred IS NULL AND i.indexprs IS NULL AND k.place <= i.indnkeyatts
             GROUP BY i.indexrelid, i.indisprimary, i.indnkeyatts
             HAVING bool_and(a.attnotnull)
             ORDER BY i.indisprimary DESC, i.indexrelid",
        )
        .bind(self.relation)
        .all(connection, "look for keys of the table")
        .await?;
        let comparable =
            |key: &[String]| key.iter().all(|c| self.layout.column(c).is_ok_and(|(_, s)| s.is_comparable()));
        Ok(keys.into_iter().map(|(key,)| key).filter(|key| comparable(key)).collect())
    }

    /// Adds the columns of the layout that the table lacks.
    pub(crate) async fn extend(&mut self, connection: &mut PgConnection, layout: &Layout) -> Result<()> {
        let wanted = self.layout.extended(layout)?;
        for (field, store) in layout.columns().filter(|(field, _)| self.layout.field(field.name()).is_err()) {
            self.alter(connection, &format!("ADD COLUMN {} {}", quoted(field.name()), store.definition))
                .await?;
        }
        self.read_columns(connection, &wanted).await
    }

    /// Gives the table, which is empty, these columns. What depends on it stays: a column that goes and that a view or
    /// the like needs is refused by the server.
    pub(crate) async fn rebuild(&mut self, connection: &mut PgConnection, layout: &Layout) -> Result<()> {
        layout.check_partitioning(&self.partitioning)?;
        let stays = |name: &str| {
            let (ours, theirs) = (self.layout.column(name).ok()?, layout.column(name).ok()?);
            (ours.1.definition == theirs.1.definition)
                .then_some((ours.0.is_nullable(), theirs.0.is_nullable()))
        };
        let mut steps = Vec::new();
        for name in self.layout.names() {
            match stays(name) {
                None => steps.push(format!("DROP COLUMN {}", quoted(name))),
                Some((true, false)) => steps.push(format!("ALTER COLUMN {} SET NOT NULL", quoted(name))),
                Some((false, true)) => steps.push(format!("ALTER COLUMN {} DROP NOT NULL", quoted(name))),
                Some(_) => {}
            }
        }
        for ((field, _), definition) in layout.columns().zip(layout.definitions()) {
            if stays(field.name()).is_none() {
                steps.push(format!("ADD COLUMN {definition}"));
            }
        }
        for step in steps {
            self.alter(connection, &step).await?;
        }
        self.read_columns(connection, layout).await?;
        self.build(connection).await
    }

    async fn alter(&self, connection: &mut PgConnection, step: &str) -> Result<()> {
        let alter = format!("ALTER TABLE {} {step}", self.name.quoted());
        Statement::new(alter).execute(connection, CHANGE).await?;
        Ok(())
    }

    async fn read_columns(&mut self, connection: &mut PgConnection, wanted: &Layout) -> Result<()> {
        self.layout = declared(connection, self.relation, Some(wanted.schema())).await?;
        self.schema
            .sql("UPDATE reprocess.table_registry SET columns = $2 WHERE t = $1")
            .bind(self.t)
            .bind(to_json(&self.layout)?)
            .execute(connection, CHANGE)
            .await?;
        Ok(())
    }
}
