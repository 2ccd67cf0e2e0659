//! Builds a profile from batches.

use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, Schema};

use super::digest::RowDigest;
use super::total::Totaller;
use super::{Profile, ProfileSpec};
use crate::domain::partition::PartitionKey;
use crate::domain::rows::{self, CellKind, Columns};
use crate::error::{Error, Result};

/// Takes the rows of one partition in any order and any batches, and answers their [`Profile`].
#[derive(Clone, Debug)]
pub struct ProfileBuilder {
    columns: Vec<String>,
    keys: Vec<String>,
    rows: u64,
    size_bytes: u64,
    totals: Vec<Totaller>,
    nulls: BTreeMap<String, u64>,
    key_digest: RowDigest,
    content: RowDigest,
    comparable: RowDigest,
}

impl ProfileBuilder {
    /// Starts empty. Refuses a column the schema does not have, one of a type that cannot be compared, and a total
    /// of what is no number.
    pub fn new(schema: &Schema, spec: &ProfileSpec) -> Result<Self> {
        let mut kinds = BTreeMap::new();
        for field in schema.fields() {
            let kind = CellKind::of(field.data_type()).ok_or_else(|| {
                Error::invalid(format!(
                    "column `{}` has the type {}, which cannot be compared",
                    field.name(),
                    field.data_type()
                ))
            })?;
            if kinds.insert(field.name().clone(), kind).is_some() {
                return Err(Error::invalid(format!("column `{}` stands twice in the schema", field.name())));
            }
        }
        let totals = totalled(&kinds, spec)?;
        if let Some(unknown) = spec.keys.iter().find(|key| !kinds.contains_key(*key)) {
            return Err(unknown_column("key", unknown, &kinds));
        }
        let mut keys = spec.keys.clone();
        keys.sort();
        keys.dedup();
        Ok(Self {
            columns: kinds.keys().cloned().collect(),
            keys,
            rows: 0,
            size_bytes: 0,
            totals,
            nulls: kinds.into_keys().map(|name| (name, 0)).collect(),
            key_digest: RowDigest::new(),
            content: RowDigest::new(),
            comparable: RowDigest::new(),
        })
    }

    /// Adds rows. Their columns are those of the schema, in any order. An exact total that does not fit into
    /// 256 bits is an error; nothing can be said of the builder after one.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let columns = Columns::new(batch)?;
        self.check_columns(&columns)?;
        // No rows have no size, though empty arrays have.
        if columns.rows() == 0 {
            return Ok(());
        }
        for totaller in &mut self.totals {
            if let Some(column) = columns.get(totaller.column()) {
                totaller.push(column, columns.rows())?;
            }
        }
        for (column, nulls) in columns.columns().iter().zip(self.nulls.values_mut()) {
            *nulls += u64::try_from(column.nulls()).unwrap_or(u64::MAX);
        }
        self.digest(&columns);
        self.rows += u64::try_from(columns.rows()).unwrap_or(u64::MAX);
        self.size_bytes += size_bytes(batch);
        Ok(())
    }

    /// The profile of all rows.
    pub fn finish(self, partition: PartitionKey) -> Profile {
        Profile {
            partition,
            rows: self.rows,
            size_bytes: self.size_bytes,
            totals: self.totals.iter().map(|t| (t.column().to_owned(), t.finish())).collect(),
            nulls: self.nulls,
            keys: (!self.keys.is_empty()).then(|| self.key_digest.finish()),
            content: self.content.finish(),
            comparable: self.comparable.finish(),
        }
    }

    fn digest(&mut self, columns: &Columns) {
        let keys: Vec<_> = self.keys.iter().filter_map(|key| columns.get(key)).collect();
        let mut buffer = Vec::new();
        for row in 0..columns.rows() {
            buffer.clear();
            let floats_begin = columns.encode(row, &mut buffer);
            let content = blake3::hash(&buffer);
            self.content.add_hash(content);
            if floats_begin == buffer.len() {
                self.comparable.add_hash(content);
            } else {
                self.comparable.add(&buffer[..floats_begin]);
            }
            if !keys.is_empty() {
                buffer.clear();
                keys.iter().for_each(|column| rows::encode(column, row, &mut buffer));
                self.key_digest.add(&buffer);
            }
        }
    }

    fn check_columns(&self, columns: &Columns) -> Result<()> {
        if columns.columns().iter().map(|c| c.name()).eq(self.columns.iter().map(String::as_str)) {
            return Ok(());
        }
        let found: Vec<_> = columns.columns().iter().map(|c| c.name()).collect();
        Err(Error::invalid(format!(
            "the rows have the columns {}, the schema has {}",
            found.join(", "),
            self.columns.join(", ")
        )))
    }
}

fn totalled(kinds: &BTreeMap<String, CellKind>, spec: &ProfileSpec) -> Result<Vec<Totaller>> {
    if spec.totals.is_empty() {
        let numeric = kinds.iter().filter(|(_, kind)| kind.is_numeric());
        return Ok(numeric.map(|(name, _)| Totaller::new(name)).collect());
    }
    let of = |name: &String| match kinds.get(name) {
        Some(kind) if kind.is_numeric() => Ok(Totaller::new(name)),
        Some(kind) => Err(Error::invalid(format!("column `{name}` is to be totalled, but is a {kind}"))),
        None => Err(unknown_column("total", name, kinds)),
    };
    spec.totals.iter().map(of).collect()
}

fn unknown_column(what: &str, name: &str, kinds: &BTreeMap<String, CellKind>) -> Error {
    let known: Vec<_> = kinds.keys().map(String::as_str).collect();
    Error::invalid(format!("the {what} `{name}` of the profile is no column of the table"))
        .with_advice(format!("its columns are: {}", known.join(", ")))
}

/// Bytes of the rows alone, without what a slice shares with its neighbours.
fn size_bytes(batch: &RecordBatch) -> u64 {
    let of = |array: &dyn Array| {
        // The size of a slice leaves out the texts that a view points to.
        let viewed = match array.data_type() {
            DataType::Utf8View => array.as_string_view().total_buffer_bytes_used(),
            DataType::BinaryView => array.as_binary_view().total_buffer_bytes_used(),
            _ => 0,
        };
        viewed + array.to_data().get_slice_memory_size().unwrap_or_else(|_| array.get_array_memory_size())
    };
    let bytes: usize = batch.columns().iter().map(|array| of(array.as_ref())).sum();
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
