//! Merging by key: the files in which a row changes are written again without it, and the rows that come go into new ones.
//!
//! A staged row takes the place of the rows of its key that are there unless one of them is not older; it is written where
//! none of its key is there, or where it takes a place. Files in which nothing changes stay as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_schema::{DataType, Schema, SchemaRef};
use datafusion::arrow::compute::cast;
use datafusion::catalog::TableProvider;
use datafusion::common::{ParamValues, ScalarValue};
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::SessionContext;
use datafusion::prelude::{DataFrame, lit};
use reprocess_core::domain::rows::Columns;
use reprocess_core::domain::value::Value;
use reprocess_core::ports::reader::RowStream;
use reprocess_core::ports::writer::MergeKeys;
use reprocess_core::{Error, Result};

use crate::error::{Doing, broken_promise};
use crate::query::scalar;
use crate::session::{conformed, without_tables};

/// A column of the name of each row's file; beside those of the table.
pub const FILE: &str = "_reprocess_file";

/// How many offending keys an error names.
const NAMED_KEYS: usize = 5;
/// Staged rows count as so many times the size of their files once they are in memory.
const EXPANSION: u64 = 8;
const WHAT: &str = "merge rows";

/// Refuses columns that are not there.
pub fn check(by: &MergeKeys, columns: &Schema) -> Result<()> {
    if by.keys.is_empty() {
        return Err(Error::invalid("a merge needs the columns that identify a row"));
    }
    let owner = by.delete_vanished.iter().flat_map(BTreeMap::keys);
    for name in by.keys.iter().chain(&by.newer).chain(owner) {
        if columns.field_with_name(name).is_err() {
            return Err(Error::invalid(format!(
                "the merge names the column `{name}`, and the rows have none"
            )));
        }
    }
    Ok(())
}

/// Whether incoming rows in files of so many bytes may not fit into memory.
pub fn spills(file_bytes: u64, memory_bytes: usize) -> bool {
    file_bytes.saturating_mul(EXPANSION) > u64::try_from(memory_bytes).unwrap_or(u64::MAX)
}

/// A merge over a session in which `s` are the staged rows, `t` those that they may meet, and `u` those of the files to
/// write again.
pub struct Merge<'a> {
    by: &'a MergeKeys,
    columns: &'a SchemaRef,
    session: SessionContext,
}

impl std::fmt::Debug for Merge<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Merge").field("by", self.by).field("columns", self.columns).finish_non_exhaustive()
    }
}

impl<'a> Merge<'a> {
    /// Of incoming rows, which have the columns of the table afterwards, in a session with the functions, settings and
    /// memory of another. With `spills` more rows can come than memory holds.
    pub fn new(
        session: &SessionContext,
        by: &'a MergeKeys,
        columns: &'a SchemaRef,
        incoming: Arc<dyn TableProvider>,
        spills: bool,
    ) -> Result<Self> {
        let mut state = without_tables(session).state();
        if spills {
            // A join by hash holds one side in memory, one of sorted rows spills.
            let mut config = state.config().clone();
            config.options_mut().optimizer.prefer_hash_join = false;
            state = SessionStateBuilder::new_from_existing(state).with_config(config).build();
        }
        let session = SessionContext::new_with_state(state);
        session.register_table("s", incoming).doing(WHAT)?;
        Ok(Self { by, columns, session })
    }

    /// Refuses NULL and repeated keys among the staged rows, naming them.
    pub async fn check_keys(&self) -> Result<()> {
        for key in &self.by.keys {
            let nulls = self.count(&format!("SELECT count(*) FROM s WHERE {} IS NULL", ident(key))).await?;
            if nulls > 0 {
                let rows = if nulls == 1 { "row" } else { "rows" };
                return Err(Error::invalid(format!("merge key `{key}` is NULL in {nulls} {rows}"))
                    .with_advice("leave out rows without a key before the merge"));
            }
        }
        let keys = list(self.by.keys.iter().map(|key| ident(key)));
        let repeated = format!(
            "SELECT {keys}, count(*) AS \"_reprocess_rows\" FROM s GROUP BY {keys} HAVING count(*) > 1"
        );
        let number = self.count(&format!("SELECT count(*) FROM ({repeated})")).await?;
        if number == 0 {
            return Ok(());
        }
        let examples = format!("{repeated} ORDER BY {keys} LIMIT {NAMED_KEYS}");
        let mut named = Vec::new();
        for batch in self.sql(&examples).await?.collect().await.doing(WHAT)? {
            named.extend(self.named(&batch)?);
        }
        let what = if number == 1 { "key is" } else { "keys are" };
        let advice = "produce one row per key, or remove duplicates with a declared order before the merge";
        Err(Error::invalid(format!("{number} merge {what} repeated: {}", named.join(", ")))
            .with_advice(advice))
    }

