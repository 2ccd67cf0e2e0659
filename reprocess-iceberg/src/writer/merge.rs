//! Merging by key, as copy on write: the files in which a row changes are written again without it, and the rows that come
//! go into new ones.

mod bounds;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use datafusion::catalog::TableProvider;
use futures::FutureExt;
use iceberg::spec::{DataFile, Schema};
use reprocess_core::domain::ids::PartitionVersion;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::writer::{MergeKeys, StagedId};
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_lake::encode::Encoder;
use reprocess_lake::merge::{FILE, Merge, spills};
use reprocess_lake::placement::folder_name;
use reprocess_lake::session::streamed;

use super::encode::{DataFiles, Layout};
use crate::table::IcebergTable;
use crate::view::{File, Listing, View, Wanted};
use crate::{columns, features, scan};

/// What a merge does to a version of the table.
#[derive(Debug)]
pub(super) struct Merged {
    /// Paths of the data files in which a row changes.
    pub(super) removes: Vec<String>,
    /// Version of each key of the scope that it was computed on.
    pub(super) on: Vec<(PartitionKey, PartitionVersion)>,
    pub(super) added: Vec<DataFile>,
}

/// Incoming rows, in files that no version of the table has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming<'a> {
    /// The columns that the files have.
    pub(super) columns: &'a Schema,
    pub(super) files: &'a [DataFile],
}

/// Computes the merge of incoming rows into the scope of a version, and writes its files. The table has `columns` after it.
pub(super) async fn merge(
    table: &IcebergTable,
    view: &Arc<View>,
    scope: &Scope,
    by: &MergeKeys,
    columns: &Schema,
    incoming: Incoming<'_>,
    id: &StagedId,
) -> Result<Merged> {
    let there = view.there()?;
    let listing = view.listing(table, &Wanted::of(scope)).await?;
    let files = in_scope(&listing, scope)?;
    let after = columns::to_arrow(columns)?;
    let rows = rows(view, incoming)?;
    let bytes = incoming.files.iter().map(DataFile::file_size_in_bytes).sum();
    let merge = Merge::new(table.session(), by, &after, rows, spills(bytes, table.config().memory_bytes))?;
    merge.check_keys().await?;
    let candidates = bounds::candidates(files, &there.columns, &merge.ends().await?);
    features::check_read(candidates.iter().copied())?;
    let touched = match candidates.is_empty() {
        true => Vec::new(),
        false => {
            merge.there(provider(view, &candidates)?)?;
            touched(&merge, &candidates).await?
        }
    };
    if !touched.is_empty() {
        merge.again(provider(view, &touched)?)?;
    }
    let on = view.head(&listing, scope)?.partitions.into_iter().collect();
    let layout = Layout::of_table(table, view, columns, &folder_name(&id.short()))?;
    let encoder = Encoder::start(DataFiles::new(layout));
    let written = async {
        encoder.push_all(merge.staying(touched.is_empty()).await?).await?;
        encoder.push_all(merge.coming(candidates.is_empty()).await?).await
    };
    if let Err(e) = written.await {
        encoder.give_up().await;
        return Err(e);
    }
    let removes = touched.iter().map(|file| file.path().to_owned()).collect();
    Ok(Merged { removes, on, added: encoder.finish().await? })
}

/// The files whose rows lie in the scope, each once. Refuses those that may hold rows beside it.
fn in_scope<'a>(listing: &'a Listing, scope: &Scope) -> Result<Vec<&'a File>> {
    let mut files: BTreeMap<&str, &File> = BTreeMap::new();
    for key in scope.partitions() {
        files.extend(listing.under(&key).into_iter().map(|file| (file.path(), file)));
        for file in listing.loose_under(&key) {
            if !scope.is_whole_table() {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "a file of an older partition spec may hold rows of several partitions",
                )
                .with_context("file", file.path())
                .with_context("partition", &key)
                .with_advice(
                    "rewrite the table's files by its current spec, or merge into the whole table",
                ));
            }
            files.insert(file.path(), file);
        }
    }
    Ok(files.into_values().collect())
}

fn rows(view: &View, incoming: Incoming<'_>) -> Result<Arc<dyn TableProvider>> {
    let (files, data) = (view.there()?.files.clone(), incoming.files.to_vec());
    let columns = Arc::new(incoming.columns.clone());
    let schema: SchemaRef = columns::to_arrow(&columns)?;
    streamed(schema, move || {
        let rows = scan::staged(&files, &columns, &data);
        async move { rows }.boxed()
    })
}

fn provider(view: &Arc<View>, files: &[&File]) -> Result<Arc<dyn TableProvider>> {
    let files = files.iter().map(|file| (*file).clone()).collect();
    scan::provider(view, files, view.schema(), Some(FILE))
}

/// The files in which a row changes.
async fn touched<'a>(merge: &Merge<'_>, candidates: &[&'a File]) -> Result<Vec<&'a File>> {
    let paths = merge.touched().await?;
    let touched: Vec<_> = candidates.iter().copied().filter(|file| paths.contains(file.path())).collect();
    if touched.len() == paths.len() {
        return Ok(touched);
    }
    Err(Error::internal("a merge read a file that it did not ask for")
        .with_context("files", format!("{paths:?}")))
}
