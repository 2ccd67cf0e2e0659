//! What a file says of the values of each column, as the table's properties `write.metadata.metrics.…` ask.
//!
//! `iceberg` 0.10 says everything of every column, and of texts more than readers want: the bounds are as long as the values.
//! Worse, where the footer of a file has them shortened it leaves out those row groups and takes the others for all. So the
//! bounds of texts and bytes are found here, as rows are written, and shortened as Iceberg asks.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array_58::cast::AsArray;
use arrow_array_58::{ArrayRef, RecordBatch};
use arrow_schema_58::DataType;
use iceberg::io::OutputFile;
use iceberg::spec::{DataFileBuilder, Datum, NestedField, PrimitiveType, Schema, SortOrder, Type};
use iceberg::writer::CurrentFileStatus;
use iceberg::writer::file_writer::{FileWriter, FileWriterBuilder, ParquetWriter, ParquetWriterBuilder};

use super::properties::Properties;

/// What Iceberg says of columns where a table says nothing.
const DEFAULT: Mode = Mode::Truncate(16);
/// Of so many columns, where a table does not say of which.
const COLUMNS: usize = 100;
/// The order of files whose rows are in none.
const UNSORTED: i32 = 0;

/// How much is said of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    None,
    Counts,
    /// Counts, and bounds of so many characters or bytes.
    Truncate(usize),
    Full,
}

impl Mode {
    /// `None` for a text that Iceberg does not know, and takes for the default.
    fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        Some(match text.as_str() {
            "none" => Self::None,
            "counts" => Self::Counts,
            "full" => Self::Full,
            _ => {
                let length = text.strip_prefix("truncate(")?.strip_suffix(')')?;
                Self::Truncate(length.trim().parse().ok().filter(|length| *length > 0)?)
            }
        })
    }

    fn has_bounds(self) -> bool {
        matches!(self, Self::Truncate(_) | Self::Full)
    }
}

/// What is said of the columns of files.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    /// By the ids of columns; nothing is said of others.
    modes: BTreeMap<i32, Mode>,
    /// Columns of texts and bytes whose bounds are wanted.
    texts: Vec<Text>,
}

#[derive(Clone, Debug)]
struct Text {
    id: i32,
    /// Among the columns of the files.
    place: usize,
    of: PrimitiveType,
}

impl Metrics {
    /// As a table asks for its columns.
    pub(super) fn new(properties: &Properties, schema: &Schema, order: &SortOrder) -> Self {
        let default = properties.get("write.metadata.metrics.default");
        let default = default.map(|text| Mode::parse(text).unwrap_or(DEFAULT));
        let most = properties.number("write.metadata.metrics.max-inferred-column-defaults");
        let most = most.ok().flatten().unwrap_or(COLUMNS);
        let mut modes = BTreeMap::new();
        let mut texts = Vec::new();
        for (place, field) in schema.as_struct().fields().iter().enumerate() {
            let inferred = default.unwrap_or(if place < most { DEFAULT } else { Mode::None });
            for id in ids(field) {
                let sorted = order
                    .fields
                    .iter()
                    .any(|sorted| sorted.source_id == id && sorted.transform.preserves_order());
                let inferred = if sorted && !inferred.has_bounds() { DEFAULT } else { inferred };
                let name = schema.name_by_field_id(id).unwrap_or_default();
                let said = properties.get(&format!("write.metadata.metrics.column.{name}"));
                modes.insert(id, said.map_or(inferred, |text| Mode::parse(text).unwrap_or(inferred)));
            }
            if let Type::Primitive(of) = field.field_type.as_ref()
                && is_text(of)
                && modes.get(&field.id).is_some_and(|mode| mode.has_bounds())
            {
                texts.push(Text { id: field.id, place, of: of.clone() });
            }
        }
        Self { modes, texts }
    }

    fn mode(&self, id: i32) -> Mode {
        self.modes.get(&id).copied().unwrap_or(Mode::None)
    }

