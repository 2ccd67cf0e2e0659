//! Merging by key: the files in which a row changes are written again without it, and the rows that come go into new ones.
//!
//! A staged row takes the place of the rows of its key that are there unless one of them is not older; it is written where
//! none of its key is there, or where it takes a place. Files in which nothing changes stay as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_schema::{Schema, SchemaRef};
use deltalake::arrow::compute::cast;
use deltalake::datafusion::common::{ParamValues, ScalarValue};
use deltalake::datafusion::execution::SessionStateBuilder;
use deltalake::datafusion::execution::context::SessionContext;
use deltalake::datafusion::prelude::{DataFrame, lit};
use deltalake::kernel::Add;
use futures::FutureExt;
use futures::TryStreamExt;
use reprocess_core::domain::rows::Columns;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::value::Value;
use reprocess_core::ports::reader::RowStream;
use reprocess_core::ports::writer::{MergeKeys, StagedId};
use reprocess_core::{Error, Result};

use super::encode::{Encoder, Layout};
use super::query::scalar;
use crate::error::Doing;
use crate::partitions::Partitions;
use crate::scan;
use crate::shadow::Merged;
use crate::table::DeltaTable;
use crate::view::{File, View};

/// How many offending keys an error names.
const NAMED_KEYS: usize = 5;
/// A column of the name of each row's file; beside those of the table.
const FILE: &str = "_reprocess_file";
/// Staged rows count as so many times the size of their files once they are in memory.
const EXPANSION: u64 = 8;
const WHAT: &str = "merge rows";

/// Refuses columns that are not there.
pub(super) fn check(by: &MergeKeys, columns: &Schema) -> Result<()> {
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

/// What the merge of staged rows does to a version of the table: which files it removes and which it adds, which are written.
pub(super) async fn merge(
    table: &DeltaTable,
    view: &View,
    scope: &Scope,
    by: &MergeKeys,
    columns: &SchemaRef,
    incoming: &[Add],
    id: &StagedId,
) -> Result<(Merged, Vec<Add>)> {
    let work = Work::new(table, view, by, columns, incoming)?;
    work.check_keys().await?;
    let files = view.files_in(scope)?;
    let candidates = work.candidates(&files).await?;
    work.look_at("t", &candidates).await?;
    let touched = work.touched(&candidates).await?;
    work.look_at("u", &touched).await?;
    let encoder = Encoder::start(Layout::of_table(table, view, columns, &id.short())?);
    let written = async {
        for rows in [work.staying(&touched).await?, work.coming(&candidates).await?] {
            let mut rows = rows;
            while let Some(batch) = rows.try_next().await? {
                encoder.push(&batch).await?;
            }
        }
        Ok(())
    };
    if let Err(e) = written.await {
        encoder.give_up().await;
        return Err(e);
    }
    let adds = encoder.finish().await?;
    let removes = touched.iter().map(|file| file.path().to_owned()).collect();
    Ok((
        Merged { incoming: Vec::new(), removes, on: view.head(scope)?.partitions.into_iter().collect() },
        adds,
    ))
}

/// A session in which `s` are the staged rows, `t` those that they may meet, and `u` those of the files to write again.
struct Work<'a> {
    table: &'a DeltaTable,
    view: &'a View,
    by: &'a MergeKeys,
    columns: &'a SchemaRef,
    session: SessionContext,
}

impl<'a> Work<'a> {
    fn new(
        table: &'a DeltaTable,
        view: &'a View,
        by: &'a MergeKeys,
        columns: &'a SchemaRef,
        incoming: &[Add],
    ) -> Result<Self> {
        let mut state = scan::without_tables(table.session()).state();
        let bytes: i64 = incoming.iter().map(|add| add.size).sum();
        let large = u64::try_from(bytes).unwrap_or(0).saturating_mul(EXPANSION);
        if large > u64::try_from(table.config().memory_bytes).unwrap_or(u64::MAX) {
            // A join by hash holds one side in memory, one of sorted rows spills.
            let mut config = state.config().clone();
            config.options_mut().optimizer.prefer_hash_join = false;
            state = SessionStateBuilder::new_from_existing(state).with_config(config).build();
        }
        let session = SessionContext::new_with_state(state);
        let (source, adds, schema) = (table.clone(), incoming.to_vec(), Arc::clone(columns));
        let rows = move || {
            let rows = scan::staged(&source, &Partitions::none(), &schema, &adds);
            async move { rows }.boxed()
        };
        session.register_table("s", scan::streamed(Arc::clone(columns), rows)?).doing(WHAT)?;
        Ok(Self { table, view, by, columns, session })
    }

