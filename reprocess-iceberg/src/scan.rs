//! Reading files, with the deletes that apply to them.
//!
//! Parquet is read here and not by `iceberg` 0.10, which gives NULL where it does not know how a type was widened, takes
//! fields within a column by their places, and takes out wrong rows by some deletes (see `deletes`). Batches are of the
//! Arrow that the rest of the library has.

mod deletes;
mod fields;
mod parquet;
mod provider;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{FieldRef, Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use futures::{FutureExt, StreamExt, TryFutureExt, TryStreamExt, stream};
use iceberg::io::FileIO;
use iceberg::spec::{
    DEFAULT_SCHEMA_NAME_MAPPING, DataContentType, DataFile, Literal, NameMapping, NestedFieldRef, Transform,
};
use reprocess_core::ports::reader::RowStream;
use reprocess_core::{Error, ErrorKind, Result};

use self::deletes::{By, Delete, Taken};
use self::fields::{Column, constant};
use self::parquet::Place;
use crate::files::Files;
use crate::view::{File, Named, There, View};
use crate::{columns, features};

/// How many files are open at once: the one whose rows pass by, and the next.
const OPEN_FILES: usize = 2;

/// The rows of live files of a version, with its columns.
pub(crate) async fn committed(view: &View, files: &[File]) -> Result<RowStream> {
    match view.known() {
        Some(there) if !files.is_empty() => {
            let scan = Scan::of(there, view.schema(), |_| true)?;
            let tasks = scan.tasks(there, files)?;
            Ok(scan.in_order(tasks))
        }
        _ => Ok(stream::empty().boxed()),
    }
}

/// The rows of files that we wrote and that main does not have yet, with the columns `columns` (in the words of Iceberg,
/// with the field ids that the files have); those that the files do not have are NULL.
pub(crate) fn staged(
    files: &Files,
    columns: &iceberg::spec::SchemaRef,
    data: &[DataFile],
) -> Result<RowStream> {
    let kept = columns::to_arrow(columns)?;
    let scan = Scan { io: files.io().clone(), columns: paired(columns, &kept), mapping: None };
    let task =
        |file: &DataFile| Task { place: place_of(file), constants: BTreeMap::new(), deletes: Vec::new() };
    Ok(Arc::new(scan).in_order(data.iter().map(task).collect()))
}

/// The rows of live files as a table of DataFusion that reads only the columns that are asked for, with a column of the
/// files' paths where one is named. It has the columns of `schema`: those of the version by their names, others NULL.
pub(crate) fn provider(
    view: &Arc<View>,
    files: Vec<File>,
    schema: &SchemaRef,
    file_column: Option<&str>,
) -> Result<Arc<dyn TableProvider>> {
    Ok(Arc::new(provider::Live::new(view, files, schema, file_column)))
}

/// What is read of data files.
#[derive(Debug)]
struct Scan {
    io: FileIO,
    columns: Vec<Column>,
    /// Ids by name, for files that were not written for Iceberg.
    mapping: Option<Arc<NameMapping>>,
}

/// One data file to read.
#[derive(Debug)]
struct Task {
    place: Place,
    /// Values that all its rows have, by the ids of the columns.
    constants: BTreeMap<i32, Literal>,
    deletes: Vec<Arc<Delete>>,
}

impl Scan {
    /// Of live files the columns of a version that are wanted.
    fn of(there: &There, schema: &Schema, wanted: impl Fn(&str) -> bool) -> Result<Arc<Self>> {
        let columns = paired(&there.columns, schema).into_iter().filter(|column| wanted(column.kept.name()));
        let mapping = there.loaded.metadata.properties().get(DEFAULT_SCHEMA_NAME_MAPPING);
        let mapping = mapping.map(|mapping| {
            let mapping = serde_json::from_str(mapping).map_err(|e| {
                let message =
                    format!("the property `{DEFAULT_SCHEMA_NAME_MAPPING}` of the table cannot be read");
                Error::new(ErrorKind::Corrupt, message).with_source(e)
            });
            mapping.map(Arc::new)
        });
        let (io, columns) = (there.files.io().clone(), columns.collect());
        Ok(Arc::new(Self { io, columns, mapping: mapping.transpose()? }))
    }

    /// Files to read, each of deletes once for all that it applies to.
    fn tasks(&self, there: &There, files: &[File]) -> Result<Vec<Task>> {
        features::check_read(files)?;
        let mut deletes = BTreeMap::<&str, Arc<Delete>>::new();
        for named in files.iter().flat_map(|file| &file.deletes) {
            if !deletes.contains_key(named.file.file_path()) {
                let delete = Delete::new(place_of(&named.file), by(there, named)?);
                deletes.insert(named.file.file_path(), Arc::new(delete));
            }
        }
        let task = |file: &File| Task {
            place: place_of(&file.entry.file),
            constants: constants(&file.entry),
            deletes: file
                .deletes
                .iter()
                .filter_map(|named| deletes.get(named.file.file_path()).map(Arc::clone))
                .collect(),
        };
        Ok(files.iter().map(task).collect())
    }

