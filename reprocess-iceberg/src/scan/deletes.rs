//! Rows that are taken out of data files without another file in their place.
//!
//! `iceberg` 0.10 applies deletes as well, but where a column of an equality delete may be NULL or is not in the data file it
//! takes out rows that stay, and readers that share a delete can wait for it for ever. So they are applied here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{BooleanArray, RecordBatch};
use arrow_schema::{DataType, Field};
use arrow_select::filter::filter_record_batch;
use futures::TryStreamExt;
use iceberg::io::FileIO;
use iceberg::metadata_columns::{
    RESERVED_COL_NAME_DELETE_FILE_PATH, RESERVED_COL_NAME_DELETE_FILE_POS,
    RESERVED_FIELD_ID_DELETE_FILE_PATH, RESERVED_FIELD_ID_DELETE_FILE_POS,
};
use iceberg::spec::{MappedField, NameMapping, NestedField, PrimitiveType, Type};
use reprocess_core::domain::rows::Column as Cells;
use reprocess_core::{Error, ErrorKind, Result};
use tokio::sync::OnceCell;

use super::fields::Column;
use super::parquet::{self, Place};
use crate::error::broken_promise;

/// A file of deletes, read once for all data files of a scan that it applies to.
#[derive(Debug)]
pub(super) struct Delete {
    pub(super) place: Place,
    pub(super) by: By,
    content: OnceCell<Content>,
}

/// What a file of deletes tells rows by.
#[derive(Clone, Debug)]
pub(super) enum By {
    /// Their places in files.
    Position,
    /// Their values in these columns.
    Values(Vec<Column>),
}

#[derive(Debug)]
enum Content {
    /// The places by the paths of data files, in order.
    Positions(BTreeMap<String, Vec<u64>>),
    /// The values.
    Values(BTreeSet<Vec<u8>>),
}

impl Delete {
    pub(super) fn new(place: Place, by: By) -> Self {
        Self { place, by, content: OnceCell::new() }
    }

    async fn content(&self, io: &FileIO, mapping: Option<&NameMapping>) -> Result<&Content> {
        let read = || async {
            match &self.by {
                By::Position => self.positions(io).await.map(Content::Positions),
                By::Values(columns) => self.values(io, columns, mapping).await.map(Content::Values),
            }
        };
        self.content.get_or_try_init(read).await
    }

    async fn positions(&self, io: &FileIO) -> Result<BTreeMap<String, Vec<u64>>> {
        let (path, position) = (RESERVED_COL_NAME_DELETE_FILE_PATH, RESERVED_COL_NAME_DELETE_FILE_POS);
        let (path_id, position_id) = (RESERVED_FIELD_ID_DELETE_FILE_PATH, RESERVED_FIELD_ID_DELETE_FILE_POS);
        let column = |id, name: &str, of, kept| Column {
            field: Arc::new(NestedField::required(id, name, Type::Primitive(of))),
            kept: Arc::new(Field::new(name, kept, false)),
            constant: None,
        };
        let columns = vec![
            column(path_id, path, PrimitiveType::String, DataType::Utf8),
            column(position_id, position, PrimitiveType::Long, DataType::Int64),
        ];
        let named = |id, name: &str| MappedField::new(Some(id), vec![name.to_owned()], Vec::new());
        let mapping = NameMapping::new(vec![named(path_id, path), named(position_id, position)]);
        let mut rows = parquet::open(io, &self.place, columns, Some(&mapping)).await?;
        let mut positions = BTreeMap::<String, Vec<u64>>::new();
        while let Some(batch) = rows.try_next().await? {
            let (paths, places) = (batch.column(0).as_string::<i32>(), batch.column(1));
            for (path, place) in paths.iter().zip(places.as_primitive::<Int64Type>()) {
                let place = place.and_then(|place| u64::try_from(place).ok());
                let (Some(path), Some(place)) = (path, place) else {
                    return Err(Error::new(ErrorKind::Corrupt, "a file of deletes names no row")
                        .with_context("file", &self.place.path));
                };
                match positions.get_mut(path) {
                    Some(known) => known.push(place),
                    None => drop(positions.insert(path.to_owned(), vec![place])),
                }
            }
        }
        positions.values_mut().for_each(|places| places.sort_unstable());
        Ok(positions)
    }

