//! Partitions that another table can take the place of: those that hold all rows of a key and no others, and have nothing
//! that would not come along.

use reprocess_core::Result;
use reprocess_core::domain::partition::PartitionKey;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;

use super::Managed;
use super::bounds;
use super::children::Child;
use crate::layout::Kind;
use crate::sql::Statement;

const WHAT: &str = "look at a partition of the table";

/// A default partition is read as another one is attached, while everyone waits: so many bytes at the most.
const MOST_DEFAULT_BYTES: i64 = 8 << 20;

/// What a table in the place of the partition `$1` of `$2` would not have, or would have done to it.
const OBSTACLES: &str = r"
    SELECT array_remove(ARRAY[
        CASE WHEN c.relkind <> 'r' THEN 'it has partitions of its own' END,
        CASE WHEN c.relowner <> (SELECT oid FROM pg_roles WHERE rolname = current_user) THEN 'another role owns it' END,
        CASE WHEN NOT pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = $2::oid), 'USAGE')
            OR NOT has_schema_privilege(c.relnamespace, 'CREATE')
            THEN 'the role may not attach partitions to the table or make any beside it' END,
        CASE WHEN c.relacl IS NOT NULL OR EXISTS (
            SELECT 1 FROM pg_attribute WHERE attrelid = c.oid AND attacl IS NOT NULL) THEN 'it has grants of its own' END,
        CASE WHEN c.reloptions IS NOT NULL OR EXISTS (
            SELECT 1 FROM pg_class WHERE oid = c.reltoastrelid AND reloptions IS NOT NULL)
            THEN 'it has storage parameters of its own' END,
        CASE WHEN c.relpersistence <> 'p' OR c.reltablespace <> 0 OR c.reloftype <> 0 OR c.relam <> (
            SELECT oid FROM pg_am WHERE amname = current_setting('default_table_access_method'))
            THEN 'it is stored in another way than a new table' END,
        CASE WHEN c.relreplident <> 'd' THEN 'it has a replica identity of its own' END,
        CASE WHEN c.relrowsecurity OR EXISTS (SELECT 1 FROM pg_policy WHERE polrelid = c.oid)
            THEN 'it has row security of its own' END,
        CASE WHEN c.relhasrules THEN 'it has rules' END,
        CASE WHEN EXISTS (
            SELECT 1 FROM pg_trigger WHERE tgrelid IN (c.oid, $2::oid) AND NOT tgisinternal
                AND tgname !~ '^reprocess_foreign_') THEN 'there are triggers, which a swap does not fire' END,
        CASE WHEN EXISTS (SELECT 1 FROM pg_constraint WHERE confrelid IN (c.oid, $2::oid) AND contype = 'f')
            THEN 'others refer to its rows by foreign keys' END,
        CASE WHEN EXISTS (SELECT 1 FROM pg_publication WHERE puballtables)
            OR EXISTS (SELECT 1 FROM pg_publication_rel WHERE prrelid IN (c.oid, $2::oid))
            OR EXISTS (SELECT 1 FROM pg_publication_namespace WHERE pnnspid IN (
                SELECT relnamespace FROM pg_class WHERE oid IN (c.oid, $2::oid)))
            THEN 'it is published, and a swap would not be' END,
        CASE WHEN EXISTS (SELECT 1 FROM pg_statistic_ext WHERE stxrelid = c.oid)
            OR EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0
                AND (attoptions IS NOT NULL OR coalesce(attstattarget, -1) <> -1))
            THEN 'it has statistics of its own' END,
        CASE WHEN EXISTS (SELECT 1 FROM pg_description WHERE objoid = c.oid AND classoid = 'pg_class'::regclass)
            OR EXISTS (SELECT 1 FROM pg_seclabel WHERE objoid = c.oid AND classoid = 'pg_class'::regclass)
            THEN 'it has comments or labels of its own' END,
        CASE WHEN EXISTS (SELECT 1 FROM pg_constraint WHERE conrelid = c.oid AND (contype = 'x' OR NOT convalidated))
            THEN 'it has a constraint that is not valid, or one of exclusion' END,
        CASE WHEN EXISTS (
            SELECT 1 FROM pg_index AS i JOIN pg_class AS x ON x.oid = i.indexrelid
            WHERE i.indrelid = c.oid AND (NOT i.indisvalid OR i.indisclustered OR x.reltablespace <> 0))
            THEN 'it has an index that is not valid or stored elsewhere, or is clustered' END,
        CASE WHEN EXISTS (
            SELECT 1 FROM pg_depend AS d WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid
                AND d.deptype = 'n'
                AND NOT (d.classid = 'pg_constraint'::regclass
                         AND d.objid IN (SELECT oid FROM pg_constraint WHERE conrelid = c.oid))
                AND NOT (d.classid = 'pg_class'::regclass
                         AND d.objid IN (SELECT indexrelid FROM pg_index WHERE indrelid = c.oid))
                AND NOT (d.classid = 'pg_attrdef'::regclass
                         AND d.objid IN (SELECT oid FROM pg_attrdef WHERE adrelid = c.oid)))
            THEN 'views or the like depend on it' END,
        (SELECT CASE WHEN d.relkind <> 'r' OR pg_relation_size(d.oid) > $3
                THEN 'the default partition would be read while everyone waits' END
         FROM pg_partitioned_table AS p JOIN pg_class AS d ON d.oid = p.partdefid WHERE p.partrelid = $2::oid)
    ], NULL)
    FROM pg_class AS c WHERE c.oid = $1::oid";

