//! Files of a kept snapshot as new ones: a table never has a path again that was removed from it, since whoever expires
//! snapshots removes the files of those paths.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::Schema;
use futures::{StreamExt, TryStreamExt};
use iceberg::spec::DataFile;
use reprocess_core::domain::schema;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Kept;
use reprocess_core::{ErrorKind, Result};
use reprocess_lake::encode::Encoder;
use reprocess_lake::kept;
use reprocess_lake::placement::folder_name;

use crate::error::broken_promise;
use crate::features;
use crate::scan;
use crate::snapshot::with_path;
use crate::table::IcebergTable;
use crate::view::{File, Listing, View, Wanted};
use crate::writer::encode::{DataFiles, Layout};
use crate::writer::within::within;

/// How many files are copied at once.
const COPIES: usize = 8;

/// What a scope held, as a commit brings it back.
#[derive(Debug)]
pub(in crate::writer) struct Back {
    /// Paths of live files that were there and are there still.
    pub(in crate::writer) stays: BTreeSet<String>,
    /// Files of the default spec that hold the other rows.
    pub(in crate::writer) added: Vec<DataFile>,
}

/// Brings back what a scope held in a kept snapshot: copies the files that are not live any more, in folders of a name, and
/// writes the rows again of those that cannot be copied. `view` is the newest version.
///
/// Copies have names that follow from the name and the file, so that a retry finds them; an error leaves them.
pub(in crate::writer) async fn back(
    table: &IcebergTable,
    view: &View,
    kept: &Kept,
    scope: &Scope,
    name: &str,
) -> Result<Back> {
    let Some(snapshot) = super::find(table, view, kept)? else {
        return Ok(Back { stays: BTreeSet::new(), added: Vec::new() });
    };
    let then = table.at_snapshot(view, &snapshot).await?;
    let wanted = Wanted::of(scope);
    let (before, now) = (then.listing(table, &wanted).await?, view.listing(table, &wanted).await?);
    let live: BTreeSet<String> = inside(&now, scope).into_values().map(File::identity).collect();
    let spec = view.there()?.partitions.spec().spec_id();
    let (mut stays, mut copied, mut again) = (BTreeSet::new(), Vec::new(), Vec::new());
    for file in inside(&before, scope).into_values() {
        if live.contains(&file.identity()) {
            stays.insert(file.path().to_owned());
        } else if file.deletes.is_empty() && file.entry.spec.spec_id() == spec {
            copied.push(file);
        } else {
            again.push(file.clone());
        }
    }
    let loose =
        before.loose.iter().filter(|(_, reach)| scope.partitions().iter().any(|key| reach.may_hold(key)));
    again.extend(loose.map(|(file, _)| file.clone()));
    let layout = Layout::of_table(table, view, &view.there()?.columns, &folder_name(name))?;
    let mut added = copies(view, &layout, copied).await?;
    if !again.is_empty() {
        added.extend(written(table, view, &then, &again, scope, layout).await?);
    }
    added.sort_by(|a, b| a.file_path().cmp(b.file_path()));
    Ok(Back { stays, added })
}

/// The files whose rows all lie in the scope, by their paths.
fn inside<'a>(listing: &'a Listing, scope: &Scope) -> BTreeMap<&'a str, &'a File> {
    let inside = listing.files.iter().filter(|(key, _)| scope.covers(key));
    inside.flat_map(|(_, files)| files).map(|file| (file.path(), file)).collect()
}

/// Copies of files with all that is known of them.
async fn copies(view: &View, layout: &Layout, files: Vec<&File>) -> Result<Vec<DataFile>> {
    let to = files.iter().map(|file| {
        let data = &file.entry.file;
        let name = format!("{}.{}", &blake3::hash(file.path().as_bytes()).to_hex()[..32], data.file_format());
        with_path(data, &layout.location(data.partition(), &name))
    });
    let to = to.collect::<Result<Vec<_>>>()?;
    let folder = &view.there()?.files;
    let from = files.iter().map(|file| file.path().to_owned());
    let pairs: Vec<_> = from.zip(to.iter().map(|file| file.file_path().to_owned())).collect();
    let copying = futures::stream::iter(pairs).map(|(from, to)| async move {
        match folder.copy(&from, &to).await {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                Err(kept::freed().with_context("file", from).with_source(e).with_advice(
                    "a file was removed although its snapshot is tagged; run the logic of then again",
                ))
            }
            copied => copied,
        }
    });
    copying.buffer_unordered(COPIES).try_collect::<()>().await?;
    Ok(to)
}

/// The rows of files that lie in the scope, in files of the table as it is now.
async fn written(
    table: &IcebergTable,
    view: &View,
    then: &Arc<View>,
    files: &[File],
    scope: &Scope,
    layout: Layout,
) -> Result<Vec<DataFile>> {
    features::check_read(files)?;
    let names = Names::new(then, view)?;
    let mut rows = scan::committed(then, files).await?;
    let encoder = Encoder::start(DataFiles::new(layout));
    let pushed = async {
        while let Some(batch) = rows.try_next().await? {
            let batch = schema::conform(&names.of_now(&batch)?, view.schema())?;
            encoder.push(&within(&table.spec().partitioning, scope, &batch)?).await?;
        }
        Ok(())
    };
    if let Err(e) = pushed.await {
        encoder.give_up().await;
        return Err(e);
    }
    encoder.finish().await
}

/// The columns of a version that the table still has, with the names that they have now.
struct Names(Vec<(usize, String)>);

impl Names {
    fn new(then: &View, now: &View) -> Result<Self> {
        let columns = now.there()?.columns.as_struct();
        let fields = then.there()?.columns.as_struct().fields().iter().enumerate();
        let still =
            fields.filter_map(|(place, field)| Some((place, columns.field_by_id(field.id)?.name.clone())));
        Ok(Self(still.collect()))
    }

    fn of_now(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let schema = batch.schema();
        let fields = self.0.iter().map(|(place, name)| schema.field(*place).clone().with_name(name));
        let columns = self.0.iter().map(|(place, _)| Arc::clone(batch.column(*place)));
        RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), columns.collect())
            .map_err(|e| broken_promise("rows have other columns than their version", e))
    }
}
