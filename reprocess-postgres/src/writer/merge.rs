//! Merging staged rows by key.

use arrow_schema::DataType;
use reprocess_core::Result;
use reprocess_core::ports::writer::MergeKeys;
use sqlx::PgConnection;

use super::apply::{Step, differs, equal};
use super::guard;
use super::keep::{self, KeptEntry, Slot};
use crate::catalog::{Managed, to_json};
use crate::layout::{Layout, quoted};
use crate::predicate::Rows;
use crate::sql::{Sql, Statement};

const WHAT: &str = "merge rows";

/// Fates of a row of the table that a staged row meets: it stays, takes the staged values, or goes. Where several rows
/// have one key, which none of ours do, the merge leaves one.
const UPDATED: &str = "f.fate = 'updated'";
const DELETED: &str = "f.fate = 'deleted'";
/// Whether the row `t` is the one that `f` names: places of rows are counted in each partition by itself.
const SAME_ROW: &str = "(t.ctid = f.t AND t.tableoid = f.part)";

/// Merges the rows of a staged table in one statement, so that all of it looks at one moment. Rows are matched within the
/// scope only, since a commit touches nothing else.
pub(super) async fn apply(
    connection: &mut PgConnection,
    managed: &Managed,
    step: &Step<'_>,
    merge: &MergeKeys,
    rows: &str,
) -> Result<()> {
    guard::check_target(connection, managed, merge).await?;
    index(connection, managed, merge).await?;
    let slot = match step.kept {
        Some(kept) => {
            let entry = KeptEntry {
                touched: step.scope.partitions(),
                within: vec![step.scope.clone()],
                merge: Some(merge.keys.clone()),
            };
            Some(keep::register(connection, managed, kept, &entry).await?)
        }
        None => None,
    };
    let parts = Parts { managed, step, merge, rows };
    parts.statement(slot.as_ref())?.statement().execute(connection, WHAT).await?;
    Ok(())
}

/// Condition under which the staged row `s` takes the place of the row `t` with its key, as far as their order says.
pub(crate) fn takes_over(layout: &Layout, merge: &MergeKeys, s: &str, t: &str) -> Result<String> {
    let Some(newer) = &merge.newer else { return Ok("true".to_owned()) };
    let text =
        matches!(layout.field(newer)?.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let (name, order) = (quoted(newer), if text { " COLLATE \"C\"" } else { "" });
    Ok(format!(
        "coalesce({s}.{name}{order} > {t}.{name}{order}, {t}.{name} IS NULL AND {s}.{name} IS NOT NULL)"
    ))
}

/// Condition under which `s` and `t` have the same key.
pub(crate) fn in_place_of(merge: &MergeKeys, s: &str, t: &str) -> String {
    equal(&merge.keys, t, s)
}

/// The rows `t` of the scope that the owner wrote, whatever their key.
pub(crate) fn owned(rows: Rows<'_>, step_scope: Sql, merge: &MergeKeys) -> Result<Option<Sql>> {
    let Some(owner) = &merge.delete_vanished else { return Ok(None) };
    let mut conditions = vec![step_scope];
    for (column, value) in owner {
        conditions.push(rows.equal(column, value)?);
    }
    Ok(Some(Sql::all(conditions)))
}

/// Whether a table of ours has no index on these keys yet. One is made with the first merge: without it each merge would
/// read the table. It is made while no other commit is under way, since two that make one wait for each other in a circle
/// as soon as they write.
pub(super) async fn needs_index(
    connection: &mut PgConnection,
    managed: &Managed,
    merge: &MergeKeys,
) -> Result<bool> {
    if managed.adopted {
        return Ok(false);
    }
    let (absent,): (bool,) = Statement::new("SELECT to_regclass($1) IS NULL")
        .bind(format!("{}.{}", quoted(managed.name.schema()), index_name(managed, merge)?))
        .one(connection, "look for an index")
        .await?;
    Ok(absent)
}

async fn index(connection: &mut PgConnection, managed: &Managed, merge: &MergeKeys) -> Result<()> {
    // Asked first: the statement below would lock the table against writers of other partitions also where it is there.
    if !needs_index(connection, managed, merge).await? {
        return Ok(());
    }
    let columns: Vec<_> = merge.keys.iter().map(|key| quoted(key)).collect();
    Statement::new(format!(
        "CREATE INDEX {} ON {} ({})",
        index_name(managed, merge)?,
        managed.name.quoted(),
        columns.join(", ")
    ))
    .execute(connection, "create an index")
    .await?;
    Ok(())
}

fn index_name(managed: &Managed, merge: &MergeKeys) -> Result<String> {
    let hash = blake3::hash(to_json(&merge.keys)?.as_bytes()).to_hex();
    Ok(format!("reprocess_keys_{}_{}", managed.relation, hash.get(..16).unwrap_or_default()))
}

struct Parts<'a> {
    managed: &'a Managed,
    step: &'a Step<'a>,
    merge: &'a MergeKeys,
    rows: &'a str,
}

