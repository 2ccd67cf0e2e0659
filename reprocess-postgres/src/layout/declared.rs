//! The columns of a table as the server knows them.

use std::sync::Arc;

use arrow_schema::{Field, Schema};
use reprocess_core::{Error, Result};
use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgConnection, Row};

use super::{Kind, Layout, Store};
use crate::sql::Statement;

const WHAT: &str = "read the columns of a table";

/// Domains are followed to the type below; what qualifies a type may stand at any of them.
const COLUMNS: &str = "
    WITH RECURSIVE step (attnum, oid, modifier, not_null, depth) AS (
        SELECT a.attnum, a.atttypid, a.atttypmod, a.attnotnull, 0
        FROM pg_attribute AS a WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT s.attnum, d.typbasetype, CASE WHEN s.modifier < 0 THEN d.typtypmod ELSE s.modifier END,
               s.not_null OR d.typnotnull, s.depth + 1
        FROM step AS s JOIN pg_type AS d ON d.oid = s.oid AND d.typtype = 'd'),
    base AS (SELECT DISTINCT ON (attnum) * FROM step ORDER BY attnum, depth DESC)
    SELECT a.attname::text AS name, format_type(a.atttypid, a.atttypmod) AS definition,
           a.atttypid::bigint AS oid, a.atttypmod AS modifier, b.oid::bigint AS base, b.modifier AS base_modifier,
           b.not_null AS not_null, t.typtype::text AS class, a.attidentity = 'a' AS always_counted,
           a.attgenerated <> '' AS generated, coalesce(NOT c.collisdeterministic, false) AS blurred
    FROM base AS b
    JOIN pg_attribute AS a ON a.attrelid = $1::oid AND a.attnum = b.attnum
    JOIN pg_type AS t ON t.oid = b.oid
    LEFT JOIN pg_collation AS c ON c.oid = a.attcollation
    ORDER BY a.attnum";

struct Declared {
    name: String,
    definition: String,
    oid: i64,
    modifier: i32,
    base: i64,
    base_modifier: i32,
    not_null: bool,
    class: String,
    always_counted: bool,
    generated: bool,
    blurred: bool,
}

impl FromRow<'_, PgRow> for Declared {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            name: row.try_get("name")?,
            definition: row.try_get("definition")?,
            oid: row.try_get("oid")?,
            modifier: row.try_get("modifier")?,
            base: row.try_get("base")?,
            base_modifier: row.try_get("base_modifier")?,
            not_null: row.try_get("not_null")?,
            class: row.try_get("class")?,
            always_counted: row.try_get("always_counted")?,
            generated: row.try_get("generated")?,
            blurred: row.try_get("blurred")?,
        })
    }
}

/// The columns of a table, with the Arrow types of `wanted_schema` where that has the column. Columns that the server computes
/// from others are left out. Refuses, by name, what cannot be read and written exactly.
pub(crate) async fn declared(
    connection: &mut PgConnection,
    relation: i64,
    wanted_schema: Option<&Schema>,
) -> Result<Layout> {
    let columns = columns(connection, relation).await?;
    layout(columns.into_iter().filter(|column| !column.generated), wanted_schema)
}

/// The columns of something that is only read, those that are computed from others too; with a schema those that it has,
/// with its types.
pub(crate) async fn readable(
    connection: &mut PgConnection,
    relation: i64,
    wanted_schema: Option<&Schema>,
) -> Result<Layout> {
    let columns = columns(connection, relation).await?;
    let Some(wanted) = wanted_schema else { return layout(columns, None) };
    if let Some(absent) = wanted.fields().iter().find(|f| columns.iter().all(|c| c.name != *f.name())) {
        return Err(Error::invalid(format!("the table has no column `{}`", absent.name())));
    }
    layout(columns.into_iter().filter(|c| wanted.field_with_name(&c.name).is_ok()), wanted_schema)
}

/// How one column is stored, and whether it may be NULL; `None` where there is none.
pub(crate) async fn stored(
    connection: &mut PgConnection,
    relation: i64,
    name: &str,
) -> Result<Option<(Store, bool)>> {
    let columns = columns(connection, relation).await?;
    let column = columns.iter().find(|column| column.name == name);
    column.map(|column| Ok((store(column)?, !column.not_null))).transpose()
}