    /// Leaves of what the library says of a file what is wanted, with the bounds of texts that were found.
    fn apply(&self, builder: &mut DataFileBuilder, found: &[Ends]) -> iceberg::Result<()> {
        let file = builder.build().map_err(|e| {
            iceberg::Error::new(iceberg::ErrorKind::Unexpected, "a file that was written cannot be described")
                .with_source(e)
        })?;
        let counted = |id: &i32| self.mode(*id) != Mode::None;
        let counts = file.value_counts().iter().filter(|(id, _)| counted(id));
        builder.value_counts(counts.map(|(id, count)| (*id, *count)).collect());
        let nulls = file.null_value_counts().iter().filter(|(id, _)| counted(id));
        builder.null_value_counts(nulls.map(|(id, count)| (*id, *count)).collect());
        let nans = file.nan_value_counts().iter().filter(|(id, _)| counted(id));
        builder.nan_value_counts(nans.map(|(id, count)| (*id, *count)).collect());

        let stays = |id: &i32, bound: &Datum| self.mode(*id).has_bounds() && !is_text(bound.data_type());
        let ends = || self.texts.iter().zip(found);
        let lower = file.lower_bounds().iter().filter(|(id, bound)| stays(id, bound));
        let lower = lower.map(|(id, bound)| (*id, bound.clone()));
        let least = ends().filter_map(|(text, ends)| {
            Some((text.id, datum(&text.of, below(&text.of, ends.least.as_ref()?, self.mode(text.id)))?))
        });
        builder.lower_bounds(lower.chain(least).collect());
        let upper = file.upper_bounds().iter().filter(|(id, bound)| stays(id, bound));
        let upper = upper.map(|(id, bound)| (*id, bound.clone()));
        let most = ends().filter_map(|(text, ends)| {
            Some((text.id, datum(&text.of, above(&text.of, ends.most.as_ref()?, self.mode(text.id))?)?))
        });
        builder.upper_bounds(upper.chain(most).collect());
        builder.sort_order_id(UNSORTED);
        Ok(())
    }
}

/// The ids of a column and of what is in it.
fn ids(field: &NestedField) -> Vec<i32> {
    let inner = match field.field_type.as_ref() {
        Type::Primitive(_) => Vec::new(),
        Type::Struct(of) => of.fields().iter().flat_map(|field| ids(field)).collect(),
        Type::List(of) => ids(&of.element_field),
        Type::Map(of) => [ids(&of.key_field), ids(&of.value_field)].concat(),
    };
    [vec![field.id], inner].concat()
}

/// Whether values of the type can be of any length.
fn is_text(of: &PrimitiveType) -> bool {
    matches!(of, PrimitiveType::String | PrimitiveType::Binary | PrimitiveType::Fixed(_))
}

fn datum(of: &PrimitiveType, bytes: Vec<u8>) -> Option<Datum> {
    Some(match of {
        PrimitiveType::String => Datum::string(String::from_utf8(bytes).ok()?),
        PrimitiveType::Fixed(_) => Datum::fixed(bytes),
        _ => Datum::binary(bytes),
    })
}

/// A value that is not greater, and not longer than wanted.
fn below(of: &PrimitiveType, value: &[u8], mode: Mode) -> Vec<u8> {
    value[..kept(of, value, mode)].to_vec()
}

/// A value that is not less, and not longer than wanted; `None` where there is none.
fn above(of: &PrimitiveType, value: &[u8], mode: Mode) -> Option<Vec<u8>> {
    let kept = kept(of, value, mode);
    if kept == value.len() {
        return Some(value.to_vec());
    }
    match of {
        PrimitiveType::String => {
            let mut chars: Vec<char> = std::str::from_utf8(&value[..kept]).ok()?.chars().collect();
            while let Some(last) = chars.pop() {
                if let Some(next) = next_char(last) {
                    chars.push(next);
                    return Some(chars.into_iter().collect::<String>().into_bytes());
                }
            }
        }
        _ => {
            let mut bytes = value[..kept].to_vec();
            while let Some(last) = bytes.pop() {
                if let Some(next) = last.checked_add(1) {
                    bytes.push(next);
                    return Some(bytes);
                }
            }
        }
    }
    None
}