/// Columns and constraints, as text; the foreign keys; and what rows of the partition fulfil.
const DEFINITION: &str = "
    SELECT (SELECT coalesce(string_agg(concat_ws(' ', quote_ident(a.attname), a.atttypid, a.atttypmod, a.attcollation,
                a.attnotnull, a.attgenerated, a.attstorage, a.attcompression, pg_get_expr(d.adbin, d.adrelid)),
                ', ' ORDER BY a.attnum), '')
            FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped),
           (SELECT coalesce(string_agg(concat_ws(' ', quote_ident(conname), contype, pg_get_constraintdef(oid)), ', '
                ORDER BY conname), '')
            FROM pg_constraint WHERE conrelid = $1::oid),
           coalesce(pg_get_partition_constraintdef($1::oid), '')";

const FOREIGN_KEYS: &str = "
    SELECT conname::text, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE conrelid = $1::oid AND contype = 'f' ORDER BY conname";

/// What is behind `ON table` of each index, and the constraint that it is of.
const INDEXES: &str = "
    SELECT x.relname::text, i.indisunique, pg_get_indexdef(i.indexrelid),
           format('CREATE %sINDEX %I ON %I.%I ', CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END, x.relname,
                  n.nspname, c.relname),
           CASE k.contype WHEN 'p' THEN 'PRIMARY KEY' WHEN 'u' THEN 'UNIQUE' END,
           coalesce(k.condeferrable, false), coalesce(k.condeferred, false)
    FROM pg_index AS i
    JOIN pg_class AS x ON x.oid = i.indexrelid
    JOIN pg_class AS c ON c.oid = i.indrelid
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN pg_constraint AS k ON k.conindid = i.indexrelid AND k.contype IN ('p', 'u')
    WHERE i.indrelid = $1::oid ORDER BY x.relname";

/// A partition, with all that a table in its place needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Exclusive {
    pub(crate) relation: i64,
    pub(crate) schema: String,
    pub(crate) name: String,
    /// As `ATTACH PARTITION` takes them.
    pub(crate) bounds: String,
    /// What every row of the partition fulfils, so that none need be looked at as a table is attached.
    pub(crate) condition: String,
    pub(crate) indexes: Vec<Index>,
    /// Names and definitions.
    pub(crate) foreign_keys: Vec<(String, String)>,
    columns: String,
    constraints: String,
}

/// An index of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Index {
    pub(crate) name: String,
    unique: bool,
    /// What follows the name of the table, from `USING` on.
    rest: String,
    constraint: Option<Constraint>,
}

/// The constraint that an index is of: a primary key or a unique one, and when it is checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Constraint {
    kind: String,
    timing: String,
}

