//! Writing only what differs between the rows of a region and staged ones, where both have a key.

use reprocess_core::Result;
use sqlx::PgConnection;

use super::apply::{WHAT, delete, differs, equal};
use crate::catalog::Managed;
use crate::layout::quoted;
use crate::sql::{Sql, Statement};

/// Where less than so many hundredths of the rows differ, only those are written.
const FEW_PERCENT: i64 = 30;

/// Of so many rows some are looked at first, and all only if not most of those differ.
const MANY_ROWS: i64 = 10_000;
const LOOKED_AT: i64 = 500;
const MOST_PERCENT: i64 = 60;

const COMPARE: &str = "compare staged rows";

/// All rows are looked at anyway, and where the planner knows nothing of a new day it would go through all staged rows
/// again for each of them.
const NO_LOOPS: &str = "SET LOCAL enable_nestloop = off";
const LOOPS: &str = "SET LOCAL enable_nestloop TO DEFAULT";

/// Few rows that differ.
pub(super) struct Difference<'a> {
    managed: &'a Managed,
    region: &'a Sql,
    /// The table of the staged rows, for statements.
    rows: &'a str,
    key: Vec<String>,
    changed: i64,
}

impl<'a> Difference<'a> {
    /// `None` where there is no key, or where so much differs that all is written sooner.
    pub(super) async fn of(
        connection: &mut PgConnection,
        managed: &'a Managed,
        region: &'a Sql,
        rows: &'a str,
        row_count: i64,
    ) -> Result<Option<Self>> {
        let key = managed.keys(connection).await?.into_iter().next();
        let counted = |key: &[String]| {
            let mut others = managed.layout.columns().filter(|(field, _)| !key.contains(field.name()));
            others.any(|(_, store)| store.always_counted)
        };
        let Some(key) = key.filter(|key| !counted(key)) else { return Ok(None) };
        let mut difference = Self { managed, region, rows, key, changed: 0 };
        if row_count >= MANY_ROWS && difference.is_most(connection, row_count).await? {
            return Ok(None);
        }
        difference.changed = difference.count(connection).await?;
        let few = difference.changed.saturating_mul(100) < row_count.saturating_mul(FEW_PERCENT);
        Ok(few.then_some(difference))
    }

    /// Whether most of some staged rows differ. They are looked up by their keys alone, wherever they are.
    async fn is_most(&self, connection: &mut PgConnection, row_count: i64) -> Result<bool> {
        // Ten times as many as are looked at, since pages are taken and not rows.
        let percent = (1_000 * LOOKED_AT / row_count).clamp(1, 100);
        let (looked_at, changed): (i64, i64) = Statement::new(format!(
            "SELECT count(*), count(*) FILTER (WHERE t.{first} IS NULL OR {differs})
             FROM (SELECT * FROM {rows} TABLESAMPLE SYSTEM ({percent}) REPEATABLE (0) LIMIT {LOOKED_AT}) AS s
             LEFT JOIN LATERAL (SELECT * FROM {target} AS t WHERE {equal} OFFSET 0) AS t ON true",
            first = self.first(),
            differs = differs(&self.managed.layout, &self.key),
            rows = self.rows,
            target = self.managed.name.quoted(),
            equal = equal(&self.key, "t", "s")
        ))
        .one(connection, COMPARE)
        .await?;
        Ok(changed * 100 > looked_at * MOST_PERCENT)
    }

    async fn count(&self, connection: &mut PgConnection) -> Result<i64> {
        Statement::new(NO_LOOPS).execute(connection, COMPARE).await?;
        let (changed,): (i64,) = Sql::new(format!(
            "SELECT count(*) FROM (SELECT * FROM {} AS t WHERE ",
            self.managed.name.quoted()
        ))
        .then(self.region.clone())
        .text(format!(
            ") AS t FULL JOIN {} AS s ON {} WHERE t.{first} IS NULL OR s.{first} IS NULL OR {}",
            self.rows,
            equal(&self.key, "t", "s"),
            differs(&self.managed.layout, &self.key),
            first = self.first()
        ))
        .statement()
        .one(connection, COMPARE)
        .await?;
        Statement::new(LOOPS).execute(connection, COMPARE).await?;
        Ok(changed)
    }

    fn first(&self) -> String {
        self.key.first().map(|column| quoted(column)).unwrap_or_default()
    }

    pub(super) async fn write(&self, connection: &mut PgConnection) -> Result<()> {
        if self.changed == 0 {
            return Ok(());
        }
        Statement::new(NO_LOOPS).execute(connection, WHAT).await?;
        let Self { managed, region, rows, key, .. } = self;
        let name = managed.name.quoted();
        let equal = equal(key, "t", "s");
        let vanished = format!(" AND NOT EXISTS (SELECT 1 FROM {rows} AS s WHERE {equal})");
        delete(connection, managed, (*region).clone().text(vanished)).await?;
        let others: Vec<_> = managed.layout.names().filter(|c| !key.iter().any(|k| k == c)).collect();
        if !others.is_empty() {
            let set: Vec<_> = others.iter().map(|c| format!("{0} = s.{0}", quoted(c))).collect();
            Sql::new(format!(
                "UPDATE {name} AS t SET {} FROM {rows} AS s WHERE {equal} AND ({}) AND ",
                set.join(", "),
                differs(&managed.layout, key)
            ))
            .then((*region).clone())
            .statement()
            .execute(connection, WHAT)
            .await?;
        }
        Sql::new(format!(
            "INSERT INTO {name} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {rows} AS s
             WHERE NOT EXISTS (SELECT 1 FROM {name} AS t WHERE {equal} AND ",
            managed.layout.list(""),
            managed.layout.list("s."),
        ))
        .then((*region).clone())
        .text(")")
        .statement()
        .execute(connection, WHAT)
        .await?;
        Statement::new(LOOPS).execute(connection, WHAT).await?;
        Ok(())
    }
}