impl Parts<'_> {
    fn statement(&self, slot: Option<&Slot>) -> Result<Sql> {
        let (layout, name) = (&self.managed.layout, self.managed.name.quoted());
        let mut with = self.fates()?;
        if let Some(slot) = slot {
            with = with.then(self.kept(slot)?);
        }
        let gone = format!(
            ", gone AS (DELETE FROM {name} AS t USING fates AS f WHERE {SAME_ROW} AND {DELETED} RETURNING 1)"
        );
        with = with.text(gone);
        if let Some(vanished) = self.vanished()? {
            with = with
                .text(format!(", vanished AS (DELETE FROM {name} AS t WHERE "))
                .then(vanished)
                .text(" RETURNING 1)");
        }
        let others: Vec<_> =
            layout.names().filter(|c| !self.merge.keys.iter().any(|k| k == c)).map(quoted).collect();
        if !others.is_empty() {
            let set: Vec<_> = others.iter().map(|c| format!("{c} = s.{c}")).collect();
            with = with.text(format!(
                ", changed AS (UPDATE {name} AS t SET {} FROM fates AS f JOIN {} AS s ON s.ctid = f.s
                   WHERE {SAME_ROW} AND {UPDATED} RETURNING 1)",
                set.join(", "),
                self.rows
            ));
        }
        // In the order of the keys, so that writers of the same ones wait for each other and not in a circle.
        let order: Vec<_> = self.merge.keys.iter().map(|key| format!("s.{}", quoted(key))).collect();
        Ok(with.text(format!(
            " INSERT INTO {name} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} ORDER BY {}",
            layout.list(""),
            layout.list("s."),
            self.unmatched("s"),
            order.join(", ")
        )))
    }

    /// Which staged row has the key of which row of the table, or of none, and what becomes of the latter. Each is looked
    /// up by itself: the table may be much larger than what is merged, and the server would rather read all of it.
    fn fates(&self) -> Result<Sql> {
        let newer = takes_over(&self.managed.layout, self.merge, "s", "t")?;
        let matches = Sql::new(format!(
            "WITH matches AS MATERIALIZED (
                 SELECT t.at AS t, t.part, s.ctid AS s, t.newer, t.differs FROM {} AS s LEFT JOIN LATERAL (
                     SELECT t.at, t.part, {newer} AS newer, ({}) AS differs FROM {} WHERE ",
            self.rows,
            differs(&self.managed.layout, &self.merge.keys),
            self.looked_up(&in_place_of(self.merge, "s", "t"))
        ))
        .then(self.managed.rows().scope(self.step.scope)?)
        .text(") AS t ON true");
        // A key of others is unique.
        Ok(if self.managed.adopted {
            let left_alone = match self.merge.delete_vanished {
                Some(_) => "",
                None => " WHERE t.at IS NULL OR (t.newer AND t.differs)",
            };
            matches.text(left_alone).text(
                "), fates AS MATERIALIZED (
                     SELECT m.t, m.part, m.s, CASE WHEN m.newer AND m.differs THEN 'updated' ELSE 'stays' END AS fate
                     FROM matches AS m WHERE m.t IS NOT NULL)",
            )
        } else {
            matches.text(
                "), fates AS MATERIALIZED (
                     SELECT m.t, m.part, m.s, CASE
                         WHEN NOT m.newer THEN 'stays'
                         WHEN NOT bool_and(m.newer) OVER same OR row_number() OVER same_in_order > 1 THEN 'deleted'
                         WHEN m.differs THEN 'updated' ELSE 'stays' END AS fate
                     FROM matches AS m WHERE m.t IS NOT NULL
                     WINDOW same AS (PARTITION BY m.s), same_in_order AS (PARTITION BY m.s ORDER BY m.part, m.t))",
            )
        })
    }

    /// The rows `t` of the table that meet a condition on their keys, found by these alone: where the planner knows nothing
    /// of a new day, it would go through all its rows for each key.
    fn looked_up(&self, keys: &str) -> String {
        let name = self.managed.name.quoted();
        format!("(SELECT t.ctid AS at, t.tableoid AS part, t.* FROM {name} AS t WHERE {keys} OFFSET 0) AS t")
    }

    fn vanished(&self) -> Result<Option<Sql>> {
        let rows = self.managed.rows();
        let owned = owned(rows, rows.scope(self.step.scope)?, self.merge)?;
        let unmatched = format!(" AND NOT EXISTS (SELECT 1 FROM matches AS f WHERE {SAME_ROW})");
        Ok(owned.map(|owned| owned.text(unmatched)))
    }

    /// The staged rows, under a name, that match none.
    fn unmatched(&self, name: &str) -> String {
        format!("{} AS {name} JOIN matches AS m ON m.s = {name}.ctid WHERE m.t IS NULL", self.rows)
    }

    /// Keeps the rows that go as they are, and those that come so that a restore knows them.
    fn kept(&self, slot: &Slot) -> Result<Sql> {
        let (layout, name) = (&self.managed.layout, self.managed.name.quoted());
        let mut going = Sql::new(format!(
            ", going AS MATERIALIZED (SELECT t.* FROM fates AS f JOIN {name} AS t ON {SAME_ROW}
                 WHERE ({UPDATED} OR {DELETED})"
        ));
        if let Some(vanished) = self.vanished()? {
            going = going.text(format!(" UNION ALL SELECT t.* FROM {name} AS t WHERE ")).then(vanished);
        }
        // With the others of their keys, where keys repeat: a restore takes away every row of a kept key.
        let kept = if self.managed.adopted {
            Sql::new("going AS t")
        } else {
            let keys: Vec<_> = self.merge.keys.iter().map(|key| quoted(key)).collect();
            Sql::new(format!(
                "(SELECT DISTINCT {} FROM going) AS g JOIN LATERAL {} ON ",
                keys.join(", "),
                self.looked_up(&equal(&self.merge.keys, "g", "t"))
            ))
            .then(self.managed.rows().scope(self.step.scope)?)
        };
        Ok(going
            .text("), kept AS (")
            .then(slot.insert(layout, false, kept))
            .text(" RETURNING 1), kept_new AS (")
            .then(slot.insert(layout, true, Sql::new(self.unmatched("t"))))
            .text(" RETURNING 1)"))
    }
}
