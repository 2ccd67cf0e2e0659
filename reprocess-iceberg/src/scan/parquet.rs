//! Parquet files as streams of batches.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use bytes::Bytes;
use datafusion::parquet::arrow::ProjectionMask;
use datafusion::parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use datafusion::parquet::arrow::async_reader::{AsyncFileReader, ParquetRecordBatchStreamBuilder};
use datafusion::parquet::basic::Type as PhysicalType;
use datafusion::parquet::errors::{ParquetError, Result as ParquetResult};
use datafusion::parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use iceberg::io::{FileIO, FileRead};
use iceberg::spec::NameMapping;
use object_store::{OBJECT_STORE_COALESCE_DEFAULT, coalesce_ranges};
use reprocess_core::ports::reader::RowStream;
use reprocess_core::{Error, ErrorKind, Result};

use super::fields::{Column, Known, evolved};
use crate::error::Doing;

/// Rows of a batch.
const BATCH_ROWS: usize = 8192;
/// So much of the end of a file is read at once, in which most of them have all that a reader has to know first.
const FOOTER_BYTES: usize = 256 << 10;

/// Which file is read, and how large the table says that it is.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) path: String,
    pub(super) size_bytes: u64,
}

/// The rows of a file in its order, with these columns in theirs.
pub(super) async fn open(
    io: &FileIO,
    place: &Place,
    columns: Vec<Column>,
    mapping: Option<&NameMapping>,
) -> Result<RowStream> {
    let failed = |e: ParquetError| of_parquet(e).with_context("file", &place.path);
    let input = io.new_input(&place.path).doing("open a data file")?;
    let read = input.reader().await.doing("open a data file")?;
    let mut reader = Reader { read, size_bytes: place.size_bytes };
    // What is written about Arrow in a file is a hint of its writer, and need not be the types of the table.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let known = ArrowReaderMetadata::load_async(&mut reader, options).await.map_err(failed)?;
    let known = with_old_instants(known).map_err(failed)?;

    let fields = known.schema().fields();
    let ids = Known::of_file(fields, mapping);
    let places: Vec<_> = columns.iter().map(|column| place_of(column, &ids)).collect();
    let mut roots: Vec<usize> = places.iter().flatten().copied().collect();
    roots.sort_unstable();
    roots.dedup();
    let mask = ProjectionMask::roots(known.parquet_schema(), roots.iter().copied());
    let rows = ParquetRecordBatchStreamBuilder::new_with_metadata(reader, known)
        .with_projection(mask)
        .with_batch_size(BATCH_ROWS)
        .build()
        .map_err(failed)?;

    // The places among what is read.
    let places = places
        .into_iter()
        .map(|place| place.and_then(|place| Some((roots.binary_search(&place).ok()?, place))));
    let shape = Shape { schema: schema_of(&columns), places: places.collect(), columns, ids };
    let path = place.path.clone();
    let rows = rows.map(move |batch| {
        let batch = batch.map_err(of_parquet).and_then(|batch| shape.of_table(&batch));
        batch.map_err(|e| e.with_context("file", &path))
    });
    Ok(rows.boxed())
}

/// The columns of batches with these.
pub(super) fn schema_of(columns: &[Column]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(|column| Arc::clone(&column.kept)).collect::<Vec<_>>()))
}

/// A batch, which may have no columns.
pub(super) fn batch_of(schema: &SchemaRef, arrays: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::clone(schema), arrays, &options).map_err(|e| {
        Error::new(ErrorKind::Corrupt, "the rows of a data file do not fit the columns of the table")
            .with_source(e)
    })
}

fn place_of(column: &Column, ids: &[Known]) -> Option<usize> {
    let there = || ids.iter().position(|known| known.id == Some(column.field.id));
    column.constant.is_none().then(there).flatten()
}

/// How the batches of a file become those of the table.
struct Shape {
    schema: SchemaRef,
    columns: Vec<Column>,
    /// Of each column where it is in a batch, and in the file.
    places: Vec<Option<(usize, usize)>>,
    ids: Vec<Known>,
}

impl Shape {
    fn of_table(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        let array = |(column, place): (&Column, &Option<(usize, usize)>)| match (&column.constant, place) {
            (Some(value), _) => value.to_array_of_size(rows).doing("repeat a value"),
            (None, Some((at, place))) => {
                evolved(batch.column(*at), &self.ids[*place], &column.field, &column.kept)
            }
            (None, None) => column.absent(rows),
        };
        let arrays = self.columns.iter().zip(&self.places).map(array).collect::<Result<Vec<_>>>()?;
        batch_of(&self.schema, arrays, rows)
    }
}

/// Instants as Hive and old Sparks wrote them are read in microseconds: in nanoseconds, as they would be otherwise, those
/// beyond the years 1677 to 2262 come out as others.
fn with_old_instants(known: ArrowReaderMetadata) -> ParquetResult<ArrowReaderMetadata> {
    let roots = known.parquet_schema().root_schema().get_fields();
    let is_old = |place: usize| {
        roots
            .get(place)
            .is_some_and(|root| root.is_primitive() && root.get_physical_type() == PhysicalType::INT96)
    };
    if !(0..roots.len()).any(is_old) {
        return Ok(known);
    }
    let instant = DataType::Timestamp(TimeUnit::Microsecond, None);
    let fields = known.schema().fields().iter().enumerate().map(|(place, field)| match is_old(place) {
        true => Arc::new(Field::clone(field).with_data_type(instant.clone())),
        false => Arc::clone(field),
    });
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    ArrowReaderMetadata::try_new(Arc::clone(known.metadata()), ArrowReaderOptions::new().with_schema(schema))
}

fn of_parquet(error: ParquetError) -> Error {
    let what = "read a data file";
    match error {
        ParquetError::External(error) => match error.downcast::<iceberg::Error>() {
            Ok(error) => match Err::<(), _>(*error).doing(what) {
                Err(error) => error,
                Ok(()) => Error::internal("an error was none"),
            },
            Err(error) => Error::new(ErrorKind::Corrupt, format!("could not {what}")).with_source(error),
        },
        error @ ParquetError::NYI(_) => {
            Error::new(ErrorKind::Unsupported, format!("could not {what}")).with_source(error)
        }
        error => Error::new(ErrorKind::Corrupt, format!("could not {what}")).with_source(error),
    }
}

/// A file behind `iceberg`, as the reader of Parquet asks for it.
struct Reader {
    read: Box<dyn FileRead>,
    size_bytes: u64,
}

impl AsyncFileReader for Reader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        self.read.read(range).map(|bytes| bytes.map_err(|e| ParquetError::External(Box::new(e)))).boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, ParquetResult<Vec<Bytes>>> {
        let read = &self.read;
        async move {
            let fetch = |range| read.read(range);
            let bytes = coalesce_ranges(&ranges, fetch, OBJECT_STORE_COALESCE_DEFAULT).await;
            bytes.map_err(|e| ParquetError::External(Box::new(e)))
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        _: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, ParquetResult<Arc<ParquetMetaData>>> {
        async move {
            let size_bytes = self.size_bytes;
            let reader = ParquetMetaDataReader::new().with_prefetch_hint(Some(FOOTER_BYTES));
            reader.load_and_finish(self, size_bytes).await.map(Arc::new)
        }
        .boxed()
    }
}