async fn columns(connection: &mut PgConnection, relation: i64) -> Result<Vec<Declared>> {
    // So that the names of types do not depend on where names are looked up.
    let (path,): (String,) =
        Statement::new("SELECT current_setting('search_path')").one(connection, WHAT).await?;
    search(connection, "pg_catalog").await?;
    let columns = Statement::new(COLUMNS).bind(relation).all(connection, WHAT).await?;
    search(connection, &path).await?;
    Ok(columns)
}

fn layout(columns: impl IntoIterator<Item = Declared>, wanted_schema: Option<&Schema>) -> Result<Layout> {
    let (mut fields, mut stores) = (Vec::new(), Vec::new());
    for column in columns {
        let store = store(&column)?;
        let wanted = wanted_schema.and_then(|schema| schema.field_with_name(&column.name).ok());
        let data_type = match wanted {
            Some(field) if store.fits(field.data_type()) => field.data_type().clone(),
            Some(field) => {
                return Err(Error::invalid(format!(
                    "column `{}` is a {} in PostgreSQL, which holds no {}",
                    column.name,
                    store.definition,
                    field.data_type()
                ))
                .with_advice(format!("its type in Arrow is {}", store.data_type())));
            }
            None => store.data_type(),
        };
        let metadata = wanted.map(|field| field.metadata().clone()).unwrap_or_default();
        fields.push(Field::new(&column.name, data_type, !column.not_null).with_metadata(metadata));
        stores.push(store);
    }
    let metadata = wanted_schema.map(|schema| schema.metadata().clone()).unwrap_or_default();
    Layout::new(Arc::new(Schema::new_with_metadata(fields, metadata)), stores)
}

async fn search(connection: &mut PgConnection, path: &str) -> Result<()> {
    Statement::new("SELECT set_config('search_path', $1, true)").bind(path).execute(connection, WHAT).await?;
    Ok(())
}

fn store(column: &Declared) -> Result<Store> {
    let length = || u32::try_from(column.base_modifier - 4).ok();
    let digits = || u8::try_from(column.base_modifier).unwrap_or(6).min(6);
    let kind = match column.base {
        _ if column.class == "e" => Kind::Enum,
        16 => Kind::Boolean,
        17 => Kind::Bytea,
        20 => Kind::Int8,
        21 => Kind::Int2,
        23 => Kind::Int4,
        25 => Kind::Text { most: None },
        114 => Kind::Json,
        700 => Kind::Float4,
        701 => Kind::Float8,
        790 => {
            return Err(Error::invalid(format!(
                "column `{}` is of type money, whose texts depend on settings of the server",
                column.name
            ))
            .with_advice("change its type to numeric(19,2)"));
        }
        1042 => length().map_or(Kind::Other, |most| Kind::Padded { most }),
        1043 => Kind::Text { most: length() },
        1082 => Kind::Date,
        1114 => Kind::Timestamp { zone: false, digits: digits() },
        1184 => Kind::Timestamp { zone: true, digits: digits() },
        1700 => numeric(column.base_modifier).unwrap_or(Kind::Other),
        2950 => Kind::Uuid,
        3802 => Kind::Jsonb,
        _ => Kind::Other,
    };
    Ok(Store {
        kind,
        definition: column.definition.clone(),
        oid: column.oid,
        modifier: column.modifier,
        always_counted: column.always_counted,
        blurred: column.blurred,
    })
}

/// `None` where the type says no precision, a negative scale or one that Arrow has not.
fn numeric(modifier: i32) -> Option<Kind> {
    let packed = modifier.checked_sub(4).filter(|packed| *packed >= 0)?;
    let precision = u8::try_from((packed >> 16) & 0xffff).ok().filter(|precision| *precision <= 76)?;
    // 11 bits with a sign; a negative one is beyond every precision here.
    let scale = u8::try_from(packed & 0x7ff).ok().filter(|scale| *scale <= precision)?;
    Some(Kind::Numeric { precision, scale })
}