    /// Registers the rows of files, with columns that they do not have yet as NULL.
    async fn look_at(&self, name: &str, files: &[&File]) -> Result<()> {
        let provider = scan::provider(self.table, self.view, files, Some(FILE)).await?;
        let mut rows = self.session.read_table(provider).doing(WHAT)?;
        for field in self.columns.fields() {
            if self.view.schema().field_with_name(field.name()).is_err() {
                let null = ScalarValue::try_from(field.data_type()).doing(WHAT)?;
                rows = rows.with_column(&ident(field.name()), lit(null)).doing(WHAT)?;
            }
        }
        self.session.register_table(name, rows.into_view()).doing(WHAT).map(drop)
    }

    async fn sql(&self, sql: &str) -> Result<DataFrame> {
        self.session.sql(sql).await.doing(WHAT)
    }

    async fn rows(&self, query: DataFrame) -> Result<RowStream> {
        let rows = query.execute_stream().await.doing(WHAT)?;
        Ok(scan::conformed(rows, Arc::clone(self.columns), WHAT))
    }

    /// Refuses NULL and repeated keys among the staged rows, naming them.
    async fn check_keys(&self) -> Result<()> {
        for key in &self.by.keys {
            let nulls = self.count(&format!("SELECT count(*) FROM s WHERE {} IS NULL", ident(key))).await?;
            if nulls > 0 {
                let rows = if nulls == 1 { "row" } else { "rows" };
                return Err(Error::invalid(format!("merge key `{key}` is NULL in {nulls} {rows}"))
                    .with_advice("leave out rows without a key before the merge"));
            }
        }
        let keys = list(self.by.keys.iter().map(|key| ident(key)));
        let repeated =
            format!("SELECT {keys}, count(*) AS \"_rows\" FROM s GROUP BY {keys} HAVING count(*) > 1");
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

    fn named(&self, batch: &RecordBatch) -> Result<Vec<String>> {
        let columns = Columns::new(batch)?;
        let name = |row: usize| {
            let cells = self.by.keys.iter().filter_map(|key| columns.get(key));
            let key = cells
                .map(|column| format!("{}={}", column.name(), column.cell(row)))
                .collect::<Vec<_>>()
                .join("/");
            let rows = columns.get("_rows").map_or_else(String::new, |rows| rows.cell(row).to_string());
            format!("{key} ({rows} rows)")
        };
        Ok((0..batch.num_rows()).map(name).collect())
    }

    async fn count(&self, sql: &str) -> Result<i64> {
        let batches = self.sql(sql).await?.collect().await.doing(WHAT)?;
        let counts = batches.iter().filter(|batch| batch.num_rows() > 0);
        Ok(counts
            .map(|batch| batch.column(0).as_primitive::<deltalake::arrow::datatypes::Int64Type>().value(0))
            .sum())
    }

    /// The files that can hold a key of the staged rows, by what the log says of their values.
    async fn candidates<'f>(&self, files: &[&'f File]) -> Result<Vec<&'f File>> {
        // Any of them can hold a row whose key vanished.
        let mut candidates = files.to_vec();
        if self.by.delete_vanished.is_some() {
            return Ok(candidates);
        }
        for key in &self.by.keys {
            let name = ident(key);
            let ends = self
                .sql(&format!("SELECT min({name}), max({name}) FROM s"))
                .await?
                .collect()
                .await
                .doing(WHAT)?;
            let Some(ends) = ends.first().filter(|batch| batch.num_rows() == 1) else { continue };
            let end = |place: usize| ScalarValue::try_from_array(ends.column(place), 0).doing(WHAT);
            let (least, most) = (Bound::of(&end(0)?), Bound::of(&end(1)?));
            let (Some(least), Some(most)) = (least, most) else { continue };
            candidates.retain(|file| {
                least_and_most(file, key)
                    .is_none_or(|(from, to)| !(from.is_after(&most) || least.is_after(&to)))
            });
        }
        Ok(candidates)
    }

    /// The files in which a row changes.
    async fn touched<'f>(&self, candidates: &[&'f File]) -> Result<Vec<&'f File>> {
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
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
        let found = query.collect().await.doing(WHAT)?;
        let mut paths = BTreeSet::new();
        for batch in &found {
            let names = cast(batch.column(0), &arrow_schema::DataType::Utf8);
            let names = names.map_err(|e| crate::error::broken_promise("names of files are no texts", e))?;
            for name in names.as_string::<i32>().iter().flatten() {
                paths.insert(self.table.path_in(name)?);
            }
        }
        let touched: Vec<_> = candidates.iter().copied().filter(|file| paths.contains(file.path())).collect();
        if touched.len() == paths.len() {
            return Ok(touched);
        }
        Err(Error::internal("a merge read a file that it did not ask for")
            .with_context("files", format!("{paths:?}")))
    }

    /// The rows of the touched files that neither change nor go.
    async fn staying(&self, touched: &[&File]) -> Result<RowStream> {
        if touched.is_empty() {
            return Ok(Box::pin(futures::stream::empty()));
        }
        let there = format!("{} IS NOT NULL", self.first_key("s"));
        let mut goes = format!("coalesce({there} AND {}, false)", self.wins("s", "u"));
        if let Some((owned, _)) = self.owned("u") {
            goes = format!("{goes} OR (NOT ({there}) AND coalesce({owned}, false))");
        }
        let columns = list(self.columns.fields().iter().map(|field| format!("u.{}", ident(field.name()))));
        let sql =
            format!("SELECT {columns} FROM s RIGHT JOIN u ON {} WHERE NOT ({goes})", self.keys("s", "u"));
        let query = self.with_owner(self.sql(&sql).await?)?;
        self.rows(query).await
    }

    /// The staged rows that are written.
    async fn coming(&self, candidates: &[&File]) -> Result<RowStream> {
        let columns = list(self.columns.fields().iter().map(|field| format!("s.{}", ident(field.name()))));
        if candidates.is_empty() {
            let query = self.sql(&format!("SELECT {columns} FROM s")).await?;
            return self.rows(query).await;
        }
        let names = list(self.by.keys.iter().map(|key| ident(key)));
        let of_s = list(self.by.keys.iter().map(|key| format!("s.{0} AS {0}", ident(key))));
        let met = format!(
            "SELECT {of_s}, {} AS \"_wins\" FROM s JOIN t ON {}",
            self.wins("s", "t"),
            self.keys("s", "t")
        );
        let met = format!(
            "SELECT {names}, bool_or(\"_wins\") AS \"_wins\", bool_or(NOT \"_wins\") AS \"_stays\" FROM ({met}) GROUP BY {names}"
        );
        let sql = format!(
            "SELECT {columns} FROM s LEFT JOIN ({met}) AS m ON {} WHERE {} IS NULL OR (m.\"_wins\" AND NOT m.\"_stays\")",
            self.keys("s", "m"),
            self.first_key("m")
        );
        let query = self.sql(&sql).await?;
        self.rows(query).await
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

/// A value that the log can tell apart from others.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
enum Bound {
    Integer(i64),
    Text(String),
}

impl Bound {
    /// Of values of two kinds nothing can be said.
    fn is_after(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other) && self > other
    }

    fn of(value: &ScalarValue) -> Option<Self> {
        match value {
            ScalarValue::Int8(Some(i)) => Some(Self::Integer((*i).into())),
            ScalarValue::Int16(Some(i)) => Some(Self::Integer((*i).into())),
            ScalarValue::Int32(Some(i)) => Some(Self::Integer((*i).into())),
            ScalarValue::Int64(Some(i)) => Some(Self::Integer(*i)),
            ScalarValue::Utf8(Some(t)) | ScalarValue::Utf8View(Some(t)) => Some(Self::Text(t.clone())),
            _ => None,
        }
    }

    fn of_json(value: &serde_json::Value) -> Option<Self> {
        match value {
            serde_json::Value::Number(number) => number.as_i64().map(Self::Integer),
            serde_json::Value::String(text) => Some(Self::Text(text.clone())),
            _ => None,
        }
    }
}

/// The least and the greatest value of a column in a file; `None` where the log does not say, or in other kinds.
fn least_and_most(file: &File, column: &str) -> Option<(Bound, Bound)> {
    let stats: serde_json::Value = serde_json::from_str(&file.stats()?).ok()?;
    let end = |which: &str| Bound::of_json(stats.get(which)?.get(column)?);
    match (end("minValues")?, end("maxValues")?) {
        (least @ Bound::Integer(_), most @ Bound::Integer(_))
        | (least @ Bound::Text(_), most @ Bound::Text(_)) => Some((least, most)),
        _ => None,
    }
}

/// The identities of files that a merge would remove, as the version it was computed on has them.
pub(super) fn removed<'a>(files: &[&'a File], paths: &[String]) -> Result<Vec<&'a File>> {
    let found: Vec<_> =
        files.iter().copied().filter(|file| paths.iter().any(|path| path == file.path())).collect();
    if found.len() == paths.len() {
        return Ok(found);
    }
    Err(Error::internal("a file that a merge removes is not there, and its partition did not move"))
}

fn ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}