impl Exclusive {
    /// Whether another table in the place of this one is made in the same way.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        *self == Self { relation: self.relation, ..other.clone() }
    }

    /// For statements.
    pub(crate) fn quoted(&self) -> String {
        super::children::quoted_name(&self.schema, &self.name)
    }
}

impl Index {
    /// The statements that give another table such an index; both names are quoted.
    pub(crate) fn statements(&self, name: &str, table: &str) -> Vec<String> {
        let unique = if self.unique { "UNIQUE " } else { "" };
        let mut statements = vec![format!("CREATE {unique}INDEX {name} ON {table} {}", self.rest)];
        if let Some(constraint) = &self.constraint {
            let Constraint { kind, timing } = constraint;
            statements.push(format!(
                "ALTER TABLE {table} ADD CONSTRAINT {name} {kind} USING INDEX {name} {timing}"
            ));
        }
        statements
    }
}

type IndexRow = (String, bool, String, String, Option<String>, bool, bool);

impl Managed {
    /// The partition that holds all rows of the key and no others, where a table can take its place; else why not.
    pub(crate) async fn exclusive(
        &self,
        connection: &mut PgConnection,
        key: &PartitionKey,
    ) -> Result<Result<Exclusive, String>> {
        if !self.partitioned {
            return Ok(Err("the table is not partitioned".to_owned()));
        }
        if let Some((field, _)) = self.layout.columns().find(|(_, store)| store.kind == Kind::Other) {
            return Ok(Err(format!("column `{}` is staged as text", field.name())));
        }
        let of_key = |child: &Child| {
            child.parent == self.relation
                && child
                    .by_column
                    .as_deref()
                    .is_some_and(|column| bounds::is_exactly(&self.partitioning, key, column, &child.bounds))
        };
        let Some(child) = self.children(connection).await?.into_iter().find(of_key) else {
            return Ok(Err(format!("no partition of the table holds the rows of {key} and no others")));
        };
        let (obstacles,): (Vec<String>,) = Statement::new(OBSTACLES)
            .bind(child.relation)
            .bind(self.relation)
            .bind(MOST_DEFAULT_BYTES)
            .one(connection, WHAT)
            .await?;
        if !obstacles.is_empty() {
            return Ok(Err(format!("of the partition `{}`: {}", child.name, obstacles.join("; "))));
        }
        // Names are written out then, whatever is looked up where.
        let (path,): (String,) =
            Statement::new("SELECT current_setting('search_path')").one(connection, WHAT).await?;
        search(connection, "pg_catalog").await?;
        let described = describe(connection, child).await;
        search(connection, &path).await?;
        described
    }
}

async fn describe(connection: &mut PgConnection, child: Child) -> Result<Result<Exclusive, String>> {
    let (columns, constraints, condition): (String, String, String) =
        Statement::new(DEFINITION).bind(child.relation).one(connection, WHAT).await?;
    let foreign_keys = Statement::new(FOREIGN_KEYS).bind(child.relation).all(connection, WHAT).await?;
    let found: Vec<IndexRow> = Statement::new(INDEXES).bind(child.relation).all(connection, WHAT).await?;
    let mut indexes = Vec::with_capacity(found.len());
    for (name, unique, definition, before, constraint, deferrable, deferred) in found {
        let Some(rest) = definition.strip_prefix(&before) else {
            return Ok(Err(format!("the index `{name}` is written in an unknown way")));
        };
        let timing = match (deferrable, deferred) {
            (true, true) => "DEFERRABLE INITIALLY DEFERRED",
            (true, false) => "DEFERRABLE",
            _ => "",
        };
        let constraint = constraint.map(|kind| Constraint { kind, timing: timing.to_owned() });
        indexes.push(Index { name, unique, rest: rest.to_owned(), constraint });
    }
    let Child { relation, schema, name, bounds, .. } = child;
    Ok(Ok(Exclusive {
        relation,
        schema,
        name,
        bounds,
        condition,
        indexes,
        foreign_keys,
        columns,
        constraints,
    }))
}

async fn search(connection: &mut PgConnection, path: &str) -> Result<()> {
    Statement::new("SELECT set_config('search_path', $1, true)").bind(path).execute(connection, WHAT).await?;
    Ok(())
}