/// How many bytes of a value are kept: those of so many characters of a text.
fn kept(of: &PrimitiveType, value: &[u8], mode: Mode) -> usize {
    let Mode::Truncate(length) = mode else { return value.len() };
    match of {
        PrimitiveType::String => std::str::from_utf8(value)
            .ok()
            .and_then(|text| text.char_indices().nth(length))
            .map_or(value.len(), |(end, _)| end),
        _ => length.min(value.len()),
    }
}

/// The character after another; surrogates are none.
fn next_char(c: char) -> Option<char> {
    (u32::from(c) + 1..=u32::from(char::MAX)).find_map(char::from_u32)
}

/// The least and the greatest value of a column of texts or bytes. Texts have the order of their bytes.
#[derive(Debug, Default)]
struct Ends {
    least: Option<Vec<u8>>,
    most: Option<Vec<u8>>,
}

impl Ends {
    fn observe(&mut self, values: &ArrayRef) {
        match values.data_type() {
            DataType::Utf8 => self.take(values.as_string::<i32>().iter().flatten().map(str::as_bytes)),
            DataType::LargeBinary => self.take(values.as_binary::<i64>().iter().flatten()),
            DataType::FixedSizeBinary(_) => self.take(values.as_fixed_size_binary().iter().flatten()),
            _ => {}
        }
    }

    fn take<'a>(&mut self, mut values: impl Iterator<Item = &'a [u8]>) {
        let Some(first) = values.next() else { return };
        let (least, most) = values.fold((first, first), |(least, most), v| (least.min(v), most.max(v)));
        if self.least.as_ref().is_none_or(|known| least < known.as_slice()) {
            self.least = Some(least.to_vec());
        }
        if self.most.as_ref().is_none_or(|known| most > known.as_slice()) {
            self.most = Some(most.to_vec());
        }
    }
}

/// Writes Parquet files that say of their columns what is wanted.
#[derive(Clone, Debug)]
pub(super) struct MeasuredBuilder {
    inner: ParquetWriterBuilder,
    metrics: Arc<Metrics>,
}

impl MeasuredBuilder {
    pub(super) fn new(inner: ParquetWriterBuilder, metrics: Metrics) -> Self {
        Self { inner, metrics: Arc::new(metrics) }
    }
}

impl FileWriterBuilder for MeasuredBuilder {
    type R = Measured;

    async fn build(&self, output_file: OutputFile) -> iceberg::Result<Measured> {
        let found = self.metrics.texts.iter().map(|_| Ends::default()).collect();
        Ok(Measured {
            inner: self.inner.build(output_file).await?,
            metrics: Arc::clone(&self.metrics),
            found,
        })
    }
}

/// A file that is being written.
pub(super) struct Measured {
    inner: ParquetWriter,
    metrics: Arc<Metrics>,
    found: Vec<Ends>,
}

impl FileWriter for Measured {
    async fn write(&mut self, batch: &RecordBatch) -> iceberg::Result<()> {
        for (text, ends) in self.metrics.texts.iter().zip(&mut self.found) {
            ends.observe(batch.column(text.place));
        }
        self.inner.write(batch).await
    }

    async fn close(self) -> iceberg::Result<Vec<DataFileBuilder>> {
        let mut written = self.inner.close().await?;
        for file in &mut written {
            self.metrics.apply(file, &self.found)?;
        }
        Ok(written)
    }
}

impl CurrentFileStatus for Measured {
    fn current_file_path(&self) -> String {
        self.inner.current_file_path()
    }

    fn current_row_num(&self) -> usize {
        self.inner.current_row_num()
    }

    fn current_written_size(&self) -> usize {
        self.inner.current_written_size()
    }
}

#[cfg(test)]
mod tests;