    async fn values(
        &self,
        io: &FileIO,
        columns: &[Column],
        mapping: Option<&NameMapping>,
    ) -> Result<BTreeSet<Vec<u8>>> {
        let mut rows = parquet::open(io, &self.place, columns.to_vec(), mapping).await?;
        let mut values = BTreeSet::new();
        while let Some(batch) = rows.try_next().await? {
            let cells = cells(&batch, 0..columns.len())?;
            for row in 0..batch.num_rows() {
                values.insert(encoded(&cells, row, Vec::new()));
            }
        }
        Ok(values)
    }
}

/// What is taken out of the rows of one data file, which pass by in its order.
#[derive(Debug)]
pub(super) struct Taken {
    /// Those that are left to come, the next one last.
    positions: Vec<u64>,
    /// Files of values, and where the columns of each are in a batch.
    values: Vec<(Arc<Delete>, Vec<usize>)>,
    /// How many rows have passed.
    passed: u64,
    /// How many columns a batch has that were asked for, before those of values.
    wanted: usize,
}

impl Taken {
    /// What deletes take out of a file, of which `wanted` columns are read. Appends the further ones that are needed.
    pub(super) async fn of(
        path: &str,
        deletes: &[Arc<Delete>],
        columns: &mut Vec<Column>,
        io: &FileIO,
        mapping: Option<&NameMapping>,
    ) -> Result<Option<Self>> {
        let mut taken = Self { positions: Vec::new(), values: Vec::new(), passed: 0, wanted: columns.len() };
        for delete in deletes {
            match (delete.content(io, mapping).await?, &delete.by) {
                (Content::Positions(positions), _) => {
                    taken.positions.extend(positions.get(path).into_iter().flatten());
                }
                (Content::Values(values), By::Values(by)) if !values.is_empty() => {
                    let places = by.iter().map(|by| place_among(columns, by)).collect();
                    taken.values.push((Arc::clone(delete), places));
                }
                (Content::Values(_), _) => {}
            }
        }
        taken.positions.sort_unstable_by(|a, b| b.cmp(a));
        taken.positions.dedup();
        let nothing = taken.positions.is_empty() && taken.values.is_empty();
        Ok((!nothing).then_some(taken))
    }

    /// The rows of the next batch that stay, with the columns that were asked for.
    pub(super) fn out_of(&mut self, batch: &RecordBatch) -> Result<RecordBatch> {
        let mut stays = vec![true; batch.num_rows()];
        let first = self.passed;
        self.passed = first.saturating_add(u64::try_from(batch.num_rows()).unwrap_or(u64::MAX));
        while let Some(position) = self.positions.pop_if(|position| *position < self.passed) {
            let place = position.checked_sub(first).and_then(|place| usize::try_from(place).ok());
            if let Some(stays) = place.and_then(|place| stays.get_mut(place)) {
                *stays = false;
            }
        }
        let mut row_values = Vec::new();
        for (delete, places) in &self.values {
            let Some(Content::Values(gone)) = delete.content.get() else { continue };
            let cells = cells(batch, places.iter().copied())?;
            for (row, stays) in stays.iter_mut().enumerate().filter(|(_, stays)| **stays) {
                row_values = encoded(&cells, row, row_values);
                *stays = !gone.contains(&row_values);
            }
        }
        let asked: Vec<_> = (0..self.wanted).collect();
        let batch = batch.project(&asked).map_err(|e| broken_promise("columns are not there", e))?;
        if stays.iter().all(|stays| *stays) {
            return Ok(batch);
        }
        let rows = filter_record_batch(&batch, &BooleanArray::from(stays));
        rows.map_err(|e| broken_promise("rows cannot be taken out", e))
    }
}

/// Where a column is, which is appended where it is not there yet.
fn place_among(columns: &mut Vec<Column>, wanted: &Column) -> usize {
    let same = |column: &Column| {
        column.field.id == wanted.field.id && column.kept.data_type() == wanted.kept.data_type()
    };
    columns.iter().position(same).unwrap_or_else(|| {
        columns.push(wanted.clone());
        columns.len() - 1
    })
}

fn cells(batch: &RecordBatch, places: impl IntoIterator<Item = usize>) -> Result<Vec<Cells>> {
    let schema = batch.schema();
    let cells = places.into_iter().map(|place| Cells::new(schema.field(place).name(), batch.column(place)));
    cells.collect()
}

/// The values of a row, NULL among them: a delete of NULL takes out NULL.
fn encoded(cells: &[Cells], row: usize, mut buffer: Vec<u8>) -> Vec<u8> {
    buffer.clear();
    cells.iter().for_each(|cells| cells.cell(row).encode(&mut buffer));
    buffer
}