    /// The rows of files, one after the other.
    fn in_order(self: Arc<Self>, tasks: Vec<Task>) -> RowStream {
        self.shaped(tasks, |_, batch| Ok(batch))
    }

    /// The rows of files, one after the other, each batch as it is made of the path of its file and its rows.
    fn shaped(
        self: Arc<Self>,
        tasks: Vec<Task>,
        shape: impl Fn(&str, RecordBatch) -> Result<RecordBatch> + Clone + Send + 'static,
    ) -> RowStream {
        let opened = stream::iter(tasks).map(move |task| {
            let (shape, path) = (shape.clone(), task.place.path.clone());
            // On its own, so that the next file is opened while rows of the one before are worked on; it ends where
            // nobody waits for it any more.
            let (work, opened) = Arc::clone(&self).begun(task).remote_handle();
            tokio::spawn(work);
            opened.map_ok(move |rows| rows.map(move |batch| shape(&path, batch?)))
        });
        opened.buffered(OPEN_FILES).try_flatten().boxed()
    }

    /// The rows of a file, of which the first have been read.
    async fn begun(self: Arc<Self>, task: Task) -> Result<RowStream> {
        let mut rows = self.rows(task).await?;
        let first = rows.next().await;
        Ok(stream::iter(first).chain(rows).boxed())
    }

    async fn rows(&self, task: Task) -> Result<RowStream> {
        let mapping = self.mapping.as_deref();
        let mut columns = self.columns.clone();
        let path = &task.place.path;
        let taken = Taken::of(path, &task.deletes, &mut columns, &self.io, mapping).await?;
        for column in &mut columns {
            column.constant = match task.constants.get(&column.field.id) {
                Some(Literal::Primitive(value)) => Some(constant(value, column.kept.data_type())?),
                _ => None,
            };
        }
        let rows = parquet::open(&self.io, &task.place, columns, mapping).await?;
        Ok(match taken {
            None => rows,
            Some(mut taken) => rows.map(move |batch| taken.out_of(&batch?)).boxed(),
        })
    }
}

fn place_of(file: &DataFile) -> Place {
    Place { path: file.file_path().to_owned(), size_bytes: file.file_size_in_bytes() }
}

/// Columns in the words of Iceberg with those in the words of Arrow.
fn paired(columns: &iceberg::spec::Schema, schema: &Schema) -> Vec<Column> {
    let fields = columns.as_struct().fields().iter().zip(schema.fields());
    fields.map(|(field, kept): (&NestedFieldRef, &FieldRef)| Column::new(field, kept)).collect()
}

/// The columns that all rows of a file have one value in, because the table is partitioned by them: files that other
/// tools moved into the table need not have them.
fn constants(entry: &Named) -> BTreeMap<i32, Literal> {
    let fields = entry.spec.fields().iter().zip(entry.file.partition().fields());
    let known = fields.filter(|(field, _)| field.transform == Transform::Identity);
    known.filter_map(|(field, value)| Some((field.source_id, value.clone()?))).collect()
}

/// What a file of deletes tells rows by. Columns that the table has no more still do.
fn by(there: &There, named: &Named) -> Result<By> {
    match named.file.content_type() {
        DataContentType::EqualityDeletes => {}
        DataContentType::PositionDeletes => return Ok(By::Position),
        DataContentType::Data => {
            let message = "a data file stands among the deletes of another";
            return Err(Error::internal(message).with_context("file", named.file.file_path()));
        }
    }
    let ids = named.file.equality_ids().filter(|ids| !ids.is_empty()).ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, "a file of deletes does not say which columns it is by")
            .with_context("file", named.file.file_path())
    })?;
    let column = |id: i32| {
        let schemas = there.loaded.metadata.schemas_iter();
        let schemas = [&there.columns, &named.schema].into_iter().chain(schemas);
        for schema in schemas {
            let kept = columns::to_arrow(schema)?;
            if let Some(column) = paired(schema, &kept).into_iter().find(|column| column.field.id == id) {
                return Ok(column);
            }
        }
        let message = "a file of deletes is by a column within another, or one that the table never had";
        Err(Error::new(ErrorKind::Unsupported, message).with_context("file", named.file.file_path()))
    };
    ids.into_iter().map(column).collect::<Result<Vec<_>>>().map(By::Values)
}

#[cfg(test)]
mod tests;
