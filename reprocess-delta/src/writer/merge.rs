//! Merging by key: what a merge does to the files of a version.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_schema::SchemaRef;
use deltalake::datafusion::common::ScalarValue;
use deltalake::kernel::Add;
use futures::FutureExt;
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::writer::{MergeKeys, StagedId};
use reprocess_core::{Error, Result};
use reprocess_lake::encode::Encoder;
use reprocess_lake::merge::{FILE, Merge, spills};
use reprocess_lake::session::streamed;

use super::encode::{Files, Layout};
use crate::partitions::Partitions;
use crate::scan;
use crate::shadow::Merged;
use crate::table::DeltaTable;
use crate::view::{File, View};

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
    let work = begin(table, by, columns, incoming)?;
    work.check_keys().await?;
    let files = view.files_in(scope)?;
    let candidates = candidates(&files, &work.ends().await?);
    let touched = touched(table, view, &work, &candidates).await?;
    if !touched.is_empty() {
        work.again(scan::provider(table, view, &touched, Some(FILE)).await?)?;
    }
    let encoder = Encoder::start(Files::new(Layout::of_table(table, view, columns, &id.short())?));
    let written = async {
        encoder.push_all(work.staying(touched.is_empty()).await?).await?;
        encoder.push_all(work.coming(candidates.is_empty()).await?).await
    };
    if let Err(e) = written.await {
        encoder.give_up().await;
        return Err(e);
    }
    let adds = encoder.finish().await?;
    let removes = touched.iter().map(|file| file.path().to_owned()).collect();
    let on = view.head(scope)?.partitions.into_iter().collect();
    Ok((Merged { incoming: Vec::new(), removes, on }, adds))
}

/// A merge of staged rows, which are read from their files as often as they are asked for.
fn begin<'a>(
    table: &DeltaTable,
    by: &'a MergeKeys,
    columns: &'a SchemaRef,
    incoming: &[Add],
) -> Result<Merge<'a>> {
    let bytes = incoming.iter().filter_map(|add| u64::try_from(add.size).ok()).sum();
    let (source, adds, schema) = (table.clone(), incoming.to_vec(), Arc::clone(columns));
    let rows = streamed(Arc::clone(columns), move || {
        let rows = scan::staged(&source, &Partitions::none(), &schema, &adds);
        async move { rows }.boxed()
    })?;
    Merge::new(table.session(), by, columns, rows, spills(bytes, table.config().memory_bytes))
}

/// The files that can hold a key of the staged rows, by what the log says of their values.
fn candidates<'f>(files: &[&'f File], ends: &BTreeMap<String, (ScalarValue, ScalarValue)>) -> Vec<&'f File> {
    let mut candidates = files.to_vec();
    for (key, (least, most)) in ends {
        let (Some(least), Some(most)) = (Bound::of(least), Bound::of(most)) else { continue };
        candidates.retain(|file| {
            least_and_most(file, key).is_none_or(|(from, to)| !(from.is_after(&most) || least.is_after(&to)))
        });
    }
    candidates
}

/// The files in which a row changes.
async fn touched<'f>(
    table: &DeltaTable,
    view: &View,
    work: &Merge<'_>,
    candidates: &[&'f File],
) -> Result<Vec<&'f File>> {
    if candidates.is_empty() {
        return Ok(Vec::new());
    }
    work.there(scan::provider(table, view, candidates, Some(FILE)).await?)?;
    let paths = work.touched().await?;
    let paths = paths.iter().map(|file| table.path_in(file)).collect::<Result<BTreeSet<_>>>()?;
    let touched: Vec<_> = candidates.iter().copied().filter(|file| paths.contains(file.path())).collect();
    if touched.len() == paths.len() {
        return Ok(touched);
    }
    Err(Error::internal("a merge read a file that it did not ask for")
        .with_context("files", format!("{paths:?}")))
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