    /// The least and the greatest value of each key of the incoming rows, for the caller to pass over files by. Empty
    /// where any file can hold a row that changes, and where no rows come.
    pub async fn ends(&self) -> Result<BTreeMap<String, (ScalarValue, ScalarValue)>> {
        // Any file can hold a row whose key vanished.
        if self.by.delete_vanished.is_some() {
            return Ok(BTreeMap::new());
        }
        let ends = self.by.keys.iter().map(|key| format!("min({0}), max({0})", ident(key)));
        let found = self.sql(&format!("SELECT {} FROM s", list(ends))).await?.collect().await.doing(WHAT)?;
        let Some(found) = found.first().filter(|batch| batch.num_rows() == 1) else {
            return Ok(BTreeMap::new());
        };
        let end = |place: usize| ScalarValue::try_from_array(found.column(place), 0).doing(WHAT);
        let mut ends = BTreeMap::new();
        for (place, key) in self.by.keys.iter().enumerate() {
            let (least, most) = (end(2 * place)?, end(2 * place + 1)?);
            if !least.is_null() && !most.is_null() {
                ends.insert(key.clone(), (least, most));
            }
        }
        Ok(ends)
    }

    /// Registers the rows that the incoming ones may meet, with the column [`FILE`]. Columns that they lack are NULL.
    pub fn there(&self, rows: Arc<dyn TableProvider>) -> Result<()> {
        self.look_at("t", rows)
    }

    /// Registers the rows of the touched files. Columns that they lack are NULL.
    pub fn again(&self, rows: Arc<dyn TableProvider>) -> Result<()> {
        self.look_at("u", rows)
    }

    fn look_at(&self, name: &str, rows: Arc<dyn TableProvider>) -> Result<()> {
        let has = rows.schema();
        let mut rows = self.session.read_table(rows).doing(WHAT)?;
        for field in self.columns.fields() {
            if has.field_with_name(field.name()).is_err() {
                let null = ScalarValue::try_from(field.data_type()).doing(WHAT)?;
                rows = rows.with_column(field.name(), lit(null)).doing(WHAT)?;
            }
        }
        self.session.register_table(name, rows.into_view()).doing(WHAT).map(drop)
    }

    /// The names of the files in which a row changes, among those of [`there`](Self::there).
    pub async fn touched(&self) -> Result<BTreeSet<String>> {
        let (keys, wins) = (self.keys("s", "t"), self.wins("s", "t"));
        let mut sql = format!("SELECT t.\"{FILE}\" AS file FROM s JOIN t ON {keys} WHERE {wins}");
        if let Some((owned, _)) = self.owned("t") {
            sql += &format!(
                " UNION ALL SELECT t.\"{FILE}\" AS file FROM s RIGHT JOIN t ON {keys} WHERE {} IS NULL AND {owned}",
                self.first_key("s")
            );
        }
        let sql = format!("SELECT DISTINCT file FROM ({sql})");
        let query = self.with_owner(self.sql(&sql).await?)?;
        let mut files = BTreeSet::new();
        for batch in query.collect().await.doing(WHAT)? {
            let names = cast(batch.column(0), &DataType::Utf8);
            let names = names.map_err(|e| broken_promise("names of files are no texts", e))?;
            files.extend(names.as_string::<i32>().iter().flatten().map(ToOwned::to_owned));
        }
        Ok(files)
    }

    /// The rows of the touched files, registered by [`again`](Self::again), that neither change nor go. `nothing` says
    /// that no file was touched.
    pub async fn staying(&self, nothing: bool) -> Result<RowStream> {
        if nothing {
            return Ok(Box::pin(futures::stream::empty()));
        }
        let there = format!("{} IS NOT NULL", self.first_key("s"));
        let mut goes = format!("coalesce({there} AND {}, false)", self.wins("s", "u"));
        if let Some((owned, _)) = self.owned("u") {
            goes = format!("{goes} OR (NOT ({there}) AND coalesce({owned}, false))");
        }
        let sql = format!(
            "SELECT {} FROM s RIGHT JOIN u ON {} WHERE NOT ({goes})",
            self.all_of("u"),
            self.keys("s", "u")
        );
        let query = self.with_owner(self.sql(&sql).await?)?;
        self.rows(query).await
    }

    /// The incoming rows that are written. `nothing` says that there is no row that they could meet.
    pub async fn coming(&self, nothing: bool) -> Result<RowStream> {
        let columns = self.all_of("s");
        if nothing {
            let query = self.sql(&format!("SELECT {columns} FROM s")).await?;
            return self.rows(query).await;
        }
        let (wins, stays) = ("\"_reprocess_wins\"", "\"_reprocess_stays\"");
        let names = list(self.by.keys.iter().map(|key| ident(key)));
        let of_s = list(self.by.keys.iter().map(|key| format!("s.{0} AS {0}", ident(key))));
        let met = format!(
            "SELECT {of_s}, {} AS {wins} FROM s JOIN t ON {}",
            self.wins("s", "t"),
            self.keys("s", "t")
        );
        let met = format!(
            "SELECT {names}, bool_or({wins}) AS {wins}, bool_or(NOT {wins}) AS {stays} FROM ({met}) GROUP BY {names}"
        );
        let sql = format!(
            "SELECT {columns} FROM s LEFT JOIN ({met}) AS m ON {} WHERE {} IS NULL OR (m.{wins} AND NOT m.{stays})",
            self.keys("s", "m"),
            self.first_key("m")
        );
        let query = self.sql(&sql).await?;
        self.rows(query).await
    }

    async fn sql(&self, sql: &str) -> Result<DataFrame> {
        self.session.sql(sql).await.doing(WHAT)
    }

    async fn rows(&self, query: DataFrame) -> Result<RowStream> {
        let rows = query.execute_stream().await.doing(WHAT)?;
        Ok(conformed(rows, Arc::clone(self.columns), WHAT))
    }

    async fn count(&self, sql: &str) -> Result<i64> {
        let batches = self.sql(sql).await?.collect().await.doing(WHAT)?;
        let counts = batches.iter().filter(|batch| batch.num_rows() > 0);
        Ok(counts.map(|batch| batch.column(0).as_primitive::<Int64Type>().value(0)).sum())
    }

    fn named(&self, batch: &RecordBatch) -> Result<Vec<String>> {
        let columns = Columns::new(batch)?;
        let name = |row: usize| {
            let cells = self.by.keys.iter().filter_map(|key| columns.get(key));
            let key = cells
                .map(|column| format!("{}={}", column.name(), column.cell(row)))
                .collect::<Vec<_>>()
                .join("/");
            let rows = columns.get("_reprocess_rows");
            let rows = rows.map_or_else(String::new, |rows| rows.cell(row).to_string());
            format!("{key} ({rows} rows)")
        };
        Ok((0..batch.num_rows()).map(name).collect())
    }

    fn all_of(&self, rows: &str) -> String {
        list(self.columns.fields().iter().map(|field| format!("{rows}.{}", ident(field.name()))))
    }

    fn keys(&self, a: &str, b: &str) -> String {
        let keys = self.by.keys.iter().map(|key| format!("{a}.{0} = {b}.{0}", ident(key)));
        keys.collect::<Vec<_>>().join(" AND ")
    }

    fn first_key(&self, rows: &str) -> String {
        self.by.keys.first().map_or_else(String::new, |key| format!("{rows}.{}", ident(key)))
    }

    /// Whether the staged row takes the place of one that is there and is another; never NULL.
    fn wins(&self, staged: &str, there: &str) -> String {
        let others = self.columns.fields().iter().filter(|field| !self.by.keys.contains(field.name()));
        let differs: Vec<_> = others
            .map(|field| format!("({staged}.{0} IS DISTINCT FROM {there}.{0})", ident(field.name())))
            .collect();
        let differs = if differs.is_empty() { "false".to_owned() } else { differs.join(" OR ") };
        let Some(newer) = &self.by.newer else { return format!("({differs})") };
        let newer = ident(newer);
        format!(
            "(({differs}) AND coalesce({staged}.{newer} > {there}.{newer}, \
             {there}.{newer} IS NULL AND {staged}.{newer} IS NOT NULL))"
        )
    }

    /// Whether a row belongs to the owner that deletes what vanished, and the values of parameters for it.
    fn owned(&self, rows: &str) -> Option<(String, Vec<(String, ScalarValue)>)> {
        let owner = self.by.delete_vanished.as_ref()?;
        let mut terms = vec!["true".to_owned()];
        let mut values = Vec::new();
        for (place, (column, value)) in owner.iter().enumerate() {
            if *value == Value::Null {
                terms.push(format!("{rows}.{} IS NULL", ident(column)));
            } else {
                terms.push(format!("{rows}.{} = $owner{place}", ident(column)));
                values.push((format!("owner{place}"), scalar(value)));
            }
        }
        Some((terms.join(" AND "), values))
    }

    fn with_owner(&self, query: DataFrame) -> Result<DataFrame> {
        match self.owned("t") {
            Some((_, values)) if !values.is_empty() => {
                let values: Vec<_> =
                    values.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
                query.with_param_values(ParamValues::from(values)).doing(WHAT)
            }
            _ => Ok(query),
        }
    }
}

fn ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
